"""Outputs: values of fields in the type and the form that the user wants."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from packio.batches import images
from packio.batches.columns import FieldColumn
from packio.batches.samples import SEEN, FieldColumns
from packio.datasets.fields import Fields
from packio.datasets.options import FLOATS
from packio.sample.fields import PIXELS


def scaled(view: Any, dtype: torch.dtype, out: torch.Tensor | None = None) -> Any:
    """Scale integer images to 0..1 in a float type; floating-point ones are only converted."""
    if dtype not in FLOATS:
        return view
    if view is None:  # the sample has no such image
        return None
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


def values(kind: str, column: FieldColumn, output: str) -> list[Any]:
    """The values of one view's column, one a sample, in the form asked for.

    Args:
        column: (N, …), or N values.
        output: "tensor", "numpy" or "pil"; under "pil", boxes and arrays are NumPy arrays.
    """
    each = list(column.unbind(0) if isinstance(column, torch.Tensor) else column)
    if output == "tensor":
        return each
    return [_formed(kind, v, output) if isinstance(v, torch.Tensor) else v for v in each]


def _formed(kind: str, tensor: torch.Tensor, output: str) -> Any:
    """A tensor as a NumPy array or a Pillow image."""
    array = tensor.numpy()
    if kind == "image":
        array = np.ascontiguousarray(array.transpose(1, 2, 0))
    if output == "numpy" or kind not in PIXELS:
        return array
    from PIL import Image

    return Image.fromarray(array[:, :, 0] if array.shape[2:] == (1,) else array)


class Annotations(Protocol):
    """The part of a pack that `Outputs` needs: see `packio.Pack`."""

    def key(self, index: int) -> str:
        """Key of a sample."""

    def meta(self, index: int) -> dict[str, Any] | None:
        """Metadata of a sample."""

    def bring(self, name: str, positions: np.ndarray) -> None:
        """See `packio.packs.table.PackTable.bring`."""

    def split_of(self, index: int) -> str | None:
        """Name of the split of a sample."""

    def take_labels(self, indices: np.ndarray) -> np.ndarray:
        """Labels of some samples."""


class Outputs:
    """Puts the fields that were made of a batch together with the other fields of its samples."""

    def __init__(self, pack: Annotations, fields: Fields, output: str, *, several: bool) -> None:
        self._pack, self._fields, self._output, self._several = pack, fields, output, several
        self.has_tensors: bool = output == "tensor"
        self.has_one_tensor: bool = self.has_tensors and not several

    def columns(
        self, made: FieldColumns, positions: np.ndarray, but: Container[str] = ()
    ) -> dict[str, Sequence[Any]]:
        """Values of each field, but for some, one a sample.

        Args:
            positions: (N,) of the samples.
        """
        found: dict[str, Sequence[Any]] = {}
        pack, each = self._pack, positions.tolist()
        for name, needs in (("meta", self._fields.meta), ("key", "key" in self._fields.names)):
            if needs:
                pack.bring(name, positions)
        metas = [pack.meta(i) or {} for i in each] if self._fields.meta else []
        for name in (n for n in self._fields.names if n not in but):
            if kind := self._fields.kinds.get(name):
                views = [values(kind, view, self._output) for view in made[name]]
                found[name] = list(zip(*views, strict=True)) if self._has_views(name) else views[0]
            elif name in self._fields.meta:
                found[name] = [meta.get(name) for meta in metas]
            elif name == "label":
                labels = self._labels(positions)
                found[name] = labels.tolist() if labels.ndim == 1 else list(labels)
            elif name == "key":
                found[name] = [pack.key(i) for i in each]
            elif name == "index":
                found[name] = each
            else:
                found[name] = [pack.split_of(i) for i in each]
        return found

    def _has_views(self, name: str) -> bool:
        """Whether the values of a field are tuples, one value a view."""
        return self._several and self._fields.kinds.get(name) in SEEN

    def batch(
        self, made: FieldColumns, positions: np.ndarray,
        columns: Mapping[str, Sequence[Any]] | None = None,
    ) -> Any:  # fmt: skip
        """What `packio.collate` makes of the samples, without stacking where that is possible."""
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

    def _ready(self, made: FieldColumns, positions: np.ndarray) -> dict[str, Any]:
        """Fields that are one tensor for the whole batch, or one tensor a view."""
        ready: dict[str, Any] = {"index": torch.from_numpy(positions.copy())}
        if "label" in self._fields.names:
            ready["label"] = self._labels(positions)
        for name, views in made.items():
            if self._output == "tensor" and all(isinstance(v, torch.Tensor) for v in views):
                ready[name] = list(views) if self._has_views(name) else views[0]
        return ready

    def _assembled(self, columns: Mapping[str, Sequence[Any]], ready: dict[str, Any]) -> Any:
        batch = dict(ready)
        for name, column in ((n, c) for n, c in columns.items() if n not in ready):
            kind = self._fields.kinds.get(name) or ("" if name in self._fields.meta else name)
            if self._has_views(name):
                batch[name] = [_batched(kind, view) for view in zip(*column, strict=True)]
            else:
                batch[name] = _batched(kind, column)
        return self._fields.batch(batch)

    def _labels(self, positions: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(self._pack.take_labels(positions))


def _is_numeric(value: Any) -> bool:
    """Whether a value is a tensor, or an array that torch can make a tensor of."""
    return isinstance(value, torch.Tensor) or (
        isinstance(value, np.ndarray)
        and value.dtype.kind in "biufc"
        and value.dtype.char not in "gG"  # of 80 or 128 bits
    )


def _is_pillow(value: Any) -> bool:
    return hasattr(value, "getbands")


def _batched(kind: str, column: Sequence[Any]) -> Any:
    """What `packio.collate` makes of the values of a field, or of one view of it.

    Labels, positions, and images, masks and arrays of one shape are collated as torch's
    default_collate does. Images, masks and arrays of several shapes or types, or of which a sample
    has none, become a list; so do Pillow's images and all other values.
    """
    alike = kind in ("label", "index")
    if kind in PIXELS and not any(value is None or _is_pillow(value) for value in column):
        alike = len({tuple(getattr(value, "shape", ())) for value in column}) == 1
    elif kind == "array" and all(map(_is_numeric, column)):
        alike = len({(tuple(value.shape), value.dtype) for value in column}) == 1
    return torch.utils.data.default_collate(list(column)) if alike else list(column)
