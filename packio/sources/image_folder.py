"""A folder of class folders of images, as torchvision's ImageFolder sees it.

Classes are the folders at the top, sorted by name; samples are all files below them with one of
`EXTENSIONS`, in any case, at any depth, symbolic links followed; they are ordered by class, folder
and name. Every path listed is a sample, also where two lead to the same file. Unlike torchvision, a
folder that contains itself through a link is entered once.

Source: torchvision 0.28, ``torchvision.datasets.folder`` (``find_classes``, ``make_dataset``,
``IMG_EXTENSIONS``).
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from packio.errors import SourceError
from packio.sources import Listing

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
SPLITS = frozenset({"train", "training", "val", "valid", "validation", "test", "testing"})

_Identity = tuple[int, int]  # device, inode


def recognise(path: Path) -> bool:
    """Tell whether the path is a folder, and not a pack."""
    # false, not an error, where it may not be looked at
    return os.path.isdir(path) and not os.path.exists(os.path.join(path, "index.packio"))


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
    names = list(classes) if classes is not None else folders
    _check_classes(path, folders, names)
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
        raise SourceError(f"{path}/: no images in any class folder; {_expected()}")
    if result.others:
        common = ", ".join(f"{ending or 'none'} {n}" for ending, n in result.others.most_common(5))
        result.warnings.append(
            f"{result.others.total()} files with other endings are not taken as images ({common}); "
            f"{_expected()}"
        )
    return result


def _class_folders(path: Path) -> tuple[list[str], int]:
    """Names of the class folders, sorted, and how many images lie beside them."""
    try:
        with os.scandir(path) as entries:
            found = [(e.name, _is_folder(e)) for e in entries]
    except FileNotFoundError as error:
        raise SourceError(f"{path}: no such folder; expected {_expected_layout()}") from error
    except NotADirectoryError as error:
        raise SourceError(f"{path}: not a folder; expected {_expected_layout()}") from error
    except OSError as error:
        where = os.fsdecode(error.filename or path)
        raise SourceError(f"{where}: cannot be looked into: {error.strerror}") from error
    folders = sorted(name for name, is_folder in found if is_folder)
    images = sum(not is_folder and name.lower().endswith(EXTENSIONS) for name, is_folder in found)
    if not folders:
        what = f"{images} images but no class folders" if images else "no class folders"
        raise SourceError(f"{path}/: {what}; expected {_expected_layout()}")
    if all(name.lower() in SPLITS for name in folders):
        _refuse_splits(path, folders)
    return folders, images


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Follow links; what leads nowhere is no folder.

    Raises:
        OSError: it cannot be told, as behind a folder that may not be entered.
    """
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link to itself: reading it will say so
            return False
        raise


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


def _check_classes(path: Path, folders: list[str], names: list[str]) -> None:
    unknown = sorted(set(folders) - set(names))
    if unknown:
        shown = ", ".join(ascii(n)[1:-1] for n in unknown[:5])
        raise SourceError(
            f"{path}/: {len(unknown)} class folder(s) that --classes-from does not name: {shown}"
        )


def _empty_class(path: Path, name: str, result: Listing, *, allow_empty: bool) -> None:
    if any(key.startswith(os.fsencode(name) + b"/") for key, _ in result.unlisted):
        return  # not empty: it could not be looked into
    if not allow_empty:
        leads_back = os.path.samefile(path, path / name)
        what = "leads back to the folder it is in" if leads_back else "has no images"
        raise SourceError(
            f"{path / name}/: a class folder that {what}; {_expected()}; "
            "remove it, or keep it as an empty class with --on-error skip"
        )
    result.warnings.append(f"class {name!a} has no images; kept as an empty class")


def _list_class(root: str, name: str, label: int, labels: list[int], result: Listing) -> None:
    """Append the images of one class in torchvision's order: folders as strings, then names."""
    for folder, files in sorted(_walk(root, name, result), key=lambda f: f[0]):
        for file_name, size in sorted(files):
            result.keys.append(os.fsencode(f"{folder}/{file_name}"))
            result.sizes.append(size)
            labels.append(label)


def _walk(root: str, name: str, result: Listing) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Yield (folder, [(image name, bytes)]) for a class folder and all below it, cycles cut."""
    waiting: list[tuple[str, tuple[_Identity, ...]]] = [(name, (_identity(root),))]
    while waiting:
        folder, ancestors = waiting.pop()
        images: list[tuple[str, int]] = []
        try:
            path = os.path.join(root, folder)
            here = _identity(path)
            if here in ancestors:
                result.warnings.append(f"{folder!a} leads back to a folder above; not entered")
                continue
            with os.scandir(path) as entries:
                listed = sorted(entries, key=lambda e: e.name)
        except OSError as error:
            _unlisted(folder, error, result)
            continue
        for entry in listed:
            below = f"{folder}/{entry.name}"
            try:
                if _is_folder(entry):
                    waiting.append((below, (*ancestors, here)))
                elif entry.name.lower().endswith(EXTENSIONS):
                    images.append((entry.name, _size(entry)))
                elif not entry.name.startswith("."):
                    result.others[os.path.splitext(entry.name)[1].lower()] += 1
            except OSError as error:
                _unlisted(below, error, result)
        yield folder, images


def _unlisted(folder: str, error: OSError, result: Listing) -> None:
    reason = f"folder cannot be listed: {error.strerror}"
    result.unlisted.append((os.fsencode(folder) + b"/", reason))


def _identity(folder: str) -> _Identity:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except OSError:  # a dangling link: reading it will say so
        return -1


def _expected() -> str:
    return f"files counted as images end in {', '.join(EXTENSIONS)}"


def _expected_layout() -> str:
    return "a folder of class folders of images, as cats/1.jpg, dogs/2.jpg"
