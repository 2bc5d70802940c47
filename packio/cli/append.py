"""``packio append``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from packio.cli import _options as option
from packio.cli._output import counted, warn
from packio.cli._plugin_options import with_plugin_options
from packio.cli._progress import ProgressLine
from packio.packing.appending import AppendReport, append
from packio.sample.fields import parse_options

_SHOWN = 10  # keys of a kind


@with_plugin_options("sources")
def run(
    pack: Annotated[Path, typer.Argument(help="The pack to add to: a folder of shards.")],
    source: Annotated[str, typer.Argument(help="What the pack was made of, as for `packio pack`.")],
    *,
    source_kind: option.SourceKind = None,
    shard_size: option.ShardSize = None,
    field: option.Fields = None,
    on_error: option.OnError = "raise",
    num_workers: option.NumWorkers = None,
    as_json: option.Json = False,
    quiet: option.Quiet = False,
    more: dict[str, Any],
) -> None:
    """Add the new samples of a source to a pack. Run it daily: nothing is added twice.

    A sample is known by its key. Samples that are in the pack stay as they are; those that the
    source has changed or lost are listed. New classes get the next numbers, so old numbers never
    change. Programs that read the pack meanwhile go on reading the old samples.

    Example: packio pack photos photos.tar --shard-size 1GB; packio append photos.tar photos
    """
    with ProgressLine(quiet=quiet) as progress:
        report = append(
            pack, source, source_kind=source_kind, shard_size=shard_size, num_workers=num_workers,
            on_error=on_error, progress=progress,
            fields=parse_options(field) if field else None, **more,
        )  # fmt: skip
    warn(report.warnings)
    if as_json:
        print(json.dumps({**dataclasses.asdict(report), "out": str(report.out)}))
    elif not quiet:
        _show(report, pack)


def _show(report: AppendReport, pack: Path) -> None:
    new = f", {counted(len(report.new_classes), 'new class')}" if report.new_classes else ""
    skipped = f", {report.skipped:,} bad ones left out" if report.skipped else ""
    print(
        f"{pack}: {report.added:,} added{new}{skipped}; {report.unchanged:,} were there; "
        f"{counted(report.total, 'image')} in all, {report.seconds:.1f} s"
    )
    for keys, what in ((report.changed, "changed in the source"), (report.deleted, "gone from it")):
        if keys:
            print(f"{len(keys):,} {what} since; the pack keeps what it has:")
            print("".join(f"  {key!a}\n" for key in keys[:_SHOWN]), end="")
            if len(keys) > _SHOWN:
                print(f"  and {len(keys) - _SHOWN:,} more (--json lists all)")
    print(f"digest {report.digest}")
