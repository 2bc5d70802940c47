"""Reports of a packing run: progress while a source is listed, and the result."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from packio.system.progress import Progress, ProgressCallback

SKIPPED_SUFFIX = ".skipped.jsonl"
LISTING_SECONDS = 0.5  # between two calls of a callback while a source is listed


def make_listing_callback(progress: ProgressCallback | None, began: float) -> Callable[[int], None]:
    """The callback that a listing calls with the number of files found since the last call."""
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
    """A path of the source that is not in the pack."""

    key: bytes
    reason: str  # one line

    def as_json(self) -> dict[str, str]:
        """As a line of ``OUT.skipped.jsonl``; bytes that are not UTF-8 are surrogate-escaped."""
        return {"key": os.fsdecode(self.key), "reason": self.reason}


@dataclasses.dataclass(frozen=True, slots=True)
class PackReport:
    """The result of a packing run. ``packed + len(skipped) == found``, unless `up_to_date`.

    Attributes:
        out: The pack.
        format: Name of the container's format.
        found: Number of paths in the source.
        packed: Number of samples in the pack.
        skipped: The other paths, also listed in `skipped_file`. Empty if `up_to_date`.
        classes: Number of classes.
        source_bytes: Bytes of the packed samples in the source.
        out_bytes: Bytes of all files of the pack, the index included.
        seconds: Duration of the whole run.
        digest: Hexadecimal SHA-256 of the index, which digests all files of the pack.
        up_to_date: True if the pack was there already and nothing was written.
        warnings: One line each.
        skipped_file: ``OUT.skipped.jsonl``; None if nothing was skipped.
        part: (i, n) if only a part of the shards was to be written; there is no pack yet.
        quarantined: Number of bad images that were copied to the quarantine.
        resumed: Number of shards that were taken over from an interrupted run.
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

    def with_lost(self, fields: Sequence[str]) -> PackReport:
        """The report, with a warning that the pack that was replaced had these added fields."""
        if not fields:
            return self
        warning = (
            f"the pack that was replaced had fields from packio add: {', '.join(fields)}; "
            "make them anew with packio add"
        )
        return dataclasses.replace(self, warnings=(*self.warnings, warning))
