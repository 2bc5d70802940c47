"""One folder of files that are named after their class: cat.0.jpg, cat.1.jpg, dog.0.jpg."""

import os
from pathlib import Path
from typing import Any

from packio.errors import SourceError
from packio.sources import Context, Listing, Source


class Dotted(Source):
    """A folder of files that are named after their class."""

    def recognise(self, path: Path) -> bool:
        """Tell whether the folder has such files only."""
        files = list(path.iterdir()) if path.is_dir() else []
        return bool(files) and all(p.is_file() and p.name.count(".") == 2 for p in files)

    def listing(self, source: Any, context: Context) -> Listing:
        """List the files, sorted by name."""
        path, files = Path(source), sorted(Path(source).iterdir(), key=os.fsencode)
        found = [file.name.partition(".")[0] for file in files]
        names = list(context.classes or sorted(set(found)))
        if set(found) - set(names) or (set(names) - set(found) and not context.allow_empty):
            raise SourceError(f"{path}/: classes {sorted(set(found))}; expected {names}")
        keys, sizes = [os.fsencode(f.name) for f in files], [f.stat().st_size for f in files]
        return Listing(self.name, path, keys, sizes, [names.index(name) for name in found], names)


SOURCE = Dotted()
