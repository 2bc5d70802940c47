"""Contiguity: told, mended, and warned about once."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import packio
from packio.images import tensors


class Pair(NamedTuple):
    """A named tuple, as batches may be."""

    image: torch.Tensor
    label: int


def view() -> torch.Tensor:
    """A tensor as torchvision's decoders return it: (3, 4, 5) with channels last in memory."""
    return torch.arange(60, dtype=torch.uint8).reshape(4, 5, 3).permute(2, 0, 1)


NESTED: list[Any] = [
    view(),
    [torch.zeros(2), view()],
    (view(), "key", 3),
    {"image": view(), "label": torch.zeros(2)},
    OrderedDict(a=[{"b": (view(), None)}]),
    Pair(view(), 1),
]


@pytest.mark.parametrize("batch", NESTED)
def test_nested_views_are_found_and_mended(batch: Any) -> None:
    assert not packio.is_contiguous_batch(batch)
    mended = packio.ensure_contiguous(batch)
    assert packio.is_contiguous_batch(mended)
    assert type(mended) is type(batch)
    flat, mended_flat = leaves(batch), leaves(mended)
    assert len(flat) == len(mended_flat)
    for a, b in zip(flat, mended_flat, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def leaves(batch: Any) -> list[Any]:
    if isinstance(batch, dict):
        return [leaf for v in batch.values() for leaf in leaves(v)]
    if isinstance(batch, (list, tuple)):
        return [leaf for v in batch for leaf in leaves(v)]
    return [batch]


def test_what_is_contiguous_is_returned_itself() -> None:
    batch = [torch.zeros(3, 4), {"x": torch.zeros(2)}]
    assert packio.is_contiguous_batch(batch)
    assert packio.ensure_contiguous(batch) is batch


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("with_cv2", [False, True])
@pytest.mark.parametrize("hflip", [False, True])
@pytest.mark.parametrize("vflip", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_to_planes_equals_a_transpose(
    channels: int, with_cv2: bool, hflip: bool, vflip: bool, dtype: type[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    import sys

    if with_cv2:
        pytest.importorskip("cv2")
    else:
        monkeypatch.delitem(sys.modules, "cv2", raising=False)
    pixels = np.random.default_rng(0).integers(0, 256, (31, 147, channels)).astype(dtype)
    for width in (1, 2, 35, 71):  # OpenCV has a way of its own for each
        crop = pixels[3:20, 5 : 5 + width]
        out = np.empty((channels, 17, width), dtype)
        tensors.to_planes(crop, out, hflip=hflip, vflip=vflip)
        expected = crop[:: -1 if vflip else 1, :: -1 if hflip else 1].transpose(2, 0, 1)
        np.testing.assert_array_equal(out, expected)


def as_view(image: torch.Tensor) -> torch.Tensor:
    """A transform of a user's that undoes contiguity."""
    return image.permute(1, 2, 0).contiguous().permute(2, 0, 1)


def test_a_transform_that_returns_a_view_is_mended(image_folder: Path, tmp_path: Path) -> None:
    packio.pack(image_folder, tmp_path / "p.lmdb")
    ds = packio.LmdbDataset(tmp_path / "p.lmdb", crop=packio.CenterCrop(16), transform=as_view)
    assert ds[0][0].is_contiguous()
    assert packio.is_contiguous_batch(ds.__getitems__([1, 2, 3]))
