"""What packio keeps on this machine beside packs: its cache, and copies of packs in other folders.

All of it can be made again, except what an interrupted upload left (``uploads``), which the same
`packio pack` goes on with; that is never cleared.

A copy of a pack's files is made once for all processes that read it. A dataset takes the folder as
``local_copy="$TMPDIR"``. In that folder::

    packio-UID/                 the user's own folder: nobody else may read or write it
        DIGEST/                 a whole copy, put in place after every byte was checked and synced
            index.packio
            files/…             as the index names them
        DIGEST.part/            an unfinished copy
        DIGEST.lock             a file that the process making the copy locks; it names the process
        DIGEST.samples          samples kept under ``local_bytes=``: see storage.sample_cache

DIGEST is the digest of the index, so a changed pack gets a new copy. packio removes unfinished
copies only. A folder that belongs to a job, as a scheduler's $TMPDIR, goes away with the job.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import socket
import stat
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import google_crc32c

from packio.errors import CannotCreateError, IntegrityError, LockedError, OptionError, PackioError
from packio.index.indexfile import INDEX_NAME, Index
from packio.packs.opening import Pack
from packio.storage import sample_cache
from packio.storage.local import FolderStore, path_problem
from packio.storage.sample_cache import SUFFIX as SAMPLES
from packio.system import locks
from packio.system.files import cache_folder, free_bytes, remove
from packio.system.pools import ThreadPool

# Folder of the cache → what lies there.
_KINDS = {
    "remote": "indexes of packs at URLs",
    "near": "indexes of packs on network file systems",
    "indexes": "indexes of containers without one",
    "selections": "indexes of selections",
    "folders": "listings of image folders",
    "seen": "images that were checked",
    "reindex": "unfinished indexes of containers at URLs",
    "uploads": "unfinished uploads",
}
_KEPT = frozenset({"uploads"})
_THREADS = 4  # that read
_PIECE = 8 << 20  # bytes that are read at a time
_PATIENCE = 300.0  # seconds without progress after which nobody waits any longer
_FULL = (errno.ENOSPC, errno.EDQUOT)


class CachedFile(NamedTuple):
    """A file or folder that is kept."""

    path: Path
    what: str  # it is, in words
    bytes: int  # that it takes on the disk
    used: float  # when it was last changed, seconds since 1970
    clears: bool  # whether `clear` removes it


def list_kept(copies: Sequence[str | os.PathLike[str]] = ()) -> list[CachedFile]:
    """List what packio keeps in the user's cache, or in folders given as ``local_copy=``."""
    listed = [] if copies else [*_in_cache()]
    for folder in copies:
        given = os.path.expanduser(os.path.expandvars(os.fspath(folder)))
        if not os.path.isdir(given):
            raise OptionError(f"{given}: no such folder; datasets have it as local_copy=")
        listed += _in_copies(Path(given, f"packio-{os.geteuid()}"))
    return listed


def clear(listed: Sequence[CachedFile]) -> list[CachedFile]:
    """Remove what is listed, and return what was removed.

    A copy that is being made stays. A process that keeps samples reads on: their file is open, and
    the disk gets its room when the process ends. A process that reads a copy of a whole pack opens
    its files when it first reads from them; it fails then if they were removed.
    """
    removed = []
    for item in listed:
        with _unlocked(item.path) as free:
            if item.clears and free and _remove(item.path):
                removed.append(item)
    return removed


def _in_cache() -> Iterator[CachedFile]:
    top = cache_folder()
    if not top.is_dir() or top.is_symlink():
        return
    for path in top.iterdir():
        if path.is_file():
            yield CachedFile(path, "settings", *_size(path), clears=True)
    for name, what in _KINDS.items():
        if (path := top / name).is_dir() and any(path.iterdir()):
            yield CachedFile(path, what, *_size(path), name not in _KEPT)


def _in_copies(home: Path) -> Iterator[CachedFile]:
    if not home.is_dir() or home.is_symlink() or home.stat().st_uid != os.geteuid():
        return
    for path in sorted(home.iterdir()):
        if path.name.endswith(SAMPLES):
            pack = "an unknown pack"
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                pack = json.loads(path.with_suffix(f"{SAMPLES}.json").read_text())["pack"]
            yield CachedFile(path, f"samples of {pack}", *_size(path), clears=True)
        elif path.is_dir():
            what = "unfinished copy of a pack" if path.suffix == ".part" else "copy of a pack"
            yield CachedFile(path, what, *_size(path), clears=True)


def _size(path: Path) -> tuple[int, float]:
    """Bytes that a file or folder takes on the disk, and when it was last changed."""
    total, latest = 0, 0.0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                status = os.lstat(os.path.join(folder, name))
                total, latest = total + 512 * status.st_blocks, max(latest, status.st_mtime)
    with contextlib.suppress(OSError):
        status = path.lstat()
        latest = max(latest, status.st_mtime)
        total += 0 if path.is_dir() else 512 * status.st_blocks
    return total, latest


@contextlib.contextmanager
def _unlocked(path: Path) -> Iterator[bool]:
    """Hold the lock under which a copy is made; whether nobody else holds it."""
    lock = path.with_suffix(".lock")
    if path.suffix == SAMPLES or not lock.is_file():
        yield True
        return
    with lock.open("ab") as file:
        is_free = False
        with contextlib.suppress(OSError):  # no locks on this file system
            is_free = locks.try_lock(file.fileno())
        yield is_free


def _remove(path: Path) -> bool:
    try:
        remove(path)
        if path.suffix == SAMPLES:
            path.with_suffix(f"{SAMPLES}.json").unlink(missing_ok=True)
    except OSError:
        return False
    return True


class _PackFile(NamedTuple):
    name: str
    size: int  # bytes
    digest: bytes  # SHA-256; of an image folder's file CRC32C

    @property
    def is_sample(self) -> bool:
        return len(self.digest) == 4

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Offset and length of each piece that is read; a sample is one."""
        step = max(self.size, 1) if self.is_sample else _PIECE
        return ((start, min(step, self.size - start)) for start in range(0, self.size, step))


def open_copy(pack: Pack, folder: str | os.PathLike[str], room: int | None = None) -> Pack:
    """Open a copy of a pack; make it if it is not there, or wait for the process that makes it.

    With a room, in bytes, samples are kept once they are read, instead of the whole pack.
    """
    home = _home(folder)
    if room is not None:
        _keep(pack, home, room)
        return pack
    copy, files = home / pack.digest, _files(pack)
    try:
        if not _is_whole(copy, files):
            _make(pack, files, copy)
    except PackioError:
        raise
    except OSError as error:
        if error.errno not in _FULL:
            raise CannotCreateError(f"local_copy: {copy}: {error.strerror or error}") from error
        needed, free = sum(file.size for file in files), free_bytes(home)
        warnings.warn(
            f"{home}: no room for a copy of {pack.path} ({needed:,} bytes, {free:,} are free): it "
            "is read where it is",
            stacklevel=4,
        )
        return pack
    return Pack(
        pack.path, access=pack.access, expect_digest=pack.digest,
        located=(copy / INDEX_NAME, copy / "files"),
    )  # fmt: skip


def _keep(pack: Pack, home: Path, room: int) -> None:
    """Let a pack keep the samples that it reads; a whole copy, or mapped pixels, need no cache."""
    if pack.raw_rows is not None:
        return
    pack.ram = sample_cache.open_disk_cache(
        home, pack.digest, len(pack), len(pack.fields), room, str(pack.path)
    )
    if pack.ram is None:
        warnings.warn(
            f"{home}: no room to keep samples of {pack.path} ({free_bytes(home):,} bytes are "
            "free): they are read where they are",
            stacklevel=5,
        )


def _home(folder: str | os.PathLike[str]) -> Path:
    """The user's own folder in the folder of copies; it is made if it is not there."""
    path = os.path.expanduser(os.path.expandvars(os.fspath(folder)))
    if "$" in path or not path:
        raise OptionError(f"local_copy={os.fspath(folder)!r}: a variable in it is not set")
    home = Path(os.path.abspath(path), f"packio-{os.geteuid()}")
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = home.lstat()
    except OSError as error:
        raise CannotCreateError(f"local_copy: {home}: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise OptionError(f"local_copy: {home}: is another user's; give another folder")
    return home


def _files(pack: Pack) -> list[_PackFile]:
    index = pack.index_file
    if not isinstance(pack.storage, FolderStore):
        return [_PackFile(*file) for file in index.files()]
    keys = [*pack.keys()]
    for key in keys:  # of an index that may be anybody's
        if problem := path_problem(os.fsencode(key)):
            raise IntegrityError(f"{pack.path}: the key {key!r} {problem}; nothing was copied")
    sizes, crcs = (index.column(f"image/{n}").array() for n in ("length", "crc32c"))
    digests = map(bytes, crcs.astype(">u4").view("u1").reshape(-1, 4))
    return [_PackFile(*file) for file in zip(keys, sizes.tolist(), digests, strict=True)]


def _is_whole(copy: Path, files: list[_PackFile]) -> bool:
    """Whether all files of a copy are there. Reading checks their bytes."""
    try:
        return (copy / INDEX_NAME).is_file() and all(
            os.stat(copy / "files" / file.name).st_size == file.size for file in files
        )
    except OSError:
        return False


def _make(pack: Pack, files: list[_PackFile], copy: Path) -> None:
    """Make a copy, or wait for the process that makes it."""
    part = copy.with_name(f"{copy.name}.part")
    with _locked(copy.with_name(f"{copy.name}.lock")) as lock:
        if _is_whole(copy, files):  # the process that had the lock made it
            return
        try:
            for old in filter(Path.exists, (part, copy)):
                shutil.rmtree(old)
            if free_bytes(copy.parent) < sum(file.size for file in files):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            (part / "files").mkdir(parents=True)
            _fill(pack, files, part, lock)
            part.rename(copy)
        finally:
            shutil.rmtree(part, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[Path]:
    """Hold a lock. Wait for its holder as long as the copy grows, which the holder tells."""
    with path.open("a+") as file:
        if not locks.wait_for_lock(file, _PATIENCE):
            file.seek(0)
            raise LockedError(
                f"{path}: held by {file.read().strip() or 'another process'}, which has copied "
                f"nothing for {_PATIENCE:.0f} seconds; end it, or give another local_copy="
            )
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield path


def _fill(pack: Pack, files: list[_PackFile], part: Path, lock: Path) -> None:
    """Copy all files and the index, and check their bytes."""
    work = ((i, *piece) for i, file in enumerate(files) for piece in file.pieces())
    with ThreadPool(_THREADS, "packio-copy") as pool:
        bodies = pool.map_ahead(lambda place: pack.storage.read(*place), work, 2 * _THREADS)
        for file in files:
            path = part / "files" / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as out:
                if file.digest != _write(file, bodies, out, lock):
                    raise IntegrityError(f"{pack.path}: {file.name} is damaged; see packio verify")
    pack.index_file.copy_to(part / INDEX_NAME)
    if Index(part / INDEX_NAME).digest != pack.digest:
        raise IntegrityError(f"{pack.path}: has changed while it was copied; open it anew")


def _write(file: _PackFile, bodies: Iterator[bytes], out: BinaryIO, lock: Path) -> bytes:
    """Write a file; return its digest."""
    digest: Any = hashlib.sha256()
    if file.is_sample:
        digest = google_crc32c.Checksum()  # type: ignore[no-untyped-call]  # untyped library
    for _, data in zip(file.pieces(), bodies, strict=False):  # in this order no body is lost
        out.write(data)
        os.utime(lock)  # tells waiting processes that the copy grows
        digest.update(data)
    if not file.is_sample:  # syncing a million small files one by one takes too long
        out.flush()
        os.fsync(out.fileno())
    return bytes(digest.digest())
