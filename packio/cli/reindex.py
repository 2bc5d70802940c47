"""``packio reindex``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from packio.cli import _options as option
from packio.cli._output import counted, escaped, print_json, say
from packio.cli._progress import bytes_bar


def run(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="The container to index; or a URL, with braces for several objects.",
        ),
    ],
    label_offset: Annotated[
        int, typer.Option(help="Add this to int labels: -1 makes labels from 1 begin at 0.")
    ] = 0,
    trust_plain_pickle: Annotated[
        bool,
        typer.Option(
            "--trust-plain-pickle",
            help="Read LMDB values that are pickles of plain data. Nothing in them is executed.",
        ),
    ] = False,
    image: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Where the images are: dataset of HDF5, array of N5 and Zarr, key or position in "
            "a .pth, feature of TFRecords.",
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            "--label",
            "--label-col",
            metavar="NAME",
            help="Where the labels are, also a member of the metadata; an empty name: no labels.",
        ),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            metavar="ORDER",
            help="Order of pixels that are not encoded: HWC or CHW, RGB or BGR, or HWC,BGR.",
        ),
    ] = None,
    database: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which of several databases in an LMDB.")
    ] = None,
    seek_points: Annotated[
        bool | None,
        typer.Option(
            "--seek-points/--no-seek-points",
            help="Keep in the index where the decoding of a JPEG may begin: crops decode faster. "
            "Done for files, unless you say no; for objects at URLs, if you say so.",
        ),
    ] = None,
    index: Annotated[
        Path | None,
        typer.Option(
            "--index",
            metavar="PLACE",
            help="File or URL where the index goes, if not beside the container.",
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="local|ray|ray:ADDRESS",
            help="Where objects at URLs are read.",
        ),
    ] = "local",
    threads: Annotated[
        int,
        typer.Option(
            "--threads",
            min=1,
            metavar="N",
            help="Threads; each reads an object at a URL at a time.",
        ),
    ] = 8,
    _workers: option.NoWorkers = None,
    as_json: option.Json = False,
    quiet: option.Quiet = False,
) -> None:
    """Index a container anew: a pack that lost its index, or a container that others wrote.

    Example: packio reindex train.lmdb

    Example: packio reindex theirs.lmdb --label-offset -1

    Example: packio reindex train.h5 --image train/frames --label train/target --layout BGR

    Example: packio reindex theirs.tar --label-col caption

    Example: packio reindex 's3://theirs/train-{000..127}.tar' --index train.packio

    Example: packio reindex 's3://theirs/train-{0000..4095}.tar' --index train.packio --engine ray
    """
    import packio

    with bytes_bar(quiet=quiet) as progress:
        place = packio.reindex(
            path, label_offset=label_offset, trust_plain_pickle=trust_plain_pickle, image=image,
            label=label, layout=layout, database=database, seek_points=seek_points, index=index,
            num_workers=threads, engine=engine, progress=progress,
        )  # fmt: skip
    if quiet and not as_json:
        return
    with packio.open(path, index=index) as pack:
        samples, classes = len(pack), len(pack.classes)
        skipped = pack.metadata["counts"]["skipped"]
    if as_json:
        print_json({"index": str(place), "samples": samples, "skipped": skipped,
                    "classes": classes})  # fmt: skip
    else:
        say(f"{escaped(str(place))}: {counted(samples, 'sample')}, {skipped:,} skipped, "
              f"{counted(classes, 'class')}")  # fmt: skip
