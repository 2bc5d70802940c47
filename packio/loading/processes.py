"""Worker processes that make batches for a loader: torch's DataLoader, one epoch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch

from packio.errors import OptionError


class _Indices:
    """Batches of indices of the running epoch, as torch's DataLoader asks for them."""

    running: Iterator[list[int]] = iter(())

    def __iter__(self) -> Iterator[list[int]]:
        return self.running


class Workers:
    """Worker processes, which torch's DataLoader runs; one epoch at a time."""

    def __init__(self, dataset: Any, *, seed: int | None, base: int, **options: Any) -> None:
        self.seed, self._indices = seed, _Indices()
        self.loader: torch.utils.data.DataLoader[Any] = torch.utils.data.DataLoader(
            dataset, batch_sampler=cast("Any", self._indices),
            generator=torch.Generator().manual_seed(base), **options,
        )  # fmt: skip

    def started(self, batches: Iterator[list[int]]) -> Iterator[Any]:
        """Start the workers; persistent workers are asked for another epoch."""
        self._indices.running = batches
        try:
            return iter(self.loader)
        except Exception as error:
            if not any(sign in repr(error) for sign in ("ickl", "local object")):
                raise
            raise OptionError(
                f"{type(self.loader.dataset).__name__}: cannot be sent to workers that are not "
                f"forked: {error}; define its transforms and collate_fn at the top of a module, "
                "or take num_workers=0"
            ) from error
