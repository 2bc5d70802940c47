"""``packio extract``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from packio.cli import _options as option
from packio.cli._output import counted, escaped, print_json, say
from packio.cli._progress import ProgressLine

if TYPE_CHECKING:
    from packio.inspecting.extracting import ExtractReport


def run(
    pack: option.Pack,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to make.")],
    classes: option.Classes = None,
    split: option.Split = None,
    fields: Annotated[str | None, typer.Option(metavar="NAMES", help="Extract only these, as "
        "image,mask,label: fields, label, split, boxes, meta. Not given: all but levels.")] = None,
    index: option.Index = None,
    overwrite: Annotated[bool, typer.Option("--overwrite",
        help="Replace OUT, with ALL that is in it, in one step.")] = False,
    as_json: option.Json = False,
    quiet: option.Quiet = False,
) -> None:  # fmt: skip
    """Write the samples of a pack into a folder. A sample's key is its path; its bytes stay equal.

    A field lies beside the image: the mask of cat/1.jpg is cat/1.mask.png. What no file says
    (labels, splits, boxes, metadata) is in OUT/packio.jsonl, one line a sample; boxes with classes
    are in OUT/packio.coco.json, too. If there is such a file, the command ends with the command
    that packs OUT again. OUT appears in one step, when everything is on disk. Nothing is written
    outside OUT. A class without samples becomes an empty folder.

    Example: packio extract photos.lmdb photos

    Example: packio extract photos.lmdb pets --class cats --class dogs

    Example: packio extract photos.lmdb photos --fields image
    """
    import packio
    from packio.inspecting.extracting import extract

    chosen = None if fields is None else [name.strip() for name in fields.split(",")]
    with ProgressLine(quiet=quiet) as progress, packio.open(pack, index=index) as opened:
        report = extract(
            opened, out, classes=classes or None, split=split, fields=chosen, overwrite=overwrite,
            progress=progress,
        )  # fmt: skip
    if as_json:
        print_json(report)
    elif not quiet:
        _print(report)


def _print(report: ExtractReport) -> None:
    empty = f", empty classes: {report.empty_classes:,}" if report.empty_classes else ""
    files = sum(report.fields.values())
    each = ", ".join(f"{escaped(name)} {count:,}" for name, count in report.fields.items())
    say(f"{escaped(str(report.out))}/: {counted(files, 'file')}{empty}, "
          f"{report.bytes / 1e6:,.1f} MB, {report.seconds:.1f} s")  # fmt: skip
    if len(report.fields) > 1:
        say(f"files by field: {each}")
    if report.table is not None:
        told = ", ".join(("keys", *report.annotations, *list(report.fields)[1:]))
        say(f"{report.table.name}: {told}\npack it again: {report.command}")
