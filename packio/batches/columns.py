"""Columns: the values of one field of a batch, in one tensor where they are alike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch

from packio.batches.plan import Plan
from packio.images import tensors
from packio.system.threads import Threads

Column = torch.Tensor | list[Any]  # (N, …), or N values


class Made(NamedTuple):
    """One field of a batch.

    Attributes:
        views: One column a view: (N, …), or a list of N values where sizes or types differ. A
            field that no crop touches has a single column.
        errors: Slot → what is wrong with that sample; its values mean nothing.
    """

    views: list[Column]
    errors: dict[int, Exception]


def make(
    plan: Plan, one: Callable[[int], Sequence[Any]], threads: Threads | None, but: Collection[int]
) -> Made:
    """Make a field of a batch, one sample after the other.

    Args:
        plan: Of the field.
        one: Makes the values of the sample in a slot, one a view.
        threads: Threads that work; None: this one.
        but: Slots to leave out.
    """
    made: list[Sequence[Any]] = [()] * len(plan.rows)

    def work(slot: int) -> None:
        made[slot] = one(slot)

    errors = plan.make_each(work, threads, but)
    bad = {*errors, *but}
    good = [values for slot, values in enumerate(made) if slot not in bad]
    nothing = [None] * len(good[0]) if good else [None]
    views = zip(*(nothing if slot in bad else v for slot, v in enumerate(made)), strict=True)
    return Made([together(list(view), bad) for view in views], errors)


def together(values: list[Any], bad: Collection[int] = ()) -> Column:
    """One tensor of some values if all are tensors of one shape and type, else the list.

    Args:
        values: Of the samples.
        bad: Slots whose values do not matter.
    """
    good = [value for slot, value in enumerate(values) if slot not in bad]
    if not good or not all(isinstance(value, torch.Tensor) for value in good):
        return values
    if len({(value.shape, value.dtype) for value in good}) > 1:
        return values
    batch = tensors.new_batch((len(values), *good[0].shape), good[0].dtype)
    for slot, value in enumerate(values):
        if slot not in bad:
            batch[slot] = value
    return batch
