"""An index at a URL that is read by blocks, each of which comes when it is first asked for.

The user's cache has one file for each index and version, which all processes share::

    bytes of the index      header and checksums, then the blocks that have come; the rest is a hole
    seal, 28 bytes          at a whole page: bytes of the header, where the checksums begin, bytes
                            of the checksums (uint64 each), CRC32C of header and checksums (uint32)
    one byte a block        1: the block has come; in the order of the checksums

A block is what one checksum of the index covers: 1 MiB of a column, or what is left of it. Only
bytes whose checksum is right are written, so that nobody can spoil what others read. Whoever reads
a block first in a process compares the checksum again. A process that is killed leaves a block that
nobody believes in; a machine that loses its power may leave one whose checksum differs: it comes
again. A file whose seal does not fit is made anew.

On a network file system a process may see a hole where another machine has written a block: then
the block comes twice. Where files have no holes, the file takes its whole length at once.

Processes that want the same block wait for the one that fetches it (by a lock of POSIX on its
bytes, which ends with the process). Such a lock saves work, no more: where there are no locks, a
block comes twice.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import mmap
import os
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from packio.errors import IntegrityError, NotAPackError, PackioError, ReadError
from packio.index import layout
from packio.index.column import BLOCK, Span, crc32c
from packio.storage import stores
from packio.storage.store import Facts, Store
from packio.storage.urls import Url
from packio.system import caching
from packio.system.files import temporary_name
from packio.system.lengths import Length, Status
from packio.system.locks import ForkSafeLock, bytes_locked
from packio.system.mapping import mapped
from packio.system.pools import ThreadPool

_HEAD = 64 << 10  # bytes that are asked for first: most headers fit in
_PIECE = 4 << 20  # bytes of a request at most
_REQUESTS = 16  # at a time
_SEAL = struct.Struct("<QQQI")
_MOST_SUMS = 64 << 20  # bytes of checksums: those of an index of 16 TiB
Spans: TypeAlias = "list[Span]"  # in a class with a method `list`


class CachedStore(Store):
    """An index at a URL, the blocks of which that have come are in a file of the user's cache.

    Its only file is called "". For an `Index` it is what `Far` says.
    """

    def __init__(self, url: Url, found: Facts, path: Path) -> None:
        super().__init__(url, [""], [found.size])
        size, self._url, self._lock = found.size, url, ForkSafeLock()
        self._found, self._path = found, path
        self._files = stores.of_url(url, [""], [size], {"": found.tag})
        self._seal = _whole_pages(size)
        self._marks = self._seal + _SEAL.size
        with _no_room(path):
            here = self._opened(path)
            self._file, self._sums = self._made(path, size) if here is None else here
            self.content = mapped(self._file, size).data
        least = self._marks + len(self._sums)
        remedy = "open the pack anew: what is missing comes again"
        self.length: Length = Length(path, least, Status(self._file), remedy, is_ours=True)

    def __del__(self, close: Any = os.close) -> None:
        with contextlib.suppress(AttributeError):  # it was never opened
            close(self._file)

    def __reduce__(self) -> tuple[object, ...]:
        return CachedStore, (self._url, self._found, self._path)

    def facts(self, name: str) -> Facts | None:
        """See `Store.facts`."""
        return self._files.facts(name)

    def list(self, *, deep: bool = True) -> dict[str, Facts]:
        """See `Store.list`."""
        return self._files.list(deep=deep)

    def put(self, name: str, data: bytes | Path) -> Facts:
        """See `Store.put`."""
        return self._files.put(name, data)

    def remove(self, name: str) -> None:
        """See `Store.remove`."""
        self._files.remove(name)

    def check(self, is_read: Callable[[int], bool]) -> None:
        """See `Store.check`."""
        self._files.check(is_read)

    def read(self, file: int, offset: int, length: int) -> bytes:
        """See `Store.read`."""
        if not self._has(file, offset, length):
            raise self._outside(file, offset, length)
        stop = offset + length
        wrong = self.bring([s for s in self._spans if s.start < stop and offset < s.stop])
        if wrong:
            raise IntegrityError(f"{self._url}: bytes {wrong[0].start} and following are damaged")
        return bytes(self.content[offset:stop])

    @caching.cached_property
    def _spans(self) -> Sequence[Span]:
        """All blocks of the index."""
        header, start = layout.header_of(self.content, self._url)
        entries = layout.entries_of(header, len(self.content) - start, self._url)
        edges = [
            (start + begin + at, start + begin + min(at + BLOCK, math.prod(shape) * dtype.itemsize))
            for name, (dtype, shape, begin) in entries.items() if name != "checksums"
            for at in range(0, math.prod(shape) * dtype.itemsize, BLOCK)
        ]  # fmt: skip
        return [Span(number, *edge) for number, edge in enumerate(edges)]

    def _opened(self, path: Path) -> tuple[int, np.ndarray] | None:
        """Open a file of the cache; None if there is none, or none that is whole and the user's."""
        if (file := _own(path)) is None:
            return None
        try:
            if (sums := self._sealed(file)) is not None:
                return file, sums
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        return None

    def _sealed(self, file: int) -> np.ndarray | None:
        """The checksums in a file of the cache; None if these or the header are damaged."""
        seal = os.pread(file, _SEAL.size, self._seal)
        if len(seal) < _SEAL.size:
            return None
        head, start, count, crc = _SEAL.unpack(seal)
        whole = os.fstat(file).st_size >= self._marks + count // 4
        if not whole or max(head, start + count) > self._seal or count > _MOST_SUMS:
            return None
        sums = os.pread(file, count, start)
        if crc32c(os.pread(file, head, 0) + sums) != crc:
            return None
        return np.frombuffer(sums, "<u4")

    def _made(self, path: Path, size: int) -> tuple[int, np.ndarray]:
        """Make the file of the cache, with the header and the checksums; see `_opened`."""
        head, begin, sums = self._asked(size)
        count = len(sums) // 4
        seal = _SEAL.pack(len(head), begin, len(sums), crc32c(head + sums))
        path.parent.mkdir(parents=True, exist_ok=True)
        part = temporary_name(path)
        file = os.open(part, _FLAGS | os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.ftruncate(file, self._marks + count)
            _write(file, head, 0)
            _write(file, sums, begin)
            _write(file, seal + bytes(count), self._seal)
            os.fsync(file)
            others = self._published(part, path)
        except BaseException:
            os.close(file)
            part.unlink(missing_ok=True)
            raise
        if others is None:
            return file, np.frombuffer(sums, "<u4")
        os.close(file)
        return others

    def _asked(self, size: int) -> tuple[bytes, int, bytes]:
        """Ask for the header and the checksums: the one, where the others begin, and the others."""
        head = self._files.read(0, 0, min(size, _HEAD))
        length = 8 + struct.unpack_from("<Q", head.ljust(8, b"\0"))[0]
        if len(head) < length <= min(size, layout.MAX_HEADER):
            head += self._files.read(0, len(head), length - len(head))
        header, start = layout.header_of(head, self._url)
        head = head[:start]
        entries = layout.entries_of(header, size - start, self._url)
        begin, length = layout.checksums_of(entries, self._url)
        if length > _MOST_SUMS:
            raise NotAPackError(f"{self._url}: {size} bytes; packio reads indexes of up to 16 TiB")
        sums = self._files.read(0, start + begin, length)
        if crc32c(head) != struct.unpack_from("<I", sums)[0]:  # it came so, or was replaced amid
            raise IntegrityError(f"{self._url}: the header is damaged (CRC32C differs)")
        return head, start + begin, sums

    def _published(self, part: Path, path: Path) -> tuple[int, np.ndarray] | None:
        """Put a new file in its place, unless another process was faster; then open its file."""
        try:
            os.link(part, path)
        except FileExistsError:
            if (found := self._opened(path)) is not None:
                part.unlink()
                return found
            part.replace(path)
        except OSError:  # no hard links on this file system
            part.replace(path)
        else:
            part.unlink()
        return None

    def bring(self, spans: Sequence[Span], *, anew: bool = False) -> Sequence[Span]:
        """Have blocks come that are not there yet; see `packio.index.column.Far`."""
        spans = list(spans) if anew else self._lacking(spans)
        if not spans:
            return []
        with self._lock:  # threads of a process do not see each other's locks of POSIX
            pieces = _pieces(spans)
            if len(pieces) == 1:
                return self._fetch(pieces[0], anew=anew)
            with ThreadPool(min(_REQUESTS, len(pieces)), "packio-blocks") as pool:
                asked = [pool.submit(self._fetch, piece, anew=anew) for piece in pieces]
                return [span for done in asked for span in done.result()]

    def _lacking(self, spans: Sequence[Span]) -> Sequence[Span]:
        """Those blocks that have not come."""
        if not spans:
            return []
        first, last = min(spans).number, max(spans).number
        count = last - first + 1
        marks = os.pread(self._file, count, self._marks + first).ljust(count, b"\0")
        return sorted(span for span in {*spans} if not marks[span.number - first])

    def _fetch(self, piece: Sequence[Span], *, anew: bool) -> Sequence[Span]:
        """Have neighbours come, unless another process has let them come meanwhile."""
        wrong: Spans = []
        with _no_room(self._url):
            _check_writable(self._file)
        first = self._marks + piece[0].number
        with bytes_locked(self._file, first, len(piece), lambda: bool(self._lacking(piece))):
            for some in _pieces(piece if anew else self._lacking(piece)):
                start = some[0].start
                data = self._files.read(0, start, some[-1].stop - start)
                bad = [span for span in some if not self._is_right(span, data, start)]
                for right in _pieces([span for span in some if span not in bad]):
                    self._keep(right, data[right[0].start - start : right[-1].stop - start])
                wrong += bad
        return wrong

    def _is_right(self, span: Span, data: bytes, start: int) -> bool:
        part = data[span.start - start : span.stop - start]
        return bool(crc32c(part) == self._sums[1 + span.number])

    def _keep(self, piece: Sequence[Span], data: bytes) -> None:
        """Write neighbours, whose checksums are right."""
        self.length.check()  # a file that was cut short must not grow again: it would have zeros
        with _no_room(self._url):
            _write(self._file, data, piece[0].start)
            _write(self._file, b"\1" * len(piece), self._marks + piece[0].number)


_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


def _own(path: Path) -> int | None:
    """Open a file that this user or the system's administrator wrote; None if there is none.

    A cache that is read-only serves the blocks that it has.
    """
    try:
        if not stat.S_ISREG(path.lstat().st_mode):  # a link, or a pipe
            return None
        try:
            file = os.open(path, _FLAGS | os.O_RDWR)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            file = os.open(path, _FLAGS | os.O_RDONLY)
    except FileNotFoundError:
        return None
    if os.fstat(file).st_uid in (0, os.geteuid()):
        return file
    os.close(file)
    return None


def _check_writable(file: int) -> None:
    if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EROFS, "the file in the cache is read-only")


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


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


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
