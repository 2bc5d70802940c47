"""An unpacked image folder, read where it is: every sample is a file of its own.

There is nothing to write and nothing within the files to scan: the sample with the key ``a/b.jpg``
is the whole of the file ``a/b.jpg`` below the folder. The index therefore has an empty table of
files (no names twice, no SHA-256 of each); its column ``file`` is the sample's position, and
``mtime_ns`` (int64, nanoseconds since the epoch) the modification time at which the file had the
header facts and the CRC32C of its row. `packio.FolderDataset` makes such an index.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from packio.formats import Entry

SUFFIXES: tuple[str, ...] = ()  # never recognised by its name
IS_DIRECTORY = True
PACKAGE = EXTRA = None
WHOLE_FILES = True  # a sample is the file named by its key; the table of files is empty


def scan(path: Path) -> Iterator[Entry]:
    """Yield an entry for every regular file below a folder, in bytewise order of their paths.

    Args:
        path: The folder.

    Raises:
        OSError: a folder cannot be listed.
    """
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        with os.scandir(path / prefix) as entries:
            listed = sorted(entries, key=lambda e: os.fsencode(e.name + "/" * e.is_dir()))
        for entry in listed:
            if entry.is_file():
                name = prefix + entry.name
                yield Entry(os.fsencode(name), name, 0, entry.stat().st_size)
        below = [e for e in listed if e.is_dir(follow_symlinks=False)]
        waiting += [f"{prefix}{e.name}/" for e in reversed(below)]
