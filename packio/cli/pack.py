"""``packio pack``."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from packio.cli._progress import ProgressLine
from packio.packing import pack
from packio.packing.report import PackReport


def run(
    source: Annotated[Path, typer.Argument(help="Folder of class folders of images.")],
    out: Annotated[Path, typer.Argument(help="Pack to make; the suffix says the format: .lmdb")],
    format: Annotated[  # noqa: A002 (the option's name)
        str | None, typer.Option(help="Format, where the suffix does not say it.")
    ] = None,
    classes_from: Annotated[
        Path | None,
        typer.Option(help="Take class names and labels from this pack, or a file of one a line."),
    ] = None,
    on_error: Annotated[
        str,
        typer.Option(
            metavar="raise|skip",
            help="Bad images: 'raise' lists them all and packs nothing; 'skip' leaves them out "
            "and lists them in OUT.skipped.jsonl.",
        ),
    ] = "raise",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUT, in one step, at the end.")
    ] = False,
    num_workers: Annotated[
        int | None, typer.Option(help="Threads that read ahead [default: 4 a processor].")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
) -> None:
    """Pack a folder of images into one container, byte for byte.

    The folder is read as torchvision's ImageFolder reads it: one folder a class, any depth below.
    Images are not decoded or changed; the same folder always gives the same bytes. OUT appears only
    when it is complete and on disk; run the same command again after an interruption.

    Example: packio pack train train.lmdb && packio pack val val.lmdb --classes-from train.lmdb
    """
    with ProgressLine(quiet=quiet) as progress:
        report = pack(
            source, out, format=format, classes_from=classes_from, num_workers=num_workers,
            on_error=on_error, overwrite=overwrite, progress=progress,
        )  # fmt: skip
    for warning in report.warnings:
        print(f"packio: warning: {warning}", file=sys.stderr)
    if as_json:
        print(json.dumps(_summary(report)))
    elif not quiet:
        _print_summary(report, out)


def _summary(report: PackReport) -> dict[str, object]:
    values = dataclasses.asdict(report)
    values["skipped"] = [s.as_json() for s in report.skipped]
    values["out"], values["skipped_file"] = str(report.out), str(report.skipped_file or "") or None
    return values


def _print_summary(report: PackReport, out: Path) -> None:
    if report.up_to_date:
        print(f"{out}: up to date ({report.packed:,} images)")
        return
    seconds = max(report.seconds, 1e-6)
    print(
        f"{out}: {report.packed:,} images in {report.classes:,} classes, "
        f"{report.source_bytes / 1e6:,.1f} MB of images in {report.out_bytes / 1e6:,.1f} MB, "
        f"{seconds:.1f} s ({report.packed / seconds:,.0f} img/s, "
        f"{report.source_bytes / seconds / 1e6:,.0f} MB/s)"
    )
    if report.skipped:
        print(
            f"{len(report.skipped):,} of {report.found:,} skipped, listed in {report.skipped_file}"
        )
    print(f"digest {report.digest}")
