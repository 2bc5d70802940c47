"""Choose samples of a pack by class, key or metadata."""

from __future__ import annotations

import difflib
import fnmatch
import json
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from packio.errors import KeyNotFoundError, OptionError
from packio.packs import opening

_CHUNK = 4096  # samples whose index rows are read at a time
_TEXTS = 1 << 16  # samples whose keys or metadata are read at a time

Labels = str | int | Iterable[str | int]  # class names, indices
Keys = str | bytes | Iterable[str | bytes]  # keys, globs
_Sought = tuple[opening.Pack, np.ndarray]  # (N,) bool: the samples that may still match


def selected(
    pack: opening.Pack, classes: Iterable[str] | None = None, split: str | None = None
) -> Iterator[np.ndarray]:
    """Go through the indices of a pack, or of some of its classes, in chunks of at most 4,096.

    Args:
        classes: Names of classes; None takes all samples. In a pack with vectors as labels, a
            sample is of every class whose entry is above 0.
        split: Name of a split; None takes all samples.

    Returns:
        An iterator of (n,) int64 arrays, n > 0, ascending.
    """
    wanted = None if classes is None else [class_index(pack, name) for name in classes]
    return _chunks(pack, wanted, None if split is None else pack.split(split))


def _chunks(
    pack: opening.Pack, wanted: list[int] | None, positions: np.ndarray | None
) -> Iterator[np.ndarray]:
    count = len(pack) if positions is None else len(positions)
    for start in range(0, count, _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, count))
        rows = rows if positions is None else positions[rows]
        if wanted is not None:
            rows = np.compress(_is_of(pack, rows, wanted), rows)
        if len(rows):
            yield rows


def _is_of(pack: opening.Pack, rows: np.ndarray, wanted: list[int]) -> np.ndarray:
    """Tell for each sample whether it is of one of the classes: (n,) bool."""
    labels = pack.take_labels(rows)
    if labels.ndim == 1:
        return np.isin(labels, wanted)
    found: np.ndarray = np.any(labels[:, wanted] > 0, axis=1)
    return found


def class_index(pack: opening.Pack, name: str) -> int:
    """Look up a class by name."""
    names = pack.classes if "label" in pack.index_file else []
    if name in names:
        return names.index(name)
    raise no_class(name, names, pack.path)


def no_class(name: str, names: Sequence[str], where: object) -> OptionError:
    """The error for a class that does not exist; its message has similar names."""
    if not names:
        return OptionError(f"{where}: no class {name!r}; its samples have no labels of classes")
    near = difflib.get_close_matches(name, names, 3) or [*names[:5], "…"][: len(names)]
    return OptionError(
        f"{where}: no class {name!r} among {len(names)}; there are: {', '.join(near)}"
    )


class Searched(NamedTuple):
    """Samples of a pack that are searched.

    Attributes:
        positions: (n,) int64, in any order.
    """

    pack: opening.Pack
    positions: np.ndarray
    label: Labels | None


def matching(
    parts: Sequence[Searched], key: Keys | None, meta: Mapping[str, Any]
) -> list[np.ndarray]:
    """Find the samples that match all conditions that are given.

    Args:
        parts: Of one pack or of several. A sample matches if it is of one of the part's classes,
            given by name or number; an empty list of classes matches nothing, None everything.
        key: Globs (`fnmatch.fnmatchcase`) or keys; a sample matches if it has one of them.
        meta: Name → the value that a sample has to have, or a function that tells whether a value
            matches. The value of a sample that has no such name is None.

    Returns:
        For each part, (n,) bool.
    """
    sought = []
    for pack, positions, label in parts:
        rows = np.zeros(len(pack), bool)
        rows[positions] = True
        if label is not None:
            _keep_labels(pack, rows, label)
        sought.append((pack, rows))
    if key is not None:
        _keep_keys(sought, key)
    if meta:
        _keep_meta(sought, meta)
    return [rows[part.positions] for part, (_, rows) in zip(parts, sought, strict=True)]


def none_has(
    count: int, expression: str | None, label: Labels | None, key: Keys | None,
    meta: Mapping[str, Any], where: object,
) -> OptionError:  # fmt: skip
    """The error if none of ``count`` samples matches."""
    wanted = {"label": label, "key": key, **meta}
    each = [f"{name}={value!r}" for name, value in wanted.items() if value is not None]
    asked = ", ".join([*([] if expression is None else [repr(expression)]), *each])
    return OptionError(f"{where}: none of {count} samples has {asked}")


def _keep_labels(pack: opening.Pack, rows: np.ndarray, label: Labels) -> None:
    if "label" not in pack.index_file:
        raise OptionError(f"label={label!r}: {pack.path} has no labels")
    each = _each(label, (str, int, np.integer), f"label={label!r}: expected names or numbers of "
                 "classes, one or a list of them")  # fmt: skip
    wanted = [class_index(pack, c) if isinstance(c, str) else operator.index(c) for c in each]
    shape = pack.index_file.column("label").shape
    size = shape[1] if len(shape) == 2 else None
    for number in wanted:
        if size is not None and not 0 <= number < size:
            raise OptionError(f"label={number}: {pack.path} has labels 0..{size - 1}")
    for start in range(0, len(rows), _CHUNK):
        some = start + np.flatnonzero(rows[start : start + _CHUNK])
        if len(some):
            rows[some] = _is_of(pack, some, wanted)


def _keep_keys(sought: Sequence[_Sought], key: Keys) -> None:
    each = _each(key, (str, bytes), f"key={key!r}: expected keys or globs as 'cats/*', text or "
                 "bytes, one or a list of them; metadata alone take a function")  # fmt: skip
    whole = [k for k in each if not re.search(rb"[*?[]", os.fsencode(k))]
    places = _places([pack for pack, _ in sought], whole)
    texts = _pattern([k for k in each if isinstance(k, str) and k not in whole])
    raw = _pattern([os.fsencode(k).decode("latin-1") for k in each
                    if isinstance(k, bytes) and k not in whole])  # fmt: skip

    def test(data: list[bytes]) -> list[bool]:
        return [
            (texts is not None and texts(os.fsdecode(d)) is not None)
            or (raw is not None and raw(d.decode("latin-1")) is not None)
            for d in data
        ]

    for (pack, rows), found in zip(sought, places, strict=True):
        kept = np.zeros_like(rows)
        kept[found] = True
        kept &= rows
        if texts is not None or raw is not None:
            globbed = rows & ~kept
            _keep(pack, "key", globbed, test)
            kept |= globbed
        np.logical_and(rows, kept, out=rows)


def _each(given: Any, kinds: tuple[type, ...], message: str) -> list[Any]:
    """The values that are given: one, or several."""
    if isinstance(given, kinds):
        return [given]
    values = list(given) if isinstance(given, Iterable) else [None]
    if all(isinstance(value, kinds) for value in values):
        return values
    raise OptionError(message)


def _places(found_in: Sequence[opening.Pack], keys: Sequence[str | bytes]) -> list[list[int]]:
    """Positions of keys in each of some packs."""
    places: list[list[int]] = [[] for _ in found_in]
    for key in keys:
        missing: list[KeyNotFoundError] = []
        for pack, positions in zip(found_in, places, strict=True):
            try:
                positions.append(pack.find(key))
            except KeyNotFoundError as error:
                missing.append(error)
        if len(missing) == len(found_in):
            raise missing[0]
    return places


def _pattern(globs: list[str]) -> Callable[[str], Any] | None:
    """One test for several globs; None without globs."""
    return re.compile("|".join(map(fnmatch.translate, globs))).match if globs else None


def _keep_meta(sought: Sequence[_Sought], meta: Mapping[str, Any]) -> None:
    have = [(pack, rows) for pack, rows in sought if "meta_data" in pack.index_file]
    if not have:
        raise OptionError(
            f"{next(iter(meta))}=: no metadata in {_paths(sought)}; expected a condition in SQL, "
            "label= or key="
        )
    seen: set[str] = set()
    tests = {name: v if callable(v) else _equals(v) for name, v in meta.items()}

    def test(data: list[bytes]) -> list[bool]:
        text = b"[" + b",".join(data) + b"]"
        values = cast("list[dict[str, Any]]", json.loads(text.decode("utf-8", "surrogatepass")))
        seen.update(*values)
        return [all(tests[name](value.get(name)) for name in tests) for value in values]

    there = any(rows.any() for _, rows in have)
    for pack, rows in sought:
        if "meta_data" in pack.index_file:
            _keep(pack, "meta", rows, test)
        elif not all(passes(None) for passes in tests.values()):
            rows[:] = False
    for name in meta:
        if there and name not in seen:
            near = difflib.get_close_matches(name, sorted(seen), 3) or sorted(seen)[:10]
            raise OptionError(
                f"{_paths(have)}: no metadata {name!r} in these samples; there are: "
                + ", ".join(near)
            )


def _paths(sought: Sequence[_Sought]) -> str:
    """The packs that are searched, for a message."""
    return ", ".join(str(path) for path in dict.fromkeys(pack.path for pack, _ in sought))


def _equals(wanted: Any) -> Callable[[Any], bool]:
    return lambda value: bool(value == wanted)


def _keep(
    pack: opening.Pack, column: str, rows: np.ndarray, test: Callable[[list[bytes]], Sequence[bool]]
) -> None:
    """Take the rows out whose text does not pass a test.

    Args:
        rows: (N,) bool, of all samples of the pack; changed in place.
    """
    offsets = pack.index_file.column(f"{column}_offsets")
    data = pack.index_file.column(f"{column}_data")
    for start in range(0, len(rows), _TEXTS):
        some = np.flatnonzero(rows[start : start + _TEXTS])
        if not len(some):
            continue
        edges = offsets.span(start, min(start + _TEXTS, len(rows)) + 1)
        text = data.span(int(edges[0]), int(edges[-1])).tobytes()
        first, last = ((edges[some + i] - edges[0]).tolist() for i in (0, 1))
        texts = [text[a:b] for a, b in zip(first, last, strict=True)]
        rows[start + some] = test(texts)
