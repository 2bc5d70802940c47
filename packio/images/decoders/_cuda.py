"""The stream on which packio decodes on a GPU."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_LOCK = threading.RLock()  # a transform may decode, too


def numbered(device: torch.device) -> torch.device:
    """Give a device its number: "cuda" alone means another device in each thread."""
    import torch

    return device if str(device) != "cuda" else torch.device("cuda", torch.cuda.current_device())


@contextlib.contextmanager
def side_stream(device: torch.device) -> Iterator[torch.device]:
    """Work on a CUDA stream of packio's own, one thread at a time.

    The context is the device with its number. At the end, all work on the stream is complete. A
    tensor made there may be used on any stream, after ``record_stream``, as PyTorch demands of
    memory of another stream. On the CPU there are no streams, and the context does nothing.

    Args:
        device: The device to work on.
    """
    import torch

    device = numbered(device)
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
    """Make the stream of a device, with high priority.

    PyTorch has 32 streams of each priority and hands them out in turn. Those of normal priority are
    shared with everybody, `packio.DevicePrefetcher` and torchvision included.
    """
    import torch

    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]  # torch's own
