"""Encoded bytes kept once they were read, in memory or on a disk, for all that read a pack.

``cache="ram"`` of a dataset is one anonymous file in memory (memfd_create(2)). The file is in
no folder, so nothing stays behind however its processes end, and the size of /dev/shm does not
limit the file. A forked process inherits the file's descriptor; multiprocessing hands the
descriptor to a spawned process. The file holds::

    int64 (4096, 2)     hits and misses; each thread counts in one row, threads may share a row
    int64 (slots, 2)    position in this file and length of the bytes in a slot; position 0: empty
    bytes               the kept bytes, one sample behind the other, in the order they came

To keep a sample, a process appends the bytes with one write, which the kernel makes one at a time.
The process then sets the length and, last, the position. Neither reading nor keeping takes a lock.
A process that is killed in between, or a machine that loses its power, leaves bytes that no slot
points to, or a slot whose bytes have another CRC32C, which is compared at each reading: such a
sample is read from the pack again.

``local_copy="/scratch", local_bytes=…`` is such a file on a disk, which later runs find::

    packio-UID/                 the user's own folder: nobody else may read or write it
        DIGEST.samples          counters, slots and bytes
        DIGEST.samples.json     which pack it is of: {"pack": path, "samples": N, "fields": K}

DIGEST is that of the pack's index, so a changed pack gets a new file. If the disk is full, nothing
more is kept.

Nothing is ever thrown out: samples drawn at random are all equally worth keeping. A cache of half
the data then serves half of each epoch, where dropping the sample that was used least recently
would serve far less.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import mmap
import os
import tempfile
import threading
import warnings
import weakref
from multiprocessing import context, reduction
from pathlib import Path
from typing import Any

import numpy as np

from packio.errors import CannotCreateError, OutputError
from packio.index.indexfile import crc32c
from packio.system import memory, processors
from packio.system.files import free_bytes
from packio.system.locks import file_lock

SUFFIX = ".samples"  # of a file on a disk
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ROWS = 4096  # of counters
_LONGEST = 1 << 30  # bytes of a value: longer ones are not kept, and a damaged table may say more
_SHARE = 0.5  # of the memory that is available, for all caches of this machine's ranks

# Caches of this process by pack and size, as long as a dataset uses them, so that the train and val
# datasets of one pack share a cache. A forked process keeps its parent's; a spawned one gets them.
_caches: weakref.WeakValueDictionary[object, RamCache] = weakref.WeakValueDictionary()


def share_cache(digest: str, samples: int, kinds: int, room: int | None) -> RamCache:
    """Return this process's cache of a pack, of this size; make the cache if there is none."""
    name = digest, room
    found = _caches.get(name)
    if found is None:
        found = _caches[name] = _made(samples, kinds, room)
    return found


class RamCache:
    """Bytes in memory that forked and spawned processes share; made by `share_cache`.

    Pickled for a process that multiprocessing spawns, the cache is the same one there. Pickled for
    any other process, as on another machine, the cache is empty there, and of the same size.
    The slot of field k of sample i is ``k * samples + i``.
    """

    def __init__(self, samples: int, kinds: int, room: int, descriptor: int) -> None:
        self._samples, self._kinds = samples, kinds
        self.room: int = room  # bytes; processes that write at the same moment can exceed it
        self._descriptor, self._begin = descriptor, table_bytes(samples, kinds)
        closing = weakref.finalize(self, os.close, descriptor)
        closing.atexit = False  # threads may still read at exit; the system closes the file
        self._map = mmap.mmap(descriptor, self._begin)
        self._numbers = memoryview(self._map).cast("q")

    def __reduce__(self) -> tuple[object, ...]:
        if context.get_spawning_popen() is None:
            return _made, (self._samples, self._kinds, self.room)
        handed_over = reduction.DupFd(self._descriptor)
        return _attached, (self._samples, self._kinds, self.room, handed_over)

    def __repr__(self) -> str:
        return (
            f"<packio.{type(self).__name__}: {self.held_samples:,} of {self._samples:,} samples, "
            f"{self.held_bytes:,} of {self.room:,} bytes, {self.hits:,} hits, "
            f"{self.misses:,} misses>"
        )

    def get(self, slot: int, crc: int) -> bytes | None:
        """Return the bytes in a slot; None if the slot is empty or the bytes are damaged."""
        numbers, place = self._numbers, 2 * (_ROWS + slot)
        row = 2 * (threading.get_native_id() % _ROWS)
        if position := numbers[place]:
            length, data = numbers[place + 1], b""
            if 0 < length <= _LONGEST and position >= self._begin:  # else the table is damaged
                with contextlib.suppress(OSError):  # the disk does not give them
                    data = os.pread(self._descriptor, length, position)
            if data and crc32c(data) == crc:
                numbers[row] += 1
                return data
            numbers[place] = 0
        numbers[row + 1] += 1
        return None

    def holds(self, slot: int) -> bool:
        """Tell whether a slot holds bytes."""
        return self._numbers[2 * (_ROWS + slot)] != 0

    def put(self, slot: int, data: bytes) -> None:
        """Keep bytes in a slot, if it is empty and there is room."""
        is_kept = self.holds(slot) or not 0 < len(data) <= _LONGEST
        if is_kept or self.held_bytes + len(data) > self.room:
            return
        try:
            position = self._append(data)
        except OSError:  # the system has no room now; there may be room later
            return
        place = 2 * (_ROWS + slot)
        self._numbers[place + 1] = len(data)
        self._numbers[place] = position

    def _append(self, data: bytes) -> int:
        """Write at the end of the file; return the position of the first byte.

        The file is opened for this write alone, so that no other thread moves the file's position.
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
        """Bytes that are kept, of all fields."""
        return os.fstat(self._descriptor).st_size - self._begin

    @property
    def hits(self) -> int:
        """Values that all processes found here."""
        return int(self._counters()[:, 0].sum())

    @property
    def misses(self) -> int:
        """Values that all processes did not find here, and read from the pack."""
        return int(self._counters()[:, 1].sum())

    def _counters(self) -> np.ndarray:
        return np.frombuffer(self._map, np.int64, 2 * _ROWS).reshape(-1, 2)

    def _table(self) -> np.ndarray:
        return np.frombuffer(self._map, np.int64)[2 * _ROWS :].reshape(-1, 2)


def table_bytes(samples: int, kinds: int) -> int:
    """Bytes of counters and slots, which come before the kept bytes."""
    return 16 * (_ROWS + samples * kinds)


def _made(samples: int, kinds: int, room: int | None) -> RamCache:
    """Make an empty cache; see `share_cache`."""
    descriptor, most = _memory_file(table_bytes(samples, kinds))
    free = memory.available()
    if room is None:
        room = int(_SHARE * min(free, most)) // processors.ranks()
    elif room > min(free, most):
        warnings.warn(f"cache_bytes={room:,}: only {min(free, most):,} are available", stacklevel=5)
    return RamCache(samples, kinds, int(min(room, most)), descriptor)


def _attached(samples: int, kinds: int, room: int, handed_over: Any) -> RamCache:
    """Open the cache of the process that spawned this one."""
    return RamCache(samples, kinds, room, handed_over.detach())


def _memory_file(size: int) -> tuple[int, float]:
    """Make an unnamed file of some bytes in memory; return its descriptor and the bytes left.

    Some builds of Python lack memfd_create. The file is then made without a name in /dev/shm or, if
    /dev/shm is full or missing, in the folder for temporary files.
    """
    places = (None, "/dev/shm", tempfile.gettempdir())  # noqa: S108 (the file has no name there)
    problem: Exception | None = None
    for folder in places:
        with contextlib.ExitStack() as undo:
            try:
                if folder is None:
                    descriptor = os.memfd_create("packio")
                else:
                    with tempfile.TemporaryFile(dir=folder) as file:
                        descriptor = os.dup(file.fileno())
                undo.callback(os.close, descriptor)
                os.posix_fallocate(descriptor, 0, size)  # else touching a page could end us
            except (OSError, AttributeError) as error:
                problem = error
                continue
            undo.pop_all()
        disk = os.fstatvfs(descriptor)  # the file system of a memfd has no size
        return descriptor, disk.f_bavail * disk.f_frsize if disk.f_blocks else math.inf
    raise OutputError(f"cache='ram': no {size:,} bytes for its table: {problem}") from problem


def open_disk_cache(
    home: Path, digest: str, samples: int, fields: int, room: int, pack: str
) -> DiskCache | None:
    """Open the cache of a pack, or make it; None if the disk has no room for its table."""
    path = home / f"{digest}{SUFFIX}"
    try:
        descriptor = _disk_file(path, table_bytes(samples, fields), {
            "pack": pack, "samples": samples, "fields": fields,
        })  # fmt: skip
    except OSError as error:
        if error.errno in _FULL:
            return None
        raise CannotCreateError(f"local_copy: {path}: {error.strerror or error}") from error
    return DiskCache(samples, fields, room, descriptor, path, pack)


class DiskCache(RamCache):
    """Bytes on a disk that all processes of a machine share, and later runs find.

    Pickled for another process, the cache is opened there by its path. A process of another
    machine makes a new one, or has none if it cannot.
    """

    def __init__(
        self, samples: int, fields: int, room: int, descriptor: int, path: Path, pack: str
    ) -> None:
        super().__init__(samples, fields, room, descriptor)
        self.path: Path = path
        self._pack = pack

    def __reduce__(self) -> tuple[object, ...]:
        digest = self.path.name.removesuffix(SUFFIX)
        return _reopened, (
            self.path.parent, digest, self._samples, self._kinds, self.room, self._pack,
        )  # fmt: skip


def _reopened(
    home: Path, digest: str, samples: int, fields: int, room: int, pack: str
) -> DiskCache | None:
    with contextlib.suppress(CannotCreateError):
        return open_disk_cache(home, digest, samples, fields, room, pack)
    return None


def _disk_file(path: Path, table: int, told: dict[str, object]) -> int:
    """Open the file of a cache, or make it with an empty table; return its descriptor.

    The table is allotted whole: a mapped page that finds no room on the disk would end the process.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    with file_lock(path.with_suffix(f"{SUFFIX}.lock")):
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, flags)
            if os.fstat(descriptor).st_size >= table:
                return descriptor
            os.close(descriptor)  # cut short by somebody
            path.unlink()
        part = path.with_suffix(f"{SUFFIX}.part")
        part.unlink(missing_ok=True)
        descriptor = os.open(part, flags | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            if free_bytes(path.parent) < table:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.posix_fallocate(descriptor, 0, table)
            path.with_suffix(f"{SUFFIX}.json").write_text(json.dumps(told) + "\n")
            part.rename(path)
        except BaseException:
            os.close(descriptor)
            part.unlink(missing_ok=True)
            raise
    return descriptor
