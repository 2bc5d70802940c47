"""`convert`: a pack in another format, or encoded anew."""

from __future__ import annotations

import os
from typing import Any

from packio.packing import sourcing
from packio.packing.making import pack
from packio.packing.report import PackReport
from packio.packs import opening
from packio.sources import _packs
from packio.sources.pack import renamed


def convert(
    source: str | os.PathLike[str], out: str | os.PathLike[str], *,
    index: str | os.PathLike[str] | None = None, **options: Any,
) -> PackReport:  # fmt: skip
    """Turn a pack into another format. Bytes, labels, keys and all else of a sample are kept.

    No image is decoded, unless an option asks for another encoding.

    Args:
        source: A pack.
        out: The pack to make; its suffix says the format.
        index: Path or URL of the source's index, if it is not beside the source.
        options: As `pack` takes. ``split="train"`` converts the samples of this split only; shares
            draw new splits.

    Raises:
        NotAPackError: the source is no pack.
        OptionError: the pack has no such split.
        PackioError: see `pack`.
    """
    reading = {n: options.pop(n) for n in ("trust_plain_pickle", "database") if n in options}
    with opening.open_silently(source, index=index, **reading) as opened:  # the report tells
        if isinstance(options.get("split"), str):
            positions = opened.split(options.pop("split")).tolist()
            classes = sourcing.class_names(options.pop("classes_from", None))
            found = renamed(_packs.listing([opened], classes), [opened], options.get("fields"))
            return pack(found.take(positions), out, **options)
        return pack(opened, out, **options)
