"""LMDB databases read through py-lmdb: one environment a process, shared by all its readers."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from packio import registry
from packio.errors import IntegrityError, NotAPackError, OptionError, ReadError
from packio.formats.lmdb import datum, layouts, meta, pages
from packio.formats.lmdb.meta import data_file
from packio.formats.lmdb.writing import LABELS_NAME
from packio.system.locks import unforked


class Reader:
    """Read records through py-lmdb.

    A reader opens the database when it first reads. It works in any number of threads, in forked
    and in spawned processes, and pickles as its path.
    """

    def __init__(self, path: Path) -> None:
        """Remember the path: a directory with ``data.mdb``, or a single file."""
        self._shared: _SharedEnvironment | None = None
        self.path: Path = Path(path)

    def __reduce__(self) -> tuple[type[Reader], tuple[Path]]:
        return Reader, (self.path,)

    def get(self, number: int) -> bytes:
        """Read the image of a record: the value, or the image in the value if that is a Datum.

        Args:
            number: Position of the record in the order of the keys.

        Raises:
            IndexError: there are fewer records.
            OptionError: the images lie within values of others, or not in the order of the keys.
            ReadError: the database cannot be opened or read.
            IntegrityError: the file is shorter than the database says.
            MissingPackageError: lmdb does not load.
        """
        if self._shared is None:
            self._check_layout()
        return datum.image(self._environment().value(number))

    def _check_layout(self) -> None:
        has_own_keys = meta.is_of_version_3(self.path) or (self.path / LABELS_NAME).exists()
        if not has_own_keys and not layouts.are_values(self.path):
            raise OptionError(
                f"{self.path}: its images are parts of values that others wrote, which "
                "access='lmdb' would read whole; say access='range'"
            )

    def __len__(self) -> int:
        return self._environment().entries()

    def _environment(self) -> _SharedEnvironment:
        if self._shared is None:
            with _lock():
                if self._shared is None:
                    self._shared = _acquire(self.path)
        return self._shared

    def close(self) -> None:
        """Let go of the database. It opens again when the reader is used."""
        if self._shared is not None:
            with unforked(), _lock():
                shared, self._shared = self._shared, None
                if shared is not None:
                    _release(shared)

    def __del__(self) -> None:
        self.close()


class _SharedEnvironment:
    """An open database of this process. All readers of the database use the same object.

    py-lmdb refuses to open a database twice in a process. It also refuses in a forked child, until
    the child closes the inherited environment; the environment of the parent stays open then.
    Closing waits for the environment's transactions. A transaction that another thread had at the
    fork never ends in the child, so a fork waits until there is none.
    """

    def __init__(self, path: Path, key: tuple[int, int]) -> None:
        self.key = key
        self.users = 0
        self._lmdb = registry.require("lmdb")
        self._path = path
        self._env: Any = None
        self._pid = 0
        self._name: Callable[[int], bytes] | None = None  # of a record number

    def value(self, number: int) -> bytes:
        with self._read_errors(), self._environment().begin() as transaction:
            count = transaction.stat()["entries"]
            if not 0 <= number < count:
                raise IndexError(f"{self._path}: no record {number}; it has {count}")
            if self._name is None:
                self._name = _numbered_keys(transaction) or _listed_keys(transaction)
            value = transaction.get(self._name(number))
            if value is None:  # it looked numbered, and was not
                self._name = _listed_keys(transaction)
                value = transaction.get(self._name(number))
        if value is None:
            raise IntegrityError(f"{self._path}: record {number} is listed but not found")
        return bytes(value)

    def entries(self) -> int:
        with self._read_errors():
            return int(self._environment().stat()["entries"])

    def _environment(self) -> Any:
        if self._pid != os.getpid():
            with _lock():
                if self._pid != os.getpid():
                    if self._env is not None:
                        self._env.close()  # inherited by fork
                    self._env = self._open()
                    self._pid = os.getpid()
        return self._env

    def _open(self) -> Any:
        env = self._lmdb.open(
            os.fsencode(self._path),
            subdir=self._path.is_dir(),
            create=False,
            readonly=True,
            lock=False,
            readahead=False,
        )
        try:
            self._check_size(env)
        except BaseException:
            env.close()
            raise
        return env

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
        self._env, self._pid = None, 0

    def _check_size(self, env: Any) -> None:
        """Refuse a short file: LMDB maps it, and a touch beyond its end kills the process."""
        size = data_file(self._path).stat().st_size
        end = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
        if size >= end:
            return
        try:
            for _ in pages.scan(self._path):  # it may be that no page in use is missing
                pass
        except NotAPackError as error:
            raise IntegrityError(
                f"{self._path}: has {size} bytes, its last page ends at {end}; restore the file"
            ) from error

    @contextlib.contextmanager
    def _read_errors(self) -> Iterator[None]:
        try:
            with unforked():
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
    return list(transaction.cursor().iternext(keys=True, values=False)).__getitem__


# The databases that are open in this process, by device and inode. A database stays open as long as
# a reader uses it: the users are counted, as a weak reference would let another thread open a
# database that is just being closed. A forked child closes what it inherits, and opens it anew when
# it first reads; a spawned child starts empty; nothing is pickled. Each process has a lock of its
# own: a lock that another thread holds at a fork would stay locked in the child for ever. The lock
# is reentrant, as garbage may be collected, and so a reader closed, while the lock is held.
_ENVIRONMENTS: dict[tuple[int, int], _SharedEnvironment] = {}
_LOCKS: dict[int, threading.RLock] = {}


def _lock() -> threading.RLock:
    return _LOCKS.setdefault(os.getpid(), threading.RLock())


def _acquire(path: Path) -> _SharedEnvironment:
    data = data_file(path)
    try:
        status = data.stat()
    except OSError as error:
        raise ReadError(f"{data}: cannot be opened: {error.strerror}") from error
    key = (status.st_dev, status.st_ino)
    shared = _ENVIRONMENTS.get(key) or _SharedEnvironment(path, key)
    shared.users += 1
    _ENVIRONMENTS[key] = shared  # also if its last other reader has been collected meanwhile
    return shared


def _release(shared: _SharedEnvironment) -> None:
    shared.users -= 1
    if shared.users == 0:
        _ENVIRONMENTS.pop(shared.key, None)
        shared.close()
