"""Encoded bytes kept in memory once they were read, by all processes that read a pack together.

``cache="ram"`` of a dataset. One anonymous file in memory (memfd_create(2)), which is in no folder
and so leaves nothing behind, however its processes end; nor is it bound by /dev/shm's size. They
have it by descriptor: inherited by fork, handed over where multiprocessing spawns. It holds::

    int64 (4096, 2)     hits and misses, a row for each thread, as far as the rows go
    int64 (slots, 2)    position in this file and length of what is kept in a slot; position 0: none
    bytes               what is kept, one behind the other, in the order in which it came

A sample is put in by one write at the end of the file, which the kernel makes one at a time, of all
processes; then its length and, last, its position are set. Who takes one out takes no lock. A
process that is killed on its way leaves some bytes that nothing points to. Every sample's CRC32C is
compared when it is taken out: what another has not finished, or what memory has lost, is read
again where it came from. Nothing is thrown out: where samples are drawn at random, none is worth
more than another.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable
from multiprocessing import context, reduction
from typing import Any

import numpy as np

from packio.errors import OutputError
from packio.index.indexfile import crc32c
from packio.system import memory, processors

_ROWS = 4096  # of counters
_SHARE = 0.5  # of the memory that is available, for all caches of this machine's ranks

# Caches of this process, by pack and size, as long as a dataset uses them: so that train and val of
# one pack have one. A forked process goes on with its parent's; one that is spawned is given its.
_caches: weakref.WeakValueDictionary[object, RamCache] = weakref.WeakValueDictionary()


def shared(digest: str, samples: int, kinds: int, room: int | None) -> RamCache:
    """The cache of a pack, of this size, in this process; made if it is not there yet.

    Args:
        digest: Of the pack.
        samples, kinds: As of `RamCache`.
        room: Bytes that may be kept; None takes half of the memory that is available, or an equal
            part of that where torchrun has started several processes (LOCAL_WORLD_SIZE).

    Raises:
        OutputError: the system gives no memory for it.
    """
    name = digest, room
    found = _caches.get(name)
    if found is None:
        found = _caches[name] = _made(samples, kinds, room)
    return found


class RamCache:
    """Bytes in memory that forked and spawned processes share; made by `shared`.

    Pickled for a process that multiprocessing spawns it is the same cache there; pickled otherwise,
    as for another machine, an empty one of the same size.

    Args:
        samples: Of the pack.
        kinds: 2 where they have masks: slots from ``samples`` on are theirs; else 1.
        room: Bytes that may be kept; what is being put in at the same moment can exceed it.
        descriptor: Of the file, which is this object's to close.

    Attributes:
        room: As above.
    """

    def __init__(self, samples: int, kinds: int, room: int, descriptor: int) -> None:
        self._samples, self._kinds, self.room = samples, kinds, room
        self._descriptor, self._begin = descriptor, _table_bytes(samples, kinds)
        closing = weakref.finalize(self, os.close, descriptor)
        closing.atexit = False  # threads may be reading then; the system closes it
        self._map = mmap.mmap(descriptor, self._begin)
        self._numbers = memoryview(self._map).cast("q")

    def __reduce__(self) -> tuple[object, ...]:
        if context.get_spawning_popen() is None:
            return _made, (self._samples, self._kinds, self.room)
        handed_over = reduction.DupFd(self._descriptor)
        return _attached, (self._samples, self._kinds, self.room, handed_over)

    def __repr__(self) -> str:
        return (
            f"<packio.storage.ram.RamCache: {self.held_samples:,} of {self._samples:,} samples, "
            f"{self.held_bytes:,} of {self.room:,} bytes, {self.hits:,} hits, "
            f"{self.misses:,} misses>"
        )

    def get(self, slot: int, crc: int) -> bytes | None:
        """Take out what is kept in a slot; None if that is nothing, or damaged.

        Args:
            slot: Position of a sample; from the number of samples on, of its mask.
            crc: CRC32C that it has to have.
        """
        numbers, place = self._numbers, 2 * (_ROWS + slot)
        row = 2 * (threading.get_native_id() % _ROWS)
        if position := numbers[place]:
            data = os.pread(self._descriptor, numbers[place + 1], position)
            if crc32c(data) == crc:
                numbers[row] += 1
                return data
            numbers[place] = 0
        numbers[row + 1] += 1
        return None

    def holds(self, slot: int) -> bool:
        """Tell whether something is kept in a slot."""
        return self._numbers[2 * (_ROWS + slot)] != 0

    def put(self, slot: int, data: bytes) -> None:
        """Keep bytes in a slot, if it is empty and there is room."""
        if self.holds(slot) or not data or self.held_bytes + len(data) > self.room:
            return
        try:
            position = self._append(data)
        except OSError:  # the system has no room, though there should be some: it may have later
            return
        place = 2 * (_ROWS + slot)
        self._numbers[place + 1] = len(data)
        self._numbers[place] = position

    def _append(self, data: bytes) -> int:
        """Write at the end of the file; return the position.

        Opened for this write alone, the file has a position of its own: no other thread moves it.

        Raises:
            OSError: not all of it could be written.
        """
        path = f"/proc/self/fd/{self._descriptor}"
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            written = os.write(file, data)
            if written != len(data):
                raise OSError(f"{written} of {len(data)} bytes")
            return os.lseek(file, 0, os.SEEK_CUR) - written
        finally:
            os.close(file)

    @property
    def held_samples(self) -> int:
        """Samples whose images are kept."""
        return int(np.count_nonzero(self._table()[:, 0][: self._samples]))

    @property
    def held_bytes(self) -> int:
        """Bytes that are kept, of images and masks."""
        return os.fstat(self._descriptor).st_size - self._begin

    @property
    def hits(self) -> int:
        """Images and masks that were found here, by all processes."""
        return int(self._counters()[:, 0].sum())

    @property
    def misses(self) -> int:
        """Images and masks that were not, and were read from the pack, by all processes."""
        return int(self._counters()[:, 1].sum())

    def _counters(self) -> np.ndarray:
        return np.frombuffer(self._map, np.int64, 2 * _ROWS).reshape(-1, 2)

    def _table(self) -> np.ndarray:
        return np.frombuffer(self._map, np.int64)[2 * _ROWS :].reshape(-1, 2)


def _table_bytes(samples: int, kinds: int) -> int:
    """Bytes of counters and places, before what is kept."""
    return 16 * (_ROWS + samples * kinds)


def _made(samples: int, kinds: int, room: int | None) -> RamCache:
    """An empty cache; see `shared`."""
    descriptor, most = _file(_table_bytes(samples, kinds))
    free = memory.available()
    if room is None:
        room = int(_SHARE * min(free, most)) // processors.ranks()
    elif room > min(free, most):
        warnings.warn(f"cache_bytes={room:,}: only {min(free, most):,} are available", stacklevel=5)
    return RamCache(samples, kinds, int(min(room, most)), descriptor)


def _attached(samples: int, kinds: int, room: int, handed_over: Any) -> RamCache:
    """The cache of the process that spawned this one."""
    return RamCache(samples, kinds, room, handed_over.detach())


def _file(size: int) -> tuple[int, float]:
    """An unnamed file of so many bytes in memory, and how many more it can take.

    Python may be built without memfd_create: then a file in /dev/shm that has lost its name, or,
    where that is full or missing, in the folder for temporary files.

    Raises:
        OutputError: there is no room.
    """
    makers: list[Callable[[], int]] = [
        lambda: _unnamed("/dev/shm"),  # noqa: S108 (the file has no name there)
        lambda: _unnamed(tempfile.gettempdir()),
    ]
    if hasattr(os, "memfd_create"):
        makers.insert(0, lambda: os.memfd_create("packio"))
    problem: OSError | None = None
    for make in makers:
        try:
            descriptor = make()
        except OSError as error:
            problem = error
            continue
        try:
            os.posix_fallocate(descriptor, 0, size)  # else touching it could be a signal
        except OSError as error:
            os.close(descriptor)
            problem = error
            continue
        disk = os.fstatvfs(descriptor)  # a memfd's has no size
        return descriptor, disk.f_bavail * disk.f_frsize if disk.f_blocks else math.inf
    raise OutputError(f"cache='ram': no {size:,} bytes for its table: {problem}") from problem


def _unnamed(folder: str) -> int:
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.dup(file.fileno())
