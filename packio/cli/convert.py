"""``packio convert``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from packio.cli._packing import byte_count, show
from packio.cli._plugin_options import with_plugin_options
from packio.cli._progress import ProgressLine
from packio.packing import convert


@with_plugin_options("formats")
def run(
    source: Annotated[
        Path, typer.Argument(metavar="A", help="A pack, or a container that others wrote.")
    ],
    out: Annotated[
        Path, typer.Argument(metavar="B", help="Pack to make; the suffix says the format.")
    ],
    *,
    format: Annotated[  # noqa: A002 (the option's name)
        str | None, typer.Option(help="Format of B, where the suffix does not say it.")
    ] = None,
    shards: Annotated[
        int, typer.Option(min=1, help="Shards to make; B is then a folder of them.")
    ] = 1,
    shard_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes of images a shard, as 256MB, instead.")
    ] = None,
    seekable: Annotated[
        bool,
        typer.Option(
            "--seekable",
            help="Put restart markers into JPEGs, without loss: crops then decode less.",
        ),
    ] = False,
    on_error: Annotated[
        str, typer.Option(metavar="raise|skip", help="Damaged samples: stop, or leave them out.")
    ] = "raise",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace B, in one step, at the end.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
    more: dict[str, Any],
) -> None:
    """Turn a pack into another format; images, labels, keys and all else stay as they are.

    Nothing is decoded. Every sample is checked against its checksum as it is read.

    Example: packio convert train.lmdb train.tar --shard-size 256MB
    """
    with ProgressLine(quiet=quiet) as progress:
        report = convert(
            source, out, format=format, shards=shards, shard_size=byte_count(shard_size),
            seekable=seekable, on_error=on_error, overwrite=overwrite, progress=progress, **more,
        )  # fmt: skip
    show(report, out, as_json=as_json, quiet=quiet)
