"""``packio verify``, ``find-duplicates``, ``warm`` and ``cache``."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from packio.cli import _options as option
from packio.cli._output import ProgressLine, bytes_bar, escape, print_json, say, warn
from packio.errors import IntegrityError, ReadError
from packio.images.perceptual import MOST, THRESHOLD
from packio.system.quantities import pluralize

if TYPE_CHECKING:
    from packio.packs.page_cache import WarmReport


def verify(
    pack: option.Pack,
    decode: Annotated[bool, typer.Option("--decode",
        help="Decode every image as well; this takes longer.")] = False,
    index: option.Index = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, metavar="N",
        help="Threads (default: one a CPU).")] = None,
    _workers: option.NoWorkers = None,
    as_json: option.Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q",
        help="Show damage only: no progress, no summary.")] = False,
) -> None:  # fmt: skip
    """Check every byte of a pack, and print all damage, one line for each place.

    A line is FILE, RECORD, KEY and the problem, with tabs between. Exit code 0: the pack is as it
    was written. 65: it is damaged. 74: a part of it cannot be read.

    Nothing is changed: `packio reindex` makes a missing or damaged index anew.

    Example: packio verify photos.lmdb

    Example: packio verify photos.lmdb --decode --json | jq .damages
    """
    from packio.inspecting import verifying

    with ProgressLine(quiet=quiet) as progress:
        report = verifying.verify(
            pack, decode=decode, index=index, num_workers=threads, progress=progress
        )
    if as_json:
        print_json(dataclasses.asdict(report) | {"ok": report.ok})
    else:
        for damage in report.damages:
            position = "-" if damage.position is None else str(damage.position)
            key = "-" if damage.key is None else escape(damage.key)
            place = "" if damage.offset is None else f" ({damage.length} bytes at {damage.offset})"
            problem = escape(damage.problem) + place
            say("\t".join([escape(damage.file), position, key, problem]))
    if not as_json and not quiet:
        warn(escape(warning) for warning in report.warnings)
        found = "all as they were packed" if report.ok else pluralize(len(report.damages), "damage")
        say(f"{escape(str(pack))}: {pluralize(report.samples, 'sample')} in "
            f"{pluralize(report.files, 'file')}, {report.bytes / 1e6:,.1f} MB, "
            f"{report.seconds:.1f} s: {found}")  # fmt: skip
    if not report.ok:
        unreadable = any(damage.unreadable for damage in report.damages)
        raise typer.Exit(ReadError.exit_code if unreadable else IntegrityError.exit_code)


_SHOWN_PAIRS = 20


def find_duplicates(
    pack: option.Pack,
    threshold: Annotated[int, typer.Option(min=0, max=MOST, metavar="BITS",
        help="Bits of 64 that hashes may differ in.")] = THRESHOLD,
    html: Annotated[Path | None, typer.Option(metavar="FILE", callback=option.on_disk,
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
    from packio.inspecting import duplicates

    with ProgressLine(quiet=quiet) as line, packio.open(pack, index=index) as opened:
        report = duplicates.find_duplicates(
            opened, threshold=threshold, html=html, limit=limit, progress=line.counting("decoding")
        )
    if as_json:
        print_json({"samples": report.samples, "undecoded": list(report.undecoded),
                    "found": [dataclasses.asdict(pair) for pair in report.found]})  # fmt: skip
        return
    for pair in report.found[:_SHOWN_PAIRS]:
        other = "" if pair.same_label is not False else ", labels differ"
        say(f"{escape(pair.key)} looks like {escape(pair.of_key)} "
              f"({pair.distance} of 64 bits{other})")  # fmt: skip
    if len(report.found) > _SHOWN_PAIRS:
        say(f"and {len(report.found) - _SHOWN_PAIRS:,} more; --json lists all")
    if quiet:
        return
    bad = f", {pluralize(len(report.undecoded), 'image')} not decoded" if report.undecoded else ""
    page = f": {escape(str(report.html))}" if report.html is not None else ""
    say(f"{pluralize(len(report.found), 'near-duplicate')} among "
          f"{pluralize(report.samples, 'sample')}{bad}{page}")  # fmt: skip


def warm(
    pack: option.Pack,
    check: Annotated[bool, typer.Option("--dry-run", "--check",
        help="Only show how much is in memory already.")] = False,
    as_json: option.Json = False,
    quiet: option.Quiet = False,
) -> None:  # fmt: skip
    """Read a pack into the page cache, as far as memory allows, so that the first epoch is fast.

    Shows for each file how much was in memory before, and how much is now. Files without room are
    left out, with a warning.

    Example: packio warm train.lmdb

    Example: packio warm train.lmdb --dry-run
    """
    from packio.packs import page_cache

    with bytes_bar(quiet=quiet or check) as progress:
        report = page_cache.warm(pack, check=check, progress=progress)
    if not report.fits:
        sizes = f"the pack has {report.bytes:,} bytes, the memory has room for {report.available:,}"
        warn([f"{sizes}: not all of the pack can be in memory"])
    if as_json:
        totals = {"bytes": report.bytes, "before": report.before, "after": report.after}
        print_json(dataclasses.asdict(report) | totals)
    elif not quiet:
        _print_warm(report, check=check)


def _print_warm(report: WarmReport, *, check: bool) -> None:
    for file in report.files:
        shares = [_share(file.before, file.bytes)]
        shares += [] if check else [_share(file.after, file.bytes)]
        say("\t".join([escape(str(file.path)), f"{file.bytes:,} bytes", " -> ".join(shares)]))
    before, after = (_share(count, report.bytes) for count in (report.before, report.after))
    read = f"{report.read / 1e6:,.1f} MB read in {report.seconds:.1f} s"
    say(
        f"{escape(str(report.path))}: {before} of {report.bytes / 1e6:,.1f} MB in memory"
        + ("" if check else f", now {after}; {read}")
    )


def _share(count: int | None, size: int) -> str:
    return "?" if count is None else f"{count / max(size, 1):.0%}"


def cache(
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
        say(f"{escape(str(item.path))}\t{escape(item.what)}\t{item.bytes:,} bytes\t{end}")
    total, gone = (sum(c.bytes for c in some) for some in (listed, removed))
    say(f"{total:,} bytes" + (f", {gone:,} of them removed" if clear else ""))
