"""Whole recipes of training, from JPEGs to normalised floats: microseconds of a processor.

Candidates take turns within a process, without threads: "packio" with its own transforms; the same
recipe in torchvision's or timm's classes on Pillow's images; "crop" is packio's decoding, cropping
and floats alone. "ratio": of the rounds, to "packio".

    python benchmarks/recipes.py [--images FOLDER] [--rounds 7] [--recipes timm,simclr] [--save]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _results
import numpy as np
import torch
from PIL import Image

import packio

sys.path.append(str(Path(__file__).parent.parent / "tests" / "support"))
from vision import import_torchvision

T = import_torchvision().transforms
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGES, BATCH = 128, 64
Compose = Callable[[Image.Image], Any]


def of_packio(*steps: Any) -> list[Any]:
    """Some steps, then floats."""
    return [*steps, packio.Normalize(MEAN, STD)]


def of_torchvision(*steps: Any) -> Any:
    """Some steps, then floats, of torchvision."""
    return T.Compose([*steps, T.ToTensor(), T.Normalize(MEAN, STD)])


def rrc(size: int, scale: tuple[float, float] = (0.08, 1.0), how: str = "bilinear") -> list[Any]:
    """Torchvision's crop and flip."""
    crop = T.RandomResizedCrop(size, scale, interpolation=T.InterpolationMode(how))
    return [crop, T.RandomHorizontalFlip()]


def timms() -> dict[str, Any]:
    """Timm's ResNet recipe."""
    from timm.data import create_transform

    erasing = packio.RandomErasing(0.25, (0.02, 1 / 3), (0.3, 1 / 0.3), "random")
    config = "rand-m9-mstd0.5-inc1-mmax9"  # beyond 9, Pillow 13 refuses timm's posterize
    augment = packio.TimmRandAugment(config, (124, 116, 104), "bilinear")
    return {
        "packio": ({"crop": packio.RandomResizedCrop(224)}, [*of_packio(augment), erasing]),
        "timm": create_transform(
            224, is_training=True, auto_augment=config, re_prob=0.25,
            re_mode="pixel", interpolation="bilinear",
        ),
    }  # fmt: skip


def reference() -> dict[str, Any]:
    """Torchvision's classification reference."""
    return {
        "packio": (
            {"crop": packio.RandomResizedCrop(224)},
            [*of_packio(packio.TrivialAugmentWide()), packio.RandomErasing(0.1)],
        ),
        "torchvision": T.Compose(
            [
                *rrc(224),
                T.TrivialAugmentWide(),
                T.ToTensor(),
                T.Normalize(MEAN, STD),
                T.RandomErasing(0.1),
            ]
        ),
    }


def simclr() -> dict[str, Any]:
    """SimCLR's two views."""
    jitter = packio.RandomApply([packio.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8)
    blur = packio.RandomApply([packio.GaussianBlur(23)], 0.5)
    steps = of_packio(jitter, packio.RandomGrayscale(0.2), blur)
    theirs = of_torchvision(
        *rrc(224), T.RandomApply([T.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8), T.RandomGrayscale(0.2),
        T.RandomApply([T.GaussianBlur(23)], 0.5),
    )  # fmt: skip
    return {
        "packio": ({"views": [packio.RandomResizedCrop(224)] * 2}, [steps, steps]),
        "torchvision": lambda image: [theirs(image), theirs(image)],
    }


def dino() -> dict[str, Any]:
    """DINO's two large and eight small views; Pillow's blur."""
    from PIL import ImageFilter

    def steps(p: float, solarize: float) -> list[Any]:
        return of_packio(
            packio.RandomApply([packio.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
            packio.RandomGrayscale(0.2), packio.RandomApply([packio.GaussianBlur()], p),
            packio.RandomSolarize(128, solarize),
        )  # fmt: skip

    def blur(image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(np.random.default_rng().uniform(0.1, 2.0)))

    def compose(size: int, scale: tuple[float, float], p: float, solarize: float) -> Any:
        return of_torchvision(
            *rrc(size, scale, "bicubic"), T.RandomApply([T.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
            T.RandomGrayscale(0.2), T.RandomApply([blur], p), T.RandomSolarize(128, solarize),
        )  # fmt: skip

    large, small = (0.4, 1.0), (0.05, 0.4)
    crops = [packio.RandomResizedCrop(224, large, interpolation="bicubic")] * 2
    crops += [packio.RandomResizedCrop(96, small, interpolation="bicubic")] * 8
    each = [compose(224, large, 1.0, 0.0), compose(224, large, 0.1, 0.2)]
    each += [compose(96, small, 0.5, 0.0)] * 8
    return {
        "packio": ({"views": crops}, [steps(1.0, 0.0), steps(0.1, 0.2), *[steps(0.5, 0.0)] * 8]),
        "torchvision": lambda image: [one(image) for one in each],
    }


def mae() -> dict[str, Any]:
    """A bicubic crop and flip, as MAE has them."""
    return {
        "packio": (
            {"crop": packio.RandomResizedCrop(224, (0.2, 1.0), interpolation="bicubic")},
            of_packio(),
        ),
        "torchvision": of_torchvision(*rrc(224, (0.2, 1.0), "bicubic")),
    }


def cifar() -> dict[str, Any]:
    """CIFAR's, on images of 32 x 32."""
    policy = T.autoaugment.AutoAugmentPolicy.CIFAR10
    return {
        "packio": (
            {"crop": packio.RandomCrop(32, padding=4)}, of_packio(packio.AutoAugment("cifar10"))
        ),
        "torchvision": of_torchvision(
            T.RandomCrop(32, 4), T.RandomHorizontalFlip(), T.AutoAugment(policy)
        ),
    }  # fmt: skip


RECIPES: dict[str, Callable[[], dict[str, Any]]] = {
    "timm": timms, "reference": reference, "simclr": simclr, "dino": dino, "mae": mae,
    "cifar": cifar,
}  # fmt: skip


def candidates_of(
    recipe: str, pack: Path, files: list[Path], small: Path, pixels: np.ndarray
) -> dict[str, Callable[[], None]]:
    """What goes through all images once, by name."""
    made: dict[str, Callable[[], None]] = {}
    of_small = recipe == "cifar"
    for name, given in RECIPES[recipe]().items():
        if name == "packio":
            options, steps = given
            options = {"hflip": 0.5, "threads": 1, "fields": "image", **options}
            ds = packio.PackDataset(small if of_small else pack, transform=steps, **options)
            views = len(options.get("views", "1"))
            alone = [of_packio()] * views if "views" in options else of_packio()
            crop = packio.PackDataset(small if of_small else pack, transform=alone, **options)
            made["packio"], made["crop"] = (lambda ds=d: gather(ds) for d in (ds, crop))
        elif of_small:
            made[name] = lambda f=given: [f(Image.fromarray(p)) for p in pixels]  # type: ignore[misc]  # nothing is returned
        else:
            made[name] = lambda f=given: decode(files, f)
    return made


def gather(ds: Any) -> None:
    """Make all images, batch by batch."""
    for start in range(0, len(ds), BATCH):
        ds.gather(range(start, min(start + BATCH, len(ds))))


def decode(files: list[Path], transform: Compose) -> None:
    """Make all images as torchvision's ImageFolder does, and put them into batches."""
    for start in range(0, len(files), BATCH):
        images = []
        for path in files[start : start + BATCH]:
            with Image.open(path) as image:
                images.append(transform(image.convert("RGB")))
        torch.utils.data.default_collate(images)


def main() -> None:
    """Measure all recipes, candidates in turns."""
    parser = _results.parser(__doc__, rounds=7)
    parser.add_argument("--images", type=Path, help="a folder of class folders; else made ones")
    parser.add_argument("--recipes", default=",".join(RECIPES))
    given = parser.parse_args()
    torch.set_num_threads(1)
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        images = _results.photographs(given.images, Path(folder) / "images", IMAGES)
        files = sorted(path for path in images.glob("*/*") if path.is_file())[:IMAGES]
        subset = Path(folder) / "subset" / "all"
        subset.mkdir(parents=True)
        for number, path in enumerate(files):
            (subset / f"{number:04d}{path.suffix}").write_bytes(path.read_bytes())
        pack = packio.pack(subset.parent, Path(folder) / "pack.lmdb").out
        pixels = np.random.default_rng(0).integers(0, 256, (512, 32, 32, 3), np.uint8)
        for number, path in enumerate(files):
            with Image.open(path) as image:
                pixels[number] = np.asarray(image.convert("RGB").resize((32, 32)))
        raw = [packio.Sample(i, f"{i}", p.transpose(2, 0, 1).tobytes(), "raw", 0, 32, 32)
               for i, p in enumerate(pixels)]  # fmt: skip
        small = packio.pack(raw, Path(folder) / "small.lmdb").out
        for recipe in given.recipes.split(","):
            candidates = candidates_of(recipe, pack, files, small, pixels)
            count = len(pixels) if recipe == "cifar" else len(files)
            for turn in range(given.rounds + 1):
                for name, run in candidates.items():
                    begin = time.process_time()
                    run()
                    took = (time.process_time() - begin) / count * 1e6
                    if turn:  # the first is not counted
                        times.setdefault(f"{recipe}: {name}", []).append(took)
        size = sum(path.stat().st_size for path in files) / len(files)
    result: dict[str, Any] = {
        "machine": _results.machine("torch", "torchvision", "pillow", "timm",
                                    bytes_an_image=round(size)),
        "microseconds": {name: _results.summary(values, 0) for name, values in times.items()},
        "ratio": {
            name: _results.summary(
                _results.ratios(values, times[f"{name.split(':')[0]}: packio"]), 2
            )
            for name, values in times.items()
        },
    }  # fmt: skip
    _results.finish("recipes", result, keep=given.save)


if __name__ == "__main__":
    main()
