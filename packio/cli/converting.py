"""``packio convert``, ``merge`` and ``reindex``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from packio import packing
from packio.cli import _options as option
from packio.cli import _packing_options as group
from packio.cli._output import ProgressLine, bytes_bar, escape, print_json, print_packed, say
from packio.errors import OptionError
from packio.system.quantities import pluralize


@group.takes(
    group.OUTPUT, group.FRAME, group.OLD_SAMPLES, group.IMAGES, group.SEEK_POINTS, group.LEVELS,
    group.RUN,
    group.plugin_options("formats"),
)  # fmt: skip
def convert(
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
        report = packing.convert(source, out, index=index, progress=progress, **more)
    print_packed(report, out, as_json=as_json, quiet=quiet, encode=more.get("encode"))


@group.takes(group.OUTPUT, group.LEVELS, group.RUN, group.plugin_options("formats"))
def merge(
    packs: Annotated[list[Path], typer.Argument(metavar="PACK…",
        help="The packs to merge, two or more.")],
    *,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="OUT",
        help="Pack to make. The suffix says the format: x.tar")] = None,
    prefix: Annotated[bool, typer.Option("--prefix", help="Put the name of each pack before its "
        "keys, as monday/: where keys are shared.")] = False,
    as_json: option.Json = False,
    quiet: option.Quiet = False,
    more: dict[str, Any],
) -> None:  # fmt: skip
    """Make one pack of several: all samples are copied.

    Classes are numbered anew, by name: the classes of the first pack keep their numbers. A key that
    two of the packs have is an error, unless --prefix tells them apart.

    Example: packio merge monday.tar tuesday.tar -o all.tar --shard-size 1GB
    """
    if out is None:
        raise OptionError(f"-o says which pack to make, as: {_with_out(packs)}")
    with ProgressLine(quiet=quiet) as progress:
        report = packing.merge(out, packs, prefix=prefix, progress=progress, **more)
    print_packed(report, out, as_json=as_json, quiet=quiet)


def _with_out(packs: list[Path]) -> str:
    """The command of somebody who named the output last or first, or forgot it."""
    for out in (packs[-1], packs[0]):
        if len(packs) > 2 and not out.exists():
            others = [str(pack) for pack in packs if pack is not out]
            return shlex.join(["packio", "merge", *others, "-o", str(out)])
    return "packio merge A.tar B.tar -o ALL.tar"


@group.takes(group.REINDEXING)
def reindex(
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
        say(f"{escape(str(place))}: {pluralize(samples, 'sample')}, {skipped:,} skipped, "
              f"{pluralize(classes, 'class')}")  # fmt: skip
