"""Print the report of packing, and of a dry run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from packio.cli._output import as_typed, counted, escaped, print_json, print_some, say, warn
from packio.packing.plan.advising import Advice, DryRun, LevelsAdvice
from packio.packing.report import PackReport


def show(report: PackReport, out: Path, *, as_json: bool, quiet: bool) -> None:
    """Print what a packing run did; its warnings go to stderr."""
    warn(report.warnings)
    if as_json:
        values = dataclasses.asdict(report)
        values["skipped"] = [skip.as_json() for skip in report.skipped]
        print_json(values)
    elif not quiet:
        _print_summary(report, out)


def _print_summary(report: PackReport, out: Path) -> None:
    out = report.out if "://" in str(report.out) else out
    images = counted(report.packed, "image")
    if report.up_to_date:
        say(f"{out}: up to date ({images})")
        return
    if report.part is not None:
        say(f"{out}: part {report.part[0]} of {report.part[1]}: {images}. "
              "When all parts are written, run the same command with --finish")  # fmt: skip
        return
    if report.resumed:
        say(f"{out}: went on from {counted(report.resumed, 'finished shard')}")
    seconds = max(report.seconds, 1e-6)
    say(
        f"{out}: {images} in {counted(report.classes, 'class')}, "
        f"{report.source_bytes / 1e6:,.1f} MB of images in {report.out_bytes / 1e6:,.1f} MB, "
        f"{seconds:.1f} s ({report.packed / seconds:,.0f} img/s, "
        f"{report.source_bytes / seconds / 1e6:,.0f} MB/s)"
    )
    if report.skipped:
        copied = f"; {report.quarantined:,} copied" if report.quarantined else ""
        say(f"{len(report.skipped):,} of {report.found:,} skipped, listed in "
              f"{report.skipped_file}{copied}")  # fmt: skip
    say(f"digest {report.digest}")


def show_dry_run(found: DryRun, *, as_json: bool) -> None:
    """Print the samples to pack, the bad images, and the gain of other encodings."""
    if as_json:
        values = dataclasses.asdict(found)
        values["advice"] = [advice._asdict() for advice in found.advice]
        values["levels"] = None if found.levels is None else found.levels._asdict()
        print_json(values)
        return
    warn(found.warnings)
    size = f"{found.source_bytes / 1e6:,.1f} MB"
    images, shards = counted(found.found, "image"), counted(found.shards, "shard")
    say(f"{found.kind}: {images}, {size}, in {shards}")
    if found.class_counts:
        least, most = min(found.class_counts), max(found.class_counts)
        each = counted(most, "image") if least == most else f"{least:,} to {most:,} images"
        say(f"{counted(len(found.classes), 'class')} of {each}:")
        pairs = zip(found.classes, found.class_counts, strict=True)
        print_some([f"{escaped(name)}: {count:,}" for name, count in pairs])
    else:
        say(f"labels: {found.labels}")
    if found.problems:
        say(f"bad, of the {counted(found.looked_at, 'image')} that were looked at:")
        print_some([f"{escaped(key)}: {as_typed(reason)}" for key, reason in found.problems])
    if found.levels is not None:
        _print_levels(found.levels, found.looked_at)
    if found.advice:
        say(f"measured on {counted(found.looked_at, 'image')}, drawn at random:")
        say(f"  {'options':<40} {'size':>12} {'decodes':>13} {'to encode':>11}")
        for advice in found.advice:
            _print_advice(advice)
        say("img/s and time are those of one core; nothing was written")


def _print_levels(found: LevelsAdvice, looked_at: int) -> None:
    if not found.images:
        say(
            f"levels {found.options['count']}: none of the {counted(looked_at, 'image')} that were "
            f"looked at is large enough to get one for crops of {found.options['crop']}"
        )
        return
    say(
        f"levels {found.options['count']}: {found.images:,} of {counted(looked_at, 'image')} that "
        f"were looked at get some; {found.bytes / 1e6:+,.1f} MB ({found.share:+.0%}) in all"
    )


def _print_advice(advice: Advice) -> None:
    options = " ".join(f"--{name} {value}" for name, value in advice.options.items())
    seconds = advice.pack_seconds
    time = f"{seconds:,.0f} s" if seconds < 600 else f"{seconds / 60:,.0f} min"
    refused = f"  ({advice.refused} refused)" if advice.refused else ""
    say(f"  {options:<40} {advice.bytes / 1e6:>9,.1f} MB "
          f"{advice.images_per_second:>7,.0f} img/s {time:>11}{refused}")  # fmt: skip
