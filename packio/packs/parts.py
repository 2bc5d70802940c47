"""Parts of an index, one for each container shard: kept in a folder, and joined to one index.

A part is an index file. What else is known of its shard is in the metadata, under ``part``.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from packio.errors import OptionError, PackioError
from packio.index import columns as made
from packio.index import indexfile, pieces, raw_blocks
from packio.index.indexfile import Index
from packio.packs.collecting import NO_LABEL, LeftOut, folders_of, unique_keys
from packio.sample.relabelling import Relabelling

Table = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Part:
    """What one shard brings to an index.

    Attributes:
        name: Of the shard, relative to the root.
        size, version: Of the object.
        samples: In the shard.
        skipped: Number of records that are no good sample.
        left_out: Key and reason of the first of them.
        least_label: The smallest label as found; None: no label is an int.
        remarks: What is not in the index, one sentence each.
        names: Of the classes, if labels are texts.
    """

    name: str
    size: int
    version: str
    samples: int
    skipped: int
    left_out: list[list[str]]
    least_label: int | None
    remarks: tuple[str, ...]
    names: list[str]


def write(path: Path, part: Part, fields: Mapping[str, str], columns: Table) -> None:
    """Write a part, all of it or nothing."""
    metadata = {"version": indexfile.VERSION, "fields": fields, "part": dataclasses.asdict(part)}
    indexfile.write(path, columns, metadata)


def read(path: Path) -> Part | None:
    """What a part says of its shard; None if there is no such part, or it is damaged."""
    try:
        index = Index(path)
        index.check()
        said = index.metadata["part"]
        return Part(**{**said, "remarks": tuple(said["remarks"])})
    except (PackioError, KeyError, TypeError):
        return None


def labelled(paths: Sequence[Path], found: Sequence[Part]) -> list[Part]:
    """The parts; if some have labels, the samples of those without labels are left out."""
    tables = {path: Index(path) for path, part in zip(paths, found, strict=True) if part.samples}
    if len({"label" in table for table in tables.values()}) < 2:
        return list(found)
    return [
        _without_samples(part, tables[path])
        if path in tables and "label" not in tables[path] else part
        for path, part in zip(paths, found, strict=True)
    ]  # fmt: skip


def _without_samples(part: Part, index: Index) -> Part:
    left_out = LeftOut()
    left_out.add(part.skipped, part.left_out)
    for key in index.every_key():
        left_out.add(1, [(os.fsdecode(key), NO_LABEL)])
    return dataclasses.replace(part, samples=0, skipped=left_out.count, left_out=left_out.listed)


def joined(
    paths: Sequence[Path], where: object
) -> tuple[Table, dict[str, str], list[str], list[str]]:
    """Columns of an index, kinds of its fields, remarks, and classes, of parts with samples."""
    tables: list[Table] = []
    fields: dict[str, str] = {}
    indexes = [*map(Index, paths)]
    each = [index.metadata["part"]["names"] for index in indexes]
    every = sorted({name for names in each for name in names})
    if every and not all(each):
        raise OptionError(f"{where}: labels are texts in some shards, and numbers in others")
    for index, own in zip(indexes, each, strict=True):
        for name, kind in index.fields.items():
            if fields.setdefault(name, kind) != kind:
                raise OptionError(f"{where}: field {name!r} is of kind {fields[name]} and {kind}")
        names = [n for n in index.column_names if n != raw_blocks.COLUMN]
        table = {name: index.column(name).array() for name in names}
        if own:
            table["label"] = Relabelling(own, every, str(where)).labels(table["label"])
        tables.append(table)
    remarks = _alike_labels(tables)
    joint = made.joined(_completed(tables, where), [1] * len(tables))
    columns = {name: pieces.of(column).array() for name, column in joint.items()}
    columns |= unique_keys(_keys(columns))
    return columns, fields, remarks, every or _folders(columns)


def _keys(table: Mapping[str, np.ndarray]) -> list[bytes]:
    data, starts = table["key_data"].tobytes(), table["key_offsets"].tolist()
    return [data[a:b] for a, b in itertools.pairwise(starts)]


def _folders(columns: Mapping[str, np.ndarray]) -> list[str]:
    """Names of int labels, as far as the folders in the keys tell them."""
    label = columns.get("label")
    if label is None or label.ndim != 1:
        return []
    return folders_of(label.tolist(), _keys(columns))


def _alike_labels(tables: Sequence[Table]) -> list[str]:
    """Make the labels of all tables of one kind, or leave them out; say so."""
    kinds = {t["label"].shape[1:] if "label" in t else None for t in tables}
    if len(kinds) < 2:
        return []
    for table in tables:
        table.pop("label", None)
    return ["labels are left out, as they are not alike in all shards"]


def _completed(tables: Sequence[Table], where: object) -> list[Table]:
    """The tables, each with the columns of all; see `packio.index.columns.absent`."""
    like = {name: column for table in tables for name, column in table.items()}
    for name in [n for n in like if n.startswith("boxes/")]:
        if any(t[name].dtype.kind == "f" for t in tables if name in t):
            like[name] = np.zeros(0, np.float32)
    found = []
    for table in tables:
        count = len(table["image/offset"])
        full = {}
        for name, column in like.items():
            if name not in table and name.startswith("boxes/") and len(table.get("boxes", ())):
                raise OptionError(f"{where}: boxes of some shards have no {os.path.basename(name)}")
            own = table.get(name)
            if own is None:
                own = made.absent(name, column.dtype, column.shape[1:], count)
            full[name] = own.astype(column.dtype) if name.startswith("boxes/") else own
        found.append(full)
    return found
