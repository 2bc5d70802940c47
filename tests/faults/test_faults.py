"""The short form of the campaign, for each format; and that its judges can say no.

`campaign.py --long` is the long form, or this with PACKIO_LONG=1.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import campaign
import checker
import faults
import ground as grounds
import pytest
import syscalls

import packio
from packio import registry

_LONG = ["--long"] if os.environ.get("PACKIO_LONG") else []
_CAMPAIGN = pathlib.Path(campaign.__file__)


def test_every_format_that_is_written_is_in_the_campaign() -> None:
    modules = [registry.load("formats", name) for name in registry.list_built_in("formats")]
    written = {m.caps.suffixes[0] for m in modules if m.caps.writes}
    assert written == set(checker.SUFFIXES)


@pytest.mark.long
@pytest.mark.timeout(None if _LONG else 1800)
@pytest.mark.parametrize("suffix", checker.SUFFIXES)
def test_no_fault_loses_or_doubles_an_image(suffix: str, tmp_path: pathlib.Path) -> None:
    card = tmp_path / "card.json"
    command = [sys.executable, str(_CAMPAIGN), "--format", suffix[1:], "--json", str(card), *_LONG]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(card.read_text())["formats"][suffix]
    assert results["kills"]["passed"] == results["kills"]["trials"] > 0
    assert set(results) >= {kind for kind, t in faults.KINDS.items() if not t.mounts} - {"calls"}


def _packed(suffix: str, tmp_path: pathlib.Path) -> tuple[pathlib.Path, list[checker.Sample]]:
    source, out = tmp_path / "source", tmp_path / f"x{suffix}"
    grounds.make_source(source, 12, 900)
    packio.pack(source, out, shards=2)
    return out, checker.folder(source)


def test_the_checker_tells_what_is_lost_doubled_and_wrong(tmp_path: pathlib.Path) -> None:
    out, expected = _packed(".tar", tmp_path)
    assert checker.check(out, expected).good
    more = checker.Sample(b"class 0/new.png", 0, b"data")
    assert checker.check(out, [*expected, more]).lost == 1
    assert checker.check(out, expected[1:]).wrong == 1
    other = expected[0]._replace(label=expected[0].label + 1)
    assert checker.check(out, [other, *expected[1:]]).wrong == 1
    shutil.copy(out / "x-00000.tar", out / "x-00002.tar")
    assert checker.check(out, expected).duplicated == 6


def test_the_checker_follows_the_index(tmp_path: pathlib.Path) -> None:
    out, expected = _packed(".tfrecord", tmp_path)
    (out / "x-00000.tfrecord.idx").write_bytes(b"")
    verdict = checker.check(out, expected)
    assert verdict.in_index == ("x-00000.tfrecord.idx: another size or digest",)


def _in_a_process(code: str, *arguments: object) -> str:
    """What a script prints that may mount and trace."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, sys.argv[1]); {code}"]
    done = subprocess.run(
        [*command, str(_CAMPAIGN.parent), *map(str, arguments)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


_CUT = """
import pathlib, random, faults, ground, processes
if not faults.can_mount(): print("cannot mount"); sys.exit()
faults.run("mount", "-t", "tmpfs", "tmpfs", sys.argv[2])
g = ground.Ground(pathlib.Path(sys.argv[2]), ".tar", 20, 3000)
list(faults.cuts(g, 1, random.Random(1)))
for sync in (True, False):
    try: faults.cut(g, ground.Way(4), 1.0, sync=sync); print("kept")
    except processes.FaultError: print("lost")
"""


def test_without_fsync_a_power_cut_after_the_end_loses_the_pack(tmp_path: pathlib.Path) -> None:
    said = _in_a_process(f"exec({_CUT!r})", tmp_path)
    if said == "cannot mount":
        pytest.skip("mounting needs root")
    assert said.split() == ["kept", "lost"]


_SWEEP = """
import pathlib, os, syscalls
def act():
    for name in "ab":
        try: (pathlib.Path(sys.argv[2]) / name).write_text(name)
        except OSError as error: return error.errno
    return 0
for when in (None, 0, 1, 2, 3, 4):
    traced = syscalls.run(act, sys.argv[2], when, 5)
    print(os.waitstatus_to_exitcode(traced.status), traced.calls[-1].name)
print(syscalls.run(act, sys.argv[2], 2).status)
"""


@pytest.mark.skipif(not syscalls.available(), reason="processes cannot be traced here")
def test_each_call_fails_in_turn(tmp_path: pathlib.Path) -> None:
    said = _in_a_process(f"exec({_SWEEP!r})", tmp_path).splitlines()
    assert said == ["0 write", "5 openat", "5 write", "5 openat", "5 write", "0 write", "9"]


def test_the_card_is_a_table() -> None:
    result = {"trials": 5, "passed": 4, "lost": 0, "duplicated": 1, "wrong": 0, "worst_redo": 2}
    card = {"formats": {".tar": {"kills": result}, ".h5": {"calls": {**result, "trials": 1200}}}}
    assert campaign.markdown(card).splitlines() == [
        "| | kills | calls | lost, doubled, wrong | worst redo |",
        "|---|---:|---:|---:|---:|",
        "| .tar | 4/5 |  | 0, 1, 0 | 2 |",
        "| .h5 |  | 4/1,200 | 0, 1, 0 | 2 |",
    ]
