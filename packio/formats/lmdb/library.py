"""LMDB databases written through py-lmdb, and read in another process.

Reading is as `packio.formats.blobs.by_library` says: a damaged database can crash LMDB, as it
maps the file into memory and follows what its pages say.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from packio import registry
from packio.errors import CannotCreateError, IntegrityError, OptionError, OutputError, ReadError
from packio.formats import Places, Ranges, Reading, Written
from packio.formats.blobs.by_library import FoundSamples
from packio.formats.lmdb import layouts, pages
from packio.formats.lmdb.pages import DATA_NAME, open_data_file
from packio.formats.lmdb.values import MOST_DATUM_BYTES, encode_datum, image_of, parse_datum
from packio.formats.wire import escape
from packio.index.indexfile import crc32c
from packio.sample.fields import PIXELS
from packio.sample.record import IMAGE, MASK, Field, Record
from packio.system.files import room_beside

LABELS_NAME = "labels.tsv"
# A batch is held twice, here and in LMDB's dirty pages, until it is committed. Written in 8 MiB the
# 5,000 photos of 504 MB take 0.25 s, in 64 MiB 0.37 s, in 256 MiB 0.41 s (the best of 7 runs each):
# the heap is used again while it is in the cache, and need not be zeroed by the kernel anew.
_COMMIT_BYTES = 8 << 20
_COMMIT_RECORDS = 5000
_MOST_BYTES = 0xFFFFFFFF  # of one value: LMDB's MAXDATASIZE


def find(path: Path, reading: Reading) -> FoundSamples:
    """Open a database for reading images, values or within Datums, in the order of the keys."""
    if reading.database is not None:
        raise OptionError(f"{path}: a database with a name is read by access='range' alone")
    has_own_keys = pages.is_of_version_3(path) or (path / LABELS_NAME).exists()
    if not has_own_keys and not layouts.are_values(path):
        raise OptionError(
            f"{path}: its images are parts of values that others wrote, which access='lmdb' would "
            "read whole; say access='range'"
        )
    status = pages.data_file(path).stat()
    key = os.getpid(), status.st_dev, status.st_ino
    database = _OPEN[key] = _OPEN.get(key) or _Database(path)
    return FoundSamples(database.count, iter(()), lambda n: image_of(database.value(n)))


# Databases by process, device and inode: py-lmdb opens none twice in a process. Whoever reads one
# holds it.
_OPEN: weakref.WeakValueDictionary[tuple[int, int, int], _Database] = weakref.WeakValueDictionary()


class _Database:
    def __init__(self, path: Path) -> None:
        self._path, self._lmdb = path, registry.require("lmdb")
        with self._errors():
            self._env = self._lmdb.open(
                os.fsencode(path), subdir=path.is_dir(), create=False, readonly=True, lock=False,
                readahead=False,
            )  # fmt: skip
        self.count = 0
        with self._reading() as transaction:
            self.count = transaction.stat()["entries"]
            self._key = _numbered_keys(transaction) or _listed_keys(transaction)

    def value(self, number: int) -> bytes:
        with self._reading() as transaction:
            value = transaction.get(self._key(number))
            if value is None:  # it looked numbered, and was not
                self._key = _listed_keys(transaction)
                value = transaction.get(self._key(number))
        if value is None:
            raise IntegrityError(f"{self._path}: record {number} is listed but not found")
        return bytes(value)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Any]:
        with self._errors(), self._env.begin() as transaction:
            yield transaction

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._lmdb.Error as error:
            raise ReadError(f"{self._path}: LMDB cannot read it: {error}") from error


def _numbered_keys(transaction: Any) -> Callable[[int], bytes] | None:
    """The rule of the keys, if the first and the last are those that packio writes."""
    cursor = transaction.cursor()
    cursor.last()
    last = bytes(cursor.key())
    cursor.first()
    first, width = bytes(cursor.key()), len(last)
    ends = (b"%0*d" % (width, 0), b"%0*d" % (width, transaction.stat()["entries"] - 1))
    return (lambda number: b"%0*d" % (width, number)) if (first, last) == ends else None


def _listed_keys(transaction: Any) -> Callable[[int], bytes]:
    return [*map(bytes, transaction.cursor().iternext(keys=True, values=False))].__getitem__


class LmdbWriter:
    """Write records into a new database; the same records give the same bytes.

    A batch of 8 MiB or 5,000 records is committed at once, however the caller groups the records.
    The memory in use is twice that. A map that is too small grows; then the batch is written again,
    as LMDB has dropped all of it.
    """

    def __init__(
        self, path: Path, count: int, size: int, values: str | None = None, file: int = 0
    ) -> None:
        """Create the directory. ``count``, of the samples to come, sets the width of the keys."""
        if values not in (None, "datum"):
            raise OptionError(f"values={values!r}: expected 'datum', or nothing")
        self._lmdb = registry.require("lmdb")
        self.path, self._values = path, values
        self._count, self._size, self._file = count, size, file
        self._others: dict[str, LmdbWriter] = {}  # field → its database
        self._added = 0
        self._numbers = array("q")  # of the samples that have a value here
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
        options = {"lib_version": 0} if int(self._lmdb.__version__.split(".")[0]) >= 3 else {}
        return self._lmdb.open(
            os.fsencode(self.path), map_size=self._map_size, lock=False, writemap=False,
            meminit=True,  # otherwise the heap's old bytes get into the file
            sync=False, map_async=False, **options,  # whoever publishes the file syncs it
        )  # fmt: skip

    @contextlib.contextmanager
    def _output_errors(self) -> Iterator[None]:
        try:
            yield
        except (self._lmdb.Error, OSError) as error:
            raise OutputError(
                f"{self.path}: cannot be written after {len(self._crcs)} records: {error} "
                f"(LMDB calls a full disk an input/output error): {room_beside(self.path)}"
            ) from error

    def add(self, records: Sequence[Record[Field]]) -> None:
        for record in records:
            if IMAGE in record.fields:
                self.put(self._added, record, record.image)
            for name, field in record.fields.items():
                if name != IMAGE:
                    self._other(name, field).put(self._added, record, field)
            self._added += 1

    def put(self, number: int, record: Record[Field], field: Field) -> None:
        value = self._value(record, field)
        self._numbers.append(number)
        self._crcs.append(crc32c(value))
        self._batch.append((b"%0*d" % (self._width, number), value))
        self._batch_bytes += len(value)
        if self._batch_bytes >= _COMMIT_BYTES or len(self._batch) >= _COMMIT_RECORDS:
            self._commit()
        with self._output_errors():
            self._labels.write(_label_line(number, record))

    def _value(self, record: Record[Field], field: Field) -> bytes:
        is_datum = self._values == "datum"
        most = MOST_DATUM_BYTES if is_datum else _MOST_BYTES
        if len(field.data) > most:
            raise OutputError(f"{self.path}: {record.key!r} has over {most} bytes")
        try:
            return encode_datum(record, field) if is_datum else field.data
        except OutputError as error:
            raise OutputError(f"{self.path}: {error}") from error

    def _other(self, name: str, field: Field) -> LmdbWriter:
        if name not in self._others:
            is_mask = (name, field.kind) == (MASK, "mask")
            folder = MASK if is_mask else f"{name}.{field.kind}"
            values = self._values if field.kind in PIXELS else None
            self._others[name] = LmdbWriter(
                self.path / folder, self._count, self._size, values, len(self._others) + 1
            )
        return self._others[name]

    def _commit(self) -> None:
        with self._output_errors():
            while not self._put_batch():
                self._map_size *= 2
                self._env.set_mapsize(self._map_size)
        self._batch = []
        self._batch_bytes = 0

    def _put_batch(self) -> bool:
        """Write the batch in one transaction; False: the map is full, and nothing is written."""
        try:
            with self._env.begin(write=True) as transaction:
                for key, data in self._batch:
                    if not transaction.put(key, data, append=True):
                        raise OutputError(f"{self.path}: LMDB refused to append {key!r}")
        except self._lmdb.MapFullError:
            return False
        return True

    def close(self) -> Written:
        for writer in (*self._others.values(), self):
            writer.finish()
        all_of = {IMAGE: self, **self._others}
        places = {name: writer.read_back(self._added) for name, writer in all_of.items()}
        folders = ["", *(f"{other.path.name}/" for other in self._others.values())]
        info = {"keys": self._width, "version": 1}
        return Written(
            tuple(folder + DATA_NAME for folder in folders), places,
            tuple(folder + LABELS_NAME for folder in folders),
            info if self._values is None else {**info, "values": self._values},
        )  # fmt: skip

    def finish(self) -> None:
        """Write what is left, and close the database."""
        if self._batch:
            self._commit()
        with self._output_errors():
            entries = self._env.stat()["entries"]
            self._labels.flush()
        self.abort()
        if entries != len(self._crcs):
            raise OutputError(
                f"{self.path}: {len(self._crcs)} records were written, LMDB has {entries}"
            )

    def abort(self) -> None:
        """Let go of the databases and of the records not yet committed; the files stay."""
        self._batch = []
        for other in self._others.values():
            other.abort()
        env, self._env = self._env, None
        if env is not None:
            env.close()
        with contextlib.suppress(OSError):  # flushes, and the disk may be full
            self._labels.close()

    def read_back(self, count: int) -> Ranges:
        """Find where the values of so many samples lie, and compare their checksums."""
        places = Places(self._file)
        with open_data_file(self.path) as file:
            for i, stored in enumerate(pages.entries(file)):
                data = file.read(stored.length, stored.offset)
                number = self._numbers[i]
                if stored.name != b"%0*d" % (self._width, number) or crc32c(data) != self._crcs[i]:
                    raise OutputError(
                        f"{file.path}: record {number} reads back differently (as "
                        f"{stored.name!r}, {len(data)} bytes at {stored.offset}); the disk or its "
                        "driver is at fault"
                    )
                is_datum = self._values == "datum"
                start, stop = parse_datum(data)[:2] if is_datum else (0, len(data))
                places.add(number, stored.offset + start, stop - start)
        return places.ranges(count)


def _label_line(number: int, record: Record[Field]) -> bytes:
    given = record.label
    if given is None or isinstance(given, int):
        label = b"" if given is None else b"%d" % given
    else:
        label = b",".join(repr(value).encode() for value in given.tolist())
    return b"%d\t%s\t%s\n" % (number, label, escape(record.key))
