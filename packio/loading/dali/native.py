"""DALI's own readers, for packs in containers that DALI knows, with the index files of packio.

* TFRecord, and tar as WebDataset writes it: ``NAME.idx`` beside each file.
* RecordIO: ``STEM.idx``; for several files one index of all, ``NAME.all.idx``.
* LMDB of Datums as Caffe writes it (``packio pack --values datum``): no index.

Source: DALI 2.4, operators reference (``fn.readers``); rank i of n reads the samples from ``i N //
n`` to ``(i + 1) N // n`` ("sharding"), padded to whole batches of the longest ("pad_last_batch").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from packio.batches import draws
from packio.errors import DecodeError, OptionError
from packio.images import encodings
from packio.loading.dali import graphs
from packio.loading.dali.graphs import Options, module
from packio.loading.dali.running import said
from packio.loading.resuming import ResumableSampler
from packio.packs import shard_classes
from packio.packs.opening import Pack
from packio.storage.urls import Url

SHUFFLED = 1024  # samples in the buffer that DALI draws from
_ENCODINGS = ("jpeg", "png", "webp", "bmp", "tiff", "pnm", "jp2")
_MEMBERS = ("jpg", "png", "webp", "bmp", "tif", "ppm", "jp2", "img")  # suffixes in a tar


def problem(pack: Pack, crop: Any) -> str | None:
    """Say why DALI's own readers cannot read a pack; None if they can."""
    name = pack.metadata["format"]
    if name not in _READERS:
        return f"DALI has no reader for {name}"
    if isinstance(pack.path, Url):
        return "DALI reads local files"
    if "selection" in pack.metadata:
        return "DALI would read the whole pack, not the selection"
    if name == "lmdb" and any(s.get("values") != "datum" for s in pack.metadata["shards"]):
        return "DALI reads an LMDB of Datums only (packio pack --values datum)"
    absent = [path for path in _indexes(pack) if not path.is_file()]
    if absent:
        return f"DALI needs {absent[0]}, which is not there"
    if pack.labels is not None and pack.labels.ndim != 1:
        return "DALI's readers give one number as a label"
    if any(name == shard_classes.FILE_NAME for name, _, _ in pack.index_file.files()):
        return "the pack was merged by link, and DALI would read the labels from before"
    codes = np.unique(pack.index_file.column("image/encoding").array()).tolist()
    others = {encodings.NAMES.get(code, "unknown") for code in codes} - set(_ENCODINGS)
    if others:
        return f"DALI does not decode {', '.join(sorted(others))}"
    if type(crop) not in graphs.DRAWN:
        return f"DALI itself draws {', '.join(c.__name__ for c in graphs.DRAWN)} only"
    return None


class Native:
    """Batches by DALI's own readers. Each epoch has its own pipeline, with its own seed.

    Args:
        pack: The pack.
        options: Of the graph.
        seed: Of order, crops and flips.
        ranks: Knows the number of the part of the pack, and the number of parts.
        shuffle, drop_last: As `packio.DaliLoader` has them.

    Raises:
        OptionError: DALI cannot read this pack.
    """

    def __init__(
        self, pack: Pack, options: Options, seed: int, ranks: ResumableSampler,
        *, shuffle: bool, drop_last: bool,
    ) -> None:  # fmt: skip
        why = problem(pack, options.crop)
        if why is not None:
            raise OptionError(f"{pack.path}: {why}; reader='packio' reads any pack")
        self._pack, self._options, self._seed = pack, options, seed
        self._ranks, self._shuffle, self._drop_last = ranks, shuffle, drop_last

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return len(self._sizes())

    def _sizes(self) -> list[int]:
        """Samples of each batch of this rank."""
        count, size = len(self._pack), self._options.batch_size
        rank, world_size = self._ranks.rank, self._ranks.world_size
        own = (rank + 1) * count // world_size - rank * count // world_size
        if self._drop_last:
            own = count // world_size // size * size  # of all ranks
        return [min(size, own - start) for start in range(0, own, size)]

    def batches(self, epoch: int) -> Iterator[tuple[int, Any, torch.Tensor | None]]:
        """Run an epoch.

        Yields:
            N; images as DALI has them, with padding after the first N; labels (N,) int64, or None.

        Raises:
            DecodeError: DALI failed; the message is DALI's.
        """
        try:
            pipeline = self._pipeline(epoch)
            for size in self._sizes():
                images, *labels = pipeline.run()
                yield size, images, _labels(labels[0], size) if labels else None
        except RuntimeError as error:  # all that DALI raises
            raise DecodeError(
                f"{self._pack.path}: DALI: {said(error)}; reader='packio' names the sample"
            ) from error

    def _pipeline(self, epoch: int) -> Any:
        rank = self._ranks.rank

        def outputs() -> tuple[Any, ...]:
            encoded, label = _READERS[self._pack.metadata["format"]](
                self._pack, name="reader", shard_id=rank, num_shards=self._ranks.world_size,
                random_shuffle=self._shuffle, initial_fill=SHUFFLED, stick_to_shard=True,
                pad_last_batch=True,
            )  # fmt: skip
            images = graphs.drawn(self._options, encoded)
            return (images,) if self._pack.labels is None else (images, label)

        return self._options.pipeline(outputs, draws.mix(self._seed, epoch, rank))


def _labels(labels: Any, size: int) -> torch.Tensor:
    found = [np.asarray(labels.at(i)) for i in range(size)]  # of each, a number or its digits
    numbers = [int(bytes(v)) if v.dtype == np.uint8 else int(v.item()) for v in found]
    return torch.tensor(numbers, dtype=torch.int64)


def _files(pack: Pack) -> list[str]:
    root = pack.index_file.path.parent
    return [str(root / shard["name"]) for shard in pack.metadata["shards"]]


def _indexes(pack: Pack) -> list[Path]:
    """Paths of the index files that DALI needs."""
    files, name = [Path(file) for file in _files(pack)], pack.metadata["format"]
    if name == "lmdb":
        return []
    if name != "recordio":
        return [file.with_name(f"{file.name}.idx") for file in files]
    if len(files) == 1:
        return [files[0].with_suffix(".idx")]
    return [files[0].with_name(f"{files[0].stem.rpartition('-')[0] or 'pack'}.all.idx")]


def _tfrecord(pack: Pack, **how: Any) -> tuple[Any, Any]:
    feature = module(".tfrecord")
    features = {"image/encoded": feature.FixedLenFeature((), feature.string, "")}
    if pack.labels is not None:
        features["image/class/label"] = feature.FixedLenFeature([1], feature.int64, -1)
    found = module(".fn").readers.tfrecord(
        path=_files(pack), index_path=list(map(str, _indexes(pack))), features=features, **how
    )
    return found["image/encoded"], found.get("image/class/label")


def _recordio(pack: Pack, **how: Any) -> tuple[Any, Any]:
    indexes = list(map(str, _indexes(pack)))
    images, labels = module(".fn").readers.mxnet(path=_files(pack), index_path=indexes, **how)
    return images, labels


def _tar(pack: Pack, **how: Any) -> tuple[Any, Any]:
    members = [";".join(_MEMBERS), *(["cls"] if pack.labels is not None else [])]
    found = module(".fn").readers.webdataset(
        paths=_files(pack), index_paths=list(map(str, _indexes(pack))), ext=members, **how
    )
    return found if pack.labels is not None else (found, None)


def _caffe(pack: Pack, **how: Any) -> tuple[Any, Any]:
    images, labels = module(".fn").readers.caffe(path=_files(pack), **how)
    return images, labels


_READERS: dict[str, Callable[..., tuple[Any, Any]]] = {
    "lmdb": _caffe,
    "recordio": _recordio,
    "tar": _tar,
    "tfrecord": _tfrecord,
}
