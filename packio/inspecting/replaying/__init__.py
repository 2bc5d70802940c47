"""Replay: which samples were in which step of a run, with which crops and flips, without a log.

The order of an epoch and all crops and flips are functions of seeds, epoch and position. So any
step of any rank can be computed from a state of the loader, or from what the state would say.
"""

from __future__ import annotations

import copy
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from packio.datasets.batching import BatchedDataset
from packio.errors import OptionError, PackioError, StateError
from packio.inspecting.replaying import packs, states
from packio.inspecting.replaying.replayed import Replay, ReplayedBatch, samples_of
from packio.loading import steps as spans
from packio.loading.loader import Loader
from packio.loading.orders import Replayable, sampler_of
from packio.loading.places import drawing, with_places
from packio.loading.sampling import LoaderOrder
from packio.loading.steps import Stretch

_Path = str | os.PathLike[str]
Data = Loader | torch.utils.data.Dataset[Any] | _Path | Sequence[_Path]
Steps = int | range | tuple[int, int]


def replay(
    data: Data,
    steps: Steps,
    *,
    state: Mapping[str, Any] | _Path | None = None,
    state_name: str | None = None,
    epoch: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    batch_size: int | None = None,
    drop_last: bool | None = None,
    seed: int | None = None,
    order_seed: int | None = None,
    shuffle: bool = True,
    window: int | None = None,
    sampler: Any = None,
    **options: Any,
) -> Replay:
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
            or before; or a checkpoint that holds it, of ``torch.save`` or JSON. It is not
            unpickled. None: of the loader as it is now; or there is none.
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
    span = _range(steps)
    epoch, rank, world_size, batch_size, seed, order_seed = (
        _whole(*each) for each in (
            ("epoch", epoch, 0), ("rank", rank, 0), ("world_size", world_size, 1),
            ("batch_size", batch_size, 1), ("seed", seed, None), ("order_seed", order_seed, None),
        )
    )  # fmt: skip
    loader = data if isinstance(data, Loader) else None
    if loader is not None and state is None:
        state = loader.state_dict()
    read = None if state is None else states.read(state, state_name)
    dataset, known = _dataset(data, options, read)
    batch_size = _of_batches(batch_size, sampler, read)
    sizes = _stretches(read, epoch, batch_size, world_size)
    epoch = read.epoch if epoch is None and read is not None else epoch
    if epoch is None:
        raise OptionError("epoch=None: without a state, say epoch=")
    only = _only_rank(read, drawing(dataset)) if seed is None else None
    seed = _seed(seed, read, drawing(dataset))
    chosen = _of_loader(loader, read) if sampler is None else _checked(sampler, read)
    if chosen is None:
        chosen = _order(dataset, read, seed, order_seed, sizes[-1], shuffle=shuffle, window=window)
    if drop_last is None:
        drop_last = read is not None and read.drop_last
    left_out = () if read is None else read.left_out
    run = _Run(_seeded(dataset, seed), chosen, sizes, left_out, epoch, drop_last)
    _check_end(run, max(span[0], span[-1]))
    batches = tuple(
        _batch(run, step, one, crops=known and only in (None, one))
        for step in span
        for one in _ranks(rank, spans.of_step(sizes, epoch, step, chosen.start_of))
    )
    return Replay(run.dataset, epoch, batches, chosen.order, seed)


class _Run(NamedTuple):
    """What a run is replayed from."""

    dataset: Any
    sampler: Replayable
    stretches: tuple[Stretch, ...]
    left_out: tuple[spans.Span, ...]
    epoch: int
    drop_last: bool


def _dataset(data: Data, options: dict[str, Any], state: states.State | None) -> tuple[Any, bool]:
    """The dataset, and whether its crops are those of the run."""
    if isinstance(data, (str, os.PathLike)):
        return packs.opened([data], options, state)
    if isinstance(data, (list, tuple)):
        return packs.opened(data, options, state)
    if options:
        raise OptionError(f"{next(iter(options))}=: the dataset that was handed over says it")
    dataset = with_places(data.dataset if isinstance(data, Loader) else data)
    own = getattr(drawing(dataset), "description", None)
    if own is not None:
        packs.warn_of_others(own["parts"], state)
    return dataset, True


def _whole(name: str, value: Any, least: int | None) -> int | None:
    """An argument that is a whole number, or None."""
    if value is None:
        return None
    try:
        found = operator.index(value)
    except TypeError as error:
        raise OptionError(f"{name}={value!r}: expected an int") from error
    if least is not None and found < least:
        raise OptionError(f"{name}={found}: expected an int of at least {least}")
    return found


def _of_batches(size: int | None, sampler: Any, state: states.State | None) -> int | None:
    """What a rank takes in a step: 1 if the sampler's positions are batches, else samples."""
    order = {} if state is None else state.order
    own = order.get("batch_size") if sampler is None else getattr(sampler, "batch_size", None)
    if own is None:
        return size
    if size not in (None, own):
        raise OptionError(f"batch_size={size}: the sampler's batches have {own} samples")
    return None if state is not None and state.stretches else 1


def _stretches(
    state: states.State | None, epoch: int | None, batch_size: int | None, world_size: int | None
) -> tuple[Stretch, ...]:
    """The sizes of the steps: those given, else those of the state."""
    told = () if state is None else state.stretches
    if told and batch_size is None and world_size is None:
        return told
    if told:
        start = told[-1] if epoch is None else spans.of_step(told, epoch, 0)
        batch_size = start.batch_size if batch_size is None else batch_size
        world_size = start.world_size if world_size is None else world_size
    if batch_size is None:
        raise OptionError("no state says how large a batch was; say batch_size=")
    return (Stretch(0, 0, 0, batch_size, 1 if world_size is None else world_size),)


def _seed(seed: int | None, state: states.State | None, dataset: Any) -> int | None:
    """The seed of crops and flips; None: there are none to draw."""
    if seed is not None:
        return seed
    if state is not None and state.seed is not None:
        return state.seed
    if getattr(dataset, "seeded", False):
        return int(dataset.seed)
    if isinstance(dataset, BatchedDataset) and not dataset._is_random:  # noqa: SLF001 (not for users)
        return None
    raise OptionError("seed=None: no state says the seed of crops and flips; say seed=")


def _of_loader(loader: Loader | None, state: states.State | None) -> Replayable | None:
    """The sampler of a loader, if it is packio's and has the order of the state."""
    if loader is None:
        return None
    parts: tuple[Any, ...] = (loader.batch_sampler, loader.sampler)
    found: Replayable | None = next((part for part in parts if isinstance(part, Replayable)), None)
    return found if found is None or state is None or found.order == state.order else None


def _checked(sampler: Any, state: states.State | None) -> Replayable:
    """A sampler that was handed over."""
    if not isinstance(sampler, Replayable):
        raise OptionError(
            f"sampler={type(sampler).__name__}: expected a sampler of packio's, as ShuffleSampler"
        )
    if state is not None and sampler.order != state.order:
        raise OptionError(
            f"the state is of another order: {dict(state.order)}; that of the "
            f"{type(sampler).__name__} is {sampler.order}"
        )
    return sampler


def _order(
    dataset: Any, state: states.State | None, seed: int | None, order_seed: int | None,
    size: Stretch, *, shuffle: bool, window: int | None,
) -> Replayable:  # fmt: skip
    """The sampler of the state's order, or the sampler that a `Loader` makes."""
    if state is not None:
        return sampler_of(state.order, dataset, drop_last=state.sampler_drop_last)
    if size.world_size > 1 or not shuffle:
        seed = 0
    if seed is None and order_seed is None:
        raise OptionError("seed=None: without a state, say seed= or order_seed=")
    return LoaderOrder(
        dataset, order_seed, lambda: seed or 0, shuffle=shuffle, window=window, rank=0,
        world_size=size.world_size,
    )  # fmt: skip


def _only_rank(state: states.State | None, dataset: Any) -> int | None:
    """The only rank whose crops are known: a dataset without a seed draws one on each rank."""
    if state is None or state.dataset is None or state.dataset.get("seeded") is not False:
        return None
    return None if getattr(dataset, "seeded", False) else state.rank


def _seeded(dataset: Any, seed: int | None) -> Any:
    """The same dataset with the seed of the run; what is beneath torch's Subsets is replaced."""
    made = copy.copy(dataset)
    if isinstance(made, torch.utils.data.Subset):
        made.dataset = _seeded(made.dataset, seed)
    elif isinstance(made, BatchedDataset) and seed is not None:
        made.seed = seed
    return made


def _range(steps: Steps) -> range:
    try:
        if isinstance(steps, range):
            found = steps
        elif isinstance(steps, (tuple, list)):
            first, last = map(operator.index, steps)
            found = range(first, last + 1)
        else:
            first = operator.index(steps)
            found = range(first, first + 1)
    except (TypeError, ValueError):
        found = range(0)
    if not found or min(found[0], found[-1]) < 0:
        raise OptionError(f"steps={steps!r}: expected a step from 0 on, or first and last step")
    return found


def _ranks(rank: int | None, size: Stretch) -> Iterable[int]:
    if rank is None:
        return range(size.world_size)
    if not 0 <= rank < size.world_size:
        were = "was 1 rank" if size.world_size == 1 else f"were {size.world_size} ranks"
        raise OptionError(f"rank={rank}: there {were}, from 0 on")
    return (rank,)


def _indices(run: _Run, step: int, rank: int) -> Sequence[Any] | None:
    """The indices of a batch; None: the epoch has ended before."""
    size = spans.of_step(run.stretches, run.epoch, step, run.sampler.start_of)
    position, carries = size.position_of(step), "batch_size" in run.sampler.order
    if position < (1 - size.world_size if carries else 0):
        raise StateError(f"epoch {run.epoch}, step {step}: no epoch has a position {position}")
    try:
        found: Iterator[Any] = run.sampler.batches_from(
            run.epoch, position, size.batch_size, rank=rank,
            world_size=size.world_size, drop_last=run.drop_last,
        )  # fmt: skip
        return next(found, None)
    except PackioError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # of hostile numbers
        raise StateError(f"epoch {run.epoch}, step {step}: no such place: {error!r}") from error


def _check_end(run: _Run, last: int) -> None:
    """Check that the epoch has a step, before others are computed."""
    if _indices(run, last, 0) is None:
        size = spans.of_step(run.stretches, run.epoch, last, run.sampler.start_of)
        raise OptionError(f"step {last}: {_end(run, size, last)}")


def _batch(run: _Run, step: int, rank: int, *, crops: bool) -> ReplayedBatch:
    indices = _indices(run, step, rank) or ()
    left_out = spans.is_left_out(run.left_out, run.epoch, step)
    return ReplayedBatch(
        run.epoch, step, rank, left_out, crops, samples_of(run.dataset, indices, crops=crops)
    )


def _end(run: _Run, size: Stretch, step: int) -> str:
    """What to say where an epoch has ended before a step."""
    count = run.sampler.end_of(run.epoch)
    total = size.step_at(count)
    if run.drop_last:
        total = size.step + (-(-(count - size.position) // size.world_size)) // size.batch_size
    if total < 1:
        return f"epoch {run.epoch} ends before it; steps are counted from 0 in each epoch"
    epoch, within = divmod(step, total)
    return (
        f"epoch {run.epoch} has {total:,} steps, 0 to {total - 1}, counted from 0 in each epoch; "
        f"step {step} from the beginning of the run would be step {within} of epoch {epoch}"
    )
