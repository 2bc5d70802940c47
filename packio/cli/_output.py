"""What commands print: names exactly, on one line, and no fuss when the reader has left."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from packio.errors import CannotCreateError

_NAMED_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


@contextlib.contextmanager
def until_reader_leaves() -> Iterator[None]:
    """Write all of stdout, or stop in silence when its reader has what it wanted (``| head``)."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def escaped(name: bytes | str, encoding: str | None = None) -> str:
    r"""Show a key or a class's name on one line, exactly.

    Args:
        name: Bytes, or text with surrogate escapes.
        encoding: Of the output; what it lacks is escaped. None takes stdout's.

    Returns:
        The name, where backslashes, unprintable characters and bytes that are not UTF-8 are
        written ``\\``, ``\n``, ``\t``, ``\r`` or ``\xNN``, one for each byte of UTF-8.
    """
    text = name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    encoding = encoding or sys.stdout.encoding or "utf-8"
    return "".join(_escaped_character(c, encoding) for c in text)


def _escaped_character(character: str, encoding: str) -> str:
    if character in _NAMED_ESCAPES:
        return _NAMED_ESCAPES[character]
    if character.isprintable():
        with contextlib.suppress(UnicodeEncodeError):
            character.encode(encoding)
            return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def print_table(
    header: Sequence[str], cells: Sequence[Sequence[str]], *, left: Sequence[str]
) -> None:
    """Print a table: by rich on a terminal, as plain text elsewhere.

    Args:
        header: Names of the columns.
        cells: Of each line.
        left: Columns that rich sets to the left; the others are numbers.
    """
    if not sys.stdout.isatty():
        _print_plain(header, cells)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in header:
        table.add_column(name, justify="left" if name in left else "right", overflow="fold")
    for line in cells:
        table.add_row(*line)
    Console().print(table)


def _print_plain(header: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    widths = [max(len(line[i]) for line in (header, *cells)) for i in range(len(header))]
    for line in (header, *cells):
        print(
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        )


def write_results(
    values: dict[str, Any], as_json: str | None, draw: Callable[[], None] | None
) -> None:
    """Write what a bench found.

    Args:
        values: Of the JSON.
        as_json: Its file; "-": standard output; None: no JSON.
        draw: Writes the plot; None: no plot.

    Raises:
        CannotCreateError: a file cannot be written.
    """
    text = json.dumps(values, indent=2)
    if as_json == "-":
        print(text)
    try:
        if as_json and as_json != "-":
            Path(as_json).write_text(text + "\n", encoding="utf-8")
        if draw is not None:
            draw()
    except OSError as error:
        raise CannotCreateError(f"{error.filename}: {error.strerror}") from error
