"""Parsers of encodings within containers: protobuf, Arrow streams, opcodes of pickles."""

from __future__ import annotations

import dataclasses


class Malformed(ValueError):  # noqa: N818 (never leaves the package)
    """The bytes do not follow the encoding."""


@dataclasses.dataclass(frozen=True)
class ByteSpan:
    """A range of bytes in a value: from start to stop."""

    start: int
    stop: int
