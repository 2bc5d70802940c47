"""``packio view``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from packio.cli import _options as option
from packio.cli._output import counted, escaped
from packio.cli._progress import ProgressLine


def run(
    pack: option.Pack,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The page (default: PACK.html here)."),
    ] = None,
    classes: option.Classes = None,
    split: option.Split = None,
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="Show N samples, spread evenly over the pack.")
    ] = 500,
    size: Annotated[
        int, typer.Option(min=16, max=1024, metavar="PIXELS", help="Longer side of a thumbnail.")
    ] = 128,
    index: option.Index = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the web browser.")] = False,
    quiet: option.Quiet = False,
) -> None:
    """Make a contact sheet of a pack: thumbnails with keys, classes and sizes, to look through.

    The sheet is one HTML file that needs no other file: open it anywhere, send it to anyone. On the
    page you filter by class and key, turn pages (arrow keys) and enlarge. An image that cannot be
    decoded is shown as its error.

    Example: packio view photos.lmdb -o photos.html --open

    Example: packio view photos.lmdb -o cats.html --class cats --limit 2000 --size 64
    """
    import packio
    from packio.inspecting.gallery import write_contact_sheet

    path = out if out is not None else Path(pack.resolve().name + ".html")
    with ProgressLine(quiet=quiet) as progress, packio.open(pack, index=index) as opened:
        report = write_contact_sheet(
            opened, path, classes=classes or None, split=split, limit=limit, size=size,
            progress=progress,
        )  # fmt: skip
    if not quiet:
        broken = f", {report.broken:,} of them broken" if report.broken else ""
        print(f"{escaped(str(path))}: {report.shown:,} of {counted(report.samples, 'sample')}"
              f"{broken}, {report.bytes / 1e6:,.1f} MB")  # fmt: skip
    if open_it:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
