"""What the stores of files at URLs have in common: bounds, checks, and ranges in flight."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from packio.errors import IntegrityError, ReadError
from packio.storage import urls
from packio.storage.flight import Flight, Landing
from packio.storage.store import Facts, Range, Store, warn_of_missing
from packio.storage.urls import Url

_FEW = 4  # files whose sizes are asked for one by one; of more files, the folder is listed


class RemoteStore(Store):
    """Files at URLs.

    Args:
        root, names, sizes: As of `Store`.
        tags: Name → entity tag of the version that is read; a file without one is not compared.
    """

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

    def fetched(self, ranges: Sequence[Range]) -> Store:
        """The same files with some ranges on their way, or there already."""
        found = object.__new__(type(self))  # which copy.copy would make anew
        found.__dict__.update(self.__dict__)
        found._landings = self._flight.taken([r for r in ranges if r[2] and self._has(*r)])
        return found

    def expect(self, ranges: Iterable[Range]) -> None:
        """See `Store.expect`."""
        if self.looks_ahead:
            self._flight.expect(r for r in ranges if r[2] and self._has(*r))

    def forget(self, ranges: Iterable[Range] | None = None) -> None:
        """See `Store.forget`."""
        self._flight.drop(ranges)

    def close(self) -> None:
        """Close nothing: the connections are the process's."""
        self._flight.drop()


def by_name(items: Iterable[tuple[str, Any]], top: str) -> dict[str, Any]:
    """What is below a path of a service, by its name relative to that path."""
    top = top.rstrip("/") + "/"
    return {path[len(top) :]: e for path, e in items if path.startswith(top) and path != top}
