"""Parsers of encodings within containers: protobuf, Arrow streams, pickles that are not run."""

from __future__ import annotations

import dataclasses


class Malformed(ValueError):  # noqa: N818 (never leaves the package)
    """The bytes are no such message."""


@dataclasses.dataclass(frozen=True)
class Span:
    """Bytes that are left where they are: from start to stop in their value."""

    start: int
    stop: int
