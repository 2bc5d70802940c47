"""``packio cat``: one sample's bytes."""

from __future__ import annotations

import difflib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from packio.packs.packs import Pack

_NEIGHBOURS = 200  # keys on either side, in order, that may be near an unknown one
_SEARCHED = 1_000_000  # samples whose keys are searched for an unknown key's file name
_SUGGESTED = 5
_NEAR = 0.6  # difflib's ratio


def run(
    pack: Annotated[Path, typer.Argument(metavar="PACK", help="The pack to read from.")],
    key: Annotated[
        str,
        typer.Argument(metavar="KEY", help="A sample's key, or with --index its position."),
    ],
    by_index: Annotated[
        bool, typer.Option("--index", "-i", help="KEY is a position, 0 to N-1.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write to a terminal as well.")] = False,
) -> None:
    """Write one sample's bytes to standard output, as they were packed.

    Example: packio cat photos.lmdb cats/tom.jpg > tom.jpg

    Example: packio cat photos.lmdb --index 17 | file -
    """
    import packio
    from packio.cli._output import until_reader_leaves
    from packio.errors import OptionError, OutputError

    if sys.stdout.isatty() and not force:
        raise OptionError(
            "standard output is a terminal; say where the image goes, as > image.jpg, or --force"
        )
    with packio.open(pack) as opened:
        data = opened[_position(opened, key) if by_index else _find(opened, key)].data
    with until_reader_leaves():
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"standard output: {error.strerror}") from error


def _position(pack: Pack, text: str) -> int:
    from packio.errors import KeyNotFoundError, OptionError

    try:
        index = int(text)
    except ValueError:
        raise OptionError(f"--index {text!r}: expected a whole number") from None
    if not -len(pack) <= index < len(pack):
        raise KeyNotFoundError(f"{pack.path}: no sample {index}; there are {len(pack)}, from 0")
    return index


def _find(pack: Pack, key: str) -> int:
    from packio.cli._output import escaped
    from packio.errors import KeyNotFoundError

    try:
        return pack.find(key)
    except KeyNotFoundError as error:
        hints = [f"\n  {row:>9}  {escaped(name)}" for row, name in _near(pack, os.fsencode(key))]
        hint = "; near it, with their index:" + "".join(hints) if hints else "; see: packio ls"
        if key.isascii() and key.isdigit() and int(key) < len(pack):
            hint = f"; if you mean the sample at {key}, say --index" + hint
        raise KeyNotFoundError(
            f"{pack.path}: no sample has the key {escaped(key)}{hint}"
        ) from error


def _near(pack: Pack, key: bytes) -> list[tuple[int, bytes]]:
    """Keys that resemble one: its neighbours in order, and those with its file name in them."""
    found = {row: pack.key_bytes(row) for row in [*_neighbours(pack, key), *_with_name(pack, key)]}
    target = os.fsdecode(key).lower()
    name = os.path.basename(target)

    def likeness(row: int) -> float:
        other = os.fsdecode(found[row]).lower()
        ratio = difflib.SequenceMatcher(None, other, target).ratio()
        return ratio + (os.path.basename(other) == name)

    near = sorted(((likeness(row), -row) for row in found), reverse=True)[:_SUGGESTED]
    return [(-row, found[-row]) for ratio, row in near if ratio >= _NEAR]


def _neighbours(pack: Pack, key: bytes) -> list[int]:
    rank = pack.index_file.rank(key)
    first, last = max(0, rank - _NEIGHBOURS), min(len(pack), rank + _NEIGHBOURS)
    rows: list[int] = pack.index_file.column("key_order").span(first, last).tolist()
    return rows


def _with_name(pack: Pack, key: bytes) -> list[int]:
    """The first samples with a key's file name in their keys, upper or lower case."""
    import numpy as np

    name = os.path.basename(key).lower()
    offsets = pack.index_file.column("key_offsets").span(0, min(len(pack), _SEARCHED) + 1)
    data = pack.index_file.column("key_data").span(0, int(offsets[-1])).tobytes().lower()
    rows: list[int] = []
    at = data.find(name) if name else -1
    while at >= 0 and len(rows) < _NEIGHBOURS:
        row = int(np.searchsorted(offsets, at, "right")) - 1
        rows.append(row)
        at = data.find(name, int(offsets[row + 1]))
    return rows
