"""Batches that tell which batches come after them.

A dataset at a URL asks for the bytes of its next batches while it makes the current one. Only the
loader knows the next batches, so it hands them over with each batch of indices.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

AHEAD = 256  # samples ahead of each process, at least


class Coming(list[Any]):
    """The indices of a batch. Anybody can use it as a list."""

    def __init__(
        self, indices: Iterable[Any], later: Sequence[Sequence[Any]], *, anew: bool
    ) -> None:
        super().__init__(indices)
        self.later: Sequence[Sequence[Any]] = later
        self.anew: bool = anew

    def __reduce__(self) -> tuple[object, ...]:
        return _coming, (list(self), self.later, self.anew)

    def mapped(self, change: Callable[[Any], Any]) -> Coming:
        """Return the same with other indices."""
        later = [[change(index) for index in batch] for batch in self.later]
        return Coming(map(change, self), later, anew=self.anew)


def _coming(indices: list[Any], later: Sequence[Sequence[Any]], anew: bool) -> Coming:
    return Coming(indices, later, anew=anew)


def announced(batches: Iterator[list[Any]], processes: int) -> Iterator[list[Any]]:
    """Let each batch tell the next ones."""
    processes, waiting = max(processes, 1), deque(itertools.islice(batches, 1))
    if not waiting:
        return
    ahead = processes * math.ceil(AHEAD / max(len(waiting[0]), 1))
    for number in itertools.count():
        waiting.extend(itertools.islice(batches, ahead + 1 - len(waiting)))
        if not waiting:
            return
        batch, anew = waiting.popleft(), number < processes
        # waiting[i] comes i + 1 batches later
        first = processes - 1 if anew else ahead - 1
        later = list(itertools.islice(waiting, first, ahead, processes))
        yield Coming(batch, later, anew=anew)
