"""Contiguous tensors: (H, W, C) → (C, H, W), and finding and mending what is not contiguous.

Transposed views take three times as long to be stacked into a batch, and twelve times to be copied
(`packio bench-memory-format`). All tensors that packio returns are contiguous.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch

from packio.system import buffers


def to_planes(
    pixels: np.ndarray, out: np.ndarray, *, hflip: bool = False, vflip: bool = False
) -> None:
    """Copy (H, W, C) pixels of any strides into contiguous (C, H, W) planes, perhaps mirrored."""
    # OpenCV takes 11 µs for 224 x 224, NumPy 47 µs; used only if somebody has imported it
    cv2 = sys.modules.get("cv2")
    split = cv2 and getattr(cv2, "split", None)
    flip = cv2 and getattr(cv2, "flip", None)
    if split and flip and len(out) in (3, 4) and pixels.strides[1:] == (len(out), 1):
        split(pixels, list(out))
        if hflip:
            rows = out.reshape(-1, out.shape[2])  # of all planes
            flip(rows, 1, rows)
        if vflip:
            for plane in out:
                flip(plane, 0, plane)
    else:
        if hflip or vflip:
            out = mirror(out, hflip=hflip, vflip=vflip)
        out[...] = pixels.transpose(2, 0, 1)


def to_pixels(planes: np.ndarray) -> np.ndarray:
    """Copy (C, H, W) planes to (H, W, C) pixels, in a fifth of the time of a transposed copy."""
    pixels = np.empty((*planes.shape[1:], len(planes)), planes.dtype)
    for channel, plane in enumerate(planes):
        pixels[:, :, channel] = plane
    return pixels


def mirror(planes: np.ndarray, *, hflip: bool, vflip: bool) -> np.ndarray:
    """A view of (C, H, W) planes, mirrored left-right, top-bottom."""
    return planes[:, :: -1 if vflip else 1, :: -1 if hflip else 1]


_PINNED = threading.local()


@contextlib.contextmanager
def pin_batches(*, on: bool) -> Iterator[None]:
    """Make batches of this thread in pinned memory meanwhile: a GPU copies faster from there."""
    _PINNED.on = on
    try:
        yield
    finally:
        _PINNED.on = False


def new_batch(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Make an uninitialised contiguous tensor, in memory that a batch had before; see `buffers`.

    In a worker it is in shared memory, and not copied again.
    """
    if getattr(_PINNED, "on", False):
        with contextlib.suppress(RuntimeError):  # there is none; `pin` will say so
            return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)
    is_shared = torch.utils.data.get_worker_info() is not None
    return buffers.new_tensor(shape, dtype, is_shared=is_shared)


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """Move a tensor of the processor to pinned memory; warn if there is none."""
    if tensor.device.type != "cpu":
        return tensor
    try:
        return tensor.pin_memory()
    except RuntimeError as error:  # torch's own, whatever the reason
        warnings.warn(
            f"batches stay out of pinned memory: {str(error).splitlines()[0]}; "
            "copies to a GPU will be slower, and will wait",
            RuntimeWarning,
            stacklevel=2,
        )
        return tensor


def is_contiguous_batch(batch: Any) -> bool:
    """Tell whether all tensors in a batch are contiguous.

    Args:
        batch: A tensor, or nested tuples, lists and mappings of tensors; other values do not
            matter.
    """
    if isinstance(batch, torch.Tensor):
        return batch.is_contiguous()
    if isinstance(batch, Mapping):
        return all(is_contiguous_batch(v) for v in batch.values())
    if isinstance(batch, (tuple, list)):
        return all(is_contiguous_batch(v) for v in batch)
    return True


def ensure_contiguous(batch: Any) -> Any:
    """Return the batch with every tensor contiguous; contiguous tensors are not copied.

    Args:
        batch: A tensor, or tuples (named ones too), lists and mappings of such, nested.
    """
    return batch if is_contiguous_batch(batch) else map_tensors(batch, torch.Tensor.contiguous)


def map_tensors(batch: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """The same batch, with each tensor in it replaced by what a function makes of it."""
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        made = {k: map_tensors(v, function) for k, v in batch.items()}
        return _of_type(batch, made)
    if not isinstance(batch, (tuple, list)):
        return batch
    values = [map_tensors(v, function) for v in batch]
    if hasattr(batch, "_fields"):
        return cast("Any", type(batch))(*values)
    return _of_type(batch, values)


def _of_type(batch: Any, values: Any) -> Any:
    """A batch of the same class with other values; a plain one if the class is made otherwise."""
    if type(batch) is type(values):
        return values
    try:
        return cast("Any", type(batch))(values)
    except TypeError:  # as torch's default_convert and pin_memory do
        return values
