"""``packio warm``: a pack brought into the page cache."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from packio.packs.residency import WarmReport


def run(
    pack: Annotated[Path, typer.Argument(metavar="PACK", help="The pack to bring into memory.")],
    check: Annotated[
        bool,
        typer.Option("--check", "--dry-run", help="Only show how much of it is there already."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no report.")] = False,
) -> None:
    """Read a pack into the page cache, as far as memory goes, so that the first epoch is fast, too.

    Shows for each file how much of it was in memory before, and is now. What does not fit is left
    out, with a warning.

    Example: packio warm train.lmdb

    Example: packio warm train.lmdb --check
    """
    from packio.packs.residency import warm

    with _bar(quiet=quiet or check) as progress:
        report = warm(pack, check=check, progress=progress)
    if not report.fits:
        print(
            f"packio: warning: the pack has {report.bytes:,} bytes, {report.available:,} of memory "
            "are available: it cannot all be in memory",
            file=sys.stderr,
        )
    if as_json:
        print(json.dumps(_summary(report)))
    elif not quiet:
        _print(report, check=check)


@contextlib.contextmanager
def _bar(*, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """What draws how far the reading is, on a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich import progress
    from rich.console import Console

    columns = (progress.BarColumn(), progress.DownloadColumn(), progress.TransferSpeedColumn())
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _summary(report: WarmReport) -> dict[str, object]:
    totals = {"bytes": report.bytes, "before": report.before, "after": report.after}
    files = [{**dataclasses.asdict(file), "path": str(file.path)} for file in report.files]
    return {**dataclasses.asdict(report), **totals, "path": str(report.path), "files": files}


def _print(report: WarmReport, *, check: bool) -> None:
    from packio.cli._output import escaped

    for file in report.files:
        shares = [_share(file.before, file.bytes)]
        shares += [] if check else [_share(file.after, file.bytes)]
        print("\t".join([escaped(str(file.path)), f"{file.bytes:,} bytes", " -> ".join(shares)]))
    before, after = (_share(count, report.bytes) for count in (report.before, report.after))
    name, size = escaped(str(report.path)), f"{report.bytes / 1e6:,.1f} MB"
    if check:
        print(f"{name}: {before} of {size} in memory")
        return
    print(
        f"{name}: {before} of {size} in memory, now {after}; {report.read / 1e6:,.1f} MB read in "
        f"{report.seconds:.1f} s"
    )


def _share(count: int | None, size: int) -> str:
    return "?" if count is None else f"{count / max(size, 1):.0%}"
