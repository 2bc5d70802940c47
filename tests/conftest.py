"""What several tests share: real photographs, an image folder of them, torchvision and timm."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import pathlib
from typing import TYPE_CHECKING, Any, NamedTuple

import make_sample_images
import numpy as np
import pytest
from PIL import Image

if TYPE_CHECKING:
    from types import ModuleType

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # it asks the network for newer versions

_ORIENTATION = 0x0112  # Exif tag


@pytest.fixture(scope="session")
def photos() -> list[np.ndarray]:
    """A dozen real photographs, (H, W, 3) uint8 RGB, of varied sizes up to 320 pixels.

    The last one is gray: its three channels are equal.
    """
    arrays = [*make_sample_images.photographs(), make_sample_images.photographs(("gray",))[0]]
    sides = (320, 256, 301, 233, 288, 199, 320, 241, 275, 160, 313, 224)
    return [_shrunk(a, side) for a, side in zip(arrays, sides, strict=True)]


def _shrunk(pixels: np.ndarray, side: int) -> np.ndarray:
    image = Image.fromarray(pixels)
    image.thumbnail((side, side), Image.Resampling.BICUBIC)
    return np.array(image)


class _Saved(NamedTuple):
    """How one file of the image folder is written."""

    name: str
    photo: int
    size: tuple[int, int]  # (width, height) in pixels
    mode: str = "RGB"
    orientation: int = 1
    options: dict[str, Any] = {}  # noqa: RUF012 (a NamedTuple's default, never changed)


_JPEG = [
    {"quality": quality, "subsampling": subsampling}
    for quality in (90, 75, 95, 60)
    for subsampling in ("4:2:0", "4:4:4", "4:2:2")
]
_FILES = [
    _Saved("nature/gray.jpg", 11, (120, 90), mode="L", options={"quality": 88}),
    _Saved("nature/plain.png", 1, (101, 67)),
    _Saved("nature/tiny.jpg", 1, (17, 9), options=_JPEG[0]),
    _Saved("machines/cmyk.jpg", 3, (111, 80), mode="CMYK", options={"quality": 90}),
    _Saved("machines/progressive.jpg", 4, (128, 96), options={**_JPEG[0], "progressive": True}),
    _Saved("machines/capitals.JPG", 2, (64, 64), options=_JPEG[1]),
    _Saved("people/rotated.jpg", 8, (120, 80), orientation=6, options=_JPEG[0]),
    _Saved("people/mirrored.jpeg", 9, (90, 61), orientation=2, options=_JPEG[2]),
    *(
        _Saved(f"{name}/{i:02d}.jpg", photo, (97 + 13 * i, 131 - 7 * i), options=_JPEG[i % 12])
        for i, (name, photo) in enumerate(
            [("nature", 0), ("nature", 1), ("machines", 2), ("machines", 3), ("people", 8)] * 3
            + [("people", 9), ("people", 10)]
        )
    ),
]


@pytest.fixture(scope="session")
def image_folder(
    tmp_path_factory: pytest.TempPathFactory, photos: list[np.ndarray]
) -> pathlib.Path:
    """An image folder of 25 small real photographs in 3 classes; copy it before changing it.

    JPEGs of varied sizes, qualities and chroma subsamplings, among them a gray, a CMYK, a
    progressive, a tiny one, one to be turned and one to be mirrored by Exif; and one PNG.
    """
    root = tmp_path_factory.mktemp("image_folder") / "photos"
    for saved in _FILES:
        path = root / saved.name
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(photos[saved.photo]).resize(saved.size, Image.Resampling.BICUBIC)
        exif = Image.Exif()
        if saved.orientation != 1:
            exif[_ORIENTATION] = saved.orientation
        image.convert(saved.mode).save(path, exif=exif, **saved.options)
    return root


_stub: list[Any] = []  # a torch.library.Library undoes its definitions when it is collected


@functools.cache
def import_torchvision() -> ModuleType:
    """Import torchvision, also where its compiled operators do not go with the torch installed.

    A torchvision built for CUDA does not load beside a CPU build of torch. Its transforms, datasets
    and tv_tensors are plain Python and need of the compiled part only that two operators have a
    schema; these are given here. Only for this process and those forked from it.
    """
    torch = pytest.importorskip("torch")
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        pytest.skip("torchvision is not installed")
    compiled = pathlib.Path(spec.origin).with_name("_C.so")
    try:
        torch.ops.load_library(str(compiled))
    except OSError:
        stub = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            stub.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _stub.append(stub)
    try:
        module = importlib.import_module("torchvision")
        for part in ("datasets", "transforms.v2", "tv_tensors"):
            importlib.import_module(f"torchvision.{part}")
    except (ImportError, OSError, RuntimeError) as error:
        pytest.skip(f"torchvision does not load beside torch {torch.__version__}: {error}")
    return module


@pytest.fixture(scope="session")
def torchvision() -> ModuleType:
    """The module torchvision, with datasets, transforms.v2 and tv_tensors loaded."""
    return import_torchvision()


@pytest.fixture(scope="session")
def timm(torchvision: ModuleType) -> ModuleType:  # noqa: ARG001 (timm imports it)
    """The module timm, which needs a torchvision that loads."""
    return pytest.importorskip("timm")  # type: ignore[no-any-return]  # pytest says Any
