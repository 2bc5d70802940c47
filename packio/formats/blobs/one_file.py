"""Containers that are one file with the values of a field in one blob: what hdf5 and pth share."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar

from packio.errors import CannotCreateError
from packio.formats import Written
from packio.formats.blobs import spool
from packio.formats.blobs.columns import Header, ShardColumns, columns_of, prefix, records
from packio.formats.blobs.spool import Blob, Pixels
from packio.sample.record import Place, Record
from packio.system.pools import ThreadPool

if TYPE_CHECKING:
    import numpy as np


class Writer(spool.Writer):
    container: ClassVar[str]  # name of the format

    def __init__(self, path: Path, classes: Sequence[str]) -> None:
        if path.exists():
            raise CannotCreateError(f"{path}: cannot be created: it exists")
        super().__init__(path, classes)

    def fill(
        self, file: IO[bytes], blobs: Mapping[str, Blob], arrays: Mapping[str, np.ndarray],
        pixels: Pixels | None, text: str,
    ) -> Mapping[str, int]:  # fmt: skip
        """Write the file; return where each of the blobs begins in it, in bytes.

        Blobs have the names of their arrays: ``data``, and ``<name>_data`` of each other field.
        """
        raise NotImplementedError

    def _write(self) -> Written:
        path, pixels = self._path, self._spool.pixels()
        columns, header = self._spool.finish()
        arrays = columns.arrays(lengths=False)
        if pixels is not None:
            del arrays["offsets"]
        blobs = {name: self._spool.blobs[name] for name in columns.values}
        text = header.text(self.container, self._classes)
        with path.open("xb+", 1 << 20) as file:
            named = {f"{prefix(name)}data": blob for name, blob in blobs.items()}
            begins = self.fill(file, named, arrays, pixels, text)
            file.flush()
            begin = {name: begins[f"{prefix(name)}data"] for name in blobs}
            with ThreadPool(1, "packio-sync") as pool:
                synced = pool.submit(os.fsync, file.fileno())
                for name, blob in blobs.items():
                    offsets = columns.values[name].offsets[:-1] + begin[name]
                    blob.check(file.fileno(), offsets, where=path)
                synced.result()
        places = {name: values.ranges(begin[name]) for name, values in columns.values.items()}
        return Written((path.name,), places, (), pixels.info if pixels is not None else {})


def find(
    path: Path, header: Header, arrays: Mapping[str, np.ndarray],
    blobs: Mapping[str, tuple[int, int]], pixels: tuple[Sequence[int], str] | None,
) -> tuple[ShardColumns, Iterator[Record[Place]]]:  # fmt: skip
    """Find the samples of a file that packio wrote, whose blobs lie at (offset, size), in bytes."""
    sizes = {name: size for name, (_, size) in blobs.items()}
    columns = columns_of(arrays, sizes, header, path, pixels)
    return columns, records(columns, (path.name,), {
        name: values.ranges(blobs.get(name, (0, 0))[0]) for name, values in columns.values.items()
    })  # fmt: skip
