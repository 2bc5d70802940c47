r"""RecordIO: MXNet's row of framed records, a ``.rec`` file, with ``.idx`` and ``.lst`` beside it.

What packio writes, byte for byte what mxnet 1.9.1 writes of the same records: record number i of a
file has the id i, the sample's label, and its bytes. Beside ``NAME.rec`` lie ``NAME.idx``, one line
a record, ``i<TAB>position of its first frame<LF>``; and ``NAME.lst``, one line a record,
``i<TAB>label[<TAB>label...]<TAB>key<LF>``, with tab, LF, CR and backslash in a key written ``\t``,
``\n``, ``\r`` and ``\\``. A record has no room for a second image: masks are the records of
``NAME.mask.rec``, with ``NAME.mask.idx``, and the values of another field called F are those of
``NAME.F.KIND.rec``, where KIND is image, mask, array, text or bytes. A record there has the id of
its sample, and a sample may have none. A sample without label gets the label 0. Keys, meta and
boxes are in packio's index only, and cannot be had back from the container. A directory of shards
has ``NAME.all.idx``, too, of all records, with their positions in the shards end to end: what DALI
and dmlc's InputSplit want of several files, of which they take one index.

How the bytes lie on disk; all numbers are little-endian. The file is a row of frames::

    u32 magic 0xCED7230A   u32 part << 29 | length   length bytes   0..3 zero bytes up to a multiple
    part: 0 a whole record   1 the first of several   2 a middle one   3 the last one

A record in which the magic occurs at a multiple of 4 is split there: these 4 bytes are left out and
have to be put between the parts. So the magic at a multiple of 4 always begins a frame. A record::

    u32 number of labels n, or 0   f32 label, if n is 0   u64 id   u64 second id, 0   n f32 labels

and then the image. Files for face recognition (InsightFace) begin with a record that has two labels
and no image: records from number 1 to the first label, exclusive, are the samples, and those that
follow are ranges of identities.

Sources: dmlc-core, ``include/dmlc/recordio.h`` and ``src/recordio.cc``
(https://github.com/dmlc/dmlc-core); MXNet 1.9.1, ``python/mxnet/recordio.py`` and
``tools/im2rec.py`` (https://github.com/apache/mxnet); InsightFace,
``recognition/arcface_torch/dataset.py`` (https://github.com/deepinsight/insightface). Checked
against files that mxnet 1.9.1 wrote (``tools/interop_mxnet.sh``).
"""

from __future__ import annotations

import contextlib
import glob
import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import OutputError
from packio.formats import Caps, Format, Places, Reading, Written, check_reading
from packio.formats.blobs.append_only import Output, write_whole
from packio.formats.recordio import framing
from packio.formats.recordio.framing import HEADER, MAGIC_BYTES, MOST_BYTES, frames
from packio.sample.fields import KINDS
from packio.sample.record import IMAGE, MASK, Field, Place, Record

_FRAME = 8  # bytes before a frame's data
_ESCAPES = ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"), (b"\r", b"\\r"))


class _File:
    """One ``.rec`` with its ``.idx``, and where the values of a field lie in it."""

    def __init__(self, path: Path, number: int) -> None:
        self.records = Output(path)
        self.places = Places(number)
        try:
            self._index = Output(path.with_suffix(".idx"))
        except OutputError:
            self.records.abort()
            raise

    def add(self, number: int, header: bytes, data: bytes, key: bytes) -> None:
        if len(header) + len(data) >= MOST_BYTES:
            raise OutputError(
                f"{self.records.path}: {key!r} has {len(data)} bytes, a record of RecordIO has "
                f"less than {MOST_BYTES}; choose another format"
            )
        start = self.records.size
        pieces = frames(header, data)
        self.records.append(*pieces)
        self._index.append(b"%d\t%d\n" % (number, start))
        whole = len(pieces) == 4
        if whole:
            self.places.add(number, start + _FRAME + len(header), len(data))
        else:
            self.places.add(number, start, self.records.size - start, split=True)

    def close(self) -> None:
        self._index.close()
        self.records.close()

    def abort(self) -> None:
        self._index.abort()
        self.records.abort()

    @property
    def names(self) -> tuple[str, str]:
        return self.records.path.name, self._index.path.name


class RecordIOWriter:
    """Write records into a new ``.rec``; the same records give the same bytes.

    Args:
        path: Of the file; does not exist yet, nor do the others of its name.

    Raises:
        CannotCreateError: one of the files cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._count = self._unlabelled = 0
        self._files = {IMAGE: _File(path, 0)}
        try:
            self._list = Output(path.with_suffix(".lst"))
        except OutputError:
            self._files[IMAGE].abort()
            raise

    def add(self, records: Sequence[Record[Field]]) -> None:
        """Append records.

        Raises:
            OutputError: they cannot be written; the message tells the space left, or what does not
                fit.
        """
        for record in records:
            number = self._count
            flag, label, labels = _labels(record, self._path)
            header = HEADER.pack(flag, label, number, 0)
            for name, field in record.fields.items():
                if name not in self._files:
                    path = self._path.with_suffix(_suffix(name, field.kind))
                    self._files[name] = _File(path, len(self._files))
                mine = header + labels if name == IMAGE else HEADER.pack(0, 0.0, number, 0)
                self._files[name].add(number, mine, field.data, record.key)
            self._list.append(_list_line(number, record))
            self._unlabelled += record.label is None
            self._count += 1

    def close(self) -> Written:
        """Write what is left, and read everything back while it is synced to the disk.

        Raises:
            OutputError: it cannot be written, or what can be read is not what was added.
        """
        self._list.close()
        for file in self._files.values():
            file.close()
        (name, index), *others = (file.names for file in self._files.values())
        return Written(
            files=(name, *(other for other, _ in others)),
            places={n: file.places.ranges(self._count) for n, file in self._files.items()},
            sidecars=(index, self._list.path.name, *(other for _, other in others)),
            info={"labels": "none; 0 stands in the container" if self._unlabelled else "float32"},
        )

    def abort(self) -> None:
        """Let go of the files; they stay."""
        self._list.abort()
        for file in self._files.values():
            file.abort()


def _suffix(name: str, kind: str) -> str:
    """What the file of a field has behind the stem."""
    return ".mask.rec" if (name, kind) == (MASK, "mask") else f".{name}.{kind}.rec"


def _labels(record: Record[Field], path: Path) -> tuple[int, float, bytes]:
    """The fields flag and label of a record's header, and the labels that follow it."""
    if record.label is None:
        return 0, 0.0, b""
    if isinstance(record.label, np.ndarray):
        return record.label.size, 0.0, record.label.astype("<f4").tobytes()
    with contextlib.suppress(OverflowError):
        if int(np.float32(record.label)) == record.label:  # always so from -2**24 to 2**24
            return 0, float(record.label), b""
    raise OutputError(
        f"{path}: the label {record.label} of {record.key!r} does not fit: RecordIO holds labels "
        "as float32, exact up to 16777216; choose another format"
    )


def _list_line(number: int, record: Record[Field]) -> bytes:
    key, label = record.key, record.label
    for raw, escaped in _ESCAPES:
        key = key.replace(raw, escaped)
    if isinstance(label, np.ndarray):
        labels = b"\t".join(b"%.9g" % value for value in label.tolist())  # 9 digits are exact
    else:
        labels = b"%d" % (label or 0)
    return b"%d\t%s\t%s\n" % (number, labels, key)


class RecordIO(Format):
    """RecordIO files of MXNet."""

    caps = Caps((".rec",), keeps=frozenset(("label",)))

    def recognise(self, head: bytes, name: str) -> bool:
        """Tell by the magic, or by the suffix."""
        return head.startswith(MAGIC_BYTES) or super().recognise(head, name)

    def siblings(self, path: Path) -> list[Path]:
        """Files of the masks and of other fields."""
        return [sibling for sibling, _, _ in _siblings(path)]

    def scan(self, path: Path, reading: Reading) -> Iterator[Record[Place]]:
        """Yield every sample, in the order of the file, by walking its frames.

        The key of a sample is the number of its record. ``NAME.idx`` is only asked whether the file
        has been cut off between two records.

        Raises:
            NotAPackError: not a RecordIO file, or not one of images.
            IntegrityError: a frame is damaged, the file is cut off, or fields are missing.
            ReadError: the file cannot be read.
        """
        check_reading(path, reading)
        others = {name: (file, kind) for file, name, kind in _siblings(path)}
        return framing.samples(path, others)

    def writer(
        self, path: Path, *, count: int, size: int, classes: Sequence[str], **options: Any
    ) -> RecordIOWriter:
        """Begin a ``.rec``, with its ``.idx`` and ``.lst``."""
        return RecordIOWriter(path)

    def unsplit(self, raw: bytes) -> bytes:
        """Take the value out of a record's frames."""
        return framing.unsplit(raw)

    def finish(self, folder: Path, shards: Sequence[str]) -> list[str]:
        """Write the index of all shards together.

        Raises:
            OutputError: the index cannot be written.
        """
        base, positions = 0, array("q")
        for shard in shards:
            lines = (folder / shard).with_suffix(".idx").read_bytes().splitlines()
            positions.extend(base + int(line.partition(b"\t")[2]) for line in lines)
            base += (folder / shard).stat().st_size
        name = f"{shards[0].rpartition('-')[0] or 'pack'}.all.idx"
        write_whole(folder / name, b"".join(b"%d\t%d\n" % pair for pair in enumerate(positions)))
        return [name]


FORMAT = RecordIO()


def _siblings(path: Path) -> Iterator[tuple[Path, str, str]]:
    """Path, name and kind of the files that hold the fields of a ``.rec``; the masks first."""
    masks = path.with_suffix(".mask.rec")
    if os.path.lexists(masks):
        yield masks, MASK, "mask"
    for other in sorted(path.parent.glob(f"{glob.escape(path.stem)}.*.*.rec")):
        name, dot, kind = other.stem[len(path.stem) + 1 :].rpartition(".")
        if dot and "." not in name and kind in KINDS:
            yield other, name, kind
