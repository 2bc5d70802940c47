"""A list of images in a text file: CSV, TSV, or JSON lines.

The images are files. The list has a path for each, perhaps a label, and further columns. A further
column becomes a named field if the user asks for it: text, or a file whose path is relative to the
root. All other columns become metadata, a JSON object: numbers and nulls of a column in which each
cell is blank or a number as JSON writes numbers, and text of any other column, as of one with
``007``.

The first line of a CSV names the columns, unless one of its cells is the path of an image. The
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import SourceError
from packio.sample.record import Field, Record
from packio.sources import Context, Listing, ReadRecord, Source, _files, _values
from packio.sources._rows import Columns
from packio.sources.tables import lines, tables
from packio.sources.tables.manifest_table import Further, Table, stamp

_OPTIONS = {
    "path_col": "column with the paths of the images",
    "label_col": "column with the labels; several, as 'a,b' or 'cls_*', give a float vector",
    "label_sep": "what separates several labels in one cell, as '|'",
    "root": "folder that the paths are relative to [default: the list's]",
    "ext": "what to append to paths that do not end as images do, as '.jpg'",
    "delimiter": "what separates the columns [default: found out]",
}
SUFFIXES = (".csv", ".tsv", ".txt", ".jsonl", ".ndjson")


class Manifest(Source):
    """A list of images in a text file."""

    options = _OPTIONS
    takes_fields = True

    def recognise(self, path: Path) -> bool:
        """Tell whether the path is a file with one of `SUFFIXES`."""
        return os.fspath(path).lower().endswith(SUFFIXES) and os.path.isfile(path)

    def listing(self, source: Any, context: Context) -> Listing:
        """List the images of a manifest, in its order.

        Keys are the paths relative to the root. If a path leads out of the root, keys are relative
        to the folder that the root and all paths share.

        Raises:
            OptionError: a column is not there or cannot be guessed, or the delimiter has several
                characters.
            SourceError: a line makes no sense, an image is listed twice, or no image exists.
        """
        path = Path(source)
        table = Table(path, context)
        folder = os.fspath(context.option("root", path.parent))
        root, keys = tables.relative(_with_endings(table.paths, context.option("ext")), folder)
        labels, names = table.labels(context.classes, context.option("label_sep"))
        sizes = _sizes(root, keys)
        result = Listing(self.name, root, keys, sizes, labels, names)
        if None in (context.option("path_col"), context.option("label_col")):
            result.warnings.append(table.choice((labels, names)))
        if root not in (folder, os.path.abspath(folder)):
            result.warnings.append(f"paths lead out of {folder}/: keys are relative to {root}/")
        _refuse_repeated(table, result)
        if max(sizes) < 0:
            first = os.path.join(root, os.fsdecode(keys[0]))
            raise SourceError(
                f"{path}: none of its {len(keys):,} images exists; the first would be "
                f"{ascii(first)[1:-1]}; say --root, or --ext"
            )
        if not table.has_more:
            return result
        rows = Columns({"key": keys, "span": table.spans()}, table.further.digest())
        opened = functools.partial(_opened, root, os.path.abspath(folder), table.further)
        kinds = [kind for _, kind in context.fields.values()]
        cells = zip(*table.cells, strict=True)  # of each sample
        files = [
            (k, *_values.files_of(c, kinds, folder)) for k, c in zip(keys, cells, strict=False)
        ]
        return dataclasses.replace(result, rows=rows, open=opened, files=files or None)


SOURCE = Manifest()


def _with_endings(paths: list[str], ending: str | None) -> list[str]:
    if not ending:
        return paths
    ending = f".{ending.removeprefix('.')}"
    endings = (*lines.IMAGES, ending.lower())
    return [path if path.lower().endswith(endings) else path + ending for path in paths]


def _sizes(root: str, keys: list[bytes]) -> list[int]:
    """Bytes of each file, -1 where there is none."""
    try:
        with _files.folder_opened(root) as folder:
            return _files.sizes(folder, keys)
    except OSError as error:
        raise SourceError(
            f"{root}: {error.strerror}; expected the folder that the paths are relative to"
        ) from error


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


@contextlib.contextmanager
def _opened(root: str, folder: str, further: Further, rows: Columns) -> Iterator[ReadRecord]:
    """Yield a function that reads an image and the further columns of its line."""
    keys, spans = rows.columns["key"], rows.columns["span"]
    with further.manifest.open("rb") as file, _files.opened(root, keys) as read:
        if stamp(file.fileno()) != further.stamp:
            raise SourceError(f"{further.manifest}: changed after it was read; run again")

        def read_all(position: int) -> Record[Field]:
            start, end = spans[position].tolist()
            values, meta = further.of(os.pread(file.fileno(), end - start, start))
            fields = _values.fields_of(values, further.wanted, folder)
            return dataclasses.replace(read(position).with_fields(**fields), meta=meta)

        yield read_all
