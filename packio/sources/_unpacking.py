"""Compressed archives: unpacked once, into a scratch file."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shlex
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from packio.errors import OutputError, SourceError
from packio.sources._listed_file import ListedFile, ScratchFile
from packio.system.files import check_of_file

_COMPRESSED: dict[bytes, tuple[str, Callable[..., Any] | None]] = {
    b"\x1f\x8b": ("gunzip", gzip.open),
    b"BZh": ("bunzip2", bz2.open),
    b"\xfd7zXZ\0": ("unxz", lzma.open),
    b"\x28\xb5\x2f\xfd": ("unzstd", None),
}
_MOST_EXPANSION, _ALWAYS_ALLOWED = 200, 64 << 20  # bytes unpacked for a byte packed; bytes
_CHUNK = 1 << 20


def readable(
    path: Path, scratch: str | os.PathLike[str] | None
) -> tuple[ListedFile | ScratchFile, str]:
    """Unpack an archive if it is compressed."""
    try:
        with open(path, "rb") as file:
            start = file.peek(8)
            for magic, (command, unpack) in _COMPRESSED.items():
                if start.startswith(magic):
                    advice = f"unpack it: {command} < {shlex.quote(str(path))} > unpacked.tar; "
                    return _unpacked(path, file, unpack, advice, scratch), advice
        return ListedFile.of(path), ""
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
