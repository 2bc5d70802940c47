"""The cells of the matrix: each verb on each format, all pairs of values, or all triples."""

from __future__ import annotations

import itertools
import os
import random
from typing import TYPE_CHECKING

from described import ANNOTATIONS
from source_kinds import KINDS, annotations_of
from trials import FORMATS, Cell
from verbs import VERBS

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRIES = 40  # candidates for each new cell of the shorter forms

_Value = tuple[str, str]  # as ("source", "csv"), ("label", "many")


def cells(module: str) -> list[Cell]:
    """The cells of a module's verbs.

    Each verb meets each format once, with sources and annotations as varied as so few cells can
    be. PACKIO_MATRIX=pairs asks for each pair of values of two factors; PACKIO_MATRIX=whole for
    every source with every single annotation under every verb; PACKIO_MATRIX_SEED=2 draws other
    data and other formats.
    """
    seed = int(os.environ.get("PACKIO_MATRIX_SEED", "0"))
    names = [name for name, verb in VERBS.items() if verb.run.__module__ == module]
    form = os.environ.get("PACKIO_MATRIX")
    if form == "whole":
        return list(_whole(seed, names))
    return _few(seed, names, all_pairs=form == "pairs")


def _whole(seed: int, verbs: list[str]) -> Iterator[Cell]:
    """Every source with every single annotation, under every verb; the formats take turns."""
    draw = random.Random(seed)
    for source in KINDS:
        for carried, verb in itertools.product(annotations_of(source), verbs):
            one, other = draw.sample(FORMATS, 2)
            cell = Cell(source, tuple(carried.items()), verb, one, other, seed)
            if _is_possible(cell):
                yield cell


def _few(seed: int, verbs: list[str], *, all_pairs: bool) -> list[Cell]:
    """Few cells in which each verb meets each format, or each pair of values comes once.

    Each new cell is the one of some that has most pairs that no cell had before.
    """
    draw = random.Random(seed)
    missing = {pair for cell in _whole(seed, verbs) for pair in _pairs_in(cell)}
    on_formats = {(("format", f), ("verb", v)) for v in verbs for f in FORMATS}
    missing |= on_formats
    found = []
    while wanted := missing if all_pairs else missing & on_formats:
        start = draw.choice(sorted(wanted))
        tried = [_drawn(draw, dict(start), seed, verbs) for _ in range(_TRIES)]
        fit = filter(_is_possible, tried)
        best = max(fit, key=lambda cell: len(_pairs_in(cell) & missing), default=None)
        if best is None or start not in _pairs_in(best):
            missing.remove(start)  # what the rest needs does not go with it
            continue
        missing -= _pairs_in(best)
        found.append(best)
    return found


def _is_possible(cell: Cell) -> bool:
    """Tell whether the source carries the annotations, and the verb can be tried."""
    return KINDS[cell.source].fits(dict(cell.annotations)) and VERBS[cell.verb].fits(cell)


def _pairs_in(cell: Cell) -> set[tuple[_Value, _Value]]:
    values = [("source", cell.source), ("verb", cell.verb), *cell.annotations]
    pairs = {(a, b) for a, b in itertools.combinations(sorted(values), 2)}
    return pairs | {(("format", cell.format), ("verb", cell.verb))}


def _drawn(draw: random.Random, fixed: dict[str, str], seed: int, verbs: list[str]) -> Cell:
    """A random cell in which some values are fixed."""
    source = fixed.get("source") or draw.choice(list(KINDS))
    annotations = {}
    for name in ANNOTATIONS:
        ways = sorted(KINDS[source].carries.get(name, ()))
        if name in fixed:
            annotations[name] = fixed[name]
        elif ways and (way := draw.choice(ways)) != "none":
            annotations[name] = way
    verb = fixed.get("verb") or draw.choice(verbs)
    one, other = draw.sample(FORMATS, 2)
    return Cell(source, tuple(annotations.items()), verb, fixed.get("format", one), other, seed)
