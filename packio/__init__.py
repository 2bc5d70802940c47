"""packio: pack image datasets into standard containers, and read them back at full speed.

>>> import packio
>>> packio.pack("photos", "photos.lmdb")                                    # doctest: +SKIP
>>> ds = packio.LmdbDataset("photos.lmdb", crop=packio.RandomResizedCrop(224), hflip=0.5)
...                                                                         # doctest: +SKIP

Public names are resolved on first use, so importing packio imports neither numpy nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "CenterCrop": "geometry",
    "DaliLoader": "dali",
    "ConcatPacks": "concat",
    "DecodeError": "errors",
    "DevicePrefetcher": "devices",
    "FolderDataset": "datasets",
    "IntegrityError": "errors",
    "Hdf5Dataset": "datasets",
    "LmdbDataset": "datasets",
    "Loader": "loader",
    "MixedSampler": "mixing",
    "MemoryFormatWarning": "watching",
    "N5Dataset": "datasets",
    "Pack": "packs",
    "PackDataset": "datasets",
    "PackReport": "packing.report",
    "PthDataset": "datasets",
    "PackioError": "errors",
    "RandomCrop": "geometry",
    "RandomResizedCrop": "geometry",
    "RecordIODataset": "datasets",
    "RepeatAugSampler": "sampling",
    "ShuffleSampler": "sampling",
    "Resize": "geometry",
    "ResizeCenterCrop": "geometry",
    "Sample": "sample",
    "TFRecordDataset": "datasets",
    "TarDataset": "datasets",
    "Timer": "timing",
    "ZarrDataset": "datasets",
    "collate": "batches",
    "convert": "packing",
    "doctor": "diagnosis",
    "append": "packing.appending",
    "ensure_contiguous": "tensors",
    "is_contiguous_batch": "tensors",
    "merge": "packing.merging",
    "open": "packs",
    "pack": "packing",
    "prefetch": "prefetching",
    "reindex": "indexing",
    "verify": "verifying",
    "watch": "watching",
    "warm": "residency",
}

__all__ = ["__version__", *_PUBLIC]  # noqa: PLE0604 (names of the table above, all strings)

if TYPE_CHECKING:
    from packio.batches import collate as collate
    from packio.concat import ConcatPacks as ConcatPacks
    from packio.dali import DaliLoader as DaliLoader
    from packio.datasets import FolderDataset as FolderDataset
    from packio.datasets import Hdf5Dataset as Hdf5Dataset
    from packio.datasets import LmdbDataset as LmdbDataset
    from packio.datasets import N5Dataset as N5Dataset
    from packio.datasets import PackDataset as PackDataset
    from packio.datasets import PthDataset as PthDataset
    from packio.datasets import RecordIODataset as RecordIODataset
    from packio.datasets import TarDataset as TarDataset
    from packio.datasets import TFRecordDataset as TFRecordDataset
    from packio.datasets import ZarrDataset as ZarrDataset
    from packio.devices import DevicePrefetcher as DevicePrefetcher
    from packio.diagnosis import doctor as doctor
    from packio.errors import DecodeError as DecodeError
    from packio.errors import IntegrityError as IntegrityError
    from packio.errors import PackioError as PackioError
    from packio.geometry import CenterCrop as CenterCrop
    from packio.geometry import RandomCrop as RandomCrop
    from packio.geometry import RandomResizedCrop as RandomResizedCrop
    from packio.geometry import Resize as Resize
    from packio.geometry import ResizeCenterCrop as ResizeCenterCrop
    from packio.indexing import reindex as reindex
    from packio.loader import Loader as Loader
    from packio.mixing import MixedSampler as MixedSampler
    from packio.packing import convert as convert
    from packio.packing import pack as pack
    from packio.packing.appending import append as append
    from packio.packing.merging import merge as merge
    from packio.packing.report import PackReport as PackReport
    from packio.packs import Pack as Pack
    from packio.packs import open as open  # noqa: A004 (packio.open is the public name)
    from packio.prefetching import prefetch as prefetch
    from packio.residency import warm as warm
    from packio.sample import Sample as Sample
    from packio.sampling import RepeatAugSampler as RepeatAugSampler
    from packio.sampling import ShuffleSampler as ShuffleSampler
    from packio.tensors import ensure_contiguous as ensure_contiguous
    from packio.tensors import is_contiguous_batch as is_contiguous_batch
    from packio.timing import Timer as Timer
    from packio.verifying import verify as verify
    from packio.watching import MemoryFormatWarning as MemoryFormatWarning
    from packio.watching import watch as watch


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'packio' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"packio.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
