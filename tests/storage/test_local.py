"""Local files, read by threads and by forked processes."""

from __future__ import annotations

import multiprocessing
import pathlib
import threading

import pytest

from packio.errors import IntegrityError
from packio.storage.local import LocalFiles


def _reads(files: LocalFiles) -> None:
    assert files.read(0, 1, 2) == b"bc"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_reads_though_its_parent_held_the_lock(tmp_path: pathlib.Path) -> None:
    (tmp_path / "x").write_bytes(b"abcd")
    files = LocalFiles(tmp_path, ["x"], [4])
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with files._lock:
            held.set()
            over.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = multiprocessing.get_context("fork").Process(target=_reads, args=(files,))
    child.start()
    over.set()
    holder.join()
    child.join(30)
    hangs = child.is_alive()
    child.kill()
    assert not hangs
    assert child.exitcode == 0


def test_a_file_truncated_while_it_is_open_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "x").write_bytes(b"abcd")
    files = LocalFiles(tmp_path, ["x"], [4])
    (tmp_path / "x").write_bytes(b"ab")
    with pytest.raises(IntegrityError, match="ends at byte 2"):
        files.read(0, 0, 4)
