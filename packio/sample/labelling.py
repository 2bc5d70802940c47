"""What a label is: the one place that decides, for the cells of all sources and all containers.

====================  ==========================================================================
int, bool             ints, as they are
float                 ints if all are whole, else (N, 1) float32
text                  true and false: 0 and 1; else positions in the sorted names
tuple of numbers      (N, k) int64, or float32 if any is a float; of one number: that number
tuples of ints        of several lengths: (N, classes) float32, 1 at each position in the tuple
tuple of texts        (N, classes) float32, 1 for each name in the tuple, else 0
====================  ==========================================================================

A label is missing if it is None, NaN, one of the texts in `_MISSING`, or a tuple with None or NaN
in it. The names of classes that the user or the source gives are never missing.
"""

from __future__ import annotations

import ast
import functools
import json
import math
import os
import re
from array import array
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from packio.errors import OptionError, SourceError

Where = Callable[["int | None"], str]  # position of a sample → its place; None → the source

# A number as JSON writes it and Python's numbers hold it; 007 and 1_000 are no numbers.
is_number = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d{1,40})?([eE][-+]?\d{1,2})?", re.ASCII).fullmatch
_is_long = re.compile(r"-?[1-9]\d{18,19}", re.ASCII).fullmatch
_is_whole = re.compile(r"[+-]?\d{1,20}", re.ASCII).fullmatch
_is_comma_number = re.compile(r"-?\d+(,\d+)+(\.\d+)?", re.ASCII).fullmatch

_MISSING = frozenset(("", "nan", "na", "n/a", "#na", "#n/a", "<na>", "null", "none"))
_TRUTH = {"true": True, "false": False}
_SHOWN = 5  # names in a message
_MOST_FLOAT = float(np.finfo(np.float32).max)
_MOST_POSITIONS = 1 << 14  # classes that lists of positions may have, if nobody names the classes


class Labels(NamedTuple):
    """Labels of the samples that have one."""

    values: list[int] | np.ndarray | None = None  # or (N, k) float32 or int64; None: no sample has
    classes: Sequence[str] = ()
    # Position of a sample without a label beside others that have one → the reason; not in `values`
    missing: dict[int, str] = {}  # noqa: RUF012 (never changed)
    remark: str = ""  # what the user should read


def is_missing(value: Any, names: Collection[str] = ()) -> bool:
    """Tell whether a value is no label; one of the names of classes may be "none"."""
    if isinstance(value, str):
        return value.strip().lower() in _MISSING and value.strip() not in names
    if isinstance(value, tuple):
        return any(part is None or part != part for part in value)  # noqa: PLR0124 (NaN)
    return value is None or bool(value != value)  # noqa: PLR0124 (NaN)


def class_names(where: str, found: Iterable[str], given: Sequence[str] | None) -> list[str]:
    """Return the names that give the labels: the given names, or the names found, sorted."""
    if given is None:
        return sorted(set(found))
    unknown = sorted(set(found) - set(given))
    if unknown:
        shown = ", ".join(ascii(name)[1:-1] for name in unknown[:_SHOWN])
        raise SourceError(
            f"{where}: {len(unknown)} class(es) that --classes-from does not name: {shown}"
        )
    return list(given)


class Distinct:
    """Values of a column; equal values are kept once."""

    def __init__(self) -> None:
        self.codes: array[int] = array("q")  # of each sample, the position of its value in `values`
        self._seen: dict[Hashable, int] = {}

    @property
    def values(self) -> list[Any]:
        return list(self._seen)

    def extend(self, values: Iterable[Hashable]) -> None:
        seen = self._seen
        self.codes.extend([seen.setdefault(value, len(seen)) for value in values])

    def first(self, code: int) -> int:
        return self.codes.index(code)


def labels(
    column: Distinct, values: Sequence[Any], place: Where, *, classes: Sequence[str] | None = None,
    names: Sequence[str] | None = None, hot: bool = False,
) -> Labels:  # fmt: skip
    """Make labels of the values of a column, one for each code; the module says how.

    `classes` are the names that the user gives, `names` those of ints if the source says them: the
    int -1 is then missing. With `hot`, lists may be ``[0, 1, 0]`` of three names, else ``[1]``.
    """
    known = {*(classes or ()), *(names or ())}
    values = [
        _as_list(value, place, column.first(i)) if isinstance(value, str) and value not in known
        else value for i, value in enumerate(values)
    ]  # fmt: skip
    absent = [
        is_missing(value, known) or bool(names and type(value) is int and value == -1)
        for value in values
    ]
    missing: dict[int, str] = {}
    if any(absent):
        kept = [i for i, code in enumerate(column.codes) if not absent[code]]
        if not kept:
            return Labels(remark=f"{place(None)}: no sample has a label: packed without labels")
        for i, code in enumerate(column.codes):
            if absent[code]:
                found = f" ({_short(values[code])})" if values[code] else ""
                missing[i] = f"{place(i)}: no label{found}, others have one"
        there = [i for i, is_absent in enumerate(absent) if not is_absent]
        number_of = {code: i for i, code in enumerate(there)}
        rest = Distinct()
        rest.codes.extend([number_of[column.codes[i]] for i in kept])
        column, values = rest, [values[i] for i in there]
        place = _moved(place, kept)
    made, given = _number(_Column(column, values, place, classes, names), hot=hot)
    remark = ""
    if isinstance(made, np.ndarray) and made.dtype == np.float32 and made.shape[1] == 1:
        at = next((i for i, v in enumerate(values) if not _is_whole_number(v)), 0)
        remark = (
            f"{place(None)}: took labels as numbers (regression), float32, as there is "
            f"{_short(values[at])} at {place(column.first(at))}"
        )
    elif isinstance(made, list) and not known and (separator := _separator({*given})):
        remark = (
            f"{place(None)}: names of classes have {separator!r} between names of other classes; "
            f"for several labels of an image, say --label-sep {separator!r}"
        )
    elif not given and len({len(value) for value in values if isinstance(value, tuple)}) > 1:
        remark = (
            f"{place(None)}: took lists of several lengths as positions of classes: 0 or 1 for "
            f"each of {np.shape(made)[1]}; --classes-from names the classes"
        )
    elif classes is None and names is None:
        remark = remark_on_order(given)
    return Labels(made, given, missing, remark)


def remark_on_order(names: Sequence[str]) -> str:
    """A remark if the names of classes are numbers, and others than their labels; else empty."""
    moved = [n for i, n in enumerate(names) if n.isdecimal() and n.isascii() and int(n) != i]
    if not moved or not all(name.isdecimal() for name in names):
        return ""
    return (
        f"classes are sorted as text: class {moved[0]!a} has the label {names.index(moved[0])}; "
        "for other labels, name the classes in their order by --classes-from FILE, one a line"
    )


def _as_list(text: str, place: Where, position: int) -> Any:
    """The list that a text is in JSON or Python, as ``['a', 'b']``; any other text as it is."""
    if not (text.strip()[:1] == "[" and text.strip()[-1:] == "]"):
        return text
    try:
        return hashable(ast.literal_eval(text.strip()))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise SourceError(
            f"{place(position)}: the label {_short(text)} seems to be a list; expected it as JSON "
            "writes lists; or name all classes by --classes-from"
        ) from None


def _separator(names: Collection[str]) -> str:
    """What separates names of classes in other names, as ``cat|dog`` of cat and dog; or ""."""
    for separator in "|;, ":
        parts = [[p.strip() for p in n.split(separator)] for n in names if separator in n]
        if any({*part} <= {*names} for part in parts):
            return separator
    return ""


def _moved(place: Where, kept: Sequence[int]) -> Where:
    return lambda position: place(None if position is None else kept[position])


def _is_whole_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and value == value // 1


_Numbered = tuple["list[int] | np.ndarray", list[str]]  # and the names of the classes


class _Column(NamedTuple):
    """The values that labels are made of, none missing; and what `labels` was told of them."""

    codes: Distinct
    values: Sequence[Any]
    place: Where
    classes: Sequence[str] | None
    names: Sequence[str] | None

    def locate(self, value: int) -> str:
        return self.place(self.codes.first(value))

    def positions(self, of_values: Sequence[int]) -> list[int]:
        return [of_values[code] for code in self.codes.codes]


def _number(column: _Column, *, hot: bool) -> _Numbered:
    values, classes, names = column.values, column.classes, column.names
    kinds = {type(value) for value in values}
    if tuple in kinds and (hot or not names) and all(map(_is_single, values)):
        values = [value[0] if isinstance(value, tuple) else value for value in values]
        kinds = {type(value) for value in values}
    known = {*(classes or ()), *(names or ())}
    if (
        kinds == {str}
        and not {*values} <= known
        and all(value.strip().lower() in _TRUTH for value in values)
    ):
        values, kinds = [number(value) for value in values], {bool}
    if kinds <= {int, bool, float} and (bool not in kinds or {*values} <= {0, 1}):
        if all(map(_is_whole_number, values)):
            return _ints(column._replace(values=[int(value) for value in values]))
        return _vectors(column._replace(values=[(float(value),) for value in values]))
    if kinds == {str}:
        found = class_names(column.place(None), values, classes)
        order = {name: i for i, name in enumerate(found)}
        return column.positions([order[value] for value in values]), found
    if kinds == {tuple}:
        column = column._replace(values=values)
        return _hot(column) if hot and names and _are_hot(column) else _lists(column)
    of = {type(value): i for i, value in enumerate(values)}
    shown = ", ".join(
        f"{kind.__name__} {_short(values[i])} at {column.locate(i)}" for kind, i in of.items()
    )
    raise SourceError(
        f"{column.place(None)}: labels: {shown}; expected numbers, names, or lists of them, all "
        "alike"
    )


def _is_single(value: Any) -> bool:
    if isinstance(value, tuple):
        return len(value) == 1 and isinstance(value[0], (int, float))
    return isinstance(value, (int, float))


def _ints(column: _Column) -> _Numbered:
    _, values, place, classes, names = column
    known = names or classes
    for i, number in enumerate(values):
        if not -(1 << 63) <= number < 1 << 63 or (known and not 0 <= number < len(known)):
            among = f"0..{len(known) - 1}: there are {len(known)} classes" if known else "64 bits"
            raise SourceError(
                f"{column.locate(i)}: the label is {_short(number)}; expected {among}"
            )
    if names and classes is not None:
        known = class_names(place(None), names, classes)
        return column.positions([known.index(names[number]) for number in values]), known
    return column.positions(values), list(known or [])


def _lists(column: _Column) -> _Numbered:
    """Lists of numbers as vectors; lists of names, or of positions in `names`, as many-hot rows."""
    codes, values, place, classes, names = column
    kinds = {type(part) for value in values for part in value}
    unnamed = not names and not classes and kinds == {int}
    if kinds <= {int, float, bool} and kinds and not names:
        lengths = {len(value) for value in values}
        if kinds != {int} or (lengths == {len(classes)} if classes else len(lengths) == 1):
            return _vectors(column)
        most = max(part for value in values for part in value)
        names = classes or [f"{i:08d}" for i in range(min(most, _MOST_POSITIONS) + 1)]
    if names and kinds <= {int}:
        for i, value in enumerate(values):
            if len(set(value)) < len(value) or not all(0 <= part < len(names) for part in value):
                raise SourceError(
                    f"{column.locate(i)}: the label is {_short(list(value))}; expected "
                    f"different positions of classes, 0..{len(names) - 1}"
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
    return rows[codes.codes], [] if unnamed else known


def _are_hot(column: _Column) -> bool:
    """Whether lists have a number (0, 1, or floats) for each name, and no positions."""
    values, names = column.values, column.names or ()
    parts = {part for value in values for part in value}
    if not parts or any(isinstance(part, str) for part in parts):
        return False
    has_floats = any(isinstance(part, float) for part in parts)
    if (has_floats or parts <= {0, 1}) and all(len(value) == len(names) for value in values):
        return True
    for i, value in enumerate(values):
        if has_floats or len(set(value)) < len(value) or not set(value) <= {*range(len(names))}:
            raise SourceError(
                f"{column.locate(i)}: the label is {_short(list(value))}; there are "
                f"{len(names)} classes: expected a 0 or 1 for each class in all labels, or "
                "different positions of classes, or names"
            )
    return False


def _hot(column: _Column) -> _Numbered:
    codes, values, place, classes, names = column
    known = class_names(place(None), names or (), names if classes is None else classes)
    rows = np.zeros((len(values), len(known)), np.float32)
    rows[:, [known.index(name) for name in names or ()]] = values
    return rows[codes.codes], known


def _vectors(column: _Column) -> _Numbered:
    codes, values, _, classes, names = column
    known = list((classes if classes is not None else names) or [])
    expected = len(known) if classes else len(values[0])
    is_named = bool(known) and len(known) == expected
    are_ints = all(isinstance(part, int) for value in values for part in value)
    dtype = np.int64 if are_ints and not is_named else np.float32
    for i, value in enumerate(values):
        if len(value) != expected:
            raise SourceError(
                f"{column.locate(i)}: {len(value)} numbers as label; expected {expected}"
            )
        for part in value:
            where = f"{column.locate(i)}: the label {_short(value)}"
            if dtype is np.float32:
                check_fits(part, where)
            elif not -(1 << 63) <= part < 1 << 63:
                raise SourceError(f"{where}: {part} does not fit 64 bits")
    return np.array(values, dtype)[codes.codes], known if is_named else []


def labels_of_keys(keys: Sequence[bytes], regex: str, classes: Sequence[str] | None) -> Labels:
    """Make labels of a regular expression's group ``label``, or only group, or match in keys."""
    try:
        pattern = re.compile(regex)
    except re.error as error:
        raise OptionError(f"label_regex={regex!r}: {error}") from error
    group: Any = "label" if "label" in pattern.groupindex else min(pattern.groups, 1)
    if group == 1 < pattern.groups:
        raise OptionError(f"label_regex={regex!r}: {pattern.groups} groups; name one (?P<label>…)")
    found = [pattern.search(os.fsdecode(key)) for key in keys]
    if not any(found):
        first = f", as {keys[0]!a}" if keys else ""
        raise OptionError(f"label_regex={regex!r} matches none of {len(keys)} paths{first}")
    column = Distinct()
    column.extend(match[group] or "" if match else "" for match in found)

    def place(position: int | None) -> str:
        return f"label_regex={regex!r}" + ("" if position is None else f" on {keys[position]!a}")

    return labels(column, parse_texts(column, place, classes), place, classes=classes)


def labels_of_meta(
    metas: Iterable[Mapping[str, Any] | None], name: str, place: Where,
    classes: Sequence[str] | None = None,
) -> Labels:  # fmt: skip
    """Make labels of a member of metadata."""
    if not name:
        return Labels()
    column, known = Distinct(), set[str]()
    for meta in metas:
        known.update(meta or ())
        column.extend([hashable((meta or {}).get(name))])
    if name not in known:
        shown = f"there are {', '.join(sorted(known)[:20])}" if known else "there is no metadata"
        raise OptionError(f"{place(None)}: label_col={name!r} is not in the metadata; {shown}")
    return labels(column, column.values, place, classes=classes)


class JSONObject(str):
    """A value that is no label: its kind says so in the error."""

    __slots__ = ()


def hashable(value: Any) -> Hashable:
    """A value of JSON, lists as tuples."""
    if isinstance(value, list):
        return tuple(map(hashable, value))
    return JSONObject(json.dumps(value)) if isinstance(value, dict) else value


def check_fits(value: float, where: str) -> None:
    """Refuse a number that float32 changes by more than rounding."""
    if -(1 << 24) <= value <= 1 << 24:
        return
    is_exact = isinstance(value, int) or (abs(value) < 1 << 53 and value == value // 1)
    if abs(value) > _MOST_FLOAT or (is_exact and int(np.float32(value)) != value):
        raise SourceError(
            f"{where}: float32 cannot hold {_short(value)}; if the labels are numbers of classes "
            "or of things, make all of them whole numbers; else scale them"
        )


def parse_texts(column: Distinct, place: Where, classes: Sequence[str] | None) -> list[Any]:
    """The values of a column of text: numbers if all are, or missing; names if in `classes`."""
    names, named = [text.strip() for text in column.values], {*(classes or ())}
    there = [i for i, name in enumerate(names) if not is_missing(name, named)]
    own = {names[i] for i in there}
    if not own <= named and all(number(name) is not None for name in own):
        return [name if is_missing(name, named) else number(name) for name in names]
    if classes is not None:
        return names
    odd = [i for i in there if not _is_whole(names[i]) and type(number(names[i])) is not float]
    # One cell such as ``?`` would else turn the numbers 0, 1, …, 10 into names, sorted as text.
    count = len(there) - len(odd)
    is_named = re.compile(r"[^\W\d_]" if count else r"[^\W_]|^\[").search  # "[": a list
    unclear = [i for i in odd if len(odd) < count or not is_named(names[i])]
    if unclear and len(unclear) < len(there):
        raise SourceError(
            f"{place(column.first(unclear[0]))}: the label {_short(names[unclear[0]])}; {count} of "
            f"{len(there)} different labels are numbers; expected all, or names with letters; if "
            "it means no label, leave it empty; if a class, name all classes by --classes-from"
        )
    decimal = [i for i in there if _is_comma_number(names[i])]
    if decimal and all(_is_comma_number(name) or is_number(name) for name in own):
        raise SourceError(
            f"{place(column.first(decimal[0]))}: the label {_short(names[decimal[0]])}, a number "
            "with a comma; expected 0.5 and 1000, or name all classes by --classes-from"
        )
    return names


@functools.lru_cache(1 << 16)
def number(value: Any) -> Any:
    """The number or truth value in a cell; NaN if the cell is missing, None if it is no number."""
    if is_missing(value):
        return math.nan
    if isinstance(value, str):
        text = value.strip().removeprefix("+")
        if is_number(text) or _is_long(text):
            return json.loads(text)
        return _TRUTH.get(text.lower())
    return value if isinstance(value, (bool, int, float)) else None


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
