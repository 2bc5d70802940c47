"""Containers that are one file with the samples in one blob: what hdf5 and pth share."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar, NamedTuple

from packio.errors import CannotCreateError, OutputError
from packio.formats import Entry, Written
from packio.formats.blobs.blob import Blob
from packio.formats.blobs.columns import (
    Columns,
    columns_of,
    entries,
    header,
    one_file,
    pixel_columns,
)
from packio.formats.blobs.spool import Pixels, Spool, output_errors
from packio.sample.record import Field, Record
from packio.system.pools import ThreadPool

if TYPE_CHECKING:
    import numpy as np

BLOBS = ("data", "mask_data")


class Writer:
    """Write records into a new file; the same records give the same bytes.

    Until `close` makes the file, the samples are in a temporary file beside it.
    """

    container: ClassVar[str]  # name of the format

    def __init__(self, path: Path, *, count: int, size: int, classes: Sequence[str] = ()) -> None:
        """Create the temporary files.

        Args:
            path: The file; does not exist yet.
            count: Number of samples to come; not used.
            size: Bytes of all samples together; not used.
            classes: Names of the labels.

        Raises:
            CannotCreateError: the temporary files cannot be made, or the file exists.
            MissingPackageError: the format's package does not load.
        """
        self._path, self._classes, self._closed = path, classes, False
        if path.exists():
            raise CannotCreateError(f"{path}: cannot be created: it exists")
        self._spool = Spool(path)

    def add(self, records: Sequence[Record[Field]]) -> None:
        """Append records.

        Raises:
            OutputError: the records cannot be written; the message tells the space left.
        """
        self._check_open()
        self._spool.add(records)

    def close(self) -> Written:
        """Write the file, and read everything back while it is synced to the disk.

        Raises:
            OutputError: the file cannot be written, or holds other bytes than were added.
        """
        self._check_open()
        try:
            return self._write()
        finally:
            self.abort()

    def abort(self) -> None:
        """Let go of the temporary files; the file stays, if it was written."""
        self._closed = True
        self._spool.close()

    def _check_open(self) -> None:
        if self._closed:
            raise OutputError(f"{self._path}: closed already")

    def fill(
        self, file: IO[bytes], blobs: Mapping[str, Blob], arrays: Mapping[str, np.ndarray],
        pixels: Pixels | None, text: str,
    ) -> Mapping[str, int]:  # fmt: skip
        """Write the file.

        Args:
            file: The file, new and empty.
            blobs: By name: ``data``, and ``mask_data`` if there are masks.
            arrays: The columns, by name.
            pixels: What ``data`` is, if it is an array of pixels.
            text: The text ``packio``; see `packio.formats.blobs.columns.header`.

        Returns:
            Where each of the blobs begins in the file, in bytes.
        """
        raise NotImplementedError

    def _write(self) -> Written:
        spool, path = self._spool, self._path
        columns, pixels = spool.finish(), spool.pixels()
        arrays, blobs = columns.arrays(), {"data": spool.data}
        if columns.mask_offsets is not None:
            blobs["mask_data"] = spool.masks
        if pixels is not None:
            del arrays["offsets"]
        text = header(self.container, len(spool), self._classes)
        with output_errors(path, len(spool)), path.open("xb+", 1 << 20) as file:
            begins = self.fill(file, blobs, arrays, pixels, text)
            file.flush()
            data, masks = one_file(columns, begins["data"], begins.get("mask_data", 0))
            with ThreadPool(1, "packio-sync") as pool:
                synced = pool.submit(os.fsync, file.fileno())
                spool.data.check(file.fileno(), data.offset, where=path)
                if masks is not None:
                    spool.masks.check(file.fileno(), masks.offset, where=path)
                synced.result()
        return Written(
            files=(path.name,),
            places={"image": data} | ({} if masks is None else {"mask": masks}),
            sidecars=(),
            info=pixels.info if pixels is not None else {},
        )


class Found(NamedTuple):
    """The samples of a file that packio wrote."""

    columns: Columns
    entries: Iterator[Entry]
    are_pixels: bool


def find(
    path: Path, arrays: dict[str, np.ndarray], blobs: Mapping[str, tuple[int, int]],
    pixels: tuple[Sequence[int], str] | None,
) -> Found:  # fmt: skip
    """Find the samples of a file that packio wrote.

    Args:
        path: The file.
        arrays: The columns, by name.
        blobs: Where ``data`` and ``mask_data`` lie, if they are there: offset and size in bytes.
        pixels: Shape and dtype of ``data``, if it is an array of pixels.

    Raises:
        IntegrityError: the columns do not fit each other, or point outside the blobs.
    """
    (data, data_bytes), (masks, mask_bytes) = (blobs.get(n, (0, 0)) for n in BLOBS)
    facts = None
    if pixels is not None:
        made, facts = pixel_columns(*pixels, path)
        arrays = {**arrays, **made}
    columns = columns_of(arrays, data_bytes, mask_bytes, path)
    ranges = one_file(columns, data, masks)
    found = entries(columns, (path.name,), *ranges, facts=facts)
    return Found(columns, found, facts is not None)
