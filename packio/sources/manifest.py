"""A list of images in a text file: CSV with any delimiter, Caffe's lists, or JSON lines.

The images are files. Each row has the path of an image, perhaps a label, and further cells. If the
user asks for a further column as a named field, its cells are texts, or paths of files relative to
the root. All other columns become metadata, a JSON object. A column becomes numbers if each cell is
blank or a number as JSON writes numbers; a blank cell is null. Any other column becomes text, such
as a column with ``007``.

An empty cell is an empty text if the field is of kind ``text``, else the sample lacks the field. A
field without a kind has the kind that the first cell with text says: ``depth/1.png`` is a file.

The first line of a CSV names the columns, unless a cell of it is the path of an image. Then the
columns are called ``0``, ``1``, …; in a list of two columns the column without paths has the
labels, as in Caffe's lists. Several label columns of numbers are one float32 vector, whose classes
are the columns; names with `label_sep` between them are a vector of 1 and 0.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import functools
import json
import os
import re
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.errors import OptionError, SourceError
from packio.sample import labelling
from packio.sample.labelling import Distinct, Labels, hashable, is_number
from packio.sample.record import IMAGE, Field, Record
from packio.sources import Context, Listing, Rows, Source, _files, _folders, command
from packio.sources._rows import each_of
from packio.sources.tables import columns, field_values, lines
from packio.sources.tables.records import Roles, resolve_kinds

_OPTIONS = {
    "path_col": "column with the paths of the images",
    "label_col": "column with the labels; several, as 'a,b' or 'cls_*', give a float vector",
    "label_regex": _files.OPTIONS["label_regex"],
    "label_sep": "what separates several labels in one cell, as '|'",
    "root": "folder that the paths are relative to (default: the list's)",
    "ext": "what to append to paths that do not end as images do, as '.jpg'",
    "delimiter": "what separates the columns (default: found out)",
    "charset": "how the text of a list is encoded, as latin-1 (default: utf-8)",
    **columns.OBJECT_OPTIONS,
}
SUFFIXES = (".csv", ".tsv", ".txt", ".jsonl", ".ndjson")
_TRIED = 100  # paths whose files are looked for, to find out how a list writes them
_PATH_NAMES = (
    "path", "file_path", "filepath", "file", "file_name", "filename", "image_path", "img_path",
    "image_file", "image", "img", "image_name", "image_id", "id_code", "name", "id",
)  # fmt: skip


class Manifest(Source):
    priority = -0.5  # before flat_folder, which takes each folder of images
    options = _OPTIONS
    takes_fields = True

    def recognise(self, path: Path) -> bool:
        if _files.is_plain_folder(path):
            return _metadata(path) is not None or bool(_lists(path))
        return os.fspath(path).lower().endswith(SUFFIXES) and os.path.isfile(path)

    def listing(self, source: Any, context: Context) -> Listing:
        path = _metadata(Path(source)) or Path(source)
        if _files.is_plain_folder(path) and (lists := _lists(path)):
            raise SourceError(
                f"{path}/: {', '.join(lists)} says something of its images; to pack what it says: "
                f"{command(f'{path}/{lists[0]}', path.name)}; for the images alone, say --source "
                "flat_folder or image_folder"
            )
        table = lines.table(path, context.option("delimiter"), context.option("charset"))
        content = _Content(table, context)
        folder = os.fspath(context.option("root", path.parent))
        paths, remarks = content.resolve_files(folder, context.option("ext"))
        root, keys = columns.relative(paths, folder)
        found = content.labels(context.classes, context.option("label_sep"))
        try:
            sizes = _files.sizes(root, keys)
        except OSError as error:
            raise SourceError(
                f"{root}: {error.strerror}; expected the folder that the paths are relative to"
            ) from error
        result = Listing(self.name, root, keys, sizes, warnings=remarks)
        if None in (context.option("path_col"), context.option("label_col")):
            left = sorted(set(table.names) - content.used)
            result.warnings.append(columns.choice(
                path.name, "path", content.path_col, content.label_cols, found, context.fields, left
            ))  # fmt: skip
        if root not in (folder, os.path.abspath(folder)):
            result.warnings.append(f"paths lead out of {folder}/: keys are relative to {root}/")
        content.refuse_repeated(keys)
        if max(sizes) < 0:
            first = os.path.join(root, os.fsdecode(keys[0]))
            raise SourceError(
                f"{path}: none of its {len(keys):,} images exists; the first would be "
                f"{ascii(first)[1:-1]}; say --root, --ext or --charset"
            )
        if os.path.isdir(source):
            _check_folder(path, result, context, has_labels=found.values is not None)
        found = content.number_labels(found)
        return content.attach_columns(result, folder).with_labels(found)


SOURCE = Manifest()


def _metadata(folder: Path) -> Path | None:
    """The list in a folder of images, as of Hugging Face's: metadata.csv or .jsonl, file_name."""
    for file in (folder / "metadata.csv", folder / "metadata.jsonl"):
        with contextlib.suppress(OSError), open(file, "rb") as opened:
            if re.search(rb'(^|[\s",{])file_name($|[\s",])', opened.readline(1 << 20)):
                return file
    return None


def _lists(folder: Path) -> list[str]:
    """Lists in a folder whose first row names an image in it, as Roboflow's _classes.csv."""
    found = []
    with contextlib.suppress(OSError):
        for name in _files.names_in(folder, ".csv", ".tsv"):
            with open(folder / name, "rb") as file:
                row = os.fsdecode(b"".join(file.read(1 << 14).splitlines()[1:2]))
            cells = (cell.strip(" \"'") for cell in re.split(r"[,;\t]", row))
            if any(_files.is_image(c) and os.path.isfile(folder / c) for c in cells):
                found.append(name)
    return found


def _check_folder(file: Path, result: Listing, context: Context, *, has_labels: bool) -> None:
    tops = sorted({os.fsdecode(key.split(b"/")[0]) for key in result.keys if b"/" in key})
    if len(tops) > 1 and _folders.splits_among(tops):
        each = "; ".join(command(file, top, "--include", f"{top}/*") for top in tops)
        raise SourceError(f"{file}: images of several splits; pack each by itself: {each}")
    if len(tops) > 1 and not has_labels:
        result.warnings.append(
            f"took the list {file.name}, without labels; for folders as classes, say --source "
            "image_folder"
        )
    folders, named = {os.path.dirname(key) for key in result.keys}, {*result.keys}
    nowhere = Listing(result.kind, file.parent)
    for key, _ in _files.images(file.parent, "", nowhere, context):
        if os.path.dirname(key) in folders and key not in named:
            result.unlisted.append((key, f"not in {file.name}"))


class _RowReader(NamedTuple):
    table: lines.TextTable
    numbers: frozenset[str]  # columns that have nothing but numbers
    path_column: str
    roles: Roles
    root: str  # folder of the keys
    files: frozenset[str]  # columns of paths with back-slashes

    def record(self, descriptor: int, rows: Rows, position: int) -> Record[Field]:
        start, end = rows.columns["span"][position].tolist()
        cells = self.table.cells(os.pread(descriptor, end - start, start))
        for name in self.numbers:
            cells[name] = json.loads(cells[name]) if cells[name] else None
        for name in self.files:
            cells[name] = _with_slashes(cells.get(name))
        key = os.fsdecode(rows.columns["key"][position])
        return self.roles.record(cells | {self.path_column: os.path.join(self.root, key)})


class _Content:
    """Paths, labels, the place of each row of a list, and the roles of its columns."""

    def __init__(self, table: lines.TextTable, context: Context) -> None:
        self._table, self._where, self._context = table, table.file.path, context
        self._paths: list[str] = []
        self._spans, self._lines = array("q"), array("q")
        self._values, self._vector = Distinct(), array("f")
        self.path_col = self._path_column(context.option("path_col"))
        own = {self.path_col, *(column for column, _ in context.fields.values())}
        others = [name for name in table.names if name not in own]
        self.label_cols, self._is_vector = self._label_columns(context.option("label_col"), others)
        self.used = own | {*self.label_cols}
        self._numbers = {*table.names} - self.used if table.delimiter else set[str]()
        self._present = {*table.names}
        self._cells: dict[str, list[Any]] = {
            name: [] for name, (_, kind) in context.fields.items()
            if kind != "text"  # text is read again when its sample is packed
        }  # fmt: skip
        self._categories = set[Any]()
        self._objects: columns.ObjectColumn | None = None
        self._has_backslashes = False
        for row in table.rows():
            self._add(row)
        if not self._paths:
            raise SourceError(f"{self._where}: names of columns, and no line below them")
        for name, (column, _) in context.fields.items():
            if column not in self._present:
                raise OptionError(
                    f"{self._where}: field {name!r}: no column {column!r}; there are "
                    f"{_any_of(sorted(self._present))}"
                )

    def _path_column(self, asked: str | None) -> str:
        names = self._table.names
        found = asked
        if asked is None:
            found = self._table.image or columns.guess(names, _PATH_NAMES)
        if found in names:
            return str(found)
        what = "which column has the paths" if asked is None else f"has no column {asked!r}"
        raise OptionError(f"{self._where}: {what}; expected path_col to be {_any_of(names)}")

    def _label_columns(self, asked: str | None, others: list[str]) -> tuple[list[str], bool]:
        if asked is None:
            guess = columns.guess(others, columns.LABEL_NAMES)
            if self._table.image and len(others) == 1:
                guess = others[0]
            return [guess] if guess is not None else [], False
        if asked in others or not asked:
            return [asked] if asked else [], False
        found: list[str] = []
        for part in map(str.strip, asked.split(",")):
            matching = fnmatch.filter(others, part)
            if not matching:
                raise OptionError(
                    f"{self._where}: has no column {part!r}; expected label_col to be "
                    f"{_any_of(others)}, several of them, or ''"
                )
            found += [name for name in matching if name not in found]
        return found, True

    def _add(self, row: lines.TextRow) -> None:
        cells, where = row.cells, f"{self._where}:{row.line}"
        path = cells.get(self.path_col)
        if not isinstance(path, str) or not path or "\0" in path:
            raise SourceError(
                f"{where}: {path!a} in column {self.path_col!r}; expected the path of an image"
            )
        self._paths.append(path)
        self._lines.append(row.line)
        self._spans.extend((row.start, row.end))
        for name, found in self._cells.items():
            found.append(cells.get(self._context.fields[name][0]))
        if self._is_vector:
            self._vector.extend([_label_number(cells.get(n), where) for n in self.label_cols])
        elif self.label_cols:
            self._values.extend([hashable(cells.get(self.label_cols[0]))])
        if self._table.delimiter:
            self._numbers -= {n for n in self._numbers if cells[n] and not is_number(cells[n])}
            return
        self._present |= cells.keys()
        if self._objects is None:
            left = {name: cell for name, cell in cells.items() if name not in self.used}
            self._objects = columns.find_objects(left, self._context.option("box_format"))
        if self._objects is not None:
            self._categories |= {*columns.categories(cells.get(self._objects.name))}

    def labels(self, classes: Sequence[str] | None, separator: str | None) -> Labels:
        if not self.label_cols:
            return Labels()
        if not self._is_vector:
            values = self._values.values
            if separator:
                values = [_separated(value, separator, classes or ()) for value in values]
            elif self._table.delimiter:
                values = labelling.parse_texts(self._values, self._place, classes)
            return labelling.labels(self._values, values, self._place, classes=classes)
        known = list(classes if classes is not None else self.label_cols)
        if set(known) != set(self.label_cols):
            raise SourceError(
                f"{self._where}: label columns {_any_of(self.label_cols)}; --classes-from says "
                f"{_any_of(known)}"
            )
        order = [self.label_cols.index(name) for name in known]
        vectors = np.array(self._vector, np.float32).reshape(len(self._paths), -1)[:, order]
        blank = np.isnan(vectors).any(axis=1)
        if blank.all():
            return Labels(remark=f"{self._where}: no sample has a label: packed without labels")
        missing = {i: f"{self._place(i)}: no number in some columns of labels"
                   for i in np.flatnonzero(blank).tolist()}  # fmt: skip
        return Labels(vectors[~blank], known, missing)

    def number_labels(self, found: Labels) -> Labels:
        if self._objects is not None:
            self._objects, found = columns.number_labels(
                self._objects, self._categories, None, self._context.classes, found, self._where
            )
        return found

    def resolve_files(self, folder: str, ending: str | None) -> tuple[list[str], list[str]]:
        """The paths, changed so that some of the first are files, and a line that says how."""
        paths = _with_endings(self._paths, ending)
        tried = [(paths, "")]
        if any("\\" in path for path in paths):
            slashes = [*map(_with_slashes, paths)]
            tried.append((slashes, f"{self._where}: back-slashes in paths are taken as /; "))
        if ending is None and not any(path.lower().endswith(lines.IMAGES) for path in paths):
            tried += [
                ([path + end for path in known], f"{remark}{self._where}: took --ext {end}")
                for known, remark in tried for end in _files.EXTENSIONS
            ]  # fmt: skip
        for known, remark in tried:
            if any(os.path.exists(os.path.join(folder, path)) for path in known[:_TRIED]):
                self._has_backslashes = "back-slashes" in remark
                return known, [remark.removesuffix("; ")] if remark else []
        return paths, []

    def refuse_repeated(self, keys: list[bytes]) -> None:
        if len(set(keys)) == len(keys):
            return
        first: dict[bytes, int] = {}
        pairs = [(first[key], i) for i, key in enumerate(keys) if first.setdefault(key, i) != i]
        different = [(a, b) for a, b in pairs if self._label(a) != self._label(b)]
        a, b = (different or pairs)[0]
        differ = f" with different labels ({self._label(a)}, {self._label(b)})" if different else ""
        raise SourceError(
            f"{self._place(b)}: {os.fsdecode(keys[b])!a} again{differ}, as in {self._place(a)}; "
            f"{len(pairs)} lines repeat an image; expected each once, with several labels in a "
            "cell (--label-sep), or several boxes in a COCO file or as objects in JSON lines"
        )

    def _label(self, position: int) -> Any:
        if self._is_vector:
            width = len(self.label_cols)
            return self._vector[position * width : (position + 1) * width].tolist()
        return self._values.values[self._values.codes[position]] if self._values.codes else None

    def _place(self, position: int | None) -> str:
        return self._where if position is None else f"{self._where}:{self._lines[position]}"

    def attach_columns(self, result: Listing, folder: str) -> Listing:
        """The listing, whose records have fields and metadata, if there are further columns."""
        asked, table = self._context.fields, self._table
        has_meta = bool(self._present - self.used)
        if not (has_meta or asked):
            return result
        fields, odd = resolve_kinds(asked, self._cells), frozenset[str]()
        if self._has_backslashes:
            odd = frozenset(column for column, kind in fields.values() if kind != "text")
            for cells in self._cells.values():
                cells[:] = map(_with_slashes, cells)
        every = {IMAGE: (self.path_col, "image"), **fields}
        roles = Roles(
            every, frozenset(self.label_cols), has_meta, os.path.abspath(folder), self._objects
        )
        root, numbers = os.path.abspath(os.fspath(result.root or "")), frozenset(self._numbers)
        reader = _RowReader(table, numbers, self.path_col, roles, root, odd)
        taken = (sorted(self.used), sorted(numbers), sorted(fields.items()), self._objects)
        spans = np.array(self._spans, np.int64).reshape(-1, 2)
        rows = Rows({"key": result.keys, "span": spans}, f"{table.file.digest()}{taken}")
        files = None
        if fields:
            files = field_values.files_of({IMAGE: result.keys, **self._cells}, every, folder)
        opened = functools.partial(each_of, table.file, reader.record)
        return dataclasses.replace(result, files=files, rows=rows, open=opened)


def _label_number(cell: Any, where: str) -> float:
    found = labelling.number(hashable(cell))
    if found is None:
        raise SourceError(f"{where}: {cell!a} as label; expected a number")
    labelling.check_fits(found, f"{where}: the label {cell!a}")
    return float(found)


def _any_of(names: Sequence[str]) -> str:
    return ", ".join(map(ascii, names[:20])) + (", …" if len(names) > 20 else "")


def _with_slashes(path: Any) -> Any:
    return path.replace("\\", "/") if isinstance(path, str) else path


def _with_endings(paths: list[str], ending: str | None) -> list[str]:
    if not ending:
        return paths
    ending = f".{ending.removeprefix('.')}"
    endings = (*lines.IMAGES, ending.lower())
    return [path if path.lower().endswith(endings) else path + ending for path in paths]


def _separated(value: Any, separator: str, classes: Sequence[str]) -> Any:
    if not isinstance(value, str) or (value.strip() and labelling.is_missing(value, classes)):
        return value
    if value.strip()[:1] == "[" and value.strip()[-1:] == "]":
        return value  # a list as text, which `labels` reads
    return tuple(filter(None, map(str.strip, value.split(separator))))
