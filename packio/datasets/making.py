"""Samples of one pack, made by a settings: threads, types, and counts of what went wrong."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from packio.batches import images, samples
from packio.batches.framing import Draw, Settings
from packio.batches.samples import MadeSamples
from packio.datasets import fields
from packio.datasets.options import FLOATS
from packio.datasets.shared_state import Tally
from packio.errors import DecodeError
from packio.packs.opening import Pack
from packio.packs.table import Row
from packio.sample.record import IMAGE
from packio.system.threads import Threads, automatic_threads

if TYPE_CHECKING:
    import numpy as np


class Maker:
    """Makes the decoded fields of samples."""

    def __init__(
        self, pack: Pack, settings: Settings, *, output: str, dtype: torch.dtype,
        threads: int | str, skip: bool,
    ) -> None:  # fmt: skip
        self.pack: Pack = pack
        self.settings: Settings = settings
        self.skip: bool = skip
        self._output, self._dtype, self._wanted_threads = output, dtype, threads
        self._is_little = images.are_little(pack)
        self._images = [name for name, kind in settings.fields.items() if kind == "image"]
        self._threads: Threads | None = None
        self.tally: Tally = Tally()

    def copied(self) -> Maker:
        """The same with counts of its own, in the same epoch."""
        made = copy.copy(self)
        made.settings = dataclasses.replace(self.settings, decoder=copy.copy(self.settings.decoder))
        made.tally = Tally(self.tally.epoch)
        return made

    def threads(self) -> Threads | None:
        """Threads that decode a batch; None: the calling one."""
        wanted = self._wanted_threads
        if wanted == "auto" and self._is_little:
            return None
        count = automatic_threads() if wanted == "auto" else int(wanted)
        if count < 2:
            return None
        if self._threads is None or self._threads.count != count:
            self._threads = Threads(count)
        return self._threads

    def make(
        self, positions: np.ndarray, draw: Draw, threads: Threads | None,
        out: torch.Tensor | None = None, device: torch.device | None = None,
    ) -> MadeSamples:  # fmt: skip
        """Make samples at (N,) positions of the pack; images go to ``out``; bad ones are there."""
        if not self.settings.fields:
            return MadeSamples({}, {})
        given = None if self._dtype in FLOATS else out
        before = self.settings.counts
        try:
            made = samples.make(self.pack, self.settings, positions, draw, threads, given, device)
        finally:
            self._count(before)
        if self._output == "pil" and self.settings.decoder.mode == "UNCHANGED":
            self._check_pillow_holds(made, positions)
        for name in self._images if self._dtype in FLOATS else ():
            into = out if name == IMAGE else None
            views = made.columns[name]
            made.columns[name] = [fields.scaled(view, self._dtype, into) for view in views]
        return made

    def _check_pillow_holds(self, made: MadeSamples, positions: np.ndarray) -> None:
        """Count samples as bad whose pixels Pillow has no mode for, as RGB of 16 bits."""
        for name in self._images:
            for view in made.columns[name]:
                for slot, image in enumerate(view):
                    if slot in made.errors or image is None or image.dtype == torch.uint8:
                        continue
                    try:
                        with self.pack.naming(self.pack.row(positions.item(slot), name), name):
                            fields.values("image", [image], "pil")
                    except DecodeError as error:
                        made.errors[slot] = error

    def expect(self, positions: np.ndarray, draw: Draw | None) -> None:
        """Ask for the bytes of samples that will be made soon; ``draw``: None if not known yet."""
        self.pack.expect(samples.rows_expected(self.pack, self.settings, positions, draw))

    def make_one(
        self, row: Row, key: int, lane: int, size: tuple[int, int] | None
    ) -> dict[str, list[Any]]:
        """Make one sample: field → a value a view, in the form asked for."""
        if not self.settings.fields:
            return {}
        before = self.settings.counts
        try:
            made = samples.make_one(self.pack, self.settings, row, key, lane, size)
        finally:
            self._count(before)
        if self._dtype in FLOATS:
            for name in self._images:
                made[name] = [fields.scaled(view, self._dtype) for view in made[name]]
        if self._output == "tensor":
            return made
        kinds = self.settings.fields
        with self.pack.naming(row):
            return {
                n: [fields.values(kinds[n], [v], self._output)[0] for v in made[n]] for n in made
            }

    def _count(self, before: tuple[int, ...]) -> None:
        """Add to the tally what has come since there were so many."""
        now = self.settings.counts
        if now != before:
            fallbacks, *declined = (n - b for n, b in zip(now, before, strict=True))
            self.tally.count(fallbacks=fallbacks, declined=declined)
