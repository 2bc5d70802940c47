"""A dataset's transform, split: what packio does to a whole batch, and what is called by image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from packio.batches import draws
from packio.batches.framing import Draw
from packio.errors import OptionError, TransformError
from packio.images.floats import Normalize
from packio.ops import program
from packio.ops.erasing import RandomErasing
from packio.ops.reading import ToPillow, read
from packio.ops.transform import Transform, is_own, plan
from packio.system.threads import Threads

_OPERATIONS, _ERASING = 0x6F7073, 0x657261  # so that they draw other numbers than the crops


class Pipeline(NamedTuple):
    """Parts of a transform, in the order in which they are done.

    Attributes:
        transforms: Run by the core on bytes.
        normalize: Makes floats of them.
        erasing: Changes those.
        rest: Called with each image.
    """

    transforms: tuple[Transform, ...] = ()
    normalize: Normalize | None = None
    erasing: tuple[RandomErasing, ...] = ()
    rest: tuple[Callable[[Any], Any], ...] = ()

    @property
    def is_random(self) -> bool:
        return bool(self.erasing or any(one.draws for one in self.transforms))

    @property
    def takes_pillow(self) -> bool:
        """Whether the rest begins with Pillow's image."""
        return bool(self.rest) and isinstance(self.rest[0], ToPillow)

    def operate(
        self, images: Any, draw: Draw, view: int, threads: Threads | None = None,
        where: Callable[[int], str] = "image {}".format,
    ) -> list[list[bytes]]:  # fmt: skip
        """Run the transforms on the images of a view, in place: (N, C, H, W) uint8, or a list.

        Returns what was done to each image. An error begins with ``where`` of its image.
        """
        if not self.transforms or not len(images):
            return []
        programs, is_batch = list[list[bytes]](), isinstance(images, torch.Tensor)
        for slot, u in enumerate(_numbers(self.transforms, _OPERATIONS, draw, view)):
            image = images if is_batch else images[slot]  # those of a batch are alike
            try:
                if image is not None and (slot == 0 or not is_batch):
                    program.check_images(image, f"transform={self.transforms[0]}")
                shape = () if image is None else image.shape[-3:]
                programs.append(plan(self.transforms, u, *shape) if shape else [])
            except (OptionError, TransformError) as error:
                raise TransformError(f"{where(slot)}: {error}") from error
        if is_batch:
            program.run(images, programs, threads)
            return programs
        for image, own in zip(images, programs, strict=True):
            if image is not None:
                program.run(image[None], [own])
        return programs

    def erase(self, images: Any, draw: Draw, view: int) -> None:
        """Erase boxes of the images of a view, in place."""
        if not self.erasing:
            return
        for image, u in zip(images, _numbers(self.erasing, _ERASING, draw, view), strict=True):
            at = 0
            for one in self.erasing if image is not None else ():
                one.erase(image, u[at : at + one.draws])
                at += one.draws


def _numbers(transforms: Sequence[Any], purpose: int, draw: Draw, view: int) -> list[list[float]]:
    """Random numbers of each image, those of all transforms in a row."""
    columns = [
        draws.uniforms(draws.mix(draw.key, purpose, number, first), draw.lanes, view,
                       min(one.draws - first, draws.LANE))
        for number, one in enumerate(transforms) for first in range(0, one.draws, draws.LANE)
    ]  # fmt: skip
    if not columns:
        return [[] for _ in draw.lanes]
    numbers: list[list[float]] = np.concatenate(columns, axis=1).tolist()
    return numbers


def split(transform: Any, *, output: str = "tensor", is_last: bool = True) -> Pipeline:
    """Split a transform, or a list of them; a class derived from one of packio's may do more.

    Args:
        transform: As a dataset gets it.
        output: What the rest is called with; floats are tensors.
        is_last: Whether nothing else is done to a sample before it.
    """
    is_tensor = output == "tensor"
    reading = read(transform, frames=False) if is_tensor else None
    if reading is not None:
        transform = reading.steps
    given = list(transform) if isinstance(transform, (list, tuple)) else [transform]
    left = [one for one in given if one is not None]
    transforms: list[Transform] = []
    erasing: list[RandomErasing] = []
    normalize = None
    while is_last and left and is_own(left[0]):
        transforms.append(left.pop(0))
    if is_last and is_tensor and left and type(left[0]) is Normalize:
        normalize = left.pop(0)
    while is_last and is_tensor and left and type(left[0]) is RandomErasing:
        erasing.append(left.pop(0))
    if normalize is not None and any(type(one) is Normalize for one in left):
        raise TransformError("transform= has Normalize twice: images would be normalised twice")
    return Pipeline(tuple(transforms), normalize, tuple(erasing), tuple(left))
