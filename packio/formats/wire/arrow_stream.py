"""Values that `pyarrow.serialize` wrote; pyarrow itself dropped it in version 12.

A payload is a header of int32, the numbers of tensors, sparse tensors, arrays and buffers, all 0
for plain values (16 bytes; 12 or 8 in old ones), then an Arrow IPC stream of one record batch of
one column of one row. A Python value is a dense union, whose child is chosen by its type: bytes are
binary, an int is int64, a tuple or list is a list of such unions, a dict a list of structs of key
and value. pyarrow 0.10 and older put a struct of one field around each list. pyarrow's reader of
streams finds the columns; a binary's bytes are one range of the payload, and are not copied.

Sources: https://arrow.apache.org/docs/format/Columnar.html, section "Serialization and Interprocess
Communication"; ``cpp/src/arrow/python/serialize.cc`` of Apache Arrow 11.
"""

from __future__ import annotations

import struct
from typing import Any

from packio import registry
from packio.formats.wire import ByteSpan, Malformed

_HEADERS = (16, 12, 8)  # bytes before the stream
_CONTINUATION = 0xFFFFFFFF
_MOST_VALUES, _DEEPEST = 10_000, 16
_LONGEST_TEXT = 4096  # bytes; texts may overlap, so many long ones can hide in few bytes


def read(data: bytes) -> Any:
    """Read the value of a payload; bytes come as a `ByteSpan` of ``data``."""
    start = _start(data)
    if start is None:
        raise Malformed("no payload of pyarrow.serialize")
    pa = registry.require("pyarrow", "parquet")
    payload = pa.py_buffer(data)
    try:
        with pa.ipc.open_stream(payload.slice(start)) as stream:
            batch = stream.read_next_batch()
        batch.validate(full=True)
        return _Reader(pa, payload.address).value(batch.column(0), 0)
    except (pa.ArrowException, StopIteration, LookupError, ValueError, OSError) as error:
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


class _Reader:
    """Reads values of Arrow's arrays, a limited number of them."""

    def __init__(self, pa: Any, payload: int) -> None:
        self._pa, self._payload = pa, payload  # the package; address of the payload
        self._left = _MOST_VALUES

    def value(self, column: Any, row: int, depth: int = 0) -> Any:
        """The value of a row; None where there is none."""
        pa = self._pa
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            raise Malformed("an Arrow stream of more values than a sample has")
        if isinstance(column, pa.UnionArray):
            # The types are positions of the children, whatever type ids the schema gives them.
            child = column.field(column.type_codes[row].as_py())
            return self.value(child, column.offsets[row].as_py(), depth + 1)
        if isinstance(column, pa.StructArray):
            values = [self.value(child, row, depth + 1) for child in column.flatten()]
            return values[0] if len(values) == 1 else values
        if isinstance(column, (pa.ListArray, pa.LargeListArray)):
            first, last = (column.offsets[row + i].as_py() for i in (0, 1))
            items = [self.value(column.values, i, depth + 1) for i in range(first, last)]
            pairs = isinstance(column.values, pa.StructArray) and column.values.type.num_fields == 2
            return {k: v for k, v in items if isinstance(k, (str, int))} if pairs else items
        if isinstance(column, (pa.BinaryArray, pa.LargeBinaryArray)) and column[row].is_valid:
            return self._span(column, row)
        value = column[row].as_py()
        return value[:_LONGEST_TEXT] if isinstance(value, str) else value

    def _span(self, column: Any, row: int) -> ByteSpan:
        _, offsets, content = column.buffers()
        is_large = isinstance(column, self._pa.LargeBinaryArray)
        at = (column.offset + row) * (8 if is_large else 4)
        first, last = struct.unpack_from("<qq" if is_large else "<ii", offsets, at)
        start = content.address - self._payload
        return ByteSpan(start + first, start + last)
