"""An index at a URL that is read by blocks, each of which comes when it is first asked for.

The user's cache has one file for each index and version, which all processes share::

    bytes of the index      header and checksums, then the blocks that have come; the rest is a hole
    one byte a block        1: the block has come; in the order of the checksums, at a whole page

A block is what one checksum of the index covers: 1 MiB of a column, or what is left of it. Whoever
reads a block first in a process compares the checksum. A process that is killed leaves a block that
nobody believes in; a machine that loses its power may leave one whose checksum differs: it comes
again.

Processes that want the same block wait for the one that fetches it (by a lock of POSIX on its
bytes, which ends with the process). Such a lock saves work, no more: where there are no locks, a
block comes twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packio.errors import ReadError
from packio.index import layout
from packio.index.far import Span
from packio.storage.remote_files import RemoteFiles
from packio.storage.urls import Url
from packio.system.lengths import Length
from packio.system.locks import ForkSafeLock
from packio.system.mapping import mapped
from packio.system.pools import ThreadPool

_HEAD = 64 << 10  # bytes that are asked for first: most headers fit in
_PIECE = 4 << 20  # bytes of a request at most
_REQUESTS = 16  # at a time
_POLL, _PATIENCE = 0.02, 30.0  # seconds between two looks at a lock, and until it is ignored


class FarIndex:
    """The bytes of an index at a URL; see `packio.index.far.Far`. Safe in threads and after fork.

    Args:
        url: Of the index.
        found: What the service says of it: "size", and a version.
        path: Of the file in the cache; it is made if it is not there.

    Raises:
        NotAPackError: no index of packio's.
        IntegrityError: the index was replaced, or is damaged.
        ReadError: the service does not answer, or the cache cannot be written.
    """

    def __init__(self, url: Url, found: Mapping[str, Any], path: Path) -> None:
        tag, size = str(found.get("ETag", "")), int(found["size"])
        tags = {url.name: tag} if tag.startswith('"') else {}
        self._url, self._lock = url, ForkSafeLock()
        self._files = RemoteFiles(url.parent, [url.name], [size], tags)
        self._marks = _whole_pages(size)
        self._files.know({url.name: found})
        with _no_room(path):
            found_here = _opened(path, self._marks)
            self._file = self._made(path, size) if found_here is None else found_here
            self.content = mapped(self._file, size).data
        file = self._file
        self.length = Length(path, self._marks, lambda: os.fstat(file).st_size)

    def __del__(self, close: Any = os.close) -> None:
        with contextlib.suppress(AttributeError):  # it was never opened
            close(self._file)

    def _made(self, path: Path, size: int) -> int:
        """Make the file of the cache, with the header and the checksums."""
        head = self._files.read(0, 0, min(size, _HEAD))
        length = 8 + struct.unpack_from("<Q", head.ljust(8, b"\0"))[0]
        if len(head) < length <= min(size, layout.MAX_HEADER):
            head += self._files.read(0, len(head), length - len(head))
        header, start = layout.header_of(head, self._url)
        entries = layout.entries_of(header, size - start, self._url)
        dtype, shape, begin = entries["checksums"]
        count = math.prod(shape)
        sums = self._files.read(0, start + begin, count * dtype.itemsize)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.tmp-{os.getpid()}-{threading.get_ident()}")
        file = os.open(part, _FLAGS | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.ftruncate(file, self._marks + count)
            for data, at in ((head[:start], 0), (sums, start + begin), (bytes(count), self._marks)):
                _write(file, data, at)
            os.fsync(file)
            part.replace(path)
        except BaseException:
            os.close(file)
            part.unlink(missing_ok=True)
            raise
        return file

    def bring(self, spans: Sequence[Span], *, anew: bool = False) -> None:
        """Have blocks come that are not there yet; see `packio.index.far.Far.bring`."""
        spans = list(spans) if anew else self._lacking(spans)
        if not spans:
            return
        with self._lock:  # threads of a process do not see each other's locks of POSIX
            pieces = _pieces(spans)
            if len(pieces) == 1:
                self._fetch(pieces[0], anew=anew)
                return
            with ThreadPool(min(_REQUESTS, len(pieces)), "packio-blocks") as pool:
                for done in [pool.submit(self._fetch, piece, anew=anew) for piece in pieces]:
                    done.result()

    def _lacking(self, spans: Sequence[Span]) -> list[Span]:
        """Those blocks that have not come."""
        if not spans:
            return []
        first, last = min(spans).number, max(spans).number
        count = last - first + 1
        marks = os.pread(self._file, count, self._marks + first).ljust(count, b"\0")
        return sorted(span for span in {*spans} if not marks[span.number - first])

    def _fetch(self, piece: list[Span], *, anew: bool) -> None:
        """Have neighbours come, unless another process has let them come meanwhile."""
        with self._claimed(piece):
            for some in _pieces(piece if anew else self._lacking(piece)):
                start, stop = some[0].start, some[-1].stop
                data = self._files.read(0, start, stop - start)
                with _no_room(self._url):
                    _write(self._file, data, start)
                    _write(self._file, b"\1" * len(some), self._marks + some[0].number)

    @contextlib.contextmanager
    def _claimed(self, piece: list[Span]) -> Iterator[None]:
        """Keep other processes from fetching the same blocks."""
        where = len(piece), self._marks + piece[0].number
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, *where)
            except (BlockingIOError, PermissionError):
                if not self._lacking(piece):
                    break
                time.sleep(_POLL)
            except OSError:  # no locks on this file system
                break
            else:
                try:
                    yield
                finally:
                    fcntl.lockf(self._file, fcntl.LOCK_UN, *where)
                return
        yield


_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


def _opened(path: Path, least: int) -> int | None:
    """Open a file of the cache; None if there is none, or somebody has cut it short."""
    try:
        file = os.open(path, _FLAGS)
    except FileNotFoundError:
        return None
    if os.fstat(file).st_size >= least:
        return file
    os.close(file)
    return None


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
    except OSError as error:
        raise ReadError(
            f"{where}: the cache takes no more of this index: {error.strerror or error}; make "
            "room, or name another folder in PACKIO_CACHE_DIR"
        ) from error
