"""Parquet files with images in them, as Hugging Face's hub has them, and Arrow files like them.

An image column is a struct with ``bytes`` and ``path``, or a binary column. If ``bytes`` is null,
the path names a file, absolute or relative to the folder of the Parquet file; at a URL it names
none. `datasets` keeps the names of a `ClassLabel` in the schema's metadata, under ``huggingface``.
A second image column called mask, annotation, segmentation, label or the like is the mask. Further
columns of images or of bytes are named fields; other columns are metadata, unless the user asks for
a field. A null is a missing field; an empty text is a text. Nothing is decoded.

A folder that ``Dataset.save_to_disk`` of Hugging Face's wrote has Arrow files, which its
``state.json`` names. packio reads them as Parquet files, without the package ``datasets``.

Source: ``datasets`` 4.0, ``datasets.features`` (``Image``, ``ClassLabel``, ``Features``) and
``datasets.arrow_dataset`` (``Dataset.save_to_disk``).
"""

from __future__ import annotations

import bisect
import contextlib
import fnmatch
import functools
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.errors import DecodeError, OptionError, ReadError, SourceError
from packio.packs import recognising
from packio.sample.labelling import Distinct, Labels, labels
from packio.sample.record import IMAGE, MASK, Field, Record
from packio.sources import Context, FieldOrigins, Listing, Rows, Source, _files
from packio.sources._rows import each
from packio.sources.tables import columns as tables
from packio.sources.tables import field_values, parquet_files
from packio.sources.tables.records import Roles, resolve_kinds
from packio.storage import stores, urls
from packio.storage.urls import Url

_OPTIONS = {
    "image_col": "column with the images",
    "label_col": "column with the labels; '' packs without",
    "files": "which files of the folder, as 'train-*'",
    **tables.OBJECT_OPTIONS,
}
_PARQUET = ".parquet"
_SUFFIXES = (_PARQUET, ".arrow")
_SPLITS = r"(train|training|val|valid|validation|dev|test|testing)(?![a-z])"
_split = re.compile(_SPLITS, re.IGNORECASE).match


class Parquet(Source):
    package = "pyarrow"
    options = _OPTIONS
    takes_fields = True

    def recognise(self, path: Path) -> bool:
        if (url := urls.parse(path)) is not None:
            return url.suffix.lower() == _PARQUET or bool(not url.suffix and _at_url(url))
        if os.path.isfile(path):
            return path.suffix.lower() in _SUFFIXES
        has_splits = os.path.isfile(path / "dataset_dict.json")  # of Hugging Face's DatasetDict
        return has_splits or bool(_in_folder(path) or _in_folder(path / "data"))

    def listing(self, source: Any, context: Context) -> Listing:
        path, asked = urls.place(source), (context.option("image_col"), context.option("label_col"))
        footers = [parquet_files.footer(p) for p in _chosen(path, context.option("files"))]
        columns = _columns(footers[0], *asked, context.fields, context.option("box_format"))
        for footer in footers[1:]:
            _check_alike(footers[0], footer, columns)
        columns = columns._replace(fields=resolve_kinds(columns.fields, _texts(footers, columns)))
        places = [footer.file for footer in footers]
        counts = [place.rows for place in places]
        if not sum(counts):
            raise SourceError(f"{path}: no rows")
        found = _labels(footers, columns, context.classes)
        if (column := columns.objects) is not None:
            column, found = tables.number_labels(
                column,
                (c for cell in _cells(footers, column.name) for c in tables.categories(cell)),
                _class_names(footers[0], column.name), context.classes, found, str(path),
            )  # fmt: skip
            columns = columns._replace(objects=column)
        sizes = [np.repeat(place.row_bytes, np.diff(place.starts)) for place in places]
        reader = parquet_files.ParquetRows(places, columns.read)
        digest = hashlib.sha256(b"".join(f.digest for f in footers) + repr(columns).encode())
        parts = [np.stack([np.full(n, i), np.arange(n)], axis=1) for i, n in enumerate(counts)]
        folder = None if urls.parse(path) is not None else os.path.dirname(places[0].path)
        files = [(os.fsencode(os.path.basename(place.path)),) for place in places]
        each_file = [file for file, n in zip(files, counts, strict=True) for _ in range(n)]
        further = {name: origin for name, origin in columns.fields.items() if name != IMAGE}
        chosen = tables.choice(
            path.name, "image", columns.fields[IMAGE][0], [columns.label] if columns.label else [],
            found, further, columns.meta,
        )  # fmt: skip
        return Listing(
            self.name, folder, _keys(footers, columns), np.concatenate(sizes).tolist(), None, [],
            warnings=([chosen] if None in asked else []) + columns.left_out,
            files=None if folder is None else each_file,
            rows=Rows({"place": np.concatenate(parts)}, digest.hexdigest()),
            open=functools.partial(each, _read, reader, columns),
        ).with_labels(found)  # fmt: skip


SOURCE = Parquet()


def _in_folder(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        state = json.loads((folder / "state.json").read_bytes())  # of Hugging Face's save_to_disk
        return [folder / os.path.basename(entry["filename"]) for entry in state["_data_files"]]
    files = (folder / name for name in _files.names_in(folder, *_SUFFIXES))
    return [file for file in files if os.path.isfile(file)]


def _at_url(url: Url) -> list[Path]:
    """The files of a source at a URL: one, several by braces, or those in a folder, sorted."""
    names = recognising.expand_braces(os.fspath(url))
    if url.suffix.lower() == _PARQUET or names != [os.fspath(url)]:
        return [Url(name) for name in names]
    with urls.errors_as(ReadError, url):
        for folder in (url, url / "data"):
            found = [folder / name for name in sorted(stores.open_url(folder).list(deep=False))]
            if chosen := [path for path in found if path.suffix.lower() == _PARQUET]:
                return list(chosen)
    return []


def _found(path: Path) -> list[Path]:
    if (url := urls.parse(path)) is not None:
        return _at_url(url)
    if os.path.isfile(path):
        return [path]
    found = _in_folder(path)
    for name in _files.names_in(path):
        found += _in_folder(path / name) if os.path.isdir(path / name) else []
    return found


def _chosen(path: Path, pattern: str | None) -> list[Path]:
    found = _found(path)
    chosen = [p for p in found if pattern is None or fnmatch.fnmatchcase(p.name, pattern)]
    if not found:
        raise SourceError(
            f"{path}: no file that ends in {' or '.join(_SUFFIXES)}, in it or in its folders"
        )
    if not chosen:
        names = ", ".join(p.name for p in found[:5])
        raise OptionError(f"files={pattern!r}: none of {len(found)} files in {path}: {names}")
    folders = sorted({str(p.parent) for p in chosen})
    if len(folders) > 1:
        raise SourceError(
            f"{path}: Parquet or Arrow files in {len(folders)} folders: {', '.join(folders[:5])}; "
            "pack each folder by itself, or say --files"
        )
    splits = sorted({match[0] for p in chosen if (match := _split(p.name))})
    if pattern is None and len(splits) > 1:
        shown = ", ".join(f"files={split + '*'!r}" for split in splits)
        raise SourceError(f"{path}: files of several splits; pack each by itself, with {shown}")
    return chosen


class _ColumnRoles(NamedTuple):
    fields: FieldOrigins  # with image, and mask if there is one
    label: str | None
    meta: tuple[str, ...]
    has_paths: bool  # the image is a struct with the member path
    left_out: list[str]  # warnings
    objects: tables.ObjectColumn | None

    @property
    def read(self) -> list[str]:
        return list(dict.fromkeys([*(column for column, _ in self.fields.values()), *self.meta]))


def _columns(
    footer: parquet_files.Footer, image_col: str | None, label_col: str | None,
    asked: FieldOrigins, box_format: str | None,
) -> _ColumnRoles:  # fmt: skip
    types = {name: footer.schema.field(name).type for name in footer.schema.names}
    for name, (column, _) in asked.items():
        if column not in types:
            raise OptionError(
                f"{footer.file.path}: field {name!r}: no column {column!r}; there are {list(types)}"
            )
    own = {column for column, _ in asked.values()}
    structs = [name for name, kind in types.items() if "bytes" in _members(kind)]
    images = structs + [name for name, kind in types.items() if _is_binary(kind)]
    free = [name for name in images if name not in own]
    image = image_col or tables.guess(free, tables.IMAGE_NAMES) or next(iter(free), "")
    if image not in images:
        what = f"image_col={image!r}" if image else "no column of images"
        shown = ", ".join(f"{name}: {kind}" for name, kind in types.items())
        raise OptionError(
            f"{footer.file.path}: {what}; expected a struct with bytes, or binary; found {shown}"
        )
    others = [name for name in types if name not in images and name not in own]
    masks = [name for name in free if name != image]
    mask = tables.guess(masks, tables.MASK_NAMES)
    mask = mask or tables.guess([n for n in masks if n in structs], tables.LABEL_NAMES)
    boxes = tables.find_objects({name: types[name] for name in others}, box_format)
    unboxed = [name for name in others if not tables.has_boxes(types[name])]
    label = _label_column(footer, label_col, unboxed)
    fields: dict[str, tuple[str, str | None]] = {IMAGE: (image, "image")}
    if mask and MASK not in asked:
        fields[MASK] = (mask, "mask")
    further = {
        field_values.field_name(n): (n, _kind(footer, n)) for n in free if n not in (image, mask)
    }
    if len({field_values.field_name(n) for n in free}) < len(set(free)):
        raise OptionError(
            f"{footer.file.path}: columns {', '.join(map(repr, free))}: several would be one "
            "field; name them by fields="
        )
    left = {name for name in others if _holds_bytes(types[name])}
    meta = [name for name in others if name not in (label, *left)]
    return _ColumnRoles(
        {**fields, **further, **asked}, label, tuple(meta), "path" in _members(types[image]),
        [f"column {name!r} holds bytes in a list or a struct: left out" for name in sorted(left)],
        boxes,
    )  # fmt: skip


def _cells(footers: list[parquet_files.Footer], column: str) -> Iterator[Any]:
    return itertools.chain.from_iterable(footer.file.values(column) for footer in footers)


def _texts(footers: list[parquet_files.Footer], columns: _ColumnRoles) -> dict[str, Iterator[Any]]:
    schema = footers[0].schema
    return {
        name: _cells(footers, column)
        for name, (column, _) in columns.fields.items()
        if "string" in str(schema.field(column).type) and not schema.field(column).type.num_fields
    }


def _label_column(
    footer: parquet_files.Footer, asked: str | None, others: Sequence[str]
) -> str | None:
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
    """Names of a ClassLabel, or of a list of them, or of those in a column of objects."""
    return tables.category_names(footer.features.get(column))


def _check_alike(
    first: parquet_files.Footer, other: parquet_files.Footer, columns: _ColumnRoles
) -> None:
    for name in filter(None, [*columns.read, columns.label]):
        index = other.schema.get_field_index(name)
        kind = other.schema.field(index).type if index >= 0 else "not there"
        expected = first.schema.field(name).type
        named = [_class_names(footer, name) for footer in (first, other)]
        if kind == expected and named[0] != named[1]:
            shown = [f"{len(n)} classes ({', '.join(n[:5])})" if n else "no classes" for n in named]
            raise SourceError(
                f"{other.file.path}: column {name!r} names {shown[1]}; in "
                f"{Path(first.file.path).name} it names {shown[0]}; expected the same in all "
                "files: pack those apart that differ, with --files, and packio merge the packs"
            )
        if kind != expected:
            raise SourceError(
                f"{other.file.path}: column {name!r} is {kind}; in {Path(first.file.path).name} it "
                f"is {expected}; expected the same columns in all files"
            )


def _labels(
    footers: list[parquet_files.Footer], columns: _ColumnRoles, classes: Sequence[str] | None
) -> Labels:
    if columns.label is None:
        return Labels()
    column = Distinct()
    values = _cells(footers, columns.label)
    column.extend(tuple(v) if isinstance(v, list) else v for v in values)
    ends = list(itertools.accumulate(footer.file.rows for footer in footers))

    def place(position: int | None) -> str:
        if position is None:
            return f"{footers[0].file.path}: column {columns.label!r}"
        i = bisect.bisect_right(ends, position)
        file = footers[i].file
        return f"{file.path}: row {position - ends[i] + file.rows}"

    return labels(
        column, column.values, place, classes=classes,
        names=_class_names(footers[0], columns.label),
    )  # fmt: skip


def _keys(footers: list[parquet_files.Footer], columns: _ColumnRoles) -> list[bytes]:
    """Paths of the images if all differ, else file names and rows."""
    if columns.has_paths:
        column = f"{columns.fields[IMAGE][0]}.path"
        paths = [value and value["path"] for value in _cells(footers, column)]
        if (keys := tables.keys_of(paths)) is not None:
            return keys
    return [
        b"%s/%08d" % (os.fsencode(Path(footer.file.path).stem), row)
        for footer in footers for row in range(footer.file.rows)
    ]  # fmt: skip


def _read(
    reader: parquet_files.ParquetRows, columns: _ColumnRoles, rows: Rows, position: int
) -> Record[Field]:
    file, row = rows.columns["place"][position].tolist()
    found = reader.row(file, row)
    try:
        cells = {name: _cell(scalar) for name, scalar in found.items()}
    except ValueError as error:  # text that is no UTF-8
        raise DecodeError(f"row {row}: {error}") from error
    folder = os.path.dirname(reader.files[file].path)
    roles = Roles(columns.fields, frozenset(), bool(columns.meta), folder, columns.objects)
    return roles.record(cells)


def _cell(scalar: Any) -> Any:
    """A cell as a Python value; an image of which both bytes and path are null is None."""
    try:
        value = scalar.as_py()
    except ValueError:  # nanoseconds, which Python's times do not have
        value = scalar.cast("string").as_py()
    if isinstance(value, dict) and isinstance(value.get("bytes", ""), (bytes, type(None))):
        data, path = value["bytes"], value.get("path")
        return {"bytes": data, "path": path} if data is not None or path else None
    return value
