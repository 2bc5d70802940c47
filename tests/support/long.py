"""Cases of which `make test` tries the first, and `make test-long` the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable


def after(count: int, cases: Iterable[Any]) -> list[Any]:
    """Parameters of a test: all cases after so many are marked long. A tuple is several values."""
    found = [*cases]
    for number, case in enumerate(found[count:], count):
        values = case if isinstance(case, tuple) else (case,)
        found[number] = pytest.param(*values, marks=pytest.mark.long)
    return found
