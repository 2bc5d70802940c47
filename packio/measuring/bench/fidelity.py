"""How far decoders are from Pillow's pixels, and their crops from Pillow's and torchvision's.

>>> from packio.measuring.bench import fidelity
>>> result = fidelity.measure(crops=1, decoders=["simplejpeg"])
>>> [(row.fidelity, row.torchvision.maximum) for row in result.rows if row.fidelity == "exact"][0]
('exact', 0)
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterable

import numpy as np
import torch
from PIL import Image

from packio import registry
from packio.batches import draws
from packio.errors import DecodeError, OptionError
from packio.images.decoders import Decoder
from packio.images.frames import Frame, Placement
from packio.images.geometry import RandomResizedCrop
from packio.images.regions import FIDELITIES, compute_need, decode, render
from packio.measuring.bench.images import collect, find_decoders
from packio.system.progress import Meter, ProgressCallback

_IDENTICAL = 99.0  # decibels, of images without any difference


@dataclasses.dataclass(frozen=True)
class Distance:
    """How far images are from their references."""

    maximum: int  # difference of a value, in grey levels
    mean: float  # absolute difference of a value, in grey levels
    share: float  # of the pixels that differ, 0 to 1
    psnr: float  # decibels: mean of the images; an image that is identical counts as 99
    lowest_psnr: float
    off: float  # share of the values that differ by more than 1 grey level, 0 to 1


class Differences:
    """Sums up differences of images, (H, W, 3) uint8 RGB, to their references."""

    def __init__(self) -> None:
        self.refused = 0  # images that the decoder refused
        self.psnrs: list[float] = []
        self._maximum = self._total = self._values = self._off = self._differing = 0

    def add(self, pixels: np.ndarray, reference: np.ndarray) -> None:
        difference = np.abs(pixels.astype(np.int32) - reference)
        self._maximum = max(self._maximum, int(difference.max()))
        self._total += int(difference.sum())
        self._values += difference.size
        self._off += int((difference > 1).sum())
        self._differing += int(difference.any(axis=2).sum())
        error = float((difference**2).mean())
        self.psnrs.append(float(10 * np.log10(255**2 / error)) if error else _IDENTICAL)

    def distance(self) -> Distance | None:
        """Sum up; None if no image was added."""
        if not self._values:
            return None
        mean, off = self._total / self._values, self._off / self._values
        psnr, share = sum(self.psnrs) / len(self.psnrs), 3 * self._differing / self._values
        return Distance(self._maximum, mean, share, psnr, min(self.psnrs), off)


@dataclasses.dataclass(frozen=True)
class FidelityRow:
    """Distances of one decoder's crops, at one fidelity, to those of Pillow and of torchvision."""

    decoder: str
    fidelity: str
    crops: int
    pillow: Distance
    torchvision: Distance


@dataclasses.dataclass(frozen=True)
class FidelityResult:
    """What `measure` found."""

    origin: str
    images: int  # JPEGs
    left_out: int  # other images, and JPEGs that Pillow does not decode
    size: int  # side of the crops, pixels
    interpolation: str
    reference: str  # the library that made the crops called torchvision's, with its version
    versions: dict[str, str]
    missing: dict[str, str]  # decoder → how to install it
    rows: list[FidelityRow]


def measure(
    path: str | os.PathLike[str] | None = None, *, decoders: Iterable[str] | None = None,
    limit: int = 500, crops: int | None = None, size: int = 224, interpolation: str = "bilinear",
    progress: ProgressCallback | None = None,
) -> FidelityResult:  # fmt: skip
    """Compare crops of JPEGs, each decoded whole, with Pillow's and torchvision's of these boxes.

    Torchvision v2 takes what Pillow decodes as a uint8 tensor. `crops` are those of each image;
    None: 2, or as many as make a hundred in all.
    """
    if crops is not None and crops < 1:
        raise OptionError(f"crops={crops}: expected 1 or more")
    versions, missing = find_decoders(decoders)
    names = [n for n in versions if "jpeg" in registry.load("decoders", n).ENCODINGS]
    ways = list(itertools.product(map(Decoder, names), FIDELITIES))
    found = collect(path, limit)
    images = [image for image in found.images if image.stored.encoding == "jpeg"]
    each = crops or max(2, -(-100 // max(len(images), 1)))
    crop = RandomResizedCrop(size, interpolation=interpolation)
    resize, reference = _find_resize(interpolation)
    totals = [(Differences(), Differences()) for _ in ways]
    meter, measured = Meter(progress), 0
    meter.begin("comparing", len(images))
    for i, (data, stored) in enumerate(images):
        try:
            pixels = registry.load("decoders", "pillow").decode(data, "RGB")
        except DecodeError:
            continue
        measured += 1
        numbers = draws.uniforms(0, np.arange(i * each, (i + 1) * each), 0, crop.draws).tolist()
        for frame in (crop.frame(stored.height, stored.width, u) for u in numbers):
            pillows = _crop_as_pillow(pixels, frame, interpolation)
            theirs = _crop_as_torchvision(pixels, frame, resize)
            for (decoder, fidelity), (to_pillow, to_torchvision) in zip(ways, totals, strict=True):
                need = compute_need(Placement(frame), stored.height, stored.width, interpolation,
                              fast=fidelity == "fast")  # fmt: skip
                part = decode(decoder, data, stored, [need])
                ours = render(part, need, None).transpose(1, 2, 0)
                to_pillow.add(ours, pillows)
                to_torchvision.add(ours, theirs)
        meter.step(1, 0)
    if not measured:
        raise OptionError(f"{found.origin}: no JPEG that Pillow decodes; expected at least one")
    rows = [
        FidelityRow(decoder.name, fidelity, measured * each, pillow, torchvision)
        for (decoder, fidelity), total in zip(ways, totals, strict=True)
        for pillow, torchvision in [(total[0].distance(), total[1].distance())]
        if pillow and torchvision
    ]
    left_out = found.unreadable + len(found.images) - measured
    return FidelityResult(found.origin, measured, left_out, size, interpolation, reference,
                          versions, missing, rows)  # fmt: skip


def _crop_as_pillow(pixels: np.ndarray, f: Frame, how: str) -> np.ndarray:
    box = Image.fromarray(pixels).crop((f.left, f.top, f.left + f.width, f.top + f.height))
    return np.asarray(box.resize((f.to_width, f.to_height), Image.Resampling[how.upper()]))


def _crop_as_torchvision(
    pixels: np.ndarray, f: Frame, resize: Callable[..., torch.Tensor]
) -> np.ndarray:
    box = torch.from_numpy(pixels[f.top : f.top + f.height, f.left : f.left + f.width])
    size = [f.to_height, f.to_width]
    resized: np.ndarray = resize(box.permute(2, 0, 1)[None], size)[0].permute(1, 2, 0).numpy()
    return resized


def _find_resize(how: str) -> tuple[Callable[..., torch.Tensor], str]:
    """Return ``resize`` of torchvision, or else the same by PyTorch; and its name."""
    try:
        import torchvision
        from torchvision.transforms.v2 import functional
    except (ImportError, OSError, RuntimeError):  # it does not fit the torch that is installed
        made = functools.partial(torch.nn.functional.interpolate, mode=how, antialias=True)
        return made, f"interpolate of torch {torch.__version__}"
    mode = torchvision.transforms.InterpolationMode(how)
    made = functools.partial(functional.resize, interpolation=mode, antialias=True)
    return made, f"torchvision {torchvision.__version__}"
