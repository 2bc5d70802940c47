"""Arguments and options that several commands share, and the values that they parse."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from packio.errors import OptionError
from packio.storage import urls
from packio.system import files


def byte_count(text: str) -> int:
    """Turn "256MB", "1.5GiB" or "1000" into a number of bytes."""
    try:
        return files.byte_count(text)
    except OptionError as error:
        raise typer.BadParameter(str(error)) from error


def count_or_auto(text: str) -> int | str:
    """Turn "2" into 2; "auto" stays."""
    if text == "auto" or text.isdecimal():
        return text if text == "auto" else int(text)
    raise typer.BadParameter(f"{text!r}: expected 'auto' or a number, as 2")


def part_of(text: str) -> tuple[int, int]:
    """Turn "3/8", the third of eight parts, into (3, 8)."""
    match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise typer.BadParameter(f"{text!r}: expected I/N with I from 1 to N, as 3/8")
    return int(match[1]), int(match[2])


def shares(text: str) -> tuple[tuple[str, float], ...]:
    """Turn "train=0.9,val=0.1" into names and shares."""
    try:
        named = [item.partition("=") for item in text.split(",")] if text else []
        return tuple((name.strip(), float(share)) for name, _, share in named)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: expected shares, as train=0.9,val=0.1") from error


def name_or_shares(text: str) -> str | tuple[tuple[str, float], ...]:
    """Turn "train" into "train", the name of a split; and "train=0.9,val=0.1" into shares."""
    return shares(text) if "=" in text else text


def on_disk(path: Path | None) -> Path | None:
    """Refuse a URL, for the callback of what a command changes in place or writes."""
    if path is not None and (url := urls.parse(path)) is not None:
        raise OptionError(
            f"{url}: at a URL, where this command changes and writes nothing; name a file or "
            "folder on a disk"
        )
    return path


Pack = Annotated[
    Path, typer.Argument(metavar="PACK", help="The pack: a file, or a folder of shards.")
]
PackOnDisk = Annotated[
    Path,
    typer.Argument(metavar="PACK", help="The pack: a file, or a folder of shards.",
                   callback=on_disk),
]  # fmt: skip
_AT = "File or URL of the pack's index, if it is not beside the pack; see: packio reindex --index"
Index = Annotated[Path | None, typer.Option("--index", "--index-file", metavar="PLACE", help=_AT)]
Out = Annotated[
    Path, typer.Argument(metavar="OUT", help="Pack to make. The suffix says the format: x.lmdb")
]
Classes = Annotated[
    list[str] | None,
    typer.Option("--class", metavar="NAME", help="Take only this class; repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Split = Annotated[
    str | None, typer.Option(metavar="NAME", help="Take only samples of this split, as train.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Show no progress and no summary, only problems.")
]


def _are_threads(value: str | None) -> None:
    if value is not None:
        raise typer.BadParameter("threads do this work, and no processes: say --threads N")


NoWorkers = Annotated[str | None, typer.Option("--num-workers", hidden=True, callback=_are_threads)]
NoProgress = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
