"""Values that `pyarrow.serialize` wrote, read without pyarrow, which dropped it in version 12.

A payload is a header of int32, the numbers of tensors, sparse tensors, arrays and buffers, all 0
for plain values (16 bytes; 12 or 8 in old ones), then an Arrow IPC stream of one record batch of
one column of one row. A Python value is a dense union, whose child is chosen by its type: bytes are
binary, an int is int64, a tuple or list is a list of such unions, a dict a list of structs of key
and value. pyarrow 0.10 and older put a struct of one field around each list. The types of a union
are positions of its children, whatever type ids the schema gives them.

The stream is two messages, schema and batch: u32 0xFFFFFFFF (missing before 0.15), u32 size, so
many bytes of a flatbuffer, then the body. In the body each column has, children after parents, its
buffers: validity, then offsets and content, as its type has them. The flatbuffer lists the offset
and the length of each buffer. So a binary's bytes are one range of the payload, and are not copied.

Sources: https://arrow.apache.org/docs/format/Columnar.html, sections "Serialization and
Interprocess Communication" and "Buffer Listing for Each Layout"; format/Message.fbs, Schema.fbs of
apache/arrow; https://flatbuffers.dev/internals/.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from packio.formats.wire import ByteSpan, Malformed

_MOST_FIELDS, _MOST_VALUES, _DEEPEST = 64, 10_000, 16
_LONGEST_TEXT = 4096  # bytes; texts may overlap, so many long ones can hide in few bytes
_HEADERS = (16, 12, 8)  # bytes before the stream
_CONTINUATION = 0xFFFFFFFF

_NULL, _INT, _FLOAT, _BINARY, _TEXT, _BOOL = 1, 2, 3, 4, 5, 6
_LIST, _STRUCT, _UNION, _LARGE_BINARY, _LARGE_TEXT, _LARGE_LIST = 12, 13, 14, 19, 20, 21
_BUFFERS = {
    _NULL: 0, _INT: 2, _FLOAT: 2, _BINARY: 3, _TEXT: 3, _BOOL: 2, _LIST: 2, _STRUCT: 1, _UNION: 2,
    _LARGE_BINARY: 3, _LARGE_TEXT: 3, _LARGE_LIST: 2,
}  # fmt: skip
_V5 = 4  # metadata version from which unions have no validity buffer
_INTS = {8: "<b", 16: "<h", 32: "<i", 64: "<q"}
_FLOATS = {0: "<e", 1: "<f", 2: "<d"}  # precision → format


def read(data: bytes) -> Any:
    """Read the value of a payload; bytes come as a `ByteSpan` of ``data``."""
    start = _start(data)
    if start is None:
        raise Malformed("no payload of pyarrow.serialize")
    try:
        schema = _message(data, start)
        batch = _message(data, schema.end)
        return _Batch(data, schema, batch).value()
    except Malformed:
        raise
    except (struct.error, LookupError, ArithmeticError, ValueError) as error:
        raise Malformed(f"an Arrow stream that makes no sense: {error}") from error


def _start(data: bytes) -> int | None:
    """Where the stream begins."""
    for size in _HEADERS:
        head = data[: size + 8]
        if len(head) < size + 8 or any(head[:size]):
            continue
        first, second = struct.unpack_from("<II", head, size)
        if first == _CONTINUATION or (16 <= first < 1 << 16 and second < first):
            return size
    return None


class _Table:
    """A table of a flatbuffer."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._vtable = at - _unpack("<i", data, at)
        self._size = _unpack("<H", data, self._vtable)

    def _place(self, number: int) -> int | None:
        slot = 4 + 2 * number
        offset = _unpack("<H", self._data, self._vtable + slot) if slot + 2 <= self._size else 0
        return self._at + offset if offset else None

    def number(self, field: int, form: str, default: int = 0) -> int:
        place = self._place(field)
        return default if place is None else int(_unpack(form, self._data, place))

    def _target(self, field: int) -> int | None:
        place = self._place(field)
        return None if place is None else place + int(_unpack("<I", self._data, place))

    def table(self, field: int) -> _Table:
        target = self._target(field)
        if target is None:
            raise Malformed(f"an Arrow stream without its field {field}")
        return _Table(self._data, target)

    def has(self, field: int) -> bool:
        return self._place(field) is not None

    def vector(self, field: int) -> tuple[int, int]:
        """Where a vector's items begin, and how many there are."""
        target = self._target(field)
        return (0, 0) if target is None else (target + 4, int(_unpack("<I", self._data, target)))

    def structs(self, field: int, form: str) -> list[tuple[int, ...]]:
        start, count = self.vector(field)
        if count > 4 * _MOST_FIELDS:
            raise Malformed(f"an Arrow stream with a list of {count}")
        size = struct.calcsize(form)
        return [struct.unpack_from(form, self._data, start + i * size) for i in range(count)]

    def tables(self, field: int) -> Iterator[_Table]:
        start, _ = self.vector(field)
        for i, (offset,) in enumerate(self.structs(field, "<I")):
            yield _Table(self._data, start + 4 * i + offset)


def _unpack(form: str, data: bytes, at: int) -> Any:
    if at < 0:  # struct counts it from the end
        raise Malformed(f"an Arrow stream that points to {at}")
    return struct.unpack_from(form, data, at)[0]


class _Message(NamedTuple):
    header: _Table
    kind: int
    version: int
    body: int  # where it begins
    end: int


def _message(data: bytes, at: int) -> _Message:
    size = _unpack("<I", data, at)
    at += 4
    if size == _CONTINUATION:
        size = _unpack("<I", data, at)
        at += 4
    table = _Table(data, at + _unpack("<I", data, at))
    body, length = at + size, table.number(3, "<q")
    if not 0 <= length <= len(data) - body:
        raise Malformed(f"an Arrow message with a body of {length} bytes at {body}, beyond its end")
    version, kind = table.number(0, "<h"), table.number(1, "<B")
    return _Message(table.table(2), kind, version, body, body + length)


@dataclasses.dataclass(frozen=True)
class _Column:
    """A column: its type, its buffers within the payload, and its children."""

    kind: int
    form: str  # of its numbers, or of its offsets
    buffers: list[ByteSpan]
    children: list[_Column]


def _form(field: _Table, kind: int) -> str:
    """Format of a field's numbers, or of its offsets."""
    if kind == _INT:
        form = _INTS[field.table(3).number(0, "<i")]
        return form if field.table(3).number(1, "<B") else form.upper()
    if kind == _FLOAT:
        return _FLOATS[field.table(3).number(0, "<h")]
    return "<q" if kind in (_LARGE_BINARY, _LARGE_TEXT, _LARGE_LIST) else "<i"


class _Batch:
    """The record batch of a stream."""

    def __init__(self, data: bytes, schema: _Message, batch: _Message) -> None:
        if (schema.kind, batch.kind) != (1, 3) or batch.header.has(3):  # 3: compression
            raise Malformed("an Arrow stream that is not a schema and a plain record batch")
        self._data = data
        self._version = batch.version
        ranges = [(batch.body + o, o, n) for o, n in batch.header.structs(2, "<qq")]
        if any(min(o, n) < 0 or at + n > batch.end for at, o, n in ranges):
            raise Malformed("an Arrow stream with a buffer outside its body")
        self._buffers = [ByteSpan(at, at + n) for at, _, n in ranges]
        self._fields = self._values = 0
        self._columns = [self._column(field, 0) for field in schema.header.tables(1)]

    def value(self) -> Any:
        """The first value of the first column."""
        return self._value(self._columns[0], 0)

    def _column(self, field: _Table, depth: int) -> _Column:
        kind = field.number(2, "<B")
        self._fields += 1
        if kind not in _BUFFERS or self._fields > _MOST_FIELDS or depth > _DEEPEST:
            raise Malformed(f"an Arrow stream with a field of type {kind}, or too many fields")
        count = _BUFFERS[kind] + (kind == _UNION and self._version < _V5)
        buffers, self._buffers = self._buffers[:count], self._buffers[count:]
        if len(buffers) < count:
            raise Malformed("an Arrow stream with too few buffers")
        if kind == _UNION and field.table(3).number(0, "<h") != 1:
            raise Malformed("an Arrow stream with a sparse union")
        children = [self._column(child, depth + 1) for child in field.tables(5)]
        return _Column(kind, _form(field, kind), buffers, children)

    def _value(self, column: _Column, row: int) -> Any:
        self._values += 1
        if self._values > _MOST_VALUES:
            raise Malformed("an Arrow stream of more values than a sample has")
        kind = column.kind
        if kind in (_INT, _FLOAT):
            return self._item(column.buffers[1], column.form, row)
        if kind == _UNION:
            child = column.children[self._item(column.buffers[-2], "<B", row)]
            return self._value(child, self._item(column.buffers[-1], "<i", row))
        if kind == _STRUCT:
            values = [self._value(child, row) for child in column.children]
            return values[0] if len(values) == 1 else values
        if kind == _BOOL:
            return bool(self._item(column.buffers[1], "<B", row // 8) >> row % 8 & 1)
        return None if kind == _NULL else self._several(column, row)

    def _several(self, column: _Column, row: int) -> Any:
        """The items of a list, or a text, or the range of a binary."""
        first, last = (self._item(column.buffers[1], column.form, row + i) for i in (0, 1))
        if not 0 <= first <= last:
            raise Malformed(f"an Arrow stream with a list from {first} to {last}")
        if column.kind in (_LIST, _LARGE_LIST):
            items = [self._value(column.children[0], i) for i in range(first, last)]
            is_dict = column.children[0].kind == _STRUCT and len(column.children[0].children) == 2
            return {k: v for k, v in items if isinstance(k, (str, int))} if is_dict else items
        content = column.buffers[2]
        if content.start + last > content.stop:
            raise Malformed(f"an Arrow stream with bytes up to {last}, outside their buffer")
        span = ByteSpan(content.start + first, content.start + last)
        if column.kind in (_TEXT, _LARGE_TEXT) and last - first <= _LONGEST_TEXT:
            return self._data[span.start : span.stop].decode("utf-8", "replace")
        return span

    def _item(self, buffer: ByteSpan, form: str, row: int) -> Any:
        at = buffer.start + row * struct.calcsize(form)
        if row < 0 or at + struct.calcsize(form) > buffer.stop:
            raise Malformed(f"an Arrow stream with a value {row} outside its buffer")
        return _unpack(form, self._data, at)
