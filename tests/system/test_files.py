"""Files are written under names that nobody foresees, and room is told as it is."""

from __future__ import annotations

import errno
import os
import pathlib
import resource
import subprocess
import sys

import made
import pytest

import packio
from packio.errors import CannotCreateError
from packio.inspecting import pages
from packio.system import files


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x"
    with files.replacing(path) as file:
        file.write(b"one")
    with pytest.raises(TypeError), files.replacing(path) as file:
        file.write(7)  # type: ignore[call-overload]  # after the file was made
    assert (os.listdir(tmp_path), path.read_bytes()) == (["x"], b"one")


def test_temporary_names_cannot_be_foreseen_and_are_short(tmp_path: pathlib.Path) -> None:
    names = {files.temporary_name(tmp_path / ("x" * 255)).name for _ in range(100)}
    assert len(names) == 100
    assert all(len(name) < 40 for name in names)


def test_a_planted_link_is_not_written_through(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / "planted").symlink_to(victim)
    monkeypatch.setattr(files, "temporary_name", lambda _: tmp_path / "planted")
    with pytest.raises(FileExistsError), files.replacing(tmp_path / "x") as file:
        file.write(b"theirs")
    assert victim.read_bytes() == b"mine"


def test_pages_are_not_written_through_links_of_the_next_processes(tmp_path: pathlib.Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    for pid in range(os.getpid(), os.getpid() + 100):
        (tmp_path / f".packio-sheet-{pid}.tmp").symlink_to(victim)
    pages.write_page(tmp_path / "page.html", "<!doctype html>")
    assert victim.read_bytes() == b"mine"
    assert (tmp_path / "page.html").read_bytes() == b"<!doctype html>"


@pytest.mark.parametrize("suffix", [".tar", ".lmdb", ".rec"])
def test_a_long_name_is_refused_before_anything_is_read_or_works(
    suffix: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "s" / "a").mkdir(parents=True)
    (tmp_path / "s" / "a" / "1.png").write_bytes(made.png())
    for length in (200, 215, 223, 224, 230, 240, 243, 250, 255):
        out = tmp_path / f"{'x' * (length - len(suffix))}{suffix}"
        if length <= 223:
            assert packio.pack(tmp_path / "s", out, on_error="skip").packed == 1
            assert packio.verify(out).ok
            continue
        seen: list[int] = []
        with pytest.raises(CannotCreateError, match="choose a shorter name"):
            packio.pack(tmp_path / "s", out, progress=lambda p: seen.append(p.done))  # noqa: B023 (called here)
        assert not any(seen)
        assert not out.exists()


_LIMITED = """
import resource, sys, packio
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    packio.pack(sys.argv[1], sys.argv[2])
except packio.errors.OutputError as error:
    print(error)
"""


@pytest.mark.parametrize("suffix", [".tar", ".lmdb", ".h5", ".tfrecord"])
def test_a_limit_of_file_sizes_is_named(suffix: str, tmp_path: pathlib.Path) -> None:
    made.image_tree(tmp_path / "s", 20, 2, most=20_000, seed=1)
    command = [sys.executable, "-c", _LIMITED, str(tmp_path / "s"), str(tmp_path / f"x{suffix}")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "no file may be larger than 100,000 bytes" in done.stdout, done.stderr
    assert "ulimit -f" in done.stdout
    assert "make room" not in done.stdout


def test_without_a_limit_room_is_asked_for(tmp_path: pathlib.Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    assert files.room_beside(tmp_path / "x").endswith("bytes free; make room and run it again")


def test_an_index_that_cannot_be_written_is_named(tmp_path: pathlib.Path) -> None:
    with (
        pytest.raises(OSError, match=r"x\.packio"),
        files.replacing(tmp_path / "x.packio"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []
