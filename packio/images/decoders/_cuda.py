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
    """The device with its number: "cuda" alone is another one in each thread."""
    import torch

    return device if str(device) != "cuda" else torch.device("cuda", torch.cuda.current_device())


@contextlib.contextmanager
def side_stream(device: torch.device) -> Iterator[torch.device]:
    """Work on a stream that nobody else uses, in one thread at a time; done when this is left.

    What comes out of it may be used on any stream; who does so has to ``record_stream``, as with
    all memory of another stream. On the CPU there are no streams, and nothing is to be kept apart.

    Args:
        device: Where; the context is this device, with its number.
    """
    import torch

    device = numbered(device)
    if device.type != "cuda":
        yield device
        return
    # Memory that is freed on a stream is handed out again on that stream at once, since kernels run
    # there in order. nvJPEG's hardware does not wait its turn (`packio.images.decoders.nvjpeg`):
    # between
    # its look at the stream and its writing, no one else may queue work there or free memory.
    with _LOCK, torch.cuda.stream(_stream(device)):
        try:
            yield device
        finally:
            _stream(device).synchronize()


@functools.cache  # CUDA does not survive a fork, so neither has this to
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One a device: of high priority, as PyTorch lends streams out again after the 32nd of a kind.

    Those of usual priority are everybody's, `packio.DevicePrefetcher`'s and torchvision's too.
    """
    import torch

    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]  # torch's own
