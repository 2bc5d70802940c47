"""The lock of a file: waited for as long as its holder has it."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from typing import IO, TYPE_CHECKING

import pytest

from packio.errors import CannotCreateError
from packio.system import locks

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

_HOLDS = """
import pathlib, sys
from packio.system import locks
with locks.file_lock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: pathlib.Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock until its input ends."""
    command = [sys.executable, "-c", _HOLDS, str(tmp_path / "lock")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_others_wait_for_one_that_works(
    holder: subprocess.Popen[str], tmp_path: pathlib.Path
) -> None:
    got = threading.Event()

    def wait() -> None:
        with locks.file_lock(tmp_path / "lock"):
            got.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not got.wait(1)
    assert holder.stdin is not None
    holder.stdin.close()
    thread.join()
    assert got.is_set()


def test_a_lock_whose_file_is_removed_is_another_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, inodes = tmp_path / "lock", []
    locked = locks.wait_for_lock

    def removed_meanwhile(file: IO[bytes]) -> bool:
        found = locked(file)
        inodes.append(os.fstat(file.fileno()).st_ino)
        if len(inodes) == 1:
            path.rename(tmp_path / "old")
        return found

    monkeypatch.setattr(locks, "wait_for_lock", removed_meanwhile)
    with locks.file_lock(path):
        assert path.stat().st_ino == inodes[1] != inodes[0]


def test_a_forked_process_does_not_keep_it(tmp_path: pathlib.Path) -> None:
    code = f"""
import os, pathlib, subprocess, sys
from packio.system import locks
path = pathlib.Path({str(tmp_path / "lock")!r})
ours, theirs = os.pipe()
with locks.file_lock(path):
    pid = os.fork()
    if not pid:
        os.close(theirs)
        os.read(ours, 1)
        os._exit(0)
with locks.file_lock(path):
    print("got it")
os.close(theirs)
os.waitpid(pid, 0)
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "got it\n"


def test_an_index_that_cannot_be_locked_is_an_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    (tmp_path / "x.packio").touch()
    monkeypatch.setattr(fcntl, "flock", flock)
    with (
        pytest.raises(CannotCreateError, match="No locks available while locking"),
        locks.changing(tmp_path / "x.packio"),
    ):
        pass
