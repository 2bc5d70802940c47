"""Sources of samples, one file each: what is there to pack, and how one sample is read.

A source module has

* ``recognise(path) -> bool``: whether the path is one of these; where several modules say so, the
  one with the least ``PRIORITY`` (0 if it has none) gets it;
* ``accepts(source) -> bool`` and ``of(source, *, classes=None, …) -> Listing``: optional, for
  objects instead of paths;
* ``listing(path, *, classes=None, allow_empty=False) -> Listing``: everything that will be tried,
  in its final order. What cannot even be listed is in ``Listing.unlisted``; nothing is left out
  silently;
* ``OPTIONS``: optional: what else `listing` takes by keyword, name → one line of help. The command
  line offers them as ``--name``, all of them text, numbers or booleans; the module checks them, and
  raises OptionError.

How samples are read is in the listing: ``open`` makes, from what ``rows`` says of some samples, a
context in which they can be read. Shards are written by several processes where both can be
pickled, so ``open`` should be a `functools.partial` of a module's function.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from packio.sample.record import Field, Record

if TYPE_CHECKING:
    import os

    import numpy as np


# Whom a listing that may take long tells how many more files it has come upon, now and then.
FOUND: ContextVar[Callable[[int], None]] = ContextVar("FOUND", default=lambda _: None)

# Position in the listing → the sample, whose key, label and split `Listing.described` adds.
# Raises OSError or DecodeError if the sample cannot be read.
ReadRecord = Callable[[int], Record[Field]]


@dataclasses.dataclass(frozen=True)
class Listing:
    """What a source holds, in order.

    Attributes:
        kind: Name of the source's module.
        root: Folder that the keys are relative to; None where the samples are no files.
        keys: Relative paths as raw bytes, unique.
        sizes: Bytes of each sample; -1 where it could not be told.
        labels: Positions in `classes`; or (N, k) float32 vectors; None where there are none.
        classes: Names, sorted, or as another pack has them.
        unlisted: (key, reason) of folders that could not be listed.
        dropped: (key, reason) of samples left out on purpose, as duplicates.
        others: File name ending → how many files with it are not taken as images.
        warnings: Things the user should know, one line each.
        version: Of the contents, where the samples are no files that can be looked at again.
        splits: Positions in `split_names`; None where the samples are of no splits.
        split_names: As "train", "val".
        files: Paths below `root` of the files that each sample is read from; None: its key.
        rows: What `open` needs to know of each sample; None: its key.
        open: Makes, of some of `rows`, a context in which those samples can be read by position;
            None reads files below `root`.
    """

    kind: str
    root: str | os.PathLike[str] | None
    keys: list[bytes]
    sizes: list[int]
    labels: list[int] | np.ndarray | None
    classes: list[str]
    unlisted: list[tuple[bytes, str]] = dataclasses.field(default_factory=list)
    dropped: list[tuple[bytes, str]] = dataclasses.field(default_factory=list)
    others: Counter[str] = dataclasses.field(default_factory=Counter)
    warnings: list[str] = dataclasses.field(default_factory=list)
    version: str = ""
    splits: Sequence[int] | np.ndarray | None = None
    split_names: list[str] = dataclasses.field(default_factory=list)
    files: Sequence[Sequence[bytes]] | None = None
    rows: Sequence[Any] | None = None
    open: Callable[[Sequence[Any]], AbstractContextManager[ReadRecord]] | None = None

    def opened(self) -> AbstractContextManager[ReadRecord]:
        """A context in which samples can be read by their position."""
        rows = self.keys if self.rows is None else self.rows
        if self.open is not None:
            return self.open(rows)
        from packio.sources import _files

        assert self.root is not None  # noqa: S101 (a listing has one of the two)
        return _files.opened(self.root, rows)

    def part(self, positions: range) -> Listing:
        """The listing of some samples that follow each other, without what concerns all."""
        some = slice(positions.start, positions.stop)
        taken = {name: values[some] for name, values in self._columns().items()}
        return dataclasses.replace(self, **taken, unlisted=[], dropped=[], warnings=[])

    def take(self, positions: Sequence[int]) -> Listing:
        """The listing of some samples, in another order."""
        taken = {name: _taken(values, positions) for name, values in self._columns().items()}
        return dataclasses.replace(self, **taken)

    def _columns(self) -> dict[str, Any]:
        """What has an entry for each sample."""
        names = ("keys", "sizes", "labels", "splits", "files", "rows")
        return {n: v for n in names if (v := getattr(self, n)) is not None}

    def described(self, record: Record[Field], position: int) -> Record[Field]:
        """A record with the key, label and split that the listing has of it."""
        split = None if self.splits is None else int(self.splits[position])
        return dataclasses.replace(
            record, key=self.keys[position], label=self.label(position), split=split
        )

    def label(self, position: int) -> int | np.ndarray | None:
        """Label of one sample."""
        if self.labels is None:
            return None
        label: int | np.ndarray = self.labels[position]
        return label


def _taken(values: Any, positions: Sequence[int]) -> Any:
    if hasattr(values, "dtype"):  # an array
        return values[list(positions)]
    return [values[i] for i in positions]
