"""Progress of a long run, such as packing, verifying or extracting, as its callback receives it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

PROGRESS_SECONDS = 0.1  # between two calls of a callback


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come.

    Attributes:
        done: Samples done so far; while listing, files found so far.
        total: Samples to do in all; while listing, 0.
        done_bytes: Source bytes read so far.
        total_bytes: Source bytes to read in all.
        bad: Bad samples found so far.
        seconds: Time since the run began.
        stage: What the run does now. Packing reports "listing" (of a large folder), "reading",
            "checking" (the rest of the source, after a bad image under on_error="raise"),
            and "publishing".
    """

    done: int
    total: int
    done_bytes: int
    total_bytes: int
    bad: int
    seconds: float
    stage: str = "reading"


ProgressCallback = Callable[[Progress], None]
