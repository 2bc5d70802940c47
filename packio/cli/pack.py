"""``packio pack``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from packio import packing
from packio.cli import _options as option
from packio.cli import _packing_options as group
from packio.cli._progress import ProgressLine
from packio.cli._reports import show, show_dry_run
from packio.errors import OptionError

_TO_WRITE = {*group.RUN, *group.PARTS, *group.SEEK_POINTS} - {"check"}  # nothing to a dry run


@group.takes(
    group.SOURCE, group.BOXES, group.OUTPUT, group.SAMPLES, group.IMAGES, group.SEEK_POINTS,
    group.LEVELS, group.RUN,
    group.PARTS, group.of_plugins("sources"), group.of_plugins("formats"),
)  # fmt: skip
def run(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A folder of class folders of "
        "images; a list (CSV, JSONL), an archive, a COCO file, parquet; folders of images and "
        "masks; a pack; or MODULE:OBJECT, a dataset.")],
    out: option.Out,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run",
        help="Write nothing: show samples, bad images, and sizes of other encodings.")] = False,
    as_json: option.Json = False,
    quiet: option.Quiet = False,
    more: dict[str, Any],
) -> None:  # fmt: skip
    """Pack images into one container. Without further options their bytes stay as they are.

    A folder is read as torchvision's ImageFolder reads it: each folder in it is a class, with
    images at any depth. The same source always gives the same bytes. OUT appears only when it is
    complete and on disk. After an interruption, run the same command again: it goes on.

    Example: packio pack train train.lmdb && packio pack val val.lmdb --classes-from train.lmdb
    """
    if "part" in more and "finish" in more:
        raise OptionError(
            "--part writes a part, --finish puts the parts together: give one of them"
        )
    if dry_run:
        looked = {name: value for name, value in more.items() if name not in _TO_WRITE}
        show_dry_run(packing.dry_run(source, out, **looked), as_json=as_json)
        return
    with ProgressLine(quiet=quiet) as progress:
        report = packing.pack(source, out, progress=progress, **more)
    show(report, out, as_json=as_json, quiet=quiet)
