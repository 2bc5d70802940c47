"""``packio verify``."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from packio.cli import _options as option
from packio.cli._output import counted, escaped, print_json, say, warn
from packio.cli._progress import ProgressLine
from packio.errors import IntegrityError, ReadError

if TYPE_CHECKING:
    from packio.inspecting.verifying import Damage


def run(
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
    from packio.inspecting.verifying import verify

    with ProgressLine(quiet=quiet) as progress:
        report = verify(
            pack, decode=decode, index=index, num_workers=threads, progress=progress
        )  # fmt: skip
    if as_json:
        print_json(dataclasses.asdict(report) | {"ok": report.ok})
    else:
        for damage in report.damages:
            say(_line(damage))
    if not as_json and not quiet:
        warn(escaped(warning) for warning in report.warnings)
        found = "all as they were packed" if report.ok else counted(len(report.damages), "damage")
        say(
            f"{escaped(str(pack))}: {counted(report.samples, 'sample')} in "
            f"{counted(report.files, 'file')}, "
            f"{report.bytes / 1e6:,.1f} MB, {report.seconds:.1f} s: {found}"
        )
    if not report.ok:
        unreadable = any(damage.unreadable for damage in report.damages)
        raise typer.Exit(ReadError.exit_code if unreadable else IntegrityError.exit_code)


def _line(damage: Damage) -> str:
    position = "-" if damage.position is None else str(damage.position)
    key = "-" if damage.key is None else escaped(damage.key)
    place = "" if damage.offset is None else f" ({damage.length} bytes at {damage.offset})"
    return "\t".join([escaped(damage.file), position, key, escaped(damage.problem) + place])
