"""A pack of finished shards: their files in one folder, and one index over all of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio import __version__
from packio.errors import OptionError, PackioError
from packio.formats import Format
from packio.index import columns as made
from packio.index import indexfile, raw_blocks
from packio.index.indexfile import Index
from packio.packing.images import encode
from packio.packing.plan import seen
from packio.packing.plan.plan import Plan
from packio.packing.report import Skip
from packio.packs import packs, pixel_statistics

Table = dict[str, np.ndarray]  # name of a column of an index → the column

_OF_ROWS = tuple(f"image/{n}" for n in ("encoding", "height", "width", "channels", "dtype"))
_FOR_ALL = ("label", "split")  # columns that all samples of a pack have, or none


class Assembled(NamedTuple):
    """The files of a pack that is ready to be published.

    Attributes:
        files: Names in the order in which they are put in place, the index last.
        digest: Of the pack.
        size: Bytes of all files.
        warnings: One line each.
        identities: What was known of the source's files: see `packio.packing.plan.seen`.
    """

    files: list[str]
    digest: str
    size: int
    warnings: list[str]
    identities: np.ndarray | None


def index_name(plan: Plan, container: Format, out: Path) -> str:
    """Name of the index file, beside or in the pack."""
    if is_folder(plan, container):
        return indexfile.INDEX_NAME
    return out.name + indexfile.INDEX_SUFFIX


def is_folder(plan: Plan, container: Format) -> bool:
    """Whether the pack is a folder, not a file with its index beside it."""
    return container.caps.is_directory or plan.is_sharded


def skipped(shards: Sequence[Index]) -> list[Skip]:
    """Samples that could not be packed into some shards."""
    return [
        Skip(os.fsencode(key), reason)
        for shard in shards
        for key, reason in shard.metadata["skipped"]
    ]


def write_index(
    plan: Plan, names: Sequence[str], shards: Sequence[Index], container: Format, built: Path,
    out: Path,
) -> Assembled:  # fmt: skip
    """Write the index of a pack, and the sidecars that concern all of it.

    Args:
        plan: Of the pack.
        names: Of the shards, relative to the pack.
        shards: Their indexes.
        container: The format's module.
        built: Where the shards are.
        out: Where the pack will be.
    """
    full = [(n, s) for n, s in zip(names, shards, strict=True) if s.metadata["samples"]]
    tables, identities = without_identities([columns_of(shard) for _, shard in full])
    counts = [shard.metadata["files"] for _, shard in full]
    columns = made.joined(alike(tables, str(out)), counts)
    if is_folder(plan, container):
        columns = with_sidecars(columns, container, built, [name for name, _ in full])
    index = index_name(plan, container, out)
    metadata = _metadata(plan, full, shards)
    digest = indexfile.write(built / index, columns, metadata)
    warnings = []
    if plan.own.stats is not None:
        try:
            with packs.Pack(built if is_folder(plan, container) else built / out.name) as pack:
                found = pixel_statistics.measure(pack, plan.own.stats or None)
            metadata["statistics"] = found
            digest = indexfile.write(built / index, columns, metadata)
        except PackioError as error:  # the pack itself is whole
            warnings.append(f"no statistics: {error}".replace(str(built), str(out)))
    paths = [name for name, _, _ in Index(built / index).files()]
    data = sum(counts)
    size = int(columns["file_bytes"].sum()) + (built / index).stat().st_size
    return Assembled([*paths[data:], *paths[:data], index], digest, size, warnings, identities)


def columns_of(index: Index) -> Table:
    """All columns of an index, checked."""
    return {name: index.column(name).array() for name in sorted(index.column_names)}


def without_identities(tables: Sequence[Table]) -> tuple[list[Table], np.ndarray | None]:
    """Columns of shards without the identities of their source files, and these joined."""
    each = [table.get(seen.COLUMN) for table in tables]
    rest = [{n: c for n, c in table.items() if n != seen.COLUMN} for table in tables]
    found = [column for column in each if column is not None]
    return rest, np.concatenate(found) if found and len(found) == len(each) else None


def with_sidecars(columns: Table, container: Format, folder: Path, shards: list[str]) -> Table:
    """The columns with the files that the format adds to a folder of shards."""
    more = container.finish(folder, shards)
    if not more:
        return columns
    tables = [columns, made.of_files(folder, more)]
    return columns | made.joined_files(tables, [len(columns["file_bytes"]), len(more)])


def alike(tables: Sequence[Table], where: str) -> list[Table]:
    """Columns of several indexes, completed so that all tables have the same columns.

    A table without a named field, boxes or metadata gets columns that say so. Checksums of rows of
    raw pixels stay only if all rows are of one kind.

    Raises:
        OptionError: only some of the tables have labels or splits, or labels of another shape.
    """
    columns = {name: column for table in tables for name, column in table.items()}
    for name in _FOR_ALL:
        shapes = {t[name].shape[1:] if name in t else None for t in tables}
        if len(shapes) > 1:
            raise OptionError(f"{where}: a {name} of another kind in some samples, or none")
    kinds = {tuple(table[n][:1].tobytes() for n in _OF_ROWS) for table in tables}
    if len(kinds) > 1 or not all(raw_blocks.COLUMN in table for table in tables):
        columns.pop(raw_blocks.COLUMN, None)
    for name in [n for n in columns if n.startswith("boxes/")]:
        if any(t[name].dtype.kind == "f" for t in tables if name in t):
            columns[name] = np.zeros(0, np.float32)
    return [
        {name: _completed(table, name, column) for name, column in columns.items()}
        for table in tables
    ]


def _completed(table: Table, name: str, like: np.ndarray) -> np.ndarray:
    """A column of a table, or one that says that the samples have no such value."""
    samples = len(table["image/offset"])
    if name in table:
        found = table[name]
        return found.astype(like.dtype) if name.startswith("boxes/") else found
    if name in ("meta_offsets", "box_offsets"):
        return np.zeros(samples + 1, np.int64)
    if name.startswith("boxes/") and len(table.get("boxes", ())):
        raise OptionError(f"some samples have boxes without the column {name.partition('/')[2]!r}")
    if name in ("meta_data", "boxes") or name.startswith("boxes/"):
        return like[:0]
    return np.full(samples, -1 if name.endswith("/offset") else 0, like.dtype)


def data_files(table: Mapping[str, np.ndarray]) -> int:
    """How many of an index's files the samples are read from: the files that are listed first."""
    return 1 + max(int(table[n].max()) for n in table if n.endswith("/file"))


def of_shards(full: Sequence[tuple[str, Index]]) -> list[dict[str, Any]]:
    """The list of shards in the metadata of an index."""
    return [{"name": n, "samples": s.metadata["samples"], **s.metadata["info"]} for n, s in full]


def all_fields(fields: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Kind of each named field of several indexes.

    Raises:
        OptionError: a field is of two kinds.
    """
    found: dict[str, str] = {}
    for name, kind in (item for each in fields for item in each.items()):
        if found.setdefault(name, kind) != kind:
            raise OptionError(f"field {name!r} is of kind {found[name]}, elsewhere of kind {kind}")
    return found


def _metadata(
    plan: Plan, full: Sequence[tuple[str, Index]], shards: Sequence[Index]
) -> dict[str, Any]:
    listing, carried = plan.listing, plan.carried
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
        "fields": all_fields([shard.fields for _, shard in full]),
        "classes": listing.classes,
        "counts": {
            "found": found + carried.skipped, "packed": packed,
            "skipped": left_out + carried.skipped,
        },
        "source": {"kind": plan.recipe.source},
        "recipe": plan.recipe.as_json(),
        "plan": plan.digest,
        "shards": of_shards(full),
        "versions": {
            "packio": __version__, **carried.versions, **encode.versions(plan.own.encoding)
        },
    }  # fmt: skip
    if listing.splits is not None:
        metadata["splits"] = listing.split_names
    if carried.statistics is not None and plan.own.stats is None:
        metadata["statistics"] = carried.statistics
    if any("identity" in shard.metadata for _, shard in full):
        metadata["identity"] = [shard.metadata["identity"] for _, shard in full]
    return metadata
