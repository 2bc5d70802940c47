"""What a dataset draws of one sample at a place of an epoch: told by itself, without a batch."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from packio.batches import framing, samples
from packio.batches.draws import Drawn
from packio.batches.framing import Settings
from packio.errors import OptionError
from packio.images.frames import Placement
from packio.packs.opening import Pack
from packio.packs.rows import Row
from packio.sample.record import IMAGE

if TYPE_CHECKING:
    import torch


class Origin(NamedTuple):
    """Where one sample comes from, and how it is made."""

    pack: Pack
    row: Row
    settings: Settings
    several: bool


class DrawnDataset:
    """The part of a dataset that tells its draws."""

    def draw_of(
        self, position: int, epoch: int | None = None, *, index: int | None = None
    ) -> Placement | tuple[Placement, ...]:
        """Tell which box of its image a sample shows at a position of an epoch, and its flips.

        What `packio.Loader` and packio's samplers draw there: a function of seed, epoch, position
        and view, for any number of workers and ranks. Nothing is read but the index. A dataset
        without ``seed=`` has drawn its seed when it was made.

        Args:
            position: Place in the order of the epoch, counted over all ranks from 0; or an index
                that a sampler of packio's gave, which knows place and epoch.
            epoch: Number of the epoch.
            index: Which sample is there. None: the one that the sampler said; else the sample whose
                index is the position, as in an epoch without shuffling.

        Returns:
            A `Placement`: ``frame`` (``top, left, height, width`` in pixels of the upright image,
            the size ``to_height, to_width`` that this box is resized to, and where the output
            ``out_height, out_width`` lies on it), ``orientation``, ``hflip`` and ``vflip``. With
            ``views=`` a tuple of them, one for each view.

        Raises:
            OptionError: there is no epoch.
            IndexError: the dataset has no such sample.
        """
        if isinstance(position, Drawn):
            drawn = position if index is None else position.moved(index)
        elif epoch is None:
            raise OptionError("epoch=None: expected a number, or an index of packio's samplers")
        else:
            drawn = Drawn(position if index is None else index, epoch, position)
        placements, several = self._drawn_of(drawn)
        return tuple(placements) if several else placements[0]

    def _drawn_of(self, index: Drawn) -> tuple[list[Placement], bool]:
        """Where each view of a sample lies in its image, and whether there are several views."""
        origin = self._origin(index)
        key, lane, size = self._draw_one(index)
        settings = origin.settings.sized(size)
        placements = framing.placements_of_one(settings, origin.row, key, lane)
        return placements, origin.several

    def _seen(self, index: Drawn, *, whole: bool = False) -> list[torch.Tensor]:
        """The images of a sample as they are drawn, (C, H, W) each, one a view; no transforms."""
        origin = self._origin(index)
        settings = dataclasses.replace(origin.settings, fields={IMAGE: "image"})
        if whole:
            settings = dataclasses.replace(settings, views=(None,), hflip=0.0, vflip=0.0)
        key, lane, size = self._draw_one(index)
        return samples.make_one(origin.pack, settings, origin.row, key, lane, size)[IMAGE]

    def _origin(self, index: int) -> Origin:
        """Where a sample comes from, and how it is made."""
        raise NotImplementedError

    def _draw_one(self, index: int | None) -> tuple[int, int, tuple[int, int] | None]:
        """Key, lane and size of the random numbers of a single sample."""
        raise NotImplementedError
