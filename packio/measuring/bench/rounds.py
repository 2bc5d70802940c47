"""Rounds: all candidates are measured once a round, in turns, because machines are noisy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from packio.system.progress import Progress, ProgressCallback

Candidate = TypeVar("Candidate")
Figure = TypeVar("Figure")


def run_in_turns(
    candidates: Sequence[Candidate],
    rounds: int,
    run: Callable[[Candidate], Figure],
    *,
    sizes: Sequence[tuple[int, int]] | None = None,
    progress: ProgressCallback | None = None,
    stage: str = "measuring",
) -> list[list[Figure]]:
    """Measure each candidate once a round, and give each one's figures.

    No candidate is always the first of a round. `sizes`: images and bytes of each, for `progress`.
    """
    figures: list[list[Figure]] = [[] for _ in candidates]
    sizes = sizes or [(0, 0)] * len(candidates)
    total, total_bytes = (rounds * sum(numbers) for numbers in zip(*sizes, strict=True))
    done, done_bytes, began = 0, 0, time.perf_counter()
    for turn in range(rounds):
        start = turn * len(candidates) // rounds
        for i in (*range(start, len(candidates)), *range(start)):
            figures[i].append(run(candidates[i]))
            done, done_bytes = done + sizes[i][0], done_bytes + sizes[i][1]
            if progress is not None:
                seconds = time.perf_counter() - began
                progress(Progress(done, total, done_bytes, total_bytes, 0, seconds, stage))
    return figures
