"""Levels: smaller JPEGs of an image, which lie beside the image as named fields of their own.

Level 2 of an image is a field ``image_div2``: a JPEG whose sides are 1/2 of the image's, rounded
up. Pixel (y, x) of level L shows rows L * y to L * y + L - 1 of the image, as stored, and the
columns likewise. The name alone tells a level, in any container and without packio.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from packio.sample.record import IMAGE, Field, Record

LARGEST = 64  # divisor
_NAME = re.compile(rf"{IMAGE}_div(2|4|8|16|32|64)")


def name_of(divisor: int) -> str:
    return f"{IMAGE}_div{divisor}"


def divisor_of(name: str) -> int | None:
    """Divisor of the level that a field's name names; None if the field is no level."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def list_levels(fields: Mapping[str, str]) -> dict[int, str]:
    """Divisor → name of the levels among fields of some kinds, the smallest images first."""
    found = {divisor_of(name): name for name, kind in fields.items() if kind == "image"}
    return {d: found[d] for d in sorted((d for d in found if d is not None), reverse=True)}


def others(names: Iterable[str]) -> list[str]:
    """The names that are no levels'."""
    return [name for name in names if divisor_of(name) is None]


def size_at(height: int, width: int, divisor: int) -> tuple[int, int]:
    """(height, width) of a level of a stored image, pixels."""
    return -(-height // divisor), -(-width // divisor)


def drop_levels(record: Record[Field]) -> Record[Field]:
    kept = others(record.fields)
    if len(kept) == len(record.fields):
        return record
    return record.replace_fields({name: record.fields[name] for name in kept})
