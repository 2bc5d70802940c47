"""Chi-square: whether counts are as far from what is expected as chance makes them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def chi_square(counts: Any, expected: Any) -> float:
    """The statistic of some counts."""
    counts, expected = np.asarray(counts, float), np.asarray(expected, float)
    return float(((counts - expected) ** 2 / expected).sum())


def most(degrees: int) -> float:
    """The value that chance exceeds once in 10,000 times (Wilson and Hilferty, 1931)."""
    return float(degrees * (1 - 2 / (9 * degrees) + 3.72 * math.sqrt(2 / (9 * degrees))) ** 3)
