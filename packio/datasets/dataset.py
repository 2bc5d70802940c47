"""The base of datasets: samples of one pack or of several, one part behind the other.

A part is a `PackDataset`: a pack, positions in it, and how its samples are made. A dataset of one
pack is its own part; `ConcatPacks` has several.
"""

# ruff: noqa: SLF001 (a dataset and its parts make batches together)

from __future__ import annotations

import contextlib
import dataclasses
import operator
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch

from packio.batches import draws, framing, samples
from packio.batches.collating import Batch, BatchedFields, collate
from packio.batches.draws import PositionedIndex
from packio.batches.framing import Draw
from packio.datasets import options, selection
from packio.datasets.fields import BatchData, Fields, Outputs
from packio.datasets.lookahead import BatchWithLookahead, Guesses
from packio.datasets.shared_state import COUNTS, Positions, SeededMixin, Tally
from packio.datasets.transforms import transform_sample
from packio.errors import OptionError, PackioError, TransformError
from packio.images.devices import side_stream
from packio.images.frames import Placement
from packio.images.native import REASONS
from packio.packs.table import Row
from packio.sample.record import IMAGE
from packio.system import workers

if TYPE_CHECKING:
    from packio.datasets.pack_dataset import PackDataset

Self = TypeVar("Self", bound="Dataset")


_spare: list[torch.Tensor] = []  # what keys are drawn into; a new one each time takes 2 µs more


def _draw_key() -> int:
    """A random key from torch's generator."""
    try:
        tensor = _spare.pop()
    except IndexError:  # each thread that draws at the same time needs one
        with torch.inference_mode(False):  # a tensor of that mode is of no use outside
            tensor = torch.empty((), dtype=torch.int64, device="cpu")
    key = int(tensor.random_().item())
    _spare.append(tensor)
    return key


class Dataset(SeededMixin, torch.utils.data.Dataset[Any]):
    """A map-style dataset that makes whole batches.

    Attributes:
        seeded: Whether a seed of the random numbers was given.
    """

    seeded: bool
    _options: dict[str, Any]  # of the first part
    _fields: Fields
    _outputs: Outputs
    _guesses: Guesses
    _tally: Tally  # of the first part
    _order = Positions()  # of the samples among those of all parts

    def __setattr__(self, name: str, value: Any) -> None:
        options.check_settable(self, name, vars(self).get("_options", ()))
        super().__setattr__(name, value)

    @property
    def _parts(self) -> Sequence[PackDataset]:
        return (cast("PackDataset", self),)

    @property
    def classes(self) -> list[str]:
        """Class names; a label is a position in this list."""
        return self._parts[0].pack.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Label of each class name."""
        return {name: i for i, name in enumerate(self.classes)}

    @property
    def epoch(self) -> int:
        """The epoch whose random numbers are drawn, in all workers."""
        return self._tally.epoch

    @property
    def _is_random(self) -> bool:
        """Whether any sample needs random numbers."""
        return any(part._is_random for part in self._parts)

    @property
    def gives_tensors(self) -> bool:
        """Whether images are tensors; what a transform or a derived class makes may be one."""
        is_ours = self._is_plain and not self._overrides("__getitem__", "__getitems__")
        return self._options["output"] == "tensor" or not is_ours

    @property
    def is_normalized(self) -> bool:
        """Whether images are normalised floats, by `packio.Normalize` as the transform."""
        return any(part._is_normalized for part in self._parts)

    @property
    def is_rounded(self) -> bool:
        """Whether images are floats of 16 bits."""
        return any(part._dtype() in (torch.float16, torch.bfloat16) for part in self._parts)

    @property
    def image_places(self) -> tuple[Any, ...] | None:
        """Where "image" is in a batch; (...,): it is the batch; None: a derived class knows."""
        if self._overrides("__getitem__", "__getitems__"):
            return None
        return self._fields.image_places

    @property
    def decodes_batches(self) -> bool:
        """Whether the decoder decodes many images at once on a device: for `gather`, `Loader`."""
        part = self._parts[0]
        return part is self and part._settings.decoder.decodes_batches

    @property
    def looks_ahead(self) -> bool:
        """Whether batches that tell the next ones are made sooner: for `Loader`."""
        return any(part.pack.looks_ahead for part in self._parts)

    @property
    def replaced(self) -> int:
        """Bad samples replaced so far under on_error="skip", in all workers."""
        return self._totals["replaced"]

    @property
    def fallbacks(self) -> int:
        """Images that Pillow decoded because the chosen decoder could not, in all workers."""
        return self._totals["fallbacks"]

    @property
    def declined(self) -> dict[str, int]:
        """Reason → JPEGs that the native core left to a slower library, in all workers."""
        return {n: count for n, count in self._totals.items() if n in REASONS and count}

    @property
    def description(self) -> dict[str, Any]:
        """What is shown of the samples, as plain numbers and text; for states of `Loader`.

        "seeded": whether a seed was given. "part": whether some samples were chosen, so that
        indices are no positions in the packs. "parts": of each pack; see `options.describe`.
        """
        parts = self._parts
        return {
            "seeded": self.seeded,
            "part": self._order.array is not None or any(part._is_part for part in parts),
            "parts": [options.describe(p._options, p.pack.digest, len(p)) for p in parts],
        }

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
        if type(index) is int or isinstance(index, PositionedIndex):
            return self._sample(index)
        indices = selection.several_indices(len(self), index)
        if indices is None:
            return self._sample(operator.index(index))
        self._warn_if_again(indices)
        batch = self._batch(indices)
        return BatchedFields(batch) if type(batch) is list else batch

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Samples of a batch; the images are views of one tensor where they are all alike.

        Args:
            indices: Positions in the dataset, in the batch's order; one may be there twice.
        """
        if self._overrides("__getitem__"):
            return [self[index] for index in indices]
        self._warn_if_again(indices)
        return self._samples(self._gather(indices))

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
        has_tensors = self._options["output"] == "tensor"
        is_plain = self._options["views"] is None and self._is_plain
        if out is not None and not (has_tensors and is_plain):
            raise OptionError("out=: expected tensors, without views or transforms")
        if device is None:
            return self._batch(indices, out)
        if out is not None or not (has_tensors and self.decodes_batches):
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
        parts = self._parts
        labels = [None] * len(parts) if label is None else self._labels_of_parts(label)
        searched = [
            (part.pack, part._chosen_positions(), wanted)
            for part, wanted in zip(parts, labels, strict=True)
        ]
        matches = np.concatenate(selection.matching(searched, key, meta, expression))
        if self._order.array is not None:
            matches = matches[self._order.array]
        if not matches.any():
            named = {"label": label, "key": key, **meta}
            conditions = [f"{name}={value!r}" for name, value in named.items() if value is not None]
            if expression is not None:
                conditions.insert(0, repr(expression))
            where = parts[0].pack.path if len(parts) == 1 else type(self).__name__
            raise OptionError(f"{where}: none of {len(self)} samples has {', '.join(conditions)}")
        return self.subset(matches)

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
        if selection.is_table(indices):
            part = self._parts[0]
            if part is not self:
                raise OptionError(
                    "subset: a table names samples of one pack; take subset() of each dataset, "
                    "then join them by ConcatPacks"
                )
            return self._part(selection.read_positions(indices, part.pack, part._chosen.array))
        return self._part(selection.check_indices(len(self), indices))

    def draw_of(
        self, position: int, epoch: int | None = None, *, index: int | None = None
    ) -> Placement | tuple[Placement, ...]:
        """Tell which box of its image a sample shows at a position of an epoch, and its flips.

        What `packio.Loader` and packio's samplers draw there: a function of seed, epoch, position
        and view, for any number of workers and ranks. Nothing is read but the index. A dataset
        without ``seed=`` has drawn its seed when it was made.

        Args:
            position: Place in the order of the epoch, counted over all ranks from 0; or an index
                that a sampler of packio's gave, which knows place and epoch.
            epoch: Number of the epoch.
            index: Which sample is there. None: the one that the sampler said; else the sample whose
                index is the position, as in an epoch without shuffling.

        Returns:
            A `Placement`: ``frame`` (``top, left, height, width`` in pixels of the upright image,
            the size ``to_height, to_width`` that this box is resized to, and where the output
            ``out_height, out_width`` lies on it), ``orientation``, ``hflip`` and ``vflip``. With
            ``views=`` a tuple of them, one for each view.

        Raises:
            OptionError: there is no epoch.
            IndexError: the dataset has no such sample.
        """
        if isinstance(position, PositionedIndex):
            drawn = position if index is None else position.with_index(index)
        elif epoch is None:
            raise OptionError("epoch=None: expected a number, or an index of packio's samplers")
        else:
            drawn = PositionedIndex(position if index is None else index, epoch, position)
        part, row = self._find(drawn)
        key, lane, size = self._draw_one(drawn)
        placements = framing.placements_of_one(part._settings.with_size(size), row, key, lane)
        return placements[0] if part._options["views"] is None else tuple(placements)

    def _find(self, index: int) -> tuple[PackDataset, Row]:
        owners, positions = self._locate(selection.check_indices(len(self), [index]))
        part = self._parts[owners.item()]
        return part, part.pack.row(positions.item())

    def _seen(self, index: PositionedIndex, *, whole: bool = False) -> list[torch.Tensor]:
        """The images of a sample as they are drawn, (C, H, W) each, one a view; no transforms."""
        part, row = self._find(index)
        settings = dataclasses.replace(part._settings, fields={IMAGE: "image"})
        if whole:
            settings = dataclasses.replace(settings, views=(None,), hflip=0.0, vflip=0.0)
        return samples.make_one(part.pack, settings, row, *self._draw_one(index))[IMAGE]

    def _overrides(self, *names: str) -> bool:
        """Whether a class derived from packio's defines some methods of datasets anew."""
        return any(getattr(type(self), n) is not getattr(Dataset, n) for n in names)

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

    # ---- of the parts ----

    @property
    def _is_plain(self) -> bool:
        return all(part._is_plain for part in self._parts)

    @property
    def _totals(self) -> dict[str, int]:
        totals = np.sum([part._tally.totals for part in set(self._parts)], axis=0)
        return dict(zip(COUNTS, totals.tolist(), strict=True))

    def _begin_epoch(self, epoch: int) -> None:
        """Draw the random numbers of another epoch, of which a loader has taken note."""
        for part in self._parts:
            part._tally.epoch = epoch

    def _labels_of_parts(self, label: selection.Labels) -> Sequence[selection.Labels]:
        """What a label that is sought is called in each part."""
        return [label]

    def _part(self: Self, indices: np.ndarray) -> Self:
        raise NotImplementedError

    def _locate(self, indices: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find the number of each sample's part, and the position in its pack."""
        positions = self._parts[0]._positions(indices)
        return np.zeros(len(positions), np.int64), positions

    def _make(
        self, owners: np.ndarray, positions: np.ndarray, draw: Draw,
        out: torch.Tensor | None, device: torch.device | None,
    ) -> samples.MadeSamples:  # fmt: skip
        """Make the decoded fields of a batch; bad samples are among them."""
        part = self._parts[0]
        return part._make_fields(positions, draw, part._threads(), out, device)

    def _transformed(self, values: dict[str, Any], position: int, owner: int) -> dict[str, Any]:
        part = self._parts[owner]
        each = [pipeline.rest for pipeline in part._pipelines]  # all else has been done
        try:
            return transform_sample(
                values, part._fields.kinds, part.transforms, each, part.target_transform
            )
        except TransformError as error:
            raise TransformError(f"{part._where(position)}: {error}") from error.__cause__

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
        key = _draw_key()
        if self.seeded:
            key = draws.mix(self.seed, self.epoch, draws.digest(indices))
        return Draw(key, np.arange(len(indices)), draws.size_of(indices))

    def _known_draw(self, indices: Sequence[int] | np.ndarray) -> Draw | None:
        """The draw of indices that know their positions in the epoch; None: of others."""
        size = draws.size_of(indices)
        if not self._is_random:
            return Draw(0, np.zeros(len(indices), np.int64), size)
        known = [i for i in indices if isinstance(i, PositionedIndex)]
        if len(known) != len(indices) or len({i.epoch for i in known}) != 1:
            return None
        drawn = framing.draw_by_position(self.seed, known[0].epoch, [i.position for i in known])
        return drawn if size is None else drawn._replace(size=size)

    def _warn_if_again(self, indices: Sequence[int] | np.ndarray) -> None:
        """Warn if a batch comes again in one epoch, and draws the same because of a seed."""
        is_fixed = self.seeded and self._is_random and len(indices) > 0
        if not is_fixed or isinstance(indices[0], PositionedIndex):
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
        size = index.size if isinstance(index, PositionedIndex) else None
        if not self._is_random:
            return 0, 0, size
        if isinstance(index, PositionedIndex):
            key, lanes, _ = framing.draw_by_position(self.seed, index.epoch, [index.position])
            return key, int(lanes[0]), size
        return _draw_key(), 0, size

    def _gather(
        self, indices: Sequence[int] | np.ndarray, out: torch.Tensor | None = None,
        device: torch.device | None = None, draw: Draw | None = None,
    ) -> BatchData:  # fmt: skip
        """Make the decoded fields of a batch, with a good sample in the place of each bad one."""
        if draw is None:
            workers.settle()
            if self.looks_ahead:
                self._look_ahead(indices)
            draw = self._draw(indices)
        owners, positions = self._locate(indices)
        made = self._make(owners, positions, draw, out, device)
        if made.errors:
            self._report(made.errors, owners)
            source = samples.replace(made)
            positions, owners = positions[source], owners[source]
        return BatchData(made.columns, positions, owners)

    def _report(self, errors: dict[int, Exception], owners: np.ndarray) -> None:
        """Raise the first error if a part skips nothing, or all is bad; else count and warn."""
        bad = [(error, self._parts[owners[slot]]) for slot, error in sorted(errors.items())]
        for error, part in bad:
            if part._options["on_error"] != "skip" or len(bad) == len(owners):
                raise error
        for error, part in bad:
            warnings.warn(f"replaced by another sample of its batch: {error}", stacklevel=4)
            part._tally.count(1)

    def _look_ahead(self, indices: Sequence[int] | np.ndarray) -> None:
        """Ask for the bytes of a batch, and of those that come later, as far as they are known."""
        if isinstance(indices, np.ndarray):
            return
        batch = indices
        if not isinstance(batch, BatchWithLookahead):
            batch = self._guesses.after(self, indices)
        if batch.later or batch.anew:
            with contextlib.suppress(PackioError, IndexError):  # the batch itself will raise it
                self._expect([batch, *batch.later], anew=batch.anew)

    def _expect(self, batches: Sequence[Sequence[int]], *, anew: bool) -> None:
        for part in self._parts if anew else ():
            part.pack.forget()
        for indices in batches:
            draw = self._known_draw(indices)
            owners, positions = self._locate(indices)
            for number, part in enumerate(self._parts):
                slots = np.flatnonzero(owners == number)
                own = None if draw is None else draw._replace(lanes=draw.lanes[slots])
                rows = samples.rows_expected(part.pack, part._settings, positions[slots], own)
                part.pack.expect(rows)

    def _sample(self, index: int) -> Any:
        key, lane, size = self._draw_one(index)
        draw = Draw(key, np.array([lane]), size)
        return self._samples(self._gather([index], draw=draw))[0]

    def _batch(
        self, indices: Sequence[int] | np.ndarray, out: torch.Tensor | None = None,
        device: torch.device | None = None,
    ) -> Any:  # fmt: skip
        made = self._gather(indices, out, device)
        return self._outputs.batch(made) if self._is_plain else self._samples(made).columns()

    def _samples(self, made: BatchData) -> Batch:
        columns = self._outputs.columns(made)
        if self._is_plain:
            batched = self._outputs.batch
            return Batch(self._fields.samples(columns), lambda: batched(made, columns))
        names, places = self._fields.names, (made.positions.tolist(), made.owners.tolist())
        rows = zip(*(columns[name] for name in names), strict=True)
        each = [
            self._transformed(dict(zip(names, row, strict=True)), position, owner)
            for row, position, owner in zip(rows, *places, strict=True)
        ]
        transformed = [self._fields.assemble(values) for values in each]
        return Batch(transformed, lambda: self._outputs.batch_of(each))
