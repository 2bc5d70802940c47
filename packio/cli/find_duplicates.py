"""``packio find-duplicates``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from packio.cli import _options as option
from packio.cli._output import counted, escaped, print_json, say
from packio.cli._progress import ProgressLine
from packio.images.perceptual import MOST, THRESHOLD

_SHOWN = 20


def run(
    pack: option.Pack,
    threshold: Annotated[int, typer.Option(min=0, max=MOST, metavar="BITS",
        help="Bits of 64 that hashes may differ in.")] = THRESHOLD,
    html: Annotated[Path | None, typer.Option(metavar="FILE",
        help="Write a page that shows the pairs.")] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N",
        help="Most pairs on the page, the most alike first.")] = 500,
    index: option.Index = None,
    as_json: option.Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q",
        help="Show near-duplicates only: no progress, no summary.")] = False,
) -> None:  # fmt: skip
    """Find images that look alike: the same photograph encoded anew, resized or slightly changed.

    All images are decoded, and a perceptual hash of 64 bits is made of each. Cropped and mirrored
    copies are not found. `packio pack --dedupe near` leaves near-duplicates out.

    Example: packio find-duplicates photos.lmdb --html duplicates.html

    Example: packio find-duplicates photos.lmdb --json | jq -r '.found[].key'
    """
    import packio
    from packio.inspecting.duplicates import find_duplicates

    with ProgressLine(quiet=quiet) as line, packio.open(pack, index=index) as opened:
        report = find_duplicates(
            opened, threshold=threshold, html=html, limit=limit, progress=line.counting("decoding")
        )
    if as_json:
        print_json({"samples": report.samples, "undecoded": list(report.undecoded),
                    "found": [dataclasses.asdict(pair) for pair in report.found]})  # fmt: skip
        return
    for pair in report.found[:_SHOWN]:
        other = "" if pair.same_label is not False else ", labels differ"
        say(f"{escaped(pair.key)} looks like {escaped(pair.of_key)} "
              f"({pair.distance} of 64 bits{other})")  # fmt: skip
    if len(report.found) > _SHOWN:
        say(f"and {len(report.found) - _SHOWN:,} more; --json lists all")
    if quiet:
        return
    bad = f", {counted(len(report.undecoded), 'image')} not decoded" if report.undecoded else ""
    page = f": {escaped(str(report.html))}" if report.html is not None else ""
    say(f"{counted(len(report.found), 'near-duplicate')} among "
          f"{counted(report.samples, 'sample')}{bad}{page}")  # fmt: skip
