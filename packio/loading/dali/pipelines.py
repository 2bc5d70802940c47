"""DALI's pipelines: from encoded images and their boxes to batches of one size, in torch's tensors.

A pipeline decodes only the part that a crop needs, resizes with antialiasing, cuts or pads with
black, and mirrors. JPEGs are decoded with smooth ("fancy") chroma upsampling, which is the default
of libjpeg and Pillow, but not of DALI on a GPU.

Source: DALI 2.4, operators reference (``fn.decoders.image_slice``,
``fn.external_source``, ``fn.resize``, ``fn.slice``).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from packio import registry
from packio.errors import DecodeError, OptionError
from packio.images.geometry import Geometry
from packio.loading.dali.feeding import Fed
from packio.loading.devices import Preparation

_AHEAD = 2  # batches that DALI works on at a time
_INTERPOLATIONS = {"bilinear": "INTERP_LINEAR", "bicubic": "INTERP_CUBIC"}


def import_dali(module: str = "") -> ModuleType:
    """Import a module of DALI's, as ".fn"."""
    return registry.require(f"nvidia.dali{module}", "dali")


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a loader that its pipelines are made with."""

    batch_size: int
    threads: int
    gpu: int | None  # number of the GPU; None decodes on the processor
    crop: Geometry
    upright: bool
    channels_last: bool  # whether pixels come as (N, H, W, C) instead of (N, C, H, W)
    hw_decoder_load: float | None  # share of the JPEGs for the GPU's engine; None: DALI's default

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


def build(options: Options, source: Callable[[], tuple[Any, Any]]) -> Any:
    """Build a pipeline that gets encoded images and their places from packio.

    The source returns the data and the places of the next batch, see `Fed`, or raises
    StopIteration. The data must not change until the batch comes out.
    """
    fn, types = import_dali(".fn"), import_dali(".types")
    decoding: dict[str, Any] = {
        "device": "cpu" if options.gpu is None else "mixed",
        "jpeg_fancy_upsampling": True,
        "adjust_orientation": options.upright,
    }
    if options.hw_decoder_load is not None:
        decoding["hw_decoder_load"] = options.hw_decoder_load
    interpolation = _INTERPOLATIONS.get(options.crop.interpolation, "INTERP_LINEAR")
    pipeline = import_dali().Pipeline(
        batch_size=options.batch_size, num_threads=options.threads, device_id=options.gpu,
        prefetch_queue_depth=_AHEAD,
    )  # fmt: skip
    with pipeline:
        encoded, place = fn.external_source(
            source=source, num_outputs=2, batch=True, no_copy=True, ndim=[1, 1],
            dtype=[types.UINT8, types.INT32],
        )  # fmt: skip
        images = fn.decoders.image_slice(
            encoded, start=place[0:2], shape=place[2:4], axis_names="HW", **decoding
        )
        images = fn.resize(
            images, size=fn.cast(place[4:6], dtype=types.FLOAT), antialias=True,
            interp_type=getattr(types, interpolation),
        )  # fmt: skip
        images = fn.slice(
            images, start=place[6:8], shape=place[8:10], axis_names="HW",
            out_of_bounds_policy="pad", fill_values=0,
        )  # fmt: skip
        images = fn.flip(images, horizontal=place[10], vertical=place[11])
        if not options.channels_last:
            images = fn.transpose(images, perm=[2, 0, 1])
        pipeline.set_outputs(images)
    pipeline.build()
    return pipeline


class _Feed:
    """Source of a pipeline's batches, without a reference to the pipeline: no cycle."""

    def __init__(self) -> None:
        self.source: Iterator[Fed] = iter(())
        self.waiting: deque[Fed] = deque()  # in DALI, which reads their bytes in place
        self.error: Exception | None = None  # the error that ended the source

    def __call__(self) -> tuple[Any, Any]:
        try:
            batch = next(self.source)
        except StopIteration:
            raise
        except Exception as error:
            self.error = error  # raised after the batches before it have come out
            raise StopIteration from error
        self.waiting.append(batch)
        return batch.data, batch.places

    def rest(self, settle: Callable[[list[int]], Fed]) -> Iterator[Fed]:
        """Yield the batches in DALI, the first doubtful one settled; then the source's."""
        for number, batch in enumerate(self.waiting):
            if not batch.settled:
                yield settle(batch.indices)
                yield from itertools.islice(self.waiting, number + 1, None)
                break
            yield batch
        if self.error is not None:
            raise self.error
        yield from self.source


class Runner:
    """Sends batches through a pipeline, one epoch after the other.

    After an error a pipeline of DALI does not work any more. The runner then builds another one.
    packio decodes the batch that failed, which finds the bad sample, and all batches that were in
    the old pipeline go into the new one.
    """

    def __init__(self, options: Options, settle: Callable[[list[int]], Fed]) -> None:
        self._options, self._settle = options, settle
        self._idle: tuple[Any, _Feed] | None = None

    def close(self) -> None:
        """Drop the pipeline; `run` builds another one."""
        self._idle = None

    def run(self, batches: Iterator[Fed]) -> Iterator[tuple[Fed, Any]]:
        """Send batches through; yield each batch with its images, as DALI has them."""
        pipeline, feed = self._idle or self._new()
        self._idle = None
        feed.source = batches
        try:
            while True:
                try:
                    (images,) = pipeline.run()
                except StopIteration:
                    break
                except RuntimeError as error:  # all that DALI raises
                    if all(batch.settled for batch in feed.waiting):
                        raise DecodeError(f"DALI: {_shorten(error)}") from error
                    pipeline, failed = None, feed
                    pipeline, feed = self._new()
                    feed.source = failed.rest(self._settle)
                    continue
                yield feed.waiting.popleft(), images
                del images
            if feed.error is not None:
                raise feed.error
            pipeline.reset()
            self._idle = pipeline, feed
        finally:
            pipeline = None  # DALI reads the batches' bytes: it must end before they are freed

    def _new(self) -> tuple[Any, _Feed]:
        feed = _Feed()
        return build(self._options, feed), feed


def _shorten(error: RuntimeError) -> str:
    """The message of an error of DALI, without the stack trace."""
    lines = str(error).partition("encountered:")[2] or str(error)
    return " ".join(line.strip() for line in lines.splitlines() if "no longer valid" not in line)


class Handover:
    """Turns DALI's batches into tensors that later batches do not change.

    On the processor nothing is copied: DALI makes each batch in new memory. On a GPU the batch is
    copied, on a stream of its own: once the tensor is freed, DALI uses the memory again without
    waiting for work on streams that DALI does not know.
    """

    def __init__(self, device: torch.device, prepare: Preparation, *, channels_last: bool) -> None:
        self._device, self._prepare, self._last = device, prepare, channels_last
        self._stream: Any = None  # a torch.cuda.Stream, once there is one

    def __call__(self, size: int, images: Any, labels: torch.Tensor | None) -> Any:
        """Return the first images of a batch, (size, C, H, W), and labels if there are any."""
        if self._device.type == "cpu":
            made = self._prepared(size, images)
            return (made,) if labels is None else (made, labels)
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # torch's own
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            made = self._prepared(size, images).clone()
            made.record_stream(current)
        self._stream.synchronize()
        return (made,) if labels is None else (made, labels.to(self._device))

    def _prepared(self, size: int, images: Any) -> torch.Tensor:
        made = torch.utils.dlpack.from_dlpack(images.as_tensor())[:size]
        return self._prepare(made.permute(0, 3, 1, 2) if self._last else made)
