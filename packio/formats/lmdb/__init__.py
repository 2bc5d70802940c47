r"""LMDB: a memory-mapped B+tree, one directory with ``data.mdb`` in it.

What packio writes: record number i of N has the key ``%08d`` of i (more digits if N needs them)
and the sample's bytes as its value; there is nothing else in the database. ``labels.tsv`` beside it
has one line a record, ``index<TAB>label<TAB>key<LF>``: the label empty if there is none, the
numbers of a vector with commas between them; the key as raw bytes with tab, LF, CR and backslash
written ``\t``, ``\n``, ``\r`` and ``\\``. Masks are in ``mask/``, a database of its own, under the
same keys. What else a pack has (meta, boxes) is in its index alone. With ``values="datum"`` each
value, of masks, too, is a Datum that holds the sample's bytes and, if it is an int, its label:
`packio.formats.lmdb.datum`.

How the bytes lie on disk, format version 1 (LMDB 0.9; LMDB 1.0 writes another, version 3). All
numbers are little-endian here; LMDB writes them as the machine has them. The file is a row of pages
as large as the writer's memory pages (4,096 bytes, or as the meta page says); a page number times
the page size is its position. Pages at the end of the file that are in no use may be missing. Each
page begins with 16 bytes::

    u64 its own number   u16 unused   u16 kind   u16 lower, u16 upper   (or u32 pages, if overflow)
    kind: 1 branch  2 leaf  4 overflow  8 meta  0x20 and 0x40: of databases with duplicate keys

* **Meta**, pages 0 and 1, written in turn; that with the larger transaction id holds. From byte 16:
  u32 magic 0xBEEFC0DE, u32 version, u64 address, u64 map size, twice the 48 bytes of a tree (first
  the free list, whose first field is the page size, then the records), u64 last page in use,
  u64 transaction id. A tree: u32 padding, u16 flags, u16 depth, u64 numbers of branch, leaf and
  overflow pages, u64 entries, u64 root page (all ones: empty).
* **Branch and leaf**: the u16 at 16..lower are the positions of the nodes within the page, in the
  order of their keys; the nodes lie in upper..end. A node: u16 low, u16 high, u16 flags, u16 key
  size, the key, the value. In a branch, low, high and flags are the 48 bits of a child's page
  number and there is no value. In a leaf, low and high are the size of the value and flags says
  where it is: 0 here; 1 in overflow pages, here is the u64 number of the first; 2 or 4: it is a
  tree of its own.
* **Overflow**: the value, from byte 16 of the first of as many pages in a row as it takes, so it is
  one range of bytes. Values that do not fit twice into a page go there.

Sources: ``lmdb.h`` and ``mdb.c`` of LMDB 0.9 (https://git.openldap.org/openldap/openldap, branch
mdb.RE/0.9), checked against files that it wrote.
"""

from __future__ import annotations

import contextlib
import os
import re
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packio import registry
from packio.errors import CannotCreateError, IntegrityError, OptionError, OutputError
from packio.formats import Entry, Ranges, Written
from packio.formats.lmdb import datum, layouts
from packio.formats.lmdb.library import Reader
from packio.formats.lmdb.pages import DATA_NAME, VERSION, File, Tree, identity, newest_meta, opened
from packio.index.indexfile import crc32c
from packio.sample.facts import UNKNOWN
from packio.sample.record import Field, Record, image_record
from packio.system.files import room_beside
from packio.system.pools import ThreadPool

__all__ = [
    "EXTRA", "IS_DIRECTORY", "OPTIONS", "PACKAGE", "SUFFIXES", "Reader", "Writer", "identity",
    "scan",
]  # fmt: skip

SUFFIXES = (".lmdb",)
IS_DIRECTORY = True
PACKAGE = "lmdb"
EXTRA = None
OPTIONS = {"values": "'datum': protobuf messages with image and label, for Caffe and DALI."}

LABELS_NAME = "labels.tsv"
MASKS_NAME = "mask"  # a database of its own, under the same keys

# A batch is held twice, here and in LMDB's dirty pages, until it is committed. Written in 8 MiB the
# 5,000 photos of 504 MB take 0.25 s, in 64 MiB 0.37 s, in 256 MiB 0.41 s (the best of 7 runs each):
# the heap is used again while it is in the cache, and need not be zeroed by the kernel anew.
_COMMIT_BYTES = 8 << 20
_COMMIT_RECORDS = 5000
_MOST_BYTES = 0xFFFFFFFF  # of one value: LMDB's MAXDATASIZE

_ESCAPES = ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"), (b"\r", b"\\r"))


def scan(path: Path, *, trust_plain_pickle: bool = False) -> Iterator[Entry]:
    """Yield an entry for every record, in order; see `packio.formats`.

    Labels and keys come from ``labels.tsv`` where it is there and fits, masks from ``mask/``. A
    database without both is of others, and read by its layout; see `packio.formats.lmdb.layouts`.

    Args:
        path: The directory that holds ``data.mdb``, or a database that is a single file.
        trust_plain_pickle: Read values that are pickles of plain data; nothing in them is run.

    Raises:
        NotAPackError: not an LMDB database of version 1, one with trees inside, or a layout that
            is not read.
        IntegrityError: a page is damaged or lies beyond the end of the file.
        ReadError: a file cannot be read.
    """
    labels = _read_labels(path)
    masks = layouts.own(path / MASKS_NAME) if (path / MASKS_NAME).is_dir() else None
    if masks is None and not labels:
        yield from layouts.scan(path, trust_plain_pickle=trust_plain_pickle)
        return
    for i, entry in enumerate(layouts.own(path)):
        number = int(entry.name) if entry.name.isdigit() else -1
        label, key = labels.get(number, (entry.label, None))
        if masks is not None:
            mask = next(masks, None)
            if mask is None or mask.name != entry.name:
                raise IntegrityError(f"{path / MASKS_NAME}: no mask for record {i}")
            place = (f"{MASKS_NAME}/{mask.file}", mask.offset, mask.length)
            entry = entry._replace(mask=place)  # noqa: PLW2901 (the same entry, completed)
        yield entry._replace(label=label, key=key)


def _read_labels(path: Path) -> dict[int, tuple[Any, bytes]]:
    """Record number → label and key, as ``labels.tsv`` has them; empty where it does not parse."""
    found: dict[int, tuple[Any, bytes]] = {}
    try:
        lines = (path / LABELS_NAME).read_bytes().split(b"\n")
        for line in lines[:-1]:
            number, label, key = line.split(b"\t")
            numbers = [float(n) for n in label.split(b",")] if label else []
            vector = tuple(numbers) if b"," in label or b"." in label else None
            value = vector or (int(label) if label else None)
            found[int(number)] = (value, _unescaped(key))
    except (OSError, ValueError):
        return {}
    return found


def _unescaped(key: bytes) -> bytes:
    back = {escaped: raw for raw, escaped in _ESCAPES}
    return re.sub(rb"\\[tnr\\]", lambda match: back[match.group()], key)


class Writer:
    """Write records into a new database; the same records give the same bytes.

    Records are committed by 8 MiB or 5,000, whatever comes first, however they are handed over;
    twice that is the memory in use. A map that proves too small grows, and the batch that hit its
    end is written again: LMDB has then forgotten all of it.
    """

    def __init__(
        self,
        path: Path,
        *,
        count: int,
        size: int,
        classes: Sequence[str] = (),
        values: str | None = None,
    ) -> None:
        """Create the directory.

        Args:
            path: The directory; does not exist yet.
            count: Samples about to come; sets the width of the keys.
            size: Bytes of all of them together.
            classes: Of no use here: an LMDB holds samples alone.
            values: "datum": Datums; None: the samples' bytes as they are.

        Raises:
            OptionError: no such values.
            CannotCreateError: the directory cannot be made.
            OutputError: there is no room for the map.
            MissingPackageError: lmdb does not load.
        """
        if values not in (None, "datum"):
            raise OptionError(f"values={values!r}: expected 'datum', or nothing")
        self._lmdb = registry.require(PACKAGE, EXTRA)
        self._path, self._values = path, values
        self._count, self._size = count, size
        self._masks: Writer | None = None
        self._width = max(8, len(str(max(count - 1, 0))))
        self._crcs = array("I")
        self._batch: list[tuple[bytes, bytes]] = []
        self._batch_bytes = 0
        self._env: Any = None
        try:
            path.mkdir()
            self._labels = (path / LABELS_NAME).open("xb")
        except OSError as error:
            raise CannotCreateError(f"{path}: cannot be created: {error.strerror}") from error
        # A value above half a page takes whole pages and 16 bytes, another its key and 10 bytes.
        self._map_size = (size + count * (4096 + 64) + (16 << 20)) >> 20 << 20
        try:
            with self._output_errors():
                self._env = self._open()
        except OutputError:
            self.abort()
            raise

    def _open(self) -> Any:
        # py-lmdb 3 writes both versions of the format; older ones do not know the option.
        options = {"lib_version": 0} if _major(self._lmdb) >= 3 else {}
        return self._lmdb.open(
            os.fsencode(self._path),
            map_size=self._map_size,
            meminit=True,  # otherwise the heap's old bytes get into the file
            lock=False,
            sync=False,  # once, in close
            map_async=False,
            writemap=False,
            **options,
        )

    @contextlib.contextmanager
    def _output_errors(self) -> Iterator[None]:
        try:
            yield
        except (self._lmdb.Error, OSError) as error:
            raise OutputError(
                f"{self._path}: cannot be written after {len(self._crcs)} records: {error} "
                f"({room_beside(self._path)}; LMDB calls a full disk an input/output "
                "error); make room and run it again"
            ) from error

    def add(self, records: Sequence[Record[Field]]) -> None:
        """Append records.

        Raises:
            OutputError: they cannot be written; the message tells the space left, or what does not
                fit.
        """
        if self._env is None:
            raise OutputError(f"{self._path}: closed already")
        if records and records[0].mask is not None:
            self._add_masks(records)
        lines = []
        for record in records:
            number, value = len(self._crcs), self._value(record)
            lines.append(_label_line(number, record))
            self._crcs.append(crc32c(value))
            self._batch.append((self._key(number), value))
            self._batch_bytes += len(value)
            if self._batch_bytes >= _COMMIT_BYTES or len(self._batch) >= _COMMIT_RECORDS:
                self._commit()
        with self._output_errors():
            self._labels.write(b"".join(lines))

    def _value(self, record: Record[Field]) -> bytes:
        is_datum = self._values == "datum"
        most = datum.MOST_BYTES if is_datum else _MOST_BYTES
        if len(record.image.data) > most:
            raise OutputError(f"{self._path}: {record.key!r} has over {most} bytes")
        try:
            return datum.make(record) if is_datum else record.image.data
        except OutputError as error:
            raise OutputError(f"{self._path}: {error}") from error

    def _add_masks(self, records: Sequence[Record[Field]]) -> None:
        if self._masks is None:
            self._masks = Writer(
                self._path / MASKS_NAME, count=self._count, size=self._size, values=self._values
            )
        self._masks.add([
            image_record(
                b"" if r.mask is None else r.mask.data, key=r.key, label=r.label, facts=UNKNOWN
            )
            for r in records
        ])  # fmt: skip

    def _key(self, number: int) -> bytes:
        return b"%0*d" % (self._width, number)

    def _commit(self) -> None:
        with self._output_errors():
            while not self._put_batch():
                self._map_size *= 2
                self._env.set_mapsize(self._map_size)
        self._batch = []
        self._batch_bytes = 0

    def _put_batch(self) -> bool:
        """Write the batch in one transaction, or nothing of it and tell that the map is full."""
        try:
            with self._env.begin(write=True) as transaction:
                for key, data in self._batch:
                    if not transaction.put(key, data, append=True):
                        raise OutputError(f"{self._path}: LMDB refused to append {key!r}")
        except self._lmdb.MapFullError:
            return False
        return True

    def close(self) -> Written:
        """Commit what is left, and read everything back while it is synced to the disk.

        Raises:
            OutputError: it cannot be written, or what can be read is not what was added.
        """
        if self._env is None:
            raise OutputError(f"{self._path}: closed already")
        masks = self._masks.close() if self._masks is not None else None
        if self._batch:
            self._commit()
        with self._output_errors():
            entries = self._env.stat()["entries"]
            self._labels.flush()
        self.abort()
        if entries != len(self._crcs):
            raise OutputError(
                f"{self._path}: {len(self._crcs)} records were written, LMDB has {entries}"
            )
        with opened(self._path) as file, ThreadPool(1, "packio-sync") as pool:
            synced = pool.submit(os.fsync, file.descriptor)
            written = self._read_back(file)
            with self._output_errors():
                synced.result()
        return written if masks is None else _with_masks(written, masks)

    def abort(self) -> None:
        """Let go of the database and of the records not yet committed; the files stay."""
        self._batch = []
        if self._masks is not None:
            self._masks.abort()
        env, self._env = self._env, None
        if env is not None:
            env.close()
        with contextlib.suppress(OSError):  # flushes, and the disk may be full
            self._labels.close()

    def _read_back(self, file: File) -> Written:
        """Find every record where it lies, and compare its checksum with what was added."""
        offset = np.empty(len(self._crcs), np.int64)
        length = np.empty(len(self._crcs), np.int64)
        for i, entry in enumerate(Tree(file, newest_meta(file)).entries()):
            data = file.read(entry.length, entry.offset)
            if entry.name != self._key(i) or crc32c(data) != self._crcs[i]:
                raise OutputError(
                    f"{file.path}: record {i} reads back differently (as {entry.name!r}, "
                    f"{len(data)} bytes at {entry.offset}); the disk or its driver is at fault"
                )
            start, stop = 0, len(data)
            if self._values == "datum":
                start, stop = datum.parse(data)[:2]
            offset[i], length[i] = entry.offset + start, stop - start
        return Written(
            files=(DATA_NAME,),
            file=np.zeros(len(self._crcs), np.uint32),
            offset=offset,
            length=length,
            sidecars=(LABELS_NAME,),
            info={"keys": self._width, "version": VERSION}
            | ({} if self._values is None else {"values": self._values}),
        )


def _with_masks(images: Written, masks: Written) -> Written:
    """Describe a database and that of its masks together."""
    files = [f"{MASKS_NAME}/{name}" for name in masks.files]
    sidecars = [f"{MASKS_NAME}/{name}" for name in masks.sidecars]
    numbers = masks.file + np.uint32(len(images.files))
    return images._replace(
        files=(*images.files, *files),
        sidecars=(*images.sidecars, *sidecars),
        masks=Ranges(numbers, masks.offset, masks.length),
    )


def _major(module: Any) -> int:
    return int(module.__version__.split(".")[0])


def _label_line(number: int, record: Record[Field]) -> bytes:
    key = record.key
    for raw, escaped in _ESCAPES:
        key = key.replace(raw, escaped)
    given = record.label
    if given is None or isinstance(given, int):
        label = b"" if given is None else b"%d" % given
    else:
        label = b",".join(repr(float(value)).encode() for value in given)
    return b"%d\t%s\t%s\n" % (number, label, key)
