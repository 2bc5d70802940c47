"""Several datasets as one: batches of samples of any of them, each in one tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from packio.batches import annotated, batches
from packio.batches.annotated import Column, Columns, Samples
from packio.batches.batches import Batch
from packio.batches.draws import Drawn
from packio.batches.plans import Draw
from packio.datasets import classnames, selection
from packio.datasets.datasets import PackDataset, drawn
from packio.datasets.outputs import Outputs
from packio.datasets.positions import Positions, checked
from packio.errors import OptionError
from packio.packs.packs import Pack
from packio.system import workers
from packio.system.threads import Threads


class _Part(NamedTuple):
    """What one dataset makes of a batch."""

    number: int  # of the dataset
    slots: np.ndarray  # (n,) in the batch
    positions: np.ndarray  # (n,) in its pack
    made: Samples


class _Made(NamedTuple):
    """What is made of a batch; a column a view."""

    columns: Columns
    positions: np.ndarray  # (N,) in the packs, one behind the other
    owners: np.ndarray  # (N,) numbers of the datasets


class ConcatPacks(torch.utils.data.Dataset[Any]):
    """Several datasets of packio's as one, their samples one behind the other.

    A batch may have samples of all of them. Each dataset makes its own at once, with its own crop,
    flips, transforms and on_error; images of one shape become one contiguous tensor, others a list.
    Random numbers are those of one dataset with this seed. Datasets may be of any formats, splits,
    and parts (`PackDataset.where`, `PackDataset.subset`), of one pack as well.

    The field "index" counts through the packs, one behind the other.

    Args:
        datasets: `PackDataset` and its kind, with the same fields, output, dtype and number of
            views. The first one's ``threads`` decode.
        labels: "same": classes have to agree. "by_name": classes are those of all, in the order
            that they come in, and labels go by name; transforms of labels get the new ones.
        seed: Of the random numbers; None: that of the first dataset.

    Attributes:
        datasets: As given, a tuple; their `transform`, `target_transform` and `transforms` may be
            set later.
        classes: Class names; a label is a position in this list.
        seed, seeded: Of the random numbers, and whether it was given.

    Raises:
        OptionError: datasets that differ, with what differs; or none.
    """

    def __init__(
        self, datasets: Iterable[PackDataset], *, labels: str = "same", seed: int | None = None
    ) -> None:
        self.datasets = tuple(datasets)
        _check_kinds(self.datasets)
        first, self._labels = self.datasets[0], labels
        packs = [d.pack for d in self.datasets]
        self._fields = first._fields
        wanted = "label" in self._fields.names
        self.classes, tables = classnames.joined(packs, labels, needed=wanted)
        self._packs = _Packs(packs, tables, len(self.classes))
        self._outputs = Outputs(self._packs, self._fields, first._output, several=first._several)
        self._ends = np.cumsum([len(d) for d in self.datasets])
        self._order: Positions | None = None  # of the samples, where it is not the datasets'
        self.seed = first.seed if seed is None else seed
        self.seeded = first.seeded or seed is not None
        self._waiting: Threads | None = None  # for the samples of one dataset each

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __repr__(self) -> str:
        labels = "" if self._labels == "same" else f", labels={self._labels!r}"
        return f"{type(self).__name__}([{', '.join(map(repr, self.datasets))}]{labels})"

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Label of each class name."""
        return {name: i for i, name in enumerate(self.classes)}

    @property
    def targets(self) -> np.ndarray | None:
        """All labels: (N,) int64 or (N, k) float32; None if a dataset has none."""
        each = [d.targets for d in self.datasets]
        if any(labels is None for labels in each):
            return None
        named = [
            self._packs.named(i, labels) for i, labels in enumerate(each) if labels is not None
        ]
        targets = np.concatenate(named)
        return targets if self.places is None else targets[self.places]

    @property
    def places(self) -> np.ndarray | None:
        """Place of each sample among all of the datasets, one behind the other; None: its index.

        (N,) int64, read-only. Other than the indices where `subset` has mixed the datasets.
        """
        return None if self._order is None else self._order.array

    @property
    def epoch(self) -> int:
        """The epoch whose random numbers are drawn, in all workers."""
        return self.datasets[0].epoch

    def set_epoch(self, epoch: int) -> None:
        """Draw the random numbers of another epoch; see `PackDataset.set_epoch`."""
        for dataset in self.datasets:
            dataset.set_epoch(epoch)

    @property
    def replaced(self) -> int:
        """Bad samples replaced so far under on_error="skip", in all workers."""
        return sum(d.replaced for d in set(self.datasets))

    @property
    def fallbacks(self) -> int:
        """Images that Pillow decoded because the chosen decoder could not, in all workers."""
        return sum(d.fallbacks for d in set(self.datasets))

    def with_options(self, **options: Any) -> ConcatPacks:
        """The same samples, with some options of all datasets changed.

        Raises:
            OptionError: there is no such option.
        """
        seeded = self.seeded or "seed" in options
        seed = options.pop("seed", self.seed)
        datasets = [d.with_options(**options) for d in self.datasets]
        made = type(self)(datasets, labels=self._labels, seed=seed)
        made.seeded, made._order = seeded, self._order
        return made

    def where(
        self,
        /,
        *,
        label: selection.Labels | None = None,
        key: selection.Keys | None = None,
        **meta: Any,
    ) -> ConcatPacks:
        """Those of the samples that match all that is asked for; see `PackDataset.where`.

        Labels are asked for by the classes of all. Every dataset stays, if only with no samples.

        Raises:
            OptionError: no dataset has such a class or name in the metadata, or no sample matches.
            KeyNotFoundError: no pack has such a key.
        """
        packs = [d.pack for d in self.datasets]
        labels: Sequence[selection.Labels | None] = [None] * len(packs)
        if label is not None:
            labels = self._packs.sought(label)
        each = [d._positions(np.arange(len(d))) for d in self.datasets]
        parts = [selection.Part(*part) for part in zip(packs, each, labels, strict=True)]
        found = np.concatenate(selection.matching(parts, key, meta))
        if not found.any():
            raise selection.none_has(len(self), label, key, meta, type(self).__name__)
        return self.subset(found if self.places is None else found[self.places])

    def subset(self, indices: Sequence[int] | np.ndarray | torch.Tensor) -> ConcatPacks:
        """The samples at some indices, in the order given; see `PackDataset.subset`.

        Its datasets are those of this one, each with its own of these samples, if any.

        Raises:
            OptionError: no integers, or not as many bools as there are samples.
            IndexError: an index is out of range.
        """
        places = self._placed(checked(len(self), indices))
        owners = np.searchsorted(self._ends, places, "right")
        parts = [
            dataset.subset(places[owners == number] - (self._ends[number] - len(dataset)))
            for number, dataset in enumerate(self.datasets)
        ]
        made = type(self)(parts, labels=self._labels, seed=self.seed)
        made.seeded = self.seeded
        if np.any(owners[1:] < owners[:-1]):
            made._order = Positions(np.argsort(np.argsort(owners, kind="stable")))
        return made

    def _placed(self, indices: np.ndarray) -> np.ndarray:
        """Places of samples among all of the datasets, one behind the other."""
        return indices if self.places is None else self.places[indices]

    def __getitem__(self, index: int) -> Any:
        if isinstance(index, Drawn):
            draw = self._draw([index])
        else:
            key = int(torch.empty((), dtype=torch.int64).random_())
            draw = Draw(key, np.zeros(1, np.int64))
        return self._samples(self._made([index], draw))[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Samples of a batch; see `PackDataset.__getitems__`.

        Raises:
            DecodeError, IntegrityError: a sample is bad, and on_error of its dataset is "raise", or
                all are.
        """
        return self._samples(self._made(indices, self._draw(indices)))

    def gather(
        self, indices: Sequence[int] | np.ndarray, *, out: torch.Tensor | None = None
    ) -> Any:
        """Make what `packio.collate` makes of ``__getitems__(indices)``; see `PackDataset.gather`.

        Raises:
            DecodeError, IntegrityError: see `__getitems__`.
            OptionError: ``out`` does not fit, or the images are no one tensor.
        """
        first, plain = self.datasets[0], self._is_plain
        if out is not None and (first._several or not plain or first._output != "tensor"):
            raise OptionError("out=: expected datasets of tensors without views or transforms")
        made = self._made(indices, self._draw(indices), out)
        if not plain:
            return self._samples(made).columns()
        return self._outputs.batch(made.columns, made.positions)

    @property
    def _is_plain(self) -> bool:
        return all(d._is_plain for d in self.datasets)

    def _draw(self, indices: Sequence[int] | np.ndarray) -> Draw:
        if not any(d._is_random() for d in self.datasets):
            return Draw(0, np.zeros(len(indices), np.int64))
        return drawn(indices, self.seed, self.epoch)

    def _samples(self, made: _Made) -> Batch:
        columns = self._outputs.columns(made.columns, made.positions)
        samples = self._fields.samples(columns)
        if self._is_plain:
            return Batch(samples, lambda: self._outputs.batch(*made[:2], columns))
        each = [
            self.datasets[owner]._transformed(self._fields.take_apart(sample))
            for owner, sample in zip(made.owners.tolist(), samples, strict=True)
        ]
        samples = [self._fields.assemble(values) for values in each]
        return Batch(samples, lambda: self._outputs.batch_of(each))

    def _made(
        self, indices: Sequence[int] | np.ndarray, draw: Draw, out: torch.Tensor | None = None
    ) -> _Made:
        workers.settle()
        wanted = self._placed(checked(len(self), indices))
        owners = np.searchsorted(self._ends, wanted, "right")
        parts = self._parts(owners, wanted, draw)
        positions = np.empty_like(wanted)
        for part in parts:
            positions[part.slots] = self._packs.starts[part.number] + part.positions
        columns = _joined(parts, len(wanted), out)
        errors = {int(p.slots[slot]): e for p in parts for slot, e in p.made.errors.items()}
        if errors:
            source = self._replace(Samples(columns, errors), owners)
            positions, owners = positions[source], owners[source]
        return _Made(columns, positions, owners)

    def _parts(self, owners: np.ndarray, wanted: np.ndarray, draw: Draw) -> list[_Part]:
        """What each dataset makes of its slots of a batch.

        Where there are threads that decode, all datasets keep them busy together: each has a thread
        that waits for its own samples. One after the other, threads would idle at each one's end.
        """
        numbers = np.unique(owners).tolist() or [0]
        threads = self.datasets[0]._decoding_threads()
        parts: dict[int, _Part] = {}

        def work(number: int) -> None:
            slots = np.flatnonzero(owners == number)
            parts[number] = self._part(number, slots, wanted, draw, threads)

        if threads is None or len(numbers) == 1:
            for number in numbers:
                work(number)
        else:
            threads._started()  # here, not in several threads at once
            if self._waiting is None or self._waiting.count != threads.count:
                self._waiting = Threads(threads.count)
            self._waiting.run(work, numbers)
        return [parts[number] for number in numbers]

    def _part(
        self, number: int, slots: np.ndarray, wanted: np.ndarray, draw: Draw,
        threads: Threads | None,
    ) -> _Part:  # fmt: skip
        dataset = self.datasets[number]
        start = self._ends[number] - len(dataset)
        positions = dataset._positions(wanted[slots] - start)
        made = Samples({}, {})
        if dataset._recipe.fields:
            made = dataset._make(positions, Draw(draw.key, draw.lanes[slots]), threads, None)
        return _Part(number, slots, positions, made)

    def _replace(self, made: Samples, owners: np.ndarray) -> list[int]:
        """Put a good sample of the batch in the place of each bad one; count and report it."""
        bad = [(error, self.datasets[owners[slot]]) for slot, error in sorted(made.errors.items())]
        for error, dataset in bad:
            if not dataset._skip or len(bad) == len(owners):
                raise error
        for error, dataset in bad:
            dataset._report([error])
        return annotated.replace(made)


class _Packs:
    """Packs one behind the other, as far as `Outputs` asks.

    Args:
        packs: The packs.
        tables: Of each, where its classes are among those of all; see `packio.datasets.classnames`.
        classes: How many there are of all.

    Attributes:
        starts: Position of the first sample of each.
    """

    def __init__(
        self, packs: Sequence[Pack], tables: Sequence[np.ndarray | None], classes: int
    ) -> None:
        self._packs, self._tables, self._classes = packs, tables, classes
        self._ends = np.cumsum([len(pack) for pack in packs])
        self.starts = [int(end) - len(pack) for end, pack in zip(self._ends, packs, strict=True)]

    def key(self, index: int) -> str:
        """Key of a sample."""
        number = int(np.searchsorted(self._ends, index, "right"))
        return self._packs[number].key(index - self.starts[number])

    def meta(self, index: int) -> dict[str, Any] | None:
        """Metadata of a sample."""
        number = int(np.searchsorted(self._ends, index, "right"))
        return self._packs[number].meta(index - self.starts[number])

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
        """Numbers that classes of all have in each pack; see `classnames.sought`."""
        return classnames.sought(label, self._packs, self._tables, self._classes)

    def named(self, number: int, labels: np.ndarray) -> np.ndarray:
        """Labels of a pack, as they are among the classes of all."""
        table = self._tables[number]
        return labels if table is None else classnames.renamed(labels, table, self._classes)


def _joined(parts: Sequence[_Part], count: int, out: torch.Tensor | None) -> Columns:
    """The columns of a batch, out of those of its parts; of one part as they are."""
    if len(parts) == 1 and out is None:
        return parts[0].made.columns
    columns: Columns = {}
    for name in parts[0].made.columns:
        each = [part.made.columns[name] for part in parts]
        columns[name] = [
            _together(name, [p.slots for p in parts], views, count, out)
            for views in zip(*each, strict=True)
        ]
    return columns


def _together(
    name: str, slots: Sequence[np.ndarray], columns: Sequence[Column], count: int,
    out: torch.Tensor | None,
) -> Column:  # fmt: skip
    """One view's column of a field: a tensor, if it is one in all parts, of the same shape."""
    if name == "mask" and any(value.dtype == torch.int32 for c in columns for value in c[:1]):
        columns = [_as_int32(column) for column in columns]
    whole = [c for c in columns if isinstance(c, torch.Tensor)]
    given = out if name == "image" else None
    if len(whole) == len(columns) and len({(c.shape[1:], c.dtype) for c in whole}) == 1:
        batch = batches.given_or_new((count, *whole[0].shape[1:]), whole[0].dtype, given)
        into = batch.view(torch.uint8).numpy()  # torch's index_copy_ takes 20 ms for bytes
        for at, tensor in zip(slots, whole, strict=True):
            into[at] = tensor.view(torch.uint8).numpy()
        return batch
    if given is not None:
        raise OptionError("out=: the images differ in size or type; expected a crop to one size")
    values = [torch.empty(0)] * count
    for at, column in zip(slots, columns, strict=True):
        for slot, value in zip(at.tolist(), column, strict=True):
            values[slot] = value
    return values


def _as_int32(column: Column) -> Column:
    if isinstance(column, torch.Tensor):
        return column.to(torch.int32)
    return [mask.to(torch.int32) for mask in column]


def _check_kinds(datasets: Sequence[PackDataset]) -> None:
    """Refuse what cannot be one batch.

    Raises:
        OptionError: it is such.
    """
    if not datasets:
        raise OptionError("datasets: expected at least one")
    for dataset in datasets:
        if not isinstance(dataset, PackDataset):
            raise OptionError(
                f"datasets: {type(dataset).__name__}; expected LmdbDataset and its kind, all in "
                "one list"
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
    """What has to be the same of all datasets."""
    return {
        "fields": dataset._fields.assemble({name: name for name in dataset._fields.names}),
        "output": dataset._output,
        "dtype": dataset._dtype,
        "views": len(dataset._recipe.views) if dataset._several else None,
    }
