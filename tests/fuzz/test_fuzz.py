"""A short form of the fuzzing campaign: a few hundred mutated inputs for each parser.

The long form is ``python tests/fuzz/fuzzing.py --runs 1000000``; what it finds becomes a test here
or in the parser's room.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fuzz_targets
import pytest

_SCRIPT = Path(__file__).with_name("fuzzing.py")
_RUNS = int(os.environ.get("PACKIO_FUZZ_RUNS", "300"))


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(fuzz_targets.TARGETS))
def test_mutated_inputs_are_refused_or_read(name: str, tmp_path: Path) -> None:
    if name == "zarr":
        pytest.importorskip(name)  # wants Python 3.11
    ran = subprocess.run(
        [sys.executable, _SCRIPT, name, "--runs", str(_RUNS), "--out", tmp_path / "found"],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{name}: {_RUNS:,} runs" in ran.stdout
