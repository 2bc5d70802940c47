"""``packio cache``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from packio.cli import _options as option
from packio.cli._output import escaped, print_json, say


def run(
    local_copy: Annotated[list[Path] | None, typer.Option("--local-copy",
        help="Show this folder, which datasets had as local_copy=, instead.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove what is shown.")] = False,
    as_json: option.Json = False,
) -> None:  # fmt: skip
    """Show what packio keeps on this machine beside packs, and clear it.

    packio keeps indexes of packs at URLs and of containers without one, listings of folders, and
    what it knows of sources, in $PACKIO_CACHE_DIR, or in ~/.cache/packio. Datasets with local_copy=
    keep copies of packs, or of samples, in a folder of their own: --local-copy shows and clears
    such a folder, and nothing else. All of it can be made again.
    Clear copies while no dataset reads them. Unfinished uploads are shown and stay.

    Example: packio cache

    Example: packio cache --local-copy /scratch --clear
    """
    from packio.packs import caches

    listed = caches.list_kept(local_copy or ())
    removed = caches.clear(listed) if clear else []
    if as_json:
        print_json([
            {"path": str(c.path), "what": c.what, "bytes": c.bytes, "used": c.used,
             "removed": c in removed} for c in listed
        ])  # fmt: skip
        return
    for item in listed:
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(item.used))
        end = "removed" if item in removed else day
        say(f"{escaped(str(item.path))}\t{escaped(item.what)}\t{item.bytes:,} bytes\t{end}")
    total, gone = (sum(c.bytes for c in some) for some in (listed, removed))
    say(f"{total:,} bytes" + (f", {gone:,} of them removed" if clear else ""))
