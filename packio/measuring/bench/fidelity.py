"""How far each decoder's crops are from Pillow's and from torchvision's, at each fidelity.

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
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from packio import registry
from packio.batches import draws
from packio.errors import DecodeError, MissingPackageError, OptionError
from packio.images.decoders import Decoder
from packio.images.frames import Frame, Placement
from packio.images.geometry import RandomResizedCrop
from packio.images.jpeg.restarts import is_seekable, make_seekable
from packio.images.regions import FIDELITIES, decode, needed, render
from packio.measuring.bench.decode import available
from packio.measuring.bench.images import Encoded, collect
from packio.measuring.bench.parity import Differences, Distance
from packio.system.progress import Progress

if TYPE_CHECKING:
    from PIL import Image

_SEED = 0


@dataclasses.dataclass(frozen=True)
class FidelityRow:
    """One decoder at one fidelity.

    Attributes:
        decoder, fidelity: The decoder, and "exact" or "fast".
        seekable: Whether the JPEGs have restart markers, so that only the crop is decoded.
        crops: Number of crops compared.
        pillow, torchvision: Distance to the crops of Pillow and of torchvision.
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
class FidelityResult:
    """What `measure` found.

    Attributes:
        origin: Where the images come from.
        images, left_out: Number of JPEGs measured; of other images, and JPEGs that Pillow does not
            decode.
        size, interpolation: Side of the crops in pixels, and how they are resized.
        reference: The library that made the crops called torchvision's, with its version.
        versions: Version of each decoder measured.
        missing: Decoders that are not installed → how to install them.
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
    rows: list[FidelityRow]

    def as_dict(self) -> dict[str, Any]:
        """Give everything as JSON takes it."""
        return dataclasses.asdict(self)


class _Crop(NamedTuple):
    """One crop of one image, and its references: (size, size, 3) uint8 RGB."""

    frame: Frame
    pillow: np.ndarray
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
) -> FidelityResult:
    """Compare crops of JPEGs, as they are and made seekable, with Pillow's and torchvision's.

    RandomResizedCrop draws the boxes, the same for all. Pillow decodes the whole image and resizes
    the box. Torchvision v2 takes what Pillow decodes as a uint8 tensor, crops and resizes it.

    Args:
        path: A folder of images, or a pack; None: sample photographs.
        decoders: Names; None: all that are installed.
        limit: Images at most, spread evenly over those there are.
        crops: Crops of each image; None: 2, or as many as make a hundred in all.
        size: Side of the crops, pixels.
        interpolation: "bilinear" or "bicubic".
        progress: Called after each image.
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
    comparison = _Comparison({name: Decoder(name) for name in names}, interpolation)
    begin, measured = time.perf_counter(), 0
    for i, image in enumerate(images):
        numbers = draws.uniforms(_SEED, np.arange(i * each, (i + 1) * each), 0, crop.draws).tolist()
        frames = [crop.frame(image.stored.height, image.stored.width, u) for u in numbers]
        made = _references(image, frames, resize, interpolation)
        if made:
            measured += 1
            comparison.add(image, made)
        if progress:
            seconds = time.perf_counter() - begin
            progress(Progress(i + 1, len(images), 0, 0, 0, seconds, "comparing"))
    if not measured:
        raise OptionError(f"{found.origin}: no JPEG that Pillow decodes; expected at least one")
    left_out = found.unreadable + len(found.images) - measured
    return FidelityResult(
        found.origin, measured, left_out, size, interpolation, reference, versions, missing,
        comparison.rows(),
    )  # fmt: skip


class _Comparison:
    """Differences of all decoders, fidelities and kinds of JPEG to the references."""

    def __init__(self, decoders: dict[str, Decoder], interpolation: str) -> None:
        self._decoders, self._how = decoders, interpolation
        self._found: dict[tuple[str, str, bool], tuple[Differences, Differences]] = {}
        self._same: Counter[tuple[str, str, bool]] = Counter()

    def add(self, image: Encoded, crops: list[_Crop]) -> None:
        """Make the crops of one image in every way, and compare them."""
        seekable = _seekable(image.data)
        for (name, decoder), fidelity, crop in itertools.product(
            self._decoders.items(), FIDELITIES, crops
        ):
            whole = self._made(decoder, image, crop.frame, fidelity, cuttable=False)
            self._count((name, fidelity, False), whole, whole, crop)
            if seekable is not None:
                cut = image._replace(data=seekable)
                made = self._made(decoder, cut, crop.frame, fidelity, cuttable=True)
                self._count((name, fidelity, True), made, whole, crop)

    def _made(
        self, decoder: Decoder, image: Encoded, frame: Frame, fidelity: str, *, cuttable: bool
    ) -> np.ndarray:
        """Make a crop, (H, W, 3) uint8 RGB."""
        size = image.stored.height, image.stored.width
        wanted = needed(
            Placement(frame), *size, self._how, cuttable=cuttable, fast=fidelity == "fast"
        )
        part = decode(decoder, image.data, image.stored, wanted)
        planes = render(part, wanted, None)
        pixels: np.ndarray = planes.transpose(1, 2, 0)
        return pixels

    def _count(
        self, way: tuple[str, str, bool], made: np.ndarray, whole: np.ndarray, crop: _Crop
    ) -> None:
        pillow, torchvision = self._found.setdefault(way, (Differences(), Differences()))
        pillow.add(made, crop.pillow)
        torchvision.add(made, crop.torchvision)
        self._same[way] += np.array_equal(made, whole)

    def rows(self) -> list[FidelityRow]:
        """Sum up each way."""
        return [
            FidelityRow(
                *way, len(pillow.psnrs), pillow.distance(), theirs.distance(), self._same[way]
            )
            for way, (pillow, theirs) in self._found.items()
        ]


def _seekable(data: bytes) -> bytes | None:
    """Make a seekable JPEG of the same pixels; None if this JPEG cannot be made seekable."""
    try:
        made = make_seekable(data)
    except MissingPackageError:
        return None
    return made if is_seekable(made) else None


def _references(
    image: Encoded, frames: list[Frame], resize: Callable[..., torch.Tensor], how: str
) -> list[_Crop]:
    """Make the crops of an image with Pillow and torchvision; [] if Pillow cannot decode it."""
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
    """Return ``resized_crop`` of torchvision, or else the same by PyTorch; and its name."""
    try:
        import torchvision
        from torchvision.transforms.v2 import functional
    except (ImportError, OSError, RuntimeError):  # it does not fit the torch that is installed
        made = functools.partial(_interpolated, how=how)
        return made, f"interpolate of torch {torch.__version__}"
    mode = torchvision.transforms.InterpolationMode(how)
    resize = functools.partial(functional.resized_crop, interpolation=mode, antialias=True)
    return resize, f"torchvision {torchvision.__version__}"


def _interpolated(
    image: torch.Tensor, top: int, left: int, height: int, width: int, size: list[int], *, how: str
) -> torch.Tensor:
    """Crop and resize as torchvision 0.28 does uint8 on a CPU.

    Source: torchvision, ``transforms.v2.functional.resize_image``.
    """
    box = image[None, :, top : top + height, left : left + width]
    return torch.nn.functional.interpolate(box, size, mode=how, antialias=True)[0]
