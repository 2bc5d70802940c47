"""Work in a process of its own: what becomes of an end that is not the file's fault."""

from __future__ import annotations

import errno
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from packio.errors import IntegrityError, ReadError
from packio.system import files, isolation

if TYPE_CHECKING:
    import pathlib


def test_a_process_that_was_killed_does_not_blame_the_file() -> None:
    with pytest.raises(ReadError, match=r"^a\.h5: the process that reads it was killed"):
        isolation.run("signal:raise_signal", signal.SIGKILL, where="a.h5", seconds=60)
    with pytest.raises(IntegrityError, match="SIGSEGV"):
        isolation.run("signal:raise_signal", signal.SIGSEGV, where="a.h5", seconds=60)


def test_memory_that_runs_out_is_told_as_such() -> None:
    with pytest.raises(MemoryError):
        isolation.run("builtins:bytearray", 1 << 62, where="a.h5", seconds=60)


def test_errors_of_the_system_name_a_file() -> None:
    with pytest.raises(OSError, match=r"a\.h5") as found:
        isolation.run("os:close", 9999, where="a.h5", seconds=60)
    assert found.value.errno == errno.EBADF
    with pytest.raises(FileNotFoundError, match="/nowhere"):
        isolation.run("os:open", "/nowhere", 0, where="a.h5", seconds=60)


def test_no_process_to_be_had_names_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", full)
    with pytest.raises(BlockingIOError, match=r"unavailable: 'a\.h5'"):
        isolation.run("os:close", 9999, where="a.h5", seconds=60)


def test_an_index_that_cannot_be_written_is_named(tmp_path: pathlib.Path) -> None:
    with (
        pytest.raises(OSError, match=r"x\.packio"),
        files.replacing(tmp_path / "x.packio"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []
