"""Checks before packing begins: the output is not in its source, and the disk has room."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from packio import registry
from packio.errors import OptionError, OutputError
from packio.packing.images.encode import Encoding
from packio.packing.plan.planning import Plan
from packio.packing.run.reading import Treatment

_FILES_A_SHARD = 16  # at most, but for arrays of many chunks


def refuse_nesting(source: Path, out: Path) -> None:
    """Refuse an output within its source, and a source within its output."""
    inside, outside = Path(os.path.realpath(out)), Path(os.path.realpath(source))
    if inside == outside or outside in inside.parents:
        raise OptionError(f"{out}: lies within the source {source}; choose another place")
    if inside in outside.parents:
        raise OptionError(f"{out}: the source {source} lies within it; choose another place")


def refuse_inside(source: Path, quarantine: Path) -> None:
    """Refuse a quarantine within its source: the next run would find the copies as samples."""
    inside, outside = Path(os.path.realpath(quarantine)), Path(os.path.realpath(source))
    if inside == outside or outside in inside.parents:
        raise OptionError(
            f"quarantine={os.fspath(quarantine)!r}: lies within the source {source}; choose "
            "another place"
        )


def check_space(plan: Plan, treatment: Treatment, out: Path, shards: Sequence[int]) -> None:
    """Refuse to begin if the disk has too few free bytes or inodes.

    Bytes are not counted if images are encoded anew, as their new size is not known.
    """
    try:
        disk = os.statvfs(out.parent)
    except OSError:  # the folder is missing; making the workshop will say so
        return
    free, needed = disk.f_bavail * disk.f_frsize, _needed(plan, treatment, shards)
    if needed > free:
        raise OutputError(
            f"{out}: needs at least {needed:,} bytes, {free:,} are free; make room first"
        )
    inodes = len(shards) * _FILES_A_SHARD
    if disk.f_files and inodes > disk.f_favail:
        raise OutputError(
            f"{out}: may need {inodes:,} files, {disk.f_favail:,} more can be made; "
            "make fewer shards, or remove files first"
        )


def _needed(plan: Plan, treatment: Treatment, shards: Sequence[int]) -> int:
    if treatment.encoding != Encoding() or not shards:
        return 0
    sizes = plan.listing.sizes
    each = [sum(s for i in plan.shards[n] if (s := sizes[i]) > 0) for n in shards]
    spooled = registry.load("formats", plan.format).caps.spooled
    return sum(each) + (max(each) if spooled else 0)
