"""Columns: the values of one field of a batch, in one tensor where they are alike.

Arrays of one shape and type, as latents, are each read into their place in the tensor of the batch.
Parsing the header of every array, and stacking the arrays afterwards, would take as long as reading
them: ``benchmarks/fields.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from packio.errors import DecodeError, IntegrityError
from packio.images import tensors
from packio.packs.opening import Pack
from packio.packs.table import Row, RowList
from packio.sample import fields
from packio.sample.record import Field
from packio.system.threads import Threads, each

_ALIGNED = 64  # bytes
FieldColumn = torch.Tensor | list[Any]  # (N, …), or N values


class BatchField(NamedTuple):
    views: list[FieldColumn]  # a column a view; a single one of a field that no crop touches
    errors: dict[int, Exception]  # slot → what is wrong with that sample; its values mean nothing


def make_each(
    rows: RowList, work: Callable[[int], None], threads: Threads | None, but: Collection[int] = ()
) -> dict[int, Exception]:
    """Call ``work`` with each slot, in the order in which the values lie in the files.

    Returns slot → the DecodeError or IntegrityError that ``work`` raised. Without threads this
    thread works; here as everywhere in this folder.
    """
    errors: dict[int, Exception] = {}

    def work_on(slots: Iterable[int]) -> None:
        for slot in slots:
            try:
                work(slot)
            except (DecodeError, IntegrityError) as error:
                errors[slot] = error

    each(work_on, [slot for slot in rows.file_order() if slot not in but], threads)
    return errors


def make(
    rows: RowList,
    one: Callable[[int], Sequence[Any]],
    threads: Threads | None,
    but: Collection[int],
) -> BatchField:
    """Make a field of a batch by ``one``, which makes a slot's values, one a view."""
    values: list[Sequence[Any]] = [()] * len(rows)

    def work(slot: int) -> None:
        values[slot] = one(slot)

    errors = make_each(rows, work, threads, but)
    bad = {*errors, *but}
    views = next((len(v) for slot, v in enumerate(values) if slot not in bad), 1)
    for slot in bad:
        values[slot] = [None] * views
    return BatchField([stack(list(view), bad) for view in zip(*values, strict=True)], errors)


def stack(values: list[Any], bad: Collection[int] = ()) -> FieldColumn:
    """One tensor of some values if all are tensors of one shape and type, else a list of them."""
    good = [value for slot, value in enumerate(values) if slot not in bad]
    are_tensors = good and all(isinstance(value, torch.Tensor) for value in good)
    if not are_tensors or len({(value.shape, value.dtype) for value in good}) > 1:
        return share(values)
    batch = tensors.new_batch((len(values), *good[0].shape), good[0].dtype)
    for slot, value in enumerate(values):
        if slot not in bad:
            batch[slot] = value
    return batch


def share(values: list[Any]) -> list[Any]:
    """Make a list of values fit for another process, if this one is a DataLoader's worker.

    Each storage of a tensor takes a descriptor and a mapping in both processes; a batch of a
    thousand images would have more than a process may. So they become views of one tensor.
    """
    slots = [slot for slot, value in enumerate(values) if isinstance(value, torch.Tensor)]
    if len(slots) < 2 or torch.utils.data.get_worker_info() is None:
        return values
    ends = list(itertools.accumulate(-(-values[slot].nbytes // _ALIGNED) for slot in slots))
    room, views = tensors.new_batch((ends[-1] * _ALIGNED,), torch.uint8), list(values)
    for slot, begin in zip(slots, [0, *ends], strict=False):
        value, start = values[slot], begin * _ALIGNED
        view = room[start : start + value.nbytes].view(value.dtype).view(value.shape)
        views[slot] = view.copy_(value)
    return views


def read_value(pack: Pack, row: Row, name: str) -> Any:
    """Read a field that no crop touches: a tensor, text or bytes; None if a sample has none."""
    if row.offset < 0:
        return None
    data = pack.read(row, name)
    with pack.naming(row, name):
        value = fields.decode(Field(pack.fields[name], data))
        return _as_tensor(value) if pack.fields[name] == "array" else value


def _as_tensor(array: Any) -> Any:
    """Turn an array into a tensor of the same memory; one of text or dates stays an array."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    try:
        return torch.from_numpy(array)
    except TypeError:  # the type is none of torch's
        return array


def make_arrays(
    pack: Pack, rows: RowList, name: str, threads: Threads | None, but: Collection[int]
) -> BatchField | None:
    """Make the arrays of a batch as one tensor (N, …). None if the arrays are not all alike."""
    good = [slot for slot in range(len(rows)) if slot not in but]
    lengths = {rows[slot].length if rows[slot].offset >= 0 else -1 for slot in good}
    if len(lengths) != 1 or -1 in lengths:
        return None
    try:
        first = pack.read(rows[good[0]], name)
        header = fields.array_header(first)
        like = _as_tensor(np.empty(0, header.dtype))
    except (DecodeError, IntegrityError):  # it is told where each array is made alone
        return None
    if header.fortran or not header.dtype.isnative or not isinstance(like, torch.Tensor):
        return None
    batch = tensors.new_batch((len(rows), *header.shape), like.dtype)
    flat = batch.view(len(rows), -1).numpy().view(np.uint8) if header.items else None
    head, start, different = first[: header.start], header.start, list[int]()

    def work(slot: int) -> None:
        data = first if slot == good[0] else pack.read(rows[slot], name)
        if data[:start] != head:
            different.append(slot)
        elif flat is not None:
            flat[slot] = np.frombuffer(data, np.uint8, offset=start)

    errors = make_each(rows, work, threads, but)
    return None if different else BatchField([batch], errors)
