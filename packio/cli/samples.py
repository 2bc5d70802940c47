"""``packio cat``, ``extract``, ``export`` and ``select``: samples are taken out of a pack."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from packio.cli import _options as option
from packio.cli._output import ProgressLine, escape, print_json, say
from packio.errors import KeyNotFoundError, OptionError
from packio.system.quantities import as_size, pluralize

if TYPE_CHECKING:
    from packio.inspecting.extracting import ExtractReport
    from packio.packs.opening import Pack


def cat(
    pack: option.Pack,
    key: Annotated[str, typer.Argument(metavar="KEY",
        help="The key of a sample; with --at its position.")],
    at: Annotated[bool, typer.Option("--at", "-i", help="KEY is a position, 0 to N-1.")] = False,
    index: option.Index = None,
    force: Annotated[bool, typer.Option("--force", help="Write to a terminal, too.")] = False,
) -> None:  # fmt: skip
    """Write the image of one sample to standard output, as the source had it.

    Example: packio cat photos.lmdb cats/tom.jpg > tom.jpg

    Example: packio cat photos.lmdb --at 17 | file -
    """
    import packio

    if sys.stdout.isatty() and not force:
        raise OptionError(
            "standard output is a terminal; say where the image goes, as > image.jpg, or --force"
        )
    with packio.open(pack, index=index) as opened:
        data = opened[_position(opened, key) if at else _find(opened, key)].as_file()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _position(pack: Pack, text: str) -> int:
    try:
        index = int(text)
    except ValueError:
        raise OptionError(f"--at {text!r}: expected a whole number") from None
    if not -len(pack) <= index < len(pack):
        samples = pluralize(len(pack), "sample")
        raise KeyNotFoundError(f"{pack.path}: no sample {index}; there are {samples}, from 0")
    return index


def _find(pack: Pack, key: str) -> int:
    from packio.inspecting.info import find_similar_keys

    try:
        return pack.find(key)
    except KeyNotFoundError as error:
        near = find_similar_keys(pack, os.fsencode(key))
        hints = "".join(f"\n  {row:>9}  {escape(name)}" for row, name in near)
        hint = f"; similar keys, with their positions:{hints}" if hints else "; see: packio ls"
        if key.isascii() and key.isdigit() and int(key) < len(pack):
            hint = f"; if you mean the sample at {key}, say --at" + hint
        said = f"{pack.path}: no sample has the key {escape(key)}{hint}"
        raise KeyNotFoundError(said) from error


def extract(
    pack: option.Pack,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to make.",
        callback=option.on_disk)],
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
    are in OUT/packio.coco.json, too. Texts are in packio.jsonl as well, and packing OUT again takes
    them from there. If there is such a file, the command ends with the command that packs OUT
    again. OUT appears in one step, when everything is on disk. Nothing is written outside OUT. A
    class without samples becomes an empty folder.

    Example: packio extract photos.lmdb photos

    Example: packio extract photos.lmdb pets --class cats --class dogs

    Example: packio extract photos.lmdb photos --fields image
    """
    import packio
    from packio.inspecting import extracting

    chosen = None if fields is None else [name.strip() for name in fields.split(",")]
    with ProgressLine(quiet=quiet) as progress, packio.open(pack, index=index) as opened:
        report = extracting.extract(
            opened, out, classes=classes or None, split=split, fields=chosen, overwrite=overwrite,
            progress=progress,
        )  # fmt: skip
    if as_json:
        print_json(report)
    elif not quiet:
        _print_extracted(report)


def _print_extracted(report: ExtractReport) -> None:
    empty = f", empty classes: {report.empty_classes:,}" if report.empty_classes else ""
    files = sum(report.fields.values())
    each = ", ".join(f"{escape(name)} {count:,}" for name, count in report.fields.items())
    say(f"{escape(str(report.out))}/: {pluralize(files, 'file')}{empty}, "
          f"{report.bytes / 1e6:,.1f} MB, {report.seconds:.1f} s")  # fmt: skip
    if len(report.fields) > 1:
        say(f"files by field: {each}")
    if report.table is not None:
        told = ", ".join(("keys", *report.annotations, *list(report.fields)[1:]))
        say(f"{report.table.name}: {told}\npack it again: {report.command}")


def export(
    pack: option.Pack,
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="File to make, .parquet.", callback=option.on_disk)
    ],
    index: option.Index = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT.")] = False,
    as_json: option.Json = False,
    quiet: option.Quiet = False,
) -> None:
    """Write what the index says of each sample into a Parquet file, for DuckDB, pandas and others.

    A row is a sample: its key, label, class, split, the sizes, encodings and bytes of its fields,
    its boxes as lists, and its metadata. The bytes of images stay in the pack.

    Example: packio export photos.lmdb photos.parquet

    Example: duckdb -c "SELECT class, count(*), avg(width) FROM 'photos.parquet' GROUP BY class"
    """
    import packio
    from packio.inspecting import exporting

    with packio.open(pack, index=index) as opened:
        report = exporting.export(opened, out, overwrite=overwrite)
    if as_json:
        print_json(report)
    elif not quiet:
        say(f"{escape(str(report.out))}: {pluralize(report.samples, 'sample')}, "
              f"{len(report.columns)} columns, {as_size(report.bytes)}")  # fmt: skip
        say(f"  {', '.join(map(escape, report.columns))}")


def select(
    pack: option.Pack,
    expression: Annotated[str | None, typer.Argument(metavar="[SQL]",
        help="A condition, as \"width >= 512 AND class = 'cat'\".")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE",
        help="The selection, as cats.selection.", callback=option.on_disk)] = ...,  # type: ignore[assignment]  # typer: the option must be given
    keys_of: Annotated[Path | None, typer.Option(metavar="FILE",
        help="Take the samples that have the keys of this older selection.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite",
        help="Replace a selection that is there.")] = False,
    as_json: option.Json = False,
    quiet: option.Quiet = False,
) -> None:  # fmt: skip
    """Save which samples of a pack match a condition: a small file that is a pack by itself.

    Every command and dataset takes the selection as a pack. The samples stay where they are. A pack
    that has changed is refused; --keys-of makes a new selection with the same keys.

    The columns are those of `packio export`: key, label, class, split, width, height, bytes,
    encoding, boxes, and the metadata of the samples. DuckDB evaluates the condition; packio's extra
    "query" installs it.

    Example: packio select photos.lmdb "width >= 512 AND class = 'cats'" -o cats.selection

    Example: packio convert cats.selection cats.tar
    """
    from packio.datasets import selection

    report = selection.select(pack, expression, out=out, keys_of=keys_of, overwrite=overwrite)
    if as_json:
        print_json(report)
    elif not quiet:
        say(f"{escape(str(report.out))}: {report.selected:,} of "
              f"{pluralize(report.samples, 'sample')} of {escape(str(report.pack))}")  # fmt: skip
