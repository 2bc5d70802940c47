"""Files of a folder, one for each sample, in any number: each read opens and closes its file.

`packio.storage.local` keeps its few files open, and saves the opening and closing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from packio.errors import IntegrityError, ReadError
from packio.system.files import OF_ONE_FILE, read_at

# without O_NONBLOCK, opening a FIFO would wait for its writer
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def path_problem(key: bytes) -> str | None:
    """Say why a key is no path of a file below a folder; None if it is such a path."""
    if b"\0" in key:
        return "contains a NUL byte"
    if key.startswith(b"/"):
        return "is an absolute path"
    parts = key.split(b"/")
    if b".." in parts:
        return "leads upwards"
    return "is not a plain path" if b"" in parts or b"." in parts else None


class FolderFiles:
    """Files below a folder, named by the keys of an index. Nothing stays open."""

    def __init__(self, root: Path, key: Callable[[int], bytes]) -> None:
        self._prefix, self._key = os.fsencode(root) + b"/", key

    def check(self, is_read: Callable[[int], bool]) -> None:
        """Check nothing: each read checks the size of its file."""

    def read(self, file: int, offset: int, length: int) -> bytes:
        """Read one file."""
        try:
            descriptor = os.open(self._path(file), _FLAGS)
            try:
                data = read_at(descriptor, length + 1, offset)  # one byte more shows a longer file
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno in OF_ONE_FILE:
                raise IntegrityError(
                    f"{self.path(file)}: {error.strerror}; it was there when the folder was "
                    "listed; make the dataset anew"
                ) from error
            raise ReadError(f"{self.path(file)}: {error.strerror}") from error
        if len(data) != length:
            found = "more" if len(data) > length else str(len(data))
            raise IntegrityError(
                f"{self.path(file)}: {found} bytes, it had {length} when the folder was listed; "
                "make the dataset anew"
            )
        return data

    def joined_paths(self, files: Sequence[int]) -> tuple[bytes, list[int]]:
        """Paths of files, a NUL byte behind each, and where each begins; -1: it has no path."""
        paths: list[bytes] = []
        starts, end = [], 0
        for file in files:
            try:
                path = self._path(file) + b"\0"
            except IntegrityError:
                starts.append(-1)
                continue
            starts.append(end)
            paths.append(path)
            end += len(path)
        return b"".join(paths), starts

    def path(self, file: int) -> Path:
        """Path of a file, for messages."""
        return Path(os.fsdecode(self._path(file)))

    def _path(self, file: int) -> bytes:
        key = self._key(file)
        if problem := path_problem(key):
            raise IntegrityError(f"{os.fsdecode(self._prefix)}: the key {key!r} {problem}")
        return self._prefix + key

    def close(self) -> None:
        """Close nothing: no file stays open."""
