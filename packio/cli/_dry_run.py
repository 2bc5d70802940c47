"""What `packio pack --dry-run` prints."""

from __future__ import annotations

import dataclasses
import json
import sys

from packio.cli._output import escaped
from packio.packing.plan.advising import Advice, DryRun

_SHOWN = 10  # of a kind


def show_json(found: DryRun) -> None:
    """Print everything as JSON."""
    values = dataclasses.asdict(found)
    values["advice"] = [advice._asdict() for advice in found.advice]
    print(json.dumps(values))


def show(found: DryRun) -> None:
    """Print what would be packed, what is wrong with it, and what encodings would bring."""
    for warning in found.warnings:
        print(f"packio: warning: {warning}", file=sys.stderr)
    size = f"{found.source_bytes / 1e6:,.1f} MB"
    print(f"{found.kind}: {found.found:,} images, {size}, in {found.shards:,} shards")
    if found.class_counts:
        least, most = min(found.class_counts), max(found.class_counts)
        print(f"{len(found.classes):,} classes of {least:,} to {most:,} images:")
        pairs = zip(found.classes, found.class_counts, strict=True)
        lines = [f"  {escaped(name)}: {count:,}" for name, count in pairs]
        print("\n".join([*lines[:_SHOWN], *(["  …"] if len(lines) > _SHOWN else [])]))
    else:
        print(f"labels: {found.labels}")
    for key, reason in found.problems[:_SHOWN]:
        print(f"  bad: {key!a}: {reason}")
    if len(found.problems) > _SHOWN:
        print(f"  and {len(found.problems) - _SHOWN:,} more")
    if found.advice:
        print(f"by {found.looked_at} images of it, drawn at random:")
        print(f"  {'options':<40} {'size':>12} {'decodes':>13} {'to encode':>11}")
        for advice in found.advice:
            print(f"  {_options(advice):<40} {advice.bytes / 1e6:>9,.1f} MB "
                  f"{advice.images_per_second:>7,.0f} img/s {_time(advice.pack_seconds):>11}"
                  + (f"  ({advice.refused} refused)" if advice.refused else ""))  # fmt: skip
        print("img/s and time on one core; nothing was written")


def _options(advice: Advice) -> str:
    return " ".join(f"--{name} {value}" for name, value in advice.options.items())


def _time(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds < 600 else f"{seconds / 60:,.0f} min"
