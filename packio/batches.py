"""One batch: read in file order, decode in threads, into one contiguous tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from packio import draws, geometry, raw, regions, tensors
from packio.decoders import Decoder
from packio.draws import Lane
from packio.encodings import Facts
from packio.errors import DecodeError, IntegrityError, OptionError
from packio.geometry import Geometry, Numbers
from packio.indexfile import SEEKABLE
from packio.packs import Pack, Row, file_order
from packio.threads import Threads, alone

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
        fast: Whether fidelity is "fast".
    """

    views: tuple[Geometry | None, ...]
    hflip: float
    vflip: float
    decoder: Decoder
    exif_orientation: bool
    fast: bool = False


class Draw(NamedTuple):
    """Where the random numbers of a batch come from.

    Attributes:
        key: Of all.
        lanes: (N,) of each slot.
    """

    key: int
    lanes: np.ndarray


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
    pack: Pack, recipe: Recipe, rows: Sequence[Row], draw: Draw, threads: Threads | None,
    out: torch.Tensor | None = None,
) -> Made:  # fmt: skip
    """Make the images of some samples.

    Args:
        pack: Where they are read from.
        recipe: What to make of them.
        rows: Which samples; a sample may be there several times.
        draw: Of the random numbers.
        threads: That decode; None: this one.
        out: Where the only view goes: (N, C, H, W) of the images' dtype, contiguous.

    Raises:
        OptionError: ``out`` does not fit.
    """
    views = [_new_view(recipe, number, draw, out) for number in range(len(recipe.views))]
    errors: dict[int, Exception] = {}

    def work(slot: int) -> None:
        numbers = [view.numbers[slot] for view in views]
        try:
            parts = _parts(pack, recipe, rows[slot], [u[_FLIPS:] for u in numbers])
        except (DecodeError, IntegrityError) as error:
            errors[slot] = error
            return
        for view, u, part in zip(views, numbers, parts, strict=True):
            into = view.images[slot] if view.batch is not None else None
            view.images[slot] = _render(recipe, part, u, into)

    with alone():
        if threads is None or len(rows) == 1:
            for slot in file_order(rows):
                work(slot)
        else:
            threads.run(work, file_order(rows))
    return Made([v.images if v.batch is None else v.batch for v in views], errors)


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
        u = _numbers(recipe, number, draw)
        found = raw.windows(crop, facts.height, facts.width, u[:, _FLIPS:])
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
    wanted = _CHANNELS.get(decoder.mode)
    fits = wanted is None or (facts.dtype == "uint8" and facts.channels == wanted)
    return fits and facts.height * facts.width <= decoder.max_pixels


def make_one(pack: Pack, recipe: Recipe, row: Row, draw: Draw) -> list[torch.Tensor]:
    """Make the images of one sample, (C, H, W), one a view, as the first slot of `make` would.

    Raises:
        DecodeError, IntegrityError: the sample is bad.
    """
    lane = draw.lanes.item(0)
    numbers = [Lane(draw.key, lane, i, _FLIPS) for i in range(len(recipe.views))]
    flips = [Lane(draw.key, lane, i) for i in range(len(recipe.views))]
    with alone():
        parts = _parts(pack, recipe, row, numbers)
        return [_render(recipe, part, u, None) for part, u in zip(parts, flips, strict=True)]


_Parts = list[tuple[regions.Part, regions.Wanted]]


def _parts(pack: Pack, recipe: Recipe, row: Row, numbers: Sequence[Numbers]) -> _Parts:
    """Read a sample, and decode what its views need.

    Raises:
        DecodeError, IntegrityError: the sample is bad; the message names it.
    """
    orientation = row.orientation if recipe.exif_orientation else 1
    size = (row.width, row.height) if orientation >= 5 else (row.height, row.width)
    wanted = [
        regions.Wanted(
            crop.frame(*size, u) if crop else geometry.whole(*size), orientation,
            bool(row.flags & SEEKABLE), recipe.fast, crop.interpolation if crop else "nearest",
        )
        for crop, u in zip(recipe.views, numbers, strict=True)
    ]  # fmt: skip
    rows = pack.raw_rows
    if rows is not None and _is_as_decoded(rows.facts, recipe.decoder):
        pixels = rows.pixels(row.position)
        return [(regions.of_pixels(pixels, row, w), w) for w in wanted]
    data = pack.read(row)
    try:
        parts = regions.decode_all(recipe.decoder, data, row, wanted)
    except DecodeError as error:
        name = f"{pack.path}, sample {row.position} ({pack.key(row.position)!r})"
        raise type(error)(f"{name}: {error}") from error
    return list(zip(parts, wanted, strict=True))


def _render(
    recipe: Recipe, part: tuple[regions.Part, regions.Wanted], flips: Numbers,
    out: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """One view of one image, into ``out`` if given."""
    hflip, vflip = flips[0] < recipe.hflip, flips[1] < recipe.vflip
    return regions.render(*part, out, hflip=hflip, vflip=vflip)


def _numbers(recipe: Recipe, number: int, draw: Draw) -> np.ndarray:
    """Random numbers of a view: two for the flips, then the geometry's own, for each sample."""
    crop = recipe.views[number]
    needed = _FLIPS + (crop.draws if crop is not None else 0)
    if needed == _FLIPS and not (recipe.hflip or recipe.vflip):
        return np.zeros((len(draw.lanes), _FLIPS))
    return draws.uniforms(draw.key, draw.lanes, number, needed)


def _new_view(recipe: Recipe, number: int, draw: Draw, out: torch.Tensor | None) -> View:
    crop, numbers = recipe.views[number], _numbers(recipe, number, draw).tolist()
    count = len(draw.lanes)
    size = crop.output_size if crop is not None else None
    if size is None or recipe.decoder.mode not in _CHANNELS:
        if out is not None:
            raise OptionError("out=: the images may differ in size or type; expected a crop")
        return View(crop, numbers, None, [torch.empty(0)] * count)
    batch = given_or_new((count, _CHANNELS[recipe.decoder.mode], *size), torch.uint8, out)
    return View(crop, numbers, batch, list(batch.unbind(0)))


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
