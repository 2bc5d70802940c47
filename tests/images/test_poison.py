"""Every pixel of a batch is the sample's own: no uninitialised memory, no other image's pixels.

Batches are made in memory full of a pattern, of images among which one is bad in some way. Either
there is an error, or each slot equals what Pillow and PyTorch make of the same bytes.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import re
import warnings
from typing import TYPE_CHECKING, Any

import made
import numpy as np
import pytest
import torch
from PIL import Image

import packio
from packio.errors import PackioError
from packio.images import frames, tensors
from packio.images.frames import Frame
from packio.images.geometry import Geometry, Uniforms
from packio.packs import opening
from packio.packs.table import Row
from packio.sample.packed import Sample

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

GEOMETRIES: dict[str, Any] = {
    "rrc": packio.RandomResizedCrop(48),
    "rrc, bicubic": packio.RandomResizedCrop((30, 40), interpolation="bicubic"),
    "rrc, much smaller": packio.RandomResizedCrop(24, scale=(0.4, 0.8)),
    "random crop": packio.RandomCrop(100, padding=30),
    "center crop": packio.CenterCrop(90),
    "larger center crop": packio.CenterCrop(320),
    "resize": packio.Resize((50, 40)),
    "resize center crop": packio.ResizeCenterCrop(48),
    "bucket, padded": packio.BucketCrop((120, 200), small="pad"),
    "as it is": None,
}
_PATTERNS = (0xA5, 0x3C)
_NEAR = 40  # grey levels, mean: what fast may differ by where a JPEG is damaged, too


# ---- bad samples ----


def _restarts(data: bytes) -> list[int]:
    return [m.start() + 1 for m in re.finditer(rb"\xff[\xd0-\xd7]", data)]


def _with(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def _dropped(data: bytes) -> bytes:
    start, stop = _restarts(data)[4:6]
    return data[: start + 1] + data[stop + 1 :]


def _swapped(data: bytes) -> bytes:
    """Two neighbouring markers have each other's number."""
    one, two = _restarts(data)[7:9]
    return _with(_with(data, one, data[two : two + 1]), two, data[one : one + 1])


def _noisy(data: bytes, where: float) -> bytes:
    """Forty bytes of the entropy-coded data are others."""
    at = int(len(data) * where)
    noise = np.random.default_rng(3).integers(1, 250, 40, np.uint8).tobytes()
    return _with(data, at, noise)


BAD: dict[str, Callable[[bytes], bytes]] = {
    "good": lambda data: data,
    "noise": lambda data: _noisy(data, 0.6),
    "noise near the start": lambda data: _noisy(data, 0.2),
    "one bit": lambda data: _with(data, len(data) // 2, bytes([data[len(data) // 2] ^ 4])),
    "half": lambda data: data[: len(data) // 2],
    "no end": lambda data: data[:-2],
    "cut and ended": lambda data: data[: len(data) * 2 // 3] + b"\xff\xd9",
    "a segment dropped": _dropped,
    "a restart of another number": lambda data: _with(data, _restarts(data)[9], b"\xd0"),
    "restarts swapped": _swapped,
    "no restart": lambda data: _with(data, _restarts(data)[9] - 1, b"\1\1"),
    "a restart too many": lambda data: _with(data, sum(_restarts(data)[9:11]) // 2, b"\xff\xd3"),
}  # fmt: skip


def _jpeg(pixels: np.ndarray) -> bytes:
    return made.saved(pixels, "JPEG", quality=92, subsampling=2, restart_marker_blocks=5)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory, photos: list[np.ndarray]) -> pathlib.Path:
    """Two good samples, then a bad one of each kind, all of other sizes."""
    photo = [photos[0], photos[1], *([photos[2]] * len(BAD))]
    made = [lambda data: data, lambda data: data, *BAD.values()]
    samples = []
    for i, (pixels, damage) in enumerate(zip(photo, made, strict=True)):
        height, width = 200 + 3 * i, 290 - 2 * i
        resized = np.asarray(Image.fromarray(pixels).resize((width, height)))
        data = damage(_jpeg(resized))
        samples.append(Sample(i, f"{i:02d}.jpg", data, "jpeg", label=i, height=height, width=width))
    out = tmp_path_factory.mktemp("poison") / "bad.lmdb"
    packio.pack(samples, out)
    return out


# ---- what is expected ----


@dataclasses.dataclass(frozen=True)
class _Recorded:
    """A geometry that remembers its frames, by the size of the image."""

    crop: Geometry
    frames: dict[tuple[int, int], Frame]

    @property
    def interpolation(self) -> str:
        return self.crop.interpolation

    @property
    def draws(self) -> int:
        return self.crop.draws

    @property
    def output_size(self) -> tuple[int, int] | None:
        return self.crop.output_size

    def frame(self, height: Any, width: Any, u: Uniforms) -> Frame:
        frame = self.crop.frame(height, width, u)
        if isinstance(height, int):  # few samples are framed one by one
            self.frames[height, width] = frame
            return frame
        sizes = zip(height.tolist(), width.tolist(), strict=True)
        self.frames.update(zip(sizes, frames.each(frame, len(height)), strict=True))
        return frame


@functools.cache
def _pillows(data: bytes) -> np.ndarray | None:
    try:
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    except OSError:
        return None


def _expected(pixels: np.ndarray, f: Frame | None, how: str) -> torch.Tensor:
    """The output, made of all pixels, mirrored."""
    image = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    if f is None:
        return image.flip(2)
    image = image[:, f.top : f.top + f.height, f.left : f.left + f.width]
    if (f.height, f.width) != (f.to_height, f.to_width):
        image = torch.nn.functional.interpolate(
            image[None], (f.to_height, f.to_width), mode=how, antialias=True
        )[0]
    ends = f.out_top + f.out_height - f.to_height, f.out_left + f.out_width - f.to_width
    sides = (-f.out_left, ends[1], -f.out_top, ends[0])  # negative ones are cut off
    return torch.nn.functional.pad(image, sides).flip(2)


@dataclasses.dataclass
class _Case:
    """A dataset of bad samples, and what Pillow says of each."""

    dataset: packio.PackDataset
    frames: dict[tuple[int, int], Frame]
    pixels: list[np.ndarray | None]
    expected: dict[int, torch.Tensor]  # of the batch that is looked at

    def check(self, images: Any, indices: list[int], limit: float) -> None:
        """Hold each slot against the sample that it should be of."""
        for image, index in zip(images, indices, strict=True):
            if index not in self.expected:
                self.expected[index] = self._made(index)
            difference = (image.short() - self.expected[index].short()).abs()
            assert difference.sum() <= limit * difference.numel(), [*["good"] * 2, *BAD][index]

    def _made(self, index: int) -> torch.Tensor:
        pixels, crop = self.pixels[index], self.dataset._settings.views[0]
        assert pixels is not None, f"{list(BAD)[index - 2]}: Pillow does not decode it"
        frame = self.frames[pixels.shape[:2]] if crop else None
        return _expected(pixels, frame, crop.interpolation if crop else "")


def _case(path: pathlib.Path, name: str, options: dict[str, Any]) -> _Case:
    frames: dict[tuple[int, int], Frame] = {}
    crop = None if GEOMETRIES[name] is None else _Recorded(GEOMETRIES[name], frames)
    dataset = packio.LmdbDataset(
        path, crop=crop, hflip=1, seed=5, fields=("image", "index"), threads=1, **options
    )
    return _Case(dataset, frames, [_pillows(sample.data) for sample in dataset.pack], {})


def _poisoned(monkeypatch: pytest.MonkeyPatch, pattern: int) -> None:
    ours = tensors.new_batch
    monkeypatch.setattr(tensors, "new_batch", lambda *of: ours(*of).fill_(pattern))


def _batches(case: _Case, indices: list[int], pattern: int) -> list[tuple[torch.Tensor, list[int]]]:
    """The same batch in a new tensor, and in one that was given; [] where there is an error."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # replaced by another sample
        try:
            samples = case.dataset.__getitems__(indices)
            found.append(([i for i, _ in samples], [index for _, index in samples]))
        except PackioError:
            pass
        size = case.dataset._options["crop"] and case.dataset._options["crop"].output_size
        if size:
            out = torch.full((len(indices), 3, *size), pattern, dtype=torch.uint8)
            try:
                _, positions = case.dataset.gather(indices, out=out)
                found.append((list(out), positions.tolist()))
            except PackioError:
                pass
            assert len(found) != 1
    return found  # type: ignore[return-value]  # lists of images will do


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("fidelity", ["exact", "fast"])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_no_pixel_is_anothers(
    pack: pathlib.Path, name: str, fidelity: str, on_error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = _case(pack, name, {"fidelity": fidelity, "on_error": on_error})
    for bad in range(2, len(case.pixels)):
        case.expected.clear()
        made = []
        for pattern in _PATTERNS if on_error == "skip" else _PATTERNS[:1]:
            with monkeypatch.context() as patch:
                _poisoned(patch, pattern)
                made.append(_batches(case, [0, bad, 1], pattern))
            for images, indices in made[-1]:
                case.check(images, indices, 0 if fidelity == "exact" else _NEAR)
                assert indices == [0, bad, 1] or (indices == [0, 1, 1] and on_error == "skip")
        assert bool(made[0]) or (on_error == "raise" and case.pixels[bad] is None), bad
        for (one, _), (other, _) in zip(made[0], made[-1], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("change", [(0, 16), (0, -16), (-24, 0), (-9999, -9999), (5000, 5000)])
@pytest.mark.parametrize("fidelity", ["exact", "fast"])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_an_index_that_lies_about_a_size_is_found_out(
    pack: pathlib.Path, name: str, fidelity: str, change: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    case = _case(pack, name, {"fidelity": fidelity, "on_error": "raise"})
    rows = opening.Pack.rows

    def lying(self: opening.Pack, *given: Any) -> list[Row]:
        found = rows(self, *given)
        for i, row in enumerate(found):
            if row.position == 2:
                height, width = max(row.height + change[0], 1), max(row.width + change[1], 1)
                found[i] = row._replace(height=height, width=width)
        return found

    monkeypatch.setattr(opening.Pack, "rows", lying)
    with pytest.raises(packio.DecodeError, match="decodes to"):
        case.dataset.__getitems__([0, 2, 1])
    case.check([i for i, _ in case.dataset.__getitems__([0, 1])], [0, 1], _NEAR)
