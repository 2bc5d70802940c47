"""``packio add`` and ``packio drop-field``."""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from packio.cli import _options as option
from packio.cli import _packing_options as group
from packio.cli._output import ProgressLine, escape, print_json, print_some, say
from packio.errors import OptionError
from packio.storage import urls
from packio.system.quantities import pluralize


@group.takes(group.ADDING)
def add(
    pack: option.PackOnDisk,
    field: Annotated[list[str], typer.Option("--field", metavar="NAME=FROM", help="Name, and where "
        "values come from: a folder, a table, or package.module:function.")] = ...,  # type: ignore[assignment]  # typer: the option must be given
    *,
    as_json: option.Json = False,
    quiet: option.Quiet = False,
    more: dict[str, Any],
) -> None:  # fmt: skip
    """Add a field to the samples of a pack, as captions or latents; its files stay as they are.

    Files in a folder have the key of their sample with another ending: the latent of cats/7.jpg is
    cats/7.npy. A table (.csv, .tsv, .jsonl, .parquet) has a column key and one named as the field.
    A function takes a packio.Sample and returns an array, text or bytes; with --batch-size a list
    of samples, and returns a list, an array or a tensor of one value each.

    The values go into new files beside each shard, in the format of the pack. Programs that read
    the pack meanwhile see the field when they open the pack again. A run that was cut short goes on
    where it stopped.

    Example: packio add photos.tar --field latent=latents

    Example: packio add photos.tar --field caption=my_captions:describe --workers 4

    Example: packio append photos.tar photos; packio add photos.tar --field latent=new --only-new
    """
    from packio.packing.adding_field import add_field

    if len(field) > 1:
        given = " ".join(f"--field {text}" for text in field)
        raise OptionError(f"{given}: add one field at a time; run the command once for each")
    name, equals, origin = field[0].partition("=")
    if not equals or not origin:
        raise OptionError(
            f"--field {field[0]}: expected NAME=FROM, where FROM is a folder, a table or "
            "package.module:function, as latent=latents"
        )
    with ProgressLine(quiet=quiet) as progress:
        report = add_field(pack, name, _values(origin), progress=progress, **more)
    if as_json:
        print_json(report)
    elif not quiet:
        _print_added(report, pack)


def _values(origin: str) -> Any:
    """The path of a folder or table, or an imported function."""
    if os.path.lexists(origin) or ":" not in origin:
        return Path(origin)
    if urls.parse(origin) is not None:
        raise OptionError(f"{origin}: a URL; expected a folder or a table of this machine")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` has it
    return import_function(origin)


def import_function(text: str) -> Callable[[Any], Any]:
    """Import a function by ``package.module:function``."""
    module, _, attribute = text.partition(":")
    example = f"{module.removesuffix('.py').replace('/', '.').strip('.') or 'my_vae'}:"
    example += attribute or "encode"
    try:
        found = pkgutil.resolve_name(text)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(
            f"{text}: neither a folder or table, nor a function of a module that Python finds "
            f"({error}); expected package.module:function, as {example}; set PYTHONPATH "
            "if the module is in another folder"
        ) from error
    if not callable(found):
        raise OptionError(
            f"{text}: is of type {type(found).__name__}; expected a function of a sample"
        )
    return found  # type: ignore[no-any-return]  # callable, and no more is known


def _print_added(report: Any, pack: Path) -> None:
    if report.kept and not report.samples + report.missing:
        say(f"{escape(str(pack))}: up to date: no shard lacks {report.name}; nothing to add")
        _show_unfilled(report)
        return
    lacking = f", {report.missing:,} have none" if report.missing else ""
    kept = f"; {report.kept:,} had one before" if report.kept else ""
    shape = f", {next(iter(report.shapes))}" if len(report.shapes) == 1 else ""
    before = f", {report.resumed:,} of them made before" if report.resumed else ""
    say(f"{escape(str(pack))}: {report.name} ({report.kind}{shape}) of "
        f"{pluralize(report.samples, 'sample')}{before}{lacking}{kept}; {report.bytes:,} bytes, "
        f"{report.seconds:.1f} s")  # fmt: skip
    if report.remaining:
        say(f"{report.remaining:,} bytes of the old values stay in files that hold other fields, "
            "too, where other programs find them; to be rid of them: packio convert")  # fmt: skip
    if len(report.shapes) > 1:
        say("The arrays differ; batches in which they do come as lists:")
        lines = [f"{escape(shape)}: {count:,}" for shape, count in report.shapes.items()]
        print_some(lines, "(--json lists all)")
    if report.skipped:
        say(f"{len(report.skipped):,} bad values are left out:")
        print_some([escape(f"{key}: {why}") for key, why in report.skipped], "(--json lists all)")
    if report.unused:
        say(f"{pluralize(len(report.unused), 'value')} of no sample:")
        print_some([escape(name) for name in report.unused], "(--json lists all)")
    _show_unfilled(report)
    say(f"digest {report.digest}")


def _show_unfilled(report: Any) -> None:
    if report.unfilled:
        say(f"{report.unfilled:,} samples lack {report.name} in shards where others have it, and "
            "stay without; --overwrite in place of --only-new makes all values anew")  # fmt: skip


def drop_field(
    pack: option.PackOnDisk,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The field to drop.")],
    as_json: option.Json = False,
    quiet: option.Quiet = False,
) -> None:
    """Take a field out of a pack. Files that hold nothing else are removed.

    Values among those of other fields stay in their files, unseen; `packio convert` makes a pack
    without them.

    Example: packio drop-field photos.tar latent
    """
    from packio.packing.adding_field import drop_field as drop

    report = drop(pack, name)
    if as_json:
        print_json(report)
    elif not quiet:
        say(f"{escape(str(pack))}: {name} is dropped; {pluralize(len(report.removed), 'file')} "
            f"removed, {report.freed:,} bytes")  # fmt: skip
        if report.remaining:
            say(f"{report.remaining:,} bytes of its values stay in files that hold other fields, "
                "too; to be rid of them: packio convert")  # fmt: skip
        say(f"digest {report.digest}")
