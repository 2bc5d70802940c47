"""Labels made of the values of a column: of numbers, of names, or of lists."""

from __future__ import annotations

import functools
import json
import math
import re
from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from packio.errors import SourceError
from packio.sources._class_folders import class_names

LabelsAndNames = tuple["list[int] | np.ndarray | None", list[str]]  # and the names of the classes
Where = Callable[["int | None"], str]  # position of a sample → its place; None → the source

# A number as JSON writes it and Python's numbers hold it; 007 and 1_000 are no numbers.
is_number = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d{1,40})?([eE][-+]?\d{1,2})?", re.ASCII).fullmatch
is_whole = re.compile(r"[+-]?\d{1,18}", re.ASCII).fullmatch


class Distinct:
    """Values of a column; equal values are kept once.

    Attributes:
        codes: For each sample, the position of its value in `values`.
    """

    def __init__(self) -> None:
        self.codes: array[int] = array("q")
        self._seen: dict[Hashable, int] = {}

    @property
    def values(self) -> list[Any]:
        """The different values, in the order of their first appearance."""
        return list(self._seen)

    def extend(self, values: Iterable[Hashable]) -> None:
        """Append values."""
        seen = self._seen
        self.codes.extend([seen.setdefault(value, len(seen)) for value in values])

    def first(self, code: int) -> int:
        """Position of the first sample with a value."""
        return self.codes.index(code)


def labels(
    column: Distinct,
    values: Sequence[Any],
    place: Where,
    *,
    classes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    hot: bool = False,
) -> LabelsAndNames:
    """Make labels of the values of a column.

    ====================  ==========================================================
    int, bool             ints, as they are
    float                 (N, 1) float32; None is NaN
    str                   positions in the sorted names
    tuple of numbers      (N, k) float32
    tuple of str          (N, classes) float32, 1 for each name in the tuple, else 0
    None alone            no labels
    ====================  ==========================================================

    Args:
        column: Has the code of each sample.
        values: The value of each code.
        place: Names the place of a sample.
        classes: Names that give the labels; None takes the names found.
        names: Name of each int, if the source says it.
        hot: If there are `names`, lists of numbers may also have one number for each name, as
            ``[0, 1, 0]`` of three names. Otherwise they have positions in the names, as ``[1]``.

    Raises:
        SourceError: a column has several kinds of labels, a label is missing, or a name is unknown
            to `classes`.
    """
    kinds = {type(value) for value in values}
    if kinds <= {type(None)} or (names and set(values) == {-1}):  # -1: Hugging Face's "unknown"
        return None, []
    if kinds <= {int, bool}:
        found, known = _ints(column, values, place, classes, names)
        return [found[code] for code in column.codes], known
    if kinds <= {int, bool, float, type(None)} and float in kinds:
        values = [(math.nan if value is None else float(value),) for value in values]
        return _vectors(column, values, place, classes, names)
    if kinds == {str}:
        known = class_names(place(None), values, classes)
        order = {name: i for i, name in enumerate(known)}
        positions = [order[value] for value in values]
        return [positions[code] for code in column.codes], known
    if kinds <= {tuple, type(None)}:
        values = [value or () for value in values]
        if hot and names and _are_hot(column, values, place, names):
            return _hot(column, values, place, classes, names)
        return _lists(column, values, place, classes, names)
    if type(None) in kinds:
        raise SourceError(f"{place(column.first(values.index(None)))}: no label, others have one")
    of = {type(value): i for i, value in enumerate(values)}
    shown = ", ".join(
        f"{kind.__name__} {_short(values[i])} at {place(column.first(i))}" for kind, i in of.items()
    )
    raise SourceError(
        f"{place(None)}: labels: {shown}; expected numbers, names, or lists of them, all alike"
    )


def _ints(
    column: Distinct, values: Sequence[int], place: Where, classes: Sequence[str] | None,
    names: Sequence[str] | None,
) -> tuple[list[int], list[str]]:  # fmt: skip
    """The label of each value, and the names of the classes."""
    known = names or classes
    for i, number in enumerate(values):
        if not -(1 << 63) <= number < 1 << 63 or (known and not 0 <= number < len(known)):
            among = f"0..{len(known) - 1}: there are {len(known)} classes" if known else "64 bits"
            raise SourceError(
                f"{place(column.first(i))}: the label is {_short(number)}; expected {among}"
            )
    if names and classes is not None:
        known = class_names(place(None), names, classes)
        return [known.index(names[number]) for number in values], known
    return [int(value) for value in values], list(known or [])


def _lists(
    column: Distinct, values: Sequence[tuple[Any, ...]], place: Where,
    classes: Sequence[str] | None, names: Sequence[str] | None,
) -> LabelsAndNames:  # fmt: skip
    """Lists of numbers as vectors; lists of names, or of positions in `names`, as many-hot rows."""
    kinds = {type(part) for value in values for part in value}
    if kinds <= {int, float, bool} and kinds and not names:
        return _vectors(column, values, place, classes, names)
    if names and kinds <= {int}:
        if not all(0 <= part < len(names) for value in values for part in value):
            raise SourceError(
                f"{place(None)}: labels beyond 0..{len(names) - 1}: there are {len(names)} classes"
            )
        values = [tuple(names[part] for part in value) for value in values]
    elif not kinds <= {str}:
        shown = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise SourceError(
            f"{place(None)}: lists of {shown} as labels; expected all numbers, or all names"
        )
    found = {part for value in values for part in value}
    known = class_names(place(None), found, names if classes is None else classes)
    order = {name: i for i, name in enumerate(known)}
    rows = np.zeros((len(values), len(known)), np.float32)
    for row, value in zip(rows, values, strict=True):
        row[[order[part] for part in value]] = 1
    return rows[column.codes], known


def _are_hot(
    column: Distinct, values: Sequence[tuple[Any, ...]], place: Where, names: Sequence[str]
) -> bool:
    """Tell whether lists of numbers have one number for each name, and no positions.

    The numbers are 0 or 1, or any floats. Lists such as ``[0, 1, 0]``, which repeat a position and
    do not all have as many numbers as there are names, make no sense.
    """
    parts = {part for value in values for part in value}
    if not parts or any(isinstance(part, str) for part in parts):
        return False
    has_floats = any(isinstance(part, float) for part in parts)
    if (has_floats or parts <= {0, 1}) and all(len(value) == len(names) for value in values):
        return True
    for i, value in enumerate(values):
        if has_floats or len(set(value)) < len(value) or not set(value) <= {*range(len(names))}:
            raise SourceError(
                f"{place(column.first(i))}: the label is {_short(list(value))}; there are "
                f"{len(names)} classes: expected a 0 or 1 for each class in all labels, or "
                "different positions of classes, or names"
            )
    return False


def _hot(
    column: Distinct, values: Sequence[tuple[Any, ...]], place: Where,
    classes: Sequence[str] | None, names: Sequence[str],
) -> LabelsAndNames:  # fmt: skip
    """Lists of one number for each name, as rows in the order of the classes."""
    known = list(names) if classes is None else class_names(place(None), names, classes)
    rows = np.zeros((len(values), len(known)), np.float32)
    rows[:, [known.index(name) for name in names]] = values
    return rows[column.codes], known


def _vectors(
    column: Distinct, values: Sequence[tuple[float, ...]], place: Where,
    classes: Sequence[str] | None, names: Sequence[str] | None,
) -> LabelsAndNames:  # fmt: skip
    """Lists of numbers as vectors, all of one length."""
    known = list((classes if classes is not None else names) or [])
    expected = len(known) if classes else len(values[0])
    for i, value in enumerate(values):
        if len(value) != expected:
            raise SourceError(
                f"{place(column.first(i))}: {len(value)} numbers as label; expected {expected}"
            )
    return np.array(values, np.float32)[column.codes], known if len(known) == expected else []


def of_texts(column: Distinct, place: Where, classes: Sequence[str] | None) -> list[Any]:
    """The values of a column of text: as numbers if all are, or blank; else as names.

    Texts that are all names of `classes` are names, also ``"1"``. A blank text is None.

    Args:
        column: Has texts only.
        place: Names the place of a sample.
        classes: Names that the user gives, or None.

    Raises:
        SourceError: see `names_of`.
    """
    numbers = [number(text) for text in column.values]
    if None in numbers or all(map(math.isnan, numbers)) or {*column.values} <= {*(classes or ())}:
        return names_of(column, place, classes)
    return [n if text.strip() else None for text, n in zip(column.values, numbers, strict=True)]


def names_of(column: Distinct, place: Where, classes: Sequence[str] | None) -> list[Any]:
    """The values of a column of text as names; None for a blank text.

    The arguments are those of `of_texts`.

    Raises:
        SourceError: more than half of the different texts are whole numbers, and others are not.
            One cell such as ``n/a`` would otherwise turn the numbers 0, 1, …, 10 into class names,
            and sort them as text: 0, 1, 10, 2.
    """
    names = [text.strip() or None for text in column.values]
    odd = [i for i, name in enumerate(names) if name and not is_whole(name)]
    count = len(names) - names.count(None)
    if odd and len(odd) * 2 < count and classes is None:
        raise SourceError(
            f"{place(column.first(odd[0]))}: the label {_short(names[odd[0]])}; "
            f"{count - len(odd)} of {count} different labels are whole numbers; expected all, or "
            "name all classes by --classes-from"
        )
    return names


@functools.lru_cache(1 << 16)
def number(value: Any) -> Any:
    """The number in a cell; NaN if the cell is blank, None if it is no number."""
    if value is None or (isinstance(value, str) and value.strip().lower() in ("", "nan")):
        return math.nan
    if isinstance(value, str):
        return json.loads(value) if is_number(value.strip()) else None
    return value if isinstance(value, (bool, int, float)) else None


def choice(
    table: str, role: str, column: str, label_columns: Sequence[str], found: LabelsAndNames,
    fields: Mapping[str, tuple[str, str | None]], meta: Sequence[str],
) -> str:  # fmt: skip
    """Say which columns of a table were taken; `role`, "path" or "image", is that of `column`."""
    label = f"{', '.join(map(repr, label_columns))} as label"
    if not label_columns or found[0] is None:
        label = "none as label" + "".join(f" ({name!r} is blank)" for name in label_columns[:1])
    elif found[1]:
        label += f" ({len(found[1]):,} classes)"
    more = "".join(f", {origin!r} as {name}" for name, (origin, _) in fields.items())
    more += f", {', '.join(map(repr, meta))} as meta" if meta else ""
    return (
        f"{table}: took column {column!r} as {role}, {label}{more}; "
        f"--{role}-col and --label-col say otherwise"
    )


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
