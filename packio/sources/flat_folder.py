"""A folder of images without class folders, and a list of labels if there is one.

All images below the folder, at any depth, are samples, sorted by path, bytewise as
``LC_ALL=C sort`` does. A folder is recognised as flat where it has images and no folders in it,
hidden ones aside; a tree is taken as flat where this source is asked for by its name.

A list of labels is read as `packio.sources.tables.label_list` says.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from packio.errors import SourceError
from packio.sources import Listing, _files
from packio.sources.tables import label_list

OPTIONS = label_list.OPTIONS

_LAYOUT = "a folder of images, as 1.jpg, 2.jpg"


def recognise(path: str | Path) -> bool:
    """Tell whether the path is a folder with images and without folders, hidden ones aside."""
    if not _files.is_plain_folder(path):
        return False
    images = False
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir():
                    if not entry.name.startswith("."):
                        return False
                elif entry.name.lower().endswith(_files.EXTENSIONS):
                    images = True
    except OSError:  # whoever lists it says why
        return False
    return images


def listing(
    path: str | Path,
    *,
    classes: Sequence[str] | None = None,
    allow_empty: bool = False,  # noqa: ARG001 (the signature of all sources; a class may be empty)
    labels: str | os.PathLike[str] | None = None,
    label_offset: int = 0,
) -> Listing:
    """List all images below a folder.

    Args:
        path: The folder.
        classes: Names that give the labels; None takes those in the list of labels, sorted.
        allow_empty: Of no meaning here.
        labels: List of labels; None packs without labels.
        label_offset: Added to labels that are numbers.

    Raises:
        SourceError: no folder or no images, a list of labels that does not fit them, or a class
            unknown to `classes`.
        OptionError: an offset that is no whole number.
    """
    path = Path(path)
    _files.entries(path, _LAYOUT)
    result = Listing("flat_folder", path, [], [], None, list(classes or []))
    found = _files.images(path, "", result)
    if not found and not result.unlisted:
        raise SourceError(f"{path}/: no images; {_files.EXPECTED}")
    _files.tell_others(result)
    keys, sizes = [key for key, _ in found], [size for _, size in found]
    result = dataclasses.replace(result, keys=keys, sizes=sizes)
    if labels is None:
        return result
    return label_list.labelled(result, Path(labels), classes, label_offset)
