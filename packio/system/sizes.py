"""Numbers of bytes, as people write them."""

from __future__ import annotations

import re

from packio.errors import OptionError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)B?")


def byte_count(text: str) -> int:
    """Turn "256MB", "1.5GiB" or "1000" into a number of bytes."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise OptionError(f"{text!r}: expected a size in bytes, as 256MB or 1GiB")
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " KMGT".index(prefix.upper() or " "))
