"""Classes of several packs as one dataset: whether they agree, and how labels move by name."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np

from packio.datasets.selection import Labels, no_class
from packio.errors import OptionError
from packio.packs.opening import Pack
from packio.sample.relabelling import Relabelling, all_classes, check_named

_SHOWN = 5  # names of classes, in a message


def joined(
    packs: Sequence[Pack], labels: str, *, needed: bool
) -> tuple[list[str], list[Relabelling]]:
    """Join the classes of packs.

    Returns:
        Class names, and what moves the labels of each pack.
    """
    if labels not in ("same", "by_name"):
        raise OptionError(f"labels={labels!r}: expected 'same' or 'by_name'")
    if needed:
        _check_forms(packs, labels)
    if labels == "by_name":
        together = all_classes(pack.classes for pack in packs)
        return together, [_by_name(pack, together) for pack in packs]
    names = [pack.classes for pack in packs]
    different = [i for i, own in enumerate(names) if own != names[0]]
    if different and needed:
        raise OptionError(_difference(packs[0], packs[different[0]]))
    return [] if different else names[0], [Relabelling(own, own) for own in names]


def _by_name(pack: Pack, classes: list[str]) -> Relabelling:
    if not pack.classes:
        raise OptionError(f"labels='by_name': {pack.path} has no names of classes")
    move = Relabelling(pack.classes, classes, str(pack.path))
    for column in ("label", "boxes/labels"):
        if move.changes and column in pack.index_file:
            check_named(pack.index_file.column(column).array(), pack.classes, str(pack.path))
    return move


def sought(label: Labels, packs: Sequence[Pack], moves: Sequence[Relabelling]) -> list[list[int]]:
    """Find the numbers of some classes in each of some packs.

    Returns:
        For each pack the numbers of the classes that it has; perhaps none.
    """
    each = [label] if isinstance(label, (str, int, np.integer)) else list(label)
    names = list(dict.fromkeys(name for pack in packs for name in pack.classes))
    for name in each:
        if isinstance(name, str) and name not in names:
            raise no_class(name, names, ", ".join(str(pack.path) for pack in packs))
    return [[own for wanted in each for own in _own(wanted, move)] for move in moves]


def _own(wanted: str | int, move: Relabelling) -> list[int]:
    """The number of a class in one pack, if it is there."""
    if isinstance(wanted, str):
        return [move.old.index(wanted)] if wanted in move.old else []
    number = operator.index(wanted)
    if not move.changes or not 0 <= number < len(move.new):
        return [number]
    return [own for own, joint in enumerate(move.table.tolist()) if joint == number]


def _check_forms(packs: Sequence[Pack], labels: str) -> None:
    """Check that the labels of all packs have one form."""
    forms = [_form(pack, labels) for pack in packs]
    for pack, form in zip(packs, forms, strict=True):
        if form != forms[0]:
            raise OptionError(
                f"labels differ: {forms[0]} in {packs[0].path}, {form} in {pack.path}"
            )


def _form(pack: Pack, labels: str) -> str:
    """Say what labels are. Under labels="by_name" the length of vectors does not matter."""
    index = pack.index_file
    shape = index.column("label").shape if "label" in index else ()
    if len(shape) < 2:
        return "integers" if shape else "none"
    if labels == "same":
        return f"vectors of {shape[1]}"
    if shape[1] != len(pack.classes):
        raise OptionError(
            f"labels='by_name': {pack.path} has {len(pack.classes)} names of classes and vectors "
            f"of {shape[1]} as labels"
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
