"""``packio merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from packio.cli import _options as option
from packio.cli._progress import ProgressLine
from packio.cli._reports import show
from packio.packing.merging import merge


def run(
    out: option.Out,
    packs: Annotated[list[Path], typer.Argument(help="The packs to merge, two or more.")],
    by: Annotated[
        str,
        typer.Option(
            metavar="copy|link",
            help="'copy' all samples, into any format; or 'link' the shards, which are all of one "
            "format: no byte is copied, and the old packs may be deleted afterwards.",
        ),
    ] = "copy",
    shards: Annotated[
        int | None, typer.Option(min=1, help="Number of shards to make, of copies.")
    ] = None,
    shard_size: option.ShardSize = None,
    as_json: option.Json = False,
    quiet: option.Quiet = False,
) -> None:
    """Make one pack of several.

    Classes are numbered anew, by name: the classes of the first pack keep their numbers. A key that
    two of the packs have is an error.

    Example: packio merge all.tar monday.tar tuesday.tar --by link
    """
    options: dict[str, Any] = {"shards": shards, "shard_size": shard_size}
    given = {name: value for name, value in options.items() if value is not None}
    with ProgressLine(quiet=quiet or by != "copy") as progress:
        if by == "copy":
            given["progress"] = progress
        report = merge(out, packs, by=by, **given)
    show(report, out, as_json=as_json, quiet=quiet)
