"""Uploading a pack to a URL: an object for each file, the index last.

Each object of an upload appears whole or not at all, and the index comes last. Meanwhile the object
``OUT.packio-tmp`` beside the pack holds the digests of the plan and of the pack. Without its index,
a pack cannot be opened. Object stores publish an object when its last byte has arrived; for other
services fsspec renames a temporary file.

Before a pack is replaced, it is removed, its index first. So all objects beside the marker belong
to this upload, and another run need not send them again. Two machines that upload to the same URL
notice each other: by the marker, and by objects that have changed.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from packio.errors import IntegrityError, LockedError, OutputExistsError, PackioError
from packio.index.indexfile import INDEX_NAME, INDEX_SUFFIX, Index
from packio.storage import remote, stores, urls
from packio.storage.store import Facts
from packio.storage.urls import Url
from packio.system.pools import ThreadPool

_MOST_MARK = 1000  # bytes of a marker
_TAGS = ("ETag", "etag", "md5Hash")  # names of an object's version, by service
_UPLOADS = 4  # files at a time; a large file is also sent in several parts at a time

_Stamp = tuple[int, str]  # size of an object in bytes, and its version, or ""


class Upload:
    def __init__(self, url: Url, staged: Path) -> None:
        self._url, self._marker = url, remote.marker(url)
        self._is_folder = staged.is_dir()
        self._here, self._there = (staged, url) if self._is_folder else (staged.parent, url.parent)
        self._index = INDEX_NAME if self._is_folder else staged.name + INDEX_SUFFIX
        index = Index(self._here / self._index)
        self._sizes = {name: size for name, size, _ in index.files()}
        plan = index.metadata["plan"]
        self._ours, self._clearing = f"{plan} {index.digest}", f"{plan} clearing"

    def run(self, listed: Path | None, name: str, *, overwrite: bool) -> None:
        """Upload the objects that are not there yet; the index last.

        `listed`, a list of skipped samples, is uploaded beside them by its name; None: remove it.
        """
        begun = read_mark(self._url)
        if begun != self._ours:
            self._begin(anew=overwrite or begun is not None)
        found = self._found()
        missing = [name for name, size in self._sizes.items() if found.get(name, ())[:1] != (size,)]
        at_once = _UPLOADS if stores.open_url(self._url).looks_ahead else 1
        with ThreadPool(at_once, "packio-upload") as pool:
            found |= zip(missing, pool.map(self._send, missing), strict=True)
        skipped = self._url.with_name(name)
        if listed is not None:
            stores.write_object(skipped, listed)
        else:
            stores.remove(skipped)
        self._check_mark()
        if self._found() != found:
            raise self._taken_over()
        stores.write_object(self._there / self._index, self._here / self._index)
        try:
            self._check_mark()
        except LockedError:  # the index does not fit the other upload's objects
            stores.remove(self._there / self._index)
            raise
        stores.remove(self._marker)
        index = self._there / self._index
        if (facts := stores.facts(index)) is not None:  # into the cache, where readers look for it
            kept = remote.cached_index(index, facts)
            kept.parent.mkdir(parents=True, exist_ok=True)
            (self._here / self._index).replace(kept)

    def _send(self, name: str) -> _Stamp:
        self._check_mark()
        return _stamp(stores.write_object(self._there / name, self._here / name))

    def _begin(self, *, anew: bool) -> None:
        """Remove the objects of another pack if need be, then write this upload's marker."""
        if anew:
            stores.write_object(self._marker, self._clearing.encode())
            self._clear()
        elif found := self._found():
            raise OutputExistsError(
                f"{self._url}: {', '.join(sorted(found)[:5])} exists and is of no pack there; "
                "remove it, or choose another name"
            )
        stores.write_object(self._marker, self._ours.encode())

    def _clear(self) -> None:
        """Remove the pack that is there, or the objects that are left of a pack."""
        old = [self._there / name for name in self._sizes]
        with suppress(PackioError):
            index, root = remote.resolve_remote(self._url)
            old += [root / name for name, _, _ in remote.open_index(index).files()]
        if self._is_folder or stores.is_file(self._url / INDEX_NAME):
            old += [self._url / name for name in stores.open_url(self._url).list()]
        if stores.is_file(self._url):
            old.append(self._url)
        for index, _ in remote.index_places(self._url):
            stores.remove(index)
        for url in dict.fromkeys(old):
            stores.remove(url)

    def _found(self) -> dict[str, _Stamp]:
        """Objects of the pack that are there: name → stamp."""
        if self._is_folder:
            there = stores.open_url(self._url).list()
        else:
            asked = {name: stores.facts(self._there / name) for name in self._sizes}
            there = {name: found for name, found in asked.items() if found is not None}
        return {name: _stamp(there[name]) for name in self._sizes if name in there}

    def _check_mark(self) -> None:
        """Check that no other process has begun to upload to the same URL."""
        if read_mark(self._url) != self._ours:
            raise self._taken_over()

    def _taken_over(self) -> LockedError:
        return LockedError(f"{self._url}: another packio is uploading to it; run it again later")


def read_mark(url: Url, attempts: int = 2) -> str | None:
    """Text of the marker beside a URL; None if there is no marker, or it is empty."""
    marker = remote.marker(url)
    found = stores.facts(marker)
    if found is None:
        return None
    try:
        data = stores.content(marker, found) if found.size <= _MOST_MARK else b"of another program"
    except (urls.LengthError, IntegrityError):  # another upload replaced it meanwhile
        if attempts == 1:
            raise
        return read_mark(url, attempts - 1)
    return data.decode("latin-1") or None


def _stamp(found: Facts) -> _Stamp:
    return found.size, found.version if found.version.startswith(_TAGS) else ""
