"""What a packing run says: while it goes on, and when it is done."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path

from packio.system.progress import Progress, ProgressCallback

LISTING_SECONDS = 0.5  # between two calls of a callback while a source is listed


def listing_told(progress: ProgressCallback | None, began: float) -> Callable[[int], None]:
    """Make the callback that a listing tells how many more files it has found.

    Args:
        progress: Called about twice a second while a source is listed; None: not called.
        began: When the run began, by `time.monotonic`.
    """
    found, called = 0, time.monotonic()

    def tell(more: int) -> None:
        nonlocal found, called
        found, now = found + more, time.monotonic()
        if progress is not None and now - called >= LISTING_SECONDS:
            called = now
            progress(Progress(found, 0, 0, 0, 0, now - began, "listing"))

    return tell


@dataclasses.dataclass(frozen=True, slots=True)
class Skip:
    """One path that was found and is not in the pack.

    Attributes:
        key: Relative path as raw bytes.
        reason: One line.
    """

    key: bytes
    reason: str

    def as_json(self) -> dict[str, str]:
        """As a line of ``OUT.skipped.jsonl``; bytes that are not UTF-8 are surrogate-escaped."""
        return {"key": os.fsdecode(self.key), "reason": self.reason}


@dataclasses.dataclass(frozen=True, slots=True)
class PackReport:
    """What a packing run did; ``packed + len(skipped) == found`` of what it read.

    Attributes:
        out: The pack.
        format: Of the container.
        found: Paths in the source.
        packed: Samples in the pack.
        skipped: The others, each with its reason; also in `skipped_file`. Empty if `up_to_date`.
        classes: How many.
        source_bytes: Bytes of the samples packed.
        out_bytes: Bytes of all files of the pack, the index included.
        seconds: The whole run took.
        digest: Hexadecimal SHA-256 of the index, which digests all files of the pack.
        up_to_date: True where the pack was there already and nothing was written.
        warnings: One line each.
        skipped_file: ``OUT.skipped.jsonl``, or None where nothing was skipped.
        part: (i, n) where only a part of the shards was to be written; there is no pack yet then.
        quarantined: Bad images that could be copied to the quarantine.
        resumed: Shards that an earlier run, cut short, had finished.
    """

    out: Path
    format: str
    found: int
    packed: int
    skipped: tuple[Skip, ...]
    classes: int
    source_bytes: int
    out_bytes: int
    seconds: float
    digest: str
    up_to_date: bool = False
    warnings: tuple[str, ...] = ()
    skipped_file: Path | None = None
    part: tuple[int, int] | None = None
    resumed: int = 0
    quarantined: int = 0
