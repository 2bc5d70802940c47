"""One batch: read in file order, decode in threads, into one contiguous tensor."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch

from packio import draws, geometry, tensors
from packio.decoders import Decoder
from packio.draws import Lane
from packio.errors import DecodeError, IntegrityError
from packio.geometry import Geometry, Numbers
from packio.packs import Pack, Row, file_order

_FLIPS = 2  # random numbers for hflip and vflip; the geometry's own follow
_CHANNELS = {"RGB": 3, "GRAY": 1, "RGB_ALPHA": 4}  # UNCHANGED: as stored


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How the images of a batch are made.

    Attributes:
        views: A geometry for each view of a sample; None takes the image as it is.
        hflip, vflip: Probabilities.
        decoder: Encoded bytes → pixels.
        exif_orientation: Whether to turn images upright.
    """

    views: tuple[Geometry | None, ...]
    hflip: float
    vflip: float
    decoder: Decoder
    exif_orientation: bool


class View(NamedTuple):
    """One view of a batch's samples while it is made."""

    crop: Geometry | None
    numbers: list[list[float]]  # two for the flips, then the geometry's own, for each sample
    batch: torch.Tensor | None  # (N, C, H, W), where all images come out alike
    images: list[torch.Tensor]  # (C, H, W) each: slices of the batch, or made one by one


class Made(NamedTuple):
    """The images of a batch.

    Attributes:
        views: For each view the batch tensor (N, C, H, W), or a list of N (C, H, W) tensors.
        errors: Slot → what is wrong with that sample; its pixels are not initialised.
    """

    views: list[torch.Tensor | list[torch.Tensor]]
    errors: dict[int, Exception]


def make(
    pack: Pack, recipe: Recipe, rows: Sequence[Row], key: int, threads: Threads | None
) -> Made:
    """Make the images of some samples.

    Args:
        pack: Where they are read from.
        recipe: What to make of them.
        rows: Which samples; a sample may be there several times.
        key: Of the random numbers; slot i of the batch is lane i of it.
        threads: That decode; None: this one.
    """
    views = [_new_view(recipe, number, len(rows), key) for number in range(len(recipe.views))]
    errors: dict[int, Exception] = {}

    def work(slot: int) -> None:
        row = rows[slot]
        try:
            pixels = decode(pack, recipe, row)
        except (DecodeError, IntegrityError) as error:
            errors[slot] = error
            return
        for view in views:
            u = view.numbers[slot]
            into = view.images[slot] if view.batch is not None else None
            view.images[slot] = _render(recipe, view.crop, pixels, u, u[_FLIPS:], into)

    if threads is None or len(rows) == 1:
        for slot in file_order(rows):
            work(slot)
    else:
        threads.run(work, file_order(rows))
    return Made([v.images if v.batch is None else v.batch for v in views], errors)


def make_one(pack: Pack, recipe: Recipe, row: Row, key: int) -> list[torch.Tensor]:
    """Make the images of one sample, (C, H, W), one a view, as lane 0 of `make` would.

    Raises:
        DecodeError, IntegrityError: the sample is bad.
    """
    pixels = decode(pack, recipe, row)
    return [
        _render(recipe, crop, pixels, Lane(key, 0, i), Lane(key, 0, i, _FLIPS), None)
        for i, crop in enumerate(recipe.views)
    ]


def decode(pack: Pack, recipe: Recipe, row: Row) -> np.ndarray:
    """Read and decode a sample: (H, W, C) pixels, upright.

    Raises:
        DecodeError, IntegrityError: the sample is bad; the message names it.
    """
    data = pack.read(row)
    try:
        pixels = recipe.decoder(data, row)
        if pixels.shape[0] != row.height or pixels.shape[1] != row.width:
            size = f"{pixels.shape[1]}x{pixels.shape[0]}"
            raise DecodeError(f"decodes to {size} pixels, not to {row.width}x{row.height}")
    except DecodeError as error:
        name = f"{pack.path}, sample {row.position} ({pack.key(row.position)!r})"
        raise type(error)(f"{name}: {error}") from error
    return geometry.oriented(pixels, row.orientation) if recipe.exif_orientation else pixels


def _new_view(recipe: Recipe, number: int, count: int, key: int) -> View:
    crop = recipe.views[number]
    needed = _FLIPS + (crop.draws if crop is not None else 0)
    if needed == _FLIPS and not (recipe.hflip or recipe.vflip):
        numbers = [[0.0] * _FLIPS] * count
    else:
        numbers = draws.uniforms(key, np.arange(count), number, needed).tolist()
    size = crop.output_size if crop is not None else None
    if size is None or recipe.decoder.mode not in _CHANNELS:
        return View(crop, numbers, None, [torch.empty(0)] * count)
    shape = (count, _CHANNELS[recipe.decoder.mode], *size)
    batch = tensors.new_batch(shape, torch.uint8)
    return View(crop, numbers, batch, list(batch.unbind(0)))


def _render(
    recipe: Recipe, crop: Geometry | None, pixels: np.ndarray, flips: Numbers, numbers: Numbers,
    out: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """One view of one image, into ``out`` if given."""
    height, width, channels = pixels.shape
    frame = crop.frame(height, width, numbers) if crop else geometry.whole(height, width)
    if out is None:
        out = torch.from_numpy(np.empty((channels, *frame[-2:]), pixels.dtype))
    geometry.render(
        pixels, frame, out, hflip=flips[0] < recipe.hflip, vflip=flips[1] < recipe.vflip,
        how=crop.interpolation if crop else "nearest",
    )  # fmt: skip
    return out


class Threads:
    """Threads that decode, made anew in each process that uses them.

    Args:
        count: How many; at least 2.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

    def __reduce__(self) -> tuple[object, ...]:
        return Threads, (self.count,)

    def run(self, work: Callable[[int], None], slots: Iterable[int]) -> None:
        """Call ``work`` with every slot; an exception of one is raised here, after all ended."""
        pool = self._started()
        source = iter(list(slots))

        def drain() -> None:
            for slot in source:  # a list iterator: each slot goes to one thread
                work(slot)

        futures = [pool.submit(drain) for _ in range(self.count)]
        for future in futures:
            future.exception()
        for future in futures:
            future.result()

    def _started(self) -> ThreadPoolExecutor:
        if self._pool is None or self._process != os.getpid():  # threads do not survive a fork
            ours = torch.get_num_threads()
            # torch's own threads inside ours would only get in each other's way
            self._pool = ThreadPoolExecutor(
                self.count, "packio-decode", initializer=torch.set_num_threads, initargs=(1,)
            )
            meeting = threading.Barrier(self.count)  # so that all of them start here
            for future in [self._pool.submit(meeting.wait) for _ in range(self.count)]:
                future.result()
            torch.set_num_threads(ours)  # the initialisers changed the default of new threads
            self._process = os.getpid()
        return self._pool


def automatic_threads() -> int:
    """Threads for "auto": 1 in a DataLoader's worker, else one for each processor allowed."""
    if torch.utils.data.get_worker_info() is not None:
        return 1
    return max(1, len(os.sched_getaffinity(0)))


class Batch(list[Any]):
    """The samples of a batch, with the tensors they are views of.

    Attributes:
        columns: What `collate` gives: a tuple, dict or single value of batched fields; None where
            the samples have to be stacked.
    """

    def __init__(self, samples: Sequence[Any], columns: Any) -> None:
        super().__init__(samples)
        self._columns = columns
        self._samples = tuple(samples)

    @property
    def columns(self) -> Any:
        """The batched fields, or None where the list is not what it was any more."""
        same = len(self) == len(self._samples) and all(map(_is, self, self._samples))
        return self._columns if same else None


def _is(a: object, b: object) -> bool:
    return a is b


def collate(samples: list[Any]) -> Any:
    """Hand over a batch of packio's without copying it; collate anything else as torch does.

    For ``DataLoader(ds, collate_fn=packio.collate)``.

    Args:
        samples: What a dataset's ``__getitems__`` returned, or a plain list of samples.

    Returns:
        As `torch.utils.data.default_collate`: images (N, C, H, W), labels (N,) int64, …
    """
    columns = samples.columns if isinstance(samples, Batch) else None
    if columns is not None:
        return columns
    return torch.utils.data.default_collate(list(samples))
