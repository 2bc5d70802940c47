"""``packio extract``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from packio.cli import _options as option
from packio.cli._output import counted, escaped
from packio.cli._progress import ProgressLine


def run(
    pack: option.Pack,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to make.")],
    classes: option.Classes = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUT, with ALL that is in it, in one step.")
    ] = False,
    as_json: option.Json = False,
    quiet: option.Quiet = False,
) -> None:
    """Write the samples of a pack into a folder. A sample's key is its path; its bytes stay equal.

    OUT appears in one step, when all of it is written and on disk. Nothing is written outside OUT.
    A class without samples becomes an empty folder.

    Example: packio extract photos.lmdb photos

    Example: packio extract photos.lmdb pets --class cats --class dogs
    """
    from packio.inspecting.extracting import extract

    with ProgressLine(quiet=quiet) as progress:
        report = extract(pack, out, classes=classes or None, overwrite=overwrite, progress=progress)
    if as_json:
        values = {name: getattr(report, name) for name in type(report).__slots__}
        print(json.dumps(values | {"out": str(report.out)}))
    elif not quiet:
        empty = f", empty classes: {report.empty_classes:,}" if report.empty_classes else ""
        print(f"{escaped(str(out))}/: {counted(report.samples, 'file')}{empty}, "
              f"{report.bytes / 1e6:,.1f} MB, {report.seconds:.1f} s")  # fmt: skip
        if report.seekable:
            print(f"{report.seekable:,} of them are seekable JPEGs: pixels as in the source, bytes "
                  "as in the pack")  # fmt: skip
