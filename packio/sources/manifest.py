"""A list of images in a text file: CSV, TSV, or JSON lines.

The images are files; the list has a path for each, a label, and whatever else, which becomes meta:
a JSON object of the further columns. There, a column in which all cells are numbers, as JSON writes
them, or blank, gives numbers and nulls; any other gives text, as does ``007``.

A CSV without names of columns is understood where a cell of its first line is the path of an image:
columns are then called ``0``, ``1``, …, and the other one of two is the label, as in Caffe's lists.

==================================  ===============================================================
label column                        labels
==================================  ===============================================================
whole numbers                       ints, as they are, unless all are names of the classes given
other numbers                       (N, 1) float32, as they are; a blank cell is NaN
names                               positions in the sorted names
names with `label_sep` between      (N, classes) float32, 1 for each name in the cell, else 0
several columns of numbers          (N, columns) float32; a blank cell is NaN; classes: the columns
JSON: a list of names, of numbers   as names with `label_sep`; (N, k) float32
==================================  ===============================================================
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import OptionError, SourceError
from packio.sample.record import Field, Record
from packio.sources import Listing, ReadRecord, _files
from packio.sources.tables import lines, tables
from packio.sources.tables.manifest_table import Meta, Table, stamp
from packio.system.pools import ThreadPool

OPTIONS = {
    "path_col": "column with the paths of the images",
    "label_col": "column with the labels; several, as 'a,b' or 'cls_*', give a float vector",
    "label_sep": "what separates several labels in one cell, as '|'",
    "root": "folder that the paths are relative to [default: the list's]",
    "ext": "what to append to paths that do not end as images do, as '.jpg'",
    "delimiter": "what separates the columns [default: found out]",
}
SUFFIXES = (".csv", ".tsv", ".txt", ".jsonl", ".ndjson")
_STAT_FILES = 1024  # whose sizes are asked for together
_STAT_SECONDS = 1e-4  # a file; where it takes longer, as on a network, threads share the waiting
_STAT_THREADS = 16


def recognise(path: str | Path) -> bool:
    """Tell whether the path is a file with one of `SUFFIXES`."""
    return os.fspath(path).lower().endswith(SUFFIXES) and os.path.isfile(path)


def listing(
    path: Path,
    *,
    classes: Sequence[str] | None = None,
    allow_empty: bool = False,  # noqa: ARG001 (the signature of all sources; a class may be empty)
    path_col: str | None = None,
    label_col: str | None = None,
    label_sep: str | None = None,
    root: str | os.PathLike[str] | None = None,
    ext: str | None = None,
    delimiter: str | None = None,
) -> Listing:
    """List the images of a manifest, in its order.

    Keys are the paths relative to `root`; where one leads out of it, relative to the folder that
    the root and all paths share.

    Args:
        path: Of the manifest.
        classes: Names that give the labels; None takes those found, sorted.
        allow_empty: Of no meaning here.
        path_col: Column with the paths; None guesses, and says so in a warning.
        label_col: Column with the labels; several, with commas between them or as a pattern; None
            guesses; "" packs without labels.
        label_sep: Separates several labels in one cell.
        root: Folder that the paths are relative to; None takes the manifest's.
        ext: Appended to paths that do not end as images do.
        delimiter: Separates the columns; None finds out.

    Raises:
        OptionError: a column that is not there or not said, or a delimiter of several characters.
        SourceError: lines that make no sense, an image listed twice, or no image that exists.
    """
    if delimiter is not None and len(delimiter) != 1:
        raise OptionError(f"delimiter={delimiter!r}: expected one character")
    table = Table(path, path_col, label_col, delimiter)
    folder = os.fspath(root or path.parent)
    keys_root, keys = tables.relative(_with_endings(table.paths, ext), folder)
    labels, names = table.labels(classes, label_sep)
    sizes = _sizes(keys_root, keys)
    result = Listing("manifest", keys_root, keys, sizes, labels, names)
    if path_col is None or label_col is None:
        result.warnings.append(table.choice((labels, names)))
    if keys_root not in (folder, os.path.abspath(folder)):
        result.warnings.append(f"paths lead out of {folder}/: keys are relative to {keys_root}/")
    _refuse_repeated(table, result)
    if max(sizes) < 0:
        first = os.path.join(keys_root, os.fsdecode(keys[0]))
        raise SourceError(
            f"{path}: none of its {len(keys):,} images exists; the first would be "
            f"{ascii(first)[1:-1]}; say --root, or --ext"
        )
    if not table.has_meta:
        return result
    return dataclasses.replace(
        result, version=table.meta.digest(), rows=_Rows(keys, table.spans()),
        open=functools.partial(_opened, keys_root, table.meta),
    )  # fmt: skip


def _with_endings(paths: list[str], ending: str | None) -> list[str]:
    if not ending:
        return paths
    ending = f".{ending.removeprefix('.')}"
    endings = (*lines.IMAGES, ending.lower())
    return [path if path.lower().endswith(endings) else path + ending for path in paths]


def _sizes(root: str, keys: list[bytes]) -> list[int]:
    """Bytes of each file, -1 where there is none."""
    try:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise SourceError(
            f"{root}: {error.strerror}; expected the folder that the paths are relative to"
        ) from error
    try:
        began = time.perf_counter()
        sizes = _sizes_in(folder, keys[:_STAT_FILES])
        slow = time.perf_counter() - began > _STAT_FILES * _STAT_SECONDS
        parts = (keys[i : i + _STAT_FILES] for i in range(_STAT_FILES, len(keys), _STAT_FILES))
        with ThreadPool(_STAT_THREADS if slow else 1, "packio-stat") as pool:
            for part in pool.map(functools.partial(_sizes_in, folder), parts):
                sizes += part
    finally:
        os.close(folder)
    return sizes


def _sizes_in(folder: int, keys: list[bytes]) -> list[int]:
    sizes = []
    for key in keys:
        try:
            sizes.append(os.stat(key, dir_fd=folder).st_size)
        except OSError:  # reading it will say so
            sizes.append(-1)
    return sizes


def _refuse_repeated(table: Table, listing: Listing) -> None:
    keys = listing.keys
    if len(set(keys)) == len(keys):
        return
    first: dict[bytes, int] = {}
    pairs = [(first[key], i) for i, key in enumerate(keys) if first.setdefault(key, i) != i]
    different = [(a, b) for a, b in pairs if not _equal(listing.label(a), listing.label(b))]
    a, b = (different or pairs)[0]
    labels = f" with different labels ({listing.label(a)}, {listing.label(b)})" if different else ""
    raise SourceError(
        f"{table.place(b)}: {os.fsdecode(keys[b])!a} again{labels}, as in {table.place(a)}; "
        f"{len(pairs)} lines repeat an image; expected each once"
    )


def _equal(a: Any, b: Any) -> bool:
    return a is b or bool(np.array_equal(a, b, equal_nan=True))


class _Rows(Sequence[Any]):
    """Key and place in the manifest of each sample."""

    def __init__(self, keys: list[bytes], spans: np.ndarray) -> None:
        self.keys, self.spans = keys, spans

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, some: Any) -> Any:
        if isinstance(some, slice):
            return _Rows(self.keys[some], self.spans[some])
        return self.keys[some], *self.spans[some].tolist()


@contextlib.contextmanager
def _opened(root: str, meta: Meta, rows: _Rows) -> Iterator[ReadRecord]:
    """Yield a function that reads an image and the further columns of its line."""
    with meta.manifest.open("rb") as file, _files.opened(root, rows.keys) as read:
        if stamp(file.fileno()) != meta.stamp:
            raise SourceError(f"{meta.manifest}: changed after it was read; run again")

        def read_both(position: int) -> Record[Field]:
            start, end = rows.spans[position].tolist()
            text = os.pread(file.fileno(), end - start, start)
            return dataclasses.replace(read(position), meta=meta.of(text))

        yield read_both
