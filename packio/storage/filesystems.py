"""Network file systems: an index there is copied to a local disk before it is mapped.

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

from packio.errors import PackioError
from packio.index import indexfile
from packio.index.indexfile import INDEX_SUFFIX, Index
from packio.system.files import cache_folder, temporary_name

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


def kind(path: str | os.PathLike[str], mounts: str | None = None) -> str:
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
    """Tell whether a path is on a network file system; see `kind`."""
    name = kind(path, mounts)
    return name in _KINDS or (name.startswith("fuse.") and name not in _NEAR)


def advice(out: Path, container: str) -> str | None:
    """Advice for packing into a container at this place; None if there is none to give."""
    if container != "lmdb" or not is_far(out):
        return None
    return (
        f"{out}: on {kind(out)}, where LMDB's own readers are slow and its locks do not "
        "hold; tar or TFRecord fits a network file system better"
    )


def nearby(index: Path) -> Path | None:
    """Copy an index into the user's cache, unless the copy is there; None if no copy is needed."""
    try:
        if not is_far(index) or is_far(cache_folder()):
            return None
        status = index.stat()
        name = f"{os.path.realpath(index)}\0{status.st_size} {status.st_mtime_ns} {status.st_ino}"
        digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
        copy = cache_folder("near") / f"{digest}{INDEX_SUFFIX}"
        if not indexfile.is_whole(copy):
            store_index(copy, lambda temporary: shutil.copyfile(index, temporary))
    except (OSError, PackioError):  # no room, or a damaged index, which opening it will tell
        return None
    return copy


def store_index(path: Path, fill: Callable[[Path], object]) -> None:
    """Put a copy of an index into the user's cache in one step, and check every byte of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        fill(temporary)
        Index(temporary).check()
        temporary.replace(path)
    except PackioError as error:
        raise type(error)(str(error).replace(str(temporary), str(path), 1)) from error
    finally:
        temporary.unlink(missing_ok=True)
