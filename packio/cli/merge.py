"""``packio merge``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from packio.cli import _options as option
from packio.cli import _packing_options as group
from packio.cli._output import print_packed
from packio.cli._progress import ProgressLine
from packio.errors import OptionError
from packio.packing.making import merge


@group.takes(group.OUTPUT, group.LEVELS, group.RUN, group.of_plugins("formats"))
def run(
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
        report = merge(out, packs, prefix=prefix, progress=progress, **more)
    print_packed(report, out, as_json=as_json, quiet=quiet)


def _with_out(packs: list[Path]) -> str:
    """The command of somebody who named the output last or first, or forgot it."""
    for out in (packs[-1], packs[0]):
        if len(packs) > 2 and not out.exists():
            others = [str(pack) for pack in packs if pack is not out]
            return shlex.join(["packio", "merge", *others, "-o", str(out)])
    return "packio merge A.tar B.tar -o ALL.tar"
