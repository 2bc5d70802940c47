"""One batch made on a device: JPEGs are decoded there together, then cropped, resized, mirrored.

Reading, checking, and cutting seekable JPEGs happen in threads, as for any batch. What the
device's decoder should not have, or fails on, Pillow decodes in the threads, and its pixels are
copied. Which box of which sample goes where, `packio.batches.plans` says here as everywhere.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from packio.batches import batches
from packio.batches.batches import CHANNELS, Made
from packio.batches.plans import Place, Plan, Recipe
from packio.errors import DecodeError, IntegrityError
from packio.images import planes, regions
from packio.images.decoders import Decoder
from packio.images.geometry import Geometry
from packio.images.regions import Cut, Wanted
from packio.packs.packs import Pack, Row, file_order
from packio.system.threads import Threads, each

_MOST = 1 << 30  # bytes of pixels that are decoded at once; 1,900 images of 500 x 375


class _Piece(NamedTuple):
    """A JPEG that goes to the device."""

    data: bytearray
    size: tuple[int, int]  # (height, width) in pixels


class _Sample(NamedTuple):
    """What the device is to make of a sample."""

    wanted: list[Wanted]  # one a view
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

    def draw(self, slot: int, pixels: torch.Tensor, wanted: Wanted, cut: Cut, place: Place) -> None:
        """Make the image of one sample, of (C, H, W) pixels of what a cut holds."""
        top, left = cut.box[0] - cut.top, cut.box[1] - cut.left
        box = pixels[:, top : top + cut.box[2], left : left + cut.box[3]]
        box = planes.oriented(box, place.orientation)
        frame = wanted.frame
        out = self._images[slot] if self._batch is not None else self._zeros(len(box), *frame[8:10])
        planes.render(box, frame, out, hflip=place.hflip, vflip=place.vflip, how=self._how)
        if self._batch is None:
            self._images[slot] = planes.rounded(out)

    def done(self, others: dict[int, torch.Tensor]) -> torch.Tensor | list[torch.Tensor]:
        """All images: those of the device, and others, by slot, that are copied there."""
        if self._batch is None:
            for slot, image in others.items():
                self._images[slot] = image.to(self._device)
            return self._images
        whole = planes.rounded(self._batch)
        for slot, image in others.items():
            whole[slot].copy_(image)
        return whole


def make(
    pack: Pack, recipe: Recipe, plan: Plan, threads: Threads | None, device: torch.device
) -> Made:
    """Make the images of some samples: as `packio.batches.batches.make`, but on a device.

    Values are within 1 grey level of those that it makes of the same decoded pixels, with either
    fidelity. Bad samples are black.

    Args:
        pack: Where they are read from.
        recipe: What to make of them, with a decoder that decodes batches.
        plan: Of the samples.
        threads: That read, and decode what the device does not; None: this one.
        device: As `packio.images.decoders._cuda.side_stream` gives it, within that.
    """
    rows = plan.rows
    samples: dict[int, _Sample] = {}
    errors: dict[int, Exception] = {}

    def read(slot: int) -> None:
        try:
            sample = _read(pack, recipe, rows[slot], plan[slot])
        except (DecodeError, IntegrityError) as error:
            errors[slot] = error
            return
        if sample is not None:
            samples[slot] = sample

    each(read, file_order(rows), threads)
    views = [_View(recipe, crop, len(rows), device) for crop in recipe.views]
    made: set[int] = set()
    for group in _groups(samples):
        made |= _draw(recipe.decoder, plan, group, views, device)
    rest = [slot for slot in file_order(rows) if slot not in made and slot not in errors]
    others = _by_pillow(pack, recipe, plan, threads, rest, errors)
    done = [
        view.done({slot: images[number] for slot, images in others.items()})
        for number, view in enumerate(views)
    ]
    return Made(done, errors)


def _read(pack: Pack, recipe: Recipe, row: Row, places: Sequence[Place]) -> _Sample | None:
    """Read a sample, and cut out what its views need; None where the device should not have it.

    Raises:
        DecodeError, IntegrityError: it is bad; the message names it.
    """
    try:
        if not recipe.decoder.takes(row):
            return None
        if not all(planes.is_for_device(place.frame) for place in places):
            return None
        data = pack.read(row)
        wanted = batches.wanted_of(recipe, row, places)
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
    decoder: Decoder, plan: Plan, group: dict[int, _Sample], views: Sequence[_View],
    device: torch.device,
) -> set[int]:  # fmt: skip
    """Decode samples on the device, and make their images; the slots of those that it could."""
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
            each_view = zip(views, sample.wanted, sample.cuts, plan[slot], strict=True)
            for view, wanted, cut, place in each_view:
                view.draw(slot, pixels[id(cut.data)], wanted, cut, place)
    return made


def _by_pillow(
    pack: Pack, recipe: Recipe, plan: Plan, threads: Threads | None, slots: Sequence[int],
    errors: dict[int, Exception],
) -> dict[int, list[torch.Tensor]]:  # fmt: skip
    """The images of some slots, one a view, made in memory; what is bad is added to the errors."""
    recipe = dataclasses.replace(recipe, decoder=recipe.decoder.fallback)
    made: dict[int, list[torch.Tensor]] = {}

    def work(slot: int) -> None:
        try:
            made[slot] = batches.make_one(pack, recipe, plan.rows[slot], plan[slot])
        except (DecodeError, IntegrityError) as error:
            errors[slot] = error

    if slots:
        each(work, slots, threads)
    return made
