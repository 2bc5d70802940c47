"""Members of tar and zip archives: their names, their places, and how to read them.

Nothing is ever extracted to a path. A size in a header is compared with the size of the archive
before anything is read or allocated. Links are not followed.

Source: PKWARE APPNOTE 6.3.10, 4.3.7 and 4.4 (read by `zipfile`; local headers by this module, so
that reading needs no directory). `packio.formats.wire.tar` reads tar's headers.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shlex
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from packio.errors import DecodeError, IntegrityError, NotAPackError, OutputError, SourceError
from packio.formats.blobs.ranges import COMPRESSIONS, Input
from packio.formats.wire.tar import walk
from packio.sources import _files
from packio.sources._rows import ListedFile, ScratchFile
from packio.system.files import check_of_file, read_at

TAR, _STORED, _DEFLATED = -1, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
_MOST_DEFLATED = 1032  # bytes that deflate makes of one byte, at most
_CHUNK = 1 << 20
_WINDOW = 4096  # bytes of a tar archive that are read at once
_OPENERS: dict[str, Callable[..., Any]] = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}
_MOST_EXPANSION, _ALWAYS_ALLOWED = 200, 64 << 20  # bytes unpacked for a byte packed; bytes
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature; lengths of the name and of extra fields
_ENCRYPTED, _UTF8 = 0x41, 0x800  # bits of a zip member's flags


class Extent(NamedTuple):
    offset: int  # bytes, of the content; of a zip member: of its local header
    packed: int  # bytes in the archive
    size: int  # bytes
    method: int  # of compression, as in zip; `TAR`: none
    check: int  # CRC-32 of a zip member, or of the time of a tar member


NOWHERE = Extent(-1, 0, 0, TAR, 0)  # of a member that is not there


class Entry(NamedTuple):
    """A member of an archive that is no folder."""

    name: bytes  # as the archive has it
    extent: Extent
    problem: str  # why the member cannot be read; "" if it can


def list_tar(descriptor: int, start: int = 0, size: int | None = None) -> Iterator[Entry]:
    window = Input(descriptor, Path("tar"), _WINDOW, start, size)
    try:
        for found in walk(window):
            is_link = found.link is not None
            link = "a hard link; tar it again with --hard-dereference" if is_link else ""
            extent = Extent(
                start + found.offset, found.size, found.size, TAR, zlib.crc32(found.header[136:148])
            )
            yield Entry(found.name, extent, found.problem or link)
    except (IntegrityError, NotAPackError) as error:
        raise DecodeError(str(error).removeprefix("tar: ")) from error


def list_zip(descriptor: int) -> Iterator[Entry]:
    """Yield the members of a zip archive, in the order of its directory."""
    size = os.fstat(descriptor).st_size
    try:
        with open(descriptor, "rb", closefd=False) as file, zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OverflowError, NotImplementedError, OSError,
            struct.error, EOFError) as error:  # fmt: skip
        check_of_file(error, "the archive")
        raise DecodeError(f"damaged or cut off: {error}") from error
    for info in infos:
        name = info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8 else "cp437")
        if not name.endswith(b"/"):
            extent = Extent(
                info.header_offset, info.compress_size, info.file_size, info.compress_type, info.CRC
            )
            yield Entry(name, extent, _zip_problem(info, size))


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


def read_member(descriptor: int, extent: Extent, *, is_image: bool = False) -> bytes:
    if extent.size > _files.MAX_BYTES:
        raise DecodeError(f"{extent.size} bytes; the limit is {_files.MAX_BYTES:,}")
    start = extent.offset
    if extent.method != TAR:
        header = _exactly(descriptor, _LOCAL_HEADER.size, start)
        signature, name_length, extra_length = _LOCAL_HEADER.unpack(header)
        if signature != b"PK\3\4":
            raise DecodeError(f"damaged: no local header at {extent.offset}")
        start += len(header) + name_length + extra_length
    if is_image and extent.size > _files.LARGE:
        head = _exactly(descriptor, min(extent.packed, _files.HEAD_BYTES), start)
        if extent.method == _DEFLATED:
            head = _inflated(head, _files.HEAD_BYTES)
        _files.check_head(head, extent.size)
    data = _exactly(descriptor, extent.packed, start)
    if extent.method == TAR:
        return data
    if extent.method == _DEFLATED:
        data = _inflated(data, extent.size + 1)  # more than the header claims
    if len(data) != extent.size or zlib.crc32(data) != extent.check:
        raise DecodeError("damaged: its size or CRC-32 is not the one in the archive's directory")
    return data


def _exactly(descriptor: int, length: int, offset: int) -> bytes:
    data = read_at(descriptor, length, offset)
    if len(data) < length:
        raise DecodeError(f"cut off: {len(data)} of {length} bytes at {offset}")
    return data


def _inflated(data: bytes, most: int) -> bytes:
    """Unpack a deflated member, or its beginning, to at most so many bytes."""
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, most)
    except zlib.error as error:
        raise DecodeError(f"damaged: {error}") from error


def readable(
    path: Path, scratch: str | os.PathLike[str] | None
) -> tuple[ListedFile | ScratchFile, str]:
    """The archive, unpacked once if it is compressed, and how the user unpacks it."""
    try:
        with open(path, "rb") as file:
            start = file.peek(8)
            for kind, magic, _, command in COMPRESSIONS:
                if magic is not None and start.startswith(magic):
                    advice = f"unpack it: {command} < {shlex.quote(str(path))} > unpacked.tar; "
                    return _unpacked(path, file, _OPENERS.get(kind), advice, scratch), advice
        return ListedFile.stat(path), ""
    except OSError as error:
        check_of_file(error, path)
        raise SourceError(f"{path}: {error.strerror}; expected an archive of images") from error


def _unpacked(
    path: Path, file: IO[bytes], unpack: Callable[..., Any] | None, advice: str,
    scratch: str | os.PathLike[str] | None,
) -> ScratchFile:  # fmt: skip
    if unpack is None:
        raise SourceError(f"{path}: compressed by zstd; {advice}then pack that")
    try:
        found = ScratchFile(scratch, f"{path} was unpacked there")
        with unpack(file) as stream:
            while chunk := _next_chunk(path, stream):
                # of what has been read, so that a bomb is noticed before it fills the disk
                most = max(_ALWAYS_ALLOWED, _MOST_EXPANSION * file.tell())
                if found.size + len(chunk) > most:
                    raise SourceError(
                        f"{path}: {_MOST_EXPANSION} times as large unpacked, and more; if that is "
                        f"meant, {advice}"
                    )
                found.write(chunk)
        found.finish()
    except OutputError as error:
        raise SourceError(f"{error}, or {advice}") from error
    return found


def _next_chunk(path: Path, stream: IO[bytes]) -> bytes:
    try:
        return stream.read(_CHUNK)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        check_of_file(error, path)
        raise SourceError(f"{path}: damaged or cut off ({error}); restore the file") from error
