"""``packio warm``."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from packio.cli import _options as option
from packio.cli._output import escaped, print_json, say, warn
from packio.cli._progress import bytes_bar

if TYPE_CHECKING:
    from packio.packs.page_cache import WarmReport


def run(
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
    from packio.packs.page_cache import warm

    with bytes_bar(quiet=quiet or check) as progress:
        report = warm(pack, check=check, progress=progress)
    if not report.fits:
        sizes = f"the pack has {report.bytes:,} bytes, the memory has room for {report.available:,}"
        warn([f"{sizes}: not all of the pack can be in memory"])
    if as_json:
        totals = {"bytes": report.bytes, "before": report.before, "after": report.after}
        print_json(dataclasses.asdict(report) | totals)
    elif not quiet:
        _print(report, check=check)


def _print(report: WarmReport, *, check: bool) -> None:
    for file in report.files:
        shares = [_share(file.before, file.bytes)]
        shares += [] if check else [_share(file.after, file.bytes)]
        say("\t".join([escaped(str(file.path)), f"{file.bytes:,} bytes", " -> ".join(shares)]))
    before, after = (_share(count, report.bytes) for count in (report.before, report.after))
    read = f"{report.read / 1e6:,.1f} MB read in {report.seconds:.1f} s"
    say(
        f"{escaped(str(report.path))}: {before} of {report.bytes / 1e6:,.1f} MB in memory"
        + ("" if check else f", now {after}; {read}")
    )


def _share(count: int | None, size: int) -> str:
    return "?" if count is None else f"{count / max(size, 1):.0%}"
