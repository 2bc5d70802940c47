"""Several datasets as one: a batch may have samples of all of them, in one tensor."""

from __future__ import annotations

import copy
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from packio.batches import samples
from packio.batches.framing import Draw
from packio.batches.samples import MadeSamples
from packio.datasets import classnames, joining, selection, tables
from packio.datasets.batching import BatchedDataset, Gathered
from packio.datasets.drawn import Origin
from packio.datasets.guesses import Guesses
from packio.datasets.joining import JoinedPacks, Portion
from packio.datasets.outputs import Outputs
from packio.datasets.pack_dataset import PackDataset
from packio.datasets.positions import Positions, checked
from packio.datasets.tally import Seed, Tally
from packio.datasets.targets import Targets
from packio.errors import OptionError
from packio.packs.querying import expressions
from packio.system.threads import Threads

if TYPE_CHECKING:
    import torch

Self = TypeVar("Self", bound="ConcatPacks")


def _of_all(name: str) -> Any:
    """A transform of several datasets: that of the first, set for all."""

    def set_all(self: ConcatPacks, transform: Any) -> None:
        for dataset in self.datasets:
            setattr(dataset, name, transform)

    return property(lambda self: getattr(self.datasets[0], name), set_all)


class ConcatPacks(BatchedDataset):
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
        self._fields = first._fields
        wanted = bool({"label", "box_labels"} & {*self._fields.names})
        self._classes, moves = classnames.joined(packs, labels, needed=wanted)
        self._packs = JoinedPacks(packs, moves)
        output = first.options["output"]
        self._outputs = Outputs(self._packs, self._fields, output, several=first._several)
        self._ends = np.cumsum([len(d) for d in self.datasets])
        self._order: Positions | None = None  # of the samples, where it is not the datasets'
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
        """Class names; a label is a position in this list."""
        return self._classes

    @property
    def _option_names(self) -> Container[str]:
        return self.datasets[0]._option_names if "datasets" in vars(self) else ()

    transform = _of_all("transform")
    target_transform = _of_all("target_transform")
    transforms = _of_all("transforms")

    @property
    def targets(self) -> Any:  # as of `PackDataset`
        """All labels: (N,) int64 or (N, k) float32; None if a dataset has none."""
        each = [d.targets for d in self.datasets]
        if any(labels is None for labels in each):
            return None
        named = [
            self._packs.named(i, labels) for i, labels in enumerate(each) if labels is not None
        ]
        targets = np.concatenate(named).view(Targets)
        return targets if self.places is None else targets[self.places]

    @property
    def places(self) -> np.ndarray | None:
        """Place of each sample among all of the datasets, one behind the other; None: its index.

        (N,) int64, read-only. Differs from the indices where `subset` has mixed the datasets.
        """
        return None if self._order is None else self._order.array

    @property
    def _tally(self) -> Tally:
        return self.datasets[0]._tally

    @property
    def description(self) -> dict[str, Any]:
        """What is shown of the samples, as plain numbers and text; for states of `Loader`."""
        each = [d.description for d in self.datasets]
        part = self._order is not None or any(told["part"] for told in each)
        parts = [part for told in each for part in told["parts"]]
        return {"seeded": self.seeded, "part": part, "parts": parts}

    def _origin(self, index: int) -> Origin:
        (place,) = self._placed(checked(len(self), [index])).tolist()
        number = int(np.searchsorted(self._ends, place, "right"))
        dataset = self.datasets[number]
        return dataset._origin(place - (int(self._ends[number]) - len(dataset)))

    def _begin_epoch(self, epoch: int) -> None:
        for dataset in self.datasets:
            dataset._begin_epoch(epoch)

    @property
    def looks_ahead(self) -> bool:
        """Whether batches that tell the next ones are made sooner: for `Loader`."""
        return any(d.looks_ahead for d in self.datasets)

    def _expect(self, batches: Sequence[Sequence[int]], *, anew: bool) -> None:
        for dataset in self.datasets if anew else ():
            dataset.pack.forget()
        for indices in batches:
            wanted = self._placed(checked(len(self), indices))
            owners = np.searchsorted(self._ends, wanted, "right")
            for number in np.unique(owners).tolist():
                start = self._ends[number] - len(self.datasets[number])
                self.datasets[number]._expect([wanted[owners == number] - start], anew=False)

    @property
    def _tallies(self) -> list[Tally]:
        return [d._tally for d in set(self.datasets)]

    def with_options(self: Self, **options: Any) -> Self:
        """The same samples, with some options of all datasets changed.

        Raises:
            OptionError: there is no such option.
        """
        each = {name: value for name, value in options.items() if name != "seed"}
        made = copy.copy(self)
        datasets = [d.with_options(**each) for d in self.datasets]
        ConcatPacks.__init__(made, datasets, labels=self._labels, seed=options.get("seed"))
        if "seed" not in options:
            made._seed, made.seeded = self._seed, self.seeded
        made._order = self._order
        return made

    def _matching(
        self, label: selection.Labels | None, key: selection.Keys | None, meta: Mapping[str, Any]
    ) -> np.ndarray:
        packs = [d.pack for d in self.datasets]
        labels: Sequence[selection.Labels | None] = [None] * len(packs)
        if label is not None:
            labels = self._packs.sought(label)
        each = [d._positions(np.arange(len(d))) for d in self.datasets]
        parts = [selection.Searched(*part) for part in zip(packs, each, labels, strict=True)]
        found = np.concatenate(selection.matching(parts, key, meta))
        return found if self.places is None else found[self.places]

    def _expressed(self, expression: str) -> np.ndarray:
        each = {id(d.pack): d.pack for d in self.datasets}
        matching = {name: expressions.matching(pack, expression) for name, pack in each.items()}
        parts = [
            np.isin(d._positions(np.arange(len(d))), matching[id(d.pack)]) for d in self.datasets
        ]
        found = np.concatenate(parts)
        return found if self.places is None else found[self.places]

    def _tabled(self, wanted: tables.Wanted) -> np.ndarray:
        raise OptionError(
            "subset: a table names samples of one pack; take subset() of each dataset, then join "
            "them by ConcatPacks"
        )

    def _part(self: Self, indices: np.ndarray) -> Self:
        """The samples at some indices; every dataset stays, perhaps with no samples."""
        places = self._placed(indices)
        owners = np.searchsorted(self._ends, places, "right")
        parts = [
            dataset.subset(places[owners == number] - (self._ends[number] - len(dataset)))
            for number, dataset in enumerate(self.datasets)
        ]
        made = copy.copy(self)
        ConcatPacks.__init__(made, parts, labels=self._labels)
        made._seed, made.seeded = self._seed, self.seeded
        if np.any(owners[1:] < owners[:-1]):
            made._order = Positions(np.argsort(np.argsort(owners, kind="stable")))
        return made

    def _placed(self, indices: np.ndarray) -> np.ndarray:
        """Places of samples among all of the datasets, one behind the other."""
        return indices if self.places is None else self.places[indices]

    def _sample(self, index: int) -> Any:
        key, lane, size = self._draw_one(index)
        draw = Draw(key, np.array([lane]), size)
        return self._samples(self._gathered([index], draw, None, None))[0]

    @property
    def _is_plain(self) -> bool:
        return all(d._is_plain for d in self.datasets)

    @property
    def _is_random(self) -> bool:
        return any(d._is_random for d in self.datasets)

    def _transformed(self, values: dict[str, Any], position: int, owner: int) -> dict[str, Any]:
        own = position - self._packs.starts[owner]
        return self.datasets[owner]._transformed(values, own)

    def _gathered(
        self, indices: Sequence[int] | np.ndarray, draw: Draw, out: torch.Tensor | None,
        device: torch.device | None,
    ) -> Gathered:  # fmt: skip
        wanted = self._placed(checked(len(self), indices))
        owners = np.searchsorted(self._ends, wanted, "right")
        portions = self._portions(owners, wanted, draw)
        positions = np.empty_like(wanted)
        for portion in portions:
            positions[portion.slots] = self._packs.starts[portion.number] + portion.positions
        columns = joining.joined(portions, len(wanted), out, self._fields.kinds)
        errors = {int(s.slots[slot]): e for s in portions for slot, e in s.made.errors.items()}
        if errors:
            source = self._replace(MadeSamples(columns, errors), owners)
            positions, owners = positions[source], owners[source]
        return Gathered(columns, positions, owners)

    def _portions(self, owners: np.ndarray, wanted: np.ndarray, draw: Draw) -> list[Portion]:
        """Let each dataset make its slots of a batch.

        If threads decode, all datasets work at the same time, each in a thread that waits. One
        dataset after the other would leave decoding threads idle at the end of each dataset.
        """
        numbers = np.unique(owners).tolist() or [0]
        threads = self.datasets[0]._maker.threads()
        portions: dict[int, Portion] = {}

        def work(some: Iterable[int]) -> None:
            for number in some:
                dataset, slots = self.datasets[number], np.flatnonzero(owners == number)
                start = self._ends[number] - len(dataset)
                positions = dataset._positions(wanted[slots] - start)
                own = draw._replace(lanes=draw.lanes[slots])
                made = dataset._maker.make(positions, own, threads)
                portions[number] = self._packs.boxes_named(Portion(number, slots, positions, made))

        if threads is None or len(numbers) == 1:
            work(numbers)
        else:
            threads._started()  # here, not in several threads at once
            if self._waiting is None or self._waiting.count != threads.count:
                self._waiting = Threads(threads.count)
            self._waiting.run(work, numbers)
        return [portions[number] for number in numbers]

    def _replace(self, made: MadeSamples, owners: np.ndarray) -> list[int]:
        """Put a good sample of the batch in the place of each bad one; count and report it."""
        bad = [(e, self.datasets[owners[s]]._maker) for s, e in sorted(made.errors.items())]
        for error, maker in bad:
            if not maker.skip or len(bad) == len(owners):
                raise error
        for error, maker in bad:
            maker.report([error])
        return samples.replace(made)


def _check_kinds(datasets: Sequence[PackDataset]) -> None:
    """Check that datasets can make a batch together."""
    if not datasets:
        raise OptionError("datasets: expected at least one")
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
    first = _kind(datasets[0])
    for dataset in datasets[1:]:
        for name, found in _kind(dataset).items():
            if found != first[name]:
                raise OptionError(
                    f"{name} differ: {first[name]} of {datasets[0].pack.path}, {found} of "
                    f"{dataset.pack.path}; give both the same"
                )


def _kind(dataset: PackDataset) -> dict[str, Any]:
    """Options that have to be the same in all datasets."""
    options = dataset.options
    return {
        "fields": dataset._fields.assemble({name: name for name in dataset._fields.names}),
        "kinds of fields": dataset._fields.kinds,
        "output": options["output"],
        "dtype": options["dtype"],
        "views": None if options["views"] is None else len(options["views"]),
    }
