"""What an operation costs: packio.ops, and Pillow or torchvision on Pillow's image.

Images are scikit-image's photographs, 224 x 224 pixels, RGB. The ways take turns on each of them,
in one thread: microseconds of a processor for one image, without conversions between tensors and
images, and the ratio of each two that follow each other. "batch": packio, for each image of a batch
of 16. A single call also pays for Python and for the memory of its result.

    python benchmarks/ops.py [--rounds 40] [--save]
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _results
import numpy as np
import torch
from PIL import Image, ImageFilter
from skimage import data

from packio import ops
from packio.images import native

sys.path.append(str(Path(__file__).parent.parent / "tests" / "support"))
from vision import import_torchvision

SIDE, BATCH = 224, 16
PHOTOS = (data.astronaut, data.coffee, data.chelsea, data.rocket)
F = import_torchvision().transforms.functional
MODES = {how: import_torchvision().transforms.InterpolationMode(how)
         for how in ("nearest", "bilinear", "bicubic")}  # fmt: skip
CORNERS = [[0, 0], [SIDE - 1, 0], [SIDE - 1, SIDE - 1], [0, SIDE - 1]]
MOVED = [[20, 9], [SIDE - 31, 0], [SIDE - 1, SIDE - 12], [5, SIDE - 40]]
Call = Callable[[Any], Any]


def cases() -> dict[str, tuple[str, tuple[Any, ...], Call]]:
    """What is measured -> a function of packio.ops, its arguments, and the other way."""
    found: dict[str, tuple[str, tuple[Any, ...], Call]] = {
        "brightness": ("brightness", (1.4,), lambda x: F.adjust_brightness(x, 1.4)),
        "contrast": ("contrast", (1.4,), lambda x: F.adjust_contrast(x, 1.4)),
        "saturation": ("saturation", (1.4,), lambda x: F.adjust_saturation(x, 1.4)),
        "sharpness": ("sharpness", (1.4,), lambda x: F.adjust_sharpness(x, 1.4)),
        "hue": ("hue", (0.1,), lambda x: F.adjust_hue(x, 0.1)),
        "grayscale": ("grayscale", (), lambda x: F.to_grayscale(x, 3)),
        "invert": ("invert", (), F.invert),
        "posterize": ("posterize", (4,), lambda x: F.posterize(x, 4)),
        "solarize": ("solarize", (128,), lambda x: F.solarize(x, 128)),
        "equalize": ("equalize", (), F.equalize),
        "autocontrast": ("autocontrast", (), F.autocontrast),
    }
    for how, mode in MODES.items():
        found[f"rotate, {how}"] = (
            "rotate", (17.0, how), lambda x, m=mode: F.rotate(x, 17.0, m),
        )  # fmt: skip
        found[f"affine, {how}"] = (
            "affine", (17.0, [9, -5], 1.1, [10.0, 0.0], how),
            lambda x, m=mode: F.affine(x, 17.0, [9, -5], 1.1, [10.0, 0.0], m),
        )  # fmt: skip
        found[f"perspective, {how}"] = (
            "perspective", (CORNERS, MOVED, how),
            lambda x, m=mode: F.perspective(x, CORNERS, MOVED, m),
        )  # fmt: skip
    for radius in (0.5, 2.0):
        found[f"pillow_blur, {radius}"] = (
            "pillow_blur", (radius,), lambda x, r=radius: x.filter(ImageFilter.GaussianBlur(r)),
        )  # fmt: skip
    for size, sigma in ((3, 0.6), (5, 1.1), (9, 1.7), (23, 1.0), (23, 3.8)):
        found[f"gaussian_blur, {size} x {size}, {sigma}"] = (
            "gaussian_blur", (size, sigma), lambda x, k=size, s=sigma: F.gaussian_blur(x, k, s),
        )  # fmt: skip
    return found


def as_tensor(image: Image.Image) -> torch.Tensor:
    """The bytes of an image, (C, H, W)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def measure(call: Call, given: Any) -> float:
    """Microseconds of a processor."""
    start = time.process_time()
    call(given)
    return 1e6 * (time.process_time() - start)


def in_turns(ours: Call, theirs: Call, images: list[Image.Image], rounds: int) -> dict[str, Any]:
    """Microseconds an image of both ways, of each image in each round."""
    tensors = [as_tensor(image) for image in images]
    batch = torch.stack(tensors * (BATCH // len(tensors)))
    micros: dict[str, list[float]] = {"reference": [], "packio": [], "batch": []}
    for i in range(-1, rounds):
        for image, tensor in zip(images, tensors, strict=True):
            took = measure(theirs, image), measure(ours, tensor), measure(ours, batch) / BATCH
            if i >= 0:  # the first round warms up
                for name, each in zip(micros, took, strict=True):
                    micros[name].append(each)
    away = max(
        int((ours(tensor).int() - as_tensor(theirs(image)).int()).abs().max())
        for image, tensor in zip(images, tensors, strict=True)
    )
    return {
        "microseconds": {n: _results.summary(v, 0, quartiles=True) for n, v in micros.items()},
        "times as fast": _results.summary(
            _results.ratios(micros["reference"], micros["packio"]), 2, quartiles=True
        ),
        "differs by at most": away,
    }


def main() -> None:
    """Measure and print."""
    options = _results.parser(__doc__, rounds=40).parse_args()
    torch.set_num_threads(1)
    images = [Image.fromarray(photo()).resize((SIDE, SIDE)) for photo in PHOTOS]
    found, left_out = {}, []
    for title, (name, arguments, theirs) in cases().items():
        function = getattr(ops, name, None)
        if function is None:
            left_out.append(title)
            continue

        def ours(x: torch.Tensor, f: Any = function, a: Any = arguments) -> torch.Tensor:
            made: torch.Tensor = f(x, *a)
            return made

        try:
            found[title] = in_turns(ours, theirs, images, options.rounds)
        except ValueError:  # the core does not know the operator
            left_out.append(title)
    result = {
        "machine": _results.machine(
            "pillow", "torch", "torchvision", "numpy",
            kernels=native.kernels(), load=round(os.getloadavg()[0]),
        ),
        "rounds": options.rounds,
        "operations": found,
        "left out": left_out,
    }  # fmt: skip
    _results.finish("ops", result, keep=options.save)


if __name__ == "__main__":
    main()
