"""``packio view``."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from packio.cli import _options as option
from packio.cli._output import counted, escaped, say
from packio.cli._progress import ProgressLine
from packio.errors import OptionError

if TYPE_CHECKING:
    from packio.packs.opening import Pack


def run(
    pack: option.Pack,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE",
        help="The page (default: PACK.html here).")] = None,
    classes: option.Classes = None,
    split: option.Split = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N",
        help="Show N samples, spread evenly over the pack.")] = 500,
    size: Annotated[int, typer.Option(min=16, max=1024, metavar="PIXELS",
        help="Longer side of a thumbnail.")] = 128,
    originals: Annotated[Any, typer.Option(parser=option.byte_count, metavar="SIZE",
        help="Images that the page has as they are, the smallest first, as 20MB in all: enlarged, "
        "they show their own pixels.")] = "20MB",
    serve: Annotated[bool, typer.Option("--serve", help="Write no page: show all samples, in a "
        "pack of any size, by a server on this machine, until Ctrl-C.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535,
        help="Port of --serve; 0: one that is free.")] = 0,
    index: option.Index = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the web browser.")] = False,
    quiet: option.Quiet = False,
) -> None:  # fmt: skip
    """Make a contact sheet of a pack: thumbnails with keys, classes and sizes, to look through.

    The sheet is one HTML file that needs no other file: open it anywhere, send it to anyone. On the
    page you filter by class and key, turn pages (arrow keys) and enlarge. An image that cannot be
    decoded is shown as its error.

    Example: packio view photos.lmdb -o photos.html --open

    Enlarged, an image has a mask over it, with a slider, and its boxes with their classes.

    Example: packio view photos.lmdb -o cats.html --class cats --limit 2000 --size 64

    Example: packio view imagenet.lmdb --serve --open
    """
    import packio

    if serve:
        if out is not None:
            raise OptionError("--serve writes no page: leave --out away")
        with packio.open(pack, index=index) as opened:
            _serve(opened, classes, split, size, port, open_it=open_it)
        return
    from packio.inspecting.gallery import write_contact_sheet

    path = out if out is not None else Path(pack.resolve().name + ".html")
    with ProgressLine(quiet=quiet) as progress, packio.open(pack, index=index) as opened:
        report = write_contact_sheet(
            opened, path, classes=classes or None, split=split, limit=limit, size=size,
            originals=originals, progress=progress,
        )  # fmt: skip
    if not quiet:
        broken = f", {report.broken:,} of them broken" if report.broken else ""
        say(f"{escaped(str(path))}: {report.shown:,} of {counted(report.samples, 'sample')}"
              f"{broken}, {report.bytes / 1e6:,.1f} MB")  # fmt: skip
    if open_it:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


def _serve(
    pack: Pack, classes: list[str] | None, split: str | None, size: int, port: int, *, open_it: bool
) -> None:
    from packio.inspecting.gallery.serving import GalleryServer

    with GalleryServer(pack, classes=classes or None, split=split, size=size, port=port) as server:
        say(server.url, "Ctrl-C ends the server.")
        sys.stdout.flush()
        if open_it:
            import webbrowser

            webbrowser.open(server.url)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve()
