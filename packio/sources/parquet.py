"""Parquet files with images in them, as Hugging Face's hub has them.

An image column is a struct with ``bytes`` and ``path``, or a binary column. If ``bytes`` is null,
the path is that of a file, absolute or relative to the folder of the Parquet file. Names of a
`ClassLabel` are those that `datasets` keeps in the schema's metadata, under ``huggingface``. A
second image column called mask, annotation, segmentation, label or the like is the mask. Further
columns of images or of bytes are named fields; other columns are metadata, unless the user asks for
a field: text, an array from a list of numbers, or a file. Nothing is decoded.

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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.errors import DecodeError, OptionError, SourceError
from packio.sample.record import Field, Record
from packio.sources import Context, Listing, ReadRecord, Source, _values
from packio.sources._rows import Columns
from packio.sources.tables import parquet_files, tables

_OPTIONS = {
    "image_col": "column with the images",
    "label_col": "column with the labels; '' packs without",
    "files": "which files of the folder, as 'train-*'",
}
_SUFFIX = ".parquet"
_SPLITS = r"(train|training|val|valid|validation|dev|test|testing)(?![a-z])"
_split = re.compile(_SPLITS, re.IGNORECASE).match


class Parquet(Source):
    """Parquet files with images in them."""

    package = "pyarrow"
    options = _OPTIONS
    takes_fields = True

    def recognise(self, path: Path) -> bool:
        """Tell whether the path is a ``.parquet``, or a folder of some, also in ``data``."""
        if os.path.isfile(path):
            return path.suffix.lower() == _SUFFIX
        return bool(_in_folder(path) or _in_folder(path / "data"))

    def listing(self, source: Any, context: Context) -> Listing:
        """List the rows of Parquet files, in the order of the files' names.

        Keys are the images' paths if each image has a path of its own; else file name and row. The
        size of a sample is the average of its row group.

        Raises:
            MissingPackageError: pyarrow is not installed.
            OptionError: a column, or a file, is not there.
            SourceError: a file is damaged, there are several splits or no rows, or a column makes
                no sense.
        """
        path, asked = Path(source), (context.option("image_col"), context.option("label_col"))
        footers = [parquet_files.footer(p) for p in _chosen(path, context.option("files"))]
        columns = _columns(footers[0], *asked, context.fields)
        for footer in footers[1:]:
            _check_alike(footers[0], footer, columns)
        places = [footer.file for footer in footers]
        counts = [place.rows for place in places]
        if not sum(counts):
            raise SourceError(f"{path}: no rows")
        labels, names = _labels(footers, columns, context.classes)
        sizes = [_sizes(footer) for footer in footers]
        means = [s.mean() if len(s) else 0 for s in sizes]
        reader = parquet_files.Reader(places, columns.read, means)
        digest = hashlib.sha256(b"".join(f.digest for f in footers) + repr(columns).encode())
        parts = [np.stack([np.full(n, i), np.arange(n)], axis=1) for i, n in enumerate(counts)]
        folder = places[0].path.parent
        files = [(os.fsencode(place.path.name),) for place in places]
        told = [columns.choice(path, (labels, names))] if None in asked else []
        return Listing(
            self.name, folder, _keys(places, columns), np.concatenate(sizes).tolist(), labels,
            names, warnings=told + columns.left_out,
            files=[file for file, n in zip(files, counts, strict=True) for _ in range(n)],
            rows=Columns({"place": np.concatenate(parts)}, digest.hexdigest()),
            open=functools.partial(_opened, reader, columns),
        )  # fmt: skip


SOURCE = Parquet()


def _in_folder(folder: Path) -> list[Path]:
    """The Parquet files in a folder, sorted; none if the folder cannot be read."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        names = [e.name for e in entries if e.name.lower().endswith(_SUFFIX) and e.is_file()]
        return [folder / name for name in sorted(names)]
    return []


def _found(path: Path) -> list[Path]:
    """The Parquet files of a source: a file, or those in a folder and in the folders below it."""
    if os.path.isfile(path):
        return [path]
    found = _in_folder(path)
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        for folder in sorted(entry.name for entry in entries if entry.is_dir()):
            found += _in_folder(path / folder)
    return found


def _chosen(path: Path, pattern: str | None) -> list[Path]:
    found = _found(path)
    chosen = [p for p in found if pattern is None or fnmatch.fnmatchcase(p.name, pattern)]
    if not found:
        raise SourceError(f"{path}: no file that ends in {_SUFFIX}, in it or in its folder data")
    if not chosen:
        names = ", ".join(p.name for p in found[:5])
        raise OptionError(f"files={pattern!r}: none of {len(found)} files in {path}: {names}")
    folders = sorted({str(p.parent) for p in chosen})
    if len(folders) > 1:
        raise SourceError(
            f"{path}: Parquet files in {len(folders)} folders: {', '.join(folders[:5])}; pack each "
            "folder by itself, or say --files"
        )
    splits = sorted({match[0] for p in chosen if (match := _split(p.name))})
    if pattern is None and len(splits) > 1:
        shown = ", ".join(f"files={split + '*'!r}" for split in splits)
        raise SourceError(f"{path}: files of several splits; pack each by itself, with {shown}")
    return chosen


class _Columns(NamedTuple):
    """What each column is."""

    image: str
    mask: str | None
    label: str | None
    meta: tuple[str, ...]
    fields: Mapping[str, tuple[str, str | None]]  # name → (column, kind)
    has_paths: bool  # the image is a struct with the member path
    left_out: list[str]  # warnings

    @property
    def read(self) -> list[str]:
        """The columns that samples are made of, each once."""
        masks = [self.mask] if self.mask else []
        columns = [column for column, _ in self.fields.values()]
        return list(dict.fromkeys([self.image, *masks, *columns, *self.meta]))

    def choice(self, path: Path, labels: tables.Labels) -> str:
        """Say which columns were taken."""
        label = tables.told([self.label] if self.label else [], labels)
        more = f", {self.mask!r} as mask" if self.mask else ""
        more += "".join(f", {column!r} as {name}" for name, (column, _) in self.fields.items())
        more += f", {', '.join(map(repr, self.meta))} as meta" if self.meta else ""
        return (
            f"{path.name}: took column {self.image!r} as image, {label}{more}; "
            "--image-col and --label-col say otherwise"
        )


def _columns(
    footer: parquet_files.Footer,
    image_col: str | None,
    label_col: str | None,
    wanted: Mapping[str, tuple[str, str | None]],
) -> _Columns:
    """Find out what each column is.

    Raises:
        OptionError: there is no column of a name that the user gave, or none with images.
    """
    types = {name: footer.schema.field(name).type for name in footer.schema.names}
    for name, (column, _) in wanted.items():
        if column not in types:
            raise OptionError(
                f"{footer.file.path}: field {name!r}: no column {column!r}; there are {list(types)}"
            )
    asked = {column for column, _ in wanted.values()}
    structs = [name for name, kind in types.items() if "bytes" in _members(kind)]
    images = structs + [name for name, kind in types.items() if _is_binary(kind)]
    free = [name for name in images if name not in asked]
    image = image_col or tables.guess(free, tables.IMAGE_NAMES) or next(iter(free), "")
    if image not in images:
        what = f"image_col={image!r}" if image else "no column of images"
        shown = ", ".join(f"{name}: {kind}" for name, kind in types.items())
        raise OptionError(
            f"{footer.file.path}: {what}; expected a struct with bytes, or binary; found {shown}"
        )
    others = [name for name in types if name not in images and name not in asked]
    masks = [name for name in free if name != image]
    mask = tables.guess(masks, tables.MASK_NAMES)
    mask = mask or tables.guess([n for n in masks if n in structs], tables.LABEL_NAMES)
    label = _label_column(footer, label_col, others)
    further = {_values.field_name(n): (n, _kind(footer, n)) for n in free if n not in (image, mask)}
    if len({_values.field_name(n) for n in free}) < len(set(free)):
        raise OptionError(
            f"{footer.file.path}: columns {', '.join(map(repr, free))}: several would be one "
            "field; name them by fields="
        )
    left = {name for name in others if _holds_bytes(types[name])}
    meta = [name for name in others if name not in (label, *left)]
    return _Columns(
        image, None if "mask" in wanted else mask, label, tuple(meta), {**further, **wanted},
        "path" in _members(types[image]),
        [f"column {name!r} holds bytes in a list or a struct: left out" for name in sorted(left)],
    )  # fmt: skip


def _label_column(
    footer: parquet_files.Footer, asked: str | None, others: Sequence[str]
) -> str | None:
    """The column with the labels: the one asked for, else one with class names or a usual name."""
    if asked and asked not in others:
        raise OptionError(f"{footer.file.path}: label_col={asked!r}; there are {list(others)}")
    if asked is not None:
        return asked or None
    named = [name for name in others if _class_names(footer, name)]
    label = tables.guess(named, tables.LABEL_NAMES) or next(iter(named), None)
    return label or tables.guess(others, tables.LABEL_NAMES)


def _kind(footer: parquet_files.Footer, column: str) -> str:
    """Kind of a column of bytes: structs are images, unless `datasets` says otherwise."""
    feature = footer.features.get(column)
    kind = feature.get("_type") if isinstance(feature, dict) else None
    is_struct = bool(footer.schema.field(column).type.num_fields)
    return "image" if kind == "Image" or (is_struct and kind is None) else "bytes"


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
    for name in filter(None, [*columns.read, columns.label]):
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
def _opened(reader: parquet_files.Reader, columns: _Columns, rows: Columns) -> Iterator[ReadRecord]:
    """Yield a function that reads a row."""
    places = rows.columns["place"]
    images = {"image": (columns.image, "image"), "mask": (columns.mask or "", "mask")}
    wanted = {**{n: v for n, v in images.items() if v[0]}, **columns.fields}

    def read(position: int) -> Record[Field]:
        file, row = places[position].tolist()
        found, folder = reader.row(file, row), reader.files[file].path.parent
        try:
            values = {name: _value(scalar) for name, scalar in found.items()}
        except ValueError as error:  # text that is no UTF-8
            raise DecodeError(f"row {row}: {error}") from error
        cells = {name: _stored(values[column]) for name, (column, _) in wanted.items()}
        fields = _values.fields_of(cells, wanted, folder)
        for name, (column, _) in images.items():
            if column and name not in fields:
                raise DecodeError(f"column {column!r} has no bytes")
        meta = {name: values[name] for name in columns.meta}
        return Record(b"", fields, meta=tables.meta(meta) if meta else None)

    yield read


def _stored(value: Any) -> Any:
    """A struct of an image without members other than bytes and path; None if both are null."""
    if not isinstance(value, dict):
        return value
    data, path = value.get("bytes"), value.get("path")
    return {"bytes": data, "path": path} if data is not None or path else None


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except ValueError:  # nanoseconds, which Python's times do not have
        return scalar.cast("string").as_py()
