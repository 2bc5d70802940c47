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
) -> None:
    """Index a container anew: a pack that lost its index, or a database of others.

    Example: packio reindex train.lmdb

    Example: packio reindex train.lmdb --label-offset -1
    """
    import packio
    from packio.cli._output import escaped

    index = packio.reindex(path, label_offset=label_offset, trust_plain_pickle=trust_plain_pickle)
    with packio.open(path) as pack:
        skipped = pack.metadata["counts"]["skipped"]
        print(
            f"{escaped(str(index))}: {len(pack):,} samples, {skipped:,} skipped, "
            f"{len(pack.classes):,} classes"
        )
