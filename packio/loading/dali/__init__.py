"""`DaliLoader`: batches that NVIDIA DALI decodes, on the GPU or on the processor."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import torch

from packio.batches.plan import Recipe
from packio.errors import OptionError
from packio.images.decoders import MAX_PIXELS, Decoder
from packio.images.geometry import Geometry
from packio.loading.dali import graphs, native
from packio.loading.dali.feeding import Fed, Feeder
from packio.loading.dali.graphs import Options
from packio.loading.dali.running import Handover, Runner
from packio.loading.devices import Preparation
from packio.loading.epochs import Epochs
from packio.loading.prefetching import prefetch
from packio.loading.sampling import ShuffleSampler
from packio.packs import packs
from packio.packs.packs import Pack
from packio.system import processors
from packio.system.threads import Threads

__all__ = ["DaliLoader"]

READERS = ("auto", "native", "packio")


class DaliLoader:
    """Batches of a pack, decoded, cropped, resized and mirrored by NVIDIA DALI.

    Yields images (N, C, H, W), RGB, with their labels, (N,) int64 or (N, k) float32, where the pack
    has any; on the device. The last batch of an epoch has the samples that are left. Each iteration
    is another epoch. Batches are the caller's own: later ones do not touch them.

    **reader="packio"** reads any pack. Order, boxes and flips are those of ``packio.Loader`` over a
    ``packio.PackDataset`` with the same seed, crop, hflip and vflip; decoded on the processor
    without resizing, so are the pixels. CRC32C is compared on every read. A JPEG or PNG goes to
    DALI when it has its end mark and its header says what the index says; all else (other
    encodings, raw pixels, CMYK, alpha, doubtful headers, PNGs to be turned by Exif) packio decodes
    and DALI only crops and resizes. If DALI fails on a batch nevertheless, it is started again, the
    batch is decoded by packio, and the sample that is bad there is raised, or replaced; DALI does
    not see it again. So no image ends an epoch that ``on_error="skip"`` should survive. Exif's
    orientation is obeyed as by PackDataset.

    **reader="native"** leaves reading to DALI: TFRecord, RecordIO, tar and LMDB of Datums with
    packio's index files, images of encodings that DALI decodes, labels of one number. Order, boxes
    and flips are DALI's own: shuffled in a buffer of 1,024 samples, of the rank's part of the pack;
    boxes of RandomResizedCrop, Resize, ResizeCenterCrop and CenterCrop. Nothing is checked; any
    error is a DecodeError with what DALI says.

    **reader="auto"** is "packio" for every pack: only it checks, shuffles all and survives bad
    images, and it costs about 0.1 ms of a processor a sample, in threads of its own. Try "native"
    where a process is to decode many thousands of images a second.

    Args:
        pack: A `packio.Pack`, or the path of one.
        batch_size: Samples a batch.
        crop: What to take of each image and how large; its output has one size.
        hflip, vflip: Probabilities of mirroring left-right and top-bottom.
        device: "gpu" (torch's current one, or as "cuda:1"), or "cpu".
        reader: "auto", "native" or "packio".
        shuffle: Whether the order is random.
        seed: Of order, crops and flips; the same on all ranks. None takes one from torch's
            generator; with several ranks, the order's is then 0, so that they share the order.
        rank, world_size: This process among all; None: as torch.distributed says, if it is there.
            With "packio" as `packio.ShuffleSampler` shares; with "native" each rank has a part of
            its own, one sample more or less.
        drop_last: Leave out a last batch that is smaller; of all ranks alike.
        on_error: "raise", or "skip": a bad sample is replaced by another of its batch, with a
            warning, and counted in `replaced`. Not with "native".
        exif_orientation: Turn images upright.
        split: Name of a split, in a pack that has splits. Not with "native".
        threads: Of DALI, and of reading; "auto": the processors that this process may use.
        prefetch_factor: Batches read ahead of DALI, which works on two more.
        hw_decoder_load: Share of the JPEGs, 0..1, for the GPU's JPEG engine, where it has one.
        dtype, memory_format, normalize: What is done to images; see `packio.DevicePrefetcher`.
        max_pixels: Refuse larger images.

    Attributes:
        pack: The `packio.Pack`.
        reader: "native" or "packio": which was chosen.
        device: The torch.device.
        replaced: Bad samples replaced so far.

    Raises:
        MissingPackageError: DALI is not installed.
        OptionError: an argument that cannot be meant; no GPU; a pack that is not for "native".
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
        reader: str = "auto",
        shuffle: bool = False,
        seed: int | None = None,
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
        normalize: tuple[Sequence[float], Sequence[float]] | None = None,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.device = _device(device)
        _check_options({**locals(), "device": self.device})
        graphs.module("")  # complains now if it is not there
        self.pack = pack if isinstance(pack, Pack) else packs.open(pack)
        self.reader = "packio" if reader == "auto" else reader
        drawn = seed if seed is not None else int(torch.randint(1 << 62, ()).item())
        self.replaced = 0
        count = processors.share() if threads == "auto" else int(threads)
        last = memory_format == torch.channels_last
        gpu = self.device.index if self.device.type == "cuda" else None
        options = Options(
            batch_size, count, gpu, crop, hflip, vflip, exif_orientation, last, hw_decoder_load,
        )  # fmt: skip
        self._handover = Handover(
            self.device, Preparation(dtype, memory_format, normalize), channels_last=last
        )
        chosen = None if split is None else self.pack.split(split)
        sampler = ShuffleSampler(
            len(self.pack) if chosen is None else len(chosen), drawn,
            rank=rank, world_size=world_size, drop_last=drop_last, shuffle=shuffle,
        )  # fmt: skip
        if seed is None and sampler.world_size > 1:
            sampler.seed = 0  # as torch's DistributedSampler: what one rank draws no other has
        self._native: native.Native | None = None
        if self.reader == "native":
            self._native = native.Native(
                self.pack, options, drawn, sampler.rank, sampler.world_size,
                shuffle=shuffle, drop_last=drop_last,
            )  # fmt: skip
        recipe = Recipe(
            (crop,), hflip, vflip, Decoder("auto", "RGB", max_pixels=max_pixels), exif_orientation
        )
        self._feeder = Feeder(
            self.pack, recipe, chosen, drawn, Threads(count) if count > 1 else None,
            skip=on_error == "skip",
        )  # fmt: skip
        batches = torch.utils.data.BatchSampler(sampler, batch_size, drop_last)
        self._epochs = Epochs(
            self._feeder, sampler, batches, batch_size=batch_size, drop_last=drop_last
        )
        self._runner = Runner(
            functools.partial(graphs.fed, options), functools.partial(self._feeder, settle=True)
        )
        self._ahead = prefetch_factor

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(self._epochs) if self._native is None else len(self._native)

    def __iter__(self) -> Iterator[Any]:
        self._epochs.begin()
        if self._native is not None:
            for found in self._native.batches(self._epochs.next - 1):
                yield self._handover(*found)
            return
        with prefetch(map(self._feeder, self._epochs.indices()), self._ahead) as made:
            for batch, images in self._runner.run(made):
                self._report(batch)
                self._epochs.delivered()
                yield self._handover(len(batch.data), images, self._labels(batch))

    def _labels(self, batch: Fed) -> torch.Tensor | None:
        if self.pack.labels is None:
            return None
        return torch.from_numpy(self.pack.take_labels(batch.positions))

    def _report(self, batch: Fed) -> None:
        for error in batch.errors:
            warnings.warn(f"replaced by another sample of its batch: {error}", stacklevel=3)
        self.replaced += len(batch.errors)

    @property
    def seed(self) -> int:
        """The seed of crops and flips, as given or drawn."""
        return self._feeder.seed

    @property
    def epoch(self) -> int:
        """Number of the next epoch."""
        return self._epochs.next

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch is next; without it they are counted."""
        self._epochs.set(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where this stands, as `packio.Loader.state_dict`.

        Raises:
            OptionError: with reader="native", which cannot begin within an epoch.
        """
        self._check_resumes()
        return self._epochs.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, as `packio.Loader.load_state_dict`.

        Raises:
            OptionError: the state is of another order, or reader="native".
        """
        self._check_resumes()
        self._epochs.load_state_dict(state)

    def _check_resumes(self) -> None:
        if self._native is not None:
            raise OptionError("reader='native' cannot go on within an epoch; reader='packio' can")

    def close(self) -> None:
        """Let go of DALI's pipeline and of the pack's files; iterating opens them again."""
        self._runner.close()
        self.pack.close()

    def __enter__(self) -> DaliLoader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _device(wanted: torch.device | str) -> torch.device:
    """The device, of a GPU with its number."""
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
    """Refuse what cannot be meant.

    Raises:
        OptionError: it is such.
    """
    load, threads, native_reader = given["hw_decoder_load"], given["threads"], given["reader"]
    problems: dict[str, bool] = {
        f"batch_size={given['batch_size']}: expected at least 1": given["batch_size"] < 1,
        f"prefetch_factor={given['prefetch_factor']}: expected at least 1": (
            given["prefetch_factor"] < 1
        ),
        f"threads={threads!r}: expected 'auto' or an int of at least 1": (
            threads != "auto" and (not isinstance(threads, int) or threads < 1)
        ),
        f"reader={given['reader']!r}: expected one of {READERS}": given["reader"] not in READERS,
        f"on_error={given['on_error']!r}: expected 'raise' or 'skip'": (
            given["on_error"] not in ("raise", "skip")
        ),
        "on_error='skip' and split= need reader='packio'": (
            native_reader == "native"
            and (given["on_error"] == "skip" or given["split"] is not None)
        ),
        "hw_decoder_load= needs a GPU": load is not None and given["device"].type != "cuda",
        f"hw_decoder_load={load}: expected 0..1": load is not None and not 0 <= load <= 1,
        **{
            f"{name}={given[name]!r}: expected a probability, 0..1": not 0 <= given[name] <= 1
            for name in ("hflip", "vflip")
        },
    }
    for problem, there in problems.items():
        if there:
            raise OptionError(problem)
