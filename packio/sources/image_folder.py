"""A folder of class folders of images, as torchvision's ImageFolder reads it.

Classes are the folders at the top, sorted by name. Samples are all files below the class folders
whose names end as images' do, at any depth; the option ``endings`` adds further endings. Symbolic
links are followed. Samples are ordered by class, folder and name. Two paths that lead to the same
file are two samples. Unlike torchvision, packio does not follow a link from a folder to itself or
to a folder above it. `packio.sources._beside` says how named fields come from files beside the
images.

Source: torchvision 0.28, ``torchvision.datasets.folder`` (``find_classes``, ``make_dataset``,
``IMG_EXTENSIONS``).
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from pathlib import Path
from typing import Any

from packio.errors import SourceError
from packio.sample.labelling import class_names
from packio.sources import Context, Listing, Source, _beside, _class_folders, _files, counted


class ImageFolder(Source):
    """A folder of class folders of images."""

    priority = 1  # the last: it takes each folder that no other source recognises
    options = _files.OPTIONS
    takes_fields = True

    def recognise(self, path: Path) -> bool:
        """Tell whether the path is a folder and no pack."""
        return _files.is_plain_folder(path)

    def listing(self, source: Any, context: Context) -> Listing:
        """List an image folder."""
        path, is_image = Path(source), _beside.image_test(context)
        entries = _files.entries(path, _class_folders.LAYOUT)
        result = Listing(self.name, path, [], [], [], [])
        folders = [
            name for name, is_folder in entries
            if is_folder and _files.is_taken(f"{name}/", result, context)
        ]  # fmt: skip
        beside = [
            name for name, is_folder in entries
            if not is_folder and is_image(name) and _files.is_taken(name, result, context)
        ]  # fmt: skip
        if not folders:
            what = f"{len(beside)} images but no class folders" if beside else "no class folders"
            hint = _files.archive_hint(path)
            raise SourceError(f"{path}/: {what}; expected {_class_folders.LAYOUT}{hint}")

        def command(name: str) -> str:
            return f"packio pack {shlex.quote(f'{path}/{name}')} {shlex.quote(f'{name}.lmdb')}"

        _class_folders.refuse_splits(f"{path}/", folders, command)
        names = class_names(f"{path}/", folders, context.classes)
        labels: list[int] = []
        result = dataclasses.replace(result, labels=labels, classes=names)
        if beside:
            result.warnings.append(counted(_class_folders.BESIDE, beside))
        for label in sorted(names.index(f) for f in folders):
            found = _files.walk(os.fspath(path), names[label], result, context, is_image)
            for folder, files in sorted(found, key=lambda f: f[0]):  # torchvision's order
                result.keys.extend(os.fsencode(f"{folder}/{name}") for name, _ in files)
                result.sizes.extend(size for _, size in files)
            labels.extend([label] * (len(result.keys) - len(labels)))

        def why(name: str) -> str:
            back = os.path.samefile(path, path / name)
            return "leads back to the folder it is in" if back else "has no images"

        _class_folders.tell_empty(str(path), result, folders, context, why)
        told = _class_folders.told_labels(result.keys, context.classes, names, command)
        result.warnings.extend(told)
        if masks := _class_folders.masks_among(result.keys, _files.reader(path)):
            result.warnings.append(masks.told)
        result = _beside.with_fields(result, context)
        _beside.tell_others(result)
        return result


SOURCE = ImageFolder()
