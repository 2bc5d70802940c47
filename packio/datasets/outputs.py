"""Values in the type and the form that the user asks for, single or as a batch."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from packio.batches import images
from packio.batches.samples import FIELDS, Columns
from packio.datasets.fields import Fields
from packio.datasets.options import FLOATS


def scaled(view: Any, dtype: torch.dtype, out: torch.Tensor | None = None) -> Any:
    """Scale integer images to 0..1 in a float type; floating-point ones are only converted.

    Args:
        view: A tensor, or a list of them.
        dtype: The dataset's; nothing is done if it is no float type.
        out: Where a single tensor's values go.
    """
    if dtype not in FLOATS:
        return view
    if isinstance(view, list):
        return [scaled(image, dtype) for image in view]
    if view.dtype.is_floating_point and out is None:
        return view.to(dtype)
    if out is None and view.device.type != "cpu":
        out = torch.empty_like(view, dtype=dtype)
    else:
        out = images.given_or_new(tuple(view.shape), dtype, out)
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
        output: "tensor", "numpy" or "pil"; under "pil", boxes are arrays.
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


class Annotations(Protocol):
    """The part of a pack that `Outputs` needs: see `packio.Pack`."""

    def key(self, index: int) -> str:
        """Key of a sample."""

    def meta(self, index: int) -> dict[str, Any] | None:
        """Metadata of a sample."""

    def take_labels(self, indices: np.ndarray) -> np.ndarray:
        """Labels of some samples."""


class Outputs:
    """Puts the fields that were made of a batch together with the other fields of its samples.

    Args:
        pack: The samples' pack.
        fields: The fields that are asked for.
        output: "tensor", "numpy" or "pil".
        several: Whether the fields that are made come as a tuple, one value a view.

    Attributes:
        has_tensors: Whether the output is tensors.
        has_one_tensor: Whether the images of a batch can be one tensor.
    """

    def __init__(self, pack: Annotations, fields: Fields, output: str, *, several: bool) -> None:
        self._pack, self._fields, self._output, self._several = pack, fields, output, several
        self.has_tensors = output == "tensor"
        self.has_one_tensor = self.has_tensors and not several

    def columns(
        self, made: Columns, positions: np.ndarray, but: Container[str] = ()
    ) -> dict[str, Sequence[Any]]:
        """Values of each field, but for some, one a sample.

        Args:
            made: Of the fields of `packio.batches.samples`.
            positions: (N,) of the samples.
            but: Fields to leave out.
        """
        found: dict[str, Sequence[Any]] = {}
        pack, each = self._pack, positions.tolist()
        metas = [pack.meta(i) or {} for i in each] if self._fields.meta else []
        for name in (n for n in self._fields.names if n not in but):
            if name in FIELDS:
                views = [values(name, view, self._output) for view in made[name]]
                found[name] = list(zip(*views, strict=True)) if self._several else views[0]
            elif name == "label":
                labels = self._labels(positions)
                found[name] = labels.tolist() if labels.ndim == 1 else list(labels)
            elif name == "key":
                found[name] = [pack.key(i) for i in each]
            elif name == "index":
                found[name] = each
            else:
                found[name] = [meta.get(name) for meta in metas]
        return found

    def batch(
        self, made: Columns, positions: np.ndarray,
        columns: Mapping[str, Sequence[Any]] | None = None,
    ) -> Any:  # fmt: skip
        """What `packio.collate` makes of the samples, without stacking where that is possible.

        Args:
            made, positions: As of `columns`.
            columns: What `columns` returned; None: not called yet.
        """
        ready = self._ready(made, positions)
        if columns is None:
            columns = self.columns(made, positions, but=ready)
        elif "label" in ready and ready["label"].ndim > 1:
            del ready["label"]  # the samples' vectors may have been changed in place
        return self._assembled(columns, ready)

    def batch_of(self, samples: Sequence[Mapping[str, Any]]) -> Any:
        """What `packio.collate` makes of samples that a transform has changed."""
        names = self._fields.names
        return self._assembled({name: [s[name] for s in samples] for name in names}, {})

    def _ready(self, made: Columns, positions: np.ndarray) -> dict[str, Any]:
        """Fields that are one tensor for the whole batch, or one tensor a view."""
        ready: dict[str, Any] = {"index": torch.from_numpy(positions.copy())}
        if "label" in self._fields.names:
            ready["label"] = self._labels(positions)
        for name, views in made.items():
            if self._output == "tensor" and all(isinstance(v, torch.Tensor) for v in views):
                ready[name] = list(views) if self._several else views[0]
        return ready

    def _assembled(self, columns: Mapping[str, Sequence[Any]], ready: dict[str, Any]) -> Any:
        batch = dict(ready)
        for name, column in ((n, c) for n, c in columns.items() if n not in ready):
            if self._several and name in FIELDS:
                batch[name] = [_batched(name, view) for view in zip(*column, strict=True)]
            else:
                batch[name] = _batched(name, column)
        return self._fields.batch(batch)

    def _labels(self, positions: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(self._pack.take_labels(positions))


def _batched(field: str, column: Sequence[Any]) -> Any:
    """What `packio.collate` makes of the values of a field, or of one view of it.

    Images and masks of one shape, labels and positions are collated as torch's default_collate
    does. Images and masks of several shapes, and all other fields, become a list.
    """
    if field in ("image", "mask"):
        alike = len({tuple(getattr(value, "shape", ())) for value in column}) == 1
    else:
        alike = field in ("label", "index")
    return torch.utils.data.default_collate(list(column)) if alike else list(column)
