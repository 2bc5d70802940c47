"""A folder of class folders of images, as torchvision's ImageFolder reads it.

Classes are the folders at the top, sorted by name. Samples are all files below the class folders
whose names end as images' do, at any depth; the option ``endings`` adds further endings. Symbolic
links are followed. Samples are ordered by class, folder and name. Two paths that lead to the same
file are two samples. Unlike torchvision, packio does not follow a link from a folder to itself or
to a folder above it. Named fields come from files beside the images: `packio.sources._folders`.

Source: torchvision 0.28, ``torchvision.datasets.folder`` (``find_classes``, ``make_dataset``,
``IMG_EXTENSIONS``).
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from packio.errors import SourceError
from packio.sources import Context, Listing, Source, _files, _folders, command


class ImageFolder(Source):
    priority = 1  # the last: it takes each folder that no other source recognises
    options = _files.OPTIONS
    takes_fields = True

    def recognise(self, path: Path) -> bool:
        return _files.is_plain_folder(path)

    def listing(self, source: Any, context: Context) -> Listing:
        path, is_image = Path(source), _folders.image_test(context)
        entries = _files.entries(path, _folders.LAYOUT)
        result = Listing(self.name, path)
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
            raise SourceError(f"{path}/: {what}; expected {_folders.LAYOUT}{hint}")

        def command_of(name: str) -> str:
            return command(f"{path}/{name}", name)

        names = _folders.find_classes(f"{path}/", folders, context, command_of)
        labels: list[int] = []
        result = dataclasses.replace(result, labels=labels, classes=names)
        for label in sorted(names.index(f) for f in folders):
            found = _files.walk(os.fspath(path), names[label], result, context, is_image)
            for folder, files in sorted(found, key=lambda f: f[0]):  # torchvision's order
                result.keys.extend(os.fsencode(f"{folder}/{name}") for name, _ in files)
                result.sizes.extend(size for _, size in files)
            labels.extend([label] * (len(result.keys) - len(labels)))
        _folders.warn_of_folders(str(path), result, folders, beside, context, command_of)
        if masks := _folders.masks_among(result.keys, _files.reader(path)):
            result.warnings.append(masks.told)
        result = _folders.add_fields(result, context)
        _folders.tell_others(result)
        return result


SOURCE = ImageFolder()
