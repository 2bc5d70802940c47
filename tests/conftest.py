"""What several tests share: real photographs, an image folder of them, torchvision and timm."""

from __future__ import annotations

import gc
import os
import pathlib
import signal
import sys
import threading
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import hypothesis
import make_sample_images
import numpy as np
import pytest
import vision
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import ModuleType

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # it asks the network for newer versions

hypothesis.settings.register_profile("busy", deadline=None)  # time is never a test's verdict
hypothesis.settings.load_profile("busy")


def _leave_objects_of_ray_alone() -> None:
    """Collect nothing in a forked process that was there before: Ray's clients abort it then."""
    if "ray" in sys.modules:
        gc.freeze()


os.register_at_fork(after_in_child=_leave_objects_of_ray_alone)


def heed_interrupts() -> None:
    """Let SIGINT end processes of the tests also where a shell started them with it ignored.

    A shell does so for what it runs in the background, and children inherit it: a command that a
    test interrupts would never end.
    """
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


heed_interrupts()

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


@pytest.fixture(scope="session")
def pack(image_folder: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The image folder, packed; copy it before changing it."""
    import packio

    return packio.pack(image_folder, tmp_path_factory.mktemp("pack") / "photos.lmdb").out


@pytest.fixture
def own_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A user's cache of the test's own."""
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def torchvision() -> ModuleType:
    """The module torchvision, with datasets, transforms.v2 and tv_tensors loaded."""
    return vision.import_torchvision()


@pytest.fixture(scope="session")
def timm(torchvision: ModuleType) -> ModuleType:  # noqa: ARG001 (timm imports it)
    """The module timm, which needs a torchvision that loads."""
    return pytest.importorskip("timm")  # type: ignore[no-any-return]  # pytest says Any


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {name: _encodable(each) for name, each in value.items()}
    return type(value)(map(_encodable, value)) if type(value) in (list, tuple) else value


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Let workers of pytest-xdist report failures whose text is not UTF-8, as that of odd keys."""
    return _encodable((yield))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that are marked long.

    ``PACKIO_TESTS=2/6`` takes the second of six parts of them, too; ``PACKIO_TESTS=all`` takes all.
    A test that the command line names runs, and so do all that ``-m long`` asks for.
    """
    asked = os.environ.get("PACKIO_TESTS", "")
    if asked == "all" or config.option.markexpr or any("::" in name for name in config.args):
        return
    part, _, parts = asked.partition("/")

    def is_left_out(item: pytest.Item) -> bool:
        if item.get_closest_marker("long") is None:
            return False
        number = zlib.crc32(item.nodeid.partition("[")[0].encode())
        return not parts or number % int(parts) + 1 != int(part)

    left_out = {item: None for item in items if is_left_out(item)}
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]
