"""Text files of a line a sample: CSV with any delimiter, JSON lines, and lists of labels.

Text is UTF-8, or in the charset that the user names, with or without a byte order mark. Blank lines
are skipped. Blanks after a delimiter belong to the cell, unless the first line has a blank after
each delimiter, as in ``path, label``.

A list of labels, for images that lie in no class folders, has a label on each line, in the order of
the images, as ImageNet's ``ILSVRC2012_validation_ground_truth.txt``; or a path and a label on each
line, with a tab or white space between them, as Caffe's ``val.txt``, in any order. A list is of the
second kind if any line begins with the path of an image. Labels are names of classes, or whole
numbers. If all labels are whole numbers, they are numbers, unless all of them are names of the
classes that the user gives.

Sources: RFC 4180 (CSV); jsonlines.org.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import itertools
import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from packio.errors import OptionError, SourceError
from packio.sample.labelling import Distinct, labels, parse_texts
from packio.sources import Context, Listing, _files
from packio.sources._rows import ListedFile

IMAGES = (*_files.EXTENSIONS, ".gif")
_JSON = (".jsonl", ".ndjson")
_DELIMITERS = (",", "\t", ";", "|", " ")
_START = 1 << 16  # bytes that tell how lines end
_HEAD_LINES = 20  # by which the delimiter is found out
LABEL_OPTIONS = {
    "labels": "text file with a label for each image in sorted order, or lines of path and label",
    "label_offset": "added to labels that are numbers: -1 makes those from 1 begin at 0",
}

# Of a name as beagle_12.jpg: beagle.
_BEGINNING = r"([^/]+?)[ ._-]*\d+\.\w+$"


class TextRow(NamedTuple):
    cells: dict[str, Any]  # name of the column → text, or a value of JSON
    line: int  # where the row begins, counted from 1
    start: int  # bytes
    end: int


@dataclasses.dataclass(frozen=True)
class TextTable:
    file: ListedFile
    charset: str
    delimiter: str  # "": each line is a JSON object
    is_padded: bool = False  # blanks after a delimiter belong to no cell
    names: tuple[str, ...] = ()  # of the columns; of JSON objects, of the first one's members
    image: str | None = None  # column of images, if the first line is no header
    line_end: str = "\n"  # or CR, as Excel for Mac writes it

    def rows(self) -> Iterator[TextRow]:
        is_header = bool(self.delimiter) and self.image is None
        for found, *place in self._records():
            if is_header:
                is_header = False
            elif not self.delimiter:
                yield TextRow(found, *place)
            elif len(found) == len(self.names):
                yield TextRow(dict(zip(self.names, found, strict=True)), *place)
            else:
                advice = "; put a cell with a delimiter in it in double quotes"
                raise SourceError(
                    f"{self.file.path}:{place[0]}: {len(found)} cells; expected "
                    f"{len(self.names)}, as in the first line"
                    f"{advice if len(found) > len(self.names) else ''}"
                )

    def _records(self) -> Iterator[tuple[Any, int, int, int]]:
        """Lists of cells, or objects; line, start and end."""
        count = end = 0  # lines and bytes that have been parsed

        def texts(file: BinaryIO) -> Iterator[str]:
            nonlocal count, end
            for data in _lines(file, self.line_end):
                text = data.decode(self.charset)
                count, end = count + 1, end + len(data)
                yield text.removeprefix("\ufeff") if count == 1 else text

        with open(self.file.path, "rb") as file:
            parsed = (
                csv.reader(texts(file), strict=True, delimiter=self.delimiter,
                           skipinitialspace=self.is_padded)
                if self.delimiter else map(_object, texts(file))
            )  # fmt: skip
            while True:
                line, start = count + 1, end
                try:
                    found = next(parsed)
                except StopIteration:
                    return
                except UnicodeDecodeError as error:
                    raise SourceError(
                        f"{self.file.path}:{line}: {error.object[error.start :][:20]!r} is not "
                        f"{self.charset}; save the file as UTF-8, or name its encoding by "
                        "--charset, as latin-1"
                    ) from error
                except (csv.Error, ValueError, RecursionError) as error:
                    reason = getattr(error, "msg", error)
                    raise SourceError(f"{self.file.path}:{line}: {reason}") from error
                if found and (not self.delimiter or any(map(str.strip, found))):
                    yield found, line, start, end

    def cells(self, data: bytes) -> dict[str, Any]:
        text = data.decode(self.charset).removeprefix("\ufeff")
        if not self.delimiter:
            found: dict[str, Any] = json.loads(text)
            return found
        row = next(csv.reader(
            [text], delimiter=self.delimiter, skipinitialspace=self.is_padded
        ))  # fmt: skip
        return dict(zip(self.names, row, strict=True))


def _lines(file: BinaryIO, end: str) -> Iterator[bytes]:
    if end == "\n":
        return iter(file)
    return iter(re.findall(rb"[^\r]*\r|[^\r]+", file.read()))


def _object(line: str) -> dict[str, Any]:
    try:
        found = {} if line.isspace() else json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", error)
        raise ValueError(f"no JSON object: {reason}; expected one a line") from error
    if not isinstance(found, dict):
        raise ValueError("no JSON object; expected one a line")  # noqa: TRY004 (as of a bad line)
    return found


def table(path: str | os.PathLike[str], delimiter: str | None, charset: str | None) -> TextTable:
    """Find out how to read a file. Without a header, columns are called ``0``, ``1``, …."""
    if delimiter is not None and len(delimiter) != 1:
        raise OptionError(f"delimiter={delimiter!r}: expected one character")
    charset, ending = _checked(charset or "utf-8"), os.path.splitext(path)[1].lower()
    try:
        with open(path, "rb") as file:
            start = file.read(_START)
            line_end = "\r" if b"\r" in start and b"\n" not in start else "\n"
            file.seek(0)
            head = list(itertools.islice(_lines(file, line_end), _HEAD_LINES))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise SourceError(
            f"{path}: {error.strerror}; expected a list of images: .csv, .tsv or .jsonl"
        ) from error
    if start[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in start[:1024]:
        raise SourceError(f"{path}: no UTF-8 text, it begins {start[:4].hex(' ')}; save it as such")
    lines = [line.decode(charset, "surrogateescape").removeprefix("\ufeff") for line in head]
    if delimiter is None:
        delimiter = "" if ending in _JSON else "\t" if ending == ".tsv" else _delimiter(lines)
    first_line = next((line for line in lines if line.strip()), "")
    cuts = first_line.count(delimiter) if delimiter else 0
    is_padded = delimiter == " " or (cuts > 0 and first_line.count(f"{delimiter} ") == cuts)
    whole = TextTable(ListedFile.stat(path), charset, delimiter, is_padded, line_end=line_end)
    first = next(whole._records(), None)  # noqa: SLF001 (of the same module)
    if first is None:
        raise SourceError(f"{path}: nothing in it; expected a line for each image")
    return _named(whole, *first[:2])


def _named(whole: TextTable, first: Any, line: int) -> TextTable:
    if not whole.delimiter:
        return dataclasses.replace(whole, names=tuple(first))
    for i, cell in enumerate(first):
        if cell.lower().endswith(IMAGES):
            names = tuple(map(str, range(len(first))))
            return dataclasses.replace(whole, names=names, image=str(i))
    names = tuple(cell.strip() or f"column_{i}" for i, cell in enumerate(first, 1))
    for name in names:
        if names.count(name) > 1:
            raise SourceError(
                f"{whole.file.path}:{line}: two columns are called {name!r}; rename one"
            )
    return dataclasses.replace(whole, names=names)


def _checked(charset: str) -> str:
    """A charset in which lines end as in ASCII."""
    try:
        if "\n".encode(charset) == b"\n":
            return charset
    except LookupError as error:
        raise OptionError(f"charset={charset!r}: unknown; expected one as latin-1") from error
    raise OptionError(f"charset={charset!r}: lines end otherwise in it; save the file as UTF-8")


def _delimiter(head: list[str]) -> str:
    """The delimiter that cuts the first lines into the same number of cells, more than one."""
    for delimiter in _DELIMITERS:
        with contextlib.suppress(csv.Error):
            parsed = csv.reader(head, delimiter=delimiter, skipinitialspace=True)
            rows = [row for row in parsed if any(row)]
            widths = {len(row) for row in rows}
            if len(widths) != 1 or widths == {1}:
                continue
            if delimiter != " " or rows[0][0].lower().endswith(IMAGES):
                return delimiter
    return ","


def label_images(found: Listing, context: Context) -> Listing:
    """Give images the labels of the list that the options name, if any."""
    if context.option("labels") is None:
        is_named = found.labels is not None or context.option("label_regex") is not None
        return found if is_named else _with_hint(found)
    file, given = Path(context.option("labels")), context.option("label_offset", 0)
    try:
        offset = int(given)
    except ValueError as error:
        raise OptionError(f"label_offset={given!r}: expected a whole number") from error
    texts = _texts(file, found)
    kept = found.take([i for i, key in enumerate(found.keys) if key in texts])
    column = Distinct()
    column.extend(os.fsdecode(texts[key]) for key in kept.keys)

    def place(position: int | None) -> str:
        return str(file) if position is None else f"{file}: {os.fsdecode(kept.keys[position])!a}"

    most = len(context.classes or ()) - 1 if context.classes else (1 << 63) - 1
    values = [
        _moved(value, offset, most, file) for value in parse_texts(column, place, context.classes)
    ]
    return kept.with_labels(labels(column, values, place, classes=context.classes))


def _with_hint(found: Listing) -> Listing:
    """Images without labels, with a warning if their names seem to begin with the class."""
    matches = [re.search(_BEGINNING, os.fsdecode(key)) for key in found.keys]
    names = [match[1] for match in matches if match]
    distinct = sorted({*names})
    if len(names) == len(found.keys) and 2 <= len(distinct) <= len(names) // 2:
        found.warnings.append(
            f"no labels; the names of the images begin with {len(distinct):,} words, as "
            f"{', '.join(map(ascii, distinct[:3]))}: if these are the classes, "
            f"--label-regex {shlex.quote(_BEGINNING)}"
        )
    return found


def _texts(file: Path, result: Listing) -> dict[bytes, bytes]:
    """Key → its label as written. Lines without an image, and the reverse, become unlisted."""
    lines, keys = _files.lines_of(file), result.keys
    known = set(keys)
    pairs = [next((p for p in _splits(line) if p[0] in known), None) for line in lines]
    if not any(pairs):
        _refuse_unfit(file, lines, keys)
        return dict(zip(keys, lines, strict=True))
    texts: dict[bytes, bytes] = {}
    for line, pair in zip(lines, pairs, strict=True):
        if pair is None:
            name = next(_splits(line), (line,))[0]
            result.unlisted.append((name, f"in {file.name}, and no image"))
        elif texts.setdefault(*pair) != pair[1]:
            raise SourceError(f"{file}: two labels for {pair[0]!a}; expected one")
    result.unlisted.extend((key, f"no label in {file.name}") for key in keys if key not in texts)
    return texts


def _refuse_unfit(file: Path, lines: list[bytes], keys: list[bytes]) -> None:
    """Refuse a list that names no image of the source and has no label for each image."""
    paths = [next(_splits(line), (b"",))[0] for line in lines]
    named = [path for path in paths if os.fsdecode(path).lower().endswith(IMAGES)]
    if named:
        raise SourceError(
            f"{file}: {len(named)} lines name images, as {named[0]!a}, and none is an image of the "
            f"source, as {keys[0]!a}; expected paths relative to the source"
        )
    several = all(len(re.split(rb"[\s,;]+", line, maxsplit=1)) == 2 for line in lines)
    if several and len(lines) > 1 and len(set(lines)) == len(lines):
        raise SourceError(
            f"{file}: {len(lines)} lines of several words, no two alike, as {lines[0]!a}: each "
            f"would be a class; expected a label a line, or paths of the source, as {keys[0]!a}"
        )
    if len(lines) != len(keys):
        raise SourceError(
            f"{file}: {len(lines)} labels for {len(keys)} images; expected a line for each "
            "image in sorted order, or lines of path and label"
        )
    as_counted = sorted(keys, key=lambda key: [int(n or -1) for n in re.split(rb"\D+", key)])
    alike = len({re.sub(rb"\d+", b"", key) for key in keys}) == 1
    if alike and as_counted != keys and len({*lines}) > 1:
        at = next(i for i, key in enumerate(keys) if key != as_counted[i])
        raise SourceError(
            f"{file}: a label a line, and names whose order as text is not that of their numbers: "
            f"line {at + 1} may be of {os.fsdecode(keys[at])!a} or of "
            f"{os.fsdecode(as_counted[at])!a}; expected lines of path and label"
        )


def _splits(line: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The ways to split a line into path and label. Paths and labels may have spaces in them."""
    if b"\t" in line:
        path, _, label = line.rpartition(b"\t")
        yield path, label
    elif len(line.split(None, 1)) == 2:
        path, label = line.rsplit(None, 1)
        yield path, label
        path, label = line.split(None, 1)
        yield path, label


def _moved(value: Any, offset: int, most: int, file: Path) -> Any:
    if type(value) is not int or 0 <= value + offset <= most:
        return value + offset if type(value) is int else value
    raise SourceError(
        f"{file}: the label {value}, with label_offset={offset}, is {value + offset}; expected "
        f"0..{most}"
    )
