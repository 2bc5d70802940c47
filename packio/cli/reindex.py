"""``packio reindex``: make the index of a container anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The container to index.")],
    label_offset: Annotated[
        int, typer.Option(help="Add this to int labels: -1 makes labels from 1 begin at 0.")
    ] = 0,
    trust_plain_pickle: Annotated[
        bool,
        typer.Option(
            "--trust-plain-pickle",
            help="Read LMDB values that are pickles of plain data; nothing in them is run.",
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
        typer.Option(metavar="NAME", help="Where the labels are; an empty name takes none."),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            metavar="ORDER",
            help="Order of pixels that are not encoded: HWC or CHW, RGB or BGR, or HWC,BGR.",
        ),
    ] = None,
) -> None:
    """Index a container anew: a pack that lost its index, or a container of others.

    Example: packio reindex train.lmdb

    Example: packio reindex train.lmdb --label-offset -1

    Example: packio reindex train.h5 --image train/frames --label train/target --layout BGR
    """
    import packio
    from packio.cli._output import escaped

    index = packio.reindex(
        path,
        label_offset=label_offset,
        trust_plain_pickle=trust_plain_pickle,
        image=image,
        label=label,
        layout=layout,
    )
    with packio.open(path) as pack:
        skipped = pack.metadata["counts"]["skipped"]
        print(
            f"{escaped(str(index))}: {len(pack):,} samples, {skipped:,} skipped, "
            f"{len(pack.classes):,} classes"
        )
