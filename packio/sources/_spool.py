"""Samples put aside in a temporary file, to be read again in any order and by any thread.

The file has no name, so nothing is left of it whatever ends the process; other processes of this
machine open it as a file of this one's in ``/proc``.

A record is a header of ten little-endian numbers, and what they tell the lengths of: image, mask,
meta, boxes (float32), labels of boxes (int64); -1 stands for None. The last five are height, width,
channels, dtype (position in `encodings.DTYPES`) of raw pixels, and whether the image is such.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import tempfile
import weakref
from typing import BinaryIO

import numpy as np

from packio.errors import OutputError, ReadError
from packio.images import encodings
from packio.sources import Item, _files

_HEADER = struct.Struct("<5q5i")


class Spool:
    """A temporary file of samples.

    Args:
        folder: That the file is in, on a disk with room for all samples; None takes the system's
            (``TMPDIR``).
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._folder = os.fspath(folder or tempfile.gettempdir())
        try:
            self._file: BinaryIO = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (it is kept)
        except OSError as error:
            raise self._error(error) from error
        self._digest, self._end = hashlib.sha256(), 0
        weakref.finalize(self, _close, self._file)

    def __reduce__(self) -> tuple[object, ...]:
        return _Reopened, (f"/proc/{os.getpid()}/fd/{self._file.fileno()}",)

    def add(self, item: Item) -> tuple[int, int]:
        """Append a sample.

        Returns:
            Where its record begins and ends.

        Raises:
            OutputError: it cannot be written, as on a full disk.
        """
        boxes = None if item.boxes is None else item.boxes.astype("<f4").tobytes()
        labels = None if item.box_labels is None else item.box_labels.astype("<i8").tobytes()
        parts = (item.data, item.mask, item.meta, boxes, labels)
        facts = (0, 0, 0, 0, 0)
        if item.facts is not None:
            f = item.facts
            facts = (f.height, f.width, f.channels, encodings.DTYPES.index(f.dtype), 1)
        header = _HEADER.pack(*(-1 if part is None else len(part) for part in parts), *facts)
        record = b"".join((header, *filter(None, parts)))
        self._digest.update(record)
        try:
            self._file.write(record)
        except OSError as error:
            raise self._error(error) from error
        start, self._end = self._end, self._end + len(record)
        return start, self._end

    def finish(self) -> str:
        """Write what is buffered; return the digest of all records."""
        try:
            self._file.flush()
        except OSError as error:
            raise self._error(error) from error
        return self._digest.hexdigest()

    def read(self, start: int, end: int) -> Item:
        """Read a sample.

        Raises:
            ReadError: it cannot be read.
        """
        return _item(self._file.fileno(), start, end)

    def _error(self, error: OSError) -> OutputError:
        return OutputError(
            f"{self._folder}: {error.strerror} while samples were put aside; make room, or name "
            "another folder in the environment variable TMPDIR"
        )


class _Reopened:
    """The file of another process, to be read."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._file: BinaryIO = open(path, "rb", buffering=0)  # noqa: SIM115 (it is kept)
        except OSError as error:
            raise ReadError(
                f"{path}: {error.strerror}; the process that listed the samples has to live, on "
                "this machine"
            ) from error
        weakref.finalize(self, _close, self._file)

    def __reduce__(self) -> tuple[object, ...]:
        return _Reopened, (self._path,)

    def read(self, start: int, end: int) -> Item:
        """Read a sample."""
        return _item(self._file.fileno(), start, end)


def _close(file: BinaryIO) -> None:
    with contextlib.suppress(OSError):  # the disk is full: what is buffered is lost
        file.close()


def _item(descriptor: int, start: int, end: int) -> Item:
    record = _files.read_up_to(descriptor, end - start, start)
    if len(record) != end - start:
        raise ReadError(f"the temporary file ends at byte {start + len(record)}; run again")
    *lengths, height, width, channels, dtype, is_raw = _HEADER.unpack_from(record)
    parts, at = list[bytes | None](), _HEADER.size
    for length in lengths:
        parts.append(None if length < 0 else record[at : at + length])
        at += max(length, 0)
    data, mask, meta, boxes, labels = parts
    return Item(
        data or b"", mask, meta,
        None if boxes is None else np.frombuffer(boxes, "<f4").reshape(-1, 4),
        None if labels is None else np.frombuffer(labels, "<i8"),
        encodings.raw_facts(height, width, channels, encodings.DTYPES[dtype]) if is_raw else None,
    )  # fmt: skip
