"""What is done to images on their way to a device is not done to other fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import packio

if TYPE_CHECKING:
    import pathlib


@pytest.fixture
def pack(tmp_path: pathlib.Path) -> pathlib.Path:
    """Images with a depth map of 16 bits and an array that looks like an image."""
    samples = [
        {"image": np.full((8, 8, 3), 128, np.uint8), "depth": np.full((8, 8), 700, np.uint16),
         "flow": np.full((3, 8, 8), 7, np.float32), "label": i}
        for i in range(4)
    ]  # fmt: skip
    packio.pack(samples, tmp_path / "a.tar", fields={"depth": ("depth", "image")})
    return tmp_path / "a.tar"


@pytest.mark.parametrize("names", [
    ("image", "depth", "flow"), ("flow", "depth", "image"),
    {"x": "image", "depth": "depth", "flow": "flow"},
])  # fmt: skip
def test_only_the_image_is_normalised(pack: pathlib.Path, names: Any) -> None:
    ds = packio.PackDataset(pack, crop=packio.CenterCrop(4), fields=names)
    means = ((0.5,) * 3, (0.25,) * 3)
    loaders: list[Any] = [
        packio.Loader(ds, 2, device="cpu", normalize=means),
        packio.DevicePrefetcher(
            torch.utils.data.DataLoader(ds, 2, collate_fn=packio.collate), "cpu", normalize=means
        ),
    ]
    for loader in loaders:
        batch = next(iter(loader))
        if isinstance(batch, dict):
            image, depth, flow = batch["x"], batch["depth"], batch["flow"]
        else:
            image, depth, flow = (batch[names.index(n)] for n in ("image", "depth", "flow"))
        assert image.unique() == (torch.tensor(128, dtype=torch.uint8) / 255 - 0.5) / 0.25
        assert depth.dtype == torch.uint16
        assert depth.to(torch.int32).unique().tolist() == [700]
        assert flow.unique().tolist() == [7.0]
