"""Encoded bytes kept on a disk once they were read, up to a limit, for all processes of a machine.

This is ``local_copy="/scratch", local_bytes=…`` of a dataset. In that folder::

    packio-UID/                 the user's own folder: nobody else may read or write it
        DIGEST.samples          counters, slots and bytes, as packio.storage.ram has them
        DIGEST.samples.json     which pack it is of: {"pack": path, "samples": N, "fields": K}

DIGEST is that of the pack's index, so a changed pack gets a new file. What is kept stays: when the
limit is reached nothing is dropped, because in a shuffled epoch all samples are equally worth
keeping. A cache of half the data then serves half of each epoch, where dropping the sample that was
used least recently would serve far less.

Processes need no lock to read or to keep a sample. A process that is killed, or a machine that
loses its power, leaves at most bytes that no slot points to, or a slot whose bytes have another
CRC32C; such a sample is read from the pack again. If the disk is full, nothing more is kept.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path

from packio.errors import CannotCreateError
from packio.storage.ram import RamCache, table_bytes
from packio.system.files import free_bytes
from packio.system.locks import file_lock

SUFFIX = ".samples"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def opened(
    home: Path, digest: str, samples: int, fields: int, room: int, pack: str
) -> DiskCache | None:
    """Open the cache of a pack, or make it; None if the disk has no room for its table."""
    path = home / f"{digest}{SUFFIX}"
    try:
        descriptor = _file(path, table_bytes(samples, fields), {
            "pack": pack, "samples": samples, "fields": fields,
        })  # fmt: skip
    except OSError as error:
        if error.errno in _FULL:
            return None
        raise CannotCreateError(f"local_copy: {path}: {error.strerror or error}") from error
    return DiskCache(samples, fields, room, descriptor, path, pack)


class DiskCache(RamCache):
    """Bytes on a disk that all processes of a machine share, and later runs find; see `opened`.

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
        return _again, (
            self.path.parent, digest, self._samples, self._kinds, self.room, self._pack,
        )  # fmt: skip


def _again(
    home: Path, digest: str, samples: int, fields: int, room: int, pack: str
) -> DiskCache | None:
    """Open a cache that was pickled."""
    with contextlib.suppress(OSError):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(CannotCreateError):
        return opened(home, digest, samples, fields, room, pack)
    return None


def _file(path: Path, table: int, told: dict[str, object]) -> int:
    """Open the file of a cache, or make it with an empty table; return its descriptor.

    The table is allotted whole: a mapped page that finds no room on the disk would end the process.
    """
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
