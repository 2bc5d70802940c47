"""Several crops of one image: each has the pixels of Pillow and PyTorch, however it is decoded."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image

import packio
from packio.images import regions

if TYPE_CHECKING:
    import pathlib

SIZE = (420, 560)  # height, width
DINO = [
    *[packio.RandomResizedCrop(64, scale=(0.4, 1))] * 2,
    *[packio.RandomResizedCrop(32, scale=(0.02, 0.4))] * 8,
]
SIMCLR = [packio.RandomResizedCrop(64)] * 2
LOCAL = [packio.RandomResizedCrop(32, scale=(0.01, 0.05))] * 4


def _photo(seed: int, **options: Any) -> bytes:
    """A JPEG of smooth colours with some noise, so that each place has its own pixels."""
    draw = np.random.default_rng(seed)
    small = Image.fromarray(draw.integers(0, 255, (12, 16, 3), np.uint8))
    pixels = np.asarray(small.resize(SIZE[::-1], Image.Resampling.BICUBIC), np.int16)
    noisy = (pixels + draw.integers(-9, 9, (*SIZE, 3))).clip(0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(noisy).save(file, "JPEG", **{"quality": 85, **options})
    return file.getvalue()


KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # of JPEG, and of packing
    "seek points": ({}, {}),
    "no seek points": ({}, {"seek_points": False}),
    "restart markers": ({"restart_marker_blocks": 4}, {}),
    "4:4:4": ({"subsampling": 0}, {}),
    "progressive": ({"progressive": True}, {}),
}


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    folder = tmp_path_factory.mktemp("several")
    made = {}
    for name, (of_jpeg, of_pack) in KINDS.items():
        samples = [{"key": f"{i}.jpg", "image": _photo(i, **of_jpeg)} for i in range(3)]
        made[name] = packio.pack(samples, folder / f"{name}.tar", **of_pack).out
    return made


def _expected(ds: packio.PackDataset, index: Any) -> list[torch.Tensor]:
    """The crops of a sample by Pillow and PyTorch."""
    image = Image.open(io.BytesIO(ds.pack[int(index)].data)).convert("RGB")
    found = []
    placements: Any = ds.draw_of(index)
    for placement in placements:
        top, left, height, width, to_height, to_width = placement.frame[:6]
        pixels = np.asarray(image.crop((left, top, left + width, top + height)))
        planes = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]
        view = torch.nn.functional.interpolate(
            planes, (to_height, to_width), mode="bilinear", antialias=True, align_corners=False
        )[0]
        found.append(view.flip(-1) if placement.hflip else view)
    return found


@pytest.mark.parametrize("at_once", [None, True, False], ids=["chosen", "together", "apart"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("views", [SIMCLR, DINO, LOCAL], ids=["simclr", "dino", "local"])
def test_each_crop_has_the_pixels_of_the_whole_image(
    views: list[Any], kind: str, at_once: bool | None, packs: dict[str, pathlib.Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if at_once is not None:
        monkeypatch.setattr(regions, "is_less_at_once", lambda _: at_once)
    ds = packio.PackDataset(packs[kind], views=views, fields="image", seed=3, hflip=0.5)
    sampler = packio.ShuffleSampler(len(ds), 5)
    for _ in range(2):
        drawn: list[Any] = list(sampler)
        batch = ds.gather(drawn)
        for place, index in enumerate(drawn):
            wanted = _expected(ds, index)
            assert len(batch) == len(wanted) == len(views)
            for made, view in zip(batch, wanted, strict=True):
                assert torch.equal(made[place], view)
