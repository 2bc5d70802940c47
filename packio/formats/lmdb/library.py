"""LMDB databases read through py-lmdb, in another process: `packio.formats.blobs.by_library`.

A damaged database can crash LMDB, as it maps the file into memory and follows what its pages say.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from packio import registry
from packio.errors import IntegrityError, OptionError, ReadError
from packio.formats import Reading
from packio.formats.blobs.by_library import FoundSamples
from packio.formats.lmdb import datum, layouts, meta
from packio.formats.lmdb.writing import LABELS_NAME


def find(path: Path, reading: Reading) -> FoundSamples:
    """Open a database for reading images by their numbers, in the order of the keys.

    An image is a value, or the image in the value if that is a Datum.
    """
    if reading.database is not None:
        raise OptionError(f"{path}: a database with a name is read by access='range' alone")
    has_own_keys = meta.is_of_version_3(path) or (path / LABELS_NAME).exists()
    if not has_own_keys and not layouts.are_values(path):
        raise OptionError(
            f"{path}: its images are parts of values that others wrote, which access='lmdb' would "
            "read whole; say access='range'"
        )
    status = meta.data_file(path).stat()
    key = os.getpid(), status.st_dev, status.st_ino
    database = _OPEN[key] = _OPEN.get(key) or _Database(path)
    return FoundSamples(database.count, iter(()), lambda n: datum.image(database.value(n)))


# Databases by process, device and inode: py-lmdb opens none twice in a process. Whoever reads one
# holds it.
_OPEN: weakref.WeakValueDictionary[tuple[int, int, int], _Database] = weakref.WeakValueDictionary()


class _Database:
    """An open database, whose values have numbers."""

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
        """The value of the record with this number, which is below the count."""
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
