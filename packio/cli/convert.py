"""``packio convert``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from packio.cli import _options as option
from packio.cli._plugin_options import with_plugin_options
from packio.cli._progress import ProgressLine
from packio.cli._reports import show
from packio.packing import convert


@with_plugin_options("formats")
def run(
    source: Annotated[
        Path, typer.Argument(metavar="A", help="A pack, or a container that others wrote.")
    ],
    out: Annotated[
        Path, typer.Argument(metavar="B", help="Pack to make. The suffix says the format: x.tar")
    ],
    *,
    format: option.Format = None,  # noqa: A002 (the option's name)
    shards: option.Shards = 1,
    shard_size: option.ShardSize = None,
    seekable: option.Seekable = False,
    on_error: option.OnError = "raise",
    overwrite: option.Overwrite = False,
    as_json: option.Json = False,
    quiet: option.Quiet = False,
    more: dict[str, Any],
) -> None:
    """Turn a pack into another format. Images, labels, keys and all else stay as they are.

    No image is decoded. Each sample that is read is compared with its checksum.

    Example: packio convert train.lmdb train.tar --shard-size 256MB
    """
    with ProgressLine(quiet=quiet) as progress:
        report = convert(
            source, out, format=format, shards=shards, shard_size=shard_size, seekable=seekable,
            on_error=on_error, overwrite=overwrite, progress=progress, **more,
        )  # fmt: skip
    show(report, out, as_json=as_json, quiet=quiet)
