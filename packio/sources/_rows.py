"""Rows of a listing as columns of equal length."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from packio.sample.record import Field, Record
from packio.sources import ReadRecord, taken_of
from packio.sources._listed_file import ListedFile, ScratchFile


@dataclasses.dataclass(frozen=True)
class ListedRows:
    """Rows kept as columns: lists, arrays or ranges, with an entry for each sample.

    Attributes:
        columns: Name → entries.
        version: Digest of contents that the columns only point to, as of a manifest's text.
    """

    columns: Mapping[str, Any]
    version: str = ""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, part: slice) -> ListedRows:
        return ListedRows({n: values[part] for n, values in self.columns.items()}, self.version)

    def take(self, positions: Sequence[int]) -> ListedRows:
        """The rows at some positions, in the order of the positions."""
        taken = {n: taken_of(values, positions) for n, values in self.columns.items()}
        return ListedRows(taken, self.version)

    def digest(self) -> str:
        """SHA-256 of the version and of all entries, hexadecimal."""
        digest = hashlib.sha256(self.version.encode())
        for name, values in self.columns.items():
            digest.update(f"{name}\n".encode())
            _add(digest, values)
        return digest.hexdigest()


@contextlib.contextmanager
def each(read: Callable[..., Record[Field]], *args: Any) -> Iterator[ReadRecord]:
    """Make `Listing.open` of a function that needs nothing opened.

    For example, ``functools.partial(each, read, folder)`` calls ``read(folder, rows, position)``.
    """
    yield functools.partial(read, *args)


@contextlib.contextmanager
def each_of(
    file: ListedFile | ScratchFile, read: Callable[..., Record[Field]], *args: Any
) -> Iterator[ReadRecord]:
    """Make `Listing.open` of a function that reads rows from one file."""
    with file.opened() as descriptor:
        yield functools.partial(read, descriptor, *args)


def _add(digest: Any, value: Any) -> None:
    """Add a value to a digest: all of it, arrays too."""
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype.str}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).data)
    elif isinstance(value, (list, tuple)):
        digest.update(b"%d[" % len(value))
        for inner in value:
            _add(digest, inner)
    elif isinstance(value, Mapping):
        _add(digest, list(value.items()))
    elif isinstance(value, bytes):
        digest.update(b"%d:%b" % (len(value), value))
    else:
        digest.update(f"{value!r};".encode("utf-8", "surrogatepass"))
