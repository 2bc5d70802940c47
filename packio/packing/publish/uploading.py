"""Uploading a pack that is built: every object whole or not at all, the index last.

While it is uploaded, ``OUT.packio-tmp`` is beside it, an object that says of which plan it is, and
its digest; without an index, what is there is no pack. Each object appears with its last byte:
object stores publish what was sent whole, and for other services fsspec renames a temporary file.
Before a pack is replaced, all of it is removed, first its index: what is there beside the marker is
this upload's, so that another run need not send it again. Two that upload to the same URL from
different machines notice each other by the marker, and by what has become of the objects.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from packio.errors import LockedError, OutputExistsError, PackioError
from packio.index.indexfile import INDEX_NAME, INDEX_SUFFIX, Index
from packio.packing.plan import existing
from packio.storage import remote, urls
from packio.storage.urls import Url
from packio.system.pools import ThreadPool

_BLOCK = 4 << 20  # bytes copied at a time
_MOST_MARK = 1000  # bytes of a marker
_TAGS = ("ETag", "etag", "md5Hash")  # what a service says alike of one object and in a list
_UPLOADS = 4  # files at a time; large ones are sent in several parts at a time besides

_Stamp = tuple[int, str]  # size of an object in bytes; what changes when it is written again, or ""


class Upload:
    """One pack on its way.

    Args:
        url: Where to.
        staged: The pack.
    """

    def __init__(self, url: Url, staged: Path) -> None:
        self._url, self._marker = url, remote.marker(url)
        self._is_folder = staged.is_dir()
        self._here, self._there = (staged, url) if self._is_folder else (staged.parent, url.parent)
        self._index = INDEX_NAME if self._is_folder else staged.name + INDEX_SUFFIX
        index = Index(self._here / self._index)
        self._sizes = {name: size for name, size, _ in index.files()}
        plan = index.metadata["plan"]
        self._ours, self._clearing = f"{plan} {index.digest}", f"{plan} clearing"

    def run(self, listed: Path | None, *, overwrite: bool) -> None:
        """Upload what is not there yet; the index last.

        Args:
            listed: What was skipped; it goes beside the pack.
            overwrite: Replace what is there.
        """
        begun = mark(self._url)
        if begun != self._ours:
            self._begin(anew=overwrite or begun is not None)
        found = self._found()
        missing = [name for name, size in self._sizes.items() if found.get(name, ())[:1] != (size,)]
        parallel = urls.filesystem(self._url)[0].async_impl
        with ThreadPool(_UPLOADS if parallel else 1, "packio-upload") as pool:
            found |= zip(missing, pool.map(self._send, missing), strict=True)
        skipped = self._url.with_name(self._url.name + existing.SKIPPED_SUFFIX)
        if listed is not None:
            send(listed, skipped)
        else:
            remove(skipped)
        self._check_mark()
        if self._found() != found:
            raise self._taken_over()
        send(self._here / self._index, self._there / self._index)
        try:
            self._check_mark()
        except LockedError:  # what the other one has put there is not what this index says
            remove(self._there / self._index)
            raise
        remove(self._marker)
        self._keep_index()

    def _send(self, name: str) -> _Stamp:
        self._check_mark()
        return send(self._here / name, self._there / name)

    def _begin(self, *, anew: bool) -> None:
        """Mark the place as this upload's, where nothing of another's is left."""
        if anew:
            put(self._marker, self._clearing.encode())
            self._clear()
        elif found := self._found():
            raise OutputExistsError(
                f"{self._url}: {', '.join(sorted(found)[:5])} exists and is of no pack there; "
                "remove it, or choose another name"
            )
        put(self._marker, self._ours.encode())

    def _clear(self) -> None:
        """Remove the pack that is there, or what is left of one."""
        old = [self._there / name for name in self._sizes]
        with suppress(PackioError):
            index, root = remote.located(self._url)
            old += [root / name for name, _, _ in Index(index).files()]
        if self._is_folder or urls.is_file(self._url / INDEX_NAME):
            old += [self._url / name for name in urls.below(self._url)]
        if urls.is_file(self._url):
            old.append(self._url)
        for index, _ in remote.index_places(self._url):
            remove(index)
        for url in dict.fromkeys(old):
            remove(url)

    def _found(self) -> dict[str, _Stamp]:
        """Those objects of the pack that are there."""
        if self._is_folder:
            there = urls.below(self._url)
        else:
            asked = {name: urls.info(self._there / name) for name in self._sizes}
            there = {name: found for name, found in asked.items() if found is not None}
        return {name: _stamp(there[name]) for name in self._sizes if name in there}

    def _check_mark(self) -> None:
        """Check that nobody else has begun to upload to the same place."""
        if mark(self._url) != self._ours:
            raise self._taken_over()

    def _taken_over(self) -> LockedError:
        return LockedError(f"{self._url}: another packio is uploading to it; run it again later")

    def _keep_index(self) -> None:
        """Put the index into the cache, with the time when the source was looked at."""
        index = self._there / self._index
        found = urls.info(index)
        if found is not None:
            kept = remote.cached_index(index, found)
            kept.parent.mkdir(parents=True, exist_ok=True)
            (self._here / self._index).replace(kept)


def mark(url: Url) -> str | None:
    """What the marker beside a URL says; None if there is none, or it is but tried out."""
    marker = remote.marker(url)
    found = urls.info(marker)
    if found is None:
        return None
    data = urls.read(*urls.filesystem(marker), 0, min(found["size"], _MOST_MARK))
    return data.decode("latin-1") or None


def _stamp(found: Mapping[str, Any]) -> _Stamp:
    return found["size"], next((str(found[n]) for n in _TAGS if found.get(n)), "")


def send(source: Path, url: Url) -> _Stamp:
    """Upload a file: whole, or not at all; return its size in bytes, and what tells its version."""
    size = source.stat().st_size

    def attempt() -> _Stamp:
        fs, path = urls.filesystem(url)
        try:
            _copy(fs, source, path)
        except FileNotFoundError as error:  # an upload in parts that has ended, if unheard: again
            raise OSError(str(error)) from error
        fs.invalidate_cache(path)
        arrived = _stamp(fs.info(path))
        if arrived[0] != size:
            fs.rm_file(path)
            raise OSError(f"{url}: {arrived[0]} of {size} bytes have arrived")
        return arrived

    return urls.retried(attempt)


def _copy(fs: Any, source: Path, path: str) -> None:
    if fs.async_impl:
        fs.put_file(os.fspath(source), path)
        return
    _make_folder(fs, path)
    with fs.transaction, fs.open(path, "wb") as file, source.open("rb") as data:
        shutil.copyfileobj(data, file, _BLOCK)


def _make_folder(fs: Any, path: str) -> None:
    """Make the folder that an object will be in; object stores have none."""
    fs.makedirs(path.rpartition("/")[0] or "/", exist_ok=True)


def put(url: Url, data: bytes) -> None:
    """Write a small object."""

    def attempt() -> None:
        fs, path = urls.filesystem(url)
        if not fs.async_impl:
            _make_folder(fs, path)
        fs.pipe_file(path, data)

    urls.retried(attempt)


def remove(url: Url) -> None:
    """Remove an object, if it is there."""

    def attempt() -> None:
        fs, path = urls.filesystem(url)
        with suppress(FileNotFoundError):
            fs.rm_file(path)

    urls.retried(attempt)
