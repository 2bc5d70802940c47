r"""Encodings within containers: protobuf, opcodes of pickles, headers of tar, keys in lists.

In a list, tab, LF, CR and backslash of a key are written ``\t``, ``\n``, ``\r``, ``\\``.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from packio.errors import IntegrityError, PackioError


def load_json(text: bytes, where: object, kind: type[PackioError] = IntegrityError) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise kind(f"{where}: no JSON: {error}; restore or repack it") from error


class MalformedError(ValueError):
    """The bytes do not follow the encoding."""


@dataclasses.dataclass(frozen=True)
class ByteSpan:
    start: int
    stop: int


_ESCAPES = ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"), (b"\r", b"\\r"))


def escape(key: bytes) -> bytes:
    for raw, written in _ESCAPES:
        key = key.replace(raw, written)
    return key


def unescape(text: bytes) -> bytes:
    back = {written: raw for raw, written in _ESCAPES}
    return re.sub(rb"\\[tnr\\]", lambda match: back[match.group()], text)
