"""Members of tar and zip archives: their names, their places, and how to read them.

Nothing is ever extracted to a path. A size in a header is compared with the size of the archive
before anything is read or allocated. Links are not followed.

Source: POSIX.1-2017, pax, "ustar Interchange Format" (read by `tarfile`); PKWARE APPNOTE 6.3.10,
4.3.7 and 4.4 (read by `zipfile`; local headers by this module, so that reading needs no directory).
"""

from __future__ import annotations

import io
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from packio.errors import DecodeError
from packio.sources import _files
from packio.system.files import read_at

TAR, _STORED, _DEFLATED = -1, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
_MOST_HEADER = 1 << 20  # bytes of a long name, or of a pax header
_MOST_DEFLATED = 1032  # bytes that deflate makes of one, at most
_CHUNK = 1 << 20
_MOST_TIME = 1 << 62  # seconds; a damaged header may claim any
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature; lengths of the name and of extra fields
_ENCRYPTED, _UTF8 = 0x41, 0x800  # bits of a zip member's flags
_TAR_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a FIFO",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}


class Place(NamedTuple):
    """Where a member lies in the archive's file."""

    offset: int  # bytes, of the content; of a zip member: of its local header
    packed: int  # bytes in the archive
    size: int  # bytes
    method: int  # of compression, as in zip; `TAR`: none
    check: int  # CRC-32 of a zip member; modification time of a tar member


NOWHERE = Place(-1, 0, 0, TAR, 0)  # of a member that is not there


class Member(NamedTuple):
    """An entry of an archive that is no folder."""

    name: bytes  # as it stands there
    place: Place
    problem: str  # why it cannot be read, if so


def of_tar(descriptor: int, start: int, size: int) -> Iterator[Member]:
    """Yield the members of a tar archive, in order.

    Args:
        descriptor: Of the file that the archive lies in.
        start, size: Where, in bytes.

    Raises:
        DecodeError: the archive is damaged or cut off; all members before that have been yielded.
    """
    window = _Window(descriptor, start, size)
    end = -1
    try:
        tar = tarfile.TarFile(fileobj=window, encoding="utf-8", errors="surrogateescape")
        while (info := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # unknown to typeshed; it keeps all
            if info.offset <= end:
                raise DecodeError(f"damaged: the member at {info.offset} has a negative size")
            end = info.offset
            if not info.isdir():
                yield _tar_member(info, start, size)
            while not tar.pax_headers and (plain := _plain_member(window, tar.offset)) is not None:
                yield plain
                tar.offset += tarfile.BLOCKSIZE + plain.place.size + -plain.place.size % 512
    except (tarfile.TarError, ValueError, OverflowError, RecursionError, struct.error) as error:
        raise DecodeError(f"damaged or cut off after {max(end, 0)}: {error}") from error
    _check_end(window, tar.offset)


def _plain_member(window: _Window, position: int) -> Member | None:
    """Read a plain header, as nearly all are; None if `tarfile`, 5 times slower, must read it.

    A plain header has the usual checksum, an octal size, no link, and a name in one part.
    """
    header = window.read_at(position, tarfile.BLOCKSIZE)
    if header[156:158] not in (b"0\0", b"\0\0") or header[345:346] != b"\0":
        return None
    if header[148:156] != b"%06o\0 " % (sum(header) - sum(header[148:156]) + 8 * 32):
        return None
    name, size = header[:100].partition(b"\0")[0], header[124:135]
    if not size.isdigit() or name.endswith(b"/"):
        return None
    offset, length = position + tarfile.BLOCKSIZE, int(size, 8)
    if offset + length > window.size:
        return None
    mtime = int(header[136:147].strip(b" \0") or b"0", 8)
    return Member(name, Place(window.start + offset, length, length, TAR, mtime), "")


class _Window(io.RawIOBase):
    """A part of a file. Refuses to read a length that only a damaged header can ask for."""

    def __init__(self, descriptor: int, start: int, size: int) -> None:
        self.start, self.size = start, size
        self._descriptor, self._position = descriptor, 0

    def read_at(self, position: int, length: int) -> bytes:
        """Read so many bytes, or fewer at the end."""
        length = max(0, min(length, self.size - position))
        return read_at(self._descriptor, length, self.start + position)

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MOST_HEADER:
            raise tarfile.ReadError(f"a header of {size} bytes at {self._position}")
        data = self.read_at(self._position, size)
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if offset < 0 or whence != os.SEEK_SET:
            raise tarfile.ReadError(f"a member at {offset}")
        self._position = offset
        return offset

    def tell(self) -> int:
        return self._position


def _tar_member(info: tarfile.TarInfo, start: int, size: int) -> Member:
    problem = ""
    if info.issparse():
        problem = _TAR_KINDS[tarfile.GNUTYPE_SPARSE]
    elif not info.isreg():
        problem = _TAR_KINDS.get(info.type, f"of the kind {info.type!r}, which is no file")
    elif info.size < 0 or info.offset_data + info.size > size:
        problem = f"cut off: {info.size} bytes at {info.offset_data}, the archive has {size}"
    if info.islnk() or info.issym() or info.issparse():
        problem += "; tar it again with --dereference --hard-dereference, without --sparse"
    mtime = int(min(max(info.mtime, -_MOST_TIME), _MOST_TIME))
    place = Place(start + info.offset_data, info.size, info.size, TAR, mtime)
    return Member(info.name.encode("utf-8", "surrogateescape"), place, problem)


def _check_end(window: _Window, position: int) -> None:
    """Check that only zeros are left, as `tarfile` also stops at a damaged header."""
    if window.size - position < tarfile.BLOCKSIZE:
        raise DecodeError(f"cut off: no end mark at {position}")
    window.seek(position)
    while chunk := window.read(_CHUNK):
        if chunk.count(0) < len(chunk):
            raise DecodeError(
                f"a damaged header at {position}, or something after the end of the archive"
            )


def of_zip(descriptor: int) -> Iterator[Member]:
    """Yield the members of a zip archive, in the order of its directory.

    Raises:
        DecodeError: the archive is damaged or cut off.
    """
    size = os.fstat(descriptor).st_size
    try:
        with open(descriptor, "rb", closefd=False) as file, zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OverflowError, NotImplementedError, OSError,
            struct.error, EOFError) as error:  # fmt: skip
        raise DecodeError(f"damaged or cut off: {error}") from error
    for info in infos:
        name = _zip_name(info)
        if not name.endswith(b"/"):
            place = Place(
                info.header_offset, info.compress_size, info.file_size, info.compress_type, info.CRC
            )
            yield Member(name, place, _zip_problem(info, size))


def _zip_name(info: zipfile.ZipInfo) -> bytes:
    """The name's bytes in the archive, which zipfile has decoded."""
    return info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8 else "cp437")


def _zip_problem(info: zipfile.ZipInfo, size: int) -> str:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if info.flag_bits & _ENCRYPTED:
        return "encrypted"
    if stat.S_ISLNK(kind):
        return "a symbolic link"
    if kind not in (0, stat.S_IFREG):
        return "not a regular file"
    if info.compress_type not in (_STORED, _DEFLATED):
        return f"compressed by method {info.compress_type}; expected stored or deflated"
    if info.header_offset < 0 or info.header_offset + info.compress_size > size:
        return f"cut off: {info.compress_size} bytes at {info.header_offset}, the file has {size}"
    most = info.compress_size * (_MOST_DEFLATED if info.compress_type == _DEFLATED else 1)
    if info.file_size > most:
        return f"claims {info.file_size} bytes, {info.compress_size} bytes cannot hold them"
    return ""


def read(descriptor: int, place: Place) -> bytes:
    """Read a member.

    Args:
        descriptor: Of the archive's file.
        place: Where the member lies.

    Raises:
        OSError: the archive cannot be read.
        DecodeError: the member is too large, damaged, or cut off.
    """
    if place.size > _files.MAX_BYTES:
        raise DecodeError(f"{place.size} bytes; the limit is {_files.MAX_BYTES:,}")
    if place.method == TAR:
        return _exactly(descriptor, place.size, place.offset)
    header = _exactly(descriptor, _LOCAL_HEADER.size, place.offset)
    signature, name_length, extra_length = _LOCAL_HEADER.unpack(header)
    if signature != b"PK\3\4":
        raise DecodeError(f"damaged: no local header at {place.offset}")
    start = place.offset + len(header) + name_length + extra_length
    data = _exactly(descriptor, place.packed, start)
    if place.method == _DEFLATED:
        data = _inflated(data, place.size)
    if len(data) != place.size or zlib.crc32(data) != place.check:
        raise DecodeError("damaged: its size or CRC-32 is not the one in the archive's directory")
    return data


def _exactly(descriptor: int, length: int, offset: int) -> bytes:
    data = read_at(descriptor, length, offset)
    if len(data) < length:
        raise DecodeError(f"cut off: {len(data)} of {length} bytes at {offset}")
    return data


def _inflated(data: bytes, size: int) -> bytes:
    """Unpack a deflated member, to at most one byte more than its header claims."""
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)
    except zlib.error as error:
        raise DecodeError(f"damaged: {error}") from error
