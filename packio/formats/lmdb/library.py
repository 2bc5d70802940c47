"""LMDB databases read through py-lmdb: one environment a process, shared by all its readers."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from packio import registry
from packio.errors import IntegrityError, NotAPackError, ReadError
from packio.formats.lmdb import datum
from packio.formats.lmdb.pages import data_file, scan


class Reader:
    """Read records through py-lmdb: what has no byte ranges, as files written by LMDB 1.0.

    Opens when first read from. May be used in any number of threads, in forked and in spawned
    processes, and pickles as its path.
    """

    def __init__(self, path: Path) -> None:
        """Remember the path: a directory with ``data.mdb``, or a single file."""
        self._shared: _SharedEnvironment | None = None
        self.path = Path(path)

    def __reduce__(self) -> tuple[type[Reader], tuple[Path]]:
        return Reader, (self.path,)

    def get(self, record_number: int) -> bytes:
        """Read the image of a record: its value, or what is in it if it is a Datum.

        Args:
            record_number: Position in the order of the keys.

        Raises:
            IndexError: there are not so many.
            ReadError: the database cannot be opened or read.
            IntegrityError: the file is shorter than it says.
            MissingPackageError: lmdb does not load.
        """
        return self._environment().get(record_number)

    def __len__(self) -> int:
        return self._environment().entries()

    def _environment(self) -> _SharedEnvironment:
        if self._shared is None:
            with _lock():
                if self._shared is None:
                    self._shared = _acquire(self.path)
        return self._shared

    def close(self) -> None:
        """Let go of the database; it opens again when read from."""
        if self._shared is not None:
            with _lock():
                shared, self._shared = self._shared, None
                if shared is not None:
                    _release(shared)

    def __del__(self) -> None:
        self.close()


class _SharedEnvironment:
    """One open database of this process, used by all its readers.

    py-lmdb refuses to open a database twice in a process, and keeps refusing in a forked child
    until the inherited environment is closed there; that leaves the parent's alone.
    """

    def __init__(self, path: Path, key: tuple[int, int]) -> None:
        self.key = key
        self.users = 0
        self._lmdb = registry.require("lmdb")
        self._path = path
        self._env: Any = None
        self._pid = 0
        self._name: Callable[[int], bytes] | None = None  # of a record number

    def get(self, record_number: int) -> bytes:
        with self._read_errors(), self._environment().begin() as transaction:
            count = transaction.stat()["entries"]
            if not 0 <= record_number < count:
                raise IndexError(f"{self._path}: no record {record_number}; it has {count}")
            if self._name is None:
                self._name = _numbered_keys(transaction) or _listed_keys(transaction)
            value = transaction.get(self._name(record_number))
            if value is None:  # it looked numbered, and was not
                self._name = _listed_keys(transaction)
                value = transaction.get(self._name(record_number))
        if value is None:
            raise IntegrityError(f"{self._path}: record {record_number} is listed but not found")
        return datum.image(bytes(value))

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
            for _ in scan(self._path):  # it may be that no page in use is missing
                pass
        except NotAPackError as error:
            raise IntegrityError(
                f"{self._path}: has {size} bytes, its last page ends at {end}; restore the file"
            ) from error

    @contextlib.contextmanager
    def _read_errors(self) -> Iterator[None]:
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
    return list(transaction.cursor().iternext(keys=True, values=False)).__getitem__


# Databases open in this process, by device and inode; each stays as long as a reader uses it. What
# a forked child inherits is closed and opened anew when first used there (by its pid); a spawned
# one starts empty; none is pickled. A lock is one process's own: held by another thread at a fork,
# it would stay locked in the child for ever. It is reentrant, as garbage may be collected, and so a
# reader closed, while it is held.
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
