"""Class folders: folders of images whose names are the names of the classes.

Image folders, folders at URLs and archives share these rules. Folders that are called train, val
and test are the splits of a dataset, no classes. The order of the images is that of torchvision:
by class, then by folder, then by name, compared as text.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

from packio.errors import SourceError
from packio.sources import Context, Listing, _files

LAYOUT = "a folder of class folders of images, as cats/1.jpg, dogs/2.jpg"

_SPLITS = frozenset({"train", "training", "val", "valid", "validation", "test", "testing"})


def are_splits(folders: Iterable[str]) -> bool:
    """Tell whether folders are the splits of a dataset, as train and val."""
    found = {name.lower() for name in folders}
    return bool(found) and found <= _SPLITS


def refuse_splits(where: str, folders: Iterable[str], command: Callable[[str], str]) -> None:
    """Raise if the folders are splits.

    Args:
        where: Begins the error's message.
        folders: Names of the folders at the top.
        command: Makes the shell command that packs one of the folders.

    Raises:
        SourceError: the folders are splits; the message has a command for each.
    """
    names = sorted(folders)
    if not are_splits(names):
        return
    train = next((f for f in names if f.lower().startswith("train")), names[0])
    commands = [
        command(name) + ("" if name == train else f" --classes-from {train}.lmdb")
        for name in sorted(names, key=lambda name: name != train)
    ]
    raise SourceError(
        f"{where}: its folders are splits ({', '.join(names)}), not classes; "
        f"name one of them, as {where}{train}; to pack each by itself: {'; '.join(commands)}"
    )


def in_order(keys: Iterable[bytes], names: Sequence[str]) -> tuple[list[bytes], list[int]]:
    """Sort the keys that begin with a class folder; return the keys and their labels.

    Args:
        keys: Relative paths. A key without a folder is left out.
        names: Of the classes; the position of a name is its label.
    """
    label_of = {name: label for label, name in enumerate(names)}

    def place(key: bytes) -> tuple[int, str, str]:
        folder, _, name = os.fsdecode(key).rpartition("/")
        return label_of[folder.partition("/")[0]], folder, name

    placed = sorted((place(key), key) for key in keys if b"/" in key)
    return [key for _, key in placed], [label for (label, _, _), _ in placed]


def tell_empty(
    where: str,
    listing: Listing,
    folders: Iterable[str],
    context: Context,
    why: Callable[[str], str] = lambda _: "has no images",
) -> None:
    """List class folders without images as bad, or warn of them where the user accepts them.

    Args:
        where: The source, as text.
        listing: Of the images; receives the bad folders and the warnings.
        folders: Names of the class folders.
        context: Says whether empty classes are accepted.
        why: Makes the end of the sentence "a class folder that …" of a folder's name.

    Raises:
        SourceError: no class has an image, and none has a file that cannot be read.
    """
    labels = listing.labels if listing.labels is not None else []
    full = {listing.classes[label] for label in set(labels)}
    full |= {os.fsdecode(key.partition(b"/")[0]) for key, _ in listing.unlisted}  # cannot be read
    if not full:
        raise SourceError(f"{where}/: has no images in any class folder; {_files.EXPECTED}")
    for name in sorted(set(folders) - full):
        if context.allow_empty:
            listing.warnings.append(f"class {name!a} has no images; kept as an empty class")
            continue
        reason = (
            f"a class folder that {why(name)}; {_files.EXPECTED}; remove it, or keep it as an "
            "empty class with --on-error skip"
        )
        listing.unlisted.append((os.fsencode(name) + b"/", reason))
