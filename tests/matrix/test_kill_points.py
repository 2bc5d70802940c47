"""A command that is killed before any of its changes on disk, and run again, does its work."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from commands import KILLED, Commands
from trials import Cell, Trial

if TYPE_CHECKING:
    import pathlib

_ALL_OF_THE_LAST = 16  # changes: publishing
_ONE_WORKER = ["--workers", "1"]  # with several, the number of changes varies
_VARYING = 6  # changes: folders of the cache, which also knows files by their age
_EACH = 1 if os.environ.get("PACKIO_MATRIX") == "whole" else 6  # of the changes before


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("suffix", "options"),
    [
        pytest.param(".tar", [], id="a file"),
        pytest.param(".h5", ["--shards", "2"], id="files"),
        pytest.param(".lmdb", [], id="a folder"),
    ],
)
def test_packing(
    suffix: str, options: list[str], tmp_path: pathlib.Path, commands: Commands
) -> None:
    trial = Trial(
        Cell("image_folder", (("label", "class"),), "kill", suffix, ""), tmp_path, commands
    )
    source = trial.written(trial.samples)
    options = [*options, *_ONE_WORKER]
    changes = trial.run("pack", *source.arguments, trial.out("count"), *options).changes
    for point in _points(changes):
        told = ["pack", *source.arguments, trial.out(f"pack{point}"), *options]
        ran = trial.run(*told, code=(0, KILLED), kill_at=point)
        assert ran.code == KILLED or point > changes - _VARYING
        trial.run(*told)
        trial.check(trial.out(f"pack{point}"), source.samples, ordered=True)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("suffix", [".lmdb", ".tar", ".rec"])
def test_appending(suffix: str, tmp_path: pathlib.Path, commands: Commands) -> None:
    trial = Trial(Cell("extracted", (("label", "class"), ("boxes", "some")), "kill", suffix, ""),
                  tmp_path, commands)  # fmt: skip
    out, _ = trial.sharded(trial.first, "count")
    source = trial.written(trial.samples, "source_more")
    more = [*source.arguments, *_ONE_WORKER]
    changes = trial.run("append", out, *more).changes
    for point in _points(changes):
        out, one = trial.sharded(trial.first, f"pack{point}")
        ran = trial.run("append", out, *more, code=(0, KILLED), kill_at=point)
        assert ran.code == KILLED or point > changes - _VARYING
        trial.check_either(out, one.samples, source.samples)
        trial.append(out, source)
        trial.check(out, source.samples)


def _points(changes: int) -> list[int]:
    late = max(1, changes - _ALL_OF_THE_LAST)
    return [*range(1, late, _EACH), *range(late, changes + 1)]
