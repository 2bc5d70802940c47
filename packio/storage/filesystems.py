"""File systems of other machines: what of a pack is better read from a disk of this one.

An index is mapped: over a network each page of it that is touched is a request, and a server that
goes away ends the process by a signal. So the index of a pack there is copied into the user's
cache, once a machine and version, and mapped from there; where the cache is on such a file system,
too, it is mapped where it is (PACKIO_CACHE_DIR can name a folder on a disk).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import threading
from pathlib import Path

from packio.errors import PackioError
from packio.index.indexfile import INDEX_SUFFIX, Index
from packio.system import cache

_KINDS = frozenset({
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "fhgfs", "gfs2", "glusterfs", "gpfs",
    "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs",
    "wekafs",
})  # fmt: skip
# Of fuse's, what only shows other folders of this machine; what it is over is not told.
_NEAR = frozenset({
    "fuse.bindfs", "fuse.encfs", "fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.lxcfs",
    "fuse.mergerfs", "fuse.ntfs-3g", "fuse.portal", "fuse.squashfuse", "fuse.squashfuse_ll",
    "fuse.unionfs",
})  # fmt: skip
_OCTAL = re.compile(r"\\([0-7]{3})")


def kind(path: str | os.PathLike[str], mounts: str | None = None) -> str:
    """Name of the file system that a path is on, as "ext4" or "nfs4"; "" if that is not known.

    Args:
        path: Need not exist; symbolic links are followed.
        mounts: Text of mountinfo; None takes that of this process.

    Source: proc_pid_mountinfo(5): mount point in the fifth field, type behind a lone hyphen.
    """
    real, best, name = os.path.realpath(path), "", ""
    for line in (_mounts() if mounts is None else mounts).splitlines():
        before, _, after = line.partition(" - ")
        if len(before.split()) < 5 or not after.split():
            continue
        point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), before.split()[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # of several at one point the last is seen
            best, name = point, after.split()[0]
    return name


def _mounts() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:  # not Linux
        return ""


def is_far(path: str | os.PathLike[str], mounts: str | None = None) -> bool:
    """Tell whether a path is on another machine's disks, or many machines'; see `kind`."""
    name = kind(path, mounts)
    return name in _KINDS or (name.startswith("fuse.") and name not in _NEAR)


def advice(out: Path, container: str) -> str | None:
    """What to say to somebody who packs into a container there; None: nothing."""
    if container != "lmdb" or not is_far(out):
        return None
    return (
        f"{out}: on {kind(out)}, where LMDB's own readers are slow and its locks do not "
        "hold; tar or TFRecord fits a network file system better"
    )


def nearby(index: Path) -> Path | None:
    """A copy of an index in the user's cache, made if need be; None where it needs no copy."""
    try:
        if not is_far(index) or is_far(cache.folder()):
            return None
        status = index.stat()
        name = f"{os.path.realpath(index)}\0{status.st_size} {status.st_mtime_ns} {status.st_ino}"
        digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
        copy = cache.folder("near") / f"{digest}{INDEX_SUFFIX}"
        if not copy.is_file():
            _copy(index, copy)
    except (OSError, PackioError):  # no room, or the index is damaged: who maps it is told
        return None
    return copy


def shard_index(folder: Path, name: str) -> Path:
    """The index of one shard of a pack in a folder, or a copy of it that is nearer."""
    path = folder / name
    return nearby(path) or path


def _copy(index: Path, copy: Path) -> None:
    """Copy an index, check all of it, and put it in place in one step.

    Raises:
        OSError: it cannot be read or written.
        PackioError: it is damaged.
    """
    copy.parent.mkdir(parents=True, exist_ok=True)
    temporary = copy.with_name(f"{copy.name}.tmp-{os.getpid()}-{threading.get_ident()}")
    try:
        shutil.copyfile(index, temporary)
        Index(temporary).check()
        temporary.replace(copy)
    finally:
        temporary.unlink(missing_ok=True)
