"""Parquet files with images in them, as Hugging Face's hub has them.

An image column is a struct with ``bytes`` and ``path``, or a binary column; where ``bytes`` is
null, the path is of a file, absolute or relative to the folder of the Parquet file. Names of a
`ClassLabel` are those that `datasets` keeps in the schema's metadata, under ``huggingface``. A
second image column called mask, annotation, segmentation, label or the like is the mask; what JSON
can hold of the other columns is meta. Nothing is decoded.

Source: ``datasets`` 4.0, ``datasets.features`` (``Image``, ``ClassLabel``, ``Features``).
"""

from __future__ import annotations

import bisect
import contextlib
import fnmatch
import functools
import hashlib
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.errors import DecodeError, OptionError, SourceError
from packio.sample.record import Field, Record, image_record
from packio.sources import Listing, ReadRecord, _files
from packio.sources.tables import parquet_files, tables

PACKAGE = "pyarrow"
EXTRA = "parquet"
OPTIONS = {
    "image_col": "column with the images",
    "label_col": "column with the labels; '' packs without",
    "files": "which files of the folder, as 'train-*'",
}
_SUFFIX = ".parquet"
_SPLITS = r"(train|training|val|valid|validation|dev|test|testing)(?![a-z])"
_split = re.compile(_SPLITS, re.IGNORECASE).match


def recognise(path: str | Path) -> bool:
    """Tell whether the path is a ``.parquet``, or a folder of some, also in a folder ``data``."""
    return bool(_found(Path(path)))


def _found(path: Path) -> list[Path]:
    if os.path.isfile(path):
        return [path] if path.suffix.lower() == _SUFFIX else []
    for folder in (path, path / "data"):
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            names = [e.name for e in entries if e.name.lower().endswith(_SUFFIX) and e.is_file()]
            if names:
                return [folder / name for name in sorted(names)]
    return []


def listing(
    path: Path,
    *,
    classes: Sequence[str] | None = None,
    allow_empty: bool = False,  # noqa: ARG001 (the signature of all sources; a class may be empty)
    image_col: str | None = None,
    label_col: str | None = None,
    files: str | None = None,
) -> Listing:
    """List the rows of Parquet files, in the order of the files' names.

    Keys are the images' paths, where each has one of its own; else file name and row. A sample's
    size is that of a row on the average of its row group.

    Args:
        path: A file, or a folder of them.
        classes: Names that give the labels; None takes the column's.
        allow_empty: Of no meaning here.
        image_col: Column with the images; None finds out, and says so in a warning.
        label_col: Column with the labels; None guesses; "" packs without labels.
        files: Pattern of file names, for some files of a folder.

    Raises:
        MissingPackageError: pyarrow is not installed.
        OptionError: a column or files that are not there.
        SourceError: damaged files, several splits, no rows, or columns that make no sense.
    """
    footers = [parquet_files.footer(p) for p in _chosen(path, files)]
    columns = _columns(footers[0], image_col, label_col)
    for footer in footers[1:]:
        _check_alike(footers[0], footer, columns)
    places = [footer.file for footer in footers]
    counts = [place.rows for place in places]
    if not sum(counts):
        raise SourceError(f"{path}: no rows")
    labels, names = _labels(footers, columns, classes)
    sizes = [_sizes(footer) for footer in footers]
    reader = parquet_files.Reader(places, columns.read, [s.mean() if len(s) else 0 for s in sizes])
    digest = hashlib.sha256(b"".join(f.digest for f in footers) + repr(columns).encode())
    parts = [np.stack([np.full(n, i), np.arange(n)], axis=1) for i, n in enumerate(counts)]
    rows: Any = np.concatenate(parts)
    told = [columns.choice(path, (labels, names))] if None in (image_col, label_col) else []
    return Listing(
        "parquet", None, _keys(places, columns), np.concatenate(sizes).tolist(), labels, names,
        warnings=told + columns.left_out, version=digest.hexdigest(), rows=rows,
        open=functools.partial(_opened, reader, columns),
    )  # fmt: skip


def _chosen(path: Path, pattern: str | None) -> list[Path]:
    found = _found(path)
    if pattern is not None:
        chosen = [p for p in found if fnmatch.fnmatchcase(p.name, pattern)]
        if not chosen:
            names = ", ".join(p.name for p in found[:5])
            raise OptionError(f"files={pattern!r}: none of {len(found)} files in {path}: {names}")
        return chosen
    if not found:
        raise SourceError(f"{path}: no file that ends in {_SUFFIX}, in it or in its folder data")
    splits = sorted({match[0] for p in found if (match := _split(p.name))})
    if len(splits) > 1:
        shown = ", ".join(f"files={split + '*'!r}" for split in splits)
        raise SourceError(f"{path}: files of several splits; pack each by itself, with {shown}")
    return found


class _Columns(NamedTuple):
    """What each column is."""

    image: str
    mask: str | None
    label: str | None
    meta: tuple[str, ...]
    has_paths: bool  # the image is a struct with the member path
    left_out: list[str]  # warnings

    @property
    def read(self) -> list[str]:
        """Those that samples are made of."""
        return [self.image, *([self.mask] if self.mask else []), *self.meta]

    def choice(self, path: Path, labels: tables.Labels) -> str:
        """Say which columns were taken."""
        label = tables.told([self.label] if self.label else [], labels)
        mask = f", {self.mask!r} as mask" if self.mask else ""
        meta = f", {', '.join(map(repr, self.meta))} as meta" if self.meta else ""
        return (
            f"{path.name}: took column {self.image!r} as image, {label}{mask}{meta}; "
            "--image-col and --label-col say otherwise"
        )


def _columns(
    footer: parquet_files.Footer, image_col: str | None, label_col: str | None
) -> _Columns:
    """Tell what each column is.

    Raises:
        OptionError: a column asked for is not there, or there is none with images.
    """
    types = {name: footer.schema.field(name).type for name in footer.schema.names}
    structs = [name for name, kind in types.items() if "bytes" in _members(kind)]
    images = structs + [name for name, kind in types.items() if _is_binary(kind)]
    image = image_col or tables.guess(images, tables.IMAGE_NAMES) or next(iter(images), "")
    if image not in images:
        what = f"image_col={image!r}" if image else "no column of images"
        shown = ", ".join(f"{name}: {kind}" for name, kind in types.items())
        raise OptionError(
            f"{footer.file.path}: {what}; expected a struct with bytes, or binary; found {shown}"
        )
    others = [name for name in types if name not in images]
    mask = tables.guess([n for n in images if n != image], tables.MASK_NAMES)
    mask = mask or tables.guess([n for n in structs if n != image], tables.LABEL_NAMES)
    if label_col and label_col not in others:
        raise OptionError(f"{footer.file.path}: label_col={label_col!r}; there are {others}")
    named = [name for name in others if _class_names(footer, name)]
    label = label_col
    if label is None:
        label = tables.guess(named, tables.LABEL_NAMES) or next(iter(named), None)
        label = label or tables.guess(others, tables.LABEL_NAMES)
    left = {name for name in types if _holds_bytes(types[name])} - {image, mask}
    meta = [name for name in others if name not in (label, *left)]
    return _Columns(
        image, mask, label or None, tuple(meta), "path" in _members(types[image]),
        [f"column {name!r} holds bytes: left out" for name in types if name in left],
    )  # fmt: skip


def _is_binary(kind: Any) -> bool:
    return not kind.num_fields and "binary" in str(kind)  # large_, fixed_size_, as a dictionary


def _holds_bytes(kind: Any) -> bool:
    inner = [kind.field(i).type for i in range(kind.num_fields)]
    return _is_binary(kind) or any(map(_holds_bytes, inner))


def _members(kind: Any) -> set[str]:
    """Names of the members of a struct in which ``bytes`` are bytes."""
    if not str(kind).startswith("struct"):
        return set()
    fields = {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
    return set(fields) if "bytes" in fields and _is_binary(fields["bytes"]) else set()


def _class_names(footer: parquet_files.Footer, column: str) -> list[str] | None:
    """Names of a ClassLabel, or of a list of them."""
    feature = footer.features.get(column)
    while isinstance(feature, (dict, list)):
        if isinstance(feature, list):
            feature = feature[0] if feature else None
            continue
        names = feature.get("names")
        if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
            return names
        feature = feature.get("feature")
    return None


def _check_alike(
    first: parquet_files.Footer, other: parquet_files.Footer, columns: _Columns
) -> None:
    for name in [*columns.read, *([columns.label] if columns.label else [])]:
        index = other.schema.get_field_index(name)
        kind = other.schema.field(index).type if index >= 0 else "not there"
        expected = first.schema.field(name).type
        if kind != expected or _class_names(first, name) != _class_names(other, name):
            raise SourceError(
                f"{other.file.path}: column {name!r} is {kind}; in {first.file.path.name} it is "
                f"{expected}, or has other classes; expected the same columns in all files"
            )


def _labels(
    footers: list[parquet_files.Footer], columns: _Columns, classes: Sequence[str] | None
) -> tables.Labels:
    if columns.label is None:
        return None, []
    column = tables.Column()
    for footer in footers:
        values = footer.file.values(columns.label)
        column.extend(tuple(v) if isinstance(v, list) else v for v in values)
    ends = list(itertools.accumulate(footer.file.rows for footer in footers))

    def place(position: int | None) -> str:
        if position is None:
            return f"{footers[0].file.path}: column {columns.label!r}"
        i = bisect.bisect_right(ends, position)
        file = footers[i].file
        return f"{file.path}: row {position - ends[i] + file.rows}"

    return tables.labels(
        column, column.values, place, classes=classes,
        names=_class_names(footers[0], columns.label),
    )  # fmt: skip


def _sizes(footer: parquet_files.Footer) -> np.ndarray:
    """(rows,) bytes of each row, on the average of its row group."""
    rows = np.diff(footer.file.starts)
    return np.repeat(footer.sizes // np.maximum(rows, 1), rows)


def _keys(files: Sequence[parquet_files.ParquetFile], columns: _Columns) -> list[bytes]:
    """Paths of the images, if each has one of its own, else file name and row."""
    if columns.has_paths:
        column = f"{columns.image}.path"
        paths = [value and value["path"] for file in files for value in file.values(column)]
        if (keys := tables.keys_of(paths)) is not None:
            return keys
    return [b"%s/%08d" % (os.fsencode(f.path.stem), row) for f in files for row in range(f.rows)]


@contextlib.contextmanager
def _opened(
    reader: parquet_files.Reader, columns: _Columns, rows: Sequence[Any]
) -> Iterator[ReadRecord]:
    """Yield a function that reads a row."""

    def read(position: int) -> Record[Field]:
        file, row = (int(number) for number in rows[position])
        found, folder = reader.row(file, row), reader.files[file].path.parent
        data = _bytes(found, columns.image, folder)
        mask = None if columns.mask is None else _bytes(found, columns.mask, folder)
        try:
            values = {name: _value(found[name]) for name in columns.meta}
        except ValueError as error:  # text that is no UTF-8
            raise DecodeError(f"row {row}: {error}") from error
        return image_record(data, mask=mask, meta=tables.meta(values) if values else None)

    yield read


def _bytes(row: dict[str, Any], column: str, folder: Path) -> bytes:
    """Bytes of an image, or of the file that it has instead."""
    scalar = row[column]
    is_struct = scalar.is_valid and hasattr(scalar, "items")
    data = scalar["bytes"].as_py() if is_struct else scalar.as_py()
    if data is not None:
        return bytes(data)
    path = dict(scalar).get("path") if is_struct else None
    if path is None or not path.as_py():
        raise DecodeError(f"column {column!r} has no bytes")
    with _files.opened("/", [os.fsencode(folder / path.as_py())[1:]]) as read:
        return read(0).image.data


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except ValueError:  # nanoseconds, which Python's times do not have
        return scalar.cast("string").as_py()
