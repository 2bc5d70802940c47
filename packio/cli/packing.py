"""``packio pack`` and ``packio append``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from packio import packing
from packio.cli import _options as option
from packio.cli import _packing_options as group
from packio.cli._output import (
    ProgressLine,
    as_typed,
    escape,
    print_json,
    print_packed,
    print_some,
    say,
    warn,
)
from packio.errors import OptionError
from packio.packing.appending import AppendReport
from packio.packing.planning import DryRun, LevelsAdvice
from packio.system.quantities import pluralize

_TO_WRITE = {*group.RUN, *group.PARTS, *group.SEEK_POINTS} - {"check"}  # nothing to a dry run


@group.takes(
    group.SOURCE, group.BOXES, group.OUTPUT, group.SAMPLES, group.IMAGES, group.SEEK_POINTS,
    group.LEVELS, group.RUN,
    group.PARTS, group.plugin_options("sources"), group.plugin_options("formats"),
)  # fmt: skip
def pack(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A folder of class folders of "
        "images; a list (CSV, JSONL), an archive, a COCO file, parquet; folders of images and "
        "masks; a pack; or MODULE:OBJECT, a dataset.")],
    out: option.Out,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run",
        help="Write nothing: show samples, bad images, and sizes of other encodings.")] = False,
    as_json: option.Json = False,
    quiet: option.Quiet = False,
    more: dict[str, Any],
) -> None:  # fmt: skip
    """Pack images into one container. Without further options their bytes stay as they are.

    A folder is read as torchvision's ImageFolder reads it: each folder in it is a class, with
    images at any depth. The same source always gives the same bytes. OUT appears only when it is
    complete and on disk. After an interruption, run the same command again: it goes on.

    Example: packio pack train train.lmdb && packio pack val val.lmdb --classes-from train.lmdb
    """
    if "part" in more and "finish" in more:
        raise OptionError(
            "--part writes a part, --finish puts the parts together: give one of them"
        )
    if dry_run:
        looked = {name: value for name, value in more.items() if name not in _TO_WRITE}
        show_dry_run(packing.dry_run(source, out, **looked), as_json=as_json)
        return
    with ProgressLine(quiet=quiet) as progress:
        report = packing.pack(source, out, progress=progress, **more)
    print_packed(report, out, as_json=as_json, quiet=quiet, encode=more.get("encode"))


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
    images, shards = pluralize(found.found, "image"), pluralize(found.shards, "shard")
    say(f"{found.kind}: {images}, {size}, in {shards}")
    if found.class_counts:
        least, most = min(found.class_counts), max(found.class_counts)
        each = pluralize(most, "image") if least == most else f"{least:,} to {most:,} images"
        say(f"{pluralize(len(found.classes), 'class')} of {each}:")
        pairs = zip(found.classes, found.class_counts, strict=True)
        print_some([f"{escape(name)}: {count:,}" for name, count in pairs])
    else:
        say(f"labels: {found.labels}")
    if found.problems:
        say(f"bad, of the {pluralize(found.looked_at, 'image')} that were looked at:")
        print_some([f"{escape(key)}: {as_typed(reason)}" for key, reason in found.problems])
    if found.levels is not None:
        _print_levels(found.levels, found.looked_at)
    if found.advice:
        say(f"measured on {pluralize(found.looked_at, 'image')}, drawn at random:")
        say(f"  {'options':<40} {'size':>12} {'crops':>13} {'read':>10} {'to encode':>11}")
        for advice in found.advice:
            options = " ".join(f"--{name} {value}" for name, value in advice.options.items())
            seconds = advice.pack_seconds
            time = f"{seconds:,.0f} s" if seconds < 600 else f"{seconds / 60:,.0f} min"
            read = advice.images_per_second * advice.bytes / max(found.found, 1) / 1e6
            refused = f"  ({advice.refused} refused)" if advice.refused else ""
            say(f"  {options:<40} {advice.bytes / 1e6:>9,.1f} MB {advice.images_per_second:>7,.0f} "
                f"img/s {read:>5,.0f} MB/s {time:>11}{refused}")  # fmt: skip
        say("crops: random ones of 224 pixels, by one core, which reads so many MB a second")
        say("nothing was written")


def _print_levels(found: LevelsAdvice, looked_at: int) -> None:
    if not found.images:
        say(
            f"levels {found.options['count']}: none of the {pluralize(looked_at, 'image')} that "
            f"were looked at is large enough to get one for crops of {found.options['crop']}"
        )
        return
    say(
        f"levels {found.options['count']}: {found.images:,} of {pluralize(looked_at, 'image')} "
        f"that were looked at get some; {found.bytes / 1e6:+,.1f} MB ({found.share:+.0%}) in all"
    )


@group.takes(
    group.SOURCE, group.BOXES, group.SHARD_SIZE, group.RAISE_OR_SKIP, group.WORKERS,
    group.plugin_options("sources"),
)  # fmt: skip
def append(
    pack: Annotated[Path, typer.Argument(metavar="PACK",
        help="The pack to add to: a folder of shards.", callback=option.on_disk)],
    source: Annotated[str, typer.Argument(metavar="SOURCE",
        help="What the pack was made of, as for `packio pack`.")],
    *,
    compare: Annotated[bool, typer.Option("--compare", help="Add nothing: compare the samples that "
        "both have, and list those that differ.")] = False,
    as_json: option.Json = False,
    quiet: option.Quiet = False,
    more: dict[str, Any],
) -> None:  # fmt: skip
    """Add the new samples of a source to a pack. Run it daily: nothing is added twice.

    A sample is known by its key. Samples of the pack stay as they are; samples that the source has
    lost are listed, and --compare lists those whose bytes or annotations (not splits) changed. New
    classes get the next numbers, so old numbers never change. Programs that read the pack meanwhile
    go on reading the old samples; but workers that are spawned later, and saved selections, need
    the pack opened anew.

    Example: packio pack photos photos.tar --shard-size 1GB; packio append photos.tar photos
    """
    with ProgressLine(quiet=quiet) as progress:
        report = packing.append(pack, source, compare=compare, progress=progress, **more)
    warn(report.warnings)
    if as_json:
        print_json(report)
    elif not quiet:
        _print_append(report, pack)


def _print_append(report: AppendReport, pack: Path) -> None:
    new = f", {pluralize(len(report.new_classes), 'new class')}" if report.new_classes else ""
    skipped = f", {report.skipped:,} bad ones left out" if report.skipped else ""
    if report.changed is None:
        done = f"{report.added:,} added{new}{skipped}; {report.known:,} were there"
    else:
        done = (
            f"nothing added, {report.new:,} would be{new}; {report.known:,} were there, "
            f"{len(report.changed):,} differ"
        )
    say(f"{escape(str(pack))}: {done}; {pluralize(report.total, 'image')} in all, "
        f"{report.seconds:.1f} s")  # fmt: skip
    wheres = ((report.changed, "unlike"), (report.deleted, "not in"))
    for keys, what in wheres:
        if keys:
            samples = pluralize(len(keys), "sample")
            if report.changed is None:  # the source of an append is often the new ones alone
                say(f"kept: {samples} that the source does not have")
                continue
            say(f"{samples} {what} the source; the pack keeps what it has:")
            print_some([escape(key) for key in keys], "(--json lists all)")
    say(f"digest {report.digest}")
