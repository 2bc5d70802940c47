"""``packio verify``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from packio.cli._progress import ProgressLine
from packio.errors import IntegrityError, ReadError

if TYPE_CHECKING:
    from packio.inspecting.verifying import Damage, VerifyReport


def run(
    pack: Annotated[Path, typer.Argument(metavar="PACK", help="The pack to check.")],
    decode: Annotated[
        bool, typer.Option("--decode", help="Decode every image as well; takes longer.")
    ] = False,
    rebuild_index: Annotated[
        bool,
        typer.Option(
            "--rebuild-index",
            help="Make a missing or damaged index anew, if the container is sound.",
        ),
    ] = False,
    num_workers: Annotated[
        int | None, typer.Option(min=1, help="Threads; by default one for each processor.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress, no summary: damages only.")
    ] = False,
) -> None:
    """Check every byte of a pack, and print everything that is damaged, one line each.

    A line is FILE, RECORD, KEY and the problem, with tabs between. Exit code 0 says that the pack
    is as it was written, 65 that it is damaged, 74 that some of it cannot be read.

    With --rebuild-index, a missing or damaged index is made anew once every image of the container
    has been read and decoded and nothing is wrong there; warnings say what cannot be restored. An
    index whose checksums hold is never replaced.

    Example: packio verify photos.lmdb

    Example: packio verify photos.lmdb --decode --json | jq .damages

    Example: packio verify photos.lmdb --rebuild-index
    """
    from packio.inspecting.verifying import verify

    with ProgressLine(quiet=quiet) as progress:
        report = verify(
            pack,
            decode=decode,
            rebuild_index=rebuild_index,
            num_workers=num_workers,
            progress=progress,
        )
    if as_json:
        print(json.dumps(_summary(report)))
    else:
        _print(report, pack, quiet=quiet)
    if not report.ok:
        unreadable = any(damage.unreadable for damage in report.damages)
        raise typer.Exit(ReadError.exit_code if unreadable else IntegrityError.exit_code)


def _summary(report: VerifyReport) -> dict[str, Any]:
    return dataclasses.asdict(report) | {"path": str(report.path), "ok": report.ok}


def _print(report: VerifyReport, pack: Path, *, quiet: bool) -> None:
    from packio.cli._output import escaped

    for damage in report.damages:
        print(_line(damage))
    if quiet:
        return
    for warning in report.warnings:
        print(f"warning: {escaped(warning)}")
    count = len(report.damages)
    found = "all as they were packed" if report.ok else f"{count:,} damage{'s' * (count != 1)}"
    print(
        f"{escaped(str(pack))}: {report.samples:,} samples in {report.files:,} files, "
        f"{report.bytes / 1e6:,.1f} MB, {report.seconds:.1f} s: {found}"
    )


def _line(damage: Damage) -> str:
    from packio.cli._output import escaped

    position = "-" if damage.position is None else str(damage.position)
    key = "-" if damage.key is None else escaped(damage.key)
    place = "" if damage.offset is None else f" ({damage.length} bytes at {damage.offset})"
    return "\t".join([escaped(damage.file), position, key, escaped(damage.problem) + place])
