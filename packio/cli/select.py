"""``packio select``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from packio.cli import _options as option
from packio.cli._output import counted, escaped, print_json, say


def run(
    pack: option.Pack,
    expression: Annotated[str | None, typer.Argument(metavar="[SQL]",
        help="A condition, as \"width >= 512 AND class = 'cat'\".")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE",
        help="The selection, as cats.selection.")] = ...,  # type: ignore[assignment]  # typer: the option must be given
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
    from packio.datasets.selecting import select

    report = select(pack, expression, out=out, keys_of=keys_of, overwrite=overwrite)
    if as_json:
        print_json({"out": str(report.out), "pack": str(report.pack),
                    "selected": report.selected, "samples": report.samples})  # fmt: skip
    elif not quiet:
        say(f"{escaped(str(report.out))}: {report.selected:,} of "
              f"{counted(report.samples, 'sample')} of {escaped(str(report.pack))}")  # fmt: skip
