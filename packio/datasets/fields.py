"""Fields: the values that make up a sample or a batch, in the type and shape that users want."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from packio.batches.boxes import LABELS
from packio.batches.columns import FieldColumn
from packio.batches.samples import BOXES, SEEN, FieldColumns
from packio.errors import OptionError
from packio.images.tensors import to_pixels
from packio.packs.opening import Pack
from packio.sample import levels
from packio.sample.fields import PIXELS
from packio.sample.record import IMAGE
from packio.sample.relabelling import Relabelling

NAMES = ("image", "mask", "label", "boxes", "box_labels", "key", "index", "split")
READS = {"label": "label", "key": "key", "split": "split_of"}  # field → method of the pack
_NEVER_META = NAMES[:-1]  # packs had metadata of the name "split" before they had splits

Spec = str | Sequence[str | Mapping[str, str]] | Mapping[str, str]


class Fields:
    """What a sample consists of, out of fields of some kinds and of what the index says of it.

    A spec is a name (the bare value), a sequence of names (a tuple), or a mapping of output names
    to fields (a dict). A sequence may have such mappings in it.
    """

    def __init__(self, spec: Spec, kinds: Mapping[str, str], described: Sequence[str]) -> None:
        if not isinstance(spec, (str, Mapping, Sequence)):  # a set has no order of its own
            raise OptionError(
                f'fields={spec!r}: expected a name, a tuple, as ("image", "label"), or '
                "{name: field}"
            )
        self._is_bare, self._is_dict = isinstance(spec, str), isinstance(spec, Mapping)
        given = spec if isinstance(spec, Mapping) else enumerate([spec] if self._is_bare else spec)
        self._parts: dict[Any, Any] = dict(given)  # place or key → a name, or a dict
        nested = [part for part in self._parts.values() if isinstance(part, Mapping)]
        inner = [name for part in nested for name in part.values()]
        self.names: tuple[str, ...] = tuple(
            name for part in self._parts.values()
            for name in (part.values() if isinstance(part, Mapping) else [part])
        )  # fmt: skip
        if not all(isinstance(name, str) for name in self.names) or IMAGE in inner:
            raise OptionError(
                f"fields={spec!r}: expected names of fields, or dicts of them without the image, "
                'as ("image", {"boxes": "boxes", "labels": "box_labels"})'
            )
        if not self.names:
            raise OptionError(f"fields={spec!r}: expected names out of {', '.join(NAMES)}")
        self._nests = bool(inner)
        self.kinds: dict[str, str] = {name: kinds[name] for name in self.names if name in kinds}
        known = {*self.kinds, *described}
        self.meta: tuple[str, ...] = tuple(name for name in self.names if name not in known)

    @property
    def image_places(self) -> tuple[Any, ...]:
        if self._is_bare:
            return (...,) if self.names == (IMAGE,) else ()
        return tuple(place for place, part in self._parts.items() if part == IMAGE)

    def assemble(self, values: Mapping[str, Any]) -> Any:
        """Put one value of each field into the shape asked for."""
        if self._is_bare:
            return values[self.names[0]]
        each = [
            values[part] if isinstance(part, str) else {o: values[n] for o, n in part.items()}
            for part in self._parts.values()
        ]
        return dict(zip(self._parts, each, strict=True)) if self._is_dict else tuple(each)

    def batch(self, values: Mapping[str, Any]) -> Any:
        """Put one batched value of each field into the shape that default_collate gives."""
        batch = self.assemble(values)
        if self._is_bare or self._is_dict:
            return batch
        return [tuple(value) if self._parts[place] == "key" else value
                for place, value in enumerate(batch)]  # fmt: skip

    def samples(self, columns: Mapping[str, Sequence[Any]]) -> list[Any]:
        """Turn columns of N values each into N samples of the shape asked for."""
        if self._is_bare:
            return list(columns[self.names[0]])
        rows = zip(*(columns[name] for name in self.names), strict=True)
        if self._nests:
            return [self.assemble(dict(zip(self.names, row, strict=True))) for row in rows]
        if not self._is_dict:
            return list(rows)
        return [dict(zip(self._parts, row, strict=True)) for row in rows]


def fields_of_pack(spec: Spec | None, pack: Pack) -> Fields:
    """The fields asked for; else image, mask and label as far as the pack has them.

    The latter is a tuple of the image alone where there is nothing else, so that a loop over images
    and labels fails, and does not take a batch of two images for both.
    """
    kinds = dict.fromkeys(pack.box_columns, BOXES)
    if "boxes" in pack.index_file:
        kinds["boxes"] = BOXES
    if kinds.pop("labels", None):
        kinds[LABELS] = BOXES
    kinds |= pack.fields
    described = ["key", "index", *(name for name in ("label", "split") if name in pack.index_file)]
    there = [name for name in NAMES if name in kinds or name in described]
    there += [name for name in levels.others(kinds) if name not in there]
    if spec is None:
        usual = tuple(name for name in ("image", "mask", "label") if name in there)
        return Fields(usual, kinds, described)
    fields = Fields(spec, kinds, described)
    meta = (pack.meta(0) if len(pack) else None) or {}
    for name in fields.meta:
        if name in _NEVER_META or not (name in meta or _in_meta(pack, name)):
            raise OptionError(
                f"fields={spec!r}: {pack.path} has no {name!r}; it has {', '.join(there)}"
                + "".join(f", {key}" for key in meta if key not in there)
            )
    return fields


def _in_meta(pack: Pack, name: str) -> bool:
    """Whether a name is a key anywhere in the metadata; the text is searched, not parsed."""
    if "meta_data" not in pack.index_file:
        return False
    text = pack.index_file.column("meta_data").array()
    forms = {json.dumps(name, ensure_ascii=escape).encode("utf-8", "surrogatepass")
             for escape in (True, False)}  # fmt: skip
    return any(re.search(re.escape(form) + rb"\s*:", text.data) for form in forms)


def convert(kind: str, tensor: Any, output: str) -> Any:
    """Turn a (C, H, W) tensor into an (H, W, C) array, or a Pillow image if output is "pil"."""
    if output == "tensor" or not isinstance(tensor, torch.Tensor):
        return tensor
    array = tensor.numpy()
    if output == "numpy" or kind not in PIXELS:
        return to_pixels(array) if kind == "image" else array
    from PIL import Image

    if kind == "image" and array.dtype == np.uint8 and len(array) in _PILLOW_MODES:
        return Image.merge(_PILLOW_MODES[len(array)], [Image.fromarray(plane) for plane in array])
    if kind == "image":
        array = array[0] if len(array) == 1 else to_pixels(array)
    return Image.fromarray(array)


_PILLOW_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}  # by the number of channels


class BatchData(NamedTuple):
    """A batch as it was made, before it gets the form that the user wants."""

    columns: FieldColumns
    positions: np.ndarray  # (N,) of the samples in their packs
    owners: np.ndarray  # (N,) numbers of the samples' packs


class Outputs:
    """Puts the fields that were made of a batch together with the other fields of its samples."""

    def __init__(
        self, packs: Sequence[Pack], fields: Fields, options: Mapping[str, Any],
        moves: Sequence[Relabelling] = (),
    ) -> None:  # fmt: skip
        self._packs, self._moves, self._fields = packs, moves, fields
        self._output, self._several = options["output"], options["views"] is not None
        self._starts = np.array([0, *itertools.accumulate(map(len, packs))])

    def _split(self, made: BatchData) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """Number of each pack that is in a batch, its samples' slots, and their positions in it."""
        each = [(n, np.flatnonzero(made.owners == n)) for n in np.unique(made.owners).tolist()]
        return [(n, slots, made.positions[slots]) for n, slots in each]

    def _read(self, name: str, made: BatchData) -> list[Any]:
        reads, places = [getattr(p, name) for p in self._packs], (made.owners, made.positions)
        return [reads[n](i) for n, i in zip(*(p.tolist() for p in places), strict=True)]

    def _places(self, made: BatchData) -> np.ndarray:
        """A copy of the samples' positions, counted through all packs, one behind the other."""
        places: np.ndarray = made.positions + self._starts[made.owners]
        return places

    def columns(self, made: BatchData, but: Container[str] = ()) -> dict[str, Sequence[Any]]:
        """Values of each field, but for some, one a sample."""
        columns: dict[str, Sequence[Any]] = {}
        for name, needs in (("meta", self._fields.meta), ("key", "key" in self._fields.names)):
            for number, _, positions in self._split(made) if needs else ():
                self._packs[number].bring(name, positions)
        metas = [meta or {} for meta in self._read("meta", made)] if self._fields.meta else []
        for name in (n for n in self._fields.names if n not in but):
            if kind := self._fields.kinds.get(name):
                views = [self._convert(kind, view) for view in made.columns[name]]
                columns[name] = list(zip(*views, strict=True)) if self.has_views(name) else views[0]
            elif name in self._fields.meta:
                columns[name] = [meta.get(name) for meta in metas]
            elif name == "label":
                labels = self._labels(made)
                columns[name] = labels.tolist() if labels.ndim == 1 else list(labels)
            elif name == "index":
                columns[name] = self._places(made).tolist()
            else:
                columns[name] = self._read(READS[name], made)
        return columns

    def _convert(self, kind: str, column: FieldColumn) -> list[Any]:
        each = list(column.unbind(0) if isinstance(column, torch.Tensor) else column)
        if self._output == "tensor":
            return each
        return [convert(kind, value, self._output) for value in each]

    def has_views(self, name: str) -> bool:
        """Whether the values of a field are tuples, one value a view."""
        return self._several and self._fields.kinds.get(name) in SEEN

    def batch(self, made: BatchData, columns: Mapping[str, Sequence[Any]] | None = None) -> Any:
        """What `packio.collate` makes of the samples, without stacking where that is possible."""
        ready = self._ready(made)
        if columns is None:
            columns = self.columns(made, but=ready)
        elif "label" in ready and ready["label"].ndim > 1:
            del ready["label"]  # the samples' vectors may have been changed in place
        return self._assembled(columns, ready)

    def batch_of(self, samples: Sequence[Mapping[str, Any]]) -> Any:
        """What `packio.collate` makes of samples that a transform has changed."""
        return self._assembled({n: [s[n] for s in samples] for n in self._fields.names}, {})

    def _ready(self, made: BatchData) -> dict[str, Any]:
        """Fields that are one tensor for the whole batch, or one tensor a view."""
        ready: dict[str, Any] = {"index": torch.from_numpy(self._places(made))}
        if "label" in self._fields.names:
            ready["label"] = self._labels(made)
        for name, views in made.columns.items():
            if self._output == "tensor" and all(isinstance(v, torch.Tensor) for v in views):
                ready[name] = list(views) if self.has_views(name) else views[0]
        return ready

    def _assembled(self, columns: Mapping[str, Sequence[Any]], ready: dict[str, Any]) -> Any:
        batch = dict(ready)
        for name, column in ((n, c) for n, c in columns.items() if n not in ready):
            kind = self._fields.kinds.get(name) or ("" if name in self._fields.meta else name)
            if self.has_views(name):
                batch[name] = [_batched(kind, view) for view in zip(*column, strict=True)]
            else:
                batch[name] = _batched(kind, column)
        return self._fields.batch(batch)

    def _labels(self, made: BatchData) -> torch.Tensor:
        if len(self._packs) == 1 or not len(made.owners):
            return torch.from_numpy(self._packs[0].take_labels(made.positions))
        parts = self._split(made)
        each = [self._moves[n].labels(self._packs[n].take_labels(own)) for n, _, own in parts]
        order = np.argsort(np.concatenate([slots for _, slots, _ in parts]))
        return torch.from_numpy(np.concatenate(each)[order])


def _is_numeric(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (
        isinstance(value, np.ndarray)
        and value.dtype.kind in "biufc"
        and value.dtype.char not in "gG"  # of 80 or 128 bits
    )


def _batched(kind: str, column: Sequence[Any]) -> Any:
    """What `packio.collate` makes of the values of a field, or of one view of it; else a list."""
    alike = kind in ("label", "index")
    if kind in PIXELS and not any(v is None or hasattr(v, "getbands") for v in column):  # Pillow's
        alike = len({tuple(getattr(value, "shape", ())) for value in column}) == 1
    elif kind == "array" and all(map(_is_numeric, column)):
        alike = len({(tuple(value.shape), value.dtype) for value in column}) == 1
    return torch.utils.data.default_collate(list(column)) if alike else list(column)
