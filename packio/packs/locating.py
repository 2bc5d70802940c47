"""Where the index of a pack is, given the pack's path or URL, and opening it and its files."""

from __future__ import annotations

import multiprocessing
import os
import shlex
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from packio.errors import (
    IntegrityError,
    NoSuchPackError,
    NotAPackError,
    OptionError,
    PackioError,
    ReadError,
    UnfinishedPackError,
)
from packio.formats import Format, Reading
from packio.index.indexfile import INDEX_NAME, INDEX_SUFFIX, UNFINISHED_SUFFIX, Index
from packio.packs import buckets, indexing, recognising
from packio.packs.querying import selections
from packio.storage import remote, stores, urls
from packio.storage.local import FolderStore
from packio.storage.store import Store
from packio.storage.urls import Url
from packio.storage.workshop import REPLACED, Workshop

_AS_IT_IS = Reading()
Again: TypeAlias = Callable[[], tuple[Path, Path] | None]  # locates an index once more


def resolve_pack(path: Path, reading: Reading = _AS_IT_IS) -> tuple[Path, Path]:
    """The index of a pack, and the folder that the paths in the index are relative to."""
    if (url := urls.parse(path)) is not None:
        return _at_url(url, reading)
    check_finished(path)
    kind = _file_kind(path)
    if kind is None and _has_braces(path):
        return indexing.cache_index(path, reading)
    if kind is None:
        raise NoSuchPackError(f"{path}: does not exist; a pack was expected")
    index = path / INDEX_NAME if stat.S_ISDIR(kind) else path.with_name(path.name + INDEX_SUFFIX)
    if selections.is_selection(path):
        if reading.names():
            raise OptionError(f"{path}: a selection; its pack has an index already")
        return selection(path)
    if stat.S_ISREG(_file_kind(index) or 0):
        if reading.names() and reading.names() != Index(index).metadata.get("options"):
            raise OptionError(f"{path}: has an index already; make it anew with packio.reindex")
        return index, index.parent
    if os.path.lexists(index):
        raise NotAPackError(f"{index}: not a file; the index of {path} was expected")
    if not (stat.S_ISDIR(kind) or stat.S_ISREG(kind)):
        raise NotAPackError(f"{path}: neither a file nor a folder; a pack was expected")
    return indexing.cache_index(path, reading)


def selection(path: Path, pack: Path | None = None, *, by_key: bool = False) -> tuple[Path, Path]:
    """What `resolve_pack` returns, of a selection; see `packio.packs.querying.selected`."""
    from packio.packs.querying import selected

    if not selections.is_selection(path):
        raise OptionError(f"{path}: no selection; pack= and by_key= are of selections only")
    return selected.resolve_selection(path, pack, by_key=by_key)


def locate_asked(
    path: Path, index: Path | None, reading: Reading, pack: Path | None, by_key: bool
) -> tuple[Path, Path] | None:
    """What `resolve_pack` returns, if the user says where the index is or how to read; else None.

    Paths are absolute.
    """
    if pack is not None or by_key:
        return selection(path, pack, by_key=by_key)
    if index is None:
        return None if reading == _AS_IT_IS else resolve_pack(path, reading)
    if reading.names():
        raise OptionError(f"{path}: index= and {', '.join(reading.names())}= exclude each other")
    return resolve_with_index(path, index)


def _at_url(url: Url, reading: Reading) -> tuple[Path, Url]:
    if said := reading.names():
        raise OptionError(f"{url}: {', '.join(said)}= of objects at URLs are of packio.reindex")
    try:
        return remote.resolve_remote(url)
    except UnfinishedPackError:
        raise
    except NotAPackError as error:
        if not _is_something(url):
            raise NoSuchPackError(
                f"{url}: nothing is there, and no index beside it; check the URL"
            ) from error
        command = f"packio reindex {shlex.quote(os.fspath(url))}"
        raise NotAPackError(
            f"{error}; if others wrote it, index it once: {command} (with --index FILE where you "
            "may not write; open it with index=FILE then)"
        ) from error


def _is_something(url: Url) -> bool:
    """Whether there is an object or a folder at a URL, or at the first of several."""
    try:
        first = urls.Url(recognising.expand_braces(os.fspath(url))[0])
        return stores.facts(first) is not None or bool(stores.open_url(first).list(deep=False))
    except Exception:  # noqa: BLE001 (each service has errors of its own; it may be there)
        return True


def resolve_with_index(path: Path, index: Path) -> tuple[Path, Path]:
    """An index that is not beside its container, and the folder that its paths are relative to."""
    if (url := urls.parse(path)) is not None:
        urls.refuse_query(url)
    with urls.errors_as(ReadError, index):
        if not stores.is_file(index):
            words = ["packio", "reindex", os.fspath(path), "--index", str(index)]
            raise NotAPackError(f"{index}: no such index; make it: {shlex.join(words)}")
    found = remote.index_at(index)
    metadata = remote.open_index(found).metadata
    names = [shard["name"] for shard in metadata["shards"]] + metadata.get(buckets.EMPTY, [])
    if url is None:
        if not stat.S_ISREG(_file_kind(path) or 0):
            return found, path
        if not _has_braces(path):
            _check_names(path, index, [path.name], names)
        return found, path.parent
    if urls.name_of(url, url.name) not in names and not _has_braces(url):
        return found, url
    root = buckets.root_of(url)
    given = [os.path.relpath(name, root) for name in recognising.expand_braces(os.fspath(url))]
    _check_names(path, index, [urls.name_of(root, name) for name in given], names)
    return found, root


def _check_names(path: Path, index: Path, given: list[str], listed: list[str]) -> None:
    """Check that a path names what an index lists, no more and no less."""
    if sorted(given) != sorted(listed):
        other = min({*given} ^ {*listed})
        raise OptionError(
            f"{path}: not what {index} is of, which lists {len(listed)} containers; {other} is in "
            "one of the two only; give the same path as to packio reindex, and take a part with "
            "where() or subset() of the dataset"
        )


def _has_braces(path: Path) -> bool:
    return recognising.expand_braces(os.fspath(path)) != [os.fspath(path)]


def check_finished(path: Path) -> None:
    """Check that no packing into a path was interrupted or is going on."""
    unfinished = path.with_name(path.name + UNFINISHED_SUFFIX) if path.name else path
    if unfinished == path or not os.path.exists(unfinished):
        return
    advice = "run the same `packio pack` again, or delete that folder to give up"
    shop = Workshop(path, unfinished)
    if os.path.lexists(unfinished / REPLACED) and not shop.is_published():
        advice = (
            "run the same `packio pack` again, which puts the old pack back first; do not delete "
            "that folder: the old pack may be in it"
        )
    raise UnfinishedPackError(
        f"{path}: packing into it is unfinished ({unfinished.name} is there); {advice}"
    )


def is_container(path: Path) -> bool:
    """Tell whether a container that others wrote is at a path: a file, or a marked folder."""
    try:
        if path.is_dir():
            return recognising.format_of_directory(path) is not None
        return path.is_file() and recognising.find(path) is not None
    except (OSError, ValueError):  # ValueError: NUL in the path
        return False


def has_index(path: Path) -> bool:
    """Tell whether a pack is at a path, finished or damaged, without opening it."""
    if (url := urls.parse(path)) is not None:
        with urls.errors_as(ReadError, url):
            return any(stores.is_file(index) for index, _ in remote.index_places(url))
    beside = path.with_name(path.name + INDEX_SUFFIX) if path.name else path
    return (
        os.path.isfile(path / INDEX_NAME)
        or (os.path.isfile(path) and os.path.isfile(beside))
        or selections.is_selection(path)
    )


def _file_kind(path: Path) -> int | None:
    """Mode of the file at a path; None if there is none."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: NUL in the path
        return None
    except OSError as error:
        raise ReadError(f"{path}: {error.strerror}; a pack was expected") from error


def open_files(index: Index, container: Format, root: Path, pack: Path) -> Store:
    """Return the store of a pack's files."""
    if container.caps.whole_files:
        return FolderStore(root, index.key)
    files = index.files()
    names, sizes = [name for name, _, _ in files], [size for _, size, _ in files]
    if pack.is_file() and pack.name not in names and "selection" not in index.metadata:
        raise IntegrityError(
            f"{index.path}: lists {', '.join(names[:1]) or 'no file'}, not {pack.name}: the index "
            "is another pack's, or the pack was renamed; then make the index fit: packio reindex "
            f"{shlex.quote(str(pack))}"
        )
    return stores.open_store(root, names, sizes, buckets.tags(index))


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
    index: Index, container: Format, shards: list[tuple[str, int]], store: Store
) -> None:
    """Compare what the containers are with what they were when they were indexed."""
    root = store.root
    if not store.is_local:
        buckets.check_unchanged(index, store, [name for name, _ in shards])
        return
    found = [container.identity(root / name) for name, _ in shards]
    expected = index.metadata.get("identity", [None] * len(found))
    if found != expected:
        each = zip(shards, found, expected, strict=False)
        changed = [root / name for (name, _), now, before in each if now != before] or [root]
        is_ours = index.metadata.get("source", {}).get("kind") != "reindex"
        raise IntegrityError(
            f"{changed[0]}: changed since it was {'packed' if is_ours else 'indexed'} ({found}, "
            f"the index says {expected}); {'pack again' if is_ours else 'run packio reindex'}"
        )


class FailedPack:
    """Stands for a pack that cannot be opened in a worker: whoever uses it gets the error.

    Raised while a worker starts, the error would end it, and torch would say "exited unexpectedly".
    """

    def __init__(self, error: PackioError) -> None:
        self._error = error

    def __getattr__(self, name: str) -> NoReturn:
        raise self._error

    def __len__(self) -> NoReturn:
        raise self._error

    def __getitem__(self, index: object) -> NoReturn:
        raise self._error


def open_pickled(open_pack: Callable[[Any], Any], path: Any) -> Any:
    """Open a pack that was pickled; in a process that is just starting, errors wait."""
    try:
        return open_pack(path)
    except PackioError as error:
        # multiprocessing sets it while a process that it spawned unpickles what it was given.
        if not getattr(multiprocessing.current_process(), "_inheriting", False):
            raise
        return FailedPack(error)
