"""Several packs as if they were one: their annotations, and their parts of a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from packio.batches import images, masks
from packio.batches.columns import FieldColumn
from packio.batches.samples import FieldColumns, MadeSamples
from packio.datasets import classnames, selection
from packio.errors import OptionError
from packio.packs.opening import Pack
from packio.sample.record import IMAGE
from packio.sample.relabelling import Relabelling


class Portion(NamedTuple):
    """What one dataset makes of a batch."""

    number: int  # of the dataset
    slots: np.ndarray  # (n,) in the batch
    positions: np.ndarray  # (n,) in its pack
    made: MadeSamples


class JoinedPacks:
    """Packs one behind the other, as far as `packio.datasets.outputs.Outputs` needs them."""

    def __init__(self, packs: Sequence[Pack], moves: Sequence[Relabelling]) -> None:
        self._packs, self._moves = packs, moves
        self._ends = np.cumsum([len(pack) for pack in packs])
        self.starts: list[int] = [
            int(end) - len(pack) for end, pack in zip(self._ends, packs, strict=True)
        ]

    def key(self, index: int) -> str:
        """Key of a sample."""
        pack, own = self._found(index)
        return pack.key(own)

    def meta(self, index: int) -> dict[str, Any] | None:
        """Metadata of a sample."""
        pack, own = self._found(index)
        return pack.meta(own)

    def bring(self, name: str, positions: np.ndarray) -> None:
        """Have what the packs' indexes say of some samples come at once."""
        numbers = np.searchsorted(self._ends, positions, "right")
        for number in np.unique(numbers).tolist():
            mine = positions[numbers == number] - self.starts[number]
            self._packs[number].bring(name, mine)

    def split_of(self, index: int) -> str | None:
        """Name of the split of a sample."""
        pack, own = self._found(index)
        return pack.split_of(own)

    def _found(self, index: int) -> tuple[Pack, int]:
        """The pack of a sample, and the sample's position in that pack."""
        number = int(np.searchsorted(self._ends, index, "right"))
        return self._packs[number], index - self.starts[number]

    def take_labels(self, indices: np.ndarray) -> np.ndarray:
        """Labels of some samples."""
        numbers = np.searchsorted(self._ends, indices, "right")
        slots, found = [], []
        for number in np.unique(numbers).tolist() or [0]:
            slots.append(np.flatnonzero(numbers == number))
            labels = self._packs[number].take_labels(indices[slots[-1]] - self.starts[number])
            found.append(self.named(number, labels))
        order = np.argsort(np.concatenate(slots))
        taken: np.ndarray = np.concatenate(found)[order]
        return taken

    def sought(self, label: selection.Labels) -> list[list[int]]:
        """The numbers that some of all classes have in each pack; see `classnames.sought`."""
        return classnames.sought(label, self._packs, self._moves)

    def named(self, number: int, labels: np.ndarray) -> np.ndarray:
        """Labels of a pack as numbers of all classes."""
        return self._moves[number].labels(labels)

    def boxes_named(self, portion: Portion) -> Portion:
        """A part of a batch, the labels of its boxes as numbers of all classes."""
        move, columns = self._moves[portion.number], portion.made.columns
        if not move.changes or "box_labels" not in columns:
            return portion
        views: list[FieldColumn] = [
            [torch.from_numpy(move.positions(labels.numpy())) for labels in view]
            for view in columns["box_labels"]
        ]
        made = portion.made._replace(columns={**columns, "box_labels": views})
        return portion._replace(made=made)


def joined(
    parts: Sequence[Portion], count: int, out: torch.Tensor | None, kinds: Mapping[str, str]
) -> FieldColumns:
    """Put the columns of the parts of a batch together; a single part stays as it is."""
    if len(parts) == 1 and out is None:
        return parts[0].made.columns
    columns: FieldColumns = {}
    for name in parts[0].made.columns:
        each = [part.made.columns[name] for part in parts]
        columns[name] = [
            _together(
                kinds[name], [p.slots for p in parts], views, count, out if name == IMAGE else None
            )
            for views in zip(*each, strict=True)
        ]
    return columns


def _together(
    kind: str, slots: Sequence[np.ndarray], columns: Sequence[FieldColumn], count: int,
    given: torch.Tensor | None,
) -> FieldColumn:  # fmt: skip
    """One view's column of a field: a tensor, if the parts are tensors of one shape."""
    if kind == "mask" and any(map(masks.is_wide, columns)):
        columns = list(map(masks.as_int32, columns))
    whole = [c for c in columns if isinstance(c, torch.Tensor)]
    if len(whole) == len(columns) and len({(c.shape[1:], c.dtype) for c in whole}) == 1:
        batch = images.given_or_new((count, *whole[0].shape[1:]), whole[0].dtype, given)
        into = _bytes_of(batch)  # torch's index_copy_ takes 20 ms for bytes
        for at, tensor in zip(slots, whole, strict=True):
            into[at] = _bytes_of(tensor)
        return batch
    if given is not None:
        raise OptionError("out=: the images differ in size or type; expected a crop to one size")
    values: list[Any] = [None] * count
    for at, column in zip(slots, columns, strict=True):
        for slot, value in zip(at.tolist(), column, strict=True):
            values[slot] = value
    return values


def _bytes_of(batch: torch.Tensor) -> np.ndarray:
    """(N, bytes of each) of a contiguous (N, …) tensor; a view."""
    flat = batch.reshape(len(batch), math.prod(batch.shape[1:]))
    array: np.ndarray = flat.view(torch.uint8).numpy()
    return array
