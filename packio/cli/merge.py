"""``packio merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from packio.cli._packing import byte_count, show
from packio.cli._progress import ProgressLine
from packio.packing.merging import merge


def run(
    out: Annotated[Path, typer.Argument(help="Pack to make; the suffix says the format.")],
    packs: Annotated[list[Path], typer.Argument(help="Packs to make it of, two or more.")],
    by: Annotated[
        str,
        typer.Option(
            metavar="copy|link",
            help="'copy' every sample, into any format; or 'link' to shards, all of one format: "
            "nothing is copied, and the packs may be deleted afterwards.",
        ),
    ] = "copy",
    shards: Annotated[int | None, typer.Option(min=1, help="Shards to make, of copies.")] = None,
    shard_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes of images a shard, of copies.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
) -> None:
    """Make one pack of several.

    Classes are counted anew by name: those of the first pack keep their numbers. A key that is in
    two of the packs is refused.

    Example: packio merge all.tar monday.tar tuesday.tar --by link
    """
    options: dict[str, Any] = {"shards": shards, "shard_size": byte_count(shard_size)}
    given = {name: value for name, value in options.items() if value is not None}
    with ProgressLine(quiet=quiet or by != "copy") as progress:
        if by == "copy":
            given["progress"] = progress
        report = merge(out, packs, by=by, **given)
    show(report, out, as_json=as_json, quiet=quiet)
