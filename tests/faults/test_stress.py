"""The short form of the stress of threads and forks, for each kind of pack.

`stress.py --long` is the long form, or this with PACKIO_LONG=1.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import subprocess
import sys

import long
import processes
import pytest
import stress

import packio

_LONG = ["--long"] if os.environ.get("PACKIO_LONG") else []
_SCRIPT = pathlib.Path(stress.__file__)


@pytest.mark.timeout(None if _LONG else 1800)  # a child that hangs says where after two minutes
@pytest.mark.parametrize("kind", long.after(2, stress.KINDS))
def test_children_forked_beside_busy_threads_read_rightly(
    kind: str, tmp_path: pathlib.Path
) -> None:
    card = tmp_path / "card.json"
    command = [sys.executable, str(_SCRIPT), "--kind", kind, "--json", str(card), *_LONG]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(card.read_text())["kinds"][kind]["children"] >= 20


def test_the_stress_tells_wrong_labels_and_wrong_pixels(tmp_path: pathlib.Path) -> None:
    written = stress.write_source(tmp_path / "source")
    out = packio.pack(tmp_path / "source", tmp_path / "x.tar").out
    ds = packio.PackDataset(out, fields=("image", "label", "key"))
    stress.read(ds, written, random.Random(1), 400)
    for wrong, message in (
        ([w._replace(label=w.label + 1) for w in written], "found .*label 0, pixels equal"),
        ([w._replace(pixels=w.pixels[::-1]) for w in written], "pixels differ"),
    ):
        with pytest.raises(processes.FaultError, match=message):
            stress.read(ds, wrong[:10], random.Random(1), 8)
