"""What the stores of files at URLs have in common: bounds, checks, and ranges in flight.

Reading from an object store takes a round trip of 10 to 100 ms a request, and a store answers many
requests at a time. A dataset that knows its next batches therefore tells their ranges
(`Flight.expect`) before it asks for the bytes of its current batch (`Flight.claim`). Ranges that
lie close to each other are joined into one request. Bytes that are expected, but not taken yet, are
limited in number.
"""

from __future__ import annotations

import abc
import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from packio.errors import IntegrityError, ReadError
from packio.storage import urls
from packio.storage.store import Facts, Range, Store, warn_of_missing
from packio.storage.urls import Url
from packio.system import interrupts
from packio.system.locks import ForkSafeLock
from packio.system.pools import DaemonPool

_FEW = 4  # files whose sizes are asked for one by one; of more files, the folder is listed
_GAP, _PIECE = 64 << 10, 8 << 20  # bytes: gap between ranges read as one, and length of such a read
_MOST = 256 << 20  # bytes of one pack that are expected and not taken
CONNECTIONS = 64  # at once, of one process


class Piece(NamedTuple):
    """Ranges of one file that are read by one request."""

    file: int
    start: int
    stop: int
    ranges: list[Range]


def pieces(ranges: Iterable[Range]) -> list[Piece]:
    """Join ranges that are close to each other; in the order of files and offsets."""
    found: list[Piece] = []
    for file, offset, length in sorted(set(ranges)):
        piece = Piece(file, offset, offset + length, [])
        if found and (last := found[-1]).file == file and offset <= last.stop + _GAP:
            joined = last._replace(stop=max(last.stop, piece.stop))
            if joined.stop - joined.start <= _PIECE:
                piece = joined
                found.pop()
        piece.ranges.append((file, offset, length))
        found.append(piece)
    return found


class Landing:
    """A piece that was asked for, or is there already."""

    def __init__(self, piece: Piece, body: Future[bytes]) -> None:
        self._start, self.body, self.left = piece.start, body, len(piece.ranges)
        self.is_needed = False
        self.length: int = piece.stop - piece.start

    def part(self, offset: int, length: int) -> bytes:
        """Wait for the bytes of a range of the piece."""
        data, first = interrupts.result(self.body), offset - self._start
        return data if length == len(data) else data[first : first + length]

    @property
    def has_failed(self) -> bool:
        return self.body.done() and (self.body.cancelled() or self.body.exception() is not None)


class Flight:
    """The ranges of one pack that this process has asked for. Safe in threads and after fork."""

    def __init__(self, fetch: Callable[[int, int, int], bytes]) -> None:
        self._fetch, self._lock = fetch, ForkSafeLock()
        self._process, self._bytes = os.getpid(), 0
        self._coming: dict[Range, Landing] = {}

    def expect(self, ranges: Iterable[Range]) -> None:
        """Ask for ranges that will be taken later, as far as the limit allows."""
        with self._lock:
            self._settle()
            for piece in pieces(r for r in ranges if r not in self._coming):
                if self._bytes + piece.stop - piece.start > _MOST:
                    return
                landing = self._asked(piece)
                self._bytes += landing.length
                self._coming.update(dict.fromkeys(piece.ranges, landing))

    def claim(self, ranges: Sequence[Range]) -> Mapping[Range, Landing]:
        """Hand out ranges; those that nobody expected are asked for now.

        So are those that have failed: what kept a store busy may be over.
        """
        with self._lock:
            self._settle()
            expected = {r: landing for r in set(ranges) if (landing := self._out(r)) is not None}
            found = {r: landing for r, landing in expected.items() if not landing.has_failed}
            for landing in found.values():
                landing.is_needed = True
            for piece in pieces(r for r in ranges if r not in found):
                found.update(dict.fromkeys(piece.ranges, self._asked(piece)))
            return found

    def drop(self, ranges: Iterable[Range] | None = None) -> None:
        """Forget ranges that were expected; None: all."""
        with self._lock:
            self._settle()
            for some in list(self._coming) if ranges is None else ranges:
                landing = self._out(some)
                if landing is not None and not landing.left and not landing.is_needed:
                    landing.body.cancel()  # unless it has been asked for

    def _settle(self) -> None:
        """Forget what the parent has asked for, in a forked process."""
        if self._process != os.getpid():
            self._process, self._bytes, self._coming = os.getpid(), 0, {}

    def _out(self, wanted: Range) -> Landing | None:
        """Take a range from those that are expected."""
        landing = self._coming.pop(wanted, None)
        if landing is not None:
            landing.left -= 1
            self._bytes -= 0 if landing.left else landing.length
        return landing

    def _asked(self, piece: Piece) -> Landing:
        body = _pool().submit(self._fetch, piece.file, piece.start, piece.stop)
        return Landing(piece, body)


_pools: dict[int, DaemonPool] = {}  # by process: a forked one has no threads of its parent's
_making = ForkSafeLock()


def _pool() -> DaemonPool:
    """The threads that ask, of this process, for all packs."""
    process = os.getpid()
    with _making:
        if process not in _pools:
            _pools.clear()
            _pools[process] = DaemonPool(CONNECTIONS, "packio-request")
        return _pools[process]


class RemoteStore(Store):
    """Files at URLs; ``tags`` are those of the versions that are read, by name, as far as known."""

    root: Url
    is_local = False

    def __init__(
        self, root: Url, names: Sequence[str] = (), sizes: Sequence[int] = (),
        tags: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(root, names, sizes)
        self._tags = dict(tags or {})
        self._flight = Flight(self._fetch)
        self._landings: Mapping[Range, Landing] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.root, self._names, self._sizes, self._tags)

    @abc.abstractmethod
    def _fetch(self, file: int, start: int, stop: int) -> bytes:
        """Ask the service for a range; errors are as they come."""

    @abc.abstractmethod
    def whole(self, name: str, facts: Facts) -> bytes:
        """Read a whole file, which is as `facts` said."""

    def check(self, is_read: Callable[[int], bool]) -> None:
        """Compare the size of every file with the index, if the service tells sizes."""
        with urls.errors_as(ReadError, self.root), contextlib.suppress(PermissionError):
            if len(self._names) > _FEW:
                found = self.list()
                if not found:  # many HTTP servers do not list folders
                    return
            else:
                asked = {name: self.facts(name) for name in self._names}
                found = {name: facts for name, facts in asked.items() if facts is not None}
            for number, (name, expected) in enumerate(zip(self._names, self._sizes, strict=True)):
                if name not in found and not is_read(number):
                    warn_of_missing(self.path(number))
                    continue
                if name not in found:
                    raise IntegrityError(f"{self.path(number)}: missing; the index lists this file")
                size = found[name].size
                if size not in (-1, expected) and is_read(number):
                    raise IntegrityError(
                        f"{self.path(number)}: {size} bytes, the index says {expected}; changed, "
                        "or of another pack"
                    )
            self._tags |= {n: found[n].tag for n in self._names if n in found and found[n].tag}

    def read(self, file: int, offset: int, length: int) -> bytes:
        """Read one range, or wait for it if it is on its way; see `Store.read`."""
        if not self._has(file, offset, length):
            raise self._outside(file, offset, length)
        if not length:
            return b""
        with urls.errors_as(ReadError, f"{self.path(file)}, byte {offset}"):
            landing = self._landings.get((file, offset, length))
            if landing is not None:
                return landing.part(offset, length)
            return self._fetch(file, offset, offset + length)

    def path(self, file: int) -> Url:
        """URL of a file."""
        super().path(file)  # checks the number
        return self._url(self._names[file])

    def _url(self, name: str) -> Url:
        return urls.child(self.root, name) if name else self.root  # itself an object

    def prefetch(self, ranges: Sequence[Range]) -> Store:
        """The same files with some ranges on their way, or there already."""
        found = object.__new__(type(self))  # which copy.copy would make anew
        found.__dict__.update(self.__dict__)
        found._landings = self._flight.claim([r for r in ranges if r[2] and self._has(*r)])
        return found

    def expect(self, ranges: Iterable[Range]) -> None:
        if self.looks_ahead:
            self._flight.expect(r for r in ranges if r[2] and self._has(*r))

    def forget(self, ranges: Iterable[Range] | None = None) -> None:
        self._flight.drop(ranges)

    def close(self) -> None:
        """Close nothing: the connections are the process's."""
        self._flight.drop()


def index_by_name(items: Iterable[tuple[str, Any]], top: str) -> dict[str, Any]:
    """What is below a path of a service, by its name relative to that path."""
    top = top.rstrip("/") + "/"
    return {path[len(top) :]: e for path, e in items if path.startswith(top) and path != top}
