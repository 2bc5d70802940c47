"""A folder of images without class folders, and perhaps a list of labels.

All images below the folder, at any depth, are samples. They are sorted by path, bytewise as
``LC_ALL=C sort`` does. A folder is recognised if it has images and only hidden folders. For a
deeper tree, the user names this source. Named fields come from files beside the images:
`packio.sources._folders`; a list of labels is read as `packio.sources.tables.lines` says.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from packio.errors import PackioError, SourceError
from packio.sources import Context, Listing, Source, _files, _folders
from packio.sources.tables import lines
from packio.system.files import is_hidden

_LAYOUT = "a folder of images, as 1.jpg, 2.jpg"
_OPTIONS = {**lines.LABEL_OPTIONS, **_files.OPTIONS}


class FlatFolder(Source):
    options = _OPTIONS
    takes_fields = True

    def recognise(self, path: Path) -> bool:
        if not _files.is_plain_folder(path):
            return False
        try:
            entries = _files.entries(path, _LAYOUT)
        except PackioError:  # the source that lists the folder says why
            return False
        shown = [(name, is_folder) for name, is_folder in entries if not is_hidden(name)]
        has_images = any(map(_files.is_image, (name for name, _ in shown)))
        return has_images and not any(is_folder for _, is_folder in shown)

    def listing(self, source: Any, context: Context) -> Listing:
        path = Path(source)
        _files.entries(path, _LAYOUT)
        result = Listing(self.name, path, classes=list(context.classes or []))
        found = _files.images(path, "", result, context, _folders.image_test(context))
        if not found and not result.unlisted:
            hint = _files.archive_hint(path)
            raise SourceError(f"{path}/: no images; {_files.EXPECTED}{hint}")
        keys, sizes = [key for key, _ in found], [size for _, size in found]
        result = dataclasses.replace(result, keys=keys, sizes=sizes)
        result = _folders.add_fields(lines.label_images(result, context), context)
        _folders.tell_others(result)
        return result


SOURCE = FlatFolder()
