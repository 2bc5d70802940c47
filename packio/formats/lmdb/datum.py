"""Caffe's Datum: an image and its label in one message, which Caffe and DALI's readers.caffe read.

A Datum is a protobuf message. Its fields are: channels, height, width = 1, 2, 3 and label = 5
(varints), data = 4 (bytes), float_data = 6 (floats), encoded = 7 (a bool). If encoded is set, data
is an image file, and Caffe does not tell its size. Else data has pixels of uint8, or float_data has
pixels of float32: planes (C, H, W), by Caffe's convention in the order blue, green, red. packio
writes its planes unchanged, red, green, blue, and says so in the field 100 (a bool), which other
readers ignore.

packio reads floats only if they are packed into one field: then they are one range of bytes.

Sources: src/caffe/proto/caffe.proto, message Datum, and src/caffe/util/io.cpp
(https://github.com/BVLC/caffe); dali/operators/reader/parser/caffe_parser.h
(https://github.com/NVIDIA/DALI).
"""

from __future__ import annotations

from packio.errors import NotAPackError, OutputError
from packio.formats.lmdb.values import FoundImage
from packio.formats.wire import Malformed
from packio.formats.wire.protobuf import _fields, _varint, varint
from packio.images.encodings import RAW, is_image, raw_facts
from packio.sample.facts import UNKNOWN
from packio.sample.record import Field, Record

MOST_BYTES = (2 << 30) - 64  # of an image: protobuf messages have less than 2 GiB

# Tags: number of the field << 3 | wire type
_CHANNELS, _HEIGHT, _WIDTH, _LABEL, _ENCODED, _RGB = 0x08, 0x10, 0x18, 0x28, 0x38, 100 << 3
_NUMBERS = (_CHANNELS, _HEIGHT, _WIDTH, _LABEL, _ENCODED, _RGB)
_DATA, _FLOATS, _FLOAT = 0x22, 0x32, 0x35  # float_data: all in one field, or a field each


def parse(data: bytes) -> FoundImage:
    """Find the image in a Datum."""
    numbers = dict.fromkeys(_NUMBERS, 0)
    ranges = dict.fromkeys((_DATA, _FLOATS, _FLOAT), (0, 0))
    label = None
    for tag, start, stop in _fields(data, 0, len(data)):
        if tag in numbers:
            numbers[tag] = _signed(_varint(data, start)[0])
            label = numbers[_LABEL] if tag == _LABEL else label
        elif tag in ranges:
            ranges[tag] = start, stop
        else:
            raise Malformed(f"a field {tag >> 3} of wire type {tag & 7}, which no Datum has")
    kind = next((tag for tag, (start, stop) in ranges.items() if start < stop), None)
    if kind == _FLOAT and numbers[_CHANNELS]:
        raise NotAPackError(
            "Caffe Datums of floats that are a field each (float_data), so they lie in no one "
            "range of bytes; write them packed, or as data"
        )
    if kind in (None, _FLOAT):
        raise Malformed("a Datum without data")
    dtype = "uint8" if kind == _DATA else "float32"
    return _found(data, FoundImage(*ranges[kind], label), numbers, dtype)


def _found(data: bytes, found: FoundImage, numbers: dict[int, int], dtype: str) -> FoundImage:
    """Add the facts of the pixels, if the Datum holds pixels."""
    height, width, channels = numbers[_HEIGHT], numbers[_WIDTH], numbers[_CHANNELS]
    size = height * width * channels * (1 if dtype == "uint8" else 4)
    fits = size == found.stop - found.start and min(height, width) > 0 and 0 < channels < 256
    if numbers[_ENCODED] or (not fits and is_image(data[found.start : found.start + 16])):
        return found
    if not fits:
        raise Malformed(f"a Datum of neither an image nor {width}x{height}x{channels} {dtype}")
    encoding = "raw" if numbers[_RGB] else "raw_bgr"
    return found._replace(facts=raw_facts(height, width, channels, dtype, encoding))


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def image(value: bytes) -> bytes:
    """The image in a Datum; a value that is no Datum is returned unchanged."""
    try:
        found = parse(value)
    except (Malformed, NotAPackError):
        return value
    return value[found.start : found.stop]


def make(record: Record[Field], field: Field) -> bytes:
    """Make the Datum of an image or a mask of a record, its fields in the order of their numbers.

    A Datum has no place for a label that is a vector, so such a label is left out.
    """
    data, encoding = field.data, field.encoding
    if not data:
        raise OutputError(f"{record.key!r} has no bytes; a Datum has some")
    fields = (
        _pixels(record.key, field)
        if encoding in RAW
        else {_DATA: _sized(data), _ENCODED: (b"\x01",)}
    )
    if isinstance(record.label, int):
        if not -(1 << 31) <= record.label < 1 << 31:
            raise OutputError(f"{record.key!r} has the label {record.label}; Datums have 32 bits")
        fields[_LABEL] = (varint(record.label),)
    return b"".join(part for tag in sorted(fields) for part in (varint(tag), *fields[tag]))


def _pixels(key: bytes, field: Field) -> dict[int, tuple[bytes, ...]]:
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
