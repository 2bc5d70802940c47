"""What is handed out: the type and the form asked for, single or as a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from packio import batches
from packio.options import FLOATS


def scaled(view: Any, dtype: torch.dtype, out: torch.Tensor | None = None) -> Any:
    """Scale integer images to 0..1 in a float type; floating-point ones are only converted.

    Args:
        view: A tensor, or a list of them.
        dtype: That the dataset gives; nothing is done for one that is no float type.
        out: Where a single tensor's values go.
    """
    if dtype not in FLOATS:
        return view
    if isinstance(view, list):
        return [scaled(image, dtype) for image in view]
    if view.dtype.is_floating_point and out is None:
        return view.to(dtype)
    out = batches.given_or_new(tuple(view.shape), dtype, out)
    if view.dtype.is_floating_point:
        return out.copy_(view)
    limit = 255.0 if view.dtype == torch.uint8 else 65535.0
    if dtype == torch.float32:
        return torch.div(view, limit, out=out)
    return out.copy_(view.to(torch.float32).div_(limit))


def values(field: str, column: torch.Tensor | Sequence[torch.Tensor], output: str) -> list[Any]:
    """The values of one view's column, one a sample, in the form asked for.

    Args:
        field: "image", "mask", "boxes" or "box_labels".
        column: (N, …), or N tensors.
        output: "tensor", "numpy" or "pil"; boxes are no images, and under "pil" arrays.
    """
    each = list(column.unbind(0) if isinstance(column, torch.Tensor) else column)
    if output == "tensor":
        return each
    arrays = [tensor.numpy() for tensor in each]
    if field == "image":
        arrays = [np.ascontiguousarray(a.transpose(1, 2, 0)) for a in arrays]
    if output == "numpy" or field not in ("image", "mask"):
        return arrays
    from PIL import Image

    return [Image.fromarray(a[:, :, 0] if a.shape[2:] == (1,) else a) for a in arrays]


def batched(field: str, column: Sequence[Any]) -> Any:
    """What `packio.collate` makes of the values of a field, or of one view of it.

    Images and masks of one shape, labels and positions become what torch's default_collate makes of
    them; images and masks of several shapes, and everything else, a list.
    """
    if field in ("image", "mask"):
        alike = len({tuple(getattr(value, "shape", ())) for value in column}) == 1
    else:
        alike = field in ("label", "index")
    return torch.utils.data.default_collate(list(column)) if alike else list(column)
