"""What becomes of the images of a view once they are made: operations, then floats.

The native core finishes an image while it is in the cache. Where the core does not make the image,
it is finished afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from packio.batches.columns import FieldColumn
from packio.images import floats, native, program, tensors
from packio.images.floats import Normalize
from packio.system.threads import Threads

Shape = Sequence[int]  # of an image, (C, H, W)


class Finish:
    """How the images of a view, of one batch, are finished: without operations, unless derived.

    Attributes:
        dtype: What they become: bytes, or floats.
        programs: The operations of each image, once they are planned.
        is_done: Whether they are finished one by one, as they are made.
    """

    def __init__(self, dtype: torch.dtype, normalize: Normalize | None = None) -> None:
        self.dtype = dtype
        self.programs: list[list[bytes]] = []
        self.is_done = False
        self._normalize = normalize
        self._kept: tuple[Any, ...] = ()  # what the core reads

    def plan(self, _shapes: Sequence[Shape | None]) -> list[list[bytes]]:
        """Plan the operations of each image; None: it is not there. Empty if there are none."""
        return []

    def check(self, images: torch.Tensor) -> None:
        """Check that operations take such images."""

    def begin(self, shape: Sequence[int]) -> np.ndarray:
        """Plan it for a batch of a shape, (N, C, H, W); returns what the core does, (1,) FINISH."""
        self.programs = self.plan([shape[1:]] * shape[0])
        operations, each = program.join(self.programs)
        made = np.zeros(1, native.FINISH)
        if each:
            made["operations"], made["each"] = np.frombuffer(operations, "u1").ctypes.data, each
        self._kept = (operations,)
        if self.dtype.is_floating_point:
            tables = floats.find_tables(self.dtype, self._normalize, shape[1])
            made["tables"], made["constants"] = (table.data_ptr() for table in tables)
            made["size"] = self.dtype.itemsize
            self._kept = operations, *tables
        self.is_done = True
        return made

    def finish_one(self, image: np.ndarray, slot: int, out: torch.Tensor) -> None:
        """Finish an image, (C, H, W) uint8, into its place in the batch."""
        made = torch.from_numpy(image)
        program.run(made[None], self.programs[slot : slot + 1])
        if self.dtype.is_floating_point:
            floats.to_floats(made, self.dtype, self._normalize, out)
        else:
            out.copy_(made)

    def finish(
        self, images: FieldColumn, threads: Threads | None = None, out: torch.Tensor | None = None
    ) -> Any:
        """Finish all images of a view, unless they are; floats go to ``out`` if it is given."""
        if self.is_done:
            return images
        each = images if isinstance(images, list) else [images]
        for one in each:
            if one is not None:
                self.check(one)
        self.programs = self.plan([None if image is None else image.shape for image in images])
        if self.programs and isinstance(images, torch.Tensor):
            program.run(images, self.programs, threads)
        for image, operations in zip(each, self.programs, strict=False):
            if image is not None and isinstance(images, list):
                program.run(image[None], [operations])
        if not self.dtype.is_floating_point:  # beside an image that is normalised
            return images
        if isinstance(images, list):
            return [
                None if image is None else floats.to_floats(image, self.dtype, self._normalize)
                for image in images
            ]
        if out is not None or images.device.type == "cpu":
            out = tensors.ensure_out(tuple(images.shape), self.dtype, out)
        return floats.to_floats(images, self.dtype, self._normalize, out, threads)
