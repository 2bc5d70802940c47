"""Rounds: all candidates are measured once a round, in turns, because machines are noisy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from packio.system.progress import Progress, ProgressCallback

Candidate = TypeVar("Candidate")
Figure = TypeVar("Figure")


def in_turns(
    candidates: Sequence[Candidate],
    rounds: int,
    run: Callable[[Candidate], Figure],
    *,
    size: Callable[[Candidate], tuple[int, int]] = lambda _: (0, 0),
    progress: ProgressCallback | None = None,
    stage: str = "measuring",
) -> list[list[Figure]]:
    """Measure each candidate once a round. No candidate is always the first of a round.

    Returns:
        For each candidate, a figure of each round.
    """
    found: list[list[Figure]] = [[] for _ in candidates]
    sizes = [size(candidate) for candidate in candidates]
    total, total_bytes = (rounds * sum(numbers) for numbers in zip(*sizes, strict=True))
    done, done_bytes, began = 0, 0, time.perf_counter()
    for turn in range(rounds):
        start = turn * len(candidates) // rounds
        for i in (*range(start, len(candidates)), *range(start)):
            found[i].append(run(candidates[i]))
            done, done_bytes = done + sizes[i][0], done_bytes + sizes[i][1]
            if progress is not None:
                seconds = time.perf_counter() - began
                progress(Progress(done, total, done_bytes, total_bytes, 0, seconds, stage))
    return found
