"""The workshop: what it refuses to clear, and what it leaves behind."""

from __future__ import annotations

import errno
import os
import pathlib
import shutil
import subprocess
from typing import Any

import pytest

import packio
from packio.errors import CannotCreateError, OutputError, OutputExistsError
from packio.inspecting.extracting import extract
from packio.storage import workshop
from packio.system import files


@pytest.fixture
def own_cache() -> None:
    """None: these tests look at all that lies beside an output."""


@pytest.fixture
def victim(tmp_path: pathlib.Path) -> pathlib.Path:
    """Make a folder that is not packio's, with a file in it."""
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    return folder


def _listing(folder: pathlib.Path) -> list[str]:
    return sorted(os.listdir(folder))


def _refused(out: pathlib.Path, says: str) -> None:
    with pytest.raises(CannotCreateError, match=says), workshop.open_workshop(out):
        pytest.fail("it was opened")


def test_a_link_in_the_place_of_the_workshop_is_refused(
    tmp_path: pathlib.Path, victim: pathlib.Path
) -> None:
    (tmp_path / "out.packio-tmp").symlink_to(victim)
    _refused(tmp_path / "out", "is a file or a link")
    assert _listing(victim) == ["thesis.txt"]


def test_a_dangling_link_in_the_place_of_the_workshop_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "out.packio-tmp").symlink_to(tmp_path / "nowhere")
    _refused(tmp_path / "out", "is a file or a link")


def test_no_command_clears_through_a_link(
    tmp_path: pathlib.Path, victim: pathlib.Path, image_folder: pathlib.Path
) -> None:
    pack, out = tmp_path / "in.lmdb", tmp_path / "out.lmdb"
    packio.pack(image_folder, pack)
    (tmp_path / "out.lmdb.packio-tmp").symlink_to(victim)
    with pytest.raises(CannotCreateError):
        packio.pack(image_folder, out)
    with pytest.raises(CannotCreateError):
        extract(pack, out)
    with pytest.raises(CannotCreateError):
        workshop.tidy(out)
    assert _listing(victim) == ["thesis.txt"]


def test_a_folder_that_packio_did_not_make_is_refused(
    tmp_path: pathlib.Path, victim: pathlib.Path
) -> None:
    victim.rename(tmp_path / "out.packio-tmp")
    _refused(tmp_path / "out", "was not made by packio")
    assert _listing(tmp_path / "out.packio-tmp") == ["thesis.txt"]


def test_a_lock_that_is_a_link_is_not_followed(
    tmp_path: pathlib.Path, victim: pathlib.Path
) -> None:
    folder = tmp_path / "out.packio-tmp"
    folder.mkdir()
    (folder / workshop.LOCK).symlink_to(victim / "new.txt")
    _refused(tmp_path / "out", "while locking")
    assert _listing(victim) == ["thesis.txt"]


def test_a_workshop_of_another_user_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out.packio-tmp"
    folder.mkdir()
    (folder / workshop.MARKER).touch()
    (folder / "work").touch()
    if os.geteuid() == 0:
        os.chown(folder, 12345, 12345)
    else:
        monkeypatch.setattr(workshop, "_is_mine", lambda *_: False)
    _refused(tmp_path / "out", "belongs to another user")
    assert "work" in _listing(folder)


def test_names_to_put_back_lead_nowhere_else(tmp_path: pathlib.Path, victim: pathlib.Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    folder = here / "out.packio-tmp"
    (folder / workshop.REPLACED).mkdir(parents=True)
    (folder / workshop.BUILT).mkdir()
    (folder / workshop.MARKER).touch()
    (folder / workshop.NEW_FILES).write_bytes(b"../victim")
    workshop.tidy(here / "out")
    assert _listing(victim) == ["thesis.txt"]


def test_an_empty_folder_is_taken_over_and_nothing_is_left(tmp_path: pathlib.Path) -> None:
    (tmp_path / "out.packio-tmp").mkdir()
    with workshop.open_workshop(tmp_path / "out") as shop:
        assert _listing(shop.folder) == [workshop.LOCK, workshop.MARKER]
    assert _listing(tmp_path) == []


def test_a_killed_run_leaves_a_workshop_that_the_next_one_clears(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "out.packio-tmp"
    subprocess.run(["mkdir", "-p", folder / workshop.BUILT], check=True)
    (folder / workshop.MARKER).touch()
    (folder / workshop.LOCK).touch()
    workshop.tidy(tmp_path / "out")
    assert _listing(tmp_path) == []


def _appears(out: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let somebody make a file, or a folder with one, while a run makes its own files durable."""
    sync_tree = files.sync_tree

    def sync_and_appear(folder: pathlib.Path) -> None:
        sync_tree(folder)
        if out.suffix == ".tar":
            out.write_bytes(b"theirs")
        else:
            out.mkdir(exist_ok=True)
            (out / "theirs.txt").write_bytes(b"theirs")

    monkeypatch.setattr(files, "sync_tree", sync_and_appear)


def _theirs(out: pathlib.Path) -> bytes:
    return (out if out.is_file() else out / "theirs.txt").read_bytes()


@pytest.mark.parametrize(
    ("name", "asked"), [("x.tar", {}), ("x.zarr", {}), ("x.lmdb", {}), ("x.tar", {"shards": 2})]
)
def test_what_appears_at_the_last_moment_stays_and_the_rerun_goes_on(
    name: str, asked: dict[str, Any], image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / name
    with pytest.MonkeyPatch.context() as monkeypatch:
        _appears(out, monkeypatch)
        with pytest.raises(OutputExistsError, match=r"somebody made it|exists"):
            packio.pack(image_folder, out, **asked)
    assert _theirs(out) == b"theirs"
    shutil.rmtree(out) if out.is_dir() else out.unlink()
    report = packio.pack(image_folder, out, **asked)
    assert report.resumed > 0
    assert packio.verify(out).damages == ()


def test_a_file_that_appears_in_the_folder_of_an_extraction_stays(
    image_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packio.pack(image_folder, tmp_path / "x.tar")
    out = tmp_path / "images"
    out.mkdir()
    _appears(out, monkeypatch)
    with pytest.raises(OutputExistsError, match="somebody made it"):
        extract(tmp_path / "x.tar", out)
    assert _listing(out) == ["theirs.txt"]


def test_a_file_system_that_makes_nothing_is_an_error(image_folder: pathlib.Path) -> None:
    with pytest.raises(CannotCreateError, match="nothing can be made in /proc"):
        packio.pack(image_folder, "/proc/packio-test.lmdb")


@pytest.mark.parametrize("suffix", [".tar", ".rec", ".h5"])
def test_the_files_of_a_publication_that_was_undone_are_taken_over(
    suffix: str, image_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / f"x{suffix}"
    packio.pack(min(image_folder.iterdir()), out)  # another pack, which is replaced
    old = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    index = tmp_path / f"x{suffix}.packio"
    rename = pathlib.Path.rename

    def fails(self: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
        if target == index:  # all but the index of the new pack is in place
            raise OSError(errno.EIO, "no")
        return rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(pathlib.Path, "rename", fails)
        with pytest.raises(OutputError, match="no"):
            packio.pack(image_folder, out, overwrite=True)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == old
    assert packio.pack(image_folder, out, overwrite=True).resumed == 1
    assert packio.verify(out).ok
    assert {path.name for path in tmp_path.iterdir()} == set(old)


def test_a_folder_in_the_place_of_a_file_leaves_no_sidecars_of_it(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.tar"
    packio.pack(image_folder, out)
    assert {path.name for path in tmp_path.iterdir()} == {"x.tar", "x.tar.idx", "x.tar.packio"}
    packio.pack(image_folder, out, shards=3, overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"x.tar"}
    assert packio.verify(out).ok
