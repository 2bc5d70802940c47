r"""Keys in text lists. Tab, LF, CR and backslash are written ``\t``, ``\n``, ``\r``, ``\\``."""

from __future__ import annotations

import re

_ESCAPES = ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"), (b"\r", b"\\r"))


def escaped(key: bytes) -> bytes:
    """Write a key so that it fits one column of one line."""
    for raw, written in _ESCAPES:
        key = key.replace(raw, written)
    return key


def unescaped(text: bytes) -> bytes:
    """Read a key that `escaped` wrote."""
    back = {written: raw for raw, written in _ESCAPES}
    return re.sub(rb"\\[tnr\\]", lambda match: back[match.group()], text)
