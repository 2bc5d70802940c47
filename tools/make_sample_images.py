"""Write an image folder of real photographs, for trying packio out without downloading anything.

scikit-image and scikit-learn carry a few real photographs in their wheels. Each file written here
is a random crop of one of them, resized, perhaps mirrored, saved as JPEG. File ``i`` depends on
``(seed, i)`` and the options alone, so the same command writes the same pixels again, and a larger
``--n`` only adds files.

    python tools/make_sample_images.py OUT --n 400 --classes 4 --size 500
"""

from __future__ import annotations

import argparse
import functools
import importlib.resources
import pathlib
import random

import numpy as np
from PIL import Image

# class → its photographs, as package/path within the package
GROUPS = {
    "nature": ("skimage/data/chelsea.png", "sklearn/datasets/images/flower.jpg"),
    "machines": (
        "skimage/data/rocket.jpg",
        "skimage/data/motorcycle_left.png",
        "skimage/data/motorcycle_right.png",
    ),
    "science": (
        "skimage/data/hubble_deep_field.jpg",
        "skimage/data/retina.jpg",
        "skimage/data/ihc.png",
    ),
    "people": (
        "skimage/data/astronaut.png",
        "skimage/data/coffee.png",
        "sklearn/datasets/images/china.jpg",
    ),
    "textures": ("skimage/data/brick.png", "skimage/data/grass.png", "skimage/data/gravel.png"),
    "gray": ("skimage/data/camera.png", "skimage/data/coins.png", "skimage/data/moon.png"),
}
COLOUR = ("nature", "machines", "science", "people")  # the groups whose photographs are in colour

_SHAPES = (4 / 3, 4 / 3, 3 / 2, 1.0, 3 / 4, 2 / 3)  # width / height, as cameras make them
_QUALITIES = (85, 90, 90, 92, 95)
_SUBSAMPLINGS = ("4:2:0", "4:2:0", "4:2:0", "4:2:2", "4:4:4")


@functools.cache
def photograph(name: str) -> Image.Image:
    """Open one of the photographs of GROUPS, as RGB.

    Args:
        name: As in GROUPS, for example "skimage/data/chelsea.png".
    """
    package, _, path = name.partition("/")
    with (importlib.resources.files(package) / path).open("rb") as file:
        return Image.open(file).convert("RGB")


def photographs(groups: tuple[str, ...] = COLOUR) -> list[np.ndarray]:
    """Load all photographs of some groups, in their own sizes.

    Returns:
        (H, W, 3) uint8 RGB arrays.
    """
    return [np.array(photograph(name)) for group in groups for name in GROUPS[group]]


def sample(group: str, number: int, *, seed: int = 0, size: int = 500) -> Image.Image:
    """Make one sample: a random crop of one photograph of a group, resized, perhaps mirrored.

    Args:
        group: A class of GROUPS.
        number: Which sample; the same number gives the same pixels.
        seed: Gives other samples altogether.
        size: Longer side, pixels.
    """
    draw = random.Random(f"{seed}/{number}")
    photo = photograph(draw.choice(GROUPS[group]))
    shape = draw.choice(_SHAPES)
    room = min(photo.width, photo.height * shape)  # pixels, the widest crop of this shape
    width = room * draw.uniform(0.5, 1.0)
    height = width / shape
    left, top = draw.uniform(0, photo.width - width), draw.uniform(0, photo.height - height)
    target = (size, round(size / shape)) if shape >= 1 else (round(size * shape), size)
    box = (left, top, left + width, top + height)
    image = photo.resize(target, Image.Resampling.BICUBIC, box)
    if draw.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return image.convert("L") if group not in COLOUR else image


def write(
    out: pathlib.Path, *, n: int, classes: int, size: int = 500, seed: int = 0
) -> dict[str, int]:
    """Write an image folder: one folder a class, n JPEG files in all.

    Returns:
        How many files each class has.
    """
    groups = list(GROUPS)[:classes]
    counts = dict.fromkeys(groups, 0)
    for number in range(n):
        group = groups[number % classes]
        path = out / group / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        draw = random.Random(f"{seed}/{number}/jpeg")
        sample(group, number, seed=seed, size=size).save(
            path, quality=draw.choice(_QUALITIES), subsampling=draw.choice(_SUBSAMPLINGS)
        )
        counts[group] += 1
    return counts


def main() -> None:
    """Parse the command line, write the files, print how many."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=pathlib.Path, help="folder to write; made if missing")
    parser.add_argument("--n", type=int, default=400, help="files in all (default: %(default)s)")
    parser.add_argument(
        "--classes",
        type=int,
        default=4,
        choices=range(1, len(GROUPS) + 1),
        help=f"how many of {', '.join(GROUPS)} (default: %(default)s)",
    )
    parser.add_argument(
        "--size", type=int, default=500, help="longer side, pixels (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    options = parser.parse_args()
    counts = write(
        options.out, n=options.n, classes=options.classes, size=options.size, seed=options.seed
    )
    listed = ", ".join(f"{name} {count}" for name, count in counts.items())
    print(f"{options.out}: {sum(counts.values())} images ({listed})")


if __name__ == "__main__":
    main()
