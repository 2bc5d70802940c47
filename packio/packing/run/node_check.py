"""What the nodes of a cluster must see before they work: the source, and the same packio.

A node that does not see the source would call each image unreadable. With ``on_error="skip"`` its
images would be left out without a word. So this process reads a few samples, and each node must
read the same bytes before it writes a shard.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from packio import __version__
from packio.errors import DecodeError, PackioError
from packio.images import native
from packio.index.indexfile import crc32c
from packio.packing.images import encode
from packio.packing.plan.planning import Plan
from packio.sample.recipe import Recipe
from packio.sources import Listing
from packio.sources._rows import scratch_files
from packio.storage import stores
from packio.storage.journal import Journal
from packio.storage.store import Facts
from packio.storage.urls import Url

_SAMPLES = 4  # that each node reads for a comparison


class NodeCheck(NamedTuple):
    """What this process sees, for a comparison with what a node sees. It pickles."""

    recipe: Recipe
    versions: dict[str, str]  # of all that decides the bytes
    look: Callable[[], str]  # tells what a process cannot see; "" if it sees the same

    def trouble(self) -> str:
        """Tell what this process cannot see; "" if it sees the same."""
        mine = _versions(self.recipe)
        for name, version in self.versions.items():
            if mine.get(name) != version:
                return f"{name} is {mine.get(name, 'missing')} there, {version} here"
        try:
            return self.look()
        except Exception as error:  # noqa: BLE001 (whatever the source's library raises)
            return str(error) or type(error).__name__


def _versions(recipe: Recipe) -> dict[str, str]:
    told = {"packio": __version__, **encode.versions(recipe)}
    if recipe.seek_points:  # which only the core finds
        told["the native core"] = "missing" if native.why_not() else "compiled"
    return told


def of_run(plan: Plan, journal: Journal, quarantine: Path | None) -> NodeCheck:
    """Look at the source and the journal of a packing run."""
    if quarantine is not None:  # nodes must find it: each would make a folder of its own
        quarantine.mkdir(parents=True, exist_ok=True)
    listing, count = plan.listing, len(plan.listing.keys)
    steps = max(1, min(count, _SAMPLES) - 1)
    positions = {i * (count - 1) // steps for i in range(steps + 1)} if count else ()
    few = dataclasses.replace(
        listing.take(sorted(positions)), unlisted=[], dropped=[], warnings=[], hidden=set(),
        others=Counter(),
    )  # fmt: skip
    found = {i: crc for i, crc in enumerate(_read(few)) if isinstance(crc, int)}
    look = functools.partial(
        _look_at_run, few.take(list(found)), tuple(found.values()), journal.plan_file,
        journal.digest, quarantine,
    )  # fmt: skip
    return NodeCheck(plan.own, _versions(plan.own), look)


def _look_at_run(
    samples: Listing, checksums: tuple[int, ...], plan: Path, digest: str, quarantine: Path | None
) -> str:
    try:
        if not plan.read_text().startswith(digest):
            return f"{plan} belongs to another run there"
        with tempfile.TemporaryFile(dir=plan.parent):
            pass
    except OSError as error:
        return f"{plan.parent}: {error.strerror}"
    if quarantine is not None and not quarantine.is_dir():
        return f"{quarantine}: no such folder there"
    try:
        found = _read(samples)
    except PackioError:
        raise
    except OSError as error:
        return f"{error.filename or samples.root}: {error.strerror}"
    for key, wanted, seen in zip(samples.keys, checksums, found, strict=True):
        if seen != wanted:
            what = seen if isinstance(seen, str) else "has other bytes there"
            return f"{os.path.join(samples.root or '', os.fsdecode(key))}: {what}"
    return ""


def _read(samples: Listing) -> list[int | str]:
    """CRC32C of the image of each sample, or the reason why the sample cannot be read."""
    found: list[int | str] = []
    with samples.opened() as read:
        for i in range(len(samples.keys)):
            try:
                found.append(crc32c(read(i).image.data))
            except OSError as error:
                found.append(error.strerror or str(error))
            except DecodeError as error:
                found.append(str(error))
    return found


def of_object(url: Url, facts: Facts, *, seek_points: bool) -> NodeCheck:
    """What this process sees of a container at URLs: what the service says of an object."""
    recipe = Recipe(seek_points=seek_points)
    look = functools.partial(_look_at_object, url, facts)
    return NodeCheck(recipe, _versions(recipe), look)


def _look_at_object(url: Url, facts: Facts) -> str:
    now = stores.file_facts(url)
    return "" if now[:2] == facts[:2] else f"{url}: another object"


@contextlib.contextmanager
def scratch_in(folder: Path, listing: Listing) -> Iterator[None]:
    """Give the scratch files of a listing names in a folder that other machines see, for a time."""
    with contextlib.ExitStack() as stack:
        for file in scratch_files(listing.open):
            path = folder / f"scratch-{secrets.token_hex(4)}"
            stack.enter_context(file.named(path))
        yield
