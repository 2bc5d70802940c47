"""LMDB values that hold an image and its label: where the image lies, and which label it has.

* **msgpack** (tensorpack, older folder2lmdb): a sample is ``[{"data": image}, label]`` or ``[image,
  label]``. Source: https://github.com/msgpack/msgpack/blob/master/spec.md.

* **`pyarrow.serialize`**, which pyarrow dropped in version 12: a header of int32, the numbers of
  tensors, sparse tensors, arrays and buffers, all 0 for plain values (16 bytes; 12 or 8 in old
  ones), then an Arrow IPC stream of one record batch of one column of one row. A Python value is a
  dense union, whose child is chosen by its type: bytes are binary, an int is int64, a tuple or list
  is a list of such unions, a dict a list of structs of key and value. pyarrow 0.10 and older put a
  struct of one field around each list. pyarrow's reader of streams finds the columns; a binary's
  bytes are one range of the payload, and are not copied. Sources:
  https://arrow.apache.org/docs/format/Columnar.html, section "Serialization and Interprocess
  Communication"; ``cpp/src/arrow/python/serialize.cc`` of Apache Arrow 11.

* **Datum**, which Caffe and DALI's readers.caffe read: a protobuf message with the fields channels,
  height, width = 1, 2, 3 and label = 5 (varints), data = 4 (bytes), float_data = 6 (floats),
  encoded = 7 (a bool). If encoded is set, data is an image file, and Caffe does not tell its size.
  Else data has pixels of uint8, or float_data has pixels of float32: planes (C, H, W), by Caffe's
  convention in the order blue, green, red. packio writes its planes unchanged, red, green, blue,
  and says so in the field 100 (a bool), which other readers ignore. Floats are read only if they
  are packed into one field: then they are one range of bytes. Sources:
  src/caffe/proto/caffe.proto, message Datum, and src/caffe/util/io.cpp
  (https://github.com/BVLC/caffe); dali/operators/reader/parser/caffe_parser.h
  (https://github.com/NVIDIA/DALI).
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from packio import registry
from packio.errors import NotAPackError, OutputError
from packio.formats.wire import ByteSpan, MalformedError
from packio.formats.wire.protobuf import _fields, _varint, varint
from packio.images.encodings import RAW, is_image, raw_facts
from packio.sample.record import UNKNOWN, Facts, Field, Record

_LISTS = (*(bytes([byte]) for byte in range(0x80, 0xA0)), b"\xdc", b"\xdd", b"\xde", b"\xdf")
_LONGEST_TEXT = 1024  # bytes
_DEEPEST = 8

_IMAGE_NAMES = ("data", "image", "img", "jpeg", "jpg", "png", "bytes", b"data", b"image", b"img")
_LABEL_NAMES = ("label", "target", "class", "y", b"label", b"target")

MOST_DATUM_BYTES = (2 << 30) - 64  # of an image: protobuf messages have less than 2 GiB
# Tags: number of the field << 3 | wire type
_CHANNELS, _HEIGHT, _WIDTH, _LABEL, _ENCODED, _RGB = 0x08, 0x10, 0x18, 0x28, 0x38, 100 << 3
_NUMBERS = (_CHANNELS, _HEIGHT, _WIDTH, _LABEL, _ENCODED, _RGB)
_DATA, _FLOATS, _FLOAT = 0x22, 0x32, 0x35  # float_data: all in one field, or a field each
_HEADERS = (16, 12, 8)  # bytes before the stream
_CONTINUATION = 0xFFFFFFFF
_MOST_ARROW_VALUES, _DEEPEST_ARROW = 10_000, 16
_LONGEST_ARROW_TEXT = 4096  # bytes; texts may overlap, so many long ones can hide in few bytes


class FoundImage(NamedTuple):
    start: int  # of the image, in bytes
    stop: int
    label: Any
    facts: Facts | None = None  # of pixels


def sample(value: Any, data: bytes, label: str | None = None) -> FoundImage:
    """Find the image and its label in a plain value, whose bytes are a `ByteSpan` of ``data``.

    The label is at a position of the list, or under a name of the dict; "": none; None: what has a
    usual name, or the only int, or the only other value if it is a float or a bool.
    """
    image, named, others = _image(value, data, 0)
    if label:
        items = dict(enumerate(value)) if isinstance(value, (list, tuple)) else value
        texts = {str(key): _text(item, data) for key, item in items.items()}
        found = {key: item for key, item in texts.items() if _is_scalar(item)}
        if label not in found:
            raise NotAPackError(f"label={label!r} is not in the values; there are: {found}")
        return FoundImage(image.start, image.stop, found[label])
    if label is None and named:
        given = _text(named[0], data)
        if not _is_scalar(given):
            raise NotAPackError(
                f"the label {given!r:.80}, which packio does not take; say label='' (--label-col "
                "'') for none"
            )
        return FoundImage(image.start, image.stop, given)
    ints = [item for item in others if _is_label(item)]
    if label is None and len(ints) > 1:
        raise NotAPackError(
            f"values with several ints, as {ints[:5]}, and which of them is the label is not "
            "clear; say label='2' for the third item of the list, or label='' for no label"
        )
    if label is None and not ints and others:
        if len(others) > 1 or type(others[0]) not in (bool, float):
            raise NotAPackError(
                f"values with {others[0]!r:.80} beside the image, and whether that is the label is "
                "not clear; say label='1' (--label-col 1) for the second item of the list, or "
                "label='' (--label-col '') for no label"
            )
        ints = others
    return FoundImage(image.start, image.stop, ints[0] if ints and label is None else None)


def _image(value: Any, data: bytes, depth: int) -> tuple[ByteSpan, list[Any], list[Any]]:
    """Find the image, what is named a label, and the other values beside the image in lists."""
    if isinstance(value, ByteSpan):
        return value, [], []
    if isinstance(value, dict) and depth < _DEEPEST:
        images = [value[name] for name in _IMAGE_NAMES if name in value]
        labels = [value[name] for name in _LABEL_NAMES if value.get(name) is not None]
        if images:
            image, named, others = _image(images[0], data, depth + 1)
            return image, labels or named, others
    if isinstance(value, (list, tuple)) and depth < _DEEPEST:
        spans = [v for v in value if isinstance(v, ByteSpan)]
        encoded = [v for v in spans if is_image(data[v.start : min(v.stop, v.start + 16)])]
        within = [v for v in value if isinstance(v, (dict, list, tuple))]
        found: Any = next(iter([*encoded, *spans, *within]), None)
        if found is not None:
            image, named, others = _image(found, data, depth + 1)
            beside = [_text(v, data) for v in value if v is not found and v is not None]
            return image, named, [*others, *(v for v in beside if not isinstance(v, ByteSpan))]
    raise MalformedError("no image in it")


def _text(value: Any, data: bytes) -> Any:
    """Text, of bytes that are short and no image; other values as they are."""
    if not isinstance(value, ByteSpan) or value.stop - value.start > _LONGEST_TEXT:
        return value
    content = data[value.start : value.stop]
    return value if is_image(content) else content.decode("utf-8", "backslashreplace")


def _is_scalar(value: Any) -> bool:
    return _is_label(value) or type(value) in (bool, float, str)


def _is_label(value: Any) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def msgpack(data: bytes) -> Any:
    """Read msgpack; bytes come as a `ByteSpan` of ``data``."""
    if data[:1] not in _LISTS:
        raise MalformedError("no list or dict of msgpack")
    package = registry.require("msgpack", "msgpack")
    try:
        value = package.unpackb(data, unicode_errors="surrogateescape", strict_map_key=False)
    except (ValueError, TypeError, package.exceptions.UnpackException) as error:
        raise MalformedError(f"msgpack that makes no sense: {error}") from error
    return _spans(value, data, 0)


def _spans(value: Any, data: bytes, depth: int) -> Any:
    """The value with a `ByteSpan` of ``data`` in place of bytes."""
    if depth > _DEEPEST:
        raise MalformedError("msgpack that is deeper than a sample")
    if isinstance(value, list):
        return [_spans(item, data, depth + 1) for item in value]
    if isinstance(value, dict):
        return {key: _spans(item, data, depth + 1) for key, item in value.items()}
    if isinstance(value, str):  # early msgpack had no type for bytes: writers stored them as text
        content = value.encode("utf-8", "surrogateescape")
        if len(content) <= _LONGEST_TEXT and not is_image(content):
            return value
        value = content
    if not isinstance(value, bytes):
        return value
    start = data.find(value)  # equal bytes at another position would be as good
    return ByteSpan(start, start + len(value))


def parse_datum(data: bytes) -> FoundImage:
    numbers = dict.fromkeys(_NUMBERS, 0)
    ranges = dict.fromkeys((_DATA, _FLOATS, _FLOAT), (0, 0))
    label = None
    for tag, start, stop in _fields(data, 0, len(data)):
        if tag in numbers:
            number = _varint(data, start)[0]
            numbers[tag] = number - (number >> 63 << 64)
            label = numbers[_LABEL] if tag == _LABEL else label
        elif tag in ranges:
            ranges[tag] = start, stop
        else:
            raise MalformedError(f"a field {tag >> 3} of wire type {tag & 7}, which no Datum has")
    kind = next((tag for tag, (start, stop) in ranges.items() if start < stop), None)
    if kind == _FLOAT and numbers[_CHANNELS]:
        raise NotAPackError(
            "Caffe Datums of floats that are a field each (float_data), so they lie in no one "
            "range of bytes; write them packed, or as data"
        )
    if kind in (None, _FLOAT):
        raise MalformedError("a Datum without data")
    dtype = "uint8" if kind == _DATA else "float32"
    found = FoundImage(*ranges[kind], label)
    height, width, channels = numbers[_HEIGHT], numbers[_WIDTH], numbers[_CHANNELS]
    size = height * width * channels * (1 if dtype == "uint8" else 4)
    fits = size == found.stop - found.start and min(height, width) > 0 and 0 < channels < 256
    if numbers[_ENCODED] or (not fits and is_image(data[found.start : found.start + 16])):
        return found
    if not fits:
        raise MalformedError(f"a Datum of neither an image nor {width}x{height}x{channels} {dtype}")
    encoding = "raw" if numbers[_RGB] else "raw_bgr"
    return found._replace(facts=raw_facts(height, width, channels, dtype, encoding))


def image_of(value: bytes) -> bytes:
    """The image in a Datum; a value that is no Datum is returned unchanged."""
    try:
        found = parse_datum(value)
    except (MalformedError, NotAPackError):
        return value
    return value[found.start : found.stop]


def encode_datum(record: Record[Field], field: Field) -> bytes:
    """Make the Datum of an image or a mask, its fields in the order of their numbers.

    A Datum has no place for a label that is a vector, so such a label is left out.
    """
    data, encoding = field.data, field.encoding
    if not data:
        raise OutputError(f"{record.key!r} has no bytes; a Datum has some")
    fields = (
        _pixel_fields(record.key, field)
        if encoding in RAW
        else {_DATA: _sized(data), _ENCODED: (b"\x01",)}
    )
    if isinstance(record.label, int):
        if not -(1 << 31) <= record.label < 1 << 31:
            raise OutputError(f"{record.key!r} has the label {record.label}; Datums have 32 bits")
        fields[_LABEL] = (varint(record.label),)
    return b"".join(part for tag in sorted(fields) for part in (varint(tag), *fields[tag]))


def _pixel_fields(key: bytes, field: Field) -> dict[int, tuple[bytes, ...]]:
    planes, bgr = RAW[field.encoding]
    facts = field.facts or UNKNOWN
    height, width, channels = facts.height, facts.width, facts.channels
    count = height * width * channels
    kind = {count: _DATA, 4 * count: _FLOATS}.get(len(field.data))
    if not planes or kind is None:
        raise OutputError(
            f"{key!r} has pixels as {field.encoding}, "
            f"{len(field.data)} bytes for {width}x{height}x{channels}; "
            "Datums have planes (C, H, W) of uint8 or float32"
        )
    fields = {
        _CHANNELS: (varint(channels),), _HEIGHT: (varint(height),), _WIDTH: (varint(width),),
        kind: _sized(field.data), _ENCODED: (b"\0",),
    }  # fmt: skip
    return fields if bgr else {**fields, _RGB: (b"\x01",)}


def _sized(data: bytes) -> tuple[bytes, ...]:
    return varint(len(data)), data


def arrow(data: bytes) -> Any:
    """Read a payload of `pyarrow.serialize`; bytes come as a `ByteSpan` of ``data``."""
    start = _start_of_stream(data)
    if start is None:
        raise MalformedError("no payload of pyarrow.serialize")
    pa = registry.require("pyarrow", "parquet")
    payload = pa.py_buffer(data)
    try:
        with pa.ipc.open_stream(payload.slice(start)) as stream:
            batch = stream.read_next_batch()
        batch.validate(full=True)
        return _ArrowReader(pa, payload.address).value(batch.column(0), 0)
    except (pa.ArrowException, StopIteration, LookupError, ValueError, OSError) as error:
        raise MalformedError(f"an Arrow stream that makes no sense: {error}") from error


def _start_of_stream(data: bytes) -> int | None:
    for size in _HEADERS:
        head = data[: size + 8]
        if len(head) < size + 8 or any(head[:size]):
            continue
        first, second = struct.unpack_from("<II", head, size)
        if first == _CONTINUATION or (16 <= first < 1 << 16 and second < first):
            return size
    return None


class _ArrowReader:
    def __init__(self, pa: Any, payload: int) -> None:
        self._pa, self._payload = pa, payload  # the package; address of the payload
        self._left = _MOST_ARROW_VALUES

    def value(self, column: Any, row: int, depth: int = 0) -> Any:
        pa = self._pa
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST_ARROW:
            raise MalformedError("an Arrow stream of more values than a sample has")
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
        return value[:_LONGEST_ARROW_TEXT] if isinstance(value, str) else value

    def _span(self, column: Any, row: int) -> ByteSpan:
        _, offsets, content = column.buffers()
        is_large = isinstance(column, self._pa.LargeBinaryArray)
        at = (column.offset + row) * (8 if is_large else 4)
        first, last = struct.unpack_from("<qq" if is_large else "<ii", offsets, at)
        start = content.address - self._payload
        return ByteSpan(start + first, start + last)
