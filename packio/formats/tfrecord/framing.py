"""The records of a TFRecord file, whatever is in them; see `packio.formats.tfrecord`."""

from __future__ import annotations

import os
import shlex
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from packio.errors import IntegrityError, NotAPackError, ReadError
from packio.index.indexfile import crc32c
from packio.system.files import read_at

HEAD = struct.Struct("<QI")  # length, its checksum
TAIL = struct.Struct("<I")  # the data's checksum
OVERHEAD = HEAD.size + TAIL.size
MOST_BYTES = 2**31 - 1  # of a record's data: protobuf reads no larger message

_WINDOW = 4 << 20  # bytes read at once

_INFLATE = (
    "python3 -c 'import shutil, sys, {0}; out = sys.stdout.buffer; {1}' < {2} > unpacked.tfrecord"
)


class Frame(NamedTuple):
    """One record of a file."""

    number: int
    offset: int  # of the data, bytes
    data: bytes
    crc: int  # CRC32C of the data, masked


def masked(crc: int) -> int:
    """Mask a CRC32C the way TFRecord keeps it, as data with a CRC in it has an odd CRC itself."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def head(length: int) -> bytes:
    """Make the 12 bytes before a record's data."""
    size = length.to_bytes(8, "little")
    return size + TAIL.pack(masked(crc32c(size)))


def is_head(start: bytes) -> bool:
    """Tell whether a file that begins with some bytes begins with the head of a record."""
    if len(start) < HEAD.size:
        return False
    _, crc = HEAD.unpack_from(start)
    return masked(crc32c(start[:8])) == int(crc)


def frames(path: Path) -> Iterator[Frame]:
    """Yield the records of a file, in order, all their checksums checked.

    Raises:
        NotAPackError: no TFRecord file, or a compressed one.
        IntegrityError: it is damaged.
        ReadError: it cannot be read.
    """
    with _Window(path) as window:
        number = at = 0
        while at < window.size:
            length = _length(window, number, at)
            data = window.read(at + HEAD.size, length)
            crc = TAIL.unpack(window.read(at + HEAD.size + length, TAIL.size))[0]
            if masked(crc32c(data)) != crc:
                raise IntegrityError(
                    f"{path}: record {number} at {at}: its {length} bytes are damaged (CRC32C "
                    "differs); restore or repack the file"
                )
            yield Frame(number, at + HEAD.size, data, crc)
            number, at = number + 1, at + length + OVERHEAD


def _length(window: _Window, number: int, at: int) -> int:
    """Length of the data of the record at a position, checked to be within the file."""
    left = window.size - at
    where = f"{window.path}: record {number} at {at}"
    raw = window.read(at, min(HEAD.size, left))
    if len(raw) == HEAD.size:
        length, crc = HEAD.unpack(raw)
        if masked(crc32c(raw[:8])) != crc:
            if number == 0:
                raise _not_tfrecord(window.path, raw)
            raise IntegrityError(
                f"{where}: its length is damaged (CRC32C differs); restore or repack the file"
            )
        if length > MOST_BYTES:
            raise NotAPackError(f"{where}: has {length} bytes, more than an Example can have")
        if length + OVERHEAD <= left:
            return int(length)
    elif number == 0:
        raise _not_tfrecord(window.path, raw)
    raise IntegrityError(f"{where}: is cut off after {left} bytes; restore or repack the file")


def _not_tfrecord(path: Path, raw: bytes) -> NotAPackError:
    kind = ""
    if raw[:2] == b"\x1f\x8b":
        kind, module = "gzip", "gzip"
        code = "shutil.copyfileobj(gzip.open(sys.stdin.buffer), out)"
    elif len(raw) > 1 and raw[0] & 0x8F == 0x08 and int.from_bytes(raw[:2], "big") % 31 == 0:
        kind, module = "zlib", "zlib"
        code = "out.write(zlib.decompress(sys.stdin.buffer.read()))"
    if kind:
        return NotAPackError(
            f"{path}: compressed as a whole ({kind}), so its records cannot be read one by one; "
            f"unpack it: {_INFLATE.format(module, code, shlex.quote(str(path)))}"
        )
    return NotAPackError(
        f"{path}: no TFRecord file, or its beginning is damaged: it begins {raw.hex()}"
    )


class _Window:
    """A file, read by large pieces in order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ReadError(f"{path}: cannot be opened: {error.strerror}") from error
        self.size = os.fstat(self._descriptor).st_size
        self._start, self._bytes = 0, b""

    def __enter__(self) -> _Window:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def read(self, at: int, length: int) -> bytes:
        """Read a range, which is within the file."""
        start = at - self._start
        if start < 0 or start + length > len(self._bytes):
            if length >= _WINDOW:
                return self._read(at, length)
            self._start, self._bytes = at, self._read(at, min(_WINDOW, self.size - at))
            start = 0
        return self._bytes[start : start + length]

    def _read(self, at: int, length: int) -> bytes:
        try:
            found = read_at(self._descriptor, length, at)
        except OSError as error:
            raise ReadError(f"{self.path}: cannot be read at {at}: {error.strerror}") from error
        if len(found) < length:
            raise IntegrityError(
                f"{self.path}: has {len(found)} of {length} bytes at {at}; the file shrinks"
            )
        return found
