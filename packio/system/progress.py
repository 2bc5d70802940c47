"""Progress of a long run, such as packing, verifying or extracting, as its callback receives it."""

from __future__ import annotations

import dataclasses
import threading
import time
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


class Meter:
    """Counts what is done, perhaps in several threads, and tells a callback, if there is one."""

    def __init__(self, progress: ProgressCallback | None, began: float | None = None) -> None:
        self._progress, self._began = progress, time.monotonic() if began is None else began
        self._lock, self._called = threading.Lock(), 0.0
        self.begin("reading", 0)

    def begin(self, stage: str, total: int, total_bytes: int = 0) -> None:
        """Begin the next stage, and count from 0 again."""
        self.stage, self._total, self._total_bytes = stage, total, total_bytes
        self._done = self._done_bytes = 0

    def step(self, samples: int, size: int, bad: int = 0) -> None:
        """Count samples and their bytes; ``bad`` of all samples so far are bad."""
        if self._progress is None:
            return
        with self._lock:
            self._done += samples
            self._done_bytes += size
            now, total = time.monotonic(), max(self._done, self._total)
            if now - self._called >= PROGRESS_SECONDS or self._done == self._total:
                self._called, seconds = now, now - self._began
                self._progress(Progress(self._done, total, self._done_bytes, self._total_bytes,
                                        bad, seconds, self.stage))  # fmt: skip
