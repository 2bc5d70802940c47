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

_PUBLIC = {  # name → module
    name: module
    for module, names in {
        "batches.collating": "collate",
        "batches.decoding": "decode seek_points",
        "datasets.concat": "ConcatPacks",
        "datasets.folders": "FolderDataset",
        "datasets.pack_dataset": "Hdf5Dataset LmdbDataset N5Dataset PackDataset PthDataset "
        "RecordIODataset TarDataset TFRecordDataset ZarrDataset",
        "datasets.selection": "select",
        "datasets.sizes": "Bucket",
        "errors": "DecodeError IntegrityError PackioError",
        "images.bucketing": "BucketCrop",
        "images.floats": "Normalize",
        "images.geometry": "CenterCrop RandomCrop RandomResizedCrop Resize ResizeCenterCrop",
        "images.tensors": "ensure_contiguous is_contiguous_batch",
        "inspecting.duplicates": "find_duplicates",
        "inspecting.exporting": "export",
        "inspecting.replaying": "replay",
        "inspecting.verifying": "verify",
        "loading.bucketing": "BucketSampler",
        "loading.dali": "DaliLoader",
        "loading.devices": "DevicePrefetcher",
        "loading.loader": "Loader",
        "loading.mixing": "MixedSampler",
        "loading.prefetching": "prefetch",
        "loading.samplers": "RepeatAugSampler ShuffleSampler",
        "measuring.doctor": "doctor",
        "measuring.timing": "Timer",
        "measuring.watching": "MemoryFormatWarning watch",
        "ops.erasing": "RandomErasing",
        "ops.policies": "AutoAugment RandAugment TrivialAugmentWide",
        "ops.timm": "TimmRandAugment",
        "ops.transform": "RandomApply",
        "ops.transforms": "ColorJitter GaussianBlur RandomAdjustSharpness RandomAffine "
        "RandomAutocontrast RandomEqualize RandomGrayscale RandomHorizontalFlip RandomInvert "
        "RandomPerspective RandomPosterize RandomRotation RandomSolarize RandomVerticalFlip",
        "packing.adding_field": "add_field drop_field",
        "packing.appending": "append",
        "packing.making": "convert merge pack",
        "packing.planning": "PackReport",
        "packing.reindexing": "reindex",
        "packs.opening": "open Pack",
        "packs.page_cache": "warm",
        "sample.packed": "Sample",
    }.items()
    for name in names.split()
}

__all__ = ["__version__", *_PUBLIC]  # noqa: PLE0604 (names of the table above, all strings)

if TYPE_CHECKING:
    from packio import ops as ops
    from packio.batches.collating import collate as collate
    from packio.batches.decoding import decode as decode
    from packio.batches.decoding import seek_points as seek_points
    from packio.datasets.concat import ConcatPacks as ConcatPacks
    from packio.datasets.folders import FolderDataset as FolderDataset
    from packio.datasets.pack_dataset import Hdf5Dataset as Hdf5Dataset
    from packio.datasets.pack_dataset import LmdbDataset as LmdbDataset
    from packio.datasets.pack_dataset import N5Dataset as N5Dataset
    from packio.datasets.pack_dataset import PackDataset as PackDataset
    from packio.datasets.pack_dataset import PthDataset as PthDataset
    from packio.datasets.pack_dataset import RecordIODataset as RecordIODataset
    from packio.datasets.pack_dataset import TarDataset as TarDataset
    from packio.datasets.pack_dataset import TFRecordDataset as TFRecordDataset
    from packio.datasets.pack_dataset import ZarrDataset as ZarrDataset
    from packio.datasets.selection import select as select
    from packio.datasets.sizes import Bucket as Bucket
    from packio.errors import DecodeError as DecodeError
    from packio.errors import IntegrityError as IntegrityError
    from packio.errors import PackioError as PackioError
    from packio.images.bucketing import BucketCrop as BucketCrop
    from packio.images.floats import Normalize as Normalize
    from packio.images.geometry import CenterCrop as CenterCrop
    from packio.images.geometry import RandomCrop as RandomCrop
    from packio.images.geometry import RandomResizedCrop as RandomResizedCrop
    from packio.images.geometry import Resize as Resize
    from packio.images.geometry import ResizeCenterCrop as ResizeCenterCrop
    from packio.images.tensors import ensure_contiguous as ensure_contiguous
    from packio.images.tensors import is_contiguous_batch as is_contiguous_batch
    from packio.inspecting.duplicates import find_duplicates as find_duplicates
    from packio.inspecting.exporting import export as export
    from packio.inspecting.replaying import replay as replay
    from packio.inspecting.verifying import verify as verify
    from packio.loading.bucketing import BucketSampler as BucketSampler
    from packio.loading.dali import DaliLoader as DaliLoader
    from packio.loading.devices import DevicePrefetcher as DevicePrefetcher
    from packio.loading.loader import Loader as Loader
    from packio.loading.mixing import MixedSampler as MixedSampler
    from packio.loading.prefetching import prefetch as prefetch
    from packio.loading.samplers import RepeatAugSampler as RepeatAugSampler
    from packio.loading.samplers import ShuffleSampler as ShuffleSampler
    from packio.measuring.doctor import doctor as doctor
    from packio.measuring.timing import Timer as Timer
    from packio.measuring.watching import MemoryFormatWarning as MemoryFormatWarning
    from packio.measuring.watching import watch as watch
    from packio.ops.erasing import RandomErasing as RandomErasing
    from packio.ops.policies import AutoAugment as AutoAugment
    from packio.ops.policies import RandAugment as RandAugment
    from packio.ops.policies import TrivialAugmentWide as TrivialAugmentWide
    from packio.ops.timm import TimmRandAugment as TimmRandAugment
    from packio.ops.transform import RandomApply as RandomApply
    from packio.ops.transforms import ColorJitter as ColorJitter
    from packio.ops.transforms import GaussianBlur as GaussianBlur
    from packio.ops.transforms import RandomAdjustSharpness as RandomAdjustSharpness
    from packio.ops.transforms import RandomAffine as RandomAffine
    from packio.ops.transforms import RandomAutocontrast as RandomAutocontrast
    from packio.ops.transforms import RandomEqualize as RandomEqualize
    from packio.ops.transforms import RandomGrayscale as RandomGrayscale
    from packio.ops.transforms import RandomHorizontalFlip as RandomHorizontalFlip
    from packio.ops.transforms import RandomInvert as RandomInvert
    from packio.ops.transforms import RandomPerspective as RandomPerspective
    from packio.ops.transforms import RandomPosterize as RandomPosterize
    from packio.ops.transforms import RandomRotation as RandomRotation
    from packio.ops.transforms import RandomSolarize as RandomSolarize
    from packio.ops.transforms import RandomVerticalFlip as RandomVerticalFlip
    from packio.packing import convert as convert
    from packio.packing import pack as pack
    from packio.packing.adding_field import add_field as add_field
    from packio.packing.adding_field import drop_field as drop_field
    from packio.packing.appending import append as append
    from packio.packing.making import merge as merge
    from packio.packing.planning import PackReport as PackReport
    from packio.packing.reindexing import reindex as reindex
    from packio.packs.opening import Pack as Pack
    from packio.packs.opening import open as open  # noqa: A004 (packio.open is the public name)
    from packio.packs.page_cache import warm as warm
    from packio.sample.packed import Sample as Sample


def __getattr__(name: str) -> Any:
    if name == "ops":
        return importlib.import_module("packio.ops")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'packio' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"packio.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "ops"])
