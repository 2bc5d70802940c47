"""What sources of rows share: usual names of columns, labels, keys and metadata."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import os
import re
import uuid
from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from packio.errors import SourceError
from packio.sources import _classes

IMAGE_NAMES = ("image", "img", "pixel_values", "jpg", "jpeg", "png", "webp", "image_bytes", "bytes")
LABEL_NAMES = (
    "label", "labels", "class", "cls", "classes", "class_name", "class_label", "category", "target",
    "targets", "class_id", "class_idx", "label_id", "fine_label", "y",
)  # fmt: skip
MASK_NAMES = (
    "mask", "segmentation_mask", "seg_mask", "segmentation", "seg_map", "semantic_mask",
    "annotation", "seg",
)  # fmt: skip

Labels = tuple["list[int] | np.ndarray | None", list[str]]  # and the names of the classes
Place = Callable[["int | None"], str]  # position → place of the sample; None → the source

_is_odd = re.compile(r"//|/\.\.?(/|$)|/$").search  # of an absolute path
_TIMES = (dt.date, dt.time, dt.timedelta, decimal.Decimal, uuid.UUID)


def guess(columns: Iterable[str], usual: Sequence[str]) -> str | None:
    """Find the column whose name comes first in a list of usual names, in any case; or None."""
    plain: dict[str, str] = {}
    for column in columns:
        plain.setdefault(re.sub(r"[\s-]+", "_", column.strip()).lower(), column)
    return next((plain[name] for name in usual if name in plain), None)


class Column:
    """Values of a column; equal values are kept once.

    Attributes:
        codes: For each sample, the position of its value in `values`.
    """

    def __init__(self) -> None:
        self.codes = array("q")
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
    column: Column,
    values: Sequence[Any],
    place: Place,
    *,
    classes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
) -> Labels:
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

    Raises:
        SourceError: a column has several kinds of labels, a label is missing, or a name is unknown
            to `classes`.
    """
    kinds = {type(value) for value in values}
    number = {int, bool}
    if kinds <= {type(None)} or (names and set(values) == {-1}):  # -1: Hugging Face's "unknown"
        return None, []
    if kinds <= number:
        return _ints(column, values, place, classes, names)
    if kinds <= {*number, float, type(None)} and float in kinds:
        numbers = [math.nan if value is None else float(value) for value in values]
        return _vectors(column, [(n,) for n in numbers], place, classes, names)
    if kinds == {str}:
        known = _classes.names(place(None), values, classes)
        order = {name: i for i, name in enumerate(known)}
        positions = [order[value] for value in values]
        return [positions[code] for code in column.codes], known
    if kinds <= {tuple, type(None)}:
        return _tuples(column, [value or () for value in values], place, classes, names)
    if type(None) in kinds:
        raise SourceError(f"{place(column.first(values.index(None)))}: no label, others have one")
    of = {type(value): i for i, value in enumerate(values)}
    shown = ", ".join(
        f"{kind.__name__} {_short(values[i])} at {place(column.first(i))}" for kind, i in of.items()
    )
    raise SourceError(
        f"{place(None)}: labels: {shown}; expected numbers, names, or lists of them, all alike"
    )


def told(columns: Sequence[str], found: Labels) -> str:
    """Say which columns labels come from."""
    if not columns or found[0] is None:
        return "none as label" + (f" ({columns[0]!r} is blank)" if columns else "")
    classes = f" ({len(found[1]):,} classes)" if found[1] else ""
    return f"{', '.join(map(repr, columns))} as label{classes}"


def _ints(
    column: Column,
    values: Sequence[int],
    place: Place,
    classes: Sequence[str] | None,
    names: Sequence[str] | None,
) -> Labels:
    known = names or classes
    numbers = [int(value) for value in values]
    for i, number in enumerate(numbers):
        if not -(1 << 63) <= number < 1 << 63 or (known and not 0 <= number < len(known)):
            expected = (
                f"0..{len(known) - 1}: there are {len(known)} classes" if known else "64 bits"
            )
            raise SourceError(
                f"{place(column.first(i))}: the label is {_short(number)}; expected {expected}"
            )
    if names and classes is not None:
        known = _classes.names(place(None), names, classes)
        numbers = [known.index(names[number]) for number in numbers]
    return [numbers[code] for code in column.codes], list(known or [])


def _tuples(
    column: Column,
    values: Sequence[tuple[Any, ...]],
    place: Place,
    classes: Sequence[str] | None,
    names: Sequence[str] | None,
) -> Labels:
    kinds = {type(part) for value in values for part in value}
    if kinds <= {int, float, bool} and kinds and not names:
        return _vectors(column, values, place, classes, names)
    if names and kinds <= {int}:
        inside = all(0 <= part < len(names) for value in values for part in value)
        if not inside:
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
    known = _classes.names(place(None), found, names if classes is None else classes)
    order = {name: i for i, name in enumerate(known)}
    rows = np.zeros((len(values), len(known)), np.float32)
    for row, value in zip(rows, values, strict=True):
        row[[order[part] for part in value]] = 1
    return rows[column.codes], known


def _vectors(
    column: Column,
    values: Sequence[tuple[float, ...]],
    place: Place,
    classes: Sequence[str] | None,
    names: Sequence[str] | None,
) -> Labels:
    lengths = [len(value) for value in values]
    known = classes if classes is not None else names
    expected = len(known) if classes is not None and known else lengths[0]
    for i, length in enumerate(lengths):
        if length != expected:
            raise SourceError(
                f"{place(column.first(i))}: {length} numbers as label; expected {expected}"
            )
    known = known if known and len(known) == expected else []
    return np.array(values, np.float32)[column.codes], list(known)


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def relative(paths: Sequence[str], root: str | os.PathLike[str]) -> tuple[str, list[bytes]]:
    """Make keys of paths; return the folder that the keys are relative to, and the keys.

    The folder is the root. If a path leads out of the root, the folder is the one that root and
    paths share. Paths are compared as text: links are not followed.

    Args:
        paths: Absolute, or relative to the root.
        root: A folder.
    """
    root, text = os.fspath(root), "\n".join(("", *paths, ""))
    if any(odd in text for odd in ("\n/", "\n.", "/.", "//", "/\n")):  # a tenth of a regex's time
        root = os.path.abspath(root)
        full = [path if path[:1] == "/" else os.path.join(root, path) for path in paths]
        full = [os.path.normpath(path) if _is_odd(path) else path for path in full]
        if not all(path.startswith(os.path.join(root, "")) for path in full):
            root = os.path.commonpath({root, *(path.rpartition("/")[0] or "/" for path in full)})
        skipped = len(os.path.join(root, ""))
        paths = [path[skipped:] for path in full]
    return root, [path.encode("utf-8", "surrogateescape") for path in paths]


def keys_of(paths: Sequence[Any]) -> list[bytes] | None:
    """Make keys of the paths of images; absolute paths become relative to their shared folder.

    Returns:
        None if a path is missing, leads out of its folder, or is there twice.
    """
    if not all(isinstance(path, str) and path and "\0" not in path for path in paths):
        return None
    is_absolute = all(path.startswith("/") for path in paths)
    shared = os.path.commonpath({os.path.dirname(p) for p in paths}) if is_absolute else "/-"
    root, keys = relative(paths, shared)
    return keys if root == shared and len(set(keys)) == len(keys) else None


def meta(values: dict[str, Any]) -> bytes:
    """Encode metadata as JSON: dates and decimals as text, NaN as null.

    Raises:
        SourceError: JSON cannot hold a value.
    """
    text = json.dumps(_plain(values), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, _TIMES):
        return str(value)
    if callable(getattr(value, "tolist", None)):  # numpy's and torch's
        return _plain(value.tolist())
    raise SourceError(f"{type(value).__name__} {_short(value)}; JSON cannot hold it")
