"""``packio pack``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from packio.cli._packing import byte_count, show
from packio.cli._progress import ProgressLine
from packio.packing import pack


def run(
    source: Annotated[
        Path, typer.Argument(help="Folder of class folders of images; or a pack, to convert it.")
    ],
    out: Annotated[Path, typer.Argument(help="Pack to make; the suffix says the format: .lmdb")],
    format: Annotated[  # noqa: A002 (the option's name)
        str | None, typer.Option(help="Format, where the suffix does not say it.")
    ] = None,
    shards: Annotated[
        int, typer.Option(min=1, help="Shards to make; OUT is then a folder of them.")
    ] = 1,
    shard_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes of images a shard, as 256MB, instead.")
    ] = None,
    classes_from: Annotated[
        Path | None,
        typer.Option(help="Take class names and labels from this pack, or a file of one a line."),
    ] = None,
    on_error: Annotated[
        str,
        typer.Option(
            metavar="raise|skip",
            help="Bad images: 'raise' lists them all and packs nothing; 'skip' leaves them out "
            "and lists them in OUT.skipped.jsonl.",
        ),
    ] = "raise",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUT, in one step, at the end.")
    ] = False,
    num_workers: Annotated[
        int | None, typer.Option(help="Threads that read ahead [default: 4 a processor].")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
) -> None:
    """Pack a folder of images into one container, byte for byte.

    The folder is read as torchvision's ImageFolder reads it: one folder a class, any depth below.
    Images are not decoded or changed; the same folder always gives the same bytes. OUT appears only
    when it is complete and on disk; run the same command again after an interruption.

    Example: packio pack train train.lmdb && packio pack val val.lmdb --classes-from train.lmdb
    """
    with ProgressLine(quiet=quiet) as progress:
        report = pack(
            source, out, format=format, shards=shards, shard_size=byte_count(shard_size),
            classes_from=classes_from, num_workers=num_workers, on_error=on_error,
            overwrite=overwrite, progress=progress,
        )  # fmt: skip
    show(report, out, as_json=as_json, quiet=quiet)
