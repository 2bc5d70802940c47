"""Arrays of one shape and type, as latents: each is read into its place in the tensor of the batch.

Parsing the header of every array, and stacking the arrays afterwards, would take as long as reading
them: ``benchmarks/fields.py``.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch

from packio.batches import values
from packio.batches.columns import Made, make_each
from packio.errors import DecodeError, IntegrityError
from packio.images import tensors
from packio.packs.opening import Pack
from packio.packs.rows import RowList
from packio.sample import fields
from packio.system.threads import Threads


def make(
    pack: Pack, rows: RowList, name: str, threads: Threads | None, but: Collection[int]
) -> Made | None:
    """Make the arrays of a batch as one tensor (N, …). None if the arrays are not all alike.

    Args:
        threads: Threads that read; None: this one.
    """
    good = [slot for slot in range(len(rows)) if slot not in but]
    if not good or len({rows[slot].length for slot in good}) > 1:
        return None
    if any(rows[slot].offset < 0 for slot in good):
        return None
    try:
        first = pack.read(rows[good[0]], name)
        header = fields.array_header(first)
        like = values.tensor(np.empty(0, header.dtype))
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
    return None if different else Made([batch], errors)
