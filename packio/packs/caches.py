"""What packio keeps on this machine beside packs: its cache, and copies of packs in other folders.

All of it can be made again, except what an interrupted upload left (``uploads``), which the same
`packio pack` goes on with; that is never cleared.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from packio.errors import CannotCreateError, OptionError
from packio.index import indexfile
from packio.storage.sample_cache import SUFFIX as SAMPLES
from packio.system import locks
from packio.system.files import cache_folder

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


def make_once(place: Path, path: Path, make: Callable[[], object]) -> Path:
    """An index in the user's cache; made if it is not there, or damaged. Of many, one makes it."""
    try:
        if not _is_own(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            with locks.file_lock(place.with_suffix(".lock")):
                if not _is_own(place):  # again: another process may have made it
                    make()
    except OSError as error:
        if error.filename is None or not str(error.filename).startswith(str(place.parent)):
            raise
        raise CannotCreateError(
            f"{error.filename}: {error.strerror}; the index of {path} goes there; name another "
            "folder by PACKIO_CACHE_DIR"
        ) from error
    return place


def _is_own(place: Path) -> bool:
    """Whether this user wrote an index, and it is whole."""
    try:
        return place.stat().st_uid == os.geteuid() and indexfile.is_whole(place)
    except FileNotFoundError:
        return False


class Cached(NamedTuple):
    """A file or folder that is kept."""

    path: Path
    what: str  # it is, in words
    bytes: int  # that it takes on the disk
    used: float  # when it was last changed, seconds since 1970
    clears: bool  # whether `clear` removes it


def list_kept(copies: Sequence[str | os.PathLike[str]] = ()) -> list[Cached]:
    """List what packio keeps in the user's cache, or in folders given as ``local_copy=``."""
    listed = [] if copies else [*_in_cache()]
    for folder in copies:
        given = os.path.expanduser(os.path.expandvars(os.fspath(folder)))
        if not os.path.isdir(given):
            raise OptionError(f"{given}: no such folder; datasets have it as local_copy=")
        listed += _in_copies(Path(given, f"packio-{os.geteuid()}"))
    return listed


def clear(listed: Sequence[Cached]) -> list[Cached]:
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


def _in_cache() -> Iterator[Cached]:
    top = cache_folder()
    if not top.is_dir() or top.is_symlink():
        return
    for path in top.iterdir():
        if path.is_file():
            yield Cached(path, "settings", *_size(path), clears=True)
    for name, what in _KINDS.items():
        if (path := top / name).is_dir() and any(path.iterdir()):
            yield Cached(path, what, *_size(path), name not in _KEPT)


def _in_copies(home: Path) -> Iterator[Cached]:
    if not home.is_dir() or home.is_symlink() or home.stat().st_uid != os.geteuid():
        return
    for path in sorted(home.iterdir()):
        if path.name.endswith(SAMPLES):
            pack = "an unknown pack"
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                pack = json.loads(path.with_suffix(f"{SAMPLES}.json").read_text())["pack"]
            yield Cached(path, f"samples of {pack}", *_size(path), clears=True)
        elif path.is_dir():
            what = "unfinished copy of a pack" if path.suffix == ".part" else "copy of a pack"
            yield Cached(path, what, *_size(path), clears=True)


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
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
            path.with_suffix(f"{SAMPLES}.json").unlink(missing_ok=True)
    except OSError:
        return False
    return True
