"""Replay: which samples were in which step of a run, with which crops and flips, without a log.

The order of an epoch and all crops and flips are functions of seeds, epoch and position. So any
step of any rank can be computed from a state of the loader, or from what the state would say.
"""

from __future__ import annotations

import contextlib
import copy
import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from packio.datasets.dataset import Dataset
from packio.datasets.lookahead import unwrap_subset, wrap_subset
from packio.errors import OptionError, StateError
from packio.inspecting.replaying import states
from packio.inspecting.replaying.replayed import Replay, ReplayedBatch, describe_sample
from packio.loading import steps as spans
from packio.loading.bucketing import BucketSampler
from packio.loading.loader import Loader
from packio.loading.mixing import MixedSampler
from packio.loading.order import Order
from packio.loading.samplers import RepeatAugSampler, ShuffleSampler
from packio.loading.steps import Stretch

_Path = str | os.PathLike[str]
_SAMPLERS: dict[str, type[Order[Any]]] = {
    kind.__name__: kind for kind in (BucketSampler, MixedSampler, RepeatAugSampler, ShuffleSampler)
}
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
    if isinstance(data, Loader) and state is None:
        state = data.state_dict()
    read = states.read_state(state, state_name)
    dataset, known = _open(data, options, read)
    sizes = _find_stretches(read, epoch, batch_size, world_size, sampler)
    epoch = read.epoch if epoch is None else epoch
    if epoch is None:
        raise OptionError("epoch=None: without a state, say epoch=")
    source = unwrap_subset(dataset)
    is_own = read.dataset.get("seeded") is False and not getattr(source, "seeded", False)
    only = read.rank if seed is None and is_own else None  # each rank has drawn a seed
    seed = _find_seed(seed, read, source)
    chosen = _find_sampler(data, sampler, read, dataset)
    if chosen is None:
        if order_seed is None:
            order_seed = 0 if sizes[-1].world_size > 1 or not shuffle else seed
        if order_seed is None:
            raise OptionError("seed=None: without a state, say seed= or order_seed=")
        chosen = ShuffleSampler(
            dataset, order_seed, rank=0, world_size=1, shuffle=shuffle, window=window
        )
    dataset = _seed_copy(dataset, seed)
    run = _Run(chosen, sizes, epoch, read.drop_last if drop_last is None else drop_last)
    run.check_end(max(span[0], span[-1]))
    batches = []
    for step in span:
        left_out = spans.is_left_out(read.left_out, epoch, step)
        for one in _ranks(rank, run.size_of(step)):
            crops, indices = known and only in (None, one), run.indices(step, one) or ()
            samples = tuple(
                describe_sample(dataset, slot, drawn, crops=crops)
                for slot, drawn in enumerate(indices)
            )
            batches.append(ReplayedBatch(epoch, step, one, left_out, crops, samples))
    return Replay(dataset, epoch, tuple(batches), chosen.order, seed)


class _Run(NamedTuple):
    sampler: Order[Any]
    stretches: tuple[Stretch, ...]
    epoch: int
    drop_last: bool

    def size_of(self, step: int) -> Stretch:
        return spans.find_stretch(self.stretches, self.epoch, step, self.sampler.start_of)

    def indices(self, step: int, rank: int) -> Sequence[Any] | None:
        """The indices of a batch; None: the epoch has ended before."""
        size, at = self.size_of(step), f"epoch {self.epoch}, step {step}"
        position, carries = size.position_of(step), "batch_size" in self.sampler.order
        if position < (1 - size.world_size if carries else 0):
            raise StateError(f"{at}: no epoch has a position {position}")
        with states.refusing(f"{at} of the state"):
            found = self.sampler.batch_at(
                self.epoch, position, size.batch_size, rank=rank, world_size=size.world_size
            )
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
        epoch, within = divmod(step, max(total, 1))
        hint = f"; step {step} of the whole run would be step {within} of epoch {epoch}"
        raise OptionError(
            f"step {step}: epoch {self.epoch} has {max(total, 0):,} steps, counted from 0 in each "
            f"epoch{hint if total > 0 else ''}"
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
        states.check_parts(own["parts"], state)
    return dataset, True


def _read_int(name: str, value: Any, least: int | None = None) -> int | None:
    try:
        found = None if value is None else operator.index(value)
    except TypeError as error:
        raise OptionError(f"{name}={value!r}: expected an int") from error
    if found is not None and least is not None and found < least:
        raise OptionError(f"{name}={found}: expected an int of at least {least}")
    return found


def _find_stretches(
    state: states.State, epoch: int | None, batch_size: int | None, world_size: int | None,
    sampler: Any,
) -> tuple[Stretch, ...]:  # fmt: skip
    """The sizes of the steps: those given, else those of the state."""
    told, own = state.stretches, getattr(sampler, "batch_size", None)
    if sampler is None:
        own = (state.order or {}).get("batch_size")
    if own is not None:  # the sampler's positions are batches
        if batch_size not in (None, own):
            raise OptionError(f"batch_size={batch_size}: the sampler's batches have {own} samples")
        batch_size = None if told else 1
    if told and batch_size is None and world_size is None:
        return told
    start = Stretch(0, 0, 0, 0, 1)
    if told:
        start = told[-1] if epoch is None else spans.find_stretch(told, epoch, 0)
    batch_size = batch_size or start.batch_size
    if not batch_size:
        raise OptionError("no state says how large a batch was; say batch_size=")
    return (Stretch(0, 0, 0, batch_size, world_size or start.world_size),)


def _find_seed(seed: int | None, state: states.State, dataset: Any) -> int | None:
    """The seed of crops and flips; None: there are none to draw."""
    if seed is not None or state.seed is not None:
        return state.seed if seed is None else seed
    if getattr(dataset, "seeded", False):
        return int(dataset.seed)
    if isinstance(dataset, Dataset) and not dataset._is_random:  # noqa: SLF001 (not for users)
        return None
    raise OptionError("seed=None: no state says the seed of crops and flips; say seed=")


def _find_sampler(data: Data, sampler: Any, state: states.State, dataset: Any) -> Order[Any] | None:
    """The sampler that was handed over, of the loader, or of the state; None: no one says it."""
    order = state.order
    if sampler is not None:
        if not isinstance(sampler, Order):
            raise OptionError(
                f"sampler={type(sampler).__name__}: expected a sampler of packio's, as "
                "ShuffleSampler"
            )
        return sampler if order is None else sampler.check({**order, "epoch": 0, "consumed": 0})
    for one in (data.batch_sampler, data.sampler) if isinstance(data, Loader) else ():
        if isinstance(one, Order) and order in (None, one.order):
            return one
    if order is None:
        return None
    name = str(order.get("sampler"))
    if name not in _SAMPLERS:
        raise OptionError(
            f"sampler={name!r}: not a sampler of packio's; in Python hand over the loader or the "
            "sampler: packio.replay(loader, …)"
        )
    with states.refusing(f"the order of the {name} in the state"):
        return _SAMPLERS[name].of_order(order, dataset, drop_last=state.sampler_drop_last)


def _seed_copy(dataset: Any, seed: int | None) -> Any:
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
