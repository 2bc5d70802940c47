"""What a mask and a plain PNG cost: Pillow, and packio's own way with ISA-L and the native core.

Masks are areas of 20 classes with ragged edges, photographs are scikit-image's, all of 500 x 375
pixels. Each is written by Pillow and by OpenCV, whose filters and compression differ. The ways take
turns; both must give the same pixels. Processor time of one thread, so that other work on the
machine counts little.

    python benchmarks/png.py [--rounds 40] [--save]
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import _results
import cv2
import numpy as np
from PIL import Image
from skimage import data

from packio.batches import masks
from packio.images.decoders import isal, pillow

HEIGHT, WIDTH, CLASSES, COUNT = 375, 500, 20, 8
PHOTOS = (data.astronaut, data.coffee, data.chelsea, data.rocket)
Decode = Callable[[bytes], np.ndarray]


def ids(seed: int) -> np.ndarray:
    """(H, W) class ids: each pixel has that of the nearest of some points."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    bend = 12 * np.sin(y / 23) + 9 * np.cos(x / 17) + rng.normal(0, 0.7, y.shape)
    points = rng.random((CLASSES, 2)) * (HEIGHT, WIDTH)
    near: np.ndarray = np.argmin([(y - a + bend) ** 2 + (x - b + bend) ** 2 for a, b in points], 0)
    return near.astype(np.uint8)


def by_pillow(pixels: np.ndarray, *, palette: bool = False) -> bytes:
    """A PNG that Pillow writes."""
    image = Image.fromarray(pixels)
    if palette:
        image.putpalette(bytes(range(256)) * 3)
    held = io.BytesIO()
    image.save(held, "PNG")
    return held.getvalue()


def by_opencv(pixels: np.ndarray) -> bytes:
    """A PNG that OpenCV writes."""
    encoded: np.ndarray = cv2.imencode(".png", pixels[..., ::-1] if pixels.ndim == 3 else pixels)[1]
    return encoded.tobytes()


def in_turns(datas: list[bytes], old: Decode, new: Decode, rounds: int) -> dict[str, Any]:
    """Microseconds a PNG of both ways, of each PNG in each round."""
    for one in datas:
        np.testing.assert_array_equal(old(one), new(one))
    micros: dict[str, list[float]] = {"pillow": [], "packio": []}
    for _ in range(rounds):
        for one in datas:
            for name, decode in (("pillow", old), ("packio", new)):
                start = time.process_time()
                decode(one)
                micros[name].append(1e6 * (time.process_time() - start))
    return {
        "bytes": sum(map(len, datas)) // len(datas),
        "microseconds": {n: _results.summary(v, 0, quartiles=True) for n, v in micros.items()},
        "times as fast": _results.summary(_results.ratios(*micros.values()), 2, quartiles=True),
    }


def main() -> None:
    """Measure and print."""
    options = _results.parser(__doc__, rounds=40).parse_args()
    labels = [ids(seed) for seed in range(COUNT)]
    photos = [np.asarray(Image.fromarray(p()).resize((WIDTH, HEIGHT))) for p in PHOTOS]
    size = HEIGHT, WIDTH
    old, new = partial(masks.decode_with_pillow, size=size), partial(masks.decode, size=size)
    sets: dict[str, tuple[list[bytes], Decode, Decode]] = {
        "mask, palette, Pillow": ([by_pillow(p, palette=True) for p in labels], old, new),
        "mask, gray, Pillow": ([by_pillow(p) for p in labels], old, new),
        "mask, gray, OpenCV": ([by_opencv(p) for p in labels], old, new),
        "photograph, Pillow": ([by_pillow(p) for p in photos], pillow.decode, isal.decode),
        "photograph, OpenCV": ([by_opencv(p) for p in photos], pillow.decode, isal.decode),
    }
    _results.finish(
        "png",
        {
            "machine": _results.machine(
                "pillow", "isal", "opencv-python-headless", "numpy", load=round(os.getloadavg()[0])
            ),
            "rounds": options.rounds,
            "pngs": {n: in_turns(*what, options.rounds) for n, what in sets.items()},
        },
        keep=options.save,
    )


if __name__ == "__main__":
    main()
