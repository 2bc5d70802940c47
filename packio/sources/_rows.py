"""Files that samples are read from after they are listed, and `Listing.open` of functions.

Packing lists a source first and reads the samples later, perhaps in other processes. A file on disk
may change meanwhile; that is an error. A scratch file has no name, so the system removes the file
when the process ends, even after a crash. Other processes of this machine open a scratch file
through this process's folder in ``/proc``; for other machines it gets a name for a time.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from packio.errors import OutputError, ReadError, SourceError
from packio.sample.record import Field, Record
from packio.sources import ReadRecord
from packio.storage import stores, urls
from packio.storage.urls import Url
from packio.system.files import more_room


@contextlib.contextmanager
def each(read: Callable[..., Record[Field]], *args: Any) -> Iterator[ReadRecord]:
    """Make `Listing.open` of ``read(*args, rows, position)``, which needs nothing opened."""
    yield functools.partial(read, *args)


@contextlib.contextmanager
def each_of(
    file: ListedFile | ScratchFile, read: Callable[..., Record[Field]], *args: Any
) -> Iterator[ReadRecord]:
    """Make `Listing.open` of a function that reads rows from one file."""
    with file.open() as descriptor:
        yield functools.partial(read, descriptor, *args)


class ListedFile(NamedTuple):
    """A file, with its size and time at listing."""

    path: str  # absolute, or a URL
    size: int  # bytes
    mtime_ns: int  # of an object at a URL: a digest of its version

    @property
    def url(self) -> Url | None:
        return urls.parse(self.path)

    @staticmethod
    def stat(path: str | os.PathLike[str]) -> ListedFile:
        if (url := urls.parse(path)) is not None:
            facts = stores.file_facts(url)
            stamp = hashlib.sha256(facts.version.encode()).digest()[:7]
            return ListedFile(os.fspath(url), facts.size, int.from_bytes(stamp, "little"))
        status = os.stat(path)
        return ListedFile(os.path.abspath(path), status.st_size, status.st_mtime_ns)

    def check(self, status: os.stat_result | None = None) -> None:
        if status is None:
            is_same = ListedFile.stat(self.path) == self
        else:
            is_same = (status.st_size, status.st_mtime_ns) == self[1:]
        if not is_same:
            raise SourceError(f"{self.path}: changed after it was listed; run again")

    @contextlib.contextmanager
    def open(self) -> Iterator[int]:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if not self.path.startswith("/proc/"):
                raise
            raise ReadError(
                f"{self.path}: {error.strerror}; the process that listed the samples has to live, "
                "on this machine"
            ) from error
        try:
            self.check(os.fstat(descriptor))
            yield descriptor
        finally:
            os.close(descriptor)

    def digest(self) -> str:
        digest = hashlib.sha256()
        with open(self.path, "rb") as file:
            while data := file.read(1 << 20):
                digest.update(data)
        return digest.hexdigest()


class ScratchFile:
    """A file without a name, closed when nothing refers to this object any more.

    Its folder has room; None: the system's (``TMPDIR``). `doing` says what fills it, in an error.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, doing: str) -> None:
        self._folder, self._doing = os.fspath(folder or tempfile.gettempdir()), doing
        with self._room():
            self._file: BinaryIO = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (it is kept)
        self.size = 0
        self._name: Path | None = None
        weakref.finalize(self, _close, self._file)

    def __reduce__(self) -> tuple[object, ...]:
        if self._name is not None:
            return ListedFile, tuple(ListedFile.stat(self._name))
        status = os.fstat(self._file.fileno())
        path = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
        return ListedFile, (path, status.st_size, status.st_mtime_ns)

    def write(self, data: bytes) -> None:
        with self._room():
            self._file.write(data)
        self.size += len(data)

    def finish(self) -> None:
        with self._room():
            self._file.flush()

    def open(self) -> AbstractContextManager[int]:
        return contextlib.nullcontext(self._file.fileno())

    @contextlib.contextmanager
    def copy_to(self, path: Path) -> Iterator[None]:
        """Copy the file to a path, so that other machines can open it, until the ``with`` ends."""
        try:
            with self._room():
                self._file.seek(0)
                with path.open("xb") as copy:
                    shutil.copyfileobj(self._file, copy, 1 << 20)
                    copy.flush()
                    os.fsync(copy.fileno())
            self._name = path
            yield
        finally:
            self._name = None
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"{self._folder}: {error.strerror} while {self._doing}; {more_room()}, or name "
                "another folder in the environment variable TMPDIR"
            ) from error


def scratch_files(opened: Any) -> list[ScratchFile]:
    """Find the scratch files that `Listing.open`, a partial of partials, needs elsewhere."""
    if isinstance(opened, ScratchFile):
        return [opened]
    return [file for part in getattr(opened, "args", ()) for file in scratch_files(part)]


def _close(file: BinaryIO) -> None:
    with contextlib.suppress(OSError):  # the disk is full: the buffer is lost
        file.close()
