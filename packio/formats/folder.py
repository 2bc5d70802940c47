"""An unpacked image folder, read where it is: every sample is a file of its own.

Nothing is written, and the files are not scanned: the sample with the key ``a/b.jpg`` is the whole
file ``a/b.jpg`` below the folder. So the table of files in the index is empty: no name is stored
twice, and no file has a SHA-256. Its column ``image/file`` is the sample's position.
``mtime_ns`` (int64, nanoseconds since the epoch) is the modification time of the file when packio
read the header facts and the CRC32C of its row. `packio.FolderDataset` makes such an index.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from packio.formats import Caps, Format, Reading, check_reading
from packio.sample.record import IMAGE, Place, Record


class Folder(Format):
    """Folders of images; never recognised by their names."""

    caps: Caps = Caps(
        (), is_directory=True, writes=False, whole_files=True, keeps=frozenset(("key",))
    )

    def scan(self, path: Path, reading: Reading) -> Iterator[Record[Place]]:
        """Yield every regular file below a folder, in bytewise order of their paths."""
        check_reading(path, reading)
        waiting = [""]
        while waiting:
            prefix = waiting.pop()
            with os.scandir(path / prefix) as entries:
                listed = sorted(entries, key=lambda e: os.fsencode(e.name + "/" * e.is_dir()))
            for entry in listed:
                if entry.is_file():
                    name = prefix + entry.name
                    place = Place("image", name, 0, entry.stat().st_size)
                    yield Record(os.fsencode(name), {IMAGE: place})
            below = [e for e in listed if e.is_dir(follow_symlinks=False)]
            waiting += [f"{prefix}{e.name}/" for e in reversed(below)]


FORMAT = Folder()
