"""Say what each step of a transform costs, and who does it: packio's core, or Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from packio.batches.framing import Draw
from packio.datasets.fields import convert
from packio.datasets.transforms import apply_transform
from packio.images.floats import Normalize, to_floats
from packio.ops.pipeline import Pipeline
from packio.ops.reading import ToPillow, lacks_tensors
from packio.sample.record import IMAGE

if TYPE_CHECKING:
    from packio.datasets.dataset import Dataset

_ROUNDS = 3  # of which the fastest counts
_LONGEST = 90  # characters of a step


def explain(views: Sequence[tuple[str, Dataset, Pipeline, torch.dtype]], output: str) -> str:
    """Measure each step for the samples of a dataset, in one thread: a table as text.

    Args:
        views: Of each view: what its crop and flips are called, the samples to measure with,
            without transforms, the pipeline, and the type of the images.
        output: What functions are called with: see `packio.PackDataset`.
    """
    count = len(views[0][1])
    shares = "; in a batch views share a decode" if len(views) > 1 else ""
    lines = [f"µs an image, in one thread, mean of {count}{shares}"]
    for number, (name, plain, pipeline, dtype) in enumerate(views):
        if len(views) > 1:
            lines.append(f"view {number}")
        images, took = _measure(partial(plain.gather, range(count)), count)
        lines.append(_line(took, "packio, while decoding", name))
        lines += _explain_pipeline(pipeline, dtype, images, number, output)
    return "\n".join(lines)


def _line(microseconds: float, by: str, name: str) -> str:
    words = " ".join(name.split())
    shown = words if len(words) <= _LONGEST else words[: _LONGEST - 1] + "…"
    return f"{microseconds:8.0f}  {by:25}  {shown}"


def _explain_pipeline(
    pipeline: Pipeline, dtype: torch.dtype, images: Any, view: int, output: str
) -> Iterator[str]:
    """Name each step, who does it, and microseconds."""
    draw, count = Draw(1, np.arange(len(images))), len(images)
    for one in pipeline.transforms:
        alone = Pipeline((one,))
        copies = [_copy(images) for _ in range(_ROUNDS)]
        _, took = _measure(partial(_operate, alone, copies, draw, view), count)
        yield _line(took, "packio, for a batch", repr(one))
        alone.operate(images, draw, view)
    if dtype.is_floating_point:
        normalize = pipeline.normalize
        images, took = _measure(partial(_make_floats, images, dtype, normalize), count)
        is_normal = normalize is not None and not normalize.only_scales
        name = repr(normalize) if is_normal else "floats of 0..1"
        yield _line(took, "packio, for a batch", f"{dtype}: {name}")
    if pipeline.erasing:
        erase = Pipeline(erasing=pipeline.erasing)
        _, took = _measure(partial(erase.erase, images, draw, view), count)
        yield _line(took, "packio, for a batch", ", ".join(map(repr, pipeline.erasing)))
    each = [convert("image", image, output) for image in images]
    for function in pipeline.rest:
        each, took = _measure(partial(_call, function, each), count)
        by = "packio, for your function" if isinstance(function, ToPillow) else "called by image"
        why = "no step makes a tensor, so packio calls it: " if lacks_tensors(function) else ""
        yield _line(took, by, why + (getattr(function, "__qualname__", None) or repr(function)))


def _make_floats(images: Any, dtype: torch.dtype, normalize: Normalize | None) -> Any:
    if isinstance(images, torch.Tensor):
        return to_floats(images, dtype, normalize)
    return [to_floats(image, dtype, normalize) for image in images]


def _operate(pipeline: Pipeline, copies: list[Any], draw: Draw, view: int) -> None:
    pipeline.operate(copies.pop(), draw, view)


def _call(function: Callable[[Any], Any], images: list[Any]) -> list[Any]:
    return [apply_transform(function, {IMAGE: image})[0] for image in images]


def _copy(images: Any) -> Any:
    if isinstance(images, torch.Tensor):
        return images.clone()
    return [image.clone() for image in images]


def _measure(function: Callable[[], Any], count: int) -> tuple[Any, float]:
    """What a function returns, and its microseconds an image: the least of some rounds."""
    times = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - begin)
    return result, min(times) / count * 1e6
