"""``packio append``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from packio.cli import _options as option
from packio.cli import _packing_options as group
from packio.cli._output import counted, escaped, print_json, print_some, say, warn
from packio.cli._progress import ProgressLine
from packio.packing.appending import AppendReport, append


@group.takes(
    group.SOURCE, group.BOXES, group.SHARD_SIZE, group.RAISE_OR_SKIP, group.WORKERS,
    group.of_plugins("sources"),
)  # fmt: skip
def run(
    pack: Annotated[Path, typer.Argument(metavar="PACK",
        help="The pack to add to: a folder of shards.")],
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
    lost are listed, and --compare lists those that it has changed. New classes get the next
    numbers, so old numbers never change. Programs that read the pack meanwhile go on reading the
    old samples; but workers that are spawned later, and saved selections, need the pack opened
    anew.

    Example: packio pack photos photos.tar --shard-size 1GB; packio append photos.tar photos
    """
    with ProgressLine(quiet=quiet) as progress:
        report = append(pack, source, compare=compare, progress=progress, **more)
    warn(report.warnings)
    if as_json:
        print_json(report)
    elif not quiet:
        _show(report, pack)


def _show(report: AppendReport, pack: Path) -> None:
    new = f", {counted(len(report.new_classes), 'new class')}" if report.new_classes else ""
    skipped = f", {report.skipped:,} bad ones left out" if report.skipped else ""
    if report.changed is None:
        done = f"{report.added:,} added{new}{skipped}; {report.known:,} were there"
    else:
        done = f"nothing added; {report.known:,} are there, {len(report.changed):,} differ"
    say(f"{escaped(str(pack))}: {done}; {counted(report.total, 'image')} in all, "
        f"{report.seconds:.1f} s")  # fmt: skip
    for keys, what in (
        (report.changed, "differ in the source"),
        (report.deleted, "are not in the source"),
    ):
        if keys:
            say(f"{len(keys):,} {what}; the pack keeps what it has:")
            print_some([escaped(key) for key in keys], "(--json lists all)")
    say(f"digest {report.digest}")
