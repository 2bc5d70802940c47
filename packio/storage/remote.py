"""An index that is far away, at a URL or on a network file system, comes into the user's cache.

An index at a URL of up to 64 MB is copied whole when the pack is opened. A longer one is read by
blocks (`packio.storage.blocks`).

If an index is mapped over a network, each touched page is a request, and a server that goes away
kills the process by a signal. packio therefore copies the index into the user's cache, once for
each machine and version, and maps the copy. If the cache is on a network file system too, the index
is mapped where it is; PACKIO_CACHE_DIR can name a folder on a local disk.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from packio.errors import IntegrityError, NotAPackError, PackioError, ReadError, UnfinishedPackError
from packio.index import indexfile
from packio.index.indexfile import INDEX_NAME, INDEX_SUFFIX, UNFINISHED_SUFFIX, Index
from packio.storage import stores, urls
from packio.storage.blocks import CachedIndex
from packio.storage.store import Facts
from packio.storage.urls import Url
from packio.system.files import cache_folder, temporary_name

# Bytes of an index that is copied whole: half a second over 1 Gbit/s. A column of such an index has
# so few blocks that a batch of random samples would need nearly all of them anyway.
WHOLE = 64 << 20
_MOST = 1 << 30  # bytes of an index that is copied whole for lack of a version
_BLOCKS = ".blocks"  # suffix in the cache of an index that is read by blocks
_KINDS = frozenset({
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "fhgfs", "gfs2", "glusterfs", "gpfs",
    "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs",
    "wekafs",
})  # fmt: skip
# FUSE file systems that only show other folders of this machine.
_NEAR = frozenset({
    "fuse.bindfs", "fuse.encfs", "fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.lxcfs",
    "fuse.mergerfs", "fuse.ntfs-3g", "fuse.portal", "fuse.squashfuse", "fuse.squashfuse_ll",
    "fuse.unionfs",
})  # fmt: skip
_OCTAL = re.compile(r"\\([0-7]{3})")


class IndexUrl(Url):
    """The URL of an index that is read by blocks."""

    found: Facts | None = None


def resolve_remote(url: Url) -> tuple[Path, Url]:
    """Return the index of the pack at a URL, and the root of its paths; see `open_index`."""
    urls.refuse_query(url)
    refused: PermissionError | None = None  # some services refuse what does not exist
    with urls.errors_as(ReadError, url):
        for index, root in index_places(url):
            try:
                found = stores.facts(index)
            except PermissionError as error:
                refused = error
                continue
            if found is not None and found.is_file:
                return _index(index, found), root
        if refused is not None:
            raise refused
        if stores.is_file(marker(url)):
            raise UnfinishedPackError(
                f"{url}: uploading it is unfinished ({marker(url)} is there); "
                "run the same `packio pack` again"
            )
    raise NotAPackError(f"{url}: no pack: neither {url}{INDEX_SUFFIX} nor {INDEX_NAME} in it")


def index_places(url: Url) -> tuple[tuple[Url, Url], ...]:
    """Places where the index of a pack may be, each with the root of the index's paths."""
    return (url.with_name(url.name + INDEX_SUFFIX), url.parent), (url / INDEX_NAME, url)


def marker(url: Url) -> Url:
    """URL of the object that is beside a pack while the pack is uploaded."""
    return url.with_name(url.name + UNFINISHED_SUFFIX)


def cached_index(url: Url, found: Facts) -> Path:
    """Path of an index in the user's cache, by its URL and version.

    A downloaded index gets the modification time 0: only the machine that packed knows when packio
    looked at the source.
    """
    name = hashlib.sha256(os.fsencode(f"{os.fspath(url)}\0{found.version}"))
    return cache_folder("remote") / f"{name.hexdigest()}{INDEX_SUFFIX}"


def open_index(index: Path) -> Index:
    """Open the index of a pack at a URL."""
    if not isinstance(index, IndexUrl):
        return Index(index, local_copy(index))
    with urls.errors_as(ReadError, index):
        found = index.found or _asked(index)
        path = cached_index(index, found).with_suffix(_BLOCKS)
        return Index(index, far=CachedIndex(index, found, path))


def index_at(place: Path) -> Path:
    """Where to open an index: at its path, in the user's cache, or at an `IndexUrl`."""
    if (url := urls.parse(place)) is None:
        return place
    with urls.errors_as(ReadError, url):
        return _index(url, _asked(url))


def _asked(url: Url) -> Facts:
    found = stores.facts(url)
    if found is None or not found.is_file:
        raise IntegrityError(f"{url}: missing; the index of a pack was expected there")
    return found


def _index(url: Url, found: Facts) -> Path:
    """A copy of an index, made if it is not there, or the URL of one that is too long to copy."""
    path = cached_index(url, found)
    if found.version and indexfile.is_whole(path):
        return path
    if found.version and found.size > WHOLE:
        far = IndexUrl(url)
        far.found = found
        return far
    if found.size > _MOST:
        raise ReadError(
            f"{url}: {found.size:,} bytes, and the server tells no version of it, so it cannot be "
            "read by blocks; copy it to a disk, and open the pack with index=FILE"
        )
    data = stores.content(url, found)

    def fill(temporary: Path) -> None:
        temporary.write_bytes(data)
        os.utime(temporary, ns=(0, 0))

    _store_index(path, fill, url)
    return path


def file_system(path: str | os.PathLike[str], mounts: str | None = None) -> str:
    """Name of the file system that holds a path, as "ext4" or "nfs4"; "" if the name is unknown.

    Source: proc_pid_mountinfo(5): the mount point is the fifth field, the type follows a lone "-".
    """
    real, best, name = os.path.realpath(path), "", ""
    for line in (_mounts() if mounts is None else mounts).splitlines():
        before, _, after = line.partition(" - ")
        if len(before.split()) < 5 or not after.split():
            continue
        point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), before.split()[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # the last mount at a point hides the others
            best, name = point, after.split()[0]
    return name


def _mounts() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:  # not Linux
        return ""


def is_far(path: str | os.PathLike[str], mounts: str | None = None) -> bool:
    """Tell whether a path is on a network file system; see `file_system`."""
    name = file_system(path, mounts)
    return name in _KINDS or (name.startswith("fuse.") and name not in _NEAR)


def advise_on_place(out: Path, container: str) -> str | None:
    """Advice for packing into a container at this place; None if there is none to give."""
    if container != "lmdb" or not is_far(out):
        return None
    return (
        f"{out}: on {file_system(out)}, where LMDB's own readers are slow and its locks do not "
        "hold; tar or TFRecord fits a network file system better"
    )


def local_copy(index: Path) -> Path | None:
    """Copy an index into the user's cache, unless the copy is there; None if no copy is needed."""
    try:
        if not is_far(index) or is_far(cache_folder()):
            return None
        status = index.stat()
        name = f"{os.path.realpath(index)}\0{status.st_size} {status.st_mtime_ns} {status.st_ino}"
        digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
        copy = cache_folder("near") / f"{digest}{INDEX_SUFFIX}"
        if not indexfile.is_whole(copy):
            _store_index(copy, lambda temporary: shutil.copyfile(index, temporary), index)
    except (OSError, PackioError):  # no room, or a damaged index, which opening it will tell
        return None
    return copy


def _store_index(path: Path, fill: Callable[[Path], object], where: Path) -> None:
    """Put a copy of an index into the user's cache in one step, and check every byte of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        fill(temporary)
        Index(temporary).check()
        temporary.replace(path)
    except PackioError as error:
        raise type(error)(str(error).replace(str(temporary), str(where), 1)) from error
    finally:
        temporary.unlink(missing_ok=True)
