"""A folder of class folders of images, as torchvision's ImageFolder reads it.

Classes are the folders at the top, sorted by name. Samples are all files below the class folders
that end in one of `EXTENSIONS`, in upper or lower case, at any depth; symbolic links are followed.
Samples are ordered by class, folder and name. Two paths that lead to the same file are two samples.
Unlike torchvision, a folder that contains itself through a link is entered once.

Source: torchvision 0.28, ``torchvision.datasets.folder`` (``find_classes``, ``make_dataset``,
``IMG_EXTENSIONS``).
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from packio.errors import SourceError
from packio.sources import Context, Listing, Source, _classes, _files

EXTENSIONS = _files.EXTENSIONS

_LAYOUT = "a folder of class folders of images, as cats/1.jpg, dogs/2.jpg"


class ImageFolder(Source):
    """A folder of class folders of images."""

    priority = 1  # the last: it takes each folder that no other source recognises

    def recognise(self, path: Path) -> bool:
        """Tell whether the path is a folder and no pack."""
        return _files.is_plain_folder(path)

    def listing(self, source: Any, context: Context) -> Listing:
        """List an image folder.

        Raises:
            SourceError: there is no such folder, it has no class folders, its folders are splits,
                a class is unknown to `Context.classes`, or a class has no images (unless
                `Context.allow_empty`).
        """
        path = Path(source)
        folders, beside = _class_folders(path)
        names = _classes.names(f"{path}/", folders, context.classes)
        labels: list[int] = []
        result = Listing(self.name, path, [], [], labels, names)
        if beside:
            result.warnings.append(f"{beside} images beside the class folders belong to no class")
        for label in sorted(names.index(f) for f in folders):
            before = len(result.keys)
            found = _files.walk(os.fspath(path), names[label], result, context.found)
            for folder, files in sorted(found, key=lambda f: f[0]):  # torchvision's order
                result.keys.extend(os.fsencode(f"{folder}/{name}") for name, _ in files)
                result.sizes.extend(size for _, size in files)
            labels.extend([label] * (len(result.keys) - before))
            if len(result.keys) == before:
                _empty_class(path, names[label], result, allow_empty=context.allow_empty)
        if not result.keys and not result.unlisted:
            raise SourceError(f"{path}/: no images in any class folder; {_files.EXPECTED}")
        _files.tell_others(result)
        return result


def _class_folders(path: Path) -> tuple[list[str], int]:
    """Names of the class folders, sorted, and the number of images beside them."""
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
        return  # the folder is not empty, but cannot be read
    if not allow_empty:
        leads_back = os.path.samefile(path, path / name)
        what = "leads back to the folder it is in" if leads_back else "has no images"
        raise SourceError(
            f"{path / name}/: a class folder that {what}; {_files.EXPECTED}; "
            "remove it, or keep it as an empty class with --on-error skip"
        )
    result.warnings.append(f"class {name!a} has no images; kept as an empty class")


SOURCE = ImageFolder()
