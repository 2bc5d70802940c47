"""Sources of samples, one file each: what is there to pack, and how one sample's bytes are read.

A source module has

* ``recognise(path) -> bool``: whether the path is one of these;
* ``listing(path, **options) -> Listing``: everything that will be tried, in its final order. What
  cannot even be listed is in ``Listing.unlisted``; nothing is left out silently.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os


@dataclasses.dataclass(frozen=True)
class Listing:
    """What a source holds, in order.

    Attributes:
        kind: Name of the source's module.
        root: Folder that the keys are relative to.
        keys: Relative paths as raw bytes, unique.
        sizes: Bytes of each file; -1 where it could not be told.
        labels: Positions in `classes`.
        classes: Names, sorted, or as another pack has them.
        unlisted: (key, reason) of folders that could not be listed.
        others: File name ending → how many files with it are not taken as images.
        warnings: Things the user should know, one line each.
    """

    kind: str
    root: str | os.PathLike[str]
    keys: list[bytes]
    sizes: list[int]
    labels: list[int]
    classes: list[str]
    unlisted: list[tuple[bytes, str]] = dataclasses.field(default_factory=list)
    others: Counter[str] = dataclasses.field(default_factory=Counter)
    warnings: list[str] = dataclasses.field(default_factory=list)
