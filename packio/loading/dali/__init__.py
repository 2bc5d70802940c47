"""`DaliLoader`: batches that NVIDIA DALI decodes, on the GPU or on the processor."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from packio.datasets.pack_dataset import PackDataset
from packio.errors import OptionError
from packio.images.decoders import MAX_PIXELS
from packio.images.floats import Means
from packio.images.geometry import Geometry
from packio.loading.cursor import ResumableLoader, make_cursor
from packio.loading.dali.pipelines import Feeder, Options, Runner, import_dali
from packio.loading.devices import Preparation
from packio.loading.prefetching import prefetch
from packio.loading.samplers import DefaultSampler
from packio.packs.opening import Pack
from packio.system import processors

__all__ = ["DaliLoader"]


class DaliLoader(ResumableLoader):
    """Batches of a pack, decoded, cropped, resized and mirrored by NVIDIA DALI.

    A batch is a tuple: images (N, C, H, W), RGB, on the device, and labels if the pack has them,
    (N,) int64 or (N, k) float32. The last batch of an epoch has the samples that are left. Each
    iteration is another epoch. A batch stays as it is when the next one is made.

    Order, boxes and flips are those of ``packio.Loader`` over a ``packio.PackDataset`` with the
    same seed, crop, hflip and vflip. Pixels are equal too if they are decoded on the processor and
    not resized. CRC32C is compared on every read. DALI decodes a JPEG or PNG that has its end mark
    and a header that agrees with the index. packio decodes all other images (other encodings, raw
    pixels, CMYK, alpha, doubtful headers, PNGs that Exif turns), and DALI only crops and resizes
    them. If DALI fails on a batch, the loader starts DALI again and packio decodes the batch; the
    bad sample is raised or replaced, and never given to DALI again. DALI gives no error for a JPEG
    that was packed with damaged pixels between a good header and a good end mark, where packio
    raises one. Exif's orientation is obeyed as by PackDataset.

    Args:
        pack: A `packio.Pack`, or the path of a pack.
        batch_size: Samples in a batch.
        crop: Chooses the box of each image; all outputs have one size.
        hflip, vflip: Probabilities of mirroring left-right and top-bottom.
        device: "gpu" (torch's current one, or as "cuda:1"), or "cpu".
        shuffle: Whether the order is random.
        seed: Of crops and flips. None takes a seed from torch's generator.
        order_seed: Of the order; the same on all ranks. None: ``seed`` if there is one process, and
            0 if there are several.
        rank, world_size: Number of this process, and of all; None asks torch.distributed when an
            epoch begins. Ranks share the pack as with `packio.ShuffleSampler`.
        drop_last: Leave out a last batch that is smaller, on all ranks alike.
        on_error: "raise", or "skip": a bad sample is replaced by another of its batch, with a
            warning, and counted in `replaced`.
        exif_orientation: Turn images upright.
        split: Name of a split, in a pack that has splits.
        threads: Threads of DALI, and as many that read; "auto": the processors of this process.
        prefetch_factor: Batches read ahead of DALI; DALI works on two more.
        hw_decoder_load: Share of the JPEGs, 0..1, for the JPEG engine of a GPU that has one.
        dtype, memory_format, normalize: Change the images as `packio.DevicePrefetcher` does.
        max_pixels: Refuse larger images.

    Attributes:
        pack: The `packio.Pack`.
        device: The torch.device.
        replaced: Bad samples replaced so far.

    Raises:
        MissingPackageError: DALI is not installed.
        OptionError: an argument makes no sense; there is no GPU.
        DecodeError, IntegrityError: while iterating: a bad sample, named.
    """

    def __init__(
        self,
        pack: str | os.PathLike[str] | Pack,
        batch_size: int,
        crop: Geometry,
        hflip: float = 0.0,
        vflip: float = 0.0,
        *,
        device: torch.device | str = "gpu",
        shuffle: bool = False,
        seed: int | None = None,
        order_seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        on_error: str = "raise",
        exif_orientation: bool = True,
        split: str | None = None,
        threads: int | str = "auto",
        prefetch_factor: int = 2,
        hw_decoder_load: float | None = None,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
        normalize: Means | None = None,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.device: torch.device = _device(device)
        _check_options({**locals(), "device": self.device})
        import_dali()  # raises now if DALI is not installed
        dataset = PackDataset(
            pack, crop=crop, hflip=hflip, vflip=vflip, fields="image", threads=threads, seed=seed,
            split=split, on_error=on_error, exif_orientation=exif_orientation,
            max_pixels=max_pixels,
        )  # fmt: skip
        self.pack: Pack = dataset.pack
        self.replaced = 0
        count = processors.share() if threads == "auto" else int(threads)
        last = memory_format == torch.channels_last
        gpu = self.device.index if self.device.type == "cuda" else None
        options = Options(batch_size, count, gpu, crop, exif_orientation, last, hw_decoder_load)
        self._prepare, self._last = Preparation(dtype, memory_format, normalize), last
        self._stream: Any = None  # a torch.cuda.Stream, once there is one
        sampler = DefaultSampler(
            len(dataset), order_seed, lambda: self.seed, rank=rank, world_size=world_size,
            drop_last=drop_last, shuffle=shuffle,
        )  # fmt: skip
        self._feeder = Feeder(dataset, count)
        batches = torch.utils.data.BatchSampler(sampler, batch_size, drop_last)
        self._cursor = make_cursor(self._feeder, sampler, batches)
        self._runner = Runner(options, functools.partial(self._feeder, settle=True))
        self._ahead = prefetch_factor

    def __iter__(self) -> Iterator[Any]:
        epoch = self._cursor.begin()
        with prefetch(map(self._feeder, epoch.batches), self._ahead) as made:
            for batch, images in self._cursor.deliver(epoch, self._runner.run(made)):
                for error in batch.errors:
                    warnings.warn(f"replaced by another sample of its batch: {error}", stacklevel=2)
                self.replaced += len(batch.errors)
                labels = None
                if self.pack.labels is not None:
                    labels = torch.from_numpy(self.pack.take_labels(batch.positions))
                yield self._hand_over(len(batch.data), images, labels)

    def _hand_over(self, size: int, images: Any, labels: torch.Tensor | None) -> Any:
        """Turn the first images of DALI's batch into tensors that later batches do not change.

        On the processor nothing is copied: DALI makes each batch in new memory. On a GPU the batch
        is copied, on a stream of its own: once the tensor is freed, DALI uses the memory again
        without waiting for work on streams that DALI does not know.
        """
        if self.device.type == "cpu":
            made = self._prepared(size, images)
            return (made,) if labels is None else (made, labels)
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch's own
        current = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._stream):
            made = self._prepared(size, images).clone()
            made.record_stream(current)
        self._stream.synchronize()
        return (made,) if labels is None else (made, labels.to(self.device))

    def _prepared(self, size: int, images: Any) -> torch.Tensor:
        made = torch.utils.dlpack.from_dlpack(images.as_tensor())[:size]
        return self._prepare(made.permute(0, 3, 1, 2) if self._last else made)

    @property
    def seed(self) -> int:
        """The seed of crops and flips, as given or drawn."""
        return self._feeder.seed

    def close(self) -> None:
        """Close DALI's pipeline and the pack's files; iterating opens them again."""
        self._runner.close()
        self.pack.close()

    def __enter__(self) -> DaliLoader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _device(wanted: torch.device | str) -> torch.device:
    """Return the device; a GPU has its number."""
    device = torch.device("cuda" if wanted == "gpu" else wanted)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise OptionError(
                f"device={str(wanted)!r}: PyTorch {torch.__version__} finds no GPU; device='cpu' "
                "decodes on the processor, as packio.Loader does, with less"
            )
        current = torch.device("cuda", torch.cuda.current_device())
        return device if ":" in str(device) else current
    if device.type != "cpu":
        raise OptionError(f"device={str(wanted)!r}: DALI has 'gpu' (or as 'cuda:1') and 'cpu'")
    return torch.device("cpu")


def _check_options(given: dict[str, Any]) -> None:
    """Check what the dataset does not."""
    load = given["hw_decoder_load"]
    for name in ("batch_size", "prefetch_factor"):
        if given[name] < 1:
            raise OptionError(f"{name}={given[name]}: expected at least 1")
    if load is not None and given["device"].type != "cuda":
        raise OptionError("hw_decoder_load= needs a GPU")
    if load is not None and not 0 <= load <= 1:
        raise OptionError(f"hw_decoder_load={load}: expected 0..1")
