"""One folder of files that are named after their class: cat.0.jpg, cat.1.jpg, dog.0.jpg."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from packio.errors import SourceError
from packio.sources import Context, Listing, Source


class Dotted(Source):
    """A folder of files that are named after their class."""

    def recognise(self, path: Path) -> bool:
        """Tell whether the path is a folder with such files and without folders."""
        return path.is_dir() and all(
            entry.is_file() and entry.name.count(".") == 2 for entry in os.scandir(path)
        )

    def listing(self, source: Any, context: Context) -> Listing:
        """List the files, sorted by name.

        Raises:
            SourceError: no files, a class unknown to `Context.classes`, or one without images.
        """
        path = Path(source)
        entries = sorted(os.scandir(path), key=lambda entry: os.fsencode(entry.name))
        found = [entry.name.partition(".")[0] for entry in entries]
        names = list(context.classes or sorted(set(found)))
        if not found:
            raise SourceError(f"{path}/: no files; expected cat.0.jpg, cat.1.jpg, dog.0.jpg")
        if unknown := sorted(set(found) - set(names)):
            raise SourceError(f"{path}/: classes that --classes-from does not name: {unknown}")
        if (empty := sorted(set(names) - set(found))) and not context.allow_empty:
            raise SourceError(
                f"{path}/: classes without images: {empty}; accept by --on-error skip"
            )
        return Listing(
            kind=self.name,
            root=path,
            keys=[os.fsencode(entry.name) for entry in entries],
            sizes=[entry.stat().st_size for entry in entries],
            labels=[names.index(name) for name in found],
            classes=names,
        )


SOURCE = Dotted()
