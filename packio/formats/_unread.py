"""Containers that packio does not read: what to do with them instead."""

from __future__ import annotations

from pathlib import Path

from packio.errors import NotAPackError
from packio.formats.blobs.ranges import refuse_compressed

_FOLDERS = (  # files in a folder, what they are the marks of, what to do
    (
        ("dataset_info.json", "state.json"),
        "a dataset that Hugging Face's save_to_disk wrote",
        "pack it from Python: packio.pack(datasets.load_from_disk({path!r}), 'out.lmdb')",
    ),
    (
        ("index.json", "chunk-0-0.bin"),
        "a dataset of LitData",
        "pack it from Python: packio.pack(litdata.StreamingDataset({path!r}), 'out.lmdb')",
    ),
)


def refuse(path: Path) -> None:
    """Refuse a file or a folder that no format recognises, if its names tell what it is."""
    if path.is_file():
        refuse_compressed(path)
    for names, what, way in _FOLDERS:
        if all((path / name).is_file() for name in names):
            raise NotAPackError(f"{path}: {what}; {way.format(path=str(path))}")
