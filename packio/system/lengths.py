"""Files that are mapped must not shrink: reading beyond the end of one kills the process.

The kernel answers such a read by SIGBUS, which Python cannot turn into an error. So the length of
a mapped file is asked for before each batch. What is left: a file that shrinks within the
microseconds between asking and reading, and a page that the disk or the server cannot deliver.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from packio.errors import IntegrityError


class Length:
    """The length that a mapped file has to keep.

    Args:
        path: Path of the file, for the message.
        length: Bytes that are mapped.
        size: Tells the bytes that the file has now.
        remedy: What to do if it has fewer, for the message.
    """

    __slots__ = ("_length", "_path", "_remedy", "_size")

    def __init__(
        self, path: Path, length: int, size: Callable[[], int],
        remedy: str = "restore the file, or pack again",
    ) -> None:  # fmt: skip
        self._path, self._length, self._size, self._remedy = path, length, size, remedy

    def check(self) -> None:
        """Check that the file has not shrunk; 0.3 to 2 µs.

        Raises:
            IntegrityError: the file is shorter than it was when it was mapped.
        """
        if (size := self._size()) < self._length:
            raise IntegrityError(
                f"{self._path}: {size} bytes, {self._length} when it was opened; it was truncated "
                f"while it was open: {self._remedy}"
            )


def at_path(path: Path, inode: tuple[int, int], length: int) -> Callable[[], int]:
    """Tell the size of a file by its path.

    If another file is at the path, or none, nobody can find the mapped file to truncate it.

    Args:
        path: Path of the file.
        inode: Device and inode of the mapped file.
        length: What to say of a file that is not there any more.
    """

    def size() -> int:
        try:
            status = os.stat(path)
        except OSError:
            return length
        return status.st_size if (status.st_dev, status.st_ino) == inode else length

    return size
