"""The files of a pack, on a disk, in a folder, or at a URL."""

from __future__ import annotations

import shlex
from pathlib import Path

from packio.errors import IntegrityError, PackioError
from packio.formats import Format
from packio.index.indexfile import Index
from packio.packs import buckets
from packio.storage import filesystems, remote
from packio.storage.folder import FolderFiles
from packio.storage.local import LocalFiles
from packio.storage.remote_files import RemoteFiles
from packio.storage.urls import Url


def index_of_pack(path: Path, root: Path) -> Index:
    """Open the index of a pack: a copy near by, if it is far away, or block by block."""
    if isinstance(root, Url):
        return remote.opened(path)
    return Index(path, filesystems.nearby(path))


def of_pack(
    index: Index, container: Format, root: Path, pack: Path
) -> LocalFiles | FolderFiles | RemoteFiles:
    """Return the object that reads byte ranges of a pack's files."""
    if container.caps.whole_files:
        return FolderFiles(root, index.key)
    files = index.files()
    names, sizes = [name for name, _, _ in files], [size for _, size, _ in files]
    if isinstance(root, Url):
        return RemoteFiles(root, names, sizes, buckets.tags(index))
    if pack.is_file() and pack.name not in names and "selection" not in index.metadata:
        raise IntegrityError(
            f"{index.path}: lists {', '.join(names[:1]) or 'no file'}, not {pack.name}: the index "
            "is another pack's, or the pack was renamed; then make the index fit: packio reindex "
            f"{shlex.quote(str(pack))}"
        )
    return LocalFiles(root, names, sizes)


def refuse_changed(index: Index, pack: object) -> None:
    """Say so if what an index describes is gone because the pack has another index by now."""
    try:
        is_same = Index(index.path).digest == index.digest
    except PackioError:  # gone, damaged, or at a URL
        return
    if not is_same:
        raise IntegrityError(
            f"{pack}: has changed since it was opened, as by packio add or drop-field; open it anew"
        )


def check_identity(
    index: Index, container: Format, shards: list[tuple[str, int]], root: Path
) -> None:
    """Compare what the containers are with what they were when they were indexed."""
    if isinstance(root, Url):
        buckets.check_unchanged(index, root, [name for name, _ in shards])
        return
    found = [container.identity(root / name) for name, _ in shards]
    expected = index.metadata.get("identity", [None] * len(found))
    if found != expected:
        raise IntegrityError(
            f"{root}: changed since it was packed ({found}, the index says {expected}); pack again"
        )
