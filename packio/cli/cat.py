"""``packio cat``."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from packio.cli import _options as option
from packio.cli._output import counted, escaped
from packio.errors import KeyNotFoundError, OptionError

if TYPE_CHECKING:
    from packio.packs.opening import Pack


def run(
    pack: option.Pack,
    key: Annotated[str, typer.Argument(metavar="KEY",
        help="The key of a sample; with --at its position.")],
    at: Annotated[bool, typer.Option("--at", "-i", help="KEY is a position, 0 to N-1.")] = False,
    index: option.Index = None,
    force: Annotated[bool, typer.Option("--force", help="Write to a terminal, too.")] = False,
) -> None:  # fmt: skip
    """Write the bytes of one sample to standard output, as they were packed.

    Example: packio cat photos.lmdb cats/tom.jpg > tom.jpg

    Example: packio cat photos.lmdb --at 17 | file -
    """
    import packio

    if sys.stdout.isatty() and not force:
        raise OptionError(
            "standard output is a terminal; say where the image goes, as > image.jpg, or --force"
        )
    with packio.open(pack, index=index) as opened:
        data = opened[_position(opened, key) if at else _find(opened, key)].data
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _position(pack: Pack, text: str) -> int:
    try:
        index = int(text)
    except ValueError:
        raise OptionError(f"--at {text!r}: expected a whole number") from None
    if not -len(pack) <= index < len(pack):
        samples = counted(len(pack), "sample")
        raise KeyNotFoundError(f"{pack.path}: no sample {index}; there are {samples}, from 0")
    return index


def _find(pack: Pack, key: str) -> int:
    from packio.inspecting.info import find_similar_keys

    try:
        return pack.find(key)
    except KeyNotFoundError as error:
        near = find_similar_keys(pack, os.fsencode(key))
        hints = [f"\n  {row:>9}  {escaped(name)}" for row, name in near]
        hint = (
            "; similar keys, with their positions:" + "".join(hints)
            if hints
            else "; see: packio ls"
        )
        if key.isascii() and key.isdigit() and int(key) < len(pack):
            hint = f"; if you mean the sample at {key}, say --at" + hint
        raise KeyNotFoundError(
            f"{pack.path}: no sample has the key {escaped(key)}{hint}"
        ) from error
