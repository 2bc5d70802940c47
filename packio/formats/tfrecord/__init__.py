"""TFRecord: one file of tf.train.Example messages, each with its checksums.

How the bytes lie on disk, numbers little-endian: a file is records, one after the other ::

    u64 length   u32 masked CRC32C of these 8 bytes   data   u32 masked CRC32C of the data

where masked is ``((crc >> 15 | crc << 17) + 0xA282EAD8) mod 2**32``, and the data are an Example
(`packio.formats.wire.protobuf` has its bytes), which maps keys to lists of bytes, of float32
or of int64. What packio writes, in the order of the keys, so that the bytes are those of protobuf's
deterministic serialization; every record of a pack has the same keys, but for fields that some
samples lack:

==================================  ================================================================
``image/channels, height, width``   int64, as stored, 0 if not known
``image/class/label``               int64; or k float32; missing where there are no labels
``image/class/text``                name of the class (UTF-8), empty if it has none; with int labels
``image/encoded``                   the sample's bytes: the range that packio reads
``image/filename``                  the key as UTF-8, what is not UTF-8 replaced by U+FFFD
``image/format``                    ``JPEG``, ``PNG``, ``WEBP`` …, empty if not known
``image/object/bbox/xmax`` …        xmax, xmin, ymax, ymin: float32, as fractions of width, height
``image/object/class/label``        int64, a label a box; ``is_crowd`` and ``area`` are others of
                                    their columns, and so is ``image/object/NAME``: int64 or float32
``image/segmentation/class/…``      ``encoded``: the mask; ``format``: ``png``, ``jpeg`` …
``packio/boxes``                    float32, 4 a box, XYXY in pixels: fractions are not exact
``packio/key``                      the key
``packio/meta``                     a JSON object (UTF-8)
``NAME/encoded``                    the field NAME: an image, a mask, text, an array (.npy), bytes
``NAME/format``                     ``PNG``, ``JPEG`` …, ``TEXT``, ``NPY`` or ``BYTES``
``NAME/kind``                       ``image``, ``mask``, ``text``, ``array`` or ``bytes``
==================================  ================================================================

Beside it, in ``NAME.idx``, each record has a line ``offset length<LF>``, of the record with its 16
bytes of framing; DALI and the package tfrecord want it.

Others' files are read if the records are Examples with an encoded image in them, under one of the
names that `packio.formats.tfrecord.fields` lists. Boxes are taken from them where height and width
are there, too, and from ``objects/bbox`` of TensorFlow Datasets with its columns of numbers.

Sources: tensorflow/core/lib/io/record_writer.h (framing), models/research/slim/datasets/
build_imagenet_data.py and research/deeplab/datasets/build_data.py (keys), tools/tfrecord2idx of
https://github.com/NVIDIA/DALI (index).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from packio.errors import NotAPackError, OutputError
from packio.formats import Caps, Format, Reading, Written, check_reading, damage_error
from packio.formats.blobs import append_only
from packio.formats.blobs.ranges import Input, open_input, refuse_compressed
from packio.formats.tfrecord.fields import features, key_of, record_of
from packio.formats.wire import MalformedError
from packio.formats.wire.protobuf import encode
from packio.index.indexfile import crc32c, crc32c_of
from packio.sample.record import Field, Place, Record

INDEX_SUFFIX = ".idx"

# TensorFlow's names of shards: train.tfrecord-00000-of-00004
_NAME = re.compile(r".\.tfrec(ords?)?(-\d+-of-\d+)?$")

HEAD = struct.Struct("<QI")  # length, its checksum
TAIL = struct.Struct("<I")  # the data's checksum
OVERHEAD = HEAD.size + TAIL.size
MOST_BYTES = 2**31 - 1  # of a record's data: protobuf reads no larger message
_WINDOW = 4 << 20  # bytes read at once


class Writer(append_only.Writer):
    def __init__(self, path: Path, classes: Sequence[str]) -> None:
        super().__init__(path, path.with_name(path.name + INDEX_SUFFIX))
        self._texts = [name.encode("utf-8", "replace") for name in classes]

    def add(self, records: Sequence[Record[Field]]) -> None:
        file, index = self._outputs
        for record in records:
            parts, starts = encode(features(record, self._texts))
            length = sum(map(len, parts))
            if length > MOST_BYTES:
                raise OutputError(
                    f"{self._path}: {record.key!r} makes a record of {length} bytes, and protobuf "
                    f"reads no more than {MOST_BYTES}; leave it out, or use another format"
                )
            start, crc = file.size, TAIL.pack(mask_crc(crc32c_of(parts)))
            file.append(head(length), *parts, crc)
            index.append(b"%d %d\n" % (start, file.size - start))
            for name, field in record.fields.items():
                self._note(name, start + HEAD.size + starts[key_of(name)], len(field.data))
            self._count += 1

    def close(self) -> Written:
        file, index = (output.path.name for output in self._outputs)
        return self._close([file], [index])


class TFRecord(Format):
    caps: Caps = Caps(
        (".tfrecord", ".tfrecords", ".tfrec"), keeps=frozenset(("key", "label", "meta", "boxes")),
        at_urls=True,
    )  # fmt: skip

    def recognise(self, head: bytes, name: str) -> bool:
        return is_head(head) or _NAME.search(name.lower()) is not None

    def scan(self, path: Path, reading: Reading) -> Iterator[Record[Place]]:
        """Yield every record: 18 µs, and 11 µs for each 100 KB, for reading and the checksum.

        ``reading`` names the features of image and label; None: the first of a usual name.
        """
        check_reading(path, reading, "image", "label")
        for number, (offset, data) in enumerate(frames(path)):
            where = f"{path}: record {number} at {offset - HEAD.size}"
            try:
                yield record_of(data, offset, number, path.name, where, reading)
            except MalformedError as error:
                raise NotAPackError(f"{where}: no tf.train.Example: {error}") from error

    def writer(self, path: Path, *, classes: Sequence[str], **_: Any) -> Writer:
        return Writer(path, classes)


def mask_crc(crc: int) -> int:
    """Mask a CRC32C as TFRecord does: the CRC of data that contain a CRC is problematic."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def head(length: int) -> bytes:
    size = length.to_bytes(8, "little")
    return size + TAIL.pack(mask_crc(crc32c(size)))


def is_head(start: bytes) -> bool:
    return len(start) >= HEAD.size and mask_crc(crc32c(start[:8])) == HEAD.unpack_from(start)[1]


def frames(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the data of each record of a file, all checksums checked."""
    with open_input(path, _WINDOW) as window:
        number = at = 0
        while at < window.size:
            length = _length(window, number, at)
            data = window.read(length, at + HEAD.size)
            crc = TAIL.unpack(window.read(TAIL.size, at + HEAD.size + length))[0]
            if mask_crc(crc32c(data)) != crc:
                where = f"{path}: record {number} at {at}"
                raise damage_error(where, f"its {length} bytes are damaged (CRC32C differs)")
            yield at + HEAD.size, data
            number, at = number + 1, at + length + OVERHEAD


def _length(window: Input, number: int, at: int) -> int:
    left = window.size - at
    where = f"{window.path}: record {number} at {at}"
    raw = window.read(min(HEAD.size, left), at)
    if not is_head(raw):
        if number == 0:
            refuse_compressed(window.path, raw)
            raise NotAPackError(
                f"{window.path}: no TFRecord file, or its beginning is damaged: it begins "
                f"{raw.hex()}"
            )
        if len(raw) == HEAD.size:
            raise damage_error(where, "its length is damaged (CRC32C differs)")
    length = int.from_bytes(raw[:8], "little")
    if length > MOST_BYTES and len(raw) == HEAD.size:
        raise NotAPackError(f"{where}: has {length} bytes, more than an Example can have")
    if length + OVERHEAD > left:
        raise damage_error(where, f"is cut off after {left} bytes")
    return length


FORMAT = TFRecord()
