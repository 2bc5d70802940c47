"""Rows of a text file: of a CSV with any delimiter, or of JSON lines.

Text is UTF-8, or in the charset that the user names, with or without a byte order mark. Blank lines
are skipped. Blanks after a delimiter belong to the cell, unless the first line has a blank after
each delimiter, as in ``path, label``.

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
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from packio.errors import OptionError, SourceError
from packio.sources import _files
from packio.sources._rows import ListedFile

IMAGES = (*_files.EXTENSIONS, ".gif")
_JSON = (".jsonl", ".ndjson")
_DELIMITERS = (",", "\t", ";", "|", " ")
_START = 1 << 16  # bytes that tell how lines end
_HEAD_LINES = 20  # by which the delimiter is found out


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
        with open(self.file.path, "rb") as file:
            text = _Text(_lines(file, self.line_end), self.charset)
            parsed = (
                csv.reader(text, strict=True, delimiter=self.delimiter,
                           skipinitialspace=self.is_padded)
                if self.delimiter else map(_object, text)
            )  # fmt: skip
            while True:
                line, start = text.line + 1, text.end
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
                    yield found, line, start, text.end

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


class _Text:
    """Lines of a file as text; counts lines and bytes."""

    def __init__(self, file: Iterator[bytes], charset: str) -> None:
        self._file, self._charset = file, charset
        self.line, self.end = 0, 0

    def __iter__(self) -> _Text:
        return self

    def __next__(self) -> str:
        data = next(self._file)
        text = data.decode(self._charset)
        self.line += 1
        self.end += len(data)
        return text.removeprefix("\ufeff") if self.line == 1 else text


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
    whole = TextTable(ListedFile.of(path), charset, delimiter, is_padded, line_end=line_end)
    first = next(whole._records(), None)  # noqa: SLF001 (of the same module)
    if first is None:
        raise SourceError(f"{path}: nothing in it; expected a line for each image")
    return _named(whole, *first[:2])


def _named(whole: TextTable, first: Any, line: int) -> TextTable:
    """The table with the names of its columns, which the first row says."""
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
