"""Converting: a pack in another format, or made anew in another way."""

from __future__ import annotations

import os
from typing import Any

from packio.packing.making import pack
from packio.packing.report import PackReport
from packio.packs import packs


def convert(
    source: str | os.PathLike[str], out: str | os.PathLike[str], **options: Any
) -> PackReport:
    """Turn a pack into another format, nothing decoded: bytes, labels, keys and all else are kept.

    Args:
        source: A pack.
        out: The pack to make; its suffix says the format.
        options: As `pack` takes.

    Raises:
        NotAPackError: the source is no pack.
        PackioError: see `pack`.
    """
    with packs.open(source) as opened:
        return pack(opened, out, **options)
