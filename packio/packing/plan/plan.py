"""The plan of a pack: everything that decides its bytes, fixed before the first one is written."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import pickle
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from packio import registry
from packio.errors import OptionError, SourceError
from packio.index.indexfile import canonical_json
from packio.packs import pixel_statistics
from packio.sample.recipe import NO_ENCODING, Recipe, merged
from packio.sources import Listing, Source
from packio.sources._packs import PackListing


@dataclasses.dataclass(frozen=True)
class Carried:
    """What a pack takes over from the packs that it is made of.

    Attributes:
        recipe: Of those packs; None if the source is not packs.
        skipped: Samples that those packs left out.
        statistics: Of their pixels, if the new pack has the same pixels.
        versions: Of the libraries that encoded their images.
    """

    recipe: Recipe | None = None
    skipped: int = 0
    statistics: dict[str, Any] | None = None
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What will be packed, and how.

    Attributes:
        listing: The samples, in order.
        format: Name of the container format.
        own: What this run does to the samples.
        carried: What the samples' packs bring along.
        shards: The positions in the listing that each shard takes; one range for a single file.
        is_sharded: Whether the pack is a directory of shards, also if there is only one.
        digest: Hexadecimal SHA-256 of all of the above: keys, sizes and labels, not times or
            absolute paths.
    """

    listing: Listing
    format: str
    own: Recipe
    carried: Carried
    shards: tuple[range, ...]
    is_sharded: bool
    digest: str

    @property
    def total_bytes(self) -> int:
        """Source bytes, as far as they are known."""
        return sum(size for size in self.listing.sizes if size > 0)

    @property
    def recipe(self) -> Recipe:
        """The recipe of the pack: that of the packs it is made of, followed by its own."""
        before = self.carried.recipe
        return self.own if before is None else before.followed_by(self.own)


def make(
    listing: Listing,
    format_name: str,
    recipe: Recipe,
    *,
    shards: int = 1,
    shard_size: int | None = None,
) -> Plan:
    """Make the plan of a listing.

    Args:
        listing: The samples.
        format_name: Of the container.
        recipe: What is done to the samples.
        shards: How many shards of about the same number of samples.
        shard_size: Source bytes of a shard, instead.
    """
    ranges = _ranges(listing.sizes, shards, shard_size)
    digest = hashlib.sha256()
    sharded = shards != 1 or shard_size is not None
    head = {
        "format": format_name, "recipe": recipe.as_json(), "classes": listing.classes,
        "source": listing.kind, "version": listing.version,
        "shards": [r.stop for r in ranges], "sharded": sharded,
    }  # fmt: skip
    digest.update(canonical_json(head).encode())
    for key, size in zip(listing.keys, listing.sizes, strict=True):
        digest.update(struct.pack("<Iq", len(key), size) + key)
    if listing.labels is not None:
        digest.update(np.ascontiguousarray(listing.labels).tobytes())
    if listing.splits is not None:
        digest.update(canonical_json(listing.split_names).encode())
        digest.update(np.asarray(listing.splits, np.uint8).tobytes())
    for key, _ in listing.unlisted:
        digest.update(b"unlisted" + key)
    carried = _carried(listing, recipe)
    return Plan(listing, format_name, recipe, carried, ranges, sharded, digest.hexdigest())


def _carried(listing: Listing, recipe: Recipe) -> Carried:
    if not isinstance(listing, PackListing):
        return Carried()
    found = [pack.metadata for pack in listing.packs]
    versions = {n: v for m in reversed(found) for n, v in m.get("versions", {}).items()}
    whole = len(listing.keys) == sum(map(len, listing.packs))
    same_pixels = whole and recipe.encoding == NO_ENCODING
    return Carried(
        merged([Recipe.of(m) for m in found]),
        sum(m["counts"]["skipped"] for m in found),
        pixel_statistics.joined(listing.packs) if same_pixels else None,
        {name: version for name, version in versions.items() if name != "packio"},
    )


def _ranges(sizes: list[int], shards: int, shard_size: int | None) -> tuple[range, ...]:
    count = len(sizes)
    if shard_size is None:
        edges = [count * i // shards for i in range(shards + 1)]
    else:
        edges, total = [0], 0
        for i, size in enumerate(sizes):
            if total and total + max(size, 0) > shard_size:
                edges.append(i)
                total = 0
            total += max(size, 0)
        edges.append(count)
    return tuple(range(a, b) for a, b in itertools.pairwise(edges) if b > a) or (range(0),)


def source_of(source: Any, name: str | None = None) -> Source:
    """Find the source: the one named, or the first that recognises it.

    Args:
        source: A path, text that a module may understand, or an object.
        name: Of the module.

    Raises:
        OptionError: there is no module of that name.
        SourceError: none recognises it.
    """
    if name is not None:
        named: Source = registry.load("sources", name)
        return named
    every: list[Source] = sorted(
        registry.load_all("sources").values(), key=lambda found: found.priority
    )
    if not isinstance(source, (str, Path)):
        for found in every:
            if found.accepts(source):
                return found
        raise SourceError(
            f"a {type(source).__name__}: expected a path, samples, or a dataset with a length"
        )
    for found in every:
        if found.recognise(Path(source)):
            return found
    try:
        Path(source).stat()
        what = "not a folder"
    except (OSError, ValueError) as error:  # ValueError: NUL in the path
        what = getattr(error, "strerror", None) or str(error)
    raise SourceError(
        f"{source}: {what}; expected a folder of class folders of images, as cats/1.jpg, dogs/2.jpg"
    )


def portable(listing: Listing) -> bool:
    """Tell whether a listing can be sent to a process that has another main module."""
    try:
        sent = pickle.dumps((listing.open, None if listing.rows is None else listing.rows[:1]))
    except Exception:  # noqa: BLE001 (whatever its pickling does)
        return False
    return b"__main__" not in sent


def format_of(out: Path, name: str | None) -> str:
    """Name the format of an output: as asked for, or by its suffix.

    Raises:
        OptionError: no such format, or a suffix that means none.
    """
    if name is not None:
        registry.load("formats", name)
        return name
    modules = registry.load_all("formats")
    suffixes = {s: n for n, m in modules.items() for s in m.caps.suffixes if m.caps.writes}
    try:
        return suffixes[out.suffix.lower()]
    except KeyError:
        raise OptionError(
            f"{out}: the suffix {out.suffix!r} names no format; use one of "
            f"{', '.join(sorted(suffixes))}, or say --format"
        ) from None
