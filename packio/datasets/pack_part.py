"""Samples of one pack, all or some of them: finding them, and saving which they are."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from packio.datasets import selecting, selection, tables
from packio.datasets.batching import BatchedDataset
from packio.datasets.positions import Positions
from packio.packs import opening
from packio.packs.querying import expressions


class PackPart(BatchedDataset):
    """The base of `packio.PackDataset`: which samples of its pack it has.

    Attributes:
        pack: The `packio.Pack`.
    """

    pack: opening.Pack
    _chosen: Positions | None  # None: all of the pack

    def __len__(self) -> int:
        return len(self.pack) if self._chosen is None else len(self._chosen.array)

    def save_selection(
        self, out: str | os.PathLike[str], *, overwrite: bool = False
    ) -> selecting.SelectionReport:
        """Save which samples these are: a small file that opens as a pack of them.

        The samples are then in the order of the pack; see `packio.select`.

        Args:
            out: The selection to write, as ``cats.selection``.
            overwrite: Replace a selection.

        Raises:
            OptionError: a sample is in the dataset twice, or the dataset is empty or a folder.
            OutputExistsError: ``out`` exists.
            CannotCreateError: it cannot be written.
        """
        positions = self._positions(np.arange(len(self)))
        return selecting.save(self.pack, positions, out, overwrite=overwrite)

    def _positions(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        if self._chosen is None:
            return self.pack.positions(indices)
        wanted = np.asarray(indices, np.int64)
        try:
            chosen: np.ndarray = self._chosen.array[wanted]
        except IndexError:
            size = len(self)
            bad = wanted[(wanted < -size) | (wanted >= size)][0]
            raise IndexError(
                f"index {bad} is out of range: {size} samples of {self.pack.path} are selected; "
                "a sampler must be made of the same selection"
            ) from None
        return chosen

    def _matching(
        self, label: selection.Labels | None, key: selection.Keys | None, meta: Mapping[str, Any]
    ) -> np.ndarray:
        part = selection.Searched(self.pack, self._positions(np.arange(len(self))), label)
        return selection.matching([part], key, meta)[0]

    def _expressed(self, expression: str) -> np.ndarray:
        found = np.zeros(len(self.pack), bool)
        found[expressions.matching(self.pack, expression)] = True
        return found if self._chosen is None else found[self._chosen.array]

    def _tabled(self, wanted: tables.Wanted) -> np.ndarray:
        chosen = None if self._chosen is None else self._chosen.array
        return tables.within_part(wanted.within(self.pack), chosen, self.pack.path)

    @property
    def _name(self) -> object:
        return self.pack.path
