"""Where the values of a new field come from: a folder, a mapping, a table, or a function."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.errors import DecodeError, OptionError, SourceError
from packio.images import encodings
from packio.sample import fields
from packio.sample.record import Field
from packio.sources._rows import ListedFile
from packio.sources.tables import columns, lines
from packio.sources.tables.parquet_files import ParquetFile
from packio.system import files

_IMAGES = (*encodings.IMAGE_SUFFIXES, ".gif", ".jp2", ".avif")
_SHOWN = 5
_TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
_KEY_COLUMNS = ("key", "file_name", "filename", "path")
_Row = tuple[str, Any, Any]  # place, for messages; key; value


class Values(NamedTuple):
    """The values of a field, of some or all samples of a pack."""

    digest: str  # tells these values from others, so that a run that was cut short can go on
    origin: str  # where they come from, for people
    function: Callable[[Any], Any] | None  # None: the values are known by key
    known: Mapping[bytes, Any]  # key → path of a file, or a value
    unused: Sequence[str] = ()  # keys or files that no sample of the pack has


def find(values: Any, name: str, keys: Sequence[bytes], kind: str | None) -> Values:
    if callable(values):
        where = f"{getattr(values, '__module__', '')}:{getattr(values, '__qualname__', values)}"
        told = json.dumps(("function", where, kind)).encode()
        return Values(hashlib.sha256(told).hexdigest(), where, values, {})
    if isinstance(values, Mapping):
        return _of_rows([("mapping", *item) for item in values.items()], keys, kind, "mapping")
    if not isinstance(values, (str, os.PathLike)):
        raise OptionError(
            f"values of {type(values).__name__}: expected a folder, a table, a mapping of keys to "
            "values, or a callable that takes a sample"
        )
    path = Path(values)
    if path.is_dir():
        return _of_folder(path, keys, kind)
    if path.is_file() and path.suffix.lower() in _TABLES:
        return _of_rows(_read_table(path, name), keys, kind, str(path))
    problem = "" if path.exists() else "does not exist; "
    raise SourceError(
        f"{path}: {problem}expected a folder of files named after the keys of the samples, "
        f"or a table ({', '.join(_TABLES)}) with the columns key and {name}"
    )


def field_of(value: Any, kind: str | None) -> Field | None:
    """The field of a value as values are given: a path of a file, or what `fields.encode` takes."""
    if value is None:
        return None
    if isinstance(value, _File):
        field = Field(value.kind, files.content(value.path))
    else:
        field = fields.encode(value, kind)
    if field.kind in fields.PIXELS:
        return field._replace(facts=encodings.read_facts(field.data))
    if field.kind != "bytes":
        fields.decode(field)
    return field


class _File(NamedTuple):
    path: str
    kind: str

    def __str__(self) -> str:
        return f"{self.path}, {os.path.getsize(self.path):,} bytes"


def source_of(value: Any) -> str:
    """Where a value comes from, for a message about it; "" if the value itself was given."""
    return f" ({value})" if isinstance(value, _File) and os.path.exists(value.path) else ""


def _of_rows(rows: Sequence[_Row], keys: Sequence[bytes], kind: str | None, where: str) -> Values:
    known, digest = dict[bytes, Any](), hashlib.sha256(f"{where} {kind}".encode())
    for place, given, value in rows:
        if not isinstance(given, (str, bytes, os.PathLike)) or not given:
            raise SourceError(
                f"{place}: {given!r} as key; expected the key of a sample, as 'cats/7.jpg'"
            )
        if (key := os.fsencode(given)) in known:
            raise SourceError(f"{place}: {os.fsdecode(key)!r} is there twice; keep one value")
        known[key] = value
    for key in sorted(known):
        digest.update(b"%d %s" % (len(key), key))
        value = known[key]
        if value is not None:
            try:
                data = fields.encode(value, kind).data
            except DecodeError as error:
                raise SourceError(f"{where}: the value of {os.fsdecode(key)!r}: {error}") from error
            digest.update(hashlib.sha256(data).digest())
    names = _match(keys, known, where)
    taken = set(names.values())
    unused = [os.fsdecode(name) for name in known if name not in taken]
    used = {key: known[name] for key, name in names.items()}
    return Values(digest.hexdigest(), where, None, used, unused)


def _match(keys: Sequence[bytes], names: Container[bytes], where: str) -> dict[bytes, bytes]:
    """Key of each sample that has a value → the value's name: the key, or it without its ending."""
    found = {key: key for key in keys if key in names}
    stems = {key: os.path.splitext(key)[0] for key in keys if key not in found}
    sharing = Counter(os.path.splitext(key)[0] for key in keys)
    for key, stem in stems.items():
        if stem in found or stem not in names:
            continue
        if sharing[stem] > 1:
            raise SourceError(
                f"{where}: {os.fsdecode(stem)!r} may be the value of several samples, as of "
                f"{os.fsdecode(key)!r}; name values by the whole key"
            )
        found[key] = stem
    return found


def _of_folder(folder: Path, keys: Sequence[bytes], kind: str | None) -> Values:
    """Match files to samples: KEY with another ending, or KEY and an ending."""
    digest, found = hashlib.sha256(f"folder {kind}".encode()), dict[bytes, bytes]()
    twice: list[tuple[bytes, bytes]] = []
    for relative, s in _walked(folder):
        state = s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns
        digest.update(relative + b"\0%d %d %d %d %d\0" % state)
        stem = os.path.splitext(relative)[0]
        if stem in found:
            twice.append((found[stem], relative))
        found[stem] = relative
    known: dict[bytes, Any] = {}
    stems = _match(keys, found, os.fspath(folder))
    for key, stem in stems.items():
        path = os.path.join(folder, os.fsdecode(found[stem]))
        known[key] = _File(path, _kind_of(path, kind))
    users = {found[stem] for stem in stems.values()}
    for first, second in twice:
        if first in users or second in users:
            raise SourceError(
                f"{folder}: {os.fsdecode(first)} and {os.fsdecode(second)} are values of the same "
                "sample; keep one of them"
            )
    unused = [os.fsdecode(name) for name in found.values() if name not in users]
    return Values(digest.hexdigest(), str(folder), None, known, unused)


def _walked(folder: Path) -> Iterator[tuple[bytes, os.stat_result]]:
    """Files below a folder, sorted: their names relative to it, and what the system says."""
    top = os.fsencode(folder)
    found = []
    for root, _, names in os.walk(top, onerror=_refuse_unreadable):
        paths = [os.path.join(root, name) for name in names if not name.startswith(b".")]
        found += [os.path.relpath(path, top) for path in paths]
    for relative in sorted(found):
        try:
            yield relative, os.stat(os.path.join(top, relative))
        except OSError as error:
            _refuse_unreadable(error)


def _refuse_unreadable(error: OSError) -> None:
    name = os.fsdecode(error.filename)
    files.check_of_file(error, name)
    raise SourceError(f"{name}: cannot be looked at: {error.strerror}") from error


def _kind_of(path: str, kind: str | None) -> str:
    if kind is not None:
        return kind
    ending = os.path.splitext(path)[1].lower()
    if ending in _IMAGES:
        return "image"
    return fields.kind_of_file(path) or ("text" if ending == ".json" else "bytes")


def first_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


def _read_table(path: Path, name: str) -> list[_Row]:
    """Key and value of each row of a table: of a column of keys, and of one named as the field.

    A list of numbers is an array. In .parquet the column says its type; elsewhere the whole column
    is bool, int64 or uint64 if all of its numbers are whole, else float32.
    """
    try:
        read = _rows_of_parquet if path.suffix.lower() == ".parquet" else _rows_of_text
        rows, dtype = read(path, name)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read as a table: {error}") from error
    arrays = {i: _array(at, value) for i, (at, _, value) in enumerate(rows)
              if isinstance(value, list)}  # fmt: skip
    if dtype is None or dtype.kind not in "biuf":
        types = {array.dtype for array in arrays.values() if array.size}
        kinds = {one.kind for one in types}
        is_mixed = not kinds or "f" in kinds or {"i", "u"} <= kinds
        dtype = np.dtype(np.float32) if is_mixed else np.result_type(*types)
    for i, array in arrays.items():
        place, key, _ = rows[i]
        with np.errstate(over="ignore"):
            rows[i] = place, key, array.astype(dtype)
        if not np.array_equal(np.isfinite(rows[i][2]), np.isfinite(array)):
            raise SourceError(
                f"{place}: a number is too large for {dtype}; give arrays as .npy files"
            )
    return [(place, str(key) if type(key) is int else key, value) for place, key, value in rows]


def _rows_of_text(path: Path, name: str) -> tuple[list[_Row], None]:
    table = lines.table(path, None, None)
    if table.image is not None:
        raise SourceError(
            f"{path}: its first line names no columns; put a line above it, as key,caption"
        )
    rows = [(f"{path}:{row.line}", row.cells) for row in table.rows() if row.cells]
    if not rows:
        raise SourceError(f"{path}: names of columns, and no line below them")
    names = list(dict.fromkeys(member for _, cells in rows for member in cells))
    key, column = _chosen(path, names, name)
    return [(place, cells.get(key), cells.get(column)) for place, cells in rows], None


def _rows_of_parquet(path: Path, name: str) -> tuple[list[_Row], np.dtype | None]:
    """The rows of a Parquet file, and the type of the numbers in its lists."""
    listed, nothing = ListedFile.stat(path), np.zeros(1, np.int64)
    with ParquetFile(listed, nothing, nothing).open() as opened:
        schema, count = opened.schema_arrow, opened.metadata.num_rows
    key, column = _chosen(path, schema.names, name)
    if not count:
        raise SourceError(f"{path}: a table without rows")
    file = ParquetFile(listed, np.array([0, count]), nothing)
    kind = schema.field(column).type
    while (inner := getattr(kind, "value_type", None)) is not None:
        kind = inner
    try:
        dtype = np.dtype(kind.to_pandas_dtype())
    except (NotImplementedError, TypeError):
        dtype = None
    rows = zip(file.values(key), file.values(column), strict=True)
    return [(f"{path}: row {i}", *row) for i, row in enumerate(rows, 1)], dtype


def _chosen(path: Path, names: Sequence[str], wanted: str) -> tuple[str, str]:
    """The columns of keys and of values, the latter perhaps in another case."""
    alike = [name for name in names if name.strip().lower() == wanted.lower()]
    column = wanted if wanted in names else alike[0] if len(alike) == 1 else None
    key = columns.guess(names, _KEY_COLUMNS)
    if key is None or column is None:
        raise SourceError(
            f"{path}: has the columns {', '.join(names)}; expected {wanted}, and the key of each "
            f"sample as one of {', '.join(_KEY_COLUMNS)}; rename the columns, or choose the name "
            "of a column for the field"
        )
    for name in (key, column):
        if names.count(name) > 1:
            raise SourceError(f"{path}: the column {name} is there twice; keep one")
    return key, column


def _array(place: str, value: list[Any]) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths in a list
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise SourceError(
            f"{place}: a list that is no array of numbers; expected text, a number, or lists of "
            "numbers of one length"
        )
    return array
