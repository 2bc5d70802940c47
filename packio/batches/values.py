"""Fields that no crop touches: arrays, text and bytes, as they were packed."""

from __future__ import annotations

from typing import Any

import torch

from packio.packs.opening import Pack
from packio.packs.rows import Row
from packio.sample import fields
from packio.sample.record import Field

KINDS = ("array", "text", "bytes")


def make_one(pack: Pack, row: Row, name: str) -> Any:
    """The value of a field of one sample: a tensor, text or bytes; None if the sample has none.

    An array of a type that torch does not have, as of text or dates, stays a NumPy array.
    """
    if row.offset < 0:
        return None
    data = pack.read(row, name)
    with pack.naming(row, name):
        value = fields.decode(Field(pack.fields[name], data))
        return tensor(value) if pack.fields[name] == "array" else value


def tensor(array: Any) -> Any:
    """A NumPy array as a tensor of the same memory, if torch has its type."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    try:
        return torch.from_numpy(array)
    except TypeError:  # the type is none of torch's
        return array
