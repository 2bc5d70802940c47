"""``packio pack``."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Annotated, Any

import typer

from packio import packing
from packio.cli import _options as option
from packio.cli._plugin_options import with_plugin_options
from packio.cli._progress import ProgressLine
from packio.cli._reports import show, show_dry_run
from packio.errors import OptionError
from packio.packing.images.encode import CHOICES, Encoding
from packio.packing.plan.choosing import Choice
from packio.sample.fields import parse_options

_DEFAULTS = {
    f.name: f.default for owner in (Encoding, Choice) for f in dataclasses.fields(owner)
}  # an option that keeps its default is not in the plan
_sample: Any = functools.partial(typer.Option, rich_help_panel="Which samples")
_image: Any = functools.partial(typer.Option, rich_help_panel="What becomes of the images")
_run: Any = functools.partial(typer.Option, rich_help_panel="How it is done")
_words = {name: "|".join(words) for name, words in CHOICES.items()}


@with_plugin_options("sources", "formats")
def run(
    source: Annotated[
        str,
        typer.Argument(
            help="A folder of class folders of images; a list (CSV, JSONL), an archive, a COCO "
            "file, parquet; folders of images and masks; a pack; or MODULE:OBJECT, a dataset."
        ),
    ],
    out: option.Out,
    *,
    format: option.Format = None,  # noqa: A002 (the option's name)
    source_kind: option.SourceKind = None,
    shards: option.Shards = 1,
    shard_size: option.ShardSize = None,
    classes_from: Annotated[
        Path | None, typer.Option(help="Number classes as this pack, or this file of names, does.")
    ] = None,
    include: Annotated[
        list[str] | None,
        _sample(metavar="PATTERN", help="Only keys that match, as 'cats/*'; repeatable."),
    ] = None,
    exclude: Annotated[
        list[str] | None, _sample(metavar="PATTERN", help="No keys that match; repeatable.")
    ] = None,
    limit: Annotated[int | None, _sample(metavar="N", help="Only the first N samples.")] = None,
    shuffle: Annotated[
        int | None, _sample(metavar="SEED", help="Shuffle the samples; the same SEED, the same way")
    ] = None,
    split: Annotated[
        Any,
        _sample(metavar="SHARES", parser=option.shares,
                help="Splits, of each class alike, as train=0.9,val=0.1"),
    ] = (),
    seed: Annotated[int, _sample(help="Seed that draws the splits.")] = 0,
    dedupe: Annotated[
        str | None,
        _sample(metavar="report|drop", help="What to do with samples of the same bytes."),
    ] = None,
    field: option.Fields = None,
    encode: Annotated[
        str,
        _image(metavar=_words["encode"],
               help="'keep' the bytes as they are, encode anew, or store 'raw' pixels."),
    ] = "keep",
    resize: Annotated[
        str | None,
        _image(help="short=256, long=512, max-pixels=250000 (these make images smaller only), or "
               "exact=320x240."),
    ] = None,
    quality: Annotated[int, _image(help="Quality of JPEG and WebP, 1 to 100.")] = 90,
    subsampling: Annotated[
        str, _image(metavar=_words["subsampling"], help="Chroma subsampling of JPEG.")
    ] = "4:2:0",
    lossless: Annotated[bool, _image("--lossless", help="Encode WebP without loss.")] = False,
    enlarge: Annotated[bool, _image("--enlarge", help="Resize smaller images, too.")] = False,
    interpolation: Annotated[
        str, _image(metavar=_words["interpolation"], help="How to resize; antialiased.")
    ] = "bilinear",
    smart: Annotated[
        bool, _image("--smart", help="Encode an image anew only if it gets smaller.")
    ] = False,
    orientation: Annotated[
        str, _image(metavar=_words["orientation"], help="Keep Exif's, or turn the pixels upright.")
    ] = "keep",
    icc: Annotated[str, _image(metavar=_words["icc"], help="Colour profiles.")] = "keep",
    alpha: Annotated[
        str, _image(metavar=_words["alpha"], help="What to put behind transparent pixels.")
    ] = "keep",
    wide: Annotated[
        str, _image(metavar=_words["wide"], help="Images of more than 8 bits a channel.")
    ] = "keep",
    mode: Annotated[str, _image(metavar=_words["mode"], help="Colours of raw pixels.")] = "RGB",
    seekable: option.Seekable = False,
    on_error: Annotated[
        str,
        _run(metavar="raise|skip|quarantine",
             help="Bad images: 'raise' lists them all and packs nothing; 'skip' leaves them out "
             "and lists them in OUT.skipped.jsonl; 'quarantine' also copies them."),
    ] = "raise",
    quarantine: Annotated[
        Path | None, _run(metavar="DIR", help="Folder for the copies of bad images.")
    ] = None,
    check: Annotated[
        str,
        _run(metavar="header|decode", help="Check the header of each image, or decode all of it."),
    ] = "header",
    max_errors: Annotated[
        int | None, _run(min=0, metavar="N", help="Stop after more than N bad images.")
    ] = None,
    stats: Annotated[
        int | None,
        _run(min=0, metavar="N", help="Measure mean and std of channels on N images; 0: on all."),
    ] = None,
    dry_run: Annotated[
        bool, _run("--dry-run", help="Write nothing: say what is there and how it could be packed.")
    ] = False,
    overwrite: option.Overwrite = False,
    resume: Annotated[
        bool, _run("--resume/--no-resume", help="Keep the shards that an interrupted run finished.")
    ] = True,
    num_workers: option.NumWorkers = None,
    threads: Annotated[
        int | None,
        _run(min=1, help="Threads of each process that read and encode (default: as needed)."),
    ] = None,
    memory: Annotated[
        Any,
        _run(metavar="SIZE", parser=option.byte_count,
             help="Memory for files that are being packed, as 512MB; approximate."),
    ] = None,
    engine: Annotated[
        str, _run(metavar="local|ray|ray:ADDRESS", help="Where the shards are written.")
    ] = "local",
    part: Annotated[
        Any,
        _run(metavar="I/N", parser=option.part_of,
             help="Write only the I-th of N parts of the shards, as one job of an array."),
    ] = None,
    finish: Annotated[
        bool, _run("--finish", help="Put the parts together, once all are written.")
    ] = False,
    as_json: option.Json = False,
    quiet: option.Quiet = False,
    more: dict[str, Any],
) -> None:  # fmt: skip
    """Pack images into one container. Their bytes stay as they are, unless an option says else.

    A folder is read as torchvision's ImageFolder reads it: each folder in it is a class, with
    images at any depth. The same source always gives the same bytes. OUT appears only when it is
    complete and on disk. After an interruption, run the same command again: it goes on.

    Example: packio pack train train.lmdb && packio pack val val.lmdb --classes-from train.lmdb
    """
    if part is not None and finish:
        raise OptionError(
            "--part writes a part, --finish puts the parts together: give one of them"
        )
    options = {
        "include": tuple(include or ()), "exclude": tuple(exclude or ()), "limit": limit,
        "shuffle": shuffle, "split": split, "seed": seed, "dedupe": dedupe,
        "encode": encode, "resize": resize, "quality": quality, "subsampling": subsampling,
        "lossless": lossless, "enlarge": enlarge, "interpolation": interpolation, "smart": smart,
        "orientation": orientation, "icc": icc, "alpha": alpha, "wide": wide, "mode": mode,
    }  # fmt: skip
    given: dict[str, Any] = {n: v for n, v in options.items() if v != _DEFAULTS[n]}
    given |= {
        "format": format, "source_kind": source_kind, "shards": shards, "shard_size": shard_size,
        "classes_from": classes_from, "check": check,
        "fields": parse_options(field or []), **more,
    }  # fmt: skip
    if dry_run:
        show_dry_run(packing.dry_run(source, out, **given), as_json=as_json)
        return
    with ProgressLine(quiet=quiet) as progress:
        report = packing.pack(
            source, out, num_workers=num_workers, threads=threads, memory=memory, engine=engine,
            part=part, finish=finish, seekable=seekable, on_error=on_error, quarantine=quarantine,
            max_errors=max_errors, stats=stats, resume=resume, overwrite=overwrite,
            progress=progress, **given,
        )  # fmt: skip
    show(report, out, as_json=as_json, quiet=quiet)
