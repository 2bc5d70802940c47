"""``packio view``: a contact sheet of a pack, as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from packio.cli._progress import ProgressLine


def run(
    pack: Annotated[Path, typer.Argument(metavar="PACK", help="The pack to look at.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The sheet [default: PACK.html here]."),
    ] = None,
    classes: Annotated[
        list[str] | None,
        typer.Option("--class", metavar="NAME", help="Only this class; may be given again."),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="Samples shown, spread evenly over the pack.")
    ] = 500,
    size: Annotated[
        int, typer.Option(min=16, max=1024, metavar="PIXELS", help="Edge of a thumbnail.")
    ] = 128,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the web browser.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
) -> None:
    """Make a contact sheet of a pack: thumbnails with keys, classes and sizes, to look through.

    The sheet is one HTML file without any external part: open it anywhere, send it to anyone. It
    filters by class and key, turns pages (arrow keys) and enlarges. Images that cannot be decoded
    are shown with their error.

    Example: packio view photos.lmdb -o photos.html --open

    Example: packio view photos.lmdb -o cats.html --class cats --limit 2000 --size 64
    """
    from packio.cli._output import escaped
    from packio.inspecting.gallery import write_contact_sheet

    path = out if out is not None else Path(pack.resolve().name + ".html")
    with ProgressLine(quiet=quiet) as progress:
        report = write_contact_sheet(
            pack, path, classes=classes or None, limit=limit, size=size, progress=progress
        )
    if not quiet:
        broken = f", {report.broken:,} of them broken" if report.broken else ""
        print(
            f"{escaped(str(path))}: {report.shown:,} of {report.samples:,} samples{broken}, "
            f"{report.bytes / 1e6:,.1f} MB"
        )
    if open_it:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
