"""What the nodes of a cluster must see before they pack: source, workshop, and the same packio.

A node that does not see the source would call each image unreadable. With ``on_error="skip"`` its
images would be left out without a word. So this process reads a few samples, and each node must
read the same bytes before it writes a shard.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from packio import __version__
from packio.errors import DecodeError, PackioError
from packio.images import native
from packio.index.indexfile import crc32c
from packio.packing.images import encode
from packio.packing.plan.planning import Plan
from packio.packing.run.journal import Journal
from packio.sample.recipe import Recipe
from packio.sources import Listing
from packio.sources._rows import scratch_files

_SAMPLES = 4  # that each node reads for a comparison


class Sight(NamedTuple):
    """What this process sees, for a comparison with what a node sees. It pickles.

    Attributes:
        samples: A few samples that this process can read.
        checksums: CRC32C of their images.
        plan: File in the workshop.
        digest: Beginning of that file.
        recipe: How the pack is made.
        versions: Versions of all that decides the bytes of a pack.
    """

    samples: Listing
    checksums: tuple[int, ...]
    plan: Path
    digest: str
    recipe: Recipe
    versions: dict[str, str]

    @staticmethod
    def of(plan: Plan, journal: Journal) -> Sight:
        """Look at the source and the workshop of a run."""
        few = _some(plan.listing)
        found = {i: crc for i, crc in enumerate(_read(few)) if isinstance(crc, int)}
        return Sight(
            few.take(list(found)), tuple(found.values()),
            journal.plan_file, journal.digest, plan.own, _versions(plan.own),
        )  # fmt: skip

    def trouble(self) -> str:
        """Tell what this process cannot see; "" if it sees the same."""
        mine = _versions(self.recipe)
        for name, version in self.versions.items():
            if mine.get(name) != version:
                return f"{name} is {mine.get(name, 'missing')} there, {version} here"
        try:
            if not self.plan.read_text().startswith(self.digest):
                return f"{self.plan} belongs to another run there"
            with tempfile.TemporaryFile(dir=self.plan.parent):
                pass
        except OSError as error:
            return f"{self.plan.parent}: {error.strerror}"
        try:
            found = _read(self.samples)
        except PackioError as error:
            return str(error)
        except OSError as error:
            return f"{error.filename or self.samples.root}: {error.strerror}"
        except Exception as error:  # noqa: BLE001 (whatever the source's library raises)
            return str(error) or type(error).__name__
        for key, wanted, seen in zip(self.samples.keys, self.checksums, found, strict=True):
            if seen != wanted:
                what = seen if isinstance(seen, str) else "has other bytes there"
                return f"{os.path.join(self.samples.root or '', os.fsdecode(key))}: {what}"
        return ""


def _some(listing: Listing) -> Listing:
    """A few samples, from the first to the last."""
    count = len(listing.keys)
    steps = max(1, min(count, _SAMPLES) - 1)
    positions = {i * (count - 1) // steps for i in range(steps + 1)} if count else ()
    return _bare(listing.take(sorted(positions)))


def _bare(listing: Listing) -> Listing:
    return dataclasses.replace(
        listing, unlisted=[], dropped=[], warnings=[], hidden=set(), others=Counter()
    )


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


def _versions(recipe: Recipe) -> dict[str, str]:
    told = {"packio": __version__, **encode.versions(recipe)}
    if recipe.seek_points:  # which only the core finds
        told["the native core"] = "missing" if native.why_not() else "compiled"
    return told


@contextlib.contextmanager
def scratch_in(folder: Path, listing: Listing) -> Iterator[None]:
    """Give the scratch files of a listing names in a folder that other machines see, for a time."""
    with contextlib.ExitStack() as stack:
        for file in scratch_files(listing.open):
            path = folder / f"scratch-{secrets.token_hex(4)}"
            stack.enter_context(file.named(path))
        yield
