"""Shards: samples go from the source into containers, their facts into the index's columns."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from packio import columns as made
from packio import encodings, indexfile
from packio.errors import DecodeError, OptionError, PackioError
from packio.formats import Record, Written
from packio.packing.plan import Plan
from packio.packing.reading import Read, read_ahead
from packio.packing.report import Skip
from packio.sources import Item

_FACTS = {"crc32c": "I", "height": "I", "width": "I", "encoding": "B", "orientation": "B",
          "channels": "B", "dtype": "B", "flags": "B"}  # fmt: skip
_OPTIONAL = ("mask", "meta", "boxes", "box_labels")  # fields that all samples have, or none

OnChunk = Callable[[int, int, int], None]  # samples, bytes, of them bad


class Shard(NamedTuple):
    """One shard that has been written."""

    name: str  # relative to the pack; "." where the pack is the shard
    samples: int
    written: Written


class Samples:
    """What was packed, in order: the columns of the index that come from the samples."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.positions = array("q")  # in the listing
        self.skipped = [Skip(key, reason) for key, reason in plan.listing.unlisted]
        self.source_bytes = 0
        self._facts = {name: array(code) for name, code in _FACTS.items()}
        self._masks = {"mask_crc32c": array("I"), "mask_encoding": array("B")}
        self._metas: list[bytes] = []
        self._boxes: list[np.ndarray] = []
        self._box_labels: list[np.ndarray] = []
        self._fields: tuple[str, ...] | None = None

    def record(self, read: Read) -> Record:
        """Note one sample, and make the record of it that goes into the container."""
        item, facts = read.item, read.facts
        assert facts is not None  # noqa: S101 (a Read has facts or a problem)
        key = self.plan.listing.keys[read.position]
        self._check_fields(item, key)
        values = {
            "crc32c": indexfile.crc32c(item.data),
            "height": facts.height,
            "width": facts.width,
            "encoding": encodings.CODES[facts.encoding],
            "orientation": facts.orientation,
            "channels": facts.channels,
            "dtype": encodings.DTYPES.index(facts.dtype),
            "flags": indexfile.PROGRESSIVE if facts.progressive else 0,
        }
        for name, value in values.items():
            self._facts[name].append(value)
        self.positions.append(read.position)
        self.source_bytes += len(item.data)
        label = self.plan.listing.label(read.position)
        return Record(
            item.data, label, key, facts.encoding, facts.height, facts.width, facts.channels,
            item.mask, self._add_mask(item), item.meta, *self._add_rest(item),
        )  # fmt: skip

    def _check_fields(self, item: Item, key: bytes) -> None:
        fields = tuple(name for name in _OPTIONAL if getattr(item, name) is not None)
        if self._fields is None:
            self._fields = fields
        elif fields != self._fields:
            raise OptionError(
                f"{os.fsdecode(key)!r} has {fields or 'no extra fields'}, those before it "
                f"{self._fields or 'none'}; expected the same fields in all samples"
            )

    def _add_mask(self, item: Item) -> str:
        if item.mask is None:
            return "unknown"
        try:
            encoding = encodings.read_facts(item.mask).encoding
        except DecodeError:
            encoding = "unknown"
        self._masks["mask_crc32c"].append(indexfile.crc32c(item.mask))
        self._masks["mask_encoding"].append(encodings.CODES[encoding])
        return encoding

    def _add_rest(self, item: Item) -> tuple[np.ndarray | None, np.ndarray | None]:
        if item.meta is not None:
            self._metas.append(item.meta)
        boxes = labels = None
        if item.boxes is not None:
            boxes = np.ascontiguousarray(item.boxes, np.float32).reshape(-1, 4)
            self._boxes.append(boxes)
        if item.box_labels is not None:
            labels = np.ascontiguousarray(item.box_labels, np.int64).reshape(-1)
            self._box_labels.append(labels)
        return boxes, labels

    def columns(self, shards: Sequence[Shard]) -> dict[str, np.ndarray]:
        """All columns that have a row a sample, and those that are as long as it takes."""
        positions = self.positions.tolist()
        keys = [self.plan.listing.keys[i] for i in positions]
        table = {n: np.array(a, dtype=a.typecode) for n, a in self._facts.items()}
        table |= _places(shards, table["flags"])
        labels = self.plan.listing.labels
        if labels is not None:
            dtype = np.int64 if isinstance(labels, list) else np.float32
            table["label"] = np.asarray(labels, dtype)[positions]
        return table | made.of_keys(keys) | self._optional_columns()

    def _optional_columns(self) -> dict[str, np.ndarray]:
        columns: dict[str, np.ndarray] = {}
        fields = self._fields or ()
        if "mask" in fields:
            columns |= {n: np.array(a, dtype=a.typecode) for n, a in self._masks.items()}
        if "meta" in fields:
            columns["meta_data"], columns["meta_offsets"] = made.ragged(self._metas)
        if "boxes" in fields:
            columns["boxes"] = np.concatenate(self._boxes).astype(np.float32)
            columns["box_offsets"] = made.offsets(map(len, self._boxes))
        if "box_labels" in fields:
            columns["box_labels"] = np.concatenate(self._box_labels).astype(np.int64)
        return columns


def _places(shards: Sequence[Shard], flags: np.ndarray) -> dict[str, np.ndarray]:
    """Where the values lie, file numbers counted over all shards; marks split records in flags."""
    columns: dict[str, list[np.ndarray]] = {}
    start = files = 0
    for shard in shards:
        written = shard.written
        parts = {"file": written.file + np.uint32(files), "offset": written.offset,
                 "length": written.length}  # fmt: skip
        if written.masks is not None:
            masks = written.masks
            parts |= {"mask_file": masks.file + np.uint32(files), "mask_offset": masks.offset,
                      "mask_length": masks.length}  # fmt: skip
        for name, values in parts.items():
            columns.setdefault(name, []).append(values)
        if written.split is not None:
            flags[start : start + shard.samples][written.split] |= indexfile.SPLIT_RECORD
        start, files = start + shard.samples, files + len(written.files)
    return {name: np.concatenate(values) for name, values in columns.items()}


def write_shard(
    samples: Samples, positions: range, container: ModuleType, path: Path, *,
    threads: int, skip: bool, writing: bool, on_chunk: OnChunk,
) -> Written | None:  # fmt: skip
    """Write some samples of a plan into one container.

    Args:
        samples: Takes note of what is packed and of what is not.
        positions: Of the samples in the listing.
        container: Module of the format.
        path: Of the shard; does not exist yet.
        threads: That read ahead.
        skip: Leave bad samples out; else stop writing at the first one, and only check the rest.
        writing: False to check only, as a sample of an earlier shard was bad.
        on_chunk: Called after each chunk.

    Returns:
        Where the samples lie, None where nothing was packed.
    """
    listing = samples.plan.listing
    size = sum(max(listing.sizes[i], 0) for i in positions)
    writer = container.Writer(path, count=len(positions), size=size, classes=listing.classes)
    count = len(samples.positions)
    try:
        for chunk in read_ahead(listing, positions, threads=threads):
            good = _sort_out(chunk, samples)
            on_chunk(len(chunk), sum(len(r.item.data) for r in chunk), len(chunk) - len(good))
            writing = writing and (skip or len(good) == len(chunk))
            if writing:
                writer.add([samples.record(read) for read in good])
        if not writing or len(samples.positions) == count:
            return None
        written: Written = writer.close()
    finally:
        writer.abort()
    _check_record_count(len(samples.positions) - count, written)
    return written


def _sort_out(chunk: list[Read], samples: Samples) -> list[Read]:
    bad = [r for r in chunk if r.problem is not None]
    keys = samples.plan.listing.keys
    samples.skipped += [Skip(keys[r.position], r.problem or "") for r in bad]
    return [r for r in chunk if r.problem is None]


def _check_record_count(added: int, written: Any) -> None:
    if not len(written.offset) == len(written.length) == added:
        raise PackioError(
            f"{added} samples went into the container, {len(written.offset)} are in it"
        )
