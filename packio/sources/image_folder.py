"""A folder of class folders of images, as torchvision's ImageFolder sees it.

Classes are the folders at the top, sorted by name; samples are all files below them with one of
`EXTENSIONS`, in any case, at any depth, symbolic links followed; they are ordered by class, folder
and name. Every path listed is a sample, also where two lead to the same file. Unlike torchvision, a
folder that contains itself through a link is entered once.

Source: torchvision 0.28, ``torchvision.datasets.folder`` (``find_classes``, ``make_dataset``,
``IMG_EXTENSIONS``).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from packio.errors import SourceError
from packio.sources import Listing, _classes, _files

PRIORITY = 1  # asked last: it takes every folder that no other source recognises
EXTENSIONS = _files.EXTENSIONS

_LAYOUT = "a folder of class folders of images, as cats/1.jpg, dogs/2.jpg"


def recognise(path: str | Path) -> bool:
    """Tell whether the path is a folder, and not a pack."""
    return _files.is_plain_folder(path)


def listing(
    path: Path, *, classes: Sequence[str] | None = None, allow_empty: bool = False
) -> Listing:
    """List an image folder.

    Args:
        path: The folder that holds the class folders.
        classes: Names that give the labels; None takes the folders found, sorted.
        allow_empty: Accept classes without images, with a warning.

    Raises:
        SourceError: no folder, no class folders, splits instead of classes, a class unknown to
            `classes`, or a class without images (unless `allow_empty`).
    """
    folders, beside = _class_folders(path)
    names = _classes.names(f"{path}/", folders, classes)
    labels: list[int] = []
    result = Listing("image_folder", path, [], [], labels, names)
    if beside:
        result.warnings.append(f"{beside} images beside the class folders belong to no class")
    root = os.fspath(path)
    for label in sorted(names.index(f) for f in folders):
        before = len(result.keys)
        _list_class(root, names[label], label, labels, result)
        if len(result.keys) == before:
            _empty_class(path, names[label], result, allow_empty=allow_empty)
    if not result.keys and not result.unlisted:
        raise SourceError(f"{path}/: no images in any class folder; {_files.EXPECTED}")
    _files.tell_others(result)
    return result


def _class_folders(path: Path) -> tuple[list[str], int]:
    """Names of the class folders, sorted, and how many images lie beside them."""
    found = _files.entries(path, _LAYOUT)
    folders = sorted(name for name, is_folder in found if is_folder)
    images = sum(not is_folder and name.lower().endswith(EXTENSIONS) for name, is_folder in found)
    if not folders:
        what = f"{images} images but no class folders" if images else "no class folders"
        raise SourceError(f"{path}/: {what}; expected {_LAYOUT}")
    if _classes.are_splits(folders):
        _refuse_splits(path, folders)
    return folders, images


def _refuse_splits(path: Path, folders: list[str]) -> None:
    train = next((f for f in folders if f.lower().startswith("train")), folders[0])
    commands = [f"packio pack {shlex.quote(f'{path}/{train}')} {train}.lmdb"]
    commands += [
        f"packio pack {shlex.quote(f'{path}/{f}')} {f}.lmdb --classes-from {train}.lmdb"
        for f in folders
        if f != train
    ]
    raise SourceError(
        f"{path}/: its folders are splits ({', '.join(folders)}), not classes; "
        f"pack each by itself: {'; '.join(commands)}"
    )


def _empty_class(path: Path, name: str, result: Listing, *, allow_empty: bool) -> None:
    if any(key.startswith(os.fsencode(name) + b"/") for key, _ in result.unlisted):
        return  # not empty: it could not be looked into
    if not allow_empty:
        leads_back = os.path.samefile(path, path / name)
        what = "leads back to the folder it is in" if leads_back else "has no images"
        raise SourceError(
            f"{path / name}/: a class folder that {what}; {_files.EXPECTED}; "
            "remove it, or keep it as an empty class with --on-error skip"
        )
    result.warnings.append(f"class {name!a} has no images; kept as an empty class")


def _list_class(root: str, name: str, label: int, labels: list[int], result: Listing) -> None:
    """Append the images of one class in torchvision's order: folders as strings, then names."""
    for folder, files in sorted(_files.walk(root, name, result), key=lambda f: f[0]):
        for file_name, size in sorted(files):
            result.keys.append(os.fsencode(f"{folder}/{file_name}"))
            result.sizes.append(size)
            labels.append(label)
