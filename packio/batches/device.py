"""One batch made on a device: JPEGs are decoded there together, then cropped, resized, mirrored.

Reading, checking, and cutting seekable JPEGs happen in threads, as for any batch. Images that the
device's decoder should not have, or fails on, are decoded by Pillow in the threads and copied. The
plan (`packio.batches.plan`) is that of any batch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from packio.batches import images
from packio.batches.columns import Column, Made
from packio.batches.images import CHANNELS
from packio.batches.plan import Plan, Recipe
from packio.errors import DecodeError
from packio.images import planes, regions
from packio.images.decoders import Decoder
from packio.images.geometry import Geometry
from packio.images.regions import Cut, Wanted
from packio.packs.packs import Pack
from packio.packs.rows import Row
from packio.system.threads import Threads

_MOST = 1 << 30  # bytes of pixels that are decoded at once; 1,900 images of 500 x 375


class _Piece(NamedTuple):
    """A JPEG that goes to the device."""

    data: bytearray
    size: tuple[int, int]  # (height, width) in pixels


class _Sample(NamedTuple):
    """What the device is to make of a sample."""

    wanted: Sequence[Wanted]  # one a view
    cuts: list[Cut]  # one a view; several may be of the same bytes
    pieces: dict[int, _Piece]  # by the id of a cut's bytes


class _View:
    """The images of one view: floats of 0..255 until they are `done`."""

    def __init__(
        self, recipe: Recipe, crop: Geometry | None, count: int, device: torch.device
    ) -> None:
        size = crop.output_size if crop is not None else None
        channels = CHANNELS.get(recipe.decoder.mode)
        self._device, self._how = device, crop.interpolation if crop else "nearest"
        self._batch: torch.Tensor | None = None
        self._images = [torch.empty(0)] * count
        if size is not None and channels is not None:
            self._batch = self._zeros(count, channels, *size)
            self._images = list(self._batch.unbind(0))

    def _zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.float32, device=self._device)

    def draw(self, slot: int, pixels: torch.Tensor, wanted: Wanted, cut: Cut) -> None:
        """Make the image of one sample, of the (C, H, W) pixels of a cut."""
        top, left, height, width = wanted.box
        top, left = top - cut.top, left - cut.left
        box = pixels[:, top : top + height, left : left + width]
        box = planes.oriented(box, wanted.orientation)
        frame = wanted.frame
        out = self._images[slot] if self._batch is not None else self._zeros(len(box), *frame[8:10])
        planes.render(box, frame, out, hflip=wanted.hflip, vflip=wanted.vflip, how=self._how)
        if self._batch is None:
            self._images[slot] = planes.rounded(out)

    def done(self, others: dict[int, torch.Tensor]) -> Column:
        """All images: those of the device, and others, by slot, which are copied to the device."""
        if self._batch is None:
            for slot, image in others.items():
                self._images[slot] = image.to(self._device)
            return self._images
        whole = planes.rounded(self._batch)
        for slot, image in others.items():
            whole[slot].copy_(image)
        return whole


def make(pack: Pack, plan: Plan, threads: Threads | None, device: torch.device) -> Made:
    """Make the images of some samples: as `packio.batches.images.make`, but on a device.

    Values are within 1 grey level of those that the processor makes of the same decoded pixels,
    with either fidelity. Bad samples are black.

    Args:
        pack: Where they are read from.
        plan: Of the samples, with a decoder that decodes batches.
        threads: Threads that read, and decode what the device does not; None: this one.
        device: As `packio.images.decoders._cuda.side_stream` gives it, within that.
    """
    recipe, rows = plan.recipe, plan.rows
    samples: dict[int, _Sample] = {}

    def read(slot: int) -> None:
        if not all(planes.is_for_device(place.frame) for place in plan.each_place[slot]):
            return
        sample = _read(pack, recipe, rows[slot], plan.each_wanted[slot])
        if sample is not None:
            samples[slot] = sample

    errors = plan.make_each(read, threads)
    views = [_View(recipe, crop, len(rows), device) for crop in recipe.views]
    made: set[int] = set()
    for group in _groups(samples):
        made |= _draw(recipe.decoder, group, views, device)
    others, bad = _by_pillow(pack, plan, threads, made | set(errors))
    done = [
        view.done({slot: each[number] for slot, each in others.items()})
        for number, view in enumerate(views)
    ]
    return Made(done, {**errors, **bad})


def _read(pack: Pack, recipe: Recipe, row: Row, wanted: Sequence[Wanted]) -> _Sample | None:
    """Read a sample, and cut out what its views need; None if the device should not have it.

    Raises:
        DecodeError, IntegrityError: the sample is bad; the message names it.
    """
    try:
        if not recipe.decoder.takes(row):
            return None
        data = pack.read(row)
        cuts = regions.cut_all(data, row, wanted)
        pieces: dict[int, _Piece] = {}
        for piece in {id(cut.data): cut.data for cut in cuts}.values():
            size = recipe.decoder.size(piece)
            if size is None:
                return None
            if piece is data:
                regions.check_whole(size, row)
            pieces[id(piece)] = _Piece(bytearray(piece), size)
        return _Sample(wanted, cuts, pieces)
    except DecodeError as error:
        raise pack.named(error, row) from error


def _groups(samples: dict[int, _Sample]) -> Iterator[dict[int, _Sample]]:
    """Samples that are decoded together: all, unless they are very large."""
    group: dict[int, _Sample] = {}
    total = 0
    for slot, sample in samples.items():
        needed = sum(3 * math.prod(piece.size) for piece in sample.pieces.values())
        if group and total + needed > _MOST:
            yield group
            group, total = {}, 0
        group[slot] = sample
        total += needed
    if group:
        yield group


def _draw(
    decoder: Decoder, group: dict[int, _Sample], views: Sequence[_View], device: torch.device
) -> set[int]:
    """Decode samples on the device, and make their images; returns the slots that succeeded."""
    given = [piece for sample in group.values() for piece in sample.pieces.values()]
    decoded = iter(decoder.decode_batch([piece.data for piece in given], device))
    made: set[int] = set()
    for slot, sample in group.items():
        found = {key: next(decoded) for key in sample.pieces}
        pixels = {
            key: one for key, one in found.items()
            if one is not None
            and one.shape == (CHANNELS[decoder.mode], *sample.pieces[key].size)
        }  # fmt: skip
        if len(pixels) == len(found):
            made.add(slot)
            for view, wanted, cut in zip(views, sample.wanted, sample.cuts, strict=True):
                view.draw(slot, pixels[id(cut.data)], wanted, cut)
    return made


def _by_pillow(
    pack: Pack, plan: Plan, threads: Threads | None, but: set[int]
) -> tuple[dict[int, list[torch.Tensor]], dict[int, Exception]]:
    """Make the images of all slots but some in memory: slot → one a view; and what is bad."""
    recipe = dataclasses.replace(plan.recipe, decoder=plan.recipe.decoder.fallback)
    made: dict[int, list[torch.Tensor]] = {}

    def work(slot: int) -> None:
        made[slot] = images.make_one(pack, recipe, plan.rows[slot], plan.each_wanted[slot])

    return made, plan.make_each(work, threads, but)
