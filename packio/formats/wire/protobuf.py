"""tf.train.Example on the wire: written and walked without protobuf; see `packio.formats.tfrecord`.

The messages; a field without a number has the number 1::

    Example { Features }   Features { map<string, Feature> }   an entry of a map { key; value = 2 }
    Feature { one of: BytesList; FloatList = 2; Int64List = 3 }
    BytesList { repeated bytes }   FloatList { repeated float }   Int64List { repeated int64 }

A field is a varint ``number << 3 | wire type`` and its content: wire type 0 a varint, 1 eight
bytes, 2 a varint length and as many bytes, 5 four bytes. Numbers in lists are packed into one field
of wire type 2, or are a field each. Unknown fields are skipped. If a list comes twice, the two are
joined; if another field comes twice, the last one holds.

Sources: https://protobuf.dev/programming-guides/encoding/ and, for the messages,
tensorflow/core/example/feature.proto and example.proto.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Iterator

from packio.formats.wire import MalformedError

BYTES, FLOAT, INT64 = 1, 2, 3  # kinds of Feature: the fields' numbers

Range = tuple[int, int]  # start and stop, within a record

_TAG_1, _TAG_2 = 0x0A, 0x12  # fields 1 and 2 of wire type 2
_KIND_OF_TAG = {0x0A: BYTES, 0x12: FLOAT, 0x1A: INT64}
_TAG_OF_KIND = {kind: bytes([tag]) for tag, kind in _KIND_OF_TAG.items()}
_FIXED = {1: 8, 5: 4}  # wire type → bytes


def varint(number: int) -> bytes:
    """Encode an int of 64 bits; a negative int is encoded as 2**64 more, as protobuf's int64."""
    number &= 0xFFFF_FFFF_FFFF_FFFF
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def encode(features: Iterable[tuple[bytes, int, bytes]]) -> tuple[list[bytes], dict[bytes, int]]:
    """The parts of an Example, large contents among them uncopied, and where each content begins.

    Features are (key, kind, content), in the order of the keys: protobuf's deterministic order. The
    content is one value of bytes, or numbers, packed already.
    """
    parts = [b""]
    starts = {}
    size = 0
    for key, kind, content in features:
        head = _head(key, kind, len(content))
        parts += (head, content)
        size += len(head) + len(content)
        starts[key] = size - len(content)
    parts[0] = b"\n" + varint(size)
    return parts, {key: start + len(parts[0]) for key, start in starts.items()}


@functools.lru_cache(4096)  # labels, sizes, names have few lengths: saves 10 of 27 µs a record
def _head(key: bytes, kind: int, size: int) -> bytes:
    """The bytes of a map's entry before the content."""
    head = b"\n" + varint(size) if size or kind == BYTES else b""  # an empty list has no field
    head = _TAG_OF_KIND[kind] + varint(len(head) + size) + head
    head = b"\n" + varint(len(key)) + key + b"\x12" + varint(len(head) + size) + head
    return b"\n" + varint(len(head) + size) + head


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the fields of a message: tag, and range of the content. ``end`` is within the data."""
    try:
        while at < end:
            tag = data[at]
            at += 1
            if tag > 0x7F:
                tag, at = _varint(data, at - 1)
            wire = tag & 7
            if wire == 2:
                size = data[at]
                at += 1
                if size > 0x7F:
                    size, at = _varint(data, at - 1)
                start = at
                at += size
            elif wire == 0:
                start = at
                _, at = _varint(data, at)
            else:
                start = at
                at += _FIXED[wire]
            if at > end or tag < 8:
                raise MalformedError(f"a field at byte {start} ends at {at}, outside its message")
            yield tag, start, at
    except IndexError:
        raise MalformedError(f"it ends within a field, after {len(data)} bytes") from None
    except KeyError:
        raise MalformedError(
            f"a field at byte {at} has wire type {wire}, of no known length"
        ) from None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode a varint: the number and the position after it. IndexError: the data end before."""
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return number & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
        if shift > 63:
            raise MalformedError(f"a number at byte {at - 10} has more than 10 bytes")


class Example:
    """A serialized Example, whose features are decoded when they are asked for."""

    __slots__ = ("data", "features", "is_sequence")

    def __init__(self, data: bytes) -> None:
        self.data: bytes = data
        self.features: dict[bytes, list[Range]] = {}
        self.is_sequence = False
        for tag, start, stop in _fields(data, 0, len(data)):
            if tag == _TAG_1:
                for inner, first, last in _fields(data, start, stop):
                    if inner == _TAG_1:
                        self._add_entry(first, last)
            elif tag == _TAG_2:
                self.is_sequence = True

    def _add_entry(self, start: int, stop: int) -> None:
        data, key = self.data, b""
        # A usual short one: saves 2 of 9 µs a record.
        if stop - start > 3 and data[start] == _TAG_1 and data[start + 1] < 128:
            value = start + 4 + data[start + 1]
            if (
                value <= stop
                and data[value - 2] == _TAG_2
                and data[value - 1] == stop - value < 128
            ):
                self.features[data[start + 2 : value - 2]] = [(value, stop)]
                return
        values = []
        for tag, first, last in _fields(data, start, stop):
            if tag == _TAG_1:
                key = data[first:last]
            elif tag == _TAG_2:
                values.append((first, last))
        self.features[key] = values

    def lists(self, key: bytes) -> tuple[int, list[Range]]:
        """Kind and lists of a feature; kind 0 if the feature has no list, or is not there."""
        kind = 0
        lists: list[Range] = []
        for start, stop in self.features.get(key, ()):
            for tag, first, last in _fields(self.data, start, stop):
                found = _KIND_OF_TAG.get(tag, 0)
                if found and found != kind:
                    kind, lists = found, []
                if found:
                    lists.append((first, last))
        return kind, lists

    def single(self, key: bytes) -> Range | None:
        """Where the value of a feature of bytes lies; None unless the feature has exactly one."""
        kind, lists = self.lists(key)
        if kind != BYTES:
            return None
        found = None
        for start, stop in lists:
            for tag, first, last in _fields(self.data, start, stop):
                if tag == _TAG_1:
                    if found:
                        return None
                    found = first, last
        return found

    def numbers(self, key: bytes) -> list[int] | list[float] | None:
        """The numbers of a feature; None if the feature is not of ints or floats."""
        kind, lists = self.lists(key)
        if kind == INT64:
            return [n for start, stop in lists for n in self._ints(start, stop)]
        if kind == FLOAT:
            return [x for start, stop in lists for x in self._floats(start, stop)]
        return None

    def _ints(self, start: int, stop: int) -> Iterator[int]:
        for tag, first, last in _fields(self.data, start, stop):
            at = first if tag in (_TAG_1, 0x08) else last
            while at < last:
                try:
                    number, at = _varint(self.data, at)
                except IndexError:
                    at = last + 1
                if at > last:
                    raise MalformedError(f"a number ends at byte {at}, outside its list")
                yield number - (number >> 63 << 64)

    def _floats(self, start: int, stop: int) -> Iterator[float]:
        for tag, first, last in _fields(self.data, start, stop):
            if tag in (_TAG_1, 0x0D):
                if (last - first) % 4:
                    raise MalformedError(f"floats at byte {first} have {last - first} bytes")
                yield from struct.unpack_from(f"<{(last - first) // 4}f", self.data, first)
