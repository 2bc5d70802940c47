"""The plan of a pack: everything that decides its bytes, fixed before the first byte is written."""

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
from packio.index.metadata import origins_of
from packio.packs import pixel_statistics
from packio.sample import origins
from packio.sample.origins import Origins
from packio.sample.recipe import NO_ENCODING, Recipe, merged, new_names
from packio.sources import Listing, Source
from packio.sources._packs import PackListing
from packio.system import processors

_WORTH_PROCESSES = 64 << 20  # bytes; a process starts in about the time that they take to pack


@dataclasses.dataclass(frozen=True)
class Carried:
    """What a pack takes over from the packs that it is made of.

    Attributes:
        recipe: Recipe of those packs; None if the source is no pack.
        skipped: Number of samples that those packs left out.
        statistics: Statistics of their pixels, if the new pack has the same pixels.
        versions: Versions of the libraries that encoded their images.
        origins: What became of the fields of their source; see `packio.sample.origins`.
    """

    recipe: Recipe | None = None
    skipped: int = 0
    statistics: dict[str, Any] | None = None
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    origins: Origins = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is packed, and how.

    Attributes:
        listing: The samples, in order.
        format: Name of the container's format.
        own: The recipe of this run.
        carried: What the pack takes over from packs that it is made of.
        shards: Positions in the listing that each shard takes; one range for a single file.
        is_sharded: Whether the pack is a folder of shards, even of one shard.
        digest: Hexadecimal SHA-256 of all of the above: keys, sizes and labels, but no times and no
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
        """Source bytes of the samples whose size is known."""
        return sum(size for size in self.listing.sizes if size > 0)

    @property
    def recipe(self) -> Recipe:
        """The recipe of the pack: the recipe of the packs it is made of, then this run's."""
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
    """Make the plan of a listing."""
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
        sum(m["counts"]["skipped"] for m in found if not m.get("left_out")),  # those are listed
        pixel_statistics.joined(listing.packs) if same_pixels else None,
        {name: version for name, version in versions.items() if name != "packio"},
        origins.together([origins.renamed(origins_of(m), new_names(recipe)) for m in found]),
    )


def _ranges(sizes: list[int], shards: int, shard_size: int | None) -> tuple[range, ...]:
    count = len(sizes)
    if shard_size is None:
        shards = min(shards, max(count, 1))  # a shard holds at least one sample
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
    """Find the source that lists a path or an object, by its name or by asking each source."""
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
        f"{source}: {what}; expected a folder of class folders of images, as cats/1.jpg, "
        "dogs/2.jpg, a list of images (.csv, .jsonl), a COCO file (.json with images and "
        "annotations), an archive or a pack"
    )


def workers(plan: Plan, wanted: int | None) -> int:
    """Number of processes; 1 for a small pack, or a listing that cannot be sent to a process."""
    if len(plan.shards) == 1 or not _portable(plan.listing):
        return 1
    if wanted is None and plan.total_bytes < _WORTH_PROCESSES:
        return 1
    return wanted or processors.usable()


def _portable(listing: Listing) -> bool:
    """Tell whether a listing pickles, and needs no class of this program's main module."""
    try:
        sent = pickle.dumps((listing.open, None if listing.rows is None else listing.rows[:1]))
    except Exception:  # noqa: BLE001 (whatever its pickling does)
        return False
    return b"__main__" not in sent


def format_of(out: Path, name: str | None) -> str:
    """Name of the format of an output: the name given, or by the output's suffix."""
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
