"""``packio append``."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from packio.cli._packing import byte_count
from packio.cli._plugin_options import with_plugin_options
from packio.cli._progress import ProgressLine
from packio.packing.appending import AppendReport, append

_SHOWN = 10  # keys of a kind


@with_plugin_options("sources")
def run(
    pack: Annotated[Path, typer.Argument(help="Pack to add to: a folder of shards.")],
    source: Annotated[str, typer.Argument(help="As `packio pack` takes: what it was made of.")],
    *,
    source_kind: Annotated[
        str | None,
        typer.Option("--source", metavar="KIND", help="Kind of source, where it is not plain."),
    ] = None,
    shard_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Bytes of images a new shard (default: as the largest)."),
    ] = None,
    on_error: Annotated[
        str,
        typer.Option(metavar="raise|skip", help="Bad new images: add nothing, or leave them out."),
    ] = "raise",
    num_workers: Annotated[
        int | None, typer.Option(help="Processes, a shard each at a time.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
    more: dict[str, Any],
) -> None:
    """Add what is new in a source to a pack; run it daily: it adds nothing twice.

    Samples are told apart by their keys. Those that are in the pack stay as they are; what the
    source has otherwise, or no more, is listed. New classes get numbers behind the old ones, which
    never shift. Whoever reads the pack meanwhile goes on reading what was there.

    Example: packio pack photos photos.tar --shard-size 1GB; packio append photos.tar photos
    """
    with ProgressLine(quiet=quiet) as progress:
        report = append(
            pack, source, source_kind=source_kind, shard_size=byte_count(shard_size),
            num_workers=num_workers, on_error=on_error, progress=progress, **more,
        )  # fmt: skip
    for warning in report.warnings:
        print(f"packio: warning: {warning}", file=sys.stderr)
    if as_json:
        print(json.dumps({**dataclasses.asdict(report), "out": str(report.out)}))
    elif not quiet:
        _show(report, pack)


def _show(report: AppendReport, pack: Path) -> None:
    new = f", {len(report.new_classes)} new classes" if report.new_classes else ""
    skipped = f", {report.skipped:,} bad ones left out" if report.skipped else ""
    print(
        f"{pack}: {report.added:,} added{new}{skipped}; {report.unchanged:,} were there; "
        f"{report.total:,} images in all, {report.seconds:.1f} s"
    )
    for keys, what in ((report.changed, "changed in the source"), (report.deleted, "gone from it")):
        if keys:
            print(f"{len(keys):,} {what} since; the pack keeps what it has:")
            print("".join(f"  {key!a}\n" for key in keys[:_SHOWN]), end="")
            if len(keys) > _SHOWN:
                print(f"  and {len(keys) - _SHOWN:,} more (--json lists all)")
    print(f"digest {report.digest}")
