"""``packio pack``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from packio import packing
from packio.cli import _dry_run
from packio.cli._packing import byte_count, pair, shares, show
from packio.cli._plugin_options import with_plugin_options
from packio.cli._progress import ProgressLine
from packio.packing.images.encode import CHOICES, Encoding
from packio.packing.plan.choosing import Choice

_SAMPLES, _IMAGES, _RUN = "Which samples", "What becomes of the images", "How it is done"
_DEFAULTS = {
    f.name: f.default for owner in (Encoding, Choice) for f in dataclasses.fields(owner)
}  # what is as it is by default is not in the plan


def _one_of(name: str) -> str:
    return "|".join(CHOICES[name])


@with_plugin_options("sources", "formats")
def run(
    source: Annotated[
        str,
        typer.Argument(
            help="Folder of class folders of images; list (CSV, JSONL), archive, COCO file, "
            "parquet, folders of images and masks; a pack; or MODULE:OBJECT, a dataset."
        ),
    ],
    out: Annotated[Path, typer.Argument(help="Pack to make; the suffix says the format: .lmdb")],
    *,
    format: Annotated[  # noqa: A002 (the option's name)
        str | None, typer.Option(help="Format, where the suffix does not say it.")
    ] = None,
    source_kind: Annotated[
        str | None,
        typer.Option("--source", metavar="KIND", help="Kind of source, where it is not plain."),
    ] = None,
    shards: Annotated[
        int, typer.Option(min=1, help="Shards to make; OUT is then a folder of them.")
    ] = 1,
    shard_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes of images a shard, as 256MB, instead.")
    ] = None,
    classes_from: Annotated[
        Path | None,
        typer.Option(help="Take class names and labels from this pack, or a file of one a line."),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Only keys like this, as 'cats/*'; repeatable.",
                     rich_help_panel=_SAMPLES),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="No keys like this.", rich_help_panel=_SAMPLES),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Only the first so many.", rich_help_panel=_SAMPLES)
    ] = None,
    shuffle: Annotated[
        int | None,
        typer.Option(metavar="SEED", help="Shuffle their order.", rich_help_panel=_SAMPLES),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(metavar="SHARES", help="Splits, of each class alike: train=0.9,val=0.1",
                     rich_help_panel=_SAMPLES),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the splits.", rich_help_panel=_SAMPLES)] = 0,
    dedupe: Annotated[
        str | None,
        typer.Option(metavar="report|drop", help="Samples with the same bytes as another.",
                     rich_help_panel=_SAMPLES),
    ] = None,
    encode: Annotated[
        str,
        typer.Option(metavar=_one_of("encode"), rich_help_panel=_IMAGES,
                     help="Encode anew; 'keep' leaves the bytes as they are; 'raw': pixels."),
    ] = "keep",
    resize: Annotated[
        str | None,
        typer.Option(help="short=256, long=512, max-pixels=250000 (nothing is enlarged), or "
                     "exact=320x240.", rich_help_panel=_IMAGES),
    ] = None,
    quality: Annotated[
        int, typer.Option(help="Of JPEG and WebP, 1..100.", rich_help_panel=_IMAGES)
    ] = 90,
    subsampling: Annotated[
        str, typer.Option(metavar=_one_of("subsampling"), help="Of JPEG.", rich_help_panel=_IMAGES)
    ] = "4:2:0",
    lossless: Annotated[
        bool, typer.Option("--lossless", help="WebP without loss.", rich_help_panel=_IMAGES)
    ] = False,
    enlarge: Annotated[
        bool, typer.Option("--enlarge", help="Resize smaller ones, too.", rich_help_panel=_IMAGES)
    ] = False,
    interpolation: Annotated[
        str, typer.Option(metavar=_one_of("interpolation"), rich_help_panel=_IMAGES,
                          help="Of resizing, antialiased.")
    ] = "bilinear",
    smart: Annotated[
        bool, typer.Option("--smart", help="Encode anew only what gets smaller by it.",
                           rich_help_panel=_IMAGES)
    ] = False,
    orientation: Annotated[
        str, typer.Option(metavar=_one_of("orientation"), rich_help_panel=_IMAGES,
                          help="Keep Exif's, or turn pixels upright.")
    ] = "keep",
    icc: Annotated[
        str, typer.Option(metavar=_one_of("icc"), help="Colour profiles.", rich_help_panel=_IMAGES)
    ] = "keep",
    alpha: Annotated[
        str, typer.Option(metavar=_one_of("alpha"), help="What is behind transparency.",
                          rich_help_panel=_IMAGES)
    ] = "keep",
    wide: Annotated[
        str, typer.Option(metavar=_one_of("wide"), help="Pixels of more than 8 bits a channel.",
                          rich_help_panel=_IMAGES)
    ] = "keep",
    mode: Annotated[
        str, typer.Option(metavar=_one_of("mode"), help="Of raw pixels.", rich_help_panel=_IMAGES)
    ] = "RGB",
    seekable: Annotated[
        bool,
        typer.Option("--seekable", rich_help_panel=_IMAGES,
                     help="Put restart markers into JPEGs, without loss: crops then decode less."),
    ] = False,
    on_error: Annotated[
        str,
        typer.Option(
            metavar="raise|skip|quarantine", rich_help_panel=_RUN,
            help="Bad images: 'raise' lists them all and packs nothing; 'skip' leaves them out "
            "and lists them in OUT.skipped.jsonl; 'quarantine' copies them, too.",
        ),
    ] = "raise",
    quarantine: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where copies of bad images go.", rich_help_panel=_RUN),
    ] = None,
    check: Annotated[
        str,
        typer.Option(metavar="header|decode", rich_help_panel=_RUN,
                     help="Look at each image's header, or decode all of it."),
    ] = "header",
    max_errors: Annotated[
        int | None,
        typer.Option(help="Stop when more images than this are bad.", rich_help_panel=_RUN),
    ] = None,
    stats: Annotated[
        int | None,
        typer.Option(metavar="N", rich_help_panel=_RUN,
                     help="Measure mean and std of N images' channels for the index; 0: of all."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", rich_help_panel=_RUN,
                     help="Write nothing: say what is there, and what encodings would bring."),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", rich_help_panel=_RUN,
                           help="Replace OUT, in one step, at the end.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", rich_help_panel=_RUN,
                           help="Go on from what an interrupted run finished.")
    ] = True,
    num_workers: Annotated[
        int | None,
        typer.Option(help="Processes, a shard each at a time (default: one a processor).",
                     rich_help_panel=_RUN),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(help="Threads that read and encode, in each process (default: as many as "
                     "keep it busy).", rich_help_panel=_RUN),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", rich_help_panel=_RUN,
                     help="Bytes of files in memory at a time, about, as 512MB."),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(metavar="local|ray|ray:ADDRESS", help="Where shards are written.",
                     rich_help_panel=_RUN),
    ] = "local",
    part: Annotated[
        str | None,
        typer.Option(metavar="I/N", rich_help_panel=_RUN,
                     help="Write only the I-th of N parts of the shards, as a job of an array."),
    ] = None,
    finish: Annotated[
        bool, typer.Option("--finish", help="Put the parts together.", rich_help_panel=_RUN)
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
    more: dict[str, Any],
) -> None:  # fmt: skip
    """Pack images into one container, byte for byte unless told otherwise.

    A folder is read as torchvision's ImageFolder reads it: one folder a class, any depth below.
    The same source always gives the same bytes. OUT appears only when it is complete and on disk;
    run the same command again after an interruption: finished shards are not written again.

    Example: packio pack train train.lmdb && packio pack val val.lmdb --classes-from train.lmdb
    """
    options = {
        "include": tuple(include or ()), "exclude": tuple(exclude or ()), "limit": limit,
        "shuffle": shuffle, "split": shares(split), "seed": seed, "dedupe": dedupe,
        "encode": encode, "resize": resize, "quality": quality, "subsampling": subsampling,
        "lossless": lossless, "enlarge": enlarge, "interpolation": interpolation, "smart": smart,
        "orientation": orientation, "icc": icc, "alpha": alpha, "wide": wide, "mode": mode,
    }  # fmt: skip
    given = {n: v for n, v in options.items() if v != _DEFAULTS[n]}
    if dry_run:
        tell = _dry_run.show_json if as_json else _dry_run.show
        tell(packing.dry_run(
            source, out, format=format, source_kind=source_kind, shards=shards,
            shard_size=byte_count(shard_size), classes_from=classes_from, check=check,
            **given, **more,
        ))  # fmt: skip
        return
    with ProgressLine(quiet=quiet) as progress:
        report = packing.pack(
            source, out, format=format, source_kind=source_kind, shards=shards,
            shard_size=byte_count(shard_size), classes_from=classes_from, num_workers=num_workers,
            threads=threads, memory=byte_count(memory), engine=engine, part=pair(part),
            finish=finish, seekable=seekable, on_error=on_error, quarantine=quarantine, check=check,
            max_errors=max_errors, stats=stats, resume=resume, overwrite=overwrite,
            progress=progress,
            **given, **more,
        )  # fmt: skip
    show(report, out, as_json=as_json, quiet=quiet)
