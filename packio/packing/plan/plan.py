"""The plan of a pack: everything that decides its bytes, fixed before the first one is written."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np

from packio import registry
from packio.errors import OptionError, SourceError
from packio.index.indexfile import canonical_json
from packio.sources import Listing


@dataclasses.dataclass(frozen=True)
class Plan:
    """What will be packed, and how.

    Attributes:
        listing: The samples, in order.
        format: Name of the container format.
        options: What changes the bytes or the set of samples, as JSON can hold it.
        shards: The positions in the listing that each shard takes; one range for a single file.
        is_sharded: Whether the pack is a directory of shards, also if there is only one.
        writer_options: Those of the options that the container's writer takes.
        digest: Hexadecimal SHA-256 of all of the above: keys, sizes and labels, not times or
            absolute paths.
    """

    listing: Listing
    format: str
    options: dict[str, Any]
    shards: tuple[range, ...]
    is_sharded: bool
    writer_options: dict[str, Any]
    digest: str

    @property
    def total_bytes(self) -> int:
        """Source bytes, as far as they could be told."""
        return sum(size for size in self.listing.sizes if size > 0)


def make(
    listing: Listing,
    format_name: str,
    options: dict[str, Any],
    *,
    shards: int = 1,
    shard_size: int | None = None,
    writer_options: dict[str, Any] | None = None,
) -> Plan:
    """Make the plan of a listing.

    Args:
        listing: The samples.
        format_name: Of the container.
        options: What else changes the bytes.
        shards: How many shards of about the same number of samples.
        shard_size: Source bytes of a shard, instead.
        writer_options: What the container's writer takes by keyword.
    """
    writer_options = writer_options or {}
    options = {**options, **writer_options}
    ranges = _ranges(listing.sizes, shards, shard_size)
    digest = hashlib.sha256()
    sharded = shards != 1 or shard_size is not None
    head = {
        "format": format_name, "options": options, "classes": listing.classes,
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
    return Plan(listing, format_name, options, ranges, sharded, writer_options, digest.hexdigest())


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


def source_of(source: Any, name: str | None = None) -> Any:
    """Find the module of a source: the one named, or the first that recognises it.

    Args:
        source: A path, text that a module may understand, or an object.
        name: Of the module.

    Raises:
        OptionError: there is no module of that name.
        SourceError: none recognises it.
    """
    if name is not None:
        return registry.load("sources", name)
    modules = list(registry.load_all("sources").values())
    modules.sort(key=lambda module: getattr(module, "PRIORITY", 0))
    if not isinstance(source, (str, Path)):
        for module in modules:
            if hasattr(module, "accepts") and module.accepts(source):
                return module
        raise SourceError(
            f"a {type(source).__name__}: expected a path, samples, or a dataset with a length"
        )
    for module in modules:
        if hasattr(module, "recognise") and module.recognise(Path(source)):
            return module
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
    suffixes = {s: n for n, m in modules.items() for s in m.SUFFIXES if hasattr(m, "Writer")}
    try:
        return suffixes[out.suffix.lower()]
    except KeyError:
        raise OptionError(
            f"{out}: the suffix {out.suffix!r} names no format; use one of "
            f"{', '.join(sorted(suffixes))}, or say --format"
        ) from None
