"""``packio reindex``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from packio.cli._output import counted, escaped


def run(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The container to index.")],
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
        typer.Option(metavar="NAME", help="Where the labels are; an empty name: no labels."),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            metavar="ORDER",
            help="Order of pixels that are not encoded: HWC or CHW, RGB or BGR, or HWC,BGR.",
        ),
    ] = None,
    seek_points: Annotated[
        bool,
        typer.Option(
            "--seek-points/--no-seek-points",
            help="Keep in the index where the decoding of a JPEG may begin: crops decode faster.",
        ),
    ] = True,
) -> None:
    """Index a container anew: a pack that lost its index, or a container that others wrote.

    Example: packio reindex train.lmdb

    Example: packio reindex theirs.lmdb --label-offset -1

    Example: packio reindex train.h5 --image train/frames --label train/target --layout BGR
    """
    import packio

    index = packio.reindex(
        path, label_offset=label_offset, trust_plain_pickle=trust_plain_pickle, image=image,
        label=label, layout=layout, seek_points=seek_points,
    )  # fmt: skip
    with packio.open(path) as pack:
        print(
            f"{escaped(str(index))}: {counted(len(pack), 'sample')}, "
            f"{pack.metadata['counts']['skipped']:,} skipped, {counted(len(pack.classes), 'class')}"
        )
