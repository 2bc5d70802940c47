"""``packio extract``: a pack becomes a folder of files again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from packio.cli._progress import ProgressLine


def run(
    pack: Annotated[Path, typer.Argument(metavar="PACK", help="The pack to extract.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to make.")],
    classes: Annotated[
        list[str] | None,
        typer.Option("--class", metavar="NAME", help="Only this class; may be given again."),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace OUT and ALL that is in it, in one step."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
) -> None:
    """Write the samples of a pack into a folder, byte for byte, at the paths that are their keys.

    OUT appears in one step when all of it is written and on disk. Nothing is ever written outside
    it. Classes that have no sample become empty folders.

    Example: packio extract photos.lmdb photos

    Example: packio extract photos.lmdb pets --class cats --class dogs
    """
    from packio.cli._output import escaped
    from packio.inspecting.extracting import extract

    with ProgressLine(quiet=quiet) as progress:
        report = extract(pack, out, classes=classes or None, overwrite=overwrite, progress=progress)
    if as_json:
        values = {name: getattr(report, name) for name in type(report).__slots__}
        print(json.dumps(values | {"out": str(report.out)}))
    elif not quiet:
        empty = f", empty classes: {report.empty_classes:,}" if report.empty_classes else ""
        print(
            f"{escaped(str(out))}/: {report.samples:,} files{empty}, "
            f"{report.bytes / 1e6:,.1f} MB, {report.seconds:.1f} s"
        )
        if report.seekable:
            print(
                f"{report.seekable:,} of them are seekable JPEGs: pixels as in the source, bytes "
                "as in the pack"
            )
