"""``packio reindex``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from packio.cli import _options as option
from packio.cli import _packing_options as group
from packio.cli._output import counted, escaped, print_json, say
from packio.cli._progress import bytes_bar


@group.takes(group.REINDEXING)
def run(
    path: Annotated[Path, typer.Argument(metavar="PATH",
        help="The container to index; or a URL, with braces for several objects.")],
    *,
    _workers: option.NoWorkers = None,
    as_json: option.Json = False,
    quiet: option.Quiet = False,
    more: dict[str, Any],
) -> None:  # fmt: skip
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
        place = packio.reindex(path, progress=progress, **more)
    if quiet and not as_json:
        return
    with packio.open(path, index=more.get("index")) as pack:
        samples, classes = len(pack), len(pack.classes)
        skipped = pack.metadata["counts"]["skipped"]
    if as_json:
        print_json({"index": str(place), "samples": samples, "skipped": skipped,
                    "classes": classes})  # fmt: skip
    else:
        say(f"{escaped(str(place))}: {counted(samples, 'sample')}, {skipped:,} skipped, "
              f"{counted(classes, 'class')}")  # fmt: skip
