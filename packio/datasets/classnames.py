"""Classes of several packs: whether they agree, and the number of each class among all."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np

from packio.datasets.selection import Labels, no_class
from packio.errors import OptionError
from packio.packs.packs import Pack

_SHOWN = 5  # names of classes, in a message


def joined(
    packs: Sequence[Pack], labels: str, *, needed: bool
) -> tuple[list[str], list[np.ndarray | None]]:
    """Join the classes of packs.

    Args:
        packs: The packs.
        labels: "same": they have to agree. "by_name": the classes of all packs, each name once.
        needed: Whether labels are read. If not, classes may differ.

    Returns:
        Class names; and for each pack a table, (its classes,) int64, of the numbers that its
        classes have among these names; None if labels stay as they are.

    Raises:
        OptionError: classes or labels that cannot be joined, with what differs.
    """
    if labels not in ("same", "by_name"):
        raise OptionError(f"labels={labels!r}: expected 'same' or 'by_name'")
    names = [pack.classes for pack in packs]
    if needed:
        _check_forms(packs, labels)
    if labels == "by_name":
        for pack, own in zip(packs, names, strict=True):
            if not own:
                raise OptionError(f"labels='by_name': {pack.path} has no names of classes")
        together = list(dict.fromkeys(name for own in names for name in own))
        places = {name: i for i, name in enumerate(together)}
        return together, [np.array([places[name] for name in own], np.int64) for own in names]
    different = [i for i, own in enumerate(names) if own != names[0]]
    if different and needed:
        raise OptionError(_difference(packs[0], packs[different[0]]))
    return [] if different else names[0], [None] * len(packs)


def renamed(labels: np.ndarray, table: np.ndarray, count: int) -> np.ndarray:
    """Turn labels of a pack into numbers of all classes; numbers without a class stay the same.

    Args:
        labels: (n,) int64, or (n, k) float32.
        table: (k,) as `joined` returns it.
        count: Number of all classes.

    Returns:
        (n,) int64, or (n, count) float32 with 0 for the classes that the pack does not have.
    """
    if labels.ndim == 2:
        vectors = np.zeros((len(labels), count), labels.dtype)
        vectors[:, table] = labels
        return vectors
    known = (labels >= 0) & (labels < len(table))
    return np.where(known, table[np.where(known, labels, 0)], labels)


def sought(
    label: Labels, packs: Sequence[Pack], tables: Sequence[np.ndarray | None], count: int
) -> list[list[int]]:
    """Look up classes in each of several packs.

    Args:
        label: Names, or numbers among all classes.
        packs: The packs.
        tables: As `joined` returns them.
        count: Number of all classes.

    Returns:
        For each pack its own numbers of the classes that it has.

    Raises:
        OptionError: no pack has a class of such a name.
    """
    each = [label] if isinstance(label, (str, int, np.integer)) else list(label)
    names = list(dict.fromkeys(name for pack in packs for name in pack.classes))
    for name in each:
        if isinstance(name, str) and name not in names:
            raise no_class(name, names, ", ".join(str(pack.path) for pack in packs))
    return [
        [own for wanted in each for own in _own(wanted, pack.classes, table, count)]
        for pack, table in zip(packs, tables, strict=True)
    ]


def _own(wanted: str | int, names: list[str], table: np.ndarray | None, count: int) -> list[int]:
    """The number of a class in one pack: a list of one, or an empty list."""
    if isinstance(wanted, str):
        return [names.index(wanted)] if wanted in names else []
    number = operator.index(wanted)
    if table is None or not 0 <= number < count:
        return [number]
    return [own for own, joint in enumerate(table.tolist()) if joint == number]


def _check_forms(packs: Sequence[Pack], labels: str) -> None:
    """Check that all labels have one form.

    Raises:
        OptionError: they have several.
    """
    forms = [_form(pack, labels) for pack in packs]
    for pack, form in zip(packs, forms, strict=True):
        if form != forms[0]:
            raise OptionError(
                f"labels differ: {forms[0]} in {packs[0].path}, {form} in {pack.path}"
            )


def _form(pack: Pack, labels: str) -> str:
    """The form of a pack's labels in words; "by_name", vectors may differ in length."""
    found = pack.labels
    if found is None or found.ndim == 1:
        return "none" if found is None else "integers"
    if labels == "same":
        return f"vectors of {found.shape[1]}"
    if found.shape[1] != len(pack.classes):
        raise OptionError(
            f"labels='by_name': {pack.path} has {len(pack.classes)} names of classes and vectors "
            f"of {found.shape[1]} as labels"
        )
    return "vectors"


def _difference(one: Pack, other: Pack) -> str:
    """What differs between the classes of two packs, and what to do."""
    a, b = one.classes, other.classes
    only = [(one, [n for n in a if n not in set(b)]), (other, [n for n in b if n not in set(a)])]
    said = [
        f"only in {pack.path}: {', '.join(names[:_SHOWN])}" + (", …" if names[_SHOWN:] else "")
        for pack, names in only
        if names
    ]
    what = "; ".join(said or [f"{one.path} and {other.path} have the same in another order"])
    return f"classes differ: {what}; labels='by_name' joins them, `packio pack --classes-from` too"
