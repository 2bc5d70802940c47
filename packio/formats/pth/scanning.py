"""Find the samples of a file of ``torch.save``, by packio or others; see `packio.formats.pth`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packio.errors import IntegrityError
from packio.formats import Entry
from packio.formats.blobs import by_library, one_file
from packio.formats.blobs.columns import Columns, check_header
from packio.formats.blobs.pixels import order_of
from packio.formats.pth import foreign
from packio.formats.pth.archive import Archive, Tensor, opened


def scan(
    path: Path, *, image: str | None = None, label: str | None = None, layout: str = ""
) -> Iterator[Entry]:
    """Yield an entry for every sample.

    `packio.formats.pth.foreign` says which files of others are read. Nothing is unpickled; see
    `packio.formats.pth.archive`.

    Args:
        path: The file.
        image: Where the images are in the saved value: a key of the dict, a position in the tuple,
            or a path of keys and positions, as "train/images".
        label: Where the labels are, likewise; "" takes no labels.
        layout: Order of pixels; see `packio.formats.blobs.pixels`.

    Raises:
        NotAPackError: the file is not torch's, holds other values than tensors and plain data, or
            has no samples.
        IntegrityError: the file is damaged.
        OptionError: the saved value has no item of a given name.
        ReadError: the file cannot be read.
    """
    order = order_of(layout)
    with opened(path) as archive:
        value = archive.load()
        if isinstance(value, dict) and "packio" in value and image is None:
            found = _own(value, archive, path)
        else:
            found = foreign.found(value, archive, path, image, label, order)
    yield from found


class Reader(by_library.Reader):
    """Read images that are bytes within the pickle: all of them are held in memory."""

    survives_fork = True

    def find(self) -> by_library.Found:
        """Read the pickle."""
        with opened(self.path) as archive:
            return foreign.read(archive.load(), archive, self.path, self.image)


def _own(value: Mapping[str, Any], archive: Archive, path: Path) -> Iterator[Entry]:
    text = value["packio"]
    check_header(text if isinstance(text, str) else "", "pth", path)
    tensors = {n: value[n] for n in (*Columns._fields, *one_file.BLOBS) if n in value}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise IntegrityError(f"{path}: {name} is no tensor; restore or repack the file")
    data = tensors.get("data")
    blobs = {n: archive.range_of(tensors.pop(n), n) for n in one_file.BLOBS if n in tensors}
    arrays = {n: archive.array(tensor, n) for n, tensor in tensors.items()}
    pixels = None
    if data is not None and data.ndim > 1:
        pixels = data.shape, str(archive.pixels(data, "data"))
    return one_file.find(path, arrays, blobs, pixels).entries
