"""Exact is torchvision's result, and fast is near it: on 504 crops of real photographs.

See tools/make_frozen_crops.py for the numbers.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import io
import json
import pathlib
from typing import TYPE_CHECKING, Any, NamedTuple

import long
import make_sample_images
import numpy as np
import pytest
import torch

import packio
from packio.images.frames import Frame
from packio.images.geometry import Uniforms

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

_FILE = pathlib.Path(__file__).parents[1] / "frozen" / "crops.npz"
_VIEWS = 12  # crops of one read
_DECIBEL = 35


class _Crops(NamedTuple):
    """What was frozen."""

    names: list[str]  # of photographs
    size: int  # of the outputs, pixels
    grid: slice  # rows and columns of the outputs that are kept
    boxes: np.ndarray  # (photographs, crops, 4): top, left, height, width
    grids: dict[str, np.ndarray]  # by interpolation: (photographs, crops, 12, 12, 3) uint8


@dataclasses.dataclass(frozen=True)
class _Given:
    """A geometry whose boxes are given, one an image."""

    boxes: Iterator[list[int]]  # top, left, height, width
    size: int
    interpolation: str

    draws = 0

    @property
    def output_size(self) -> tuple[int, int]:
        return self.size, self.size

    def frame(self, height: Any, width: Any, u: Uniforms) -> Frame:
        if isinstance(height, np.ndarray):
            boxes = np.array([next(self.boxes) for _ in height])
            top, left, height, width = boxes.T
        else:
            top, left, height, width = next(self.boxes)
        return Frame(top, left, height, width, *self.output_size, 0, 0, *self.output_size)


@pytest.fixture(scope="module")
def crops() -> _Crops:
    with np.load(_FILE) as file:
        facts = json.loads(file["facts"].tobytes())
        boxes, bilinear, bicubic = (file[name] for name in ("boxes", "bilinear", "bicubic"))
    by_photo = len(facts["photographs"]), facts["crops"]
    grids = {"bilinear": bilinear, "bicubic": bicubic + bilinear}
    start, step = facts["grid"]
    return _Crops(
        facts["photographs"], facts["size"], slice(start, None, step), boxes.reshape(*by_photo, 4),
        {how: grid.reshape(*by_photo, *grid.shape[1:]) for how, grid in grids.items()},
    )  # fmt: skip


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory, crops: _Crops) -> pathlib.Path:
    """The photographs, PNGs and JPEGs, as they are."""
    folder = tmp_path_factory.mktemp("fidelity")
    (folder / "photos").mkdir()
    for i, name in enumerate(crops.names):
        package, _, path = name.partition("/")
        data = (importlib.resources.files(package) / path).read_bytes()
        (folder / "photos" / f"{i:02d}{pathlib.Path(name).suffix}").write_bytes(data)
    packio.pack(folder / "photos", folder / "photos.lmdb")
    return folder / "photos.lmdb"


def _made(pack: pathlib.Path, crops: _Crops, photo: int, how: str) -> list[np.ndarray]:
    """The crops of a photograph, (size, size, 3) each, by packio."""
    given = [_Given(iter([box]), crops.size, how) for box in crops.boxes[photo].tolist()]
    ds = packio.LmdbDataset(pack, fields="image", threads=1)
    made: list[torch.Tensor] = []
    for first in range(0, len(given), _VIEWS):
        made += ds.with_options(views=given[first : first + _VIEWS])[photo]
    return [image.permute(1, 2, 0).numpy() for image in made]


@pytest.mark.parametrize("how", ["bilinear", "bicubic"])
def test_exact_equals_what_torchvision_made(pack: pathlib.Path, crops: _Crops, how: str) -> None:
    assert crops.boxes.size // 4 >= 500
    for photo, frozen in enumerate(crops.grids[how]):
        made = np.stack(_made(pack, crops, photo, how))[:, crops.grid, crops.grid]
        assert made.shape == frozen.shape
        assert np.abs(made.astype(int) - frozen).max() <= 1, crops.names[photo]


@pytest.mark.parametrize("how", ["bilinear", "bicubic"])
def test_exact_equals_torchvision_in_every_pixel(
    pack: pathlib.Path, crops: _Crops, how: str, torchvision: ModuleType
) -> None:
    mode: Any = torchvision.transforms.InterpolationMode(how)
    resized_crop = torchvision.transforms.v2.functional.resized_crop
    for photo, name in enumerate(crops.names):
        pixels = np.array(make_sample_images.photograph(name))
        image = torch.from_numpy(pixels).permute(2, 0, 1)
        made = _made(pack, crops, photo, how)
        for ours, box in list(zip(made, crops.boxes[photo].tolist(), strict=True))[::3]:
            theirs = resized_crop(image, *box, [crops.size] * 2, mode, antialias=True)
            difference = np.abs(ours.astype(int) - theirs.permute(1, 2, 0).numpy())
            assert difference.max() <= 1, (name, box)


def _psnr(a: torch.Tensor, b: torch.Tensor) -> float:
    error = ((a.double() - b.double()) ** 2).mean().item()
    return 99.0 if error == 0 else float(10 * np.log10(255**2 / error))


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory: pytest.TempPathFactory, crops: _Crops) -> pathlib.Path:
    """The photographs as JPEGs."""
    folder = tmp_path_factory.mktemp("fast")
    (folder / "photos").mkdir()
    for i, name in enumerate(crops.names):
        file = io.BytesIO()
        make_sample_images.photograph(name).save(file, "JPEG", quality=90, subsampling="4:2:0")
        (folder / "photos" / f"{i:02d}.jpg").write_bytes(file.getvalue())
    packio.pack(folder / "photos", folder / "photos.lmdb")
    return folder / "photos.lmdb"


@pytest.mark.parametrize("decoder", ["auto", "simplejpeg"])
@pytest.mark.parametrize("how", ["bilinear", "bicubic"])
@pytest.mark.parametrize("step", long.after(1, (4, 1)))
def test_fast_is_above_35_decibel(
    jpegs: pathlib.Path, crops: _Crops, how: str, decoder: str, step: int
) -> None:
    """By the native core, where it is there, and by a library."""
    values = []
    for photo, boxes in enumerate(crops.boxes[:, ::step].tolist()):
        images = []
        for fidelity in ("exact", "fast"):
            given = _Given(iter(boxes), crops.size, how)
            options: dict[str, Any] = {"fidelity": fidelity, "decoder": decoder, "threads": 1}
            ds = packio.LmdbDataset(jpegs, fields="image", crop=given, **options)
            images.append(ds.gather([photo] * len(boxes)))
        pairs = zip(*images, boxes, strict=True)
        values += [(_psnr(a, b), crops.names[photo], box) for a, b, box in pairs]
    decibels = [value for value, _, _ in values]
    print(f"{how}, {decoder}: mean {np.mean(decibels):.1f} dB, least {min(values)}")
    assert [value for value in values if value[0] < _DECIBEL] == []
    assert min(decibels) < 60  # it is another way
