"""nvJPEG: NVIDIA's JPEG decoder on the GPU, through torchvision.

``packio.Loader(dataset, device="cuda")`` with ``num_workers=0`` decodes all JPEGs of a batch by one
call, and they stay on the GPU. Anywhere else (``dataset[i]``, a `packio.ConcatPacks`, a loader with
a collate_fn), each JPEG is decoded alone on the calling thread's current GPU and copied back. That
is correct, but slow.

It repeats chroma where libjpeg-turbo and Pillow interpolate; on an H200, with CUDA 13, all else was
equal. ``packio bench-decode --decoder nvjpeg`` measures by how much. It may not report damaged
data: packing and a pack's checksums detect damage.

Source: torchvision 0.28, ``torchvision.io.decode_jpeg`` (device="cuda": libnvjpeg, batched).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from packio import registry
from packio.errors import DecodeError, MissingPackageError, OptionError
from packio.images import devices
from packio.images.decoders._plain import check_gray, plain_ycbcr

if TYPE_CHECKING:
    import numpy as np
    import torch

PACKAGE = "torchvision"
EXTRA = "nvjpeg"
ENCODINGS = frozenset({"jpeg"})
MODES = frozenset({"RGB", "GRAY"})
EXACT = False
decode_fast = None


@functools.cache  # a module: the same in every process
def _library() -> Any:
    import torch

    library = registry.require("torchvision.io", EXTRA)
    if not hasattr(torch.ops.image, "decode_jpegs_cuda"):
        raise MissingPackageError(
            f"torchvision's compiled part does not load beside PyTorch {torch.__version__}; try "
            "the version that goes with it: pip install 'packio[nvjpeg]'"
        )
    return library


def version() -> str:
    import torch

    if not torch.cuda.is_available():
        raise MissingPackageError(
            f"nvjpeg: PyTorch {torch.__version__} finds no GPU here; where there is one, try: "
            "pip install 'packio[nvjpeg]', beside a PyTorch built for CUDA"
        )
    _library()
    return str(registry.require(PACKAGE, EXTRA).__version__)


def decode(data: bytes, mode: str = "RGB") -> np.ndarray:
    """Decode a plain JPEG on the GPU, and copy it back; see `DecoderPlugin.decode`."""
    import torch

    if torch.utils.data.get_worker_info() is not None:  # CUDA does not survive the fork
        raise OptionError(
            "decoder='nvjpeg' decodes in the main process only: expected num_workers=0, as "
            "packio.Loader has it"
        )
    height, width = size(data, mode)
    with devices.side_stream(torch.device("cuda")) as device:
        (planes,) = decode_batch([bytearray(data)], mode, device)
        if planes.shape[1:] != (height, width):
            raise DecodeError(f"nvjpeg: {tuple(planes.shape)}, expected {height} x {width} pixels")
        pixels: np.ndarray = planes.permute(1, 2, 0).contiguous().cpu().numpy()
    return pixels


def size(data: bytes, mode: str) -> tuple[int, int]:
    """Read (height, width) of a plain JPEG: gray or YCbCr, baseline or progressive, complete."""
    height, width, components = plain_ycbcr(data)
    check_gray(mode, is_gray=components == 1)
    return height, width


def decode_batch(datas: Sequence[bytearray], mode: str, device: torch.device) -> list[torch.Tensor]:
    """Decode plain JPEGs by one call on a GPU; see `DecoderPlugin.decode_batch`."""
    if device.type != "cuda":
        raise OptionError(f"decoder='nvjpeg' decodes on a GPU; device={str(device)!r}")
    return _decoded(datas, mode, device)


def _decoded(datas: Sequence[bytearray], mode: str, device: torch.device) -> list[torch.Tensor]:
    """Call the library; on the CPU as well, for tests."""
    import torch

    library = _library()
    encoded = [torch.frombuffer(data, dtype=torch.uint8) for data in datas]
    # nvJPEG's hardware writes without waiting for its stream, and torchvision's decoder uses
    # another stream than ours. So it could overwrite freed memory that earlier kernels of our
    # stream still read. Wait for these kernels first.
    # Source: torchcodec's pull request 1634, torchvision's 9606.
    _drain(device)
    try:
        planes: list[torch.Tensor] = library.decode_jpeg(
            encoded, mode=library.ImageReadMode[mode], device=device
        )
    except RuntimeError as error:
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # work that has begun writes into freed memory
        if "out of memory" in str(error):
            raise
        reason = str(error).splitlines()[0]
        if "not compiled" in reason:
            raise MissingPackageError(
                f"torchvision: {reason}; try: pip install 'packio[nvjpeg]' from PyPI, or PyTorch's "
                "index for CUDA"
            ) from error
        raise DecodeError(f"nvjpeg: {reason}") from error
    _drain(device)
    return planes


def _drain(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
