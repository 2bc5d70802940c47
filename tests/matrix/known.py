"""Cells that fail today, and why. Mending a defect makes its mark fail: then delete the mark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trials import Cell

# Reason → the cells that fail for the reason.
_KNOWN: dict[str, Callable[[Cell], bool]] = {}

REASONS = (*_KNOWN,)


def reason(cell: Cell) -> str:
    """Why a cell fails; "" if it should not."""
    return next((why for why, fails in _KNOWN.items() if fails(cell)), "")


def marked(cells: Iterable[Cell]) -> list[Any]:
    """Cells as parameters of a test: the first of each verb is quick, others are long.

    Those that are known to fail are marked so.
    """
    found, seen = [], set[str]()
    for cell in cells:
        why = reason(cell)
        marks = [pytest.mark.xfail(reason=why, strict=True)] if why else []
        marks += [pytest.mark.long] if cell.verb in seen else []
        seen.add(cell.verb)
        found.append(pytest.param(cell, marks=marks))
    return found
