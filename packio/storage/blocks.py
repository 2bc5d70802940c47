"""An index at a URL that is read by blocks, each of which comes when it is first asked for.

The user's cache has one file for each index and version, which all processes share::

    bytes of the index      header and checksums, then the blocks that have come; the rest is a hole
    seal, 4 bytes           at a whole page: CRC32C of header and checksums
    one byte a block        1: the block has come; in the order of the checksums

A block is what one checksum of the index covers: 1 MiB of a column, or what is left of it. Only
bytes whose checksum is right are written, so that nobody can spoil what others read. Whoever reads
a block first in a process compares the checksum again. A process that is killed leaves a block that
nobody believes in; a machine that loses its power may leave one whose checksum differs: it comes
again. A file whose seal does not fit is made anew.

On a network file system a process may see a hole where another machine has written a block: then
the block comes twice. Where files have no holes, the file takes its whole length at once.

One process or thread fetches blocks at a time, so that none comes twice; it asks for up to 16 at
once. Samples drawn at random are in nearly all blocks, which others then find.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import IntegrityError, NotAPackError, PackioError, ReadError
from packio.index import layout
from packio.index.column import Span, crc32c
from packio.storage import stores
from packio.storage.store import Facts
from packio.storage.urls import Url
from packio.system.files import temporary_name
from packio.system.locks import file_lock
from packio.system.mapping import Length, Status, map_file
from packio.system.pools import ThreadPool

_HEAD = 64 << 10  # bytes that are asked for first: most headers fit in
_PIECE = 4 << 20  # bytes of a request at most
_REQUESTS = 16  # at a time
_SEAL = struct.Struct("<I")
_MOST_SUMS = 64 << 20  # bytes of checksums: those of an index of 16 TiB
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class CachedIndex:
    """An index at a URL, as `packio.index.column.Far`; the blocks that came are in the cache."""

    def __init__(self, url: Url, found: Facts, path: Path) -> None:
        self._url, self._size, self._path = url, found.size, path
        self._arguments = url, found, path
        self._store = stores.open_url(url, [""], [found.size], {"": found.tag})
        self._seal = -(-found.size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._marks = self._seal + _SEAL.size
        with _no_room(path):
            self._file, self._sums = self._opened() or self._made_once()
            self.content = map_file(self._file, found.size).data
        least = self._marks + len(self._sums)
        remedy = "open the pack anew: what is missing comes again"
        self.length: Length = Length(path, least, Status(self._file), remedy, is_ours=True)

    def __del__(self, close: Any = os.close) -> None:
        with contextlib.suppress(AttributeError):  # it was never opened
            close(self._file)

    def __reduce__(self) -> tuple[object, ...]:
        return CachedIndex, self._arguments

    def _opened(self) -> tuple[int, np.ndarray] | None:
        """Open the file in the cache; None if there is none that is whole and the user's."""
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as undo:
            if not stat.S_ISREG(self._path.lstat().st_mode):  # a link, or a pipe
                return None
            file = os.open(self._path, _FLAGS)
            undo.callback(os.close, file)
            is_own = os.fstat(file).st_uid in (0, os.geteuid())
            if is_own and (sums := self._sealed(file)) is not None:
                undo.pop_all()
                return file, sums
        return None

    def _sealed(self, file: int) -> np.ndarray | None:
        """The checksums in a file of the cache; None if these or the header are damaged."""
        size = os.fstat(file).st_size
        if size < self._marks:
            return None
        try:
            head, _, sums = self._read_head(lambda start, length: os.pread(file, length, start))
        except (NotAPackError, IntegrityError):
            return None
        is_whole = size >= self._marks + len(sums) // 4
        is_sealed = os.pread(file, _SEAL.size, self._seal) == _SEAL.pack(crc32c(head + sums))
        return np.frombuffer(sums, "<u4") if is_whole and is_sealed else None

    def _made_once(self) -> tuple[int, np.ndarray]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(self._path.with_suffix(".lock")):
            return self._opened() or self._made()

    def _made(self) -> tuple[int, np.ndarray]:
        """Make the file of the cache, with the header and the checksums; see `_opened`."""
        head, begin, sums = self._read_head(lambda *span: self._store.read(0, *span))
        count = len(sums) // 4
        part = temporary_name(self._path)
        file = os.open(part, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.ftruncate(file, self._marks + count)
            _write(file, head, 0)
            _write(file, sums, begin)
            _write(file, _SEAL.pack(crc32c(head + sums)) + bytes(count), self._seal)
            os.fsync(file)
            part.replace(self._path)
        except BaseException:
            os.close(file)
            part.unlink(missing_ok=True)
            raise
        return file, np.frombuffer(sums, "<u4")

    def _read_head(self, read: Callable[[int, int], bytes]) -> tuple[bytes, int, bytes]:
        """Read the header and the checksums: the one, where the others begin, and the others."""
        head = read(0, min(self._size, _HEAD))
        length = 8 + struct.unpack_from("<Q", head.ljust(8, b"\0"))[0]
        if len(head) < length <= min(self._size, layout.MAX_HEADER):
            head += read(len(head), length - len(head))
        header, start = layout.header_of(head, self._url)
        head = head[:start]
        entries = layout.entries_of(header, self._size - start, self._url)
        begin, length = layout.checksums_of(entries, self._url)
        if length > _MOST_SUMS:
            raise NotAPackError(
                f"{self._url}: {self._size} bytes; packio reads indexes of up to 16 TiB"
            )
        sums = read(start + begin, length)
        layout.check_header(head, sums, self._url)  # it came damaged, or was replaced amid
        return head, start + begin, sums

    def bring(self, spans: Sequence[Span], *, anew: bool = False) -> Sequence[Span]:
        """Have blocks come that are not there yet; see `packio.index.column.Far`."""
        if not anew and not (spans := self._lacking(spans)):
            return []
        with _no_room(self._url), file_lock(self._path.with_suffix(".lock")):
            pieces = _pieces(spans if anew else self._lacking(spans))
            if len(pieces) < 2:
                return [span for piece in pieces for span in self._fetch(piece)]
            with ThreadPool(min(_REQUESTS, len(pieces)), "packio-blocks") as pool:
                return [span for wrong in pool.map(self._fetch, pieces) for span in wrong]

    def _lacking(self, spans: Sequence[Span]) -> Sequence[Span]:
        if not spans:
            return []
        first, last = min(spans).number, max(spans).number
        count = last - first + 1
        marks = os.pread(self._file, count, self._marks + first).ljust(count, b"\0")
        return sorted(span for span in {*spans} if not marks[span.number - first])

    def _fetch(self, piece: Sequence[Span]) -> Sequence[Span]:
        """Have neighbours come; return those whose bytes are wrong."""
        start = piece[0].start
        data = self._store.read(0, start, piece[-1].stop - start)
        crcs = (crc32c(data[span.start - start : span.stop - start]) for span in piece)
        wrong = [s for s, crc in zip(piece, crcs, strict=True) if crc != self._sums[1 + s.number]]
        for right in _pieces([span for span in piece if span not in wrong]):
            self._keep(right, data[right[0].start - start : right[-1].stop - start])
        return wrong

    def _keep(self, piece: Sequence[Span], data: bytes) -> None:
        """Write neighbours, whose checksums are right."""
        self.length.check()  # a file that was cut short must not grow again: it would have zeros
        _write(self._file, data, piece[0].start)
        _write(self._file, b"\1" * len(piece), self._marks + piece[0].number)


def _pieces(spans: Sequence[Span]) -> list[list[Span]]:
    """Join neighbours, as far as one request goes."""
    found: list[list[Span]] = []
    for span in sorted(spans):
        piece = found[-1] if found else None
        if (
            piece and span.number == piece[-1].number + 1 and span.start == piece[-1].stop
            and span.stop - piece[0].start <= _PIECE
        ):  # fmt: skip
            piece.append(span)
        else:
            found.append([span])
    return found


def _write(file: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(file, view, at)
        view, at = view[done:], at + done


@contextlib.contextmanager
def _no_room(where: object) -> Iterator[None]:
    """Say that the cache is what could not be written."""
    try:
        yield
    except PackioError:  # a ReadError is an OSError
        raise
    except OSError as error:
        raise ReadError(
            f"{where}: the cache takes no more of this index: {error.strerror or error}; make "
            "room, or name another folder in PACKIO_CACHE_DIR"
        ) from error
