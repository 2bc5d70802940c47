"""Images that are tensors of a device, (C, H, W): turned, cut, resized, mirrored there.

Values are computed as float32, as torchvision v2 does on a GPU, which has no kernels for uint8.
They are within 1 grey level of the values that `packio.images.pixels` computes.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator

import torch

from packio.images import pixels
from packio.images.frames import Frame, turns

MOST = 32  # times smaller; CUDA's antialiasing has memory for about 45 (bicubic), 90 (bilinear)
_LOCK = threading.RLock()  # a transform may decode, too


def orient(planes: torch.Tensor, orientation: int) -> torch.Tensor:
    """Turn (C, H, W) pixels as stored upright; perhaps a view of them."""
    swapped, across, upside_down = turns(orientation)
    if swapped:
        planes = planes.transpose(1, 2)
    return _mirrored(planes, hflip=across, vflip=upside_down)


def _mirrored(planes: torch.Tensor, *, hflip: bool, vflip: bool) -> torch.Tensor:
    axes = [axis for axis, on in ((1, vflip), (2, hflip)) if on]
    return planes.flip(axes) if axes else planes


def is_for_device(frame: Frame) -> bool:
    """Tell whether a GPU has the memory to shrink an image by that much with antialiasing."""
    return frame.height <= MOST * frame.to_height and frame.width <= MOST * frame.to_width


def render(
    planes: torch.Tensor, frame: Frame, out: torch.Tensor, *, hflip: bool, vflip: bool, how: str
) -> None:
    """Write one frame of an image: (C, height, width) uint8, upright, the box of the frame alone.

    ``out`` is (C, out_height, out_width) float32 of the same device, contiguous, zeros. It gets
    values of 0..255, which `round_to_uint8` turns into uint8.
    """
    f = frame
    fills = f.out_top == f.out_left == 0 and f[4:6] == f[8:10]
    if not f.resizes:
        _place(planes, f, out)
    elif fills:
        _resize(planes, out, how, pixels.scales_of(f))
    else:
        small = out.new_empty((out.shape[0], f.to_height, f.to_width))
        _resize(planes, small, how, pixels.scales_of(f))
        _place(small, f, out)
    if hflip or vflip:
        out.copy_(_mirrored(out, hflip=hflip, vflip=vflip))


def round_to_uint8(values: torch.Tensor) -> torch.Tensor:
    """Turn float values into uint8; changes the values given."""
    return values.round_().clamp_(0, 255).to(torch.uint8)


def _place(planes: torch.Tensor, frame: Frame, out: torch.Tensor) -> None:
    """Put pixels where the frame has them; the rest of ``out`` is black already."""
    f = frame
    top, left = max(f.out_top, 0), max(f.out_left, 0)
    bottom, right = max(f.out_top + f.out_height, 0), max(f.out_left + f.out_width, 0)
    inner = planes[:, top:bottom, left:right]
    y, x = top - f.out_top, left - f.out_left
    out[:, y : y + inner.shape[1], x : x + inner.shape[2]].copy_(inner)


def _resize(planes: torch.Tensor, out: torch.Tensor, how: str, scales: pixels.Scales) -> None:
    """Resize (C, h, w) uint8 planes of any device into ``out`` (C, H, W) float32, not rounded."""
    batch = planes.unsqueeze(0).to(torch.float32, memory_format=torch.contiguous_format)
    size = [out.shape[1], out.shape[2]]
    kernel, (rows, columns) = pixels.find_antialias_kernel(how), scales
    if kernel is None:
        out.copy_(pixels.resize_as_float(batch, size, how, (rows, columns))[0])
        return
    if how == "bicubic":  # its values leave 0..255; in bytes they cannot between the two passes
        batch = kernel(batch, [batch.shape[2], size[1]], False, None, columns).clamp_(0, 255)
        columns = None
    kernel(batch, size, False, rows, columns, out=out.unsqueeze(0))  # align_corners


def resolve_device(device: torch.device) -> torch.device:
    """Give a device its number: "cuda" alone means another device in each thread."""
    return device if str(device) != "cuda" else torch.device("cuda", torch.cuda.current_device())


@contextlib.contextmanager
def side_stream(device: torch.device) -> Iterator[torch.device]:
    """Work on a CUDA stream of packio's own, one thread at a time; on the CPU nothing happens.

    The context is the device with its number. At the end, all work on the stream is complete. A
    tensor made there may be used on any stream, after ``record_stream``.
    """
    device = resolve_device(device)
    if device.type != "cuda":
        yield device
        return
    # PyTorch reuses memory that was freed on a stream at once, since kernels run there in order.
    # nvJPEG's hardware does not wait its turn (`packio.images.decoders.nvjpeg`). So while it
    # decodes, nobody else may queue work on this stream or free memory of it.
    with _LOCK, torch.cuda.stream(_stream(device)):
        try:
            yield device
        finally:
            _stream(device).synchronize()


@functools.cache  # CUDA does not survive a fork, so this need not either
def _stream(device: torch.device) -> torch.cuda.Stream:
    # PyTorch hands out 32 streams of each priority in turn: others share those of normal priority.
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]  # torch's own
