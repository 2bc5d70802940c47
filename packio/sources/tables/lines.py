"""Records of a text file: rows of a CSV with any delimiter, or JSON objects, one a line.

Text is UTF-8, with or without a byte order mark. Bytes that are not UTF-8 become surrogate escapes,
as in file names. Blank lines are skipped.

Sources: RFC 4180 (CSV); jsonlines.org.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from packio.errors import SourceError
from packio.sources import _files

IMAGES = (*_files.EXTENSIONS, ".gif")
_JSON = (".jsonl", ".ndjson")
_DELIMITERS = (",", "\t", ";", "|", " ")
_BOM = "\ufeff"
_HEAD_LINES = 20  # by which the delimiter is found out
_BLOCK_BYTES = 1 << 20

# A number as JSON writes it and Python's numbers hold it; 007 and 1_000 are no numbers.
is_number = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d{1,40})?([eE][-+]?\d{1,2})?", re.ASCII).fullmatch


@dataclasses.dataclass(frozen=True)
class Layout:
    """How to read a file."""

    delimiter: str  # "": each line is a JSON object
    names: tuple[str, ...] = ()  # of the columns; of JSON objects, of the first one's members
    image: str | None = None  # the column of images, where the first line is no header

    @property
    def has_header(self) -> bool:
        """Whether the first record is the names of columns."""
        return bool(self.delimiter and self.names) and self.image is None


class Block(NamedTuple):
    """Consecutive records."""

    records: list[Any]  # lists of cells, or objects
    lines: np.ndarray  # where each begins, counted from 1
    spans: np.ndarray  # (records, 2) offsets of its beginning and its end in the file

    def column(self, layout: Layout, name: str) -> list[Any]:
        """Values of one column; None where an object has none."""
        if not layout.delimiter:
            return [record.get(name) for record in self.records]
        i = layout.names.index(name)
        return [record[i] for record in self.records]


class _Parsed(NamedTuple):
    """Records of some lines, up to the first line that makes no sense."""

    records: list[Any]
    counts: list[int]  # of lines before each record, and at the end
    reached: int = 0  # lines that were looked at
    problem: str = ""  # with the record behind the last


def layout(path: Path, file: BinaryIO, delimiter: str | None) -> Layout:
    """Find out how to read a file.

    The first line of a CSV names the columns, unless one of its cells ends as an image's name does:
    columns are then named ``0``, ``1``, ….

    Args:
        path: Of the file, for its ending and for messages.
        file: The file.
        delimiter: Between columns; None finds out.

    Raises:
        SourceError: the file is no text or empty, or its first line makes no sense.
    """
    start = file.read(1024)
    if start[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in start:
        raise SourceError(f"{path}: no UTF-8 text, it begins {start[:4].hex(' ')}; save it as such")
    if delimiter is None and path.suffix.lower() in _JSON:
        delimiter = ""
    elif delimiter is None:
        file.seek(0)
        head = [_text(line) for line in itertools.islice(file, _HEAD_LINES)]
        delimiter = "\t" if path.suffix.lower() == ".tsv" else _delimiter(head)
    first = next(blocks(path, file, Layout(delimiter)), None)
    if first is None:
        raise SourceError(f"{path}: nothing in it; expected a line for each image")
    record, line = first.records[0], first.lines[0]
    if not delimiter:
        return Layout("", tuple(record))
    for i, cell in enumerate(record):
        if cell.lower().endswith(IMAGES):
            return Layout(delimiter, tuple(map(str, range(len(record)))), str(i))
    names = tuple(cell.strip() or f"column_{i}" for i, cell in enumerate(record, 1))
    for name in names:
        if names.count(name) > 1:
            raise SourceError(f"{path}:{line}: two columns are called {name!r}; rename one")
    return Layout(delimiter, names)


def _delimiter(head: list[str]) -> str:
    """The delimiter that cuts the first lines into the same number of cells, more than one."""
    for delimiter in _DELIMITERS:
        with contextlib.suppress(csv.Error):
            rows = [row for row in csv.reader(head, **_dialect(delimiter)) if any(row)]
            widths = {len(row) for row in rows}
            if len(widths) != 1 or widths == {1}:
                continue
            if delimiter != " " or rows[0][0].lower().endswith(IMAGES):
                return delimiter
    return ","


def _dialect(delimiter: str) -> dict[str, Any]:
    return {"delimiter": delimiter, "skipinitialspace": True}


def _text(line: bytes) -> str:
    return line.decode("utf-8", "surrogateescape").removeprefix(_BOM)


def blocks(path: Path, file: BinaryIO, layout: Layout) -> Iterator[Block]:
    """Read a file from its beginning, about 1 MiB at a time.

    Args:
        path: Of the file, for messages.
        file: The file.
        layout: How to read the file; without names, records may have any number of cells.

    Raises:
        SourceError: a line makes no sense.
    """
    file.seek(0)
    offset, number, skip = 0, 0, layout.has_header
    left, problem = list[bytes](), ""
    while more := file.readlines(_BLOCK_BYTES):
        lines = left + more
        text = [line.decode("utf-8", "surrogateescape") for line in lines]
        text[0] = _text(lines[0])
        found = _rows(text, layout) if layout.delimiter else _objects(text)
        counts, done = np.array(found.counts), found.counts[-1]
        ends = np.cumsum([offset, *map(len, lines)])
        kept = np.flatnonzero([any(record) for record in found.records])[int(skip) :]
        if len(kept):
            skip = False
            records = [found.records[i] for i in kept.tolist()]
            spans = np.stack([ends[counts[kept]], ends[counts[kept + 1]]], axis=1)
            yield Block(records, counts[kept] + number + 1, spans)
        left, problem = lines[done:], found.problem
        offset, number = int(ends[done]), number + done
        if problem and found.reached < len(lines):
            break  # else the record may go on in the next block
    if left:
        raise SourceError(f"{path}:{number + 1}: {problem}")


def _rows(text: list[str], layout: Layout) -> _Parsed:
    """Rows of cells; a blank line is an empty row."""
    rows, counts = list[list[str]](), [0]
    reader = csv.reader(text, strict=True, **_dialect(layout.delimiter))
    problem, reached = "", 0
    try:
        for row in reader:
            rows.append(row)
            counts.append(reader.line_num)
    except csv.Error as error:
        problem, reached = str(error), reader.line_num
    width = len(layout.names)
    if width and {*map(len, rows)} - {0, width}:
        for i, row in enumerate(rows):
            if len(row) != width and any(row):
                expected = f"{len(row)} cells; expected {width}, as in the first line"
                return _Parsed(rows[:i], counts[: i + 1], 0, expected)
    return _Parsed(rows, counts, reached, problem)


def _objects(text: list[str]) -> _Parsed:
    """JSON objects; a blank line is an empty object."""
    with contextlib.suppress(ValueError, RecursionError):  # all at once takes 2/5 of the time
        objects = json.loads(f"[{','.join(text)}]")
        if len(objects) == len(text) and {*map(type, objects)} == {dict}:
            return _Parsed(objects, [*range(len(text) + 1)])
    objects = []
    for i, line in enumerate(text):
        problem = "no JSON object"
        try:
            value = json.loads(line) if not line.isspace() else {}
        except (ValueError, RecursionError) as error:
            value, problem = None, f"{problem}: {getattr(error, 'msg', error)}"
        if not isinstance(value, dict):
            return _Parsed(objects, [*range(i + 1)], i + 1, f"{problem}; expected one a line")
        objects.append(value)
    return _Parsed(objects, [*range(len(text) + 1)])


def members(layout: Layout, record: bytes) -> dict[str, Any]:
    """Read one record again: names and values."""
    text = _text(record)
    if not layout.delimiter:
        found: dict[str, Any] = json.loads(text)
        return found
    row = next(csv.reader([text], **_dialect(layout.delimiter)))
    return dict(zip(layout.names, row, strict=True))
