"""Processes of ours import nothing from the folder that the user happens to be in."""

from __future__ import annotations

import pathlib

import pytest

import packio
from packio.system import isolation


@pytest.fixture
def hostile(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Make a current folder with modules named as Python's own, which tell when they run."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in ("json", "contextlib", "typing", "dataclasses", "numpy"):
        mark = tmp_path / "ran"
        (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'w')")
    monkeypatch.chdir(folder)
    return tmp_path / "ran"


def test_what_reads_files_that_may_crash_does_not(hostile: pathlib.Path) -> None:
    isolation.run("packio.packs.recognising:expand_braces", "x", where="x", seconds=60)
    assert not hostile.exists()


def test_what_writes_shards_does_not(
    hostile: pathlib.Path, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    packio.pack(image_folder, tmp_path / "x", format="tar", shards=2, num_workers=2)
    assert not hostile.exists()
