"""The base of datasets of one pack and of several packs: batches, and selecting samples."""

from __future__ import annotations

import collections
import contextlib
import operator
import threading
import warnings
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from packio.batches import draws, framing
from packio.batches.collating import Batch, Batched, collate
from packio.batches.draws import Drawn
from packio.batches.framing import Draw
from packio.batches.samples import FieldColumns
from packio.datasets import selection, tables
from packio.datasets.coming import Coming
from packio.datasets.drawn import DrawnDataset
from packio.datasets.fields import Fields
from packio.datasets.guesses import Guesses
from packio.datasets.options import check_settable
from packio.datasets.outputs import Outputs
from packio.datasets.positions import checked, several
from packio.datasets.tally import Seeded, Tally
from packio.errors import OptionError, PackioError
from packio.images.decoders._cuda import side_stream
from packio.system import workers

Self = TypeVar("Self", bound="BatchedDataset")


class _Key(threading.local):
    """Random keys from torch's generator: 0.8 µs each, 3 µs with a new tensor each time."""

    def __init__(self) -> None:
        self._tensor = torch.empty((), dtype=torch.int64)

    def drawn(self) -> int:
        """An int of 63 bits."""
        return int(self._tensor.random_().item())


_KEY = _Key()  # the memory of a tensor: the same in every process


class Gathered(NamedTuple):
    """A batch as it was made, before it gets the form that the user wants.

    Attributes:
        positions: (N,) of the samples in the pack, or in several packs one behind the other.
        owners: (N,) numbers of the samples' datasets; None where there is one.
    """

    columns: FieldColumns
    positions: np.ndarray
    owners: np.ndarray | None = None


class BatchedDataset(Seeded, DrawnDataset, torch.utils.data.Dataset[Any]):
    """A map-style dataset that makes whole batches.

    Attributes:
        seeded: Whether a seed of the random numbers was given.
    """

    seeded: bool
    _fields: Fields
    _outputs: Outputs
    _guesses: Guesses

    def __setattr__(self, name: str, value: Any) -> None:
        check_settable(self, name, self._option_names)
        super().__setattr__(name, value)

    @property
    def classes(self) -> list[str]:
        """Class names; a label is a position in this list."""
        raise NotImplementedError

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Label of each class name."""
        return {name: i for i, name in enumerate(self.classes)}

    @property
    def epoch(self) -> int:
        """The epoch whose random numbers are drawn, in all workers."""
        return self._tally.epoch

    @property
    def image_places(self) -> tuple[int | str, ...] | None:
        """Where the field "image" is in a batch; None: the batch is the image alone."""
        return self._fields.image_places

    @property
    def decodes_batches(self) -> bool:
        """Whether the decoder decodes many images at once on a device: for `gather`, `Loader`."""
        return False

    @property
    def looks_ahead(self) -> bool:
        """Whether batches that tell the next ones are made sooner: for `Loader`."""
        return False

    @property
    def replaced(self) -> int:
        """Bad samples replaced so far under on_error="skip", in all workers."""
        return sum(tally.replaced for tally in self._tallies)

    @property
    def fallbacks(self) -> int:
        """Images that Pillow decoded because the chosen decoder could not, in all workers."""
        return sum(tally.fallbacks for tally in self._tallies)

    @property
    def declined(self) -> dict[str, int]:
        """Reason → JPEGs that the native core left to a slower library, in all workers."""
        counts: collections.Counter[str] = collections.Counter()
        for tally in self._tallies:
            counts.update(tally.declined)
        return dict(counts)

    def __len__(self) -> int:
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        """Draw the random numbers of another epoch, also in workers that are running.

        Needed under ``seed=`` with a sampler that is not packio's: see ``seed``. A `Loader` counts
        epochs itself; its next epoch is then this one.
        """
        self._begin_epoch(epoch)
        self._tally.asked = [epoch]

    def __getitem__(self, index: Any) -> Any:
        """One sample; of a slice, a list or an array of indices, the batch that `gather` makes."""
        if type(index) is int or isinstance(index, Drawn):
            return self._sample(index)
        indices = several(len(self), index)
        if indices is None:
            return self._sample(operator.index(index))
        if len(indices):
            self._warn_if_again(indices)
        batch = self._batch(indices, None, None)
        return Batched(batch) if type(batch) is list else batch

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Samples of a batch; the images are views of one tensor where they are all alike.

        Args:
            indices: Positions in the dataset, in the batch's order; one may be there twice.
        """
        if self._overrides("__getitem__"):
            return [self[index] for index in indices]
        if len(indices):
            self._warn_if_again(indices)
        return self._samples(self._made(indices, None, None))

    def gather(
        self, indices: Sequence[int] | np.ndarray, *, out: torch.Tensor | None = None,
        device: torch.device | str | None = None,
    ) -> Any:  # fmt: skip
        """Make a batch: what ``packio.collate(ds.__getitems__(indices))`` returns, but faster.

        Args:
            indices: As of `__getitems__`.
            out: Tensor that gets the images, for use in batch after batch: (N, C, H, W),
                contiguous, of the dataset's dtype.
            device: Where images are decoded and stay, with a decoder that `decodes_batches`;
                transforms get them there. All other values stay in memory.

        Raises:
            DecodeError, IntegrityError: see `__getitems__`.
            OptionError: ``out`` or ``device`` does not fit, or the images are no one tensor.
        """
        if self._overrides("__getitem__", "__getitems__"):
            if out is not None or device is not None:
                raise OptionError(
                    f"{type(self).__name__} has a __getitem__ or __getitems__ of its own, which "
                    "knows no out= and no device="
                )
            return collate(self.__getitems__(list(indices)))
        if out is not None and not (self._outputs.has_one_tensor and self._is_plain):
            raise OptionError("out=: expected tensors, without views or transforms")
        if device is None:
            return self._batch(indices, out, None)
        if out is not None or not (self._outputs.has_tensors and self.decodes_batches):
            raise OptionError(
                f"device=: {self!r}; expected a decoder of batches, as decoder='nvjpeg', "
                "output='tensor', and no out="
            )
        with side_stream(torch.device(device)) as numbered:
            return self._batch(indices, None, numbered)

    def where(
        self: Self,
        expression: str | None = None,
        /,
        *,
        label: selection.Labels | None = None,
        key: selection.Keys | None = None,
        **meta: Any,
    ) -> Self:
        """Select the samples that match all conditions, in their order; nothing is copied.

        Args:
            expression: A condition of SQL over the index, as ``"width >= 512 AND class = 'cat'"``;
                see ``docs/queries.md``. Needs ``pip install 'packio[query]'``.
            label: Name or index of a class, or several; a label vector is of each class whose entry
                is above 0.
            key: A key, or a glob as "n01440764/*" (`fnmatch.fnmatchcase`: * matches / as well), or
                several; as bytes, too.
            meta: Name of the samples' metadata → a value, or a function that is called with the
                value, which is None where a sample has no such name.

        Returns:
            A dataset with the same options and an epoch of its own.

        Raises:
            OptionError: there is no such class or name in the metadata, or no sample matches; or
                the expression is none, then the message has the columns there are.
            KeyNotFoundError: no sample has such a key.
            MissingPackageError: DuckDB or pyarrow is not installed.
        """
        found = self._matching(label, key, meta)
        if expression is not None:
            found &= self._expressed(expression)
        if not found.any():
            raise selection.none_has(len(self), expression, label, key, meta, self._name)
        return self.subset(found)

    def subset(self: Self, indices: Any) -> Self:
        """Select some samples, in the order given; nothing is copied.

        Args:
            indices: Positions in this dataset, one perhaps several times; or a bool for each. Or a
                table with a column ``key`` or ``index`` (position in the pack), as
                `packio.export` writes them: of Arrow, pandas or Polars, or a relation of DuckDB.

        Returns:
            A dataset with the same options and an epoch of its own.

        Raises:
            OptionError: no integers, or not as many bools as there are samples; or a table without
                such a column, or of samples that are not in this dataset.
            IndexError: an index is out of range.
        """
        if tables.is_table(indices):
            return self._part(self._tabled(tables.Wanted.of(indices)))
        return self._part(checked(len(self), indices))

    def _overrides(self, *names: str) -> bool:
        """Whether a class derived from packio's defines some methods of datasets anew."""
        return any(getattr(type(self), n) is not getattr(BatchedDataset, n) for n in names)

    def _check_class(self) -> None:
        """Check what a class that is derived from packio's overrides; say what that costs."""
        kind = type(self).__name__
        for name in ("loader", "find_classes", "make_dataset"):
            if hasattr(type(self), name):
                raise OptionError(
                    f"{kind} has {name}, as for ImageFolder; packio does not call it: a pack has "
                    "its classes and samples, and transform= gets each image"
                )
        if self._overrides("__getitem__") and not self._overrides("__getitems__"):
            warnings.warn(
                f"{kind} has a __getitem__ of its own: batches are made by it, sample by sample, "
                "which takes longer; fields=('image', 'index') gives the index, transform= and "
                "target_transform= change values",
                stacklevel=4,
            )

    # ---- what each kind of dataset does in its own way ----

    @property
    def _option_names(self) -> Container[str]:
        """Names of the options that it was made with; none before it is made."""
        raise NotImplementedError

    def _begin_epoch(self, epoch: int) -> None:
        """Draw the random numbers of another epoch, of which a loader has taken note."""
        raise NotImplementedError

    def _sample(self, index: int) -> Any:
        raise NotImplementedError

    @property
    def description(self) -> dict[str, Any]:
        """What is shown of the samples, as plain numbers and text; for states of `Loader`.

        "seeded": whether a seed was given. "part": whether some samples were chosen, so that
        indices are no positions in the packs. "parts": of each pack; see `describing.described`.
        """
        raise NotImplementedError

    @property
    def _name(self) -> object:
        return type(self).__name__

    @property
    def _tally(self) -> Tally:
        raise NotImplementedError

    @property
    def _tallies(self) -> list[Tally]:
        raise NotImplementedError

    def _expect(self, batches: Sequence[Sequence[int]], *, anew: bool) -> None:
        raise NotImplementedError

    @property
    def _is_plain(self) -> bool:
        raise NotImplementedError

    @property
    def _is_random(self) -> bool:
        raise NotImplementedError

    def _gathered(
        self, indices: Sequence[int] | np.ndarray, draw: Draw, out: torch.Tensor | None,
        device: torch.device | None,
    ) -> Gathered:  # fmt: skip
        """Make the decoded fields of a batch, as of `gather`."""
        raise NotImplementedError

    def _transformed(self, values: dict[str, Any], position: int, owner: int) -> dict[str, Any]:
        raise NotImplementedError

    def _part(self: Self, indices: np.ndarray) -> Self:
        raise NotImplementedError

    def _matching(
        self, label: selection.Labels | None, key: selection.Keys | None, meta: Mapping[str, Any]
    ) -> np.ndarray:
        raise NotImplementedError

    def _expressed(self, expression: str) -> np.ndarray:
        raise NotImplementedError

    def _tabled(self, wanted: tables.Wanted) -> np.ndarray:
        raise NotImplementedError

    # ---- batches ----

    def _draw(self, indices: Sequence[int] | np.ndarray) -> Draw:
        """Where a batch's random numbers come from.

        Indices of packio's samplers know their positions in the epoch: the numbers come from seed,
        epoch and position. Other indices: from the seed, the epoch and the batch's indices if a
        seed was given, else from torch's generator, so that no two epochs are alike.
        """
        known = self._known_draw(indices)
        if known is not None:
            return known
        key = _KEY.drawn()
        if self.seeded:
            key = draws.mix(self.seed, self.epoch, draws.digest(indices))
        return Draw(key, np.arange(len(indices)), draws.size_of(indices))

    def _known_draw(self, indices: Sequence[int] | np.ndarray) -> Draw | None:
        """The draw of indices that know their positions in the epoch; None: of others."""
        size = draws.size_of(indices)
        if not self._is_random:
            return Draw(0, np.zeros(len(indices), np.int64), size)
        known = [i for i in indices if isinstance(i, Drawn)]
        if len(known) != len(indices) or len({i.epoch for i in known}) != 1:
            return None
        drawn = framing.by_position(self.seed, known[0].epoch, [i.position for i in known])
        return drawn if size is None else drawn._replace(size=size)

    def _warn_if_again(self, indices: Sequence[int] | np.ndarray) -> None:
        """Warn if a batch comes again in one epoch, and draws the same because of a seed."""
        if not (self.seeded and self._is_random) or isinstance(indices[0], Drawn):
            return
        if self._tally.comes_again(draws.digest(indices)):
            warnings.warn(
                f"{type(self).__name__}: under seed={self.seed} a batch that comes again in one "
                "epoch draws the same crops; call set_epoch(epoch) before each epoch, take "
                "sampler=packio.ShuffleSampler(dataset), or leave seed= out",
                stacklevel=3,
            )

    def _draw_one(self, index: int | None) -> tuple[int, int, tuple[int, int] | None]:
        """Key, lane and size of a single sample: of its position, or of torch's generator.

        A seed does not matter to a plain index: whoever asks for the same sample again, as a
        dataset around this one does in each epoch, gets another crop.
        """
        size = index.size if isinstance(index, Drawn) else None
        if not self._is_random:
            return 0, 0, size
        if isinstance(index, Drawn):
            key, lanes, _ = framing.by_position(self.seed, index.epoch, [index.position])
            return key, int(lanes[0]), size
        return _KEY.drawn(), 0, size

    def _made(
        self, indices: Sequence[int] | np.ndarray, out: torch.Tensor | None,
        device: torch.device | None,
    ) -> Gathered:  # fmt: skip
        workers.settle()
        if self.looks_ahead:
            self._look_ahead(indices)
        return self._gathered(indices, self._draw(indices), out, device)

    def _look_ahead(self, indices: Sequence[int] | np.ndarray) -> None:
        """Ask for the bytes of a batch, and of those that come later, as far as they are known."""
        if isinstance(indices, Coming):
            self._expect([indices, *indices.later], anew=indices.anew)
            return
        if isinstance(indices, np.ndarray):
            return
        guess = self._guesses.after(self, indices)
        if guess.later or guess.anew:
            with contextlib.suppress(PackioError, IndexError):  # the batch itself will raise it
                self._expect([indices, *guess.later], anew=guess.anew)

    def _batch(
        self, indices: Sequence[int] | np.ndarray, out: torch.Tensor | None,
        device: torch.device | None,
    ) -> Any:  # fmt: skip
        made = self._made(indices, out, device)
        if not self._is_plain:
            return self._samples(made).columns()
        return self._outputs.batch(made.columns, made.positions)

    def _samples(self, made: Gathered) -> Batch:
        columns = self._outputs.columns(made.columns, made.positions)
        samples = self._fields.samples(columns)
        if self._is_plain:
            batched = self._outputs.batch
            return Batch(samples, lambda: batched(made.columns, made.positions, columns))
        owners = [0] * len(samples) if made.owners is None else made.owners.tolist()
        each = [
            self._transformed(self._fields.take_apart(sample), position, owner)
            for sample, position, owner in zip(
                samples, made.positions.tolist(), owners, strict=True
            )
        ]
        samples = [self._fields.assemble(values) for values in each]
        return Batch(samples, lambda: self._outputs.batch_of(each))
