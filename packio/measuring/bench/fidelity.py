"""How far each decoder's crops are from Pillow's and from torchvision's, at each fidelity.

>>> from packio.measuring.bench import fidelity
>>> result = fidelity.measure(crops=1, decoders=["simplejpeg"])
>>> [(row.fidelity, row.torchvision.maximum) for row in result.rows if row.fidelity == "exact"][0]
('exact', 0)
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from packio import registry
from packio.batches import draws
from packio.errors import DecodeError, MissingPackageError, OptionError
from packio.images.decoders import Decoder
from packio.images.frames import Frame
from packio.images.geometry import RandomResizedCrop
from packio.images.jpeg.restarts import is_seekable, make_seekable
from packio.images.regions import FIDELITIES, decode, render, want
from packio.measuring.bench._images import Encoded, collect
from packio.measuring.bench.decode import available
from packio.system.progress import Progress

if TYPE_CHECKING:
    from PIL import Image

_IDENTICAL = 99.0  # decibels, for crops without any difference
_SEED = 0


@dataclasses.dataclass(frozen=True)
class Distance:
    """How far crops are from those of a reference.

    Attributes:
        maximum, mean: Largest and mean absolute difference of a value, grey levels.
        psnr, lowest_psnr: Mean and least of the crops' peak signal-to-noise ratios, decibels; 99
            where a crop is identical.
        off: Share of the values that differ by more than 1 grey level, 0 to 1.
    """

    maximum: int
    mean: float
    psnr: float
    lowest_psnr: float
    off: float


@dataclasses.dataclass(frozen=True)
class Row:
    """One decoder at one fidelity.

    Attributes:
        decoder, fidelity: Which.
        seekable: Whether the JPEGs have restart markers, and crops are cut out of them.
        crops: How many were compared.
        pillow, torchvision: Distance to their crops.
        same: Crops that equal, value by value, those of the JPEGs that are not seekable.
    """

    decoder: str
    fidelity: str
    seekable: bool
    crops: int
    pillow: Distance
    torchvision: Distance
    same: int


@dataclasses.dataclass(frozen=True)
class Result:
    """What `measure` found.

    Attributes:
        origin: Where the images come from.
        images, left_out: JPEGs measured; other images, and JPEGs that Pillow does not decode.
        size, interpolation: Of the crops.
        reference: What made those called torchvision's.
        versions: Of each decoder measured.
        missing: Decoders that are not installed, and what to do.
        rows: The measurements.
    """

    origin: str
    images: int
    left_out: int
    size: int
    interpolation: str
    reference: str
    versions: dict[str, str]
    missing: dict[str, str]
    rows: list[Row]

    def as_dict(self) -> dict[str, Any]:
        """Give everything as JSON takes it."""
        return dataclasses.asdict(self)


class _Sum:
    """Sums up distances."""

    def __init__(self) -> None:
        self.maximum = self.total = self.off = self.values = 0
        self.psnrs: list[float] = []

    def add(self, made: np.ndarray, reference: np.ndarray) -> None:
        """Count one crop."""
        difference = np.abs(made.astype(np.int32) - reference)
        self.maximum = max(self.maximum, int(difference.max()))
        self.total += int(difference.sum())
        self.off += int((difference > 1).sum())
        self.values += difference.size
        error = float((difference**2).mean())
        self.psnrs.append(float(10 * np.log10(255**2 / error)) if error else _IDENTICAL)

    def distance(self) -> Distance:
        """All crops'."""
        psnr = sum(self.psnrs) / len(self.psnrs)
        mean, off = self.total / self.values, self.off / self.values
        return Distance(self.maximum, mean, psnr, min(self.psnrs), off)


class _Crop(NamedTuple):
    """One crop of one image, and what it should be."""

    frame: Frame
    pillow: np.ndarray  # (size, size, 3)
    torchvision: np.ndarray


def measure(
    path: str | os.PathLike[str] | None = None,
    *,
    decoders: Iterable[str] | None = None,
    limit: int = 500,
    crops: int | None = None,
    size: int = 224,
    interpolation: str = "bilinear",
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Compare crops of JPEGs, as they are and seekable, with Pillow's and torchvision's.

    The boxes are those of RandomResizedCrop, the same for all. Pillow decodes the whole image and
    resizes the box of it. Torchvision v2 crops and resizes, as a uint8 tensor, what Pillow decodes.

    Args:
        path: A folder of images or a pack; None for sample photographs.
        decoders: Names; None for all that are installed.
        limit: Images at most, evenly spread over those there are.
        crops: Of each image; None: 2, or as many as make a hundred.
        size: Of the crops, pixels.
        interpolation: "bilinear" or "bicubic".
        progress: Called after each image.

    Raises:
        OptionError: a number that cannot be meant, or no such decoder; no JPEG can be measured.
        MissingPackageError: a decoder asked for by name is not installed.
        SourceError: there are no images.
    """
    if crops is not None and crops < 1:
        raise OptionError(f"crops={crops}: expected 1 or more")
    versions, missing = available(decoders)
    names = [n for n in versions if "jpeg" in registry.load("decoders", n).ENCODINGS]
    found = collect(path, limit)
    images = [image for image in found.images if image.stored.encoding == "jpeg"]
    each = crops or max(2, -(-100 // max(len(images), 1)))
    crop = RandomResizedCrop(size, interpolation=interpolation)
    resize, reference = _torchvisions(interpolation)
    sums = _Sums({name: Decoder(name) for name in names}, interpolation)
    begin, measured = time.perf_counter(), 0
    for i, image in enumerate(images):
        numbers = draws.uniforms(_SEED, np.arange(i * each, (i + 1) * each), 0, crop.draws).tolist()
        frames = [crop.frame(image.stored.height, image.stored.width, u) for u in numbers]
        made = _references(image, frames, resize, interpolation)
        if made:
            measured += 1
            sums.add(image, made)
        if progress:
            seconds = time.perf_counter() - begin
            progress(Progress(i + 1, len(images), 0, 0, 0, seconds, "comparing"))
    if not measured:
        raise OptionError(f"{found.origin}: no JPEG that Pillow decodes; expected some")
    left_out = found.unreadable + len(found.images) - measured
    return Result(
        found.origin, measured, left_out, size, interpolation, reference, versions, missing,
        sums.rows(),
    )  # fmt: skip


class _Sums:
    """The sums of all decoders, fidelities and kinds of JPEG."""

    def __init__(self, decoders: dict[str, Decoder], interpolation: str) -> None:
        self._decoders, self._how = decoders, interpolation
        self._sums: dict[tuple[str, str, bool], tuple[_Sum, _Sum]] = {}
        self._same: dict[tuple[str, str, bool], int] = {}

    def add(self, image: Encoded, crops: list[_Crop]) -> None:
        """Make the crops of one image in every way, and compare them."""
        seekable = _seekable(image.data)
        for name, decoder in self._decoders.items():
            for fidelity in FIDELITIES:
                for crop in crops:
                    kept = self._made(decoder, image, crop.frame, fidelity, cuttable=False)
                    self._count((name, fidelity, False), kept, kept, crop)
                    if seekable is not None:
                        cut = image._replace(data=seekable)
                        made = self._made(decoder, cut, crop.frame, fidelity, cuttable=True)
                        self._count((name, fidelity, True), made, kept, crop)

    def _made(
        self, decoder: Decoder, image: Encoded, frame: Frame, fidelity: str, *, cuttable: bool
    ) -> np.ndarray:
        wanted = want(frame, 1, self._how, cuttable=cuttable, fast=fidelity == "fast")
        part = decode(decoder, image.data, image.stored, wanted)
        planes = render(part, wanted, None, hflip=False, vflip=False)
        pixels: np.ndarray = planes.transpose(1, 2, 0)
        return pixels

    def _count(
        self, way: tuple[str, str, bool], made: np.ndarray, kept: np.ndarray, crop: _Crop
    ) -> None:
        pillow, torchvision = self._sums.setdefault(way, (_Sum(), _Sum()))
        pillow.add(made, crop.pillow)
        torchvision.add(made, crop.torchvision)
        self._same[way] = self._same.get(way, 0) + np.array_equal(made, kept)

    def rows(self) -> list[Row]:
        """What was measured."""
        return [
            Row(*way, len(pillow.psnrs), pillow.distance(), theirs.distance(), self._same[way])
            for way, (pillow, theirs) in self._sums.items()
        ]


def _seekable(data: bytes) -> bytes | None:
    """A seekable JPEG of the same pixels; None where there cannot be one."""
    try:
        made = make_seekable(data)
    except MissingPackageError:
        return None
    return made if is_seekable(made) else None


def _references(
    image: Encoded, frames: list[Frame], resize: Callable[..., torch.Tensor], how: str
) -> list[_Crop]:
    """What Pillow and torchvision make of the boxes of an image; [] where Pillow decodes none."""
    from PIL import Image

    try:
        pixels = registry.load("decoders", "pillow").decode(image.data, "RGB")
    except DecodeError:
        return []
    whole, tensor = Image.fromarray(pixels), torch.from_numpy(pixels).permute(2, 0, 1)
    made = []
    for f in frames:
        theirs = resize(tensor, f.top, f.left, f.height, f.width, [f.to_height, f.to_width])
        made.append(_Crop(f, _pillows(whole, f, how), theirs.permute(1, 2, 0).numpy()))
    return made


def _pillows(image: Image.Image, f: Frame, how: str) -> np.ndarray:
    from PIL import Image

    box = (f.left, f.top, f.left + f.width, f.top + f.height)
    method = Image.Resampling[how.upper()]
    return np.asarray(image.crop(box).resize((f.to_width, f.to_height), method))


def _torchvisions(how: str) -> tuple[Callable[..., torch.Tensor], str]:
    """Find torchvision's ``resized_crop``, or PyTorch's part of it, and say which it is."""
    try:
        import torchvision
        from torchvision.transforms.v2 import functional
    except (ImportError, OSError, RuntimeError):  # one that does not go with the torch there is
        return functools.partial(
            _interpolated, how=how
        ), f"interpolate of torch {torch.__version__}"
    mode = torchvision.transforms.InterpolationMode(how)
    resize = functools.partial(functional.resized_crop, interpolation=mode, antialias=True)
    return resize, f"torchvision {torchvision.__version__}"


def _interpolated(
    image: torch.Tensor, top: int, left: int, height: int, width: int, size: list[int], *, how: str
) -> torch.Tensor:
    """As torchvision 0.28, ``transforms.v2.functional.resize_image``, does with uint8 on a CPU."""
    box = image[None, :, top : top + height, left : left + width]
    return torch.nn.functional.interpolate(box, size, mode=how, antialias=True)[0]
