"""One batch made on a device: JPEGs are decoded there together, then cropped, resized, mirrored.

Threads read and check, and the framing is made, as for any batch (`packio.batches.framing`). Pillow
decodes the images that the device's decoder cannot take or fails on, in the threads; these images
are then copied to the device.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from packio.batches import images
from packio.batches.columns import BatchField, FieldColumn, make_each
from packio.batches.framing import Framing, Settings
from packio.batches.images import CHANNELS
from packio.images import devices, regions
from packio.images.dct import as_file
from packio.images.decoders import Decoder
from packio.images.geometry import Geometry
from packio.images.regions import Need
from packio.packs.opening import Pack
from packio.system.threads import Threads

_MOST = 1 << 30  # bytes of pixels that are decoded at once; 1,900 images of 500 x 375


class _Job(NamedTuple):
    data: bytearray
    size: tuple[int, int]  # (height, width) in pixels
    needs: Sequence[Need]  # one a view


class _View:
    """The images of one view: floats of 0..255 until they are finished."""

    def __init__(
        self, settings: Settings, crop: Geometry | None, count: int, device: torch.device
    ) -> None:
        size = crop.output_size if crop is not None else None
        channels = CHANNELS.get(settings.decoder.mode)
        self._device = device
        self._batch: torch.Tensor | None = None
        self._images = [torch.empty(0)] * count
        if size is not None and channels is not None:
            self._batch = self._zeros(count, channels, *size)
            self._images = list(self._batch.unbind(0))

    def _zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.float32, device=self._device)

    def draw(self, slot: int, pixels: torch.Tensor, need: Need) -> None:
        top, left, height, width = need.box
        box = pixels[:, top : top + height, left : left + width]
        box = devices.orient(box, need.orientation)
        frame = need.frame
        out = self._images[slot] if self._batch is not None else self._zeros(len(box), *frame[8:10])
        devices.render(box, frame, out, hflip=need.hflip, vflip=need.vflip, how=need.how)
        if self._batch is None:
            self._images[slot] = devices.round_to_uint8(out)

    def finish(self, others: dict[int, torch.Tensor]) -> FieldColumn:
        """All images: those of the device, and others, by slot, which are copied to the device."""
        if self._batch is None:
            for slot, image in others.items():
                self._images[slot] = image.to(self._device)
            return self._images
        whole = devices.round_to_uint8(self._batch)
        for slot, image in others.items():
            whole[slot].copy_(image)
        return whole


def make(pack: Pack, framing: Framing, threads: Threads | None, device: torch.device) -> BatchField:
    """Make the images of some samples: as `packio.batches.images.make`, but on a device.

    Values are within 1 grey level of those that the processor makes of the same decoded pixels,
    with either fidelity. Bad samples are black. Threads read, and decode what the device does not.
    """
    settings, rows, decoder = framing.settings, framing.rows, framing.settings.decoder
    jobs: dict[int, _Job] = {}

    def read(slot: int) -> None:
        row = rows[slot]
        if not all(devices.is_for_device(each.frame) for each in framing.each_placement[slot]):
            return
        with pack.naming(row):
            data = as_file(pack.read(row), row.encoding) if decoder.takes(row) else b""
            size = decoder.size(data) if data else None
            if size is not None:
                regions.check_whole(size, row)
                jobs[slot] = _Job(bytearray(data), size, framing.each_needs[slot])

    errors = make_each(rows, read, threads)
    views = [_View(settings, crop, len(rows), device) for crop in settings.views]
    made: set[int] = set()
    for group in _groups(jobs):
        decoded = decoder.decode_batch([job.data for job in group.values()], device)
        for (slot, job), pixels in zip(group.items(), decoded, strict=True):
            if pixels is not None and pixels.shape == (CHANNELS[decoder.mode], *job.size):
                made.add(slot)
                for view, need in zip(views, job.needs, strict=True):
                    view.draw(slot, pixels, need)

    pillow = Decoder("pillow", decoder.mode, max_pixels=decoder.max_pixels)
    in_memory = dataclasses.replace(settings, decoder=pillow)
    others: dict[int, list[torch.Tensor]] = {}  # one a view

    def make_in_memory(slot: int) -> None:
        others[slot] = images.make_one(pack, in_memory, rows[slot], framing.each_needs[slot])

    bad = make_each(rows, make_in_memory, threads, made | set(errors))
    columns = [
        view.finish({slot: each[number] for slot, each in others.items()})
        for number, view in enumerate(views)
    ]
    return BatchField(columns, {**errors, **bad})


def _groups(samples: dict[int, _Job]) -> Iterator[dict[int, _Job]]:
    """Split samples into those that are decoded together: all, unless they are very large."""
    group: dict[int, _Job] = {}
    total = 0
    for slot, sample in samples.items():
        needed = 3 * math.prod(sample.size)
        if group and total + needed > _MOST:
            yield group
            group, total = {}, 0
        group[slot] = sample
        total += needed
    if group:
        yield group
