"""The plan of a pack: everything that decides its bytes, fixed before the first one is written."""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from pathlib import Path
from typing import Any

from packio import registry
from packio.errors import OptionError, SourceError
from packio.indexfile import canonical_json
from packio.sources import Listing


@dataclasses.dataclass(frozen=True)
class Plan:
    """What will be packed, and how.

    Attributes:
        listing: The samples, in order.
        format: Name of the container format.
        options: What changes the bytes or the set of samples, as JSON can hold it.
        digest: Hexadecimal SHA-256 of all of the above: keys, sizes and labels, not times or
            absolute paths.
    """

    listing: Listing
    format: str
    options: dict[str, Any]
    digest: str

    @property
    def total_bytes(self) -> int:
        """Source bytes, as far as they could be told."""
        return sum(size for size in self.listing.sizes if size > 0)


def make(listing: Listing, format_name: str, options: dict[str, Any]) -> Plan:
    """Make the plan of a listing."""
    digest = hashlib.sha256()
    head = {"format": format_name, "options": options, "classes": listing.classes}
    digest.update(canonical_json({**head, "source": listing.kind}).encode())
    for key, size, label in zip(listing.keys, listing.sizes, listing.labels, strict=True):
        digest.update(struct.pack("<IqqI", len(key), size, label, 0) + key)
    for key, _ in listing.unlisted:
        digest.update(b"unlisted" + key)
    return Plan(listing, format_name, options, digest.hexdigest())


def source_of(path: Path) -> Any:
    """Find the source module that recognises a path.

    Raises:
        SourceError: none does.
    """
    for name in registry.names("sources"):
        module = registry.load("sources", name)
        if module.recognise(path):
            return module
    try:
        path.stat()
        what = "not a folder"
    except (OSError, ValueError) as error:  # ValueError: NUL in the path
        what = getattr(error, "strerror", None) or str(error)
    raise SourceError(
        f"{path}: {what}; expected a folder of class folders of images, as cats/1.jpg, dogs/2.jpg"
    )


def format_of(out: Path, name: str | None) -> str:
    """Name the format of an output: as asked for, or by its suffix.

    Raises:
        OptionError: no such format, or a suffix that means none.
    """
    if name is not None:
        registry.load("formats", name)
        return name
    names = registry.names("formats")
    suffixes = {suffix: n for n in names for suffix in registry.load("formats", n).SUFFIXES}
    try:
        return suffixes[out.suffix.lower()]
    except KeyError:
        raise OptionError(
            f"{out}: the suffix {out.suffix!r} names no format; use one of "
            f"{', '.join(sorted(suffixes))}, or say --format"
        ) from None
