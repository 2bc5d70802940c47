"""A pack of finished shards: their files in one folder, and one index over all of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from packio import __version__
from packio.errors import OptionError, PackioError
from packio.index import columns as made
from packio.index import indexfile, raw_blocks
from packio.index.indexfile import Index
from packio.packing.images import encode
from packio.packing.plan.plan import Plan
from packio.packing.report import Skip
from packio.packs import packs, pixel_statistics

if TYPE_CHECKING:
    import numpy as np

_OF_ROWS = tuple(f"image/{n}" for n in ("encoding", "height", "width", "channels", "dtype"))


def index_name(plan: Plan, container: ModuleType, out: Path) -> str:
    """Name of the index file, beside or in the pack."""
    if is_folder(plan, container):
        return indexfile.INDEX_NAME
    return out.name + indexfile.INDEX_SUFFIX


def is_folder(plan: Plan, container: ModuleType) -> bool:
    """Whether the pack is a folder, not a file with its index beside it."""
    return bool(container.IS_DIRECTORY) or plan.is_sharded


def skipped(shards: Sequence[Index]) -> list[Skip]:
    """What could not be packed into some shards."""
    return [
        Skip(os.fsencode(key), reason)
        for shard in shards
        for key, reason in shard.metadata["skipped"]
    ]


def write_index(
    plan: Plan, names: Sequence[str], shards: Sequence[Index], container: ModuleType, built: Path,
    out: Path,
) -> tuple[list[str], str, int]:  # fmt: skip
    """Write the index of a pack, and the sidecars that concern all of it.

    Args:
        plan: Of the pack.
        names: Of the shards, relative to the pack.
        shards: Their indexes.
        container: The format's module.
        built: Where the shards are.
        out: Where the pack will be.

    Returns:
        The names of all files in the order in which they are put in place, the index last; the
        pack's digest; the bytes of all files.
    """
    full = [(n, s) for n, s in zip(names, shards, strict=True) if s.metadata["samples"]]
    tables = alike([columns_of(shard) for _, shard in full])
    if len({tuple(table) for table in tables}) > 1:
        raise OptionError(
            f"{out}: some samples have fields that others have not: masks, boxes, meta"
        )
    counts = [shard.metadata["files"] for _, shard in full]
    columns = made.joined(tables, counts)
    if is_folder(plan, container) and hasattr(container, "finish"):
        more = container.finish(built, [name for name, _ in full])
        tables = [columns, made.of_files(built, more)]
        columns |= made.joined_files(tables, [len(columns["file_bytes"]), len(more)])
    index = index_name(plan, container, out)
    metadata = _metadata(plan, full, shards, container)
    digest = indexfile.write(built / index, columns, metadata)
    if (images := plan.options.get("stats")) is not None:
        place = built if is_folder(plan, container) else built / out.name
        with packs.Pack(place) as pack:
            metadata["statistics"] = pixel_statistics.measure(pack, images or None)
        digest = indexfile.write(built / index, columns, metadata)
    paths = [name for name, _, _ in Index(built / index).files()]
    data = sum(counts)
    size = int(columns["file_bytes"].sum()) + (built / index).stat().st_size
    return [*paths[data:], *paths[:data], index], digest, size


def columns_of(index: Index) -> dict[str, np.ndarray]:
    """All columns of an index, checked."""
    return {name: index.column(name).array() for name in sorted(index.column_names)}


def alike(tables: Sequence[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Columns of several indexes as they can be joined.

    That is without checksums of rows of raw pixels, where these are of different kinds, or none.
    """
    kinds = {tuple(table[n][:1].tobytes() for n in _OF_ROWS) for table in tables}
    if len(kinds) == 1 and all(raw_blocks.COLUMN in table for table in tables):
        return list(tables)
    return [{n: c for n, c in table.items() if n != raw_blocks.COLUMN} for table in tables]


def data_files(table: Mapping[str, np.ndarray]) -> int:
    """How many of the files in an index samples and masks are read from: those listed first."""
    return 1 + max(int(table[n].max()) for n in table if n.endswith("/file"))


def _metadata(
    plan: Plan, full: Sequence[tuple[str, Index]], shards: Sequence[Index], container: ModuleType
) -> dict[str, Any]:
    listing = plan.listing
    packed = sum(shard.metadata["samples"] for shard in shards)
    beside = len(listing.unlisted) + len(listing.dropped)
    left_out = beside + sum(len(shard.metadata["skipped"]) for shard in shards)
    found = len(listing.keys) + beside
    if packed + left_out != found:
        raise PackioError(
            f"the numbers do not add up: {found} found, {packed} packed, {left_out} not"
        )
    metadata: dict[str, Any] = {
        "version": indexfile.VERSION,
        "format": plan.format,
        "access": "range",
        "fields": dict(item for _, shard in full for item in shard.fields.items()),
        "classes": listing.classes,
        "counts": {"found": found, "packed": packed, "skipped": left_out},
        "source": {"kind": listing.kind},
        "options": plan.options,
        "plan": plan.digest,
        "shards": [
            {"name": n, "samples": s.metadata["samples"], **s.metadata["info"]} for n, s in full
        ],
        "versions": {"packio": __version__, **encode.versions(plan.options)},
    }
    if listing.splits is not None:
        metadata["splits"] = listing.split_names
    if hasattr(container, "identity"):
        metadata["identity"] = [shard.metadata["identity"] for _, shard in full]
    return metadata
