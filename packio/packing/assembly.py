"""The index of a pack: the indexes of its shards joined, its metadata, and its sidecars."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio import __version__
from packio.errors import OptionError, PackioError
from packio.formats import Format
from packio.images.encodings import DTYPES
from packio.index import columns as made
from packio.index import indexfile
from packio.index.building import RAW_CRCS
from packio.index.column import Content
from packio.index.indexfile import Index
from packio.index.layout import origins_of
from packio.packing.images import encode
from packio.packing.images.levels import Levels
from packio.packing.planning import Plan, Skip
from packio.packing.run import sameness
from packio.packs import opening, pixel_statistics
from packio.packs.collecting import join_fields
from packio.sample import levels, origins
from packio.sample.recipe import NO_ENCODING
from packio.sources.pack import PackListing
from packio.system import files, locks

Table = dict[str, np.ndarray]  # name of a column of an index → the column

_OF_ROWS = tuple(f"image/{n}" for n in ("encoding", "height", "width", "channels", "dtype"))
_IDS = "boxes/category_id"  # packs of 0.1.0 have these ids in the metadata alone
_FOR_ALL = ("label", "split")  # columns that all samples of a pack have, or none


class PackFiles(NamedTuple):
    """The files of a pack that is ready to be published."""

    files: list[str]  # in the order in which they are put in place, the index last
    digest: str  # of the pack
    size: int  # bytes of all files
    warnings: list[str]
    identities: np.ndarray | None  # of the source's files, see `packio.packing.run.sameness`


def is_folder(plan: Plan, container: Format) -> bool:
    """Tell whether the pack is a folder; else it is a file with its index beside it."""
    return container.caps.is_directory or plan.is_sharded


def list_skipped(shards: Sequence[Index]) -> list[Skip]:
    """Samples that could not be packed into these shards."""
    return [
        Skip(os.fsencode(key), reason)
        for shard in shards
        for key, reason in shard.metadata["skipped"]
    ]


def write_index(
    plan: Plan, names: Sequence[str], shards: Sequence[Index], container: Format, built: Path,
    out: Path,
) -> PackFiles:  # fmt: skip
    """Write the index of a pack, and the sidecars that concern the whole pack."""
    is_dir = is_folder(plan, container)
    full = [(n, s) for n, s in zip(names, shards, strict=True) if s.metadata["samples"]]
    tables, identities = split_identities([columns_of(shard) for _, shard in full])
    counts = [shard.metadata["files"] for _, shard in full]
    columns = made.join_tables(alike(tables, str(out)), counts)
    if is_dir:
        columns = add_sidecars(columns, container, built, {name: built / name for name, _ in full})
    index = indexfile.INDEX_NAME if is_dir else out.name + indexfile.INDEX_SUFFIX
    found = _metadata(plan, full, shards)
    digest = indexfile.write(built / index, columns, found)
    warnings = [
        *deep_pixels([table["image/dtype"] for table in tables]),
        *list_remarks(shards), *_no_levels(plan, shards),
    ]  # fmt: skip
    if plan.own.stats is not None:
        try:
            with opening.Pack(built if is_dir else built / out.name) as pack:
                found["statistics"] = pixel_statistics.measure(pack, plan.own.stats or None)
            digest = indexfile.write(built / index, columns, found)
        except PackioError as error:  # the pack itself is whole
            warnings.append(f"no statistics: {error}".replace(str(built), str(out)))
    listed = Index(built / index).files()
    paths, data = [name for name, _, _ in listed], sum(counts)
    size = sum(size for _, size, _ in listed) + (built / index).stat().st_size
    return PackFiles([*paths[data:], *paths[:data], index], digest, size, warnings, identities)


def deep_pixels(dtypes: Sequence[np.ndarray]) -> list[str]:
    """Warn of images that the readers' default mode, RGB, refuses."""
    warnings = []
    for code, what, remedy in (
        (DTYPES.index("uint16"), "16-bit", ", or pack them with wide='scale' (--wide scale)"),
        (DTYPES.index("float32"), "floating-point", ""),
    ):
        if count := sum(int((piece == code).sum()) for piece in dtypes):
            warnings.append(
                f"{count:,} images have {what} pixels, which a dataset of mode='RGB' cannot read; "
                f"read them with mode='UNCHANGED'{remedy}"
            )
    return warnings


_TOLD = {  # what is counted while samples are read → the line about it
    "lossy_masks": "masks are JPEGs, which cannot hold exact class ids: kept; save masks as PNG",
    "damaged_levels": "levels of the source are damaged; their images are kept, and the pack has "
    "these levels only where they were made anew from their images",
    "no_jpeg": "images stay as they are, because they are no JPEGs",
    "not_open": "JPEGs stay as they are, because they would not come back byte for byte, or are of "
    "a kind that packio does not open, as progressive ones and CMYK",
    "undecided": "images are turned by Exif, and no size tells whether their boxes and masks are "
    "turned, too: taken as upright; --boxes-frame upright or stored says it for all",
    "other_pixels": "samples keep boxes or shapes in their metadata in pixels of their images "
    "before these were resized, as no width and height in the metadata says which they are",
    "flat": "boxes have no width or no height: kept",
    "beyond": "boxes reach beyond their image: kept; a dataset cuts them at its edges; if many do, "
    "they may be corners in place of width and height",
}


def list_remarks(shards: Sequence[Index]) -> list[str]:
    """Lines about what was counted, with the key of the first sample."""
    lines = []
    for name, line in _TOLD.items():
        found = [shard.metadata.get("noted", {}) for shard in shards]
        each = [counts[name] for counts in found if name in counts]
        if count := sum(number for number, _ in each):
            lines.append(f"{count:,} {line} (the first: {each[0][1]!a})")
    return lines


def _no_levels(plan: Plan, shards: Sequence[Index]) -> list[str]:
    """Warn if levels were asked for, and no image got one."""
    wanted = Levels.from_options(plan.own.levels)
    names = {name for shard in shards for name in shard.fields}
    if wanted is None or wanted.count == 0 or any(map(levels.divisor_of, names)):
        return []
    told = (
        f"no image got a level; an image needs a short side of {wanted.shortest_side} pixels "
        f"(levels_crop={wanted.crop}), 8 bits a channel, and no transparency"
    )
    return [told]


def columns_of(index: Index) -> Table:
    """All columns of an index, with their checksums compared."""
    return {name: index.column(name).array() for name in sorted(index.column_names)}


def split_identities(tables: Sequence[Table]) -> tuple[list[Table], np.ndarray | None]:
    """Split the identities of source files off the columns of shards; join the identities."""
    each = [table.get(sameness.COLUMN) for table in tables]
    rest = [{n: c for n, c in table.items() if n != sameness.COLUMN} for table in tables]
    found = [column for column in each if column is not None]
    return rest, np.concatenate(found) if found and len(found) == len(each) else None


def add_sidecars(
    columns: dict[str, Content], container: Format, folder: Path, shards: Mapping[str, Path]
) -> dict[str, Content]:
    """Have the format write its files for all shards; add them to the table of files."""
    if not (more := container.finish(folder, shards)):
        return columns
    tables: list[Mapping[str, Content]] = [columns, made.file_columns(folder, more)]
    return columns | made.join_files(tables, [len(columns["file_bytes"]), len(more)])


def alike(tables: Sequence[Table], where: str) -> list[Table]:
    """Complete the columns of several indexes, so that all tables have the same columns.

    A table without a named field, boxes or metadata gets columns that say so. Checksums of blocks
    of raw pixels stay only if all pixels are of one shape and type.
    """
    columns = {name: column for table in tables for name, column in table.items()}
    for name in _FOR_ALL:
        shapes = {t[name].shape[1:] if name in t else None for t in tables}
        if len(shapes) > 1:
            raise OptionError(f"{where}: a {name} of another kind in some samples, or none")
    kinds = {tuple(table[n][:1].tobytes() for n in _OF_ROWS) for table in tables}
    if len(kinds) > 1 or not all(RAW_CRCS in table for table in tables):
        columns.pop(RAW_CRCS, None)
    if any(len(t.get("boxes", ())) and _IDS not in t for t in tables):
        columns.pop(_IDS, None)
    return made.alike(tables, columns, where)


def data_files(table: Mapping[str, np.ndarray]) -> int:
    """Number of files with samples. An index lists them first, then the sidecars."""
    return 1 + max(int(table[n].max()) for n in table if n.endswith("/file"))


def describe_shards(full: Sequence[tuple[str, Index]]) -> list[dict[str, Any]]:
    return [{"name": n, "samples": s.metadata["samples"], **s.metadata["info"]} for n, s in full]


def publish(built: Path, root: Path, names: Sequence[str], index: str) -> None:
    """Move files into a pack that is there, in order, then a new index over the old one."""
    # An index may name only what is there after a crash: so all bytes are synced, then the files
    # get their names, these are synced, and the index takes the place of the old one in one step.
    with locks.changing(built / index):  # before others see it
        files.sync_tree(built)
        folders = set()
        for name in names:
            target = root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            (built / name).replace(target)
            folders.add(target.parent)
        for folder in folders | {folder.parent for folder in folders}:
            files.sync(folder)
        (built / index).replace(root / index)
        files.sync(root)


def _metadata(
    plan: Plan, full: Sequence[tuple[str, Index]], shards: Sequence[Index]
) -> dict[str, Any]:
    listing = plan.listing
    packs = listing.packs if isinstance(listing, PackListing) else ()
    old = [pack.metadata for pack in packs]
    packed = sum(shard.metadata["samples"] for shard in shards)
    beside = len(listing.unlisted) + len(listing.dropped)
    left_out = beside + sum(len(shard.metadata["skipped"]) for shard in shards)
    found = len(listing.keys) + beside
    if packed + left_out != found:
        raise PackioError(
            f"the numbers do not add up: {found} found, {packed} packed, {left_out} not"
        )
    fields = join_fields([shard.fields for _, shard in full])
    if missing := sorted({*plan.own.reading.get("fields", ())} - fields.keys()):
        raise OptionError(
            f"no sample has a field {', '.join(missing)}; expected it in at least one"
        )
    earlier = plan.left_out - len(listing.dropped)  # by the packs that this one is made of
    are_same_pixels = (
        plan.own.stats is None and plan.own.encoding == NO_ENCODING and packs
        and len(listing.keys) == sum(map(len, packs))
    )  # fmt: skip
    names = plan.own.new_names
    more = {
        "plan": plan.digest,
        "splits": None if listing.splits is None else listing.split_names,
        "statistics": pixel_statistics.join_statistics(packs) if are_same_pixels else None,
        "identity": [s.metadata["identity"] for _, s in full if "identity" in s.metadata],
        "origins": origins.intersect([origins.rename(origins_of(m), names) for m in old]),
        "told": list_remarks(shards),
    }
    return {
        "version": indexfile.VERSION, "format": plan.format, "access": "range",
        "fields": fields, "classes": listing.classes,
        "counts": {"found": found + earlier, "packed": packed, "skipped": left_out + earlier},
        "source": {"kind": plan.recipe.source}, "recipe": plan.recipe.as_json(),
        "shards": describe_shards(full),
        "versions": {
            **{n: v for m in reversed(old) for n, v in m.get("versions", {}).items()},
            **encode.versions(plan.own),
            "packio": __version__,
        },
        **{name: value for name, value in more.items() if value},
    }  # fmt: skip
