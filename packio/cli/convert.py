"""``packio convert``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from packio.cli import _options as option
from packio.cli import _packing_options as group
from packio.cli._output import print_packed
from packio.cli._progress import ProgressLine
from packio.packing import convert


@group.takes(
    group.OUTPUT, group.FRAME, group.OLD_SAMPLES, group.IMAGES, group.SEEK_POINTS, group.LEVELS,
    group.RUN,
    group.of_plugins("formats"),
)  # fmt: skip
def run(
    source: Annotated[Path, typer.Argument(metavar="PACK",
        help="A pack, or a container that others wrote.")],
    out: option.Out,
    *,
    index: option.Index = None,
    as_json: option.Json = False,
    quiet: option.Quiet = False,
    more: dict[str, Any],
) -> None:  # fmt: skip
    """Turn a pack into another format. Images, labels, keys and all else stay as they are.

    Without further options no image is decoded. Each sample is compared with its checksum.

    Example: packio convert train.lmdb train.tar --shard-size 256MB

    Example: packio convert train.lmdb small.lmdb --resize short=256 --encode jpeg
    """
    with ProgressLine(quiet=quiet) as progress:
        report = convert(source, out, index=index, progress=progress, **more)
    print_packed(report, out, as_json=as_json, quiet=quiet)
