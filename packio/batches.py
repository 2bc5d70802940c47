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
from packio.errors import DecodeError, IntegrityError
from packio.geometry import Frame, Geometry
from packio.packs import Pack, Row, file_order

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

    frames: list[Frame]
    flips: list[tuple[bool, bool]]  # left-right, top-bottom
    how: str
    batch: torch.Tensor | None  # (N, C, H, W), where all images come out alike
    images: list[np.ndarray]  # (C, H, W) each: slices of the batch, or filled one by one


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
    views = [_plan_view(recipe, number, rows, key) for number in range(len(recipe.views))]
    errors: dict[int, Exception] = {}

    def work(slot: int) -> None:
        try:
            pixels = _decoded(pack, recipe, rows[slot])
        except (DecodeError, IntegrityError) as error:
            errors[slot] = _with_key(error, pack, rows[slot])
            return
        for view in views:
            frame, (hflip, vflip) = view.frames[slot], view.flips[slot]
            if view.batch is None:
                shape = (pixels.shape[2], frame.out_height, frame.out_width)
                view.images[slot] = np.empty(shape, pixels.dtype)
            out = view.images[slot]
            geometry.render(pixels, frame, out, hflip=hflip, vflip=vflip, how=view.how)

    if threads is None or len(rows) == 1:
        for slot in file_order(rows):
            work(slot)
    else:
        threads.run(work, file_order(rows))
    return Made([_finished(view) for view in views], errors)


def _decoded(pack: Pack, recipe: Recipe, row: Row) -> np.ndarray:
    """A sample's pixels (H, W, C), upright."""
    pixels = recipe.decoder(pack.read(row), row)
    if pixels.shape[:2] != (row.height, row.width):
        size = f"{pixels.shape[1]}x{pixels.shape[0]}"
        raise DecodeError(f"decodes to {size} pixels, the index says {row.width}x{row.height}")
    return geometry.oriented(pixels, row.orientation) if recipe.exif_orientation else pixels


def _plan_view(recipe: Recipe, number: int, rows: Sequence[Row], key: int) -> View:
    crop = recipe.views[number]
    numbers = _draw(recipe, number, len(rows), key)
    turn = 5 if recipe.exif_orientation else 9  # orientations that exchange height and width
    frames = []
    for row, u in zip(rows, numbers, strict=True):
        upright = row.orientation < turn
        height, width = (row.height, row.width) if upright else (row.width, row.height)
        frames.append(crop.frame(height, width, u[2:]) if crop else geometry.whole(height, width))
    batch = _new_batch(crop, recipe.decoder.mode, len(rows))
    return View(
        frames,
        [(u[0] < recipe.hflip, u[1] < recipe.vflip) for u in numbers],
        crop.interpolation if crop is not None else "nearest",
        batch,
        list(batch.numpy()) if batch is not None else [np.empty(0)] * len(rows),
    )


def _draw(recipe: Recipe, number: int, count: int, key: int) -> list[list[float]]:
    """Random numbers of one view: two for the flips, then the geometry's own, for each sample."""
    crop = recipe.views[number]
    needed = 2 + (crop.draws if crop is not None else 0)
    if needed == 2 and not (recipe.hflip or recipe.vflip):  # noqa: PLR2004 (the flips')
        return [[0.0, 0.0]] * count
    numbers: list[list[float]] = draws.uniforms(key, np.arange(count), number, needed).tolist()
    return numbers


def _new_batch(crop: Geometry | None, mode: str, count: int) -> torch.Tensor | None:
    size = crop.output_size if crop is not None else None
    if size is None or mode not in _CHANNELS:
        return None
    return tensors.new_batch((count, _CHANNELS[mode], *size), torch.uint8)


def _finished(view: View) -> torch.Tensor | list[torch.Tensor]:
    if view.batch is not None:
        return view.batch
    return [torch.from_numpy(image) for image in view.images]


def _with_key(error: Exception, pack: Pack, row: Row) -> Exception:
    if isinstance(error, IntegrityError):
        return error  # names file and record already
    name = pack.key(row.position)
    named = type(error)(f"{pack.path}, sample {row.position} ({name!r}): {error}")
    named.__cause__ = error
    return named


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
