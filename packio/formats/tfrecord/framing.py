"""The records of a TFRecord file, whatever is in them; see `packio.formats.tfrecord`."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from packio.errors import IntegrityError, NotAPackError
from packio.formats.blobs.ranges import Input, opened, refuse_compressed
from packio.index.indexfile import crc32c

HEAD = struct.Struct("<QI")  # length, its checksum
TAIL = struct.Struct("<I")  # the data's checksum
OVERHEAD = HEAD.size + TAIL.size
MOST_BYTES = 2**31 - 1  # of a record's data: protobuf reads no larger message

_WINDOW = 4 << 20  # bytes read at once


class Framed(NamedTuple):
    """One record of a file."""

    number: int
    offset: int  # of the data, bytes
    data: bytes
    crc: int  # CRC32C of the data, masked


def masked(crc: int) -> int:
    """Mask a CRC32C as TFRecord does: the CRC of data that contain a CRC is problematic."""
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


def frames(path: Path) -> Iterator[Framed]:
    """Yield the records of a file, in order, all their checksums checked."""
    with opened(path, _WINDOW) as window:
        number = at = 0
        while at < window.size:
            length = _length(window, number, at)
            data = window.read(length, at + HEAD.size)
            crc = TAIL.unpack(window.read(TAIL.size, at + HEAD.size + length))[0]
            if masked(crc32c(data)) != crc:
                raise IntegrityError(
                    f"{path}: record {number} at {at}: its {length} bytes are damaged (CRC32C "
                    "differs); restore or repack the file"
                )
            yield Framed(number, at + HEAD.size, data, crc)
            number, at = number + 1, at + length + OVERHEAD


def _length(window: Input, number: int, at: int) -> int:
    """Length of the data of the record at a position, checked to be within the file."""
    left = window.size - at
    where = f"{window.path}: record {number} at {at}"
    raw = window.read(min(HEAD.size, left), at)
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
    refuse_compressed(path, raw)
    return NotAPackError(
        f"{path}: no TFRecord file, or its beginning is damaged: it begins {raw.hex()}"
    )
