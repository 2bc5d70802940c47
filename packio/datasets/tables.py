"""Tables that name samples: of Arrow, pandas or Polars, or relations of DuckDB.

A table names a sample by its ``key``, or by ``index``, its position in the pack. With both, the
position counts, and the keys are compared: a table that was exported from another pack is refused.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from packio import registry
from packio.errors import OptionError
from packio.packs.opening import Pack
from packio.packs.querying import keys
from packio.packs.querying.columns import EXTRA

_POSITIONS = ("index", "position")  # names of a column of positions
_KEYS = ("key_bytes", "key")  # names of a column of keys
# What turns a table into one of Arrow: a method of Polars and DuckDB. All others go by the Arrow
# PyCapsule interface, https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html
_METHODS = ("to_arrow_table", "to_arrow")
_CAPSULES = ("__arrow_c_stream__", "__arrow_c_array__")


def is_table(value: Any) -> bool:
    """Tell whether a value is a table, and not an array or a list of integers."""
    if isinstance(value, (list, tuple, np.ndarray, range)):
        return False
    if hasattr(value, "read_next_batch"):  # a stream of Arrow's, as DuckDB's arrow() gives
        return True
    has_names = hasattr(value, "columns") or hasattr(value, "column_names")
    return has_names and any(hasattr(value, n) for n in (*_METHODS, *_CAPSULES, "iloc", "schema"))


class Wanted(NamedTuple):
    """What a table says.

    Attributes:
        positions: (n,) int64 in the pack; None: by their keys.
        keys: As bytes; None: by their positions.
    """

    positions: np.ndarray | None
    keys: Sequence[bytes] | None

    @staticmethod
    def of(table: Any) -> Wanted:
        """Read the columns of a table."""
        found = _arrow(table)
        names = list(found.column_names)
        position = next((name for name in _POSITIONS if name in names), None)
        key = next((name for name in _KEYS if name in names), None)
        if position is None and key is None:
            raise OptionError(
                f"subset: a table with the columns {', '.join(names)}; expected key, or index "
                "(position in the pack)"
            )
        return Wanted(
            None if position is None else _positions(found.column(position), position),
            None if key is None else _keys(found.column(key), key),
        )

    def __len__(self) -> int:
        return len(self.keys if self.positions is None else self.positions)  # type: ignore[arg-type]  # one of them is there

    def within(self, pack: Pack) -> np.ndarray:
        """Positions in a pack, (n,) int64."""
        if self.positions is None:
            return keys.positions(pack.index_file, self.keys or (), pack.path, shown=True)
        low, high = self.positions.min(initial=0), self.positions.max(initial=-1)
        if low < 0 or high >= len(pack):
            raise OptionError(f"subset: index {min(low, 0) or high} in the table; {pack.path} has "
                              f"{len(pack)} samples")  # fmt: skip
        if self.keys is not None:
            keys.check(pack.index_file, self.positions, self.keys, pack.path)
        return self.positions


def _arrow(table: Any) -> Any:
    arrow: Any = registry.require("pyarrow", EXTRA)
    if isinstance(table, arrow.Table):
        return table
    if isinstance(table, arrow.RecordBatch):
        return arrow.Table.from_batches([table])
    for name in _METHODS:
        if callable(make := getattr(table, name, None)):
            return arrow.table(made) if not isinstance(made := make(), arrow.Table) else made
    if any(hasattr(table, name) for name in _CAPSULES):
        return arrow.table(table)
    return arrow.Table.from_pandas(table, preserve_index=False)


def _positions(column: Any, name: str) -> np.ndarray:
    array = np.asarray(column.to_numpy())
    if column.null_count or (len(array) and array.dtype.kind not in "iu"):
        raise OptionError(f"subset: the column {name} has {column.type}, {column.null_count} "
                          "null; expected integers")  # fmt: skip
    found: np.ndarray = array.astype(np.int64)
    return found


def _keys(column: Any, name: str) -> list[bytes]:
    values = column.to_pylist()
    if not all(isinstance(value, (str, bytes)) for value in values):
        raise OptionError(f"subset: the column {name} has {column.type}; expected keys as text")
    return [os.fsencode(value) for value in values]


def within_part(found: np.ndarray, chosen: np.ndarray | None, where: object) -> np.ndarray:
    """Indices in a part of a pack of samples at positions in the pack.

    Args:
        found: (n,) int64 positions in the pack.
        chosen: Positions of the samples of the part, in its order; None: all of the pack.
    """
    if chosen is None:
        return found
    order = np.argsort(chosen, kind="stable")
    places = np.searchsorted(chosen, found, sorter=order)
    inside = places < len(chosen)
    indices: np.ndarray = order[np.where(inside, places, 0)] if len(chosen) else found * 0
    inside &= (chosen[indices] == found) if len(chosen) else False
    if not inside.all():
        raise OptionError(
            f"subset: {np.count_nonzero(~inside)} of {len(found)} samples in the table are not in "
            f"this part of {where}; take the whole dataset, or samples of the part only"
        )
    return indices
