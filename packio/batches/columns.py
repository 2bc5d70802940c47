"""Columns: the values of one field of a batch, in one tensor where they are alike."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from packio.errors import DecodeError, IntegrityError
from packio.images import tensors
from packio.packs.rows import RowList
from packio.system.threads import Threads, each

_ALIGNED = 64  # bytes
FieldColumn = torch.Tensor | list[Any]  # (N, …), or N values


class Made(NamedTuple):
    """One field of a batch.

    Attributes:
        views: One column a view: (N, …), or a list of N values where sizes or types differ. A
            field that no crop touches has a single column.
        errors: Slot → what is wrong with that sample; its values mean nothing.
    """

    views: list[FieldColumn]
    errors: dict[int, Exception]


def make_each(
    rows: RowList, work: Callable[[int], None], threads: Threads | None, but: Collection[int] = ()
) -> dict[int, Exception]:
    """Call ``work`` with each slot, in the order in which the values lie in the files.

    Args:
        threads: Threads that work; None: this one.

    Returns:
        Slot → the DecodeError or IntegrityError that ``work`` raised.
    """
    errors: dict[int, Exception] = {}

    def work_on(slots: Iterable[int]) -> None:
        for slot in slots:
            try:
                work(slot)
            except (DecodeError, IntegrityError) as error:
                errors[slot] = error

    order = rows.file_order()
    each(work_on, [slot for slot in order if slot not in but] if but else order, threads)
    return errors


def make(
    rows: RowList,
    one: Callable[[int], Sequence[Any]],
    threads: Threads | None,
    but: Collection[int],
) -> Made:
    """Make a field of a batch, one sample after the other.

    Args:
        one: Makes the values of the sample in a slot, one a view.
        threads: Threads that work; None: this one.
    """
    made: list[Sequence[Any]] = [()] * len(rows)

    def work(slot: int) -> None:
        made[slot] = one(slot)

    errors = make_each(rows, work, threads, but)
    bad = {*errors, *but}
    good = [values for slot, values in enumerate(made) if slot not in bad]
    nothing = [None] * len(good[0]) if good else [None]
    views = zip(*(nothing if slot in bad else v for slot, v in enumerate(made)), strict=True)
    return Made([together(list(view), bad) for view in views], errors)


def together(values: list[Any], bad: Collection[int] = ()) -> FieldColumn:
    """One tensor of some values if all are tensors of one shape and type, else a list of them."""
    good = [value for slot, value in enumerate(values) if slot not in bad]
    if not good or not all(isinstance(value, torch.Tensor) for value in good):
        return values
    if len({(value.shape, value.dtype) for value in good}) > 1:
        return apart(values)
    batch = tensors.new_batch((len(values), *good[0].shape), good[0].dtype)
    for slot, value in enumerate(values):
        if slot not in bad:
            batch[slot] = value
    return batch


def apart(values: list[Any]) -> list[Any]:
    """A list of values for another process, if this one is a DataLoader's worker.

    Each storage of a tensor takes a descriptor and a mapping in both processes; a batch of a
    thousand images would have more than a process may. So they become views of one tensor.
    """
    slots = [slot for slot, value in enumerate(values) if isinstance(value, torch.Tensor)]
    if len(slots) < 2 or torch.utils.data.get_worker_info() is None:
        return values
    ends = list(itertools.accumulate(-(-values[slot].nbytes // _ALIGNED) for slot in slots))
    room, found = tensors.new_batch((ends[-1] * _ALIGNED,), torch.uint8), list(values)
    for slot, end in zip(slots, ends, strict=True):
        value = values[slot]
        begin = (end - -(-value.nbytes // _ALIGNED)) * _ALIGNED
        view = room[begin : begin + value.nbytes].view(value.dtype).view(value.shape)
        found[slot] = view.copy_(value)
    return found
