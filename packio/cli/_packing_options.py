"""Options of packing that several commands share, each declared once: pack, append, convert, merge.

A command takes groups of them by `takes`, and receives the options that the user gave as one dict,
under the names of the library's arguments. Plugins declare options too: name → line of help.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import typer

from packio import registry
from packio.cli._options import byte_count, count_or_auto, name_or_shares, part_of, shares
from packio.packing.choosing import Choice
from packio.packing.images.encode import CHOICES, Encoding
from packio.sample.fields import KINDS, parse_options
from packio.sources import Flag

_DEFAULTS = {f.name: f.default for owner in (Encoding, Choice) for f in dataclasses.fields(owner)}
Options = dict[str, inspect.Parameter]
_Command = Callable[..., None]


def _options(panel: str | None, **options: Callable[..., inspect.Parameter]) -> Options:
    return {name: make(name, panel) for name, make in options.items()}


def _one(
    kind: Any, text: str, names: str = "", *, default: Any = None, **more: Any
) -> Callable[..., inspect.Parameter]:
    """Declare an option, by what `typer.Option` takes.

    `kind` is the type of the value, a tuple of words, or a function that parses the text; `names`
    are as ``"--resume/--no-resume"``, empty: the name of the argument.
    """
    if isinstance(kind, tuple):
        kind = Literal[kind]
    elif not isinstance(kind, type) and inspect.isfunction(kind):
        kind, more["parser"] = Any, kind

    def made(name: str, panel: str | None) -> inspect.Parameter:
        value = _DEFAULTS.get(name, default)
        declared = names.split() or [f"--{name.replace('_', '-')}"]
        info = typer.Option(*declared, help=text, rich_help_panel=panel, **more)
        annotation: Any = Annotated[Optional[kind] if value is None else kind, info]  # noqa: UP045 (a value)
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=annotation
        )

    return made


_FORMATS = [name for name, form in registry.load_all("formats").items() if form.caps.writes]
FRAME = _options(
    None,
    boxes_frame=_one(("upright", "stored"), "Whether boxes and masks are of the images as people "
        "see them, or as stored, before their Exif turn (default: their sizes say it, else "
        "upright)."),
)  # fmt: skip
BOXES = FRAME | _options(
    None,
    rescale_boxes=_one(bool, "Scale boxes to their images, where the annotations give other sizes.",
        default=False),
)  # fmt: skip
SOURCE = _options(
    None,
    source_kind=_one(
        str, "Kind of source, if packio should not guess: " + ", ".join(registry.names("sources")),
        "--source", metavar="KIND", autocompletion=lambda: list(registry.names("sources")),
    ),
    fields=_one(list[str], "A named field to take: its column, ending or folder, and its kind "
        "(image, mask, array, text, bytes); repeatable.", "--field", metavar="NAME=COLUMN:KIND"),
)  # fmt: skip
SHARD_SIZE = _options(
    None,
    shard_size=_one(byte_count,
        "Bytes of images in a shard, as 256MB; takes the place of --shards. The pack is a folder.",
        metavar="SIZE"),
)  # fmt: skip
OUTPUT = _options(
    None,
    format=_one(str, f"Format of the pack, if the suffix does not say it: {', '.join(_FORMATS)}"),
    shards=_one(int, "Number of shards. With more than 1, OUT is a folder of shards.", default=1,
        min=1),
) | SHARD_SIZE  # fmt: skip
SAMPLES = _options(
    "Which samples",
    classes_from=_one(Path, "Number classes as this pack, or this file of names, does."),
    include=_one(list[str], "Only keys that match, as 'cats/*'; repeatable.", metavar="PATTERN"),
    exclude=_one(list[str], "No keys that match; repeatable.", metavar="PATTERN"),
    limit=_one(int, "Only the first N samples.", metavar="N"),
    shuffle=_one(int, "Shuffle the samples. The same SEED gives the same order.", metavar="SEED"),
    split=_one(shares, "Splits, of each class alike, as train=0.9,val=0.1", metavar="SHARES"),
    seed=_one(int, "Seed that draws the splits."),
    dedupe=_one(("report", "drop", "near"), "'report' names samples that have the bytes of an "
        "earlier one; 'drop' leaves them out; 'near' also leaves out images that look like an "
        "earlier one."),
)  # fmt: skip
OLD_SAMPLES = SAMPLES | _options(
    "Which samples",
    split=_one(name_or_shares,
        "Only the samples of this split, as train; shares as train=0.9,val=0.1 draw new splits.",
        metavar="NAME|SHARES"),
)  # fmt: skip
SEEK_POINTS = _options(
    None,
    seek_points=_one(bool, "Keep in the index where the decoding of a JPEG may begin: crops decode "
        "faster, and the JPEGs stay as they are.", "--seek-points/--no-seek-points", default=True),
)  # fmt: skip
IMAGES = _options(
    "What becomes of the images",
    encode=_one(CHOICES["encode"],
        "'keep' the bytes as they are; 'dct': keep JPEGs with open coefficients, which packio "
        "alone reads, in two thirds of the time; 'file': make them JPEGs again, keep the rest; "
        "encode all anew; or store 'raw' pixels."),
    resize=_one(str, "short=256, long=512, max-pixels=250000 (these make images smaller only), or "
        "exact=320x240."),
    quality=_one(int, "Quality of JPEG and WebP, 1 to 100."),
    subsampling=_one(CHOICES["subsampling"], "Chroma subsampling of JPEG."),
    lossless=_one(bool, "Encode WebP without loss."),
    enlarge=_one(bool, "Resize smaller images, too."),
    interpolation=_one(CHOICES["interpolation"], "How to resize; antialiased."),
    smart=_one(bool, "Encode an image anew only if it gets smaller."),
    orientation=_one(CHOICES["orientation"],
        "Keep Exif's, or turn pixels upright: what is turned is encoded anew, JPEGs with a loss."),
    icc=_one(CHOICES["icc"], "Colour profiles."),
    alpha=_one(CHOICES["alpha"], "What to put behind transparent pixels."),
    wide=_one(CHOICES["wide"], "Images of more than 8 bits a channel."),
    mode=_one(CHOICES["mode"], "Colours of raw pixels."),
)  # fmt: skip
LEVELS = _options(
    "Levels: smaller JPEGs beside large images, from which fidelity='fast' makes crops",
    levels=_one(count_or_auto, "Levels of an image at most, as 2; 'auto': those that pay; 0: none.",
        metavar="N|auto"),
    levels_quality=_one(int, "Quality of their JPEGs, 1 to 100 (default: 85).", min=1, max=100),
    levels_crop=_one(int, "Side of the crops that training takes; the smallest level has a short "
        "side of 1.4 to 2.8 times as many pixels (default: 224).", min=1, metavar="PIXELS"),
)  # fmt: skip
_how = functools.partial(_options, "How it is done")
WORKERS = _how(
    num_workers=_one(int, "Processes; each writes one shard at a time (default: one a CPU).",
        "--workers --num-workers", metavar="N"),
)  # fmt: skip
RAISE_OR_SKIP = _how(
    on_error=_one(
        ("raise", "skip"), "Bad images: 'raise' an error, or 'skip' and list them.", default="raise"
    ),
)
OVERWRITE = _how(
    overwrite=_one(bool,
        "Replace OUT, in one step, when the new one is done; nobody can open it until then.",
        default=False),
)  # fmt: skip
RUN = _how(
    on_error=_one(("raise", "skip", "quarantine"), "Bad images: 'raise' lists them all and packs "
        "nothing; 'skip' leaves them out and lists them in OUT.skipped.jsonl; 'quarantine' also "
        "copies them.", default="raise"),
    quarantine=_one(Path, "Folder for the copies of bad images; of a pair, both files.",
        metavar="DIR"),
    check=_one(("header", "decode"), "Check the header of each image, or decode all of it.",
        default="header"),
    max_errors=_one(int, "Stop after more than N bad images.", min=0, metavar="N"),
    stats=_one(int, "Measure mean and std of channels on N images; 0: on all.", min=0, metavar="N"),
    resume=_one(bool, "Keep the shards that an interrupted run finished.", "--resume/--no-resume",
        default=True),
    threads=_one(int, "Threads of each process that read and encode (default: as needed).", min=1),
    memory=_one(byte_count, "Memory for files that are being packed, as 512MB; approximate.",
        metavar="SIZE"),
    engine=_one(str, "Where the shards are written.", default="local",
        metavar="local|ray|ray:ADDRESS"),
) | WORKERS | OVERWRITE  # fmt: skip
PARTS = _how(
    part=_one(part_of, "Write only the I-th of N parts of the shards, as one job of an array.",
        metavar="I/N"),
    finish=_one(bool, "Put the parts together, once all are written.", default=False),
)  # fmt: skip
ADDING = _options(
    None,
    kind=_one(str, f"One of {', '.join(KINDS)}; else the values say it.", metavar="KIND"),
    batch_size=_one(int, "Give the function lists of N samples.", metavar="N", min=1),
    workers=_one(int, "Processes that call the function; 0: this process alone.",
        "--workers --num-workers", default=0, metavar="N", min=0),
    missing=_one(bool, "Allow samples without a value.", default=False),
    only_new=_one(bool, "Only for shards without the field, as of `packio append`.", default=False),
    overwrite=_one(bool, "Replace a field of this name.", default=False),
    resume=_one(bool, "Keep the values that a run made that was cut short.", "--resume/--no-resume",
        default=True),
    on_error=_one(str, "Bad values: an error, or leave them out; both list them.", default="raise",
        metavar="raise|skip"),
    max_errors=_one(int,
        "Stop after more than N bad values; 100, or no limit with --on-error skip.", metavar="N",
        min=0),
)  # fmt: skip
REINDEXING = _options(
    None,
    label_offset=_one(int, "Add this to int labels: -1 makes labels from 1 begin at 0.", default=0),
    trust_plain_pickle=_one(bool,
        "Read LMDB values that are pickles of plain data. Nothing in them is executed.",
        default=False),
    image=_one(str, "Where the images are: dataset of HDF5, array of N5 and Zarr, key or position "
        "in a .pth, feature of TFRecords.", metavar="NAME"),
    label=_one(str,
        "Where the labels are, also a member of the metadata; an empty name: no labels.",
        "--label --label-col", metavar="NAME"),
    layout=_one(str, "Order of pixels that are not encoded: HWC or CHW, RGB or BGR, or HWC,BGR.",
        metavar="ORDER"),
    database=_one(str, "Which of several databases in an LMDB.", metavar="NAME"),
    seek_points=_one(bool, "Keep in the index where the decoding of a JPEG may begin: crops decode "
        "faster. Done for files, unless you say no; for objects at URLs, if you say so.",
        "--seek-points/--no-seek-points"),
    index=_one(Path, "File or URL where the index goes, if not beside the container.",
        metavar="PLACE"),
    engine=_one(str, "Where objects at URLs are read.", default="local",
        metavar="local|ray|ray:ADDRESS"),
    num_workers=_one(int, "Threads; each reads an object at a URL at a time.", "--threads",
        default=8, min=1, metavar="N"),
)  # fmt: skip


def plugin_options(kind: str) -> Options:
    """Options that "sources" or "formats" declare; of several plugins, with the help of each."""
    told: dict[str, list[str]] = {}
    flags: dict[str, str] = {}
    for name, plugin in registry.load_all(kind).items():
        declared = plugin.caps.options if kind == "formats" else plugin.options
        for option, text in declared.items():
            told.setdefault(option, []).append(f"{name}: {text}")
            if isinstance(text, Flag):
                flags[option] = text
    options = {
        option: _one(bool, flags[option], f"--{option.replace('_', '-')}", default=False)
        if option in flags else _one(str, "; ".join(texts))
        for option, texts in sorted(told.items())
    }  # fmt: skip
    return _options(f"Options of {kind}", **options)


def takes(*groups: Options) -> Callable[[_Command], _Command]:
    """Decorate a command that takes ``more: dict[str, Any]`` with the options of some groups.

    `more` are the options that the user gave, by the names of the library's arguments.
    """
    added: Options = functools.reduce(lambda a, b: a | b, groups)

    def given(command: _Command) -> _Command:
        own = inspect.signature(command, eval_str=True)
        parameters = [p for p in own.parameters.values() if p.name != "more"]
        parameters += added.values()

        def run(**values: Any) -> None:
            taken = {name: values.pop(name) for name in added}
            more = {n: v for n, v in taken.items() if v != added[n].default and v != []}
            if "fields" in more:
                more["fields"] = parse_options(more["fields"])
            command(**values, more=more)

        run.__doc__ = command.__doc__
        run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # what inspect looks for
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return given
