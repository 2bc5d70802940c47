"""One dataset class for each container format, with the arguments of `PackDataset`."""

from __future__ import annotations

import functools
import os
from typing import TypeVar

from packio.datasets.pack_dataset import PackDataset
from packio.packs import opening
from packio.system import files

Kind = TypeVar("Kind", bound="type[PackDataset]")


def _described(kind: Kind) -> Kind:
    """Give a class, after its own docstring, the description of the arguments of `PackDataset`."""
    if kind.__doc__ and PackDataset.__doc__:  # python -OO has no docstrings
        _, _, arguments = PackDataset.__doc__.partition("\n")
        kind.__doc__ = f"{kind.__doc__.rstrip()}\n{arguments}"
    return kind


@_described
class FolderDataset(PackDataset):
    """Images of a folder that is not packed, laid out as for torchvision's ImageFolder.

    The first opening reads every file once, in threads, for its header and checksum. The result is
    kept in the user's cache (``$PACKIO_CACHE_DIR``, or ``~/.cache/packio``); nothing is written
    beside the images. A later opening looks at the size and modification time of each file, and
    reads the files that have changed. It raises SourceError if there is no folder of class folders,
    BadImagesError if images cannot be read (on_error="skip" leaves them out, with a warning), and
    CannotCreateError if the cache cannot be written.

    Gives the same tensors and draws as a pack of the same folder. Each read opens and closes a
    file. That takes little time beside decoding if the files are in memory; on disks and network
    storage it takes the time that they need to open a file.
    """

    format: str = "folder"

    def _opened(self, path: str | os.PathLike[str], access: str | None) -> opening.Pack:
        from packio.datasets import folders

        skip = self._options["on_error"] == "skip"
        found = folders.located(path, skip=skip)
        again = functools.partial(folders.located, files.absolute(path), skip=skip)
        return opening.Pack(path, access=access, located=found, again=again)


@_described
class Hdf5Dataset(PackDataset):
    """Samples of an HDF5 pack."""

    format: str = "hdf5"


@_described
class LmdbDataset(PackDataset):
    """Samples of an LMDB pack."""

    format: str = "lmdb"


@_described
class N5Dataset(PackDataset):
    """Samples of an N5 pack."""

    format: str = "n5"


@_described
class PthDataset(PackDataset):
    """Samples of a pack of .pth shards."""

    format: str = "pth"


@_described
class RecordIODataset(PackDataset):
    """Samples of a RecordIO pack."""

    format: str = "recordio"


@_described
class TFRecordDataset(PackDataset):
    """Samples of a TFRecord pack."""

    format: str = "tfrecord"


@_described
class TarDataset(PackDataset):
    """Samples of a pack of WebDataset tars."""

    format: str = "tar"


@_described
class ZarrDataset(PackDataset):
    """Samples of a Zarr pack."""

    format: str = "zarr"
