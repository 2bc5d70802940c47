"""Replay: which samples were in which step of a run, with which crops and flips, without a log.

The order of an epoch and all crops and flips are functions of seeds, epoch and position. So any
step of any rank can be computed from a state of the loader, or from what the state would say.
"""

from __future__ import annotations

import contextlib
import copy
import operator
import os
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from packio.datasets.dataset import Dataset
from packio.datasets.lookahead import unwrap_subset, wrap_subset
from packio.errors import OptionError, PackioError, StateError
from packio.inspecting.replaying import states
from packio.inspecting.replaying.replayed import Replay, ReplayedBatch, describe_sample
from packio.loading import steps as spans
from packio.loading.bucketing import BucketSampler
from packio.loading.loader import Loader
from packio.loading.mixing import MixedSampler
from packio.loading.order import Order
from packio.loading.samplers import DefaultSampler, RepeatAugSampler, ShuffleSampler
from packio.loading.steps import Stretch

_Path = str | os.PathLike[str]
_SAMPLERS: tuple[type[Order[Any]], ...] = (
    BucketSampler, MixedSampler, RepeatAugSampler, ShuffleSampler,
)  # fmt: skip
Data = Loader | torch.utils.data.Dataset[Any] | _Path | Sequence[_Path]
Steps = int | range | tuple[int, int]


def replay(
    data: Data, steps: Steps, *, state: Mapping[str, Any] | _Path | None = None,
    state_name: str | None = None, epoch: int | None = None, rank: int | None = None,
    world_size: int | None = None, batch_size: int | None = None, drop_last: bool | None = None,
    seed: int | None = None, order_seed: int | None = None, shuffle: bool = True,
    window: int | None = None, sampler: Any = None, **options: Any,
) -> Replay:  # fmt: skip
    """Tell which samples were in some steps of an epoch, with which crops and flips.

    What an argument does not say, the state says. A state of `Loader` says everything. Give an
    argument to replay a run that had another value.

    Args:
        data: What was trained on: the `Loader` as it was made, the dataset, or the path of the pack
            (several: of a `ConcatPacks`).
        steps: A step, or a range of steps; (first, last) has the last one, too. A step is a batch
            of each rank. Steps are counted from 0 in each epoch, as ``enumerate(loader)`` counts
            them in an epoch that is not interrupted.
        state: What ``loader.state_dict()`` returned, at any time of the run after these steps began
            or before; or a checkpoint that holds it beside tensors and plain values, of
            ``torch.save`` or JSON. It is not unpickled. None: of the loader as it is now; or there
            is none.
        state_name: Which state, if there are several in the checkpoint, as "loader".
        epoch: Number of the epoch. None: the epoch of the state.
        rank: Whose batches. None: those of all ranks.
        world_size: Number of ranks; 1 if nothing says it.
        batch_size: Samples of a batch of one rank.
        drop_last: Whether a last, smaller batch is left out.
        seed: Of the crops and flips: that of the dataset.
        order_seed: Of the order. None: as `Loader` chooses: the seed if there is one rank, and 0
            if there are several.
        shuffle, window: As of `Loader`; where neither a state nor a sampler gives the order.
        sampler: The sampler of the run, as `MixedSampler`, where no state gives the order.
        options: Of the dataset, as ``crop=packio.RandomResizedCrop(224), hflip=0.5``, where data is
            a path.

    Returns:
        The batches, one for each step and rank, in this order. `Replay` writes them as a page, and
        loads the very batches again.

    Raises:
        OptionError: something is missing, arguments contradict the state, or the epoch has no such
            step.
        StateError: the checkpoint holds no state.
        NotAPackError, NoSuchPackError: see `packio.open`.
    """
    span = _read_steps(steps)
    epoch, rank = _read_int("epoch", epoch, 0), _read_int("rank", rank, 0)
    world_size = _read_int("world_size", world_size, 1)
    batch_size = _read_int("batch_size", batch_size, 1)
    seed, order_seed = _read_int("seed", seed), _read_int("order_seed", order_seed)
    loader = data if isinstance(data, Loader) else None
    if loader is not None and state is None:
        state = loader.state_dict()
    read = states.read(state, state_name)
    dataset, known = _open(data, options, read)
    batch_size = _find_batch_size(batch_size, sampler, read)
    sizes = _find_stretches(read, epoch, batch_size, world_size)
    epoch = read.epoch if epoch is None else epoch
    if epoch is None:
        raise OptionError("epoch=None: without a state, say epoch=")
    source = unwrap_subset(dataset)
    is_own = read.dataset.get("seeded") is False and not getattr(source, "seeded", False)
    only = read.rank if seed is None and is_own else None  # each rank has drawn a seed
    seed = _find_seed(seed, read, source)
    chosen = _find_sampler(loader, sampler, read)
    if chosen is None:
        chosen = _make_sampler(
            dataset, read, seed, order_seed, sizes[-1], shuffle=shuffle, window=window
        )
    drop_last = read.drop_last if drop_last is None else drop_last
    run = _Run(_seed_copy(dataset, seed), chosen, sizes, epoch, drop_last)
    run.check_end(max(span[0], span[-1]))
    batches = []
    for step in span:
        left_out = spans.is_left_out(read.left_out, epoch, step)
        for one in _ranks(rank, run.size_of(step)):
            crops, indices = known and only in (None, one), run.indices(step, one) or ()
            samples = tuple(
                describe_sample(run.dataset, slot, drawn, crops=crops)
                for slot, drawn in enumerate(indices)
            )
            batches.append(ReplayedBatch(epoch, step, one, left_out, crops, samples))
    return Replay(run.dataset, epoch, tuple(batches), chosen.order, seed)


class _Run(NamedTuple):
    """What a run is replayed from."""

    dataset: Any
    sampler: Order[Any]
    stretches: tuple[Stretch, ...]
    epoch: int
    drop_last: bool

    def size_of(self, step: int) -> Stretch:
        return spans.of_step(self.stretches, self.epoch, step, self.sampler.start_of)

    def indices(self, step: int, rank: int) -> Sequence[Any] | None:
        """The indices of a batch; None: the epoch has ended before."""
        size, at = self.size_of(step), f"epoch {self.epoch}, step {step}"
        position, carries = size.position_of(step), "batch_size" in self.sampler.order
        if position < (1 - size.world_size if carries else 0):
            raise StateError(f"{at}: no epoch has a position {position}")
        try:
            found = self.sampler.batch_at(
                self.epoch, position, size.batch_size, rank=rank, world_size=size.world_size
            )
        except PackioError:
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # hostile numbers
            raise StateError(f"{at}: no such place: {error!r}") from error
        is_left_out = self.drop_last and not self.sampler.yields_batches
        return found if found and not (is_left_out and len(found) < size.batch_size) else None

    def check_end(self, step: int) -> None:
        """Check that the epoch has a step, before others are computed."""
        if self.indices(step, 0) is not None:
            return
        size, count = self.size_of(step), self.sampler.end_of(self.epoch)
        total = size.step_at(count)
        if self.drop_last:
            total = size.step + (-(-(count - size.position) // size.world_size)) // size.batch_size
        counted = "counted from 0 in each epoch"
        if total < 1:
            raise OptionError(
                f"step {step}: epoch {self.epoch} ends before it; steps are {counted}"
            )
        epoch, within = divmod(step, total)
        raise OptionError(
            f"step {step}: epoch {self.epoch} has {total:,} steps, 0 to {total - 1}, {counted}; "
            f"step {step} from the beginning of the run would be step {within} of epoch {epoch}"
        )


def _open(data: Data, options: dict[str, Any], state: states.State) -> tuple[Any, bool]:
    """The dataset, and whether its crops are those of the run."""
    if isinstance(data, (str, os.PathLike, list, tuple)):
        paths = data if isinstance(data, (list, tuple)) else [data]
        return states.open_packs(paths, options, state)
    if options:
        raise OptionError(f"{next(iter(options))}=: the dataset that was handed over says it")
    dataset = wrap_subset(data.dataset if isinstance(data, Loader) else data)
    own = getattr(unwrap_subset(dataset), "description", None)
    if own is not None:
        states.warn_of_others(own["parts"], state)
    return dataset, True


def _read_int(name: str, value: Any, least: int | None = None) -> int | None:
    try:
        found = None if value is None else operator.index(value)
    except TypeError as error:
        raise OptionError(f"{name}={value!r}: expected an int") from error
    if found is not None and least is not None and found < least:
        raise OptionError(f"{name}={found}: expected an int of at least {least}")
    return found


def _find_batch_size(size: int | None, sampler: Any, state: states.State) -> int | None:
    """What a rank takes in a step: 1 if the sampler's positions are batches, else samples."""
    own = (state.order or {}).get("batch_size")
    own = own if sampler is None else getattr(sampler, "batch_size", None)
    if own is None:
        return size
    if size not in (None, own):
        raise OptionError(f"batch_size={size}: the sampler's batches have {own} samples")
    return None if state.stretches else 1


def _find_stretches(
    state: states.State, epoch: int | None, batch_size: int | None, world_size: int | None
) -> tuple[Stretch, ...]:
    """The sizes of the steps: those given, else those of the state."""
    told = state.stretches
    if told and batch_size is None and world_size is None:
        return told
    if told:
        start = told[-1] if epoch is None else spans.of_step(told, epoch, 0)
        batch_size = start.batch_size if batch_size is None else batch_size
        world_size = start.world_size if world_size is None else world_size
    if batch_size is None:
        raise OptionError("no state says how large a batch was; say batch_size=")
    return (Stretch(0, 0, 0, batch_size, 1 if world_size is None else world_size),)


def _find_seed(seed: int | None, state: states.State, dataset: Any) -> int | None:
    """The seed of crops and flips; None: there are none to draw."""
    if seed is not None or state.seed is not None:
        return state.seed if seed is None else seed
    if getattr(dataset, "seeded", False):
        return int(dataset.seed)
    if isinstance(dataset, Dataset) and not dataset._is_random:  # noqa: SLF001 (not for users)
        return None
    raise OptionError("seed=None: no state says the seed of crops and flips; say seed=")


def _find_sampler(loader: Loader | None, sampler: Any, state: states.State) -> Order[Any] | None:
    """The sampler that was handed over, or that of the loader if it has the order of the state."""
    if sampler is None:
        parts: tuple[Any, ...] = () if loader is None else (loader.batch_sampler, loader.sampler)
        for own in parts:
            if isinstance(own, Order):
                return own if state.order in (None, own.order) else None
        return None
    if not isinstance(sampler, Order):
        raise OptionError(
            f"sampler={type(sampler).__name__}: expected a sampler of packio's, as ShuffleSampler"
        )
    if state.order is not None and sampler.order != state.order:
        raise OptionError(
            f"the state is of another order: {dict(state.order)}; that of the "
            f"{type(sampler).__name__} is {sampler.order}"
        )
    return sampler


def _make_sampler(
    dataset: Any, state: states.State, seed: int | None, order_seed: int | None,
    size: Stretch, *, shuffle: bool, window: int | None,
) -> Order[Any]:  # fmt: skip
    """The sampler of the state's order, or the sampler that a `Loader` makes."""
    if state.order is not None:
        return _of_order(state.order, dataset, drop_last=state.sampler_drop_last)
    if size.world_size > 1 or not shuffle:
        seed = 0
    if seed is None and order_seed is None:
        raise OptionError("seed=None: without a state, say seed= or order_seed=")
    return DefaultSampler(
        dataset, order_seed, lambda: seed or 0, shuffle=shuffle, window=window, rank=0,
        world_size=size.world_size,
    )  # fmt: skip


def _of_order(order: Mapping[str, Any], dataset: Any, *, drop_last: bool) -> Order[Any]:
    """Make the sampler of an order that a state tells."""
    name = str(order.get("sampler"))
    kind = next((kind for kind in _SAMPLERS if kind.__name__ == name), None)
    if kind is None:
        raise OptionError(
            f"sampler={name!r}: not a sampler of packio's; in Python hand over the loader or the "
            "sampler: packio.replay(loader, …)"
        )
    try:
        return kind.of_order(order, dataset, drop_last=drop_last)
    except OptionError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise OptionError(
            f"order={reprlib.repr(dict(order))}: no order of a {name}: {error!r}"
        ) from error


def _seed_copy(dataset: Any, seed: int | None) -> Any:
    """The same dataset with the seed of the run; what is beneath torch's Subsets is replaced."""
    made = copy.copy(dataset)
    if isinstance(made, torch.utils.data.Subset):
        made.dataset = _seed_copy(made.dataset, seed)
    elif isinstance(made, Dataset) and seed is not None:
        made.seed = seed
    return made


def _read_steps(steps: Steps) -> range:
    found = steps if isinstance(steps, range) else range(0)
    with contextlib.suppress(TypeError, ValueError):  # an empty range is refused
        if not isinstance(steps, range):
            first, last = steps if isinstance(steps, (tuple, list)) else (steps, steps)
            found = range(operator.index(first), operator.index(last) + 1)
    if not found or min(found[0], found[-1]) < 0:
        raise OptionError(f"steps={steps!r}: expected a step from 0 on, or first and last step")
    return found


def _ranks(rank: int | None, size: Stretch) -> Sequence[int]:
    if rank is None:
        return range(size.world_size)
    if not 0 <= rank < size.world_size:
        were = "was 1 rank" if size.world_size == 1 else f"were {size.world_size} ranks"
        raise OptionError(f"rank={rank}: there {were}, from 0 on")
    return (rank,)
