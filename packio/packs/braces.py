"""Braces in paths: ``train-{000..127}.tar`` and ``{train,extra}.tar``, as shells expand them."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence

from packio.errors import OptionError

_BRACES = re.compile(r"\{([^{}]*)\}")
_SPAN = re.compile(r"([0-9]{1,18})\.\.([0-9]{1,18})")
_MOST = 100_000  # paths of one pattern


def expanded(pattern: str) -> list[str]:
    """Expand the braces in a pattern. Nested braces, and braces without a choice, stay.

    Returns:
        The texts in the order of ``echo`` in a shell, each once; the pattern alone if there is
        nothing to expand.
    """
    texts = _BRACES.split(pattern)  # outside, inside, outside, …
    choices = [_choices(text) if i % 2 else [text] for i, text in enumerate(texts)]
    if math.prod(map(len, choices)) > _MOST:
        raise OptionError(f"{pattern}: its braces name more than {_MOST:,} files")
    return list(dict.fromkeys(map("".join, itertools.product(*choices))))


def _choices(inside: str) -> Sequence[str]:
    span = _SPAN.fullmatch(inside)
    if span is None:
        return inside.split(",") if "," in inside else [f"{{{inside}}}"]
    first, last = int(span[1]), int(span[2])
    padded = any(len(end) > 1 and end.startswith("0") for end in span.groups())
    width = max(map(len, span.groups())) if padded else 1
    step = 1 if first <= last else -1
    numbers = range(first, last + step, step)[: _MOST + 1]  # to be refused, if it is cut short
    return [f"{number:0{width}d}" for number in numbers]
