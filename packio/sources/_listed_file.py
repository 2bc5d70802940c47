"""Files that are read again after they were listed: a file on disk, or a file without a name.

Packing lists a source first and reads the samples later, perhaps in other processes. A file on disk
may change meanwhile; that is an error. A scratch file has no name, so the system removes the file
when the process ends, even after a crash. Other processes of this machine open a scratch file
through this process's folder in ``/proc``; for other machines it gets a name for a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from packio.errors import OutputError, ReadError, SourceError
from packio.storage import objects, urls
from packio.storage.urls import Url
from packio.system.files import more_room


class ListedFile(NamedTuple):
    """A file, with its size and time at listing."""

    path: str  # absolute, or a URL
    size: int  # bytes
    mtime_ns: int  # of an object at a URL: a digest of its version

    @property
    def url(self) -> Url | None:
        """URL of the file, if the file is an object at one."""
        found = urls.place(self.path)
        return found if isinstance(found, Url) else None

    @staticmethod
    def of(path: str | os.PathLike[str]) -> ListedFile:
        """Look at a file."""
        if isinstance(url := urls.place(path), Url):
            facts = objects.facts(url)
            stamp = hashlib.sha256(facts.version.encode()).digest()[:7]
            return ListedFile(os.fspath(url), facts.size, int.from_bytes(stamp, "little"))
        status = os.stat(path)
        return ListedFile(os.path.abspath(path), status.st_size, status.st_mtime_ns)

    def check(self, status: os.stat_result | None = None) -> None:
        """Refuse a file that has changed."""
        if self.url is not None:
            if ListedFile.of(self.path) != self:
                raise SourceError(f"{self.path}: changed after it was listed; run again")
            return
        status = os.stat(self.path) if status is None else status
        if (status.st_size, status.st_mtime_ns) != (self.size, self.mtime_ns):
            raise SourceError(f"{self.path}: changed after it was listed; run again")

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """Yield a descriptor of the file."""
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
        """SHA-256 of the contents, hexadecimal."""
        digest = hashlib.sha256()
        with open(self.path, "rb") as file:
            while data := file.read(1 << 20):
                digest.update(data)
        return digest.hexdigest()


class ScratchFile:
    """A file without a name. The file is closed when nothing refers to this object any more.

    Args:
        folder: Folder of the file, on a disk with room; None takes the system's (``TMPDIR``).
        doing: What fills the file, for the message about a full disk: "samples were put aside".
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
            return ListedFile, tuple(ListedFile.of(self._name))
        status = os.fstat(self._file.fileno())
        path = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
        return ListedFile, (path, status.st_size, status.st_mtime_ns)

    def write(self, data: bytes) -> None:
        """Append bytes."""
        with self._room():
            self._file.write(data)
        self.size += len(data)

    def finish(self) -> None:
        """Write what is in the buffer."""
        with self._room():
            self._file.flush()

    def opened(self) -> AbstractContextManager[int]:
        """A context with a descriptor of the file."""
        return contextlib.nullcontext(self._file.fileno())

    @contextlib.contextmanager
    def named(self, path: Path) -> Iterator[None]:
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


def scratch_files(value: object) -> list[ScratchFile]:
    """Find the scratch files that a value would need in another process."""
    finder = _Finder(io.BytesIO())
    finder.dump(value)
    return list(finder.found.values())


class _Finder(pickle.Pickler):
    """Notes the scratch files among what is pickled."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.found: dict[int, ScratchFile] = {}

    def reducer_override(self, obj: Any) -> Any:
        """See `pickle.Pickler.reducer_override`; changes nothing."""
        if isinstance(obj, ScratchFile):
            self.found[id(obj)] = obj
        return NotImplemented


def _close(file: BinaryIO) -> None:
    with contextlib.suppress(OSError):  # the disk is full: the buffer is lost
        file.close()
