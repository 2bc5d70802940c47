"""Find the samples of a file of ``torch.save``, by packio or others; see `packio.formats.pth`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packio.errors import IntegrityError
from packio.formats import Reading
from packio.formats.blobs import one_file
from packio.formats.blobs.by_library import FoundSamples
from packio.formats.blobs.columns import prefix, read_header
from packio.formats.pth import foreign
from packio.formats.pth.archive import Tensor, TorchFile, opened
from packio.sample.record import IMAGE, Place, Record


def scan(path: Path, reading: Reading) -> Iterator[Record[Place]]:
    """Yield the record of every sample; see `packio.formats.pth.Pth`."""
    with opened(path) as archive:
        value = archive.load()
        if isinstance(value, dict) and "packio" in value and reading.image is None:
            found = _own(value, archive, path)
        else:
            found = foreign.found(value, archive, path, reading)
    yield from found


def find(path: Path, reading: Reading) -> FoundSamples:
    """Read the pickle, for images that are bytes in it."""
    with opened(path) as archive:
        return foreign.read(archive.load(), archive, path, reading.image)


def _own(value: Mapping[str, Any], archive: TorchFile, path: Path) -> Iterator[Record[Place]]:
    header = read_header(value["packio"], "pth", path)
    blob_names = {name: f"{prefix(name)}data" for name in header.kinds}
    tensors = {n: value[n] for n in (*header.arrays, *blob_names.values()) if n in value}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise IntegrityError(f"{path}: {name} is no tensor; restore or repack the file")
    data = tensors.get("data")
    blobs = {
        name: archive.range_of(tensors.pop(blob), blob) for name, blob in blob_names.items()
        if blob in tensors
    }  # fmt: skip
    arrays = {name: archive.array(tensor, name) for name, tensor in tensors.items()}
    pixels = None
    if data is not None and data.ndim > 1:
        pixels = data.shape, str(archive.pixels(data, blob_names[IMAGE]))
    return one_file.find(path, header, arrays, blobs, pixels)[1]
