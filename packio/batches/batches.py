"""One batch: read in file order, decode in threads, into one contiguous tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from packio.batches import plans
from packio.batches.plans import FLIPS, Draw, Place, Plan, Recipe
from packio.errors import DecodeError, IntegrityError, OptionError
from packio.images import regions, tensors
from packio.images.decoders import Decoder
from packio.images.geometry import Geometry
from packio.index.indexfile import SEEKABLE
from packio.packs import raw
from packio.packs.packs import Pack, Row, file_order
from packio.sample.facts import Facts
from packio.system.threads import Threads, alone, each

# Of an image, as stored. Of JPEGs and PNGs of 24 to 96 pixels a side, two threads made 0.6 to 1.1
# of what one made, of such of 128 and more 1.0 to 1.8 (packio's part of a batch needs the GIL).
_LITTLE = 10_000  # pixels
_SOME = 16  # images that are looked at
CHANNELS = {"RGB": 3, "GRAY": 1, "RGB_ALPHA": 4}  # UNCHANGED: as stored


class View(NamedTuple):
    """One view of a batch's samples while it is made."""

    batch: torch.Tensor | None  # (N, C, H, W), where all images come out alike
    images: list[np.ndarray]  # (C, H, W) each: slices of the batch, or made one by one


class Made(NamedTuple):
    """The images of a batch.

    Attributes:
        views: For each view the batch tensor (N, C, H, W), or a list of N (C, H, W) tensors.
        errors: Slot → what is wrong with that sample; its pixels are not initialised.
    """

    views: list[torch.Tensor | list[torch.Tensor]]
    errors: dict[int, Exception]


def make(
    pack: Pack, recipe: Recipe, plan: Plan, threads: Threads | None,
    out: torch.Tensor | None = None,
) -> Made:  # fmt: skip
    """Make the images of some samples.

    Args:
        pack: Where they are read from.
        recipe: What to make of them.
        plan: Of the samples.
        threads: That decode; None: this one.
        out: Where the only view goes: (N, C, H, W) of the images' dtype, contiguous.

    Raises:
        OptionError: ``out`` does not fit.
    """
    rows = plan.rows
    views = [_new_view(recipe, crop, len(rows), out) for crop in recipe.views]
    errors: dict[int, Exception] = {}

    def work(slot: int) -> None:
        places = plan[slot]
        try:
            parts = _parts(pack, recipe, rows[slot], places)
        except (DecodeError, IntegrityError) as error:
            errors[slot] = error
            return
        for view, place, part in zip(views, places, parts, strict=True):
            into = view.images[slot] if view.batch is not None else None
            view.images[slot] = regions.render(*part, into, hflip=place.hflip, vflip=place.vflip)

    each(work, file_order(rows), threads)
    return Made(
        [[torch.from_numpy(i) for i in v.images] if v.batch is None else v.batch for v in views],
        errors,
    )


def are_little(pack: Pack) -> bool:
    """Whether most images of a pack are so small that threads would only wait for each other.

    By some of them. Where reading may take long, threads wait for that together: then they are not.
    """
    if not len(pack) or not pack.reads_ahead:
        return False
    some = np.linspace(0, len(pack) - 1, min(len(pack), _SOME), dtype=np.int64)
    height, width = (pack.index_file.column(side).take(some) for side in ("height", "width"))
    return bool(np.median(height.astype(np.int64) * width) < _LITTLE)


def make_raw(
    pack: Pack, recipe: Recipe, positions: np.ndarray, draw: Draw, out: torch.Tensor | None = None
) -> Made | None:
    """Make what `make` would, all samples at once; None where not all is raw and only cropped.

    Args:
        positions: (N,) samples, 0..len-1.
        pack, recipe, draw, out: As of `make`.

    Raises:
        OptionError: ``out`` does not fit.
    """
    rows = pack.raw_rows
    if rows is None or not _is_as_decoded(rows.facts, recipe.decoder):
        return None
    facts, drawn, boxes = rows.facts, [], []
    for number, crop in enumerate(recipe.views):
        u = plans.numbers(recipe, number, draw)
        found = raw.windows(crop, facts.height, facts.width, u[:, FLIPS:])
        if found is None:
            return None
        drawn.append(u)
        boxes.append(found)
    errors = rows.check(positions)
    views: list[torch.Tensor | list[torch.Tensor]] = []
    for u, box in zip(drawn, boxes, strict=True):
        shape = (len(positions), facts.channels, box.height, box.width)
        batch = given_or_new(shape, rows.dtype, out)
        hflip = u[:, 0] < recipe.hflip if recipe.hflip else None
        vflip = u[:, 1] < recipe.vflip if recipe.vflip else None
        rows.crop(positions, box, batch, hflip=hflip, vflip=vflip)
        views.append(batch)
    return Made(views, errors)


def _is_as_decoded(facts: Facts, decoder: Decoder) -> bool:
    """Whether a decoder would give raw pixels out as they are."""
    wanted = CHANNELS.get(decoder.mode)
    fits = wanted is None or (facts.dtype == "uint8" and facts.channels == wanted)
    return fits and facts.height * facts.width <= decoder.max_pixels


def make_one(pack: Pack, recipe: Recipe, row: Row, places: Sequence[Place]) -> list[torch.Tensor]:
    """Make the images of one sample, (C, H, W), one a view, as `make` would.

    Raises:
        DecodeError, IntegrityError: the sample is bad.
    """
    with alone():
        parts = _parts(pack, recipe, row, places)
        return [
            torch.from_numpy(regions.render(*part, None, hflip=place.hflip, vflip=place.vflip))
            for part, place in zip(parts, places, strict=True)
        ]


def _parts(
    pack: Pack, recipe: Recipe, row: Row, places: Sequence[Place]
) -> list[tuple[regions.Part, regions.Wanted]]:
    """Read a sample, and decode what its views need.

    Raises:
        DecodeError, IntegrityError: the sample is bad; the message names it.
    """
    wanted = wanted_of(recipe, row, places)
    rows = pack.raw_rows
    if rows is not None and _is_as_decoded(rows.facts, recipe.decoder):
        pixels = rows.pixels(row.position)
        return [(regions.of_pixels(pixels, row, w), w) for w in wanted]
    data = pack.read(row)
    try:
        parts = regions.decode_all(recipe.decoder, data, row, wanted)
    except DecodeError as error:
        raise pack.named(error, row) from error
    return list(zip(parts, wanted, strict=True))


def wanted_of(recipe: Recipe, row: Row, places: Sequence[Place]) -> list[regions.Wanted]:
    """What the views want of a sample's image."""
    cuttable = bool(row.flags & SEEKABLE)
    return [
        regions.want(
            place.frame, place.orientation, crop.interpolation if crop else "nearest",
            cuttable=cuttable, fast=recipe.fast,
        )
        for crop, place in zip(recipe.views, places, strict=True)
    ]  # fmt: skip


def _new_view(recipe: Recipe, crop: Geometry | None, count: int, out: torch.Tensor | None) -> View:
    size = crop.output_size if crop is not None else None
    if size is None or recipe.decoder.mode not in CHANNELS:
        if out is not None:
            raise OptionError("out=: the images may differ in size or type; expected a crop")
        return View(None, [np.empty(0)] * count)
    batch = given_or_new((count, CHANNELS[recipe.decoder.mode], *size), torch.uint8, out)
    return View(batch, list(batch.numpy()))


def given_or_new(
    shape: tuple[int, ...], dtype: torch.dtype, out: torch.Tensor | None
) -> torch.Tensor:
    """A tensor for a batch of images: ``out`` if it is given, else a new one.

    Raises:
        OptionError: ``out`` does not fit.
    """
    if out is None:
        return tensors.new_batch(shape, dtype)
    if tuple(out.shape) != shape or out.dtype != dtype or not out.is_contiguous():
        raise OptionError(
            f"out={tuple(out.shape)} {out.dtype}: expected a contiguous tensor, {shape} {dtype}"
        )
    return out


class Batch(list[Any]):
    """The samples of a batch, with the tensors they are views of.

    Args:
        samples: Of the batch.
        columns: Makes what `collate` gives: a tuple, dict or single value of batched fields.
    """

    def __init__(self, samples: Sequence[Any], columns: Callable[[], Any]) -> None:
        super().__init__(samples)
        self._columns = columns
        self._samples = tuple(samples)

    def __reduce__(self) -> tuple[object, ...]:
        if not self.is_whole:
            return list, (list(self),)
        return _restored, (list(self), self.columns())

    @property
    def is_whole(self) -> bool:
        """Whether the list is still what it was."""
        return len(self) == len(self._samples) and all(map(_is, self, self._samples))

    def columns(self) -> Any:
        """The batched fields."""
        return self._columns()


def _restored(samples: list[Any], columns: Any) -> Batch:
    return Batch(samples, lambda: columns)


def _is(a: object, b: object) -> bool:
    return a is b


def collate(samples: list[Any]) -> Any:
    """Hand over a batch of packio's without copying it; collate anything else as torch does.

    For ``DataLoader(ds, collate_fn=packio.collate)``.

    Args:
        samples: What a dataset's ``__getitems__`` returned, or a plain list of samples.

    Returns:
        As `torch.utils.data.default_collate`: images (N, C, H, W), labels (N,) int64, …; but
        images and masks that differ in size as a list, and so boxes, keys and metadata always.
    """
    if isinstance(samples, Batch) and samples.is_whole:
        return samples.columns()
    return torch.utils.data.default_collate(list(samples))
