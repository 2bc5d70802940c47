"""An archive on disk, or what a compressed archive unpacks to: a file without a name."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import shlex
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, NamedTuple

from packio.errors import SourceError

_COMPRESSED: dict[bytes, tuple[str, Callable[..., Any] | None]] = {
    b"\x1f\x8b": ("gunzip", gzip.open),
    b"BZh": ("bunzip2", bz2.open),
    b"\xfd7zXZ\0": ("unxz", lzma.open),
    b"\x28\xb5\x2f\xfd": ("unzstd", None),
}
_MOST_EXPANSION, _ALWAYS_ALLOWED = 200, 64 << 20  # bytes unpacked for a byte packed; bytes
_CHUNK = 1 << 20


class File(NamedTuple):
    """An archive on disk."""

    path: str
    size: int  # bytes
    mtime_ns: int

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor of the file, unless it has changed."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if (status.st_size, status.st_mtime_ns) != (self.size, self.mtime_ns):
                raise SourceError(f"{self.path}: has changed since it was listed; pack again")
            yield descriptor
        finally:
            os.close(descriptor)


class Unpacked:
    """An unpacked archive in a file without a name; closed when nothing refers to it any more.

    Other processes of this machine open the file through this process's folder in ``/proc``.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = os.dup(descriptor)
        weakref.finalize(self, os.close, self._descriptor)

    def __reduce__(self) -> tuple[object, ...]:
        status = os.fstat(self._descriptor)
        path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        return File, (path, status.st_size, status.st_mtime_ns)

    def opened(self) -> AbstractContextManager[int]:
        """A descriptor of the file."""
        return contextlib.nullcontext(self._descriptor)


def readable(path: Path, scratch: str | os.PathLike[str] | None) -> tuple[File | Unpacked, str]:
    """The archive, unpacked if it is compressed; and advice on how to unpack it by hand.

    Raises:
        SourceError: the archive cannot be read or unpacked.
    """
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            start = file.peek(8)
            for magic, (command, unpack) in _COMPRESSED.items():
                if start.startswith(magic):
                    advice = f"unpack it: {command} < {shlex.quote(str(path))} > unpacked.tar; "
                    spool = _unpacked(path, file, unpack, status.st_size, advice, scratch)
                    return spool, advice
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}; expected an archive of images") from error
    return File(os.path.abspath(path), status.st_size, status.st_mtime_ns), ""


def _unpacked(
    path: Path,
    file: IO[bytes],
    unpack: Callable[..., Any] | None,
    size: int,
    advice: str,
    scratch: str | os.PathLike[str] | None,
) -> Unpacked:
    if unpack is None:
        raise SourceError(f"{path}: compressed by zstd; {advice}then pack that")
    most = max(_ALWAYS_ALLOWED, _MOST_EXPANSION * size)
    place = scratch or tempfile.gettempdir()
    with (
        tempfile.TemporaryFile(prefix="packio-", buffering=0, dir=place) as spool,
        unpack(file) as stream,
    ):
        while chunk := _next_chunk(path, stream):
            most -= len(chunk)
            if most < 0:
                raise SourceError(
                    f"{path}: {_MOST_EXPANSION} times as large unpacked, and more; if that is "
                    f"meant, {advice}"
                )
            _write(path, spool.fileno(), chunk, advice, place)
        return Unpacked(spool.fileno())


def _next_chunk(path: Path, stream: IO[bytes]) -> bytes:
    try:
        return stream.read(_CHUNK)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise SourceError(f"{path}: damaged or cut off ({error}); restore the file") from error


def _write(
    path: Path, descriptor: int, chunk: bytes, advice: str, place: str | os.PathLike[str]
) -> None:
    rest = memoryview(chunk)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except OSError as error:
        raise SourceError(
            f"{place}: {error.strerror}, as {path} is unpacked there; make room, "
            f"name another place by TMPDIR, or {advice}"
        ) from error
