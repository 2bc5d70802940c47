"""Samples of one pack, made by a recipe: threads, types, and counts of what went wrong."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from packio.batches import images, samples
from packio.batches.plan import Draw, Recipe
from packio.batches.samples import Samples
from packio.datasets import outputs
from packio.datasets.options import FLOATS
from packio.packs.packs import Pack
from packio.packs.rows import Row
from packio.sample.record import IMAGE
from packio.system.threads import Threads, automatic_threads

if TYPE_CHECKING:
    import numpy as np

_WORKERS = 256  # DataLoader workers with a counter of their own
_EPOCH, _REPLACED, _FALLBACKS = range(3)  # rows of the shared counters


class Maker:
    """Makes the decoded fields of samples.

    The counters lie in shared memory, so that live workers see an epoch that is set, and the parent
    sees what workers count.

    Args:
        pack: Of the samples.
        recipe: What to make.
        output: "tensor", "numpy" or "pil".
        dtype: Of images.
        threads: Threads that decode, or "auto".
        skip: Whether a bad sample is replaced by another of its batch.

    Attributes:
        pack, recipe, skip: As given.
        is_random: Whether samples need random numbers.
    """

    def __init__(
        self, pack: Pack, recipe: Recipe, *, output: str, dtype: torch.dtype, threads: int | str,
        skip: bool,
    ) -> None:  # fmt: skip
        self.pack, self.recipe, self.skip = pack, recipe, skip
        self.is_random = recipe.is_random
        self._output, self._dtype, self._wanted_threads = output, dtype, threads
        self._is_little = images.are_little(pack)
        self._images = [name for name, kind in recipe.fields.items() if kind == "image"]
        self._threads: Threads | None = None
        self._counters = _new_counters()

    def copied(self) -> Maker:
        """The same with counters of its own, in the same epoch."""
        made = copy.copy(self)
        made.recipe = dataclasses.replace(self.recipe, decoder=copy.copy(self.recipe.decoder))
        vars(made)["_counters"] = _new_counters()
        made.epoch = self.epoch
        return made

    @property
    def epoch(self) -> int:
        """The epoch whose random numbers are drawn, in all workers; may be set."""
        return int(self._counters[_EPOCH, 0])

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._counters[_EPOCH, 0] = epoch

    @property
    def replaced(self) -> int:
        """Bad samples replaced so far, in all workers."""
        return int(self._counters[_REPLACED].sum())

    @property
    def fallbacks(self) -> int:
        """Images that Pillow decoded because the chosen decoder could not, in all workers."""
        return int(self._counters[_FALLBACKS].sum())

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
    ) -> Samples:  # fmt: skip
        """Make the samples of a batch; bad samples are among them.

        Args:
            positions: (N,) in the pack.
            draw, threads: As of `packio.batches.samples.make`.
            out: Where the images go, of the dtype asked for.
            device: That decodes.
        """
        if not self.recipe.fields:
            return Samples({}, {})
        given = None if self._dtype in FLOATS else out
        before = self.recipe.fallbacks
        try:
            made = samples.make(self.pack, self.recipe, positions, draw, threads, given, device)
        finally:
            self._count_fallbacks(before)
        for name in self._images:
            into = out if name == IMAGE else None
            views = made.columns[name]
            made.columns[name] = [outputs.scaled(view, self._dtype, into) for view in views]
        return made

    def make_one(self, row: Row, key: int, lane: int) -> dict[str, list[Any]]:
        """Make one sample: field → a value a view, in the form asked for."""
        if not self.recipe.fields:
            return {}
        before = self.recipe.fallbacks
        try:
            made = samples.make_one(self.pack, self.recipe, row, key, lane)
        finally:
            self._count_fallbacks(before)
        if self._dtype in FLOATS:
            for name in self._images:
                made[name] = [outputs.scaled(view, self._dtype) for view in made[name]]
        if self._output == "tensor":
            return made
        kinds = self.recipe.fields
        return {n: [outputs.values(kinds[n], [v], self._output)[0] for v in made[n]] for n in made}

    def replace(self, made: Samples, positions: np.ndarray) -> np.ndarray:
        """Put a good sample of the batch in the place of each bad one; count and report it.

        Returns:
            The positions of the samples that are there now.

        Raises:
            DecodeError, IntegrityError: samples are not to be replaced, or all are bad.
        """
        errors = made.errors
        if not errors:
            return positions
        if not self.skip or len(errors) == len(positions):
            raise errors[min(errors)]
        source = samples.replace(made)
        self.report([error for _, error in sorted(errors.items())])
        replaced: np.ndarray = positions[source]
        return replaced

    def report(self, errors: Sequence[Exception]) -> None:
        """Warn that samples of a batch have been replaced, and count them."""
        for error in errors:
            warnings.warn(f"replaced by another sample of its batch: {error}", stacklevel=6)
        self._count(_REPLACED, len(errors))

    def _count_fallbacks(self, before: int) -> None:
        if self.recipe.fallbacks != before:
            self._count(_FALLBACKS, self.recipe.fallbacks - before)

    def _count(self, counter: int, number: int) -> None:
        info = torch.utils.data.get_worker_info()
        slot = 0 if info is None else 1 + info.id % _WORKERS  # one writer each: nothing is lost
        self._counters[counter, slot] += number


def _new_counters() -> torch.Tensor:
    counters = torch.zeros(3, _WORKERS + 1, dtype=torch.int64)
    counters.share_memory_()  # type: ignore[no-untyped-call]  # torch's own
    return counters
