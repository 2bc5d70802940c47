"""One blob: values end to end in a temporary file, on their way into a container."""

from __future__ import annotations

import contextlib
import errno
import os
from array import array
from pathlib import Path

import numpy as np

from packio.errors import CannotCreateError, OutputError
from packio.index.indexfile import crc32c
from packio.system.files import read_at

_CHUNK = 8 << 20  # bytes copied, or read back, at a time
_TO_COPY_BY_HAND = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}


class Blob:
    """Values end to end in a nameless temporary file, with their lengths and checksums.

    The file has no name from the start, so nothing is left of it after a crash.
    """

    def __init__(self, path: Path) -> None:
        """Create the file under the name ``path``, which is free, and remove the name at once."""
        self._where = path
        try:
            self._file = path.open("x+b", buffering=1 << 20)
            path.unlink()
        except OSError as error:
            raise CannotCreateError(f"{path}: cannot be created: {error.strerror}") from error
        self.length: array[int] = array("q")  # bytes of each value
        self.crc32c: array[int] = array("I")
        self.present: array[int] = array("B")  # 0: a sample that has no value
        self.size = 0  # bytes of all

    def add(self, value: bytes | None) -> None:
        """Append a value; None: the sample has none."""
        self.present.append(value is not None)
        value = value or b""
        self._file.write(value)
        self.length.append(len(value))
        self.crc32c.append(crc32c(value))
        self.size += len(value)

    @property
    def descriptor(self) -> int:
        """The descriptor of the file, after everything is written."""
        self._file.flush()
        return self._file.fileno()

    def copy(self, target: int, position: int, start: int = 0, stop: int | None = None) -> None:
        """Copy bytes ``start``..``stop`` to a position of a file; OSError as it comes."""
        source, stop = self.descriptor, self.size if stop is None else stop
        shift, by_hand = position - start, False
        while start < stop:
            count = 0
            if not by_hand:
                try:  # within the kernel; some file systems even share the blocks
                    count = os.copy_file_range(source, target, stop - start, start, start + shift)
                except OSError as error:
                    if error.errno not in _TO_COPY_BY_HAND:
                        raise
            if count == 0:
                by_hand = True
                chunk = os.pread(source, min(_CHUNK, stop - start), start)
                if not chunk:
                    raise OSError(errno.EIO, "the temporary file is shorter than what was written")
                count = os.pwrite(target, chunk, start + shift)
            start += count

    def check(self, target: int, offset: np.ndarray, first: int = 0, where: object = "") -> None:
        """Read values back from a file, and compare their checksums with those of what was added.

        Args:
            offset: Where in it the values ``first``, ``first + 1``… lie; int64 bytes, ascending.
        """
        length = np.frombuffer(self.length, np.int64)[first:] if self.length else np.zeros(0, "i8")
        ends = offset + length[: len(offset)]
        i = 0
        while i < len(offset):
            start = int(offset[i])  # at least one value at a time, else as many as fit a chunk
            stop = max(i + 1, int(np.searchsorted(ends, start + _CHUNK, "right")))
            chunk = memoryview(read_at(target, int(ends[stop - 1]) - start, start))
            for k in range(i, stop):
                value = chunk[int(offset[k]) - start : int(ends[k]) - start]
                if crc32c(bytes(value)) != self.crc32c[first + k]:
                    raise OutputError(
                        f"{where}: record {first + k} reads back differently ({len(value)} bytes "
                        f"at {offset[k]}); the disk or its driver is at fault"
                    )
            i = stop

    def close(self) -> None:
        """Close the file, which has no name and is then gone."""
        with contextlib.suppress(OSError):  # flushes, and the disk may be full
            self._file.close()
