"""DALI's graphs: from encoded images and their boxes to batches of one size.

A graph decodes only the part that a crop needs, resizes with antialiasing, cuts or pads with black,
and mirrors. JPEGs are decoded with smooth ("fancy") chroma upsampling, which is the default of
libjpeg and Pillow, but not of DALI on a GPU.

Source: DALI 2.4, operators reference (``fn.decoders.image_slice``,
``fn.external_source``, ``fn.resize``, ``fn.slice``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

from packio import registry
from packio.errors import OptionError
from packio.images.geometry import Geometry

AHEAD = 2  # batches that DALI works on at a time
PLACE = 12  # numbers in the place of a sample, see `fed`
_INTERPOLATIONS = {"bilinear": "INTERP_LINEAR", "bicubic": "INTERP_CUBIC"}


def module(name: str) -> ModuleType:
    """Import a module of DALI's."""
    return registry.require(f"nvidia.dali{name}", "dali")


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a loader that its graph is made with.

    Attributes:
        gpu: Number of the GPU; None decodes on the processor.
        channels_last: Whether pixels come as (N, H, W, C) instead of (N, C, H, W).
        hw_decoder_load: Share of the JPEGs for the GPU's JPEG engine; None takes DALI's default.
    """

    batch_size: int
    threads: int
    gpu: int | None
    crop: Geometry
    hflip: float
    vflip: float
    upright: bool
    channels_last: bool
    hw_decoder_load: float | None

    def __post_init__(self) -> None:
        if self.crop.output_size is None:
            raise OptionError(f"crop={self.crop}: DALI's batches have one size; give both sides")
        frame = self.crop.frame(1009, 997, [0.5] * self.crop.draws)
        resized = frame[2:4] != frame[4:6]
        if resized and self.crop.interpolation not in _INTERPOLATIONS:
            raise OptionError(
                f"interpolation={self.crop.interpolation!r}: with DALI one of "
                f"{', '.join(_INTERPOLATIONS)}"
            )

    def pipeline(self, outputs: Callable[[], tuple[Any, ...]]) -> Any:
        """Build a pipeline of the graph that a function makes, and whose outputs it returns."""
        pipeline = module("").Pipeline(
            batch_size=self.batch_size, num_threads=self.threads, device_id=self.gpu,
            prefetch_queue_depth=AHEAD,
        )  # fmt: skip
        with pipeline:
            pipeline.set_outputs(*outputs())
        pipeline.build()
        return pipeline

    def decoder(self) -> dict[str, Any]:
        """Arguments that all image decoders of DALI take."""
        arguments: dict[str, Any] = {
            "device": "cpu" if self.gpu is None else "mixed",
            "jpeg_fancy_upsampling": True,
            "adjust_orientation": self.upright,
        }
        if self.hw_decoder_load is not None:
            arguments["hw_decoder_load"] = self.hw_decoder_load
        return arguments

    def resized(self, images: Any, **size: Any) -> Any:
        """Resize images, with antialiasing."""
        name = _INTERPOLATIONS.get(self.crop.interpolation, "INTERP_LINEAR")
        how = getattr(module(".types"), name)
        return module(".fn").resize(images, interp_type=how, antialias=True, **size)

    def mirrored(self, images: Any, hflip: Any, vflip: Any) -> Any:
        """Mirror images where the ints are 1, and bring the axes into the order of the options."""
        fn = module(".fn")
        images = fn.flip(images, horizontal=hflip, vertical=vflip)
        return images if self.channels_last else fn.transpose(images, perm=[2, 0, 1])


def fed(options: Options, source: Callable[[], tuple[Any, Any]]) -> Any:
    """Build a pipeline that gets encoded images and their places from packio.

    Args:
        source: Returns the next batch, or raises StopIteration. A batch is a list of N uint8 arrays
            and an (N, 12) int32 array. The arrays are the encoded images, which must not change
            until the batch comes out. The 12 numbers are the place of an image: top, left, height
            and width of the box in the upright image; height and width of the resized box; top,
            left, height and width of the output in the resized box, with black beyond the edges; 1
            to mirror the output left-right; 1 to mirror the output top-bottom.
    """
    fn, types = module(".fn"), module(".types")

    def outputs() -> tuple[Any]:
        encoded, place = fn.external_source(
            source=source, num_outputs=2, batch=True, no_copy=True, ndim=[1, 1],
            dtype=[types.UINT8, types.INT32],
        )  # fmt: skip
        images = fn.decoders.image_slice(
            encoded, start=place[0:2], shape=place[2:4], axis_names="HW", **options.decoder()
        )
        images = options.resized(images, size=fn.cast(place[4:6], dtype=types.FLOAT))
        images = fn.slice(
            images, start=place[6:8], shape=place[8:10], axis_names="HW",
            out_of_bounds_policy="pad", fill_values=0,
        )  # fmt: skip
        return (options.mirrored(images, place[10], place[11]),)

    return options.pipeline(outputs)
