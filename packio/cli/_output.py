"""What commands print: names exactly, on one line, and no fuss when the reader has left."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

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
