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
are there, too.

Sources: tensorflow/core/lib/io/record_writer.h (framing), models/research/slim/datasets/
build_imagenet_data.py and research/deeplab/datasets/build_data.py (keys), tools/tfrecord2idx of
https://github.com/NVIDIA/DALI (index).
"""

from __future__ import annotations

import contextlib
import os
import re
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import google_crc32c

from packio.errors import CannotCreateError, IntegrityError, NotAPackError, OutputError
from packio.formats import Caps, Format, Places, Reading, Written, check_reading
from packio.formats.tfrecord.fields import features, key_of, record_of
from packio.formats.tfrecord.framing import (
    HEAD,
    MOST_BYTES,
    OVERHEAD,
    TAIL,
    frames,
    head,
    is_head,
    masked,
)
from packio.formats.wire import Malformed
from packio.formats.wire.protobuf import encode
from packio.sample.record import IMAGE, Field, Place, Record
from packio.system.files import room_beside
from packio.system.pools import ThreadPool

INDEX_SUFFIX = ".idx"

_WRITE_BYTES = 8 << 20  # written at once


# TensorFlow's names of shards: train.tfrecord-00000-of-00004
_NAME = re.compile(r".\.tfrec(ords?)?(-\d+-of-\d+)?$")


class TFRecordWriter:
    """Write records into a new file; the same records give the same bytes.

    Args:
        path: Of the file; does not exist yet.
        classes: Names of the labels.

    Raises:
        CannotCreateError: the file or its index cannot be made.
    """

    def __init__(self, path: Path, classes: Sequence[str]) -> None:
        self._path = path
        self._index_path = path.with_name(path.name + INDEX_SUFFIX)
        self._texts = [name.encode("utf-8", "replace") for name in classes]
        self._places: dict[str, Places] = {IMAGE: Places()}
        self._records, self._crcs = array("q", [0]), array("I")  # where each begins; the last ends
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._descriptor: int | None = None
        try:
            self._descriptor = _create(path)
            os.close(_create(self._index_path))
        except OSError as error:
            self.abort()
            raise CannotCreateError(
                f"{error.filename}: cannot be created: {error.strerror}"
            ) from error

    def add(self, records: Sequence[Record[Field]]) -> None:
        """Append records.

        Raises:
            OutputError: they cannot be written; the message tells the space left.
        """
        self._open_descriptor()
        for record in records:
            parts, starts = encode(features(record, self._texts))
            self._append(parts, record)
            data = self._records[-2] + HEAD.size
            for name, field in record.fields.items():
                places = self._places.setdefault(name, Places())
                places.add(len(self._crcs) - 1, data + starts[key_of(name)], len(field.data))
            if self._pending_bytes >= _WRITE_BYTES:
                self._flush()

    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise OutputError(f"{self._path}: closed already")
        return self._descriptor

    def _append(self, parts: list[bytes], record: Record[Field]) -> None:
        length = sum(map(len, parts))
        if length > MOST_BYTES:
            raise OutputError(
                f"{self._path}: {record.key!r} makes a record of {length} bytes, and protobuf "
                f"reads no more than {MOST_BYTES}; leave it out, or use another format"
            )
        crc = 0
        for part in parts:
            crc = google_crc32c.extend(crc, part)
        crc = masked(crc)
        self._pending += (head(length), *parts, TAIL.pack(crc))
        self._pending_bytes += length + OVERHEAD
        self._records.append(self._records[-1] + length + OVERHEAD)
        self._crcs.append(crc)

    def _flush(self) -> None:
        pending = b"".join(self._pending)
        self._pending, self._pending_bytes = [], 0
        with self._output_errors():
            _write(self._open_descriptor(), pending)

    @contextlib.contextmanager
    def _output_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"{self._path}: cannot be written after {len(self._crcs)} records: "
                f"{error.strerror} ({room_beside(self._path)}); make room and run it "
                "again"
            ) from error

    def close(self) -> Written:
        """Write what is left and the index, and read all back while it is synced to the disk.

        Raises:
            OutputError: it cannot be written, or what can be read is not what was added.
        """
        descriptor = self._open_descriptor()
        try:
            self._flush()
            with self._output_errors():
                self._write_index()
            with ThreadPool(1, "packio-sync") as pool:
                synced = pool.submit(self._sync, descriptor)
                self._read_back()
                with self._output_errors():
                    synced.result()
        finally:
            self.abort()
        count = len(self._crcs)
        return Written(
            files=(self._path.name,),
            places={name: places.ranges(count) for name, places in self._places.items()},
            sidecars=(self._index_path.name,),
            info={},
        )

    def abort(self) -> None:
        """Let go of the file and of the records not yet written; the files stay."""
        self._pending, self._pending_bytes = [], 0
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _write_index(self) -> None:
        with self._index_path.open("wb") as file:
            for start, stop in zip(self._records, self._records[1:], strict=False):
                file.write(b"%d %d\n" % (start, stop - start))

    def _sync(self, descriptor: int) -> None:
        os.fsync(descriptor)
        with self._index_path.open("rb") as file:
            os.fsync(file.fileno())

    def _read_back(self) -> None:
        """Compare what the file holds with what was added: positions and checksums."""
        count = 0
        try:
            for frame in frames(self._path):
                expected = self._records[frame.number : frame.number + 2].tolist()
                start = frame.offset - HEAD.size
                found = [start, start + len(frame.data) + OVERHEAD]
                if found != expected or frame.crc != self._crcs[frame.number]:
                    raise IntegrityError(f"{self._path}: record {frame.number} at {start}: another")
                count += 1
        except (IntegrityError, NotAPackError, IndexError) as error:
            raise OutputError(
                f"{self._path}: reads back differently; the disk or its driver is at fault: {error}"
            ) from error
        if count != len(self._crcs):
            raise OutputError(f"{self._path}: {len(self._crcs)} records written, {count} are there")


class TFRecord(Format):
    """TFRecord files of tf.train.Examples."""

    caps = Caps(
        (".tfrecord", ".tfrecords", ".tfrec"), keeps=frozenset(("key", "label", "meta", "boxes"))
    )

    def recognise(self, head: bytes, name: str) -> bool:
        """Tell by the checksum of the first record's length, or by the name."""
        return is_head(head) or _NAME.search(name.lower()) is not None

    def scan(self, path: Path, reading: Reading) -> Iterator[Record[Place]]:
        """Yield every record, in order; lengths and data are checked by their CRCs.

        A record takes 18 µs, and 11 µs more for each 100 KB (reading and checksum).

        Args:
            path: Of the file.
            reading: Features that are the image and the label; None takes the first of a usual
                name, the label "" takes none.

        Raises:
            NotAPackError: no TFRecord file of Examples with an image in each, or a compressed one.
            OptionError: a record has no feature of a name given.
            IntegrityError: the file is damaged; the message tells the record and where it begins.
            ReadError: the file cannot be read.
        """
        check_reading(path, reading, "image", "label")
        for frame in frames(path):
            where = f"{path}: record {frame.number} at {frame.offset - HEAD.size}"
            try:
                yield record_of(frame, path.name, where, reading)
            except Malformed as error:
                raise NotAPackError(f"{where}: no tf.train.Example: {error}") from error

    def writer(
        self, path: Path, *, count: int, size: int, classes: Sequence[str], **options: Any
    ) -> TFRecordWriter:
        """Begin a file, with its index beside it."""
        return TFRecordWriter(path, classes)


FORMAT = TFRecord()


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
