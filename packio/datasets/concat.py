"""Several datasets as one: a batch may have samples of all of them, in one tensor."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from packio.batches import images, masks
from packio.batches.columns import FieldColumn
from packio.batches.framing import Draw
from packio.batches.samples import FieldColumns, MadeSamples
from packio.datasets.dataset import Dataset
from packio.datasets.fields import Outputs
from packio.datasets.lookahead import Guesses
from packio.datasets.pack_dataset import PackDataset
from packio.datasets.selection import Labels, check_indices, no_class
from packio.datasets.shared_state import Positions, Seed, Targets
from packio.errors import OptionError
from packio.packs.opening import Pack
from packio.sample.record import IMAGE
from packio.sample.relabelling import Relabelling, all_classes, check_named
from packio.system.threads import Threads

Self = TypeVar("Self", bound="ConcatPacks")

_SHOWN = 5  # names of classes, in a message


def _of_all(name: str) -> Any:
    """A transform of several datasets: that of the first, set for all."""

    def set_all(self: ConcatPacks, transform: Any) -> None:
        for dataset in self.datasets:
            setattr(dataset, name, transform)

    return property(lambda self: getattr(self.datasets[0], name), set_all)


class ConcatPacks(Dataset):
    """Several datasets of packio's as one, their samples one behind the other.

    A batch may have samples of all of them. Each dataset makes its own samples at once, with its
    own crop, flips, transforms and on_error. Images of one shape become one contiguous tensor,
    others a list. Random numbers are those of one dataset with this seed. Datasets may be of any
    formats, splits, and parts (`PackDataset.where`, `PackDataset.subset`), also of one pack.

    The field "index" counts through the packs, one behind the other. All datasets give the same
    fields, of the same kinds. A named field that only some of the packs have is left out of
    ``fields=``, or its samples are left to a dataset of their own.

    Args:
        datasets: `PackDataset` and its kind, with the same fields, output, dtype and number of
            views. The first one's ``threads`` decode.
        labels: "same": classes have to agree. "by_name": the classes are those of all datasets, in
            the order of their first appearance; labels become numbers of these classes, before
            transforms of labels get them.
        seed: Of the random numbers; None: that of the first dataset.

    Attributes:
        datasets: As given, a tuple.
        transform, target_transform, transforms: Of the first dataset. May be set later: of all.
        seeded: Whether a seed was given.

    Raises:
        OptionError: datasets that differ, with what differs; or no dataset.
    """

    def __init__(
        self, datasets: Iterable[PackDataset], *, labels: str = "same", seed: int | None = None
    ) -> None:
        self._check_class()
        self.datasets: tuple[PackDataset, ...] = tuple(datasets)
        _check_kinds(self.datasets)
        first, self._labels = self.datasets[0], labels
        packs = [d.pack for d in self.datasets]
        self._fields, self._tally = first._fields, first._tally
        needed = bool({"label", "box_labels"} & {*self._fields.names})
        self._classes, self._moves = _join_classes(packs, labels, needed=needed)
        self._options = first._options
        self._outputs = Outputs(packs, self._fields, self._options, self._moves)
        self._ends = np.cumsum([len(d) for d in self.datasets])
        self._order = Positions()
        self._seed = first._seed if seed is None else Seed(seed)
        self.seeded = first.seeded or seed is not None
        self._guesses = Guesses()
        self._waiting: Threads | None = None  # for the samples of one dataset each

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __repr__(self) -> str:
        labels = "" if self._labels == "same" else f", labels={self._labels!r}"
        return f"{type(self).__name__}([{', '.join(map(repr, self.datasets))}]{labels})"

    @property
    def classes(self) -> list[str]:
        return self._classes

    transform = _of_all("transform")
    target_transform = _of_all("target_transform")
    transforms = _of_all("transforms")

    @property
    def targets(self) -> Any:  # as of `PackDataset`
        """All labels: (N,) int64 or (N, k) float32; None if a dataset has none."""
        each = [d.targets for d in self.datasets]
        if any(labels is None for labels in each):
            return None
        named = [move.labels(labels) for move, labels in zip(self._moves, each, strict=True)]
        targets = np.concatenate(named).view(Targets)
        return targets if self.places is None else targets[self.places]

    @property
    def places(self) -> np.ndarray | None:
        """Place of each sample among all of the datasets, one behind the other; None: its index.

        (N,) int64, read-only. Differs from the indices where `subset` has mixed the datasets.
        """
        return self._order.array

    def with_options(self: Self, **options: Any) -> Self:
        """The same samples, with some options of all datasets changed.

        Raises:
            OptionError: there is no such option.
        """
        seed = {"seed": options.pop("seed")} if "seed" in options else {}
        return self._join([d.with_options(**options) for d in self.datasets], self._order, **seed)

    def explain(self, samples: int = 32) -> str:
        """Say what each step costs, a table a dataset that has samples: `PackDataset.explain`."""
        each = enumerate(self.datasets)
        return "\n".join(f"dataset {n}\n{d.explain(samples)}" for n, d in each if len(d))

    def _join(
        self: Self, datasets: list[PackDataset], order: Positions, **seed: int | None
    ) -> Self:
        """Join other datasets in the same way, with the same seed if no other is given."""
        joined = copy.copy(self)
        ConcatPacks.__init__(joined, datasets, labels=self._labels, **seed)
        joined._order = order
        if not seed:
            joined._seed, joined.seeded = self._seed, self.seeded
        return joined

    @property
    def _parts(self) -> tuple[PackDataset, ...]:
        return self.datasets

    def _labels_of_parts(self, label: Labels) -> list[list[int]]:
        each = [label] if isinstance(label, (str, int, np.integer)) else list(label)
        packs = [dataset.pack for dataset in self.datasets]
        names = all_classes(pack.classes for pack in packs)
        for name in each:
            if isinstance(name, str) and name not in names:
                raise no_class(name, names, ", ".join(str(pack.path) for pack in packs))
        return [[own for wanted in each for own in _find_class(wanted, m)] for m in self._moves]

    def _part(self: Self, indices: np.ndarray) -> Self:
        """The samples at some indices; every dataset stays, perhaps with no samples."""
        owners, own = self._locate_indices(indices)
        parts = [d.subset(own[owners == number]) for number, d in enumerate(self.datasets)]
        is_mixed = np.any(owners[1:] < owners[:-1])
        order = np.argsort(np.argsort(owners, kind="stable")) if is_mixed else None
        return self._join(parts, Positions(order))

    def _locate_indices(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        places = indices if self.places is None else self.places[indices]
        owners = np.searchsorted(self._ends, places, "right")
        sizes = [len(dataset) for dataset in self.datasets]
        return owners, places - (self._ends - sizes)[owners]

    def _locate(self, indices: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        owners, positions = self._locate_indices(check_indices(len(self), indices))
        for number in np.unique(owners).tolist():
            mine = owners == number
            positions[mine] = self.datasets[number]._positions(positions[mine])
        return owners, positions

    def _make(
        self, owners: np.ndarray, positions: np.ndarray, draw: Draw,
        out: torch.Tensor | None, device: torch.device | None,
    ) -> MadeSamples:  # fmt: skip
        """Let each dataset make its slots of a batch.

        If threads decode, all datasets work at the same time, each in a thread that waits. One
        dataset after the other would leave decoding threads idle at the end of each dataset.
        """
        numbers = np.unique(owners).tolist() or [0]
        threads = self.datasets[0]._threads()
        slots = {number: np.flatnonzero(owners == number) for number in numbers}
        made: dict[int, MadeSamples] = {}

        def work(some: Iterable[int]) -> None:
            for number in some:
                own = slots[number]
                part, lanes = self.datasets[number], draw._replace(lanes=draw.lanes[own])
                made[number] = part._make_fields(positions[own], lanes, threads)
                _name_boxes(self._moves[number], made[number].columns)

        if threads is None or len(numbers) == 1:
            work(numbers)
        else:
            threads._started()  # here, not in several threads at once
            if self._waiting is None or self._waiting.count != threads.count:
                self._waiting = Threads(threads.count)
            self._waiting.run(work, numbers)
        errors = {
            int(slots[number][slot]): error
            for number in numbers for slot, error in made[number].errors.items()
        }  # fmt: skip
        parts = [(slots[number], made[number].columns) for number in numbers]
        return MadeSamples(_join_columns(parts, len(positions), out, self._fields.kinds), errors)


def _name_boxes(move: Relabelling, columns: FieldColumns) -> None:
    """Turn the labels of a pack's boxes into numbers of all classes."""
    if move.changes and "box_labels" in columns:
        columns["box_labels"] = [
            [torch.from_numpy(move.positions(labels.numpy())) for labels in view]
            for view in columns["box_labels"]
        ]


def _find_class(wanted: str | int, move: Relabelling) -> list[int]:
    if isinstance(wanted, str):
        return [move.old.index(wanted)] if wanted in move.old else []
    number = operator.index(wanted)
    if not move.changes or not 0 <= number < len(move.new):
        return [number]
    return [own for own, joint in enumerate(move.table.tolist()) if joint == number]


def _join_columns(
    parts: Sequence[tuple[np.ndarray, FieldColumns]], count: int, out: torch.Tensor | None,
    kinds: Mapping[str, str],
) -> FieldColumns:  # fmt: skip
    """Put the columns of a batch's slots together; those of all slots stay as they are."""
    if len(parts) == 1 and out is None:
        return parts[0][1]
    slots, each = zip(*parts, strict=True)
    return {
        name: [
            _join_views(kinds[name], slots, views, count, out if name == IMAGE else None)
            for views in zip(*(columns[name] for columns in each), strict=True)
        ]
        for name in each[0]
    }


def _join_views(
    kind: str, slots: Sequence[np.ndarray], columns: Sequence[FieldColumn], count: int,
    given: torch.Tensor | None,
) -> FieldColumn:  # fmt: skip
    """One view's column of a field: a tensor, if the parts are tensors of one shape."""
    if kind == "mask":
        columns = masks.widen(columns)
    whole = [c for c in columns if isinstance(c, torch.Tensor)]
    if len(whole) == len(columns) and len({(c.shape[1:], c.dtype) for c in whole}) == 1:
        batch = images.ensure_out((count, *whole[0].shape[1:]), whole[0].dtype, given)
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
    array: np.ndarray = batch.unsqueeze(-1).flatten(1).view(torch.uint8).numpy()
    return array


def _join_classes(
    packs: Sequence[Pack], labels: str, *, needed: bool
) -> tuple[list[str], list[Relabelling]]:
    """Join the classes of packs; returns their names, and what moves the labels of each pack."""
    if labels not in ("same", "by_name"):
        raise OptionError(f"labels={labels!r}: expected 'same' or 'by_name'")
    if needed:
        forms = [_form(pack, labels) for pack in packs]
        for pack, form in zip(packs, forms, strict=True):
            if form != forms[0]:
                raise OptionError(
                    f"labels differ: {forms[0]} in {packs[0].path}, {form} in {pack.path}"
                )
    if labels == "by_name":
        classes = all_classes(pack.classes for pack in packs)
        return classes, [_move_by_name(pack, classes) for pack in packs]
    names = [pack.classes for pack in packs]
    different = [i for i, own in enumerate(names) if own != names[0]]
    if different and needed:
        raise OptionError(_difference(packs[0], packs[different[0]]))
    return [] if different else names[0], [Relabelling(own, own) for own in names]


def _move_by_name(pack: Pack, classes: list[str]) -> Relabelling:
    if not pack.classes:
        raise OptionError(f"labels='by_name': {pack.path} has no names of classes")
    move = Relabelling(pack.classes, classes, str(pack.path))
    for column in ("label", "boxes/labels"):
        if move.changes and column in pack.index_file:
            check_named(pack.index_file.column(column).array(), pack.classes, str(pack.path))
    return move


def _form(pack: Pack, labels: str) -> str:
    """Say what labels are. Under labels="by_name" the length of vectors does not matter."""
    index = pack.index_file
    shape = index.column("label").shape if "label" in index else ()
    if len(shape) < 2:
        return "integers" if shape else "none"
    if labels == "same":
        return f"vectors of {shape[1]}"
    if shape[1] != len(pack.classes):
        raise OptionError(
            f"labels='by_name': {pack.path} has {len(pack.classes)} names of classes and vectors "
            f"of {shape[1]} as labels"
        )
    return "vectors"


def _difference(one: Pack, other: Pack) -> str:
    differences = []
    for pack, others in ((one, set(other.classes)), (other, set(one.classes))):
        names = [name for name in pack.classes if name not in others]
        shown = ", ".join([*names[:_SHOWN], *(["…"] if names[_SHOWN:] else [])])
        differences += [f"only in {pack.path}: {shown}"] if names else []
    what = "; ".join(differences or [f"{one.path} and {other.path} have the same in another order"])
    return f"classes differ: {what}; labels='by_name' joins them, `packio pack --classes-from` too"


def _check_kinds(datasets: Sequence[PackDataset]) -> None:
    """Refuse datasets whose samples cannot be in one batch, as of other output or crops."""
    if not datasets:
        raise OptionError("datasets: expected at least one")
    first: dict[str, Any] = {}
    for dataset in datasets:
        if not isinstance(dataset, PackDataset):
            raise OptionError(
                f"datasets: {type(dataset).__name__}; expected LmdbDataset and its kind, all in "
                "one list"
            )
        if dataset._overrides("__getitem__", "__getitems__") or (
            type(dataset).__len__ is not PackDataset.__len__
        ):
            raise OptionError(
                f"datasets: {type(dataset).__name__} has a __getitem__, __getitems__ or __len__ of "
                "its own, which ConcatPacks would not call; torch.utils.data.ConcatDataset does"
            )
        fields, own = dataset._fields, dataset._options
        kind = {
            "fields": fields.assemble({name: name for name in fields.names}),
            "kinds of fields": fields.kinds,
            "output": own["output"],
            "dtype": dataset._dtype(),
            "views": None if own["views"] is None else len(own["views"]),
        }
        first = first or kind
        for name, value in kind.items():
            if value != first[name]:
                raise OptionError(
                    f"{name} differ: {first[name]} of {datasets[0].pack.path}, {value} of "
                    f"{dataset.pack.path}; give both the same"
                )
