"""Samples in a temporary file, from which any thread reads them in any order.

The file has no name, so the file is gone when the process ends, however it ends. Other processes of
this machine open the file through this process's folder in ``/proc``.

A record is the length of its header (uint32, little-endian), the header (JSON), and the values that
the header describes, end to end: the fields, the metadata, the boxes and their columns.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import struct
import tempfile
import weakref
from typing import Any, BinaryIO

import numpy as np

from packio.errors import OutputError, ReadError
from packio.sample.facts import Facts
from packio.sample.record import Field, Record
from packio.system.files import read_at

_SIZE = struct.Struct("<I")


class Spool:
    """A temporary file of samples.

    Args:
        folder: Folder of the file, on a disk with room for all samples; None takes the system's
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

    def add(self, record: Record[Field]) -> tuple[int, int]:
        """Append a sample.

        Returns:
            Where its record begins and ends.

        Raises:
            OutputError: the file cannot be written, as on a full disk.
        """
        packed = _packed(record)
        self._digest.update(packed)
        try:
            self._file.write(packed)
        except OSError as error:
            raise self._error(error) from error
        start, self._end = self._end, self._end + len(packed)
        return start, self._end

    def finish(self) -> str:
        """Write what is in the buffer; return the digest of all records."""
        try:
            self._file.flush()
        except OSError as error:
            raise self._error(error) from error
        return self._digest.hexdigest()

    def read(self, start: int, end: int) -> Record[Field]:
        """Read a sample.

        Raises:
            ReadError: the file cannot be read.
        """
        return _record(self._file.fileno(), start, end)

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

    def read(self, start: int, end: int) -> Record[Field]:
        """Read a sample."""
        return _record(self._file.fileno(), start, end)


def _close(file: BinaryIO) -> None:
    with contextlib.suppress(OSError):  # the disk is full: the buffer is lost
        file.close()


def _packed(record: Record[Field]) -> bytes:
    """The bytes of a record: header and values."""
    values = [field.data for field in record.fields.values()]
    header: dict[str, Any] = {
        "fields": [[n, f.kind, len(f.data), f.facts] for n, f in record.fields.items()]
    }
    if record.meta is not None:
        header["meta"] = len(record.meta)
        values.append(record.meta)
    if record.boxes is not None:
        columns = {"": record.boxes, **record.box_columns}
        header["boxes"] = [[n, a.dtype.str, a.shape] for n, a in columns.items()]
        values += [np.ascontiguousarray(array).tobytes() for array in columns.values()]
    text = json.dumps(header).encode()
    return b"".join((_SIZE.pack(len(text)), text, *values))


def _unpacked(data: bytes) -> Record[Field]:
    """The record that `_packed` made these bytes of."""
    (size,) = _SIZE.unpack_from(data)
    at = _SIZE.size + size
    header = json.loads(data[_SIZE.size : at])

    def take(length: int) -> bytes:
        nonlocal at
        at += length
        return data[at - length : at]

    fields = {
        name: Field(kind, take(length), None if facts is None else Facts(*facts))
        for name, kind, length, facts in header["fields"]
    }
    meta = take(header["meta"]) if "meta" in header else None
    arrays: dict[str, np.ndarray] = {}
    for name, code, shape in header.get("boxes", ()):
        dtype = np.dtype(code)
        flat = np.frombuffer(take(math.prod(shape) * dtype.itemsize), dtype)
        arrays[name] = flat.reshape(shape)
    boxes = arrays.pop("", None)
    return Record(b"", fields, boxes=boxes, box_columns=arrays, meta=meta)


def _record(descriptor: int, start: int, end: int) -> Record[Field]:
    data = read_at(descriptor, end - start, start)
    if len(data) != end - start:
        raise ReadError(f"the temporary file ends at byte {start + len(data)}; run again")
    return _unpacked(data)
