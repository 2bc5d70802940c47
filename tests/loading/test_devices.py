"""Batches on their way to a device: what is done to images, and what is left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch

import packio
from packio.errors import OptionError

if TYPE_CHECKING:
    import pathlib

pytestmark = pytest.mark.gpu
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


class Pair(NamedTuple):
    """A batch of a kind of its own."""

    image: torch.Tensor
    label: torch.Tensor


def _images(n: int = 3) -> torch.Tensor:
    draw = torch.Generator().manual_seed(n)
    return torch.randint(0, 256, (n, 3, 8, 6), dtype=torch.uint8, generator=draw)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, None])
def test_images_are_normalised_as_torchvision_does(dtype: Any, device: str) -> None:
    images = _images()
    expected = images.to(torch.float32).div(255)
    expected = expected.sub(torch.tensor(MEAN).view(-1, 1, 1)).div(torch.tensor(STD).view(-1, 1, 1))
    loader = packio.DevicePrefetcher([images], device, dtype=dtype, normalize=(MEAN, STD))
    (made,) = loader
    assert made.dtype == (dtype or torch.float32)
    assert made.device.type == device
    atol = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(dtype, 1e-5)
    torch.testing.assert_close(made.cpu().float(), expected, atol=atol, rtol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [None, torch.uint8, torch.float32])
def test_the_memory_format_is_as_asked(dtype: Any, layout: Any, device: str) -> None:
    loader = packio.DevicePrefetcher([_images()], device, dtype=dtype, memory_format=layout)
    (made,) = loader
    assert made.is_contiguous(memory_format=layout)
    scale = 255 if dtype == torch.float32 else 1
    torch.testing.assert_close(made.cpu().float() * scale, _images().float())


@pytest.mark.parametrize("device", DEVICES)
def test_all_else_is_copied_as_it_is(device: str) -> None:
    mask = torch.ones(3, 8, 6, dtype=torch.uint8)
    batch = {"image": _images(), "rest": [Pair(mask, torch.arange(3)), ("key", None)], "n": 4}
    loader = packio.DevicePrefetcher([batch], device, dtype=torch.float32)
    (made,) = loader
    assert made["image"].max() <= 1
    pair, rest = made["rest"]
    assert isinstance(pair, Pair)
    assert torch.equal(pair.image.cpu(), mask)
    assert pair.label.tolist() == [0, 1, 2]
    assert (rest, made["n"]) == (("key", None), 4)


def test_floating_images_are_not_scaled_again() -> None:
    images = torch.rand(2, 3, 4, 4)
    (made,) = packio.DevicePrefetcher([images], "cpu", dtype=torch.float32)
    assert torch.equal(made, images)
    (made,) = packio.DevicePrefetcher([images], "cpu", normalize=([0.5] * 3, [0.25] * 3))
    torch.testing.assert_close(made, (images - 0.5) / 0.25)
    assert images.max() <= 1  # the loader's batch is its own


@pytest.mark.parametrize("device", DEVICES)
def test_batches_come_in_order_and_are_transformed(device: str) -> None:
    batches = [(_images(n), torch.full((n,), n)) for n in range(1, 6)]
    loader = packio.DevicePrefetcher(
        batches, device, batch_transform=lambda batch: (batch[0] + 1, batch[1])
    )
    assert len(loader) == 5
    for (image, label), (source, number) in zip(loader, batches, strict=True):
        assert torch.equal(image.cpu(), source + 1)
        assert torch.equal(label.cpu(), number)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": torch.int64}, "dtype="),
        ({"memory_format": torch.channels_last_3d}, "memory_format="),
        ({"normalize": ([123.7, 116.3, 103.5], [58.4, 57.1, 57.4])}, "0..255"),
        ({"normalize": ([0.5], [0.0])}, "normalize="),
        ({"normalize": ([0.5, 0.5], [0.5])}, "one a channel"),
        ({"normalize": (MEAN, STD), "dtype": torch.uint8}, "float"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        packio.DevicePrefetcher([], "cpu", **options)


def test_it_has_what_its_loader_has() -> None:
    items: Any = [1, 2, 3]
    loader: Any = torch.utils.data.DataLoader(items, batch_size=2)
    ahead = packio.DevicePrefetcher(loader, "cpu")
    assert ahead.batch_size == 2
    assert ahead.dataset == [1, 2, 3]
    with pytest.raises(AttributeError):
        _ = ahead.nothing


@pytest.mark.skipif("cuda" not in DEVICES, reason="no GPU")
def test_nothing_waits_for_a_gpu() -> None:
    batches = [_images(n).pin_memory() for n in range(1, 6)]
    how: dict[str, Any] = {"dtype": torch.bfloat16, "normalize": (MEAN, STD)}
    list(packio.DevicePrefetcher(batches, "cuda", **how))  # its constants are there
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert len(list(packio.DevicePrefetcher(batches, "cuda", **how))) == 5
    finally:
        torch.cuda.set_sync_debug_mode("default")


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
