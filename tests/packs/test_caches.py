"""`packio cache`: what is kept is shown, and cleared, and nothing else."""

from __future__ import annotations

import fcntl
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from cli_runs import run

import packio
from packio.errors import OptionError
from packio.packs import caches

if TYPE_CHECKING:
    import pathlib

pytestmark = pytest.mark.usefixtures("own_cache")


def _cache(*arguments: object) -> list[dict[str, Any]]:
    done = run("cache", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_nothing_is_kept_at_first(tmp_path: pathlib.Path) -> None:
    assert _cache() == _cache("--clear", "--local-copy", tmp_path) == []


def test_all_that_is_kept_is_shown_and_cleared(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    near = tmp_path / "near"
    pack = tmp_path / "x.tar"
    packio.pack(image_folder, pack)
    packio.FolderDataset(image_folder)
    options: dict[str, Any] = {"local_copy": near, "crop": packio.CenterCrop(32)}
    whole = packio.PackDataset(pack, **options)
    part = packio.PackDataset(pack, **options, local_bytes=1 << 20)
    expected = part.gather(range(25))[0]
    assert torch.equal(whole.gather([1, 2])[0], expected[[1, 2]])
    mine = near / "mine.txt"
    mine.write_text("precious")
    shown = _cache("--local-copy", near)
    assert {item["what"] for item in shown} == {"copy of a pack", f"samples of {pack}"}
    assert "listings of image folders" in {item["what"] for item in _cache()}
    assert all(item["bytes"] > 0 and item["used"] > 0 for item in shown)
    assert not any(item["removed"] for item in shown)
    removed = _cache("--local-copy", near, "--clear")
    assert all(item["removed"] for item in removed)
    assert mine.read_text() == "precious"
    assert _cache("--local-copy", near) == []
    assert "listings of image folders" in {item["what"] for item in _cache()}
    _cache("--clear")
    assert _cache() == []
    assert torch.equal(part.gather(range(25))[0], expected)  # its file is open
    assert torch.equal(whole.gather([7, 3])[0], expected[[7, 3]])
    assert torch.equal(packio.PackDataset(pack, **options).gather(range(25))[0], expected)


def test_a_copy_that_is_being_made_stays(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    near = tmp_path / "near"
    packio.pack(image_folder, tmp_path / "x.tar")
    packio.PackDataset(tmp_path / "x.tar", local_copy=near)
    (lock,) = near.glob("*/*.lock")
    lock.with_suffix(".part").mkdir()
    with lock.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        removed = {
            item["what"]: item["removed"] for item in _cache("--local-copy", near, "--clear")
        }
        assert removed["unfinished copy of a pack"] is False
    removed = {item["what"]: item["removed"] for item in _cache("--local-copy", near, "--clear")}
    assert removed["unfinished copy of a pack"] is True


def test_unfinished_uploads_stay(tmp_path: pathlib.Path) -> None:
    left = tmp_path / "cache" / "uploads" / "abc" / "x.tar"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"a day's work")
    (shown,) = _cache("--clear")
    assert (shown["what"], shown["removed"]) == ("unfinished uploads", False)
    assert left.read_bytes() == b"a day's work"


def test_a_folder_of_copies_that_does_not_exist_is_told(tmp_path: pathlib.Path) -> None:
    with pytest.raises(OptionError, match="no such folder"):
        caches.list_kept([tmp_path / "scratc"])
