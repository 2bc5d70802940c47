"""The files of a pack at URLs, read by byte range."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from packio.errors import IntegrityError, ReadError
from packio.storage import flight, local, requests, urls
from packio.storage.flight import Flight, Landing, Range
from packio.storage.urls import Url

_SIGNED = 256  # files at most whose URLs are signed at opening, before workers are forked
_FEW = 4  # files whose sizes are asked for one by one; of more files, the folder is listed


class RemoteFiles:
    """The files of a pack at URLs. Safe in threads and after fork; pickles."""

    def __init__(
        self, root: Url, paths: Sequence[str], sizes: Sequence[int],
        tags: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._root, self._paths, self._sizes = root, list(paths), list(sizes)
        self._tags = dict(tags or {})
        self._client = requests.client(root)
        self._to_warn = [True]  # of a refusal, once; copies of this object share the list
        self._flight = Flight(self._range)
        self._landings: Mapping[Range, Landing] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return RemoteFiles, (self._root, self._paths, self._sizes, self._tags)

    def check(self, is_read: Callable[[int], bool]) -> None:
        """Compare the size of every file with the index, if the service tells sizes."""
        with urls.errors_as(ReadError, self._root), contextlib.suppress(PermissionError):
            if len(self._paths) > _FEW:
                below = urls.below(self._root)
                found = {urls.name_of(self._root, text): facts for text, facts in below.items()}
                if not found:  # many HTTP servers do not list folders
                    return
            else:
                asked = {n: urls.info(urls.child(self._root, n)) for n in self._paths}
                found = {name: facts for name, facts in asked.items() if facts is not None}
            for number, (name, expected) in enumerate(zip(self._paths, self._sizes, strict=True)):
                url = urls.child(self._root, name)
                if name not in found and not is_read(number):
                    local.warn_of_missing(url)
                    continue
                if name not in found:
                    raise IntegrityError(f"{url}: missing; the index lists this file")
                size = found[name].get("size")
                if size not in (None, expected) and is_read(number):
                    raise IntegrityError(
                        f"{url}: {size} bytes, the index says {expected}; changed, "
                        "or of another pack"
                    )
            self.know(found)

    def know(self, found: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep the versions of the files; let their URLs be signed before workers are forked."""
        tags = {n: str(found[n].get("ETag", "")) for n in self._paths if n in found}
        self._tags |= {n: tag for n, tag in tags.items() if tag.startswith('"')}  # no weak ones
        if self._client is not None and len(self._paths) <= _SIGNED:
            with contextlib.suppress(requests.RefusedError):  # reading will say so
                for name in self._paths:
                    self._client.know(urls.child(self._root, name))

    def read(self, file: int, offset: int, length: int) -> bytes:
        """Read one range, or wait for it if it is on its way."""
        wanted = file, offset, length
        if not length or not self._has(wanted):
            return self._nothing(wanted)
        with urls.errors_as(ReadError, f"{self.path(file)}, byte {offset}"):
            landing = self._landings.get(wanted)
            if landing is not None:
                return landing.part(offset, length)
            return self._range(file, offset, offset + length)

    def _has(self, wanted: Range) -> bool:
        file, offset, length = wanted
        is_there = file < len(self._sizes) and 0 <= offset <= offset + length <= self._sizes[file]
        return is_there and length <= local.MOST_BYTES

    def _nothing(self, wanted: Range) -> bytes:
        if self._has(wanted):
            return b""
        file, offset, length = wanted
        raise IntegrityError(
            f"{self._root}: the index asks for {length} bytes at {offset} of file {file}, where "
            "there are none; restore the index or pack again"
        )

    def _range(self, file: int, start: int, stop: int) -> bytes:
        """Ask for a range, by plain HTTP if that works, else by fsspec."""
        url = self.path(file)
        if self._client is not None:
            try:
                name = self._paths[file]
                return self._client.read(url, start, stop, self._tags.get(name), self._sizes[file])
            except requests.RefusedError as error:
                self._client = None
                with contextlib.suppress(IndexError):  # many requests may be refused at a time
                    self._to_warn.pop()
                    warnings.warn(
                        f"{error}: all objects there are read more slowly, by fsspec", stacklevel=2
                    )
        return urls.read(*urls.filesystem(url), start, stop - start)

    @property
    def looks_ahead(self) -> bool:
        """Whether `expect` does anything."""
        return self._client is not None

    def expect(self, ranges: Iterable[Range]) -> None:
        """Ask for ranges that will be read later, all at the same time; see `fetched`."""
        if self._client is not None:
            self._flight.expect(r for r in ranges if r[2] and self._has(r))

    def forget(self, ranges: Iterable[Range] | None = None) -> None:
        """Do not keep what was expected and will not be read; None: nothing that was expected."""
        self._flight.drop(ranges)

    def fetched(self, ranges: Sequence[Range]) -> RemoteFiles:
        """Return the same files with some ranges on their way, or there already.

        A range that does not come is read alone when `read` asks for it, if fsspec reads.
        """
        wanted = [r for r in ranges if r[2] and self._has(r)]
        files = object.__new__(RemoteFiles)  # which copy.copy would make anew
        files.__dict__.update(self.__dict__)
        # a copy's `_flight` calls this object's `_range`, so that all copies learn of a refusal
        files._landings = self._flight.taken(wanted) if self._client else self._together(wanted)
        return files

    def _together(self, ranges: Sequence[Range]) -> Mapping[Range, Landing]:
        """Let fsspec read ranges, all at the same time."""
        pieces: Sequence[flight.Piece] = flight.pieces(ranges)
        bodies: Sequence[Any] = []
        with contextlib.suppress(Exception):  # `read` will raise the error
            at = {piece.file: urls.filesystem(self.path(piece.file)) for piece in pieces}
            if pieces:
                seconds = urls.patience(sum(piece.stop - piece.start for piece in pieces))
                found = urls.within(
                    seconds, at[pieces[0].file][0], "cat_ranges",
                    [at[piece.file][1] for piece in pieces], [piece.start for piece in pieces],
                    [piece.stop for piece in pieces], on_error="return",
                )  # fmt: skip
                bodies = found
        return {
            wanted: flight.landed(piece, body)
            for piece, body in zip(pieces, bodies, strict=False)
            if isinstance(body, bytes) and len(body) == piece.stop - piece.start
            for wanted in piece.ranges
        }

    def path(self, file: int) -> Url:
        """URL of a file."""
        return urls.child(self._root, self._paths[file])

    def close(self) -> None:
        """Close nothing: the connections are the process's."""
        self._flight.drop()
