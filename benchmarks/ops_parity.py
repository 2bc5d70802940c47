"""Compare each operation of packio.ops with its reference, value by value.

References are torchvision's functional on Pillow's images, Pillow itself, and timm's. Images are
photographs and noise of odd sizes, in RGB and gray. Chains are ten random operations in a row.
"on_tensors": how far torchvision's own operations on tensors are from those on Pillow's images.

    python benchmarks/ops_parity.py [--rounds 40] [--save]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _results
import numpy as np
import torch
from PIL import Image, ImageFilter
from skimage import data as photographs

from packio import ops

sys.path.append(str(Path(__file__).parent.parent / "tests" / "support"))
from vision import import_torchvision

F = import_torchvision().transforms.functional
HOW = {h: import_torchvision().transforms.InterpolationMode(h)
       for h in ("nearest", "bilinear", "bicubic")}  # fmt: skip
Rng = np.random.Generator
Call = Callable[[Any], Any]


def images(rng: Rng) -> Iterator[Image.Image]:
    """Parts of photographs, and noise, in RGB and gray."""
    for source in (photographs.astronaut(), photographs.coffee(), photographs.rocket()):
        photo = Image.fromarray(source).crop((30, 20, 30 + int(rng.integers(2, 260)),
                                              20 + int(rng.integers(2, 260))))  # fmt: skip
        yield photo
        yield photo.convert("L")
    noise = rng.integers(0, 256, (int(rng.integers(1, 99)), int(rng.integers(1, 99)), 3), np.uint8)
    yield Image.fromarray(noise)


def cases(rng: Rng) -> Iterator[tuple[str, str, Call, Call]]:
    """Operation, reference, packio's call, the reference's, with random arguments."""
    factor = float(rng.choice([0.0, 0.3, 1.0, 1.7, 3.0, rng.uniform(0, 4)]))
    for name in ("brightness", "contrast", "saturation", "sharpness"):
        theirs = getattr(F, f"adjust_{name}")
        yield (name, "torchvision, Pillow", lambda x, n=name: getattr(ops, n)(x, factor),
               lambda x, f=theirs: f(x, factor))  # fmt: skip
    shift = float(rng.uniform(-0.5, 0.5))
    yield (
        "hue",
        "torchvision, Pillow",
        lambda x: ops.hue(x, shift),
        lambda x: F.adjust_hue(x, shift),
    )
    yield ("grayscale", "Pillow", ops.grayscale,
           lambda x: x.convert("L").convert(x.mode))  # fmt: skip
    for name in ("invert", "equalize", "autocontrast"):
        yield name, "torchvision, Pillow", getattr(ops, name), getattr(F, name)
    bits, threshold = int(rng.integers(1, 9)), int(rng.integers(0, 257))
    yield "posterize", "Pillow", lambda x: ops.posterize(x, bits), lambda x: F.posterize(x, bits)
    yield ("solarize", "Pillow", lambda x: ops.solarize(x, threshold),
           lambda x: F.solarize(x, threshold))  # fmt: skip
    angle, fill = float(rng.uniform(-180, 180)), int(rng.integers(0, 256))
    shear = [float(s) for s in rng.uniform(-30, 30, 2)]
    move, scale = [int(m) for m in rng.integers(-40, 40, 2)], float(rng.uniform(0.5, 2))
    for how, mode in HOW.items():
        yield (f"rotate, {how}", "torchvision, Pillow",
               lambda x, h=how: ops.rotate(x, angle, interpolation=h, fill=fill),
               lambda x, m=mode: F.rotate(x, angle, m, fill=fill_of(x, fill)))  # fmt: skip
        yield (f"affine, {how}", "torchvision, Pillow",
               lambda x, h=how: ops.affine(x, angle, move, scale, shear, h, fill),
               lambda x, m=mode: F.affine(x, angle, move, scale, shear, m,
                                          fill=fill_of(x, fill)))  # fmt: skip
    radius = float(rng.uniform(0.1, 3))
    yield ("pillow_blur", "Pillow", lambda x: ops.pillow_blur(x, radius),
           lambda x: x.filter(ImageFilter.GaussianBlur(radius)))  # fmt: skip
    size, sigma = int(rng.choice([3, 5, 9, 23])), float(rng.uniform(0.1, 2))
    yield ("gaussian_blur", "torchvision", lambda x: ops.gaussian_blur(x, size, sigma),
           lambda x: F.gaussian_blur(x, [size, size], [sigma, sigma]))  # fmt: skip


def fill_of(image: Any, fill: int) -> Any:
    """A fill as torchvision takes it for Pillow's image, or for a tensor."""
    return [float(fill)] * len(image) if isinstance(image, torch.Tensor) else fill


def as_tensor(image: Image.Image) -> torch.Tensor:
    """The bytes of an image, (C, H, W)."""
    pixels = np.array(image)
    return torch.from_numpy(pixels.reshape(image.height, image.width, -1)).permute(2, 0, 1)


def compare(row: dict[str, Any], ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Count values that differ, and by how much."""
    away = (ours.int() - theirs.int()).abs()
    row |= {name: row.get(name, 0) for name in ("values", "differing", "most")}
    row["values"] += away.numel()
    row["differing"] += int((away > 0).sum())
    row["most"] = max(row["most"], int(away.max()))


def main() -> None:
    """Compare all operations."""
    parser = _results.parser(__doc__, rounds=40)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    found: dict[str, dict[str, Any]] = {}
    for _ in range(given.rounds):
        for image in images(rng):
            tensor = as_tensor(image).contiguous()
            chain: list[tuple[Call, Call]] = []
            for name, against, ours, theirs in cases(rng):
                if name == "gaussian_blur" and min(image.size) < 12:
                    continue  # torch pads by reflection, which needs more pixels
                row = found.setdefault(name, {"reference": against})
                made = ours(tensor)
                compare(row, made, as_tensor(theirs(image)))
                of_tensors = "torchvision" in against or name in ("posterize", "solarize")
                if of_tensors and "bicubic" not in name:  # which it refuses
                    compare(row.setdefault("on_tensors", {}), made, theirs(tensor))
                if name != "gaussian_blur":
                    chain.append((ours, theirs))
            made, wanted = tensor, image
            for i in rng.permutation(len(chain))[:10]:
                made, wanted = chain[i][0](made), chain[i][1](wanted)
            row = found.setdefault("chains of ten", {"reference": "all but torchvision's blur"})
            compare(row, made, as_tensor(wanted))
    result = {"machine": _results.machine("torch", "torchvision", "pillow", "timm"),
              "operations": found}  # fmt: skip
    _results.finish("ops_parity", result, keep=given.save)


if __name__ == "__main__":
    main()
