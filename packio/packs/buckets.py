"""Containers of others at URLs: what is there, where their index goes, and whether they changed.

A URL names one object (``s3://bucket/train.tar``), several by braces
(``s3://bucket/train-{000..127}.tar``), or a folder of them (``s3://bucket/train``), if the service
lists folders. The index lies beside them as that of a pack does: ``train.tar.packio``,
``train-{000..127}.tar.packio``, ``train/index.packio``.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from packio import registry
from packio.errors import IntegrityError, NotAPackError, OptionError, ReadError
from packio.formats import Format, is_added_shard
from packio.index.indexfile import INDEX_NAME, INDEX_SUFFIX, Index
from packio.packs import recognising
from packio.storage import stores, urls
from packio.storage.store import Facts, Store
from packio.storage.urls import Url
from packio.system.pools import ThreadPool

OBJECTS = "objects"  # metadata of an index: name of each object → its version
EMPTY = "empty_objects"  # metadata of an index: names of objects without samples
_TAG = re.compile(r'ETag ("[^"]*")', re.IGNORECASE)  # as Facts.version tells it
_ASKING = 16  # requests at a time
_FEW = 8  # objects that are asked for one by one; of more, the folder is listed
_HEAD = 512  # bytes of an object that tell its format
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Bucket:
    """A container at URLs."""

    format: str
    root: Url  # that all names are relative to
    facts: Mapping[str, Facts]  # of each object, by its name, in the order of the samples
    is_folder: bool  # whether all objects of the format in the folder are meant


def find(url: Url) -> Bucket:
    """Recognise a container at a URL."""
    urls.refuse_query(url)
    names = recognising.expand_braces(os.fspath(url))
    if names != [os.fspath(url)]:
        root = root_of(url)
        skip = len(os.fspath(root)) + 1
        return _checked(
            url, root, _all_facts(root, [urls.name_of(root, name[skip:]) for name in names])
        )
    with urls.errors_as(ReadError, url):
        found = stores.facts(url)
    if found is not None and found.is_file:
        facts = stores.file_facts(url)
        if (form := _format_of(url, facts)) is not None:
            name = urls.name_of(url.parent, url.name)
            return _readable(Bucket(form, url.parent, {name: facts}, is_folder=False), url)
        if not found.is_page:  # a page may be the list of a folder
            raise NotAPackError(f"{url}: no container that packio knows")
    return _in_folder(url)


def root_of(url: Url) -> Url:
    """The URL that names in the index are relative to: the folder that all objects are in."""
    names = recognising.expand_braces(os.fspath(url))
    return Url(os.path.commonpath([os.path.dirname(name) for name in names]))


def index_place(url: Url, bucket: Bucket) -> Url:
    """Where the index of a container goes if nobody says otherwise."""
    if bucket.is_folder:
        return url / INDEX_NAME
    if root_of(url) != url.parent:
        raise OptionError(
            f"{url}: in several folders, so no place for its index is beside it; say which with "
            f"--index FILE (index=)"
        )
    return url.with_name(url.name + INDEX_SUFFIX)


def check_unchanged(index: Index, store: Store, names: Sequence[str]) -> None:
    """Check that the objects of others are those that an index was made of.

    Nothing is checked where the service tells no versions.
    """
    expected = index.metadata.get(OBJECTS)
    if not isinstance(expected, dict):
        return
    with urls.errors_as(ReadError, store.root):
        known: dict[str, Facts | None] = {
            name: facts for name, facts in _list(store, names).items() if facts.version
        }
        found = _ask(names, store.facts, known)
    for name, facts in found.items():
        said, version = expected.get(name, ""), facts.version if facts is not None else ""
        if said and version and not urls.is_version(said, version):
            raise IntegrityError(
                f"{store.root / name}: was replaced after it was indexed ({version}; the index "
                f"says {said}); run packio reindex again"
            )


def tags(index: Index) -> dict[str, str]:
    """Strong entity tags of the objects of others that an index was made of, by their names."""
    versions = index.metadata.get(OBJECTS)
    return {
        name: match[1]
        for name, version in (versions.items() if isinstance(versions, dict) else ())
        if isinstance(version, str) and (match := _TAG.match(version)) is not None
    }


def _all_facts(root: Url, names: Sequence[str]) -> dict[str, Facts]:
    with urls.errors_as(ReadError, root):
        listed = _list(stores.open_url(root), names)
    known = {name: facts for name, facts in listed.items() if facts.size >= 0 and facts.version}
    return _ask(names, lambda name: stores.file_facts(urls.child(root, name)), known)


def _ask(names: Sequence[str], ask: Callable[[str], _T], known: Mapping[str, _T]) -> dict[str, _T]:
    """Ask for each object of which nothing is known, several at a time."""
    rest = [name for name in names if name not in known]
    with ThreadPool(_ASKING, "packio-objects") as pool:
        found = dict(known) | dict(zip(rest, pool.map(ask, rest), strict=True))
    return {name: found[name] for name in names}


def _list(store: Store, names: Sequence[str]) -> dict[str, Facts]:
    """What a list of the folder says of its objects; nothing if asking for each is better."""
    if len(names) <= _FEW or any("/" in name for name in names):
        return {}
    return store.list(deep=False) if store.lists_folders else {}


def _checked(url: Url, root: Url, facts: dict[str, Facts]) -> Bucket:
    """The container that consists of some objects, which braces name."""
    first = next(iter(facts))
    form = _format_of(urls.child(root, first), facts[first])
    if form is None:
        raise NotAPackError(f"{urls.child(root, first)}: no container that packio knows")
    known: Format = registry.load("formats", form)
    for name in facts:  # by name: the scan will tell what is in them
        if not known.recognise(b"", name.rpartition("/")[2]) and name != first:
            raise OptionError(
                f"{urls.child(root, name)}: its name is not that of a {form}, as {first} is"
            )
    return _readable(Bucket(form, root, facts, is_folder=False), url)


def _in_folder(url: Url) -> Bucket:
    """The containers in a folder, of one format; the order is that of their names."""
    with urls.errors_as(ReadError, url):
        listed = stores.open_url(url).list(deep=False)
    found: dict[str, list[str]] = {}
    for name in sorted(listed):
        form = recognising.format_of(b"", name)
        if form is not None:
            found.setdefault(form, []).append(name)
    if not found:
        if listed:
            what = f"{len(listed)} objects, no container that packio knows"
        else:
            what = "nothing is there, or the service lists no folders; check the URL"
        raise NotAPackError(
            f"{url}: {what}; name several objects by braces: {url}/{{000..127}}.tar"
        )
    advice = f"name one, or several by braces: {url}/{{000..127}}.tar"
    form, names = recognising.require_one_format(found, str(url), advice)
    known: Format = registry.load("formats", form)
    there = set(names)
    names = [name for name in names if not is_added_shard(name, there)]

    def content(name: str) -> bytes | None:
        """All bytes of a small object; None if there is none."""
        with urls.errors_as(ReadError, url):
            return stores.content(urls.child(url, name), listed[name]) if name in listed else None

    names = list(known.shards(names, content))
    return _readable(Bucket(form, url, _all_facts(url, names), is_folder=True), url)


def _readable(bucket: Bucket, url: Url) -> Bucket:
    known: Format = registry.load("formats", bucket.format)
    if not known.caps.at_urls:
        raise NotAPackError(
            f"{url}: {bucket.format}, which packio indexes on a disk only; copy it there, index it "
            "with packio reindex, and upload both"
        )
    name, facts = next(iter(bucket.facts.items()))
    if facts.size > 1:  # a server of web pages may send whole objects instead of ranges
        stores.read_range(urls.child(bucket.root, name), facts.size - 1, 1, facts)
    return bucket


def _format_of(url: Url, facts: Facts) -> str | None:
    return recognising.format_of(stores.read_range(url, 0, min(_HEAD, facts.size), facts), url.name)
