r"""RecordIO: MXNet's row of framed records, a ``.rec`` file, with ``.idx`` and ``.lst`` beside it.

What packio writes, byte for byte what mxnet 1.9.1 writes of the same records: record number i of a
file has the id i, the sample's label, and its bytes. Beside ``NAME.rec`` lie ``NAME.idx``, one line
a record, ``i<TAB>position of its first frame<LF>``; and ``NAME.lst``, one line a record,
``i<TAB>label[<TAB>label...]<TAB>key<LF>``, with tab, LF, CR and backslash in a key written ``\t``,
``\n``, ``\r`` and ``\\``. A record has no room for a second image: masks are the records of
``NAME.mask.rec``, with ``NAME.mask.idx``. A sample without label gets the label 0. Keys, meta and
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
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import OutputError
from packio.formats import Ranges, Written
from packio.formats.blobs.append_only import Output, write_whole
from packio.formats.recordio.framing import HEADER, MOST_BYTES, frames, scan, unsplit
from packio.sample.record import Field, Record

__all__ = ["EXTRA", "IS_DIRECTORY", "PACKAGE", "SUFFIXES", "Writer", "finish", "scan", "unsplit"]

SUFFIXES = (".rec",)
IS_DIRECTORY = False
PACKAGE = None
EXTRA = None

_FRAME = 8  # bytes before a frame's data
_ESCAPES = ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"), (b"\r", b"\\r"))


class _File:
    """One ``.rec`` with its ``.idx``, and where the images lie in it."""

    def __init__(self, path: Path) -> None:
        self.records = Output(path)
        self.offset, self.length, self.split = array("q"), array("q"), array("B")
        try:
            self._index = Output(path.with_suffix(".idx"))
        except OutputError:
            self.records.abort()
            raise

    def add(self, header: bytes, data: bytes, key: bytes) -> None:
        if len(header) + len(data) >= MOST_BYTES:
            raise OutputError(
                f"{self.records.path}: {key!r} has {len(data)} bytes, a record of RecordIO has "
                f"less than {MOST_BYTES}; choose another format"
            )
        start, number = self.records.size, len(self.offset)
        pieces = frames(header, data)
        self.records.append(*pieces)
        self._index.append(b"%d\t%d\n" % (number, start))
        whole = len(pieces) == 4
        self.split.append(not whole)
        self.offset.append(start + _FRAME + len(header) if whole else start)
        self.length.append(len(data) if whole else self.records.size - start)

    def close(self) -> None:
        self._index.close()
        self.records.close()

    def abort(self) -> None:
        self._index.abort()
        self.records.abort()

    @property
    def names(self) -> tuple[str, str]:
        return self.records.path.name, self._index.path.name


class Writer:
    """Write records into a new ``.rec``; the same records give the same bytes.

    Args:
        path: Of the file; does not exist yet, nor do the others of its name.
        count: Samples about to come.
        size: Bytes of all of them together.
        classes: Names of the labels.

    Raises:
        CannotCreateError: one of the files cannot be made.
    """

    def __init__(
        self, path: Path, *, count: int = 0, size: int = 0, classes: Sequence[str] = ()
    ) -> None:
        self._path = path
        self._unlabelled = 0
        self._masks: _File | None = None
        self._images = _File(path)
        try:
            self._list = Output(path.with_suffix(".lst"))
        except OutputError:
            self._images.abort()
            raise

    def add(self, records: Sequence[Record[Field]]) -> None:
        """Append records.

        Raises:
            OutputError: they cannot be written, or do not fit the format: a record of 512 MiB, an
                int label that no float32 can hold, a mask that would have to be split.
        """
        for record in records:
            number = len(self._images.offset)
            flag, label, labels = _labels(record, self._path)
            header = HEADER.pack(flag, label, number, 0) + labels
            self._images.add(header, record.image.data, record.key)
            self._list.append(_list_line(number, record))
            self._unlabelled += record.label is None
            if record.mask is not None:
                self._add_mask(number, record.mask.data, record.key)

    def _add_mask(self, number: int, mask: bytes, key: bytes) -> None:
        if self._masks is None:
            self._masks = _File(self._path.with_suffix(".mask.rec"))
        self._masks.add(HEADER.pack(0, 0.0, number, 0), mask, key)
        if self._masks.split[-1]:
            raise OutputError(
                f"{self._path}: the mask of {key!r} has RecordIO's magic number at a multiple of 4 "
                "bytes, and would have to be split; choose another format"
            )

    def close(self) -> Written:
        """Write what is left, and read everything back while it is synced to the disk.

        Raises:
            OutputError: it cannot be written, what can be read is not what was added, or some
                records have masks and some have none.
        """
        images, masks = self._images, self._masks
        if masks is not None and len(masks.offset) != len(images.offset):
            raise OutputError(
                f"{self._path}: {len(masks.offset)} masks for {len(images.offset)} records"
            )
        files = [file for file in (images, masks) if file is not None]
        self._list.close()
        for file in files:
            file.close()
        return Written(
            files=tuple(file.names[0] for file in files),
            **(_ranges(images, 0)._asdict() | {"split": np.array(images.split, bool)}),
            sidecars=(images.names[1], self._list.path.name, *(f.names[1] for f in files[1:])),
            info=self._info(),
            masks=None if masks is None else _ranges(masks, 1),
        )

    def _info(self) -> dict[str, Any]:
        if not self._unlabelled:
            return {"labels": "float32"}
        return {"labels": "none; 0 stands in the container"}

    def abort(self) -> None:
        """Let go of the files; they stay."""
        for output in (self._list, self._images, self._masks):
            if output is not None:
                output.abort()


def _ranges(file: _File, number: int) -> Ranges:
    return Ranges(
        file=np.full(len(file.offset), number, np.uint32),
        offset=np.array(file.offset, np.int64),
        length=np.array(file.length, np.int64),
    )


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


def finish(folder: Path, shards: Sequence[str]) -> tuple[str, ...]:
    """Write the index of all shards together.

    Args:
        folder: That the ``.rec`` and ``.idx`` files lie in.
        shards: Names of the ``.rec`` files, in order.

    Returns:
        Names of the files written.

    Raises:
        OutputError: they cannot be written.
    """
    base, positions = 0, array("q")
    for shard in shards:
        lines = (folder / shard).with_suffix(".idx").read_bytes().splitlines()
        positions.extend(base + int(line.partition(b"\t")[2]) for line in lines)
        base += (folder / shard).stat().st_size
    name = f"{shards[0].rpartition('-')[0] or 'pack'}.all.idx"
    write_whole(folder / name, b"".join(b"%d\t%d\n" % pair for pair in enumerate(positions)))
    return (name,)


def _list_line(number: int, record: Record[Field]) -> bytes:
    key, label = record.key, record.label
    for raw, escaped in _ESCAPES:
        key = key.replace(raw, escaped)
    if isinstance(label, np.ndarray):
        labels = b"\t".join(b"%.9g" % value for value in label.tolist())  # 9 digits are exact
    else:
        labels = b"%d" % (label or 0)
    return b"%d\t%s\t%s\n" % (number, labels, key)
