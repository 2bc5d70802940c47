r"""RecordIO: MXNet's row of framed records, a ``.rec`` file, with ``.idx`` and ``.lst`` beside it.

What packio writes, byte for byte what mxnet 1.9.1 writes of the same records: record number i of a
file has the id i, the sample's label, and its bytes. Beside ``NAME.rec`` lie ``NAME.idx``, one line
a record, ``i<TAB>position of its first frame<LF>``; and ``NAME.lst``, one line a record,
``i<TAB>label[<TAB>label...]<TAB>key<LF>``, with tab, LF, CR and backslash in a key written ``\t``,
``\n``, ``\r`` and ``\\``. A record has no room for a second image. So masks are the records of
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import OutputError
from packio.formats import Caps, Format, Reading, Written, check_reading
from packio.formats.blobs import append_only
from packio.formats.blobs.append_only import write_whole
from packio.formats.recordio import framing
from packio.formats.recordio.framing import HEADER, MAGIC_BYTES, MOST_BYTES, frames
from packio.formats.wire import escape
from packio.sample.fields import KINDS
from packio.sample.record import IMAGE, MASK, Field, Place, Record

_FRAME = 8  # bytes before a frame's data


class Writer(append_only.Writer):
    def __init__(self, path: Path) -> None:
        super().__init__(path, path.with_suffix(".idx"), path.with_suffix(".lst"))
        records, index, self._list = self._outputs
        self._files = {IMAGE: (records, index)}
        self._unlabelled = False

    def add(self, records: Sequence[Record[Field]]) -> None:
        for record in records:
            if IMAGE in record.fields:
                flag, label, labels = _labels(record, self._path)
                self._put(IMAGE, HEADER.pack(flag, label, self._count, 0) + labels, record)
                self._list.append(_list_line(self._count, record))
            for name in record.fields.keys() - {IMAGE}:
                self._put(name, HEADER.pack(0, 0.0, self._count, 0), record)
            self._unlabelled = self._unlabelled or record.label is None
            self._count += 1

    def _put(self, name: str, header: bytes, record: Record[Field]) -> None:
        field = record.fields[name]
        if name not in self._files:
            is_mask = (name, field.kind) == (MASK, "mask")
            path = self._path.with_suffix(f".{name if is_mask else f'{name}.{field.kind}'}.rec")
            self._files[name] = self._open(path), self._open(path.with_suffix(".idx"))
        file, index = self._files[name]
        if len(header) + len(field.data) >= MOST_BYTES:
            raise OutputError(
                f"{file.path}: {record.key!r} has {len(field.data)} bytes, a record of RecordIO "
                f"has less than {MOST_BYTES}; choose another format"
            )
        start, pieces = file.size, frames(header, field.data)
        file.append(*pieces)
        index.append(b"%d\t%d\n" % (self._count, start))
        number = list(self._files).index(name)
        if len(pieces) == 4:
            begin = start + _FRAME + len(header)
            self._note(name, begin, len(field.data), file=number)
        else:
            self._note(name, start, file.size - start, file=number, split=True)

    def close(self) -> Written:
        names = [(file.path.name, index.path.name) for file, index in self._files.values()]
        sidecars = [names[0][1], self._list.path.name, *(index for _, index in names[1:])]
        labels = "none; 0 stands in the container" if self._unlabelled else "float32"
        return self._close([name for name, _ in names], sidecars, labels=labels)


def _labels(record: Record[Field], path: Path) -> tuple[int, float, bytes]:
    """The fields flag and label of a record's header, and the labels that follow it."""
    if record.label is None:
        return 0, 0.0, b""
    if isinstance(record.label, np.ndarray):
        held = record.label.astype("<f4")
        if record.label.dtype.kind == "f" or held.astype(int).tolist() == record.label.tolist():
            return record.label.size, 0.0, held.tobytes()
    with contextlib.suppress(OverflowError, TypeError):  # too large; several numbers
        if int(np.float32(record.label)) == record.label:  # always so from -2**24 to 2**24
            return 0, float(record.label), b""
    raise OutputError(
        f"{path}: the label {record.label} of {record.key!r} does not fit: RecordIO holds labels "
        "as float32, exact up to 16777216; choose another format"
    )


def _list_line(number: int, record: Record[Field]) -> bytes:
    label = record.label
    if isinstance(label, np.ndarray):
        labels = b"\t".join(b"%.9g" % value for value in label.tolist())  # 9 digits are exact
    else:
        labels = b"%d" % (label or 0)
    return b"%d\t%s\t%s\n" % (number, labels, escape(record.key))


class RecordIO(Format):
    caps: Caps = Caps(
        (".rec",), magic=(MAGIC_BYTES,), keeps=frozenset(("label",)), fields_apart=True
    )

    def siblings(self, path: Path) -> list[Path]:
        return [sibling for sibling, _, _ in _siblings(path)]

    def scan(self, path: Path, reading: Reading) -> Iterator[Record[Place]]:
        """Yield every sample, keyed by the number of its record.

        ``NAME.idx`` only tells whether the file was cut off between two records.
        """
        check_reading(path, reading)
        others = {name: (file, kind) for file, name, kind in _siblings(path)}
        return framing.samples(path, others)

    def writer(self, path: Path, **_: Any) -> Writer:
        return Writer(path)

    def unsplit(self, raw: bytes) -> bytes:
        return framing.unsplit(raw)

    def finish(self, folder: Path, shards: Mapping[str, Path]) -> list[str]:
        base, positions = 0, array("q")
        for path in shards.values():
            lines = path.with_suffix(".idx").read_bytes().splitlines()
            positions.extend(base + int(line.partition(b"\t")[2]) for line in lines)
            base += path.stat().st_size
        name = f"{next(iter(shards)).rpartition('-')[0] or 'pack'}.all.idx"
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
