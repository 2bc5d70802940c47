"""Whole recipes of training, from JPEGs to normalised floats: microseconds of a processor.

Candidates take turns within a process, without threads: "packio" with its own transforms; the same
recipe in torchvision's or timm's classes on Pillow's images, in torchvision's v2 on tensors ("v2"),
in albumentations and Kornia, as far as these have the operations and are installed; "crop" is
packio's decoding, cropping and floats alone. Segmentation has a PNG beside each image, detection
some boxes, moved with it. "ratio": of the rounds, to "packio".

    python benchmarks/recipes.py [--images FOLDER] [--rounds 7] [--recipes timm,simclr] [--save]
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
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

torchvision = import_torchvision()
T, v2 = torchvision.transforms, torchvision.transforms.v2
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGES, BATCH = 128, 64
Compose = Callable[..., Any]  # of an image, and of what goes with it


def of_packio(*steps: Any) -> list[Any]:
    """Some steps, then floats."""
    return [*steps, packio.Normalize(MEAN, STD)]


def of_torchvision(*steps: Any) -> Any:
    """Some steps, then floats, of torchvision."""
    return T.Compose([*steps, T.ToTensor(), T.Normalize(MEAN, STD)])


def of_v2(*steps: Any) -> Any:
    """Some steps on a tensor of uint8, then floats, of torchvision's v2."""
    floats = v2.ToDtype(torch.float32, scale=True)
    return v2.Compose([v2.PILToTensor(), *steps, floats, v2.Normalize(MEAN, STD)])


def of_albumentations(*steps: Any, **options: Any) -> Any:
    """Some steps on an array, then floats, of albumentations."""
    import albumentations as album
    from albumentations.pytorch import ToTensorV2

    compose = album.Compose([*steps, album.Normalize(MEAN, STD), ToTensorV2()], **options)
    return lambda image, **more: tuple(compose(image=np.asarray(image), **more).values())


def rrc_v2(size: int, scale: tuple[float, float] = (0.08, 1.0), how: str = "bilinear") -> list[Any]:
    """As `rrc`, of v2."""
    crop = v2.RandomResizedCrop(size, scale, interpolation=v2.InterpolationMode(how))
    return [crop, v2.RandomHorizontalFlip()]


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
        "v2": v2.Compose([of_v2(*rrc_v2(224), v2.TrivialAugmentWide()), v2.RandomErasing(0.1)]),
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
    of_tensors = of_v2(
        *rrc_v2(224), v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8),
        v2.RandomGrayscale(0.2), v2.RandomApply([v2.GaussianBlur(23)], 0.5),
    )  # fmt: skip
    made = {
        "packio": ({"views": [packio.RandomResizedCrop(224)] * 2}, [steps, steps]),
        "torchvision": lambda image: [theirs(image), theirs(image)],
        "v2": lambda image: [of_tensors(image), of_tensors(image)],
    }
    with contextlib.suppress(ImportError):
        import albumentations as album

        jitter_of_a = album.ColorJitter((0.2, 1.8), (0.2, 1.8), (0.2, 1.8), (-0.2, 0.2), p=0.8)
        steps_of_a = (
            jitter_of_a,
            album.ToGray(p=0.2),
            album.GaussianBlur((23, 23), (0.1, 2.0), p=0.5),
        )
        of_a = of_albumentations(
            album.RandomResizedCrop((224, 224)), album.HorizontalFlip(), *steps_of_a
        )
        made["albumentations"] = lambda image: [of_a(image), of_a(image)]
    with contextlib.suppress(ImportError):
        import kornia.augmentation as kornia

        of_k = kornia.AugmentationSequential(
            kornia.RandomResizedCrop((224, 224)), kornia.RandomHorizontalFlip(),
            kornia.ColorJitter(0.8, 0.8, 0.8, 0.2, p=0.8), kornia.RandomGrayscale(p=0.2),
            kornia.RandomGaussianBlur((23, 23), (0.1, 2.0), p=0.5),
            kornia.Normalize(torch.tensor(MEAN), torch.tensor(STD)), data_keys=["input"],
        )  # fmt: skip

        def twice(image: Image.Image) -> list[torch.Tensor]:
            given = v2.functional.to_dtype(v2.functional.pil_to_tensor(image), scale=True)
            return [of_k(given), of_k(given)]

        made["kornia"] = twice
    return made


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
        "v2": of_v2(*rrc_v2(224, (0.2, 1.0), "bicubic")),
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
        "v2": of_v2(v2.RandomCrop(32, 4), v2.RandomHorizontalFlip(), v2.AutoAugment(policy)),
    }  # fmt: skip


_JITTER, _MOVES = (0.4, 0.4, 0.4, 0.1), {"degrees": 10, "translate": (0.1, 0.1)}


def segmentation() -> dict[str, Any]:
    """Crop, flip, rotation and shift of image and mask, jitter of the image."""
    steps = [packio.RandomAffine(**_MOVES), packio.ColorJitter(*_JITTER)]
    joint = v2.Compose(
        [
            *rrc_v2(224, (0.25, 1.0)),
            v2.RandomAffine(**_MOVES),
            v2.ColorJitter(*_JITTER),
            v2.PILToTensor(),
            v2.ToDtype({torchvision.tv_tensors.Image: torch.float32, "others": None}, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    made = {
        "packio": (
            {"crop": packio.RandomResizedCrop(224, (0.25, 1.0)), "fields": ("image", "mask")},
            of_packio(*steps),
        ),
        "v2": lambda image, mask: joint(
            torchvision.tv_tensors.Image(image), torchvision.tv_tensors.Mask(mask)
        ),
    }
    with contextlib.suppress(ImportError):
        import albumentations as album

        crop = album.RandomResizedCrop((224, 224), (0.25, 1.0))
        moves = album.Affine(rotate=(-10, 10), translate_percent=(-0.1, 0.1), p=1.0)
        of_a = of_albumentations(
            crop, album.HorizontalFlip(), moves, album.ColorJitter(*_JITTER, p=1.0)
        )
        made["albumentations"] = lambda image, mask: of_a(image, mask=np.asarray(mask))
    return made


def detection() -> dict[str, Any]:
    """Resized to 320 x 320, flip, rotation and shift of image and boxes, jitter of the image."""
    steps = [packio.RandomAffine(**_MOVES), packio.ColorJitter(*_JITTER)]
    joint = v2.Compose(
        [
            v2.Resize((320, 320)),
            v2.RandomHorizontalFlip(),
            v2.RandomAffine(**_MOVES),
            v2.ColorJitter(*_JITTER),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
            v2.SanitizeBoundingBoxes(labels_getter=None),
        ]
    )

    def of_v2_boxes(image: Image.Image, boxes: np.ndarray) -> Any:
        size = image.height, image.width
        kind = torchvision.tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=size)
        return joint(torchvision.tv_tensors.Image(image), kind)

    made = {
        "packio": (
            {"crop": packio.Resize((320, 320)), "fields": ("image", "boxes")}, of_packio(*steps)
        ),
        "v2": of_v2_boxes,
    }  # fmt: skip
    with contextlib.suppress(ImportError):
        import albumentations as album

        moves = album.Affine(rotate=(-10, 10), translate_percent=(-0.1, 0.1), p=1.0)
        of_a = of_albumentations(
            album.Resize(320, 320), album.HorizontalFlip(), moves,
            album.ColorJitter(*_JITTER, p=1.0),
            bbox_params=album.BboxParams("pascal_voc"),
        )  # fmt: skip
        made["albumentations"] = lambda image, boxes: of_a(image, bboxes=boxes)
    return made


RECIPES: dict[str, Callable[[], dict[str, Any]]] = {
    "timm": timms, "reference": reference, "simclr": simclr, "dino": dino, "mae": mae,
    "cifar": cifar, "segmentation": segmentation, "detection": detection,
}  # fmt: skip


@dataclasses.dataclass
class Data:
    """What the recipes read: packs, and what others make the same of.

    Attributes:
        files, masks, boxes: Images, and what goes with each.
        pixels: Images of 32 x 32, (N, H, W, C).
        packs: By recipe; "" is that of the others, images and masks.
    """

    files: list[Path]
    masks: list[Path]
    boxes: list[np.ndarray]
    pixels: np.ndarray
    packs: dict[str, Path]


def make_data(images: Path, folder: Path) -> Data:
    """Pack images of a folder, small ones of the same, and masks and boxes that are made up."""
    rng = np.random.default_rng(0)
    files = sorted(path for path in images.glob("*/*") if path.is_file())[:IMAGES]
    root, truth = folder / "all" / "images", folder / "all" / "masks"
    root.mkdir(parents=True)
    truth.mkdir()
    masks, boxes = [], []
    pixels = rng.integers(0, 256, (512, 32, 32, 3), np.uint8)
    coco: dict[str, list[Any]] = {"images": [], "annotations": []}
    for number, path in enumerate(files):
        name = f"{number:04d}"
        (root / f"{name}{path.suffix}").write_bytes(path.read_bytes())
        with Image.open(path) as image:
            width, height = image.size
            pixels[number] = np.asarray(image.convert("RGB").resize((32, 32)))
        ids, own = np.zeros((height, width), np.uint8), []
        for label in range(1, 9):
            x, y = rng.integers(0, width // 2), rng.integers(0, height // 2)
            wide, high = rng.integers(8, width // 2), rng.integers(8, height // 2)
            ids[y : y + high, x : x + wide] = label
            own.append([x, y, x + wide, y + high])
            coco["annotations"].append(
                {"id": 10 * number + label, "image_id": number, "category_id": 1,
                 "bbox": [int(x), int(y), int(wide), int(high)]}
            )  # fmt: skip
        coco["images"].append(
            {"id": number, "file_name": f"{name}{path.suffix}", "width": width, "height": height}
        )
        masks.append(truth / f"{name}.png")
        Image.fromarray(ids).save(masks[-1])
        boxes.append(np.array(own, np.float32))
    coco["categories"] = [{"id": 1, "name": "thing"}]
    (folder / "boxes.json").write_text(json.dumps(coco))
    raw = [packio.Sample(i, f"{i}", p.transpose(2, 0, 1).tobytes(), "raw", 0, 32, 32)
           for i, p in enumerate(pixels)]  # fmt: skip
    packs = {
        "": packio.pack(root.parent, folder / "pack.lmdb").out,
        "cifar": packio.pack(raw, folder / "small.lmdb").out,
        "detection": packio.pack(folder / "boxes.json", folder / "boxes.lmdb", root=root).out,
    }
    return Data(files, masks, boxes, pixels, packs)


def candidates_of(recipe: str, data: Data) -> dict[str, Callable[[], None]]:
    """What goes through all images once, by name."""
    made: dict[str, Callable[[], None]] = {}
    for name, given in RECIPES[recipe]().items():
        if name == "packio":
            options, steps = given
            options = {"hflip": 0.5, "threads": 1, "fields": "image", **options}
            pack = data.packs.get(recipe, data.packs[""])
            ds = packio.PackDataset(pack, transform=steps, **options)
            views = len(options.get("views", "1"))
            alone = [of_packio()] * views if "views" in options else of_packio()
            crop = packio.PackDataset(pack, transform=alone, **options)
            made["packio"], made["crop"] = (lambda ds=d: gather(ds) for d in (ds, crop))
        elif recipe == "cifar":
            made[name] = lambda f=given: [f(Image.fromarray(p)) for p in data.pixels]  # type: ignore[misc]  # nothing is returned
        else:
            made[name] = lambda f=given: decode(data, f, recipe)
    return made


def gather(ds: Any) -> None:
    """Make all images, batch by batch."""
    for start in range(0, len(ds), BATCH):
        ds.gather(range(start, min(start + BATCH, len(ds))))


def decode(data: Data, transform: Compose, recipe: str) -> None:
    """Make all images as torchvision's ImageFolder does, and put them into batches."""
    for start in range(0, len(data.files), BATCH):
        images: list[Any] = []
        for number, path in enumerate(data.files[start : start + BATCH], start):
            more: list[Any] = [data.boxes[number]] if recipe == "detection" else []
            if recipe == "segmentation":
                with Image.open(data.masks[number]) as mask:
                    more = [mask.copy()]
            with Image.open(path) as image:
                images.append(transform(image.convert("RGB"), *more))
        if recipe == "detection":  # as many boxes as each image has
            images = [image for image, *_ in images]
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
        data = make_data(images, Path(folder))
        for recipe in given.recipes.split(","):
            candidates = candidates_of(recipe, data)
            count = len(data.pixels) if recipe == "cifar" else len(data.files)
            for turn in range(given.rounds + 1):
                for name, run in candidates.items():
                    begin = time.process_time()
                    run()
                    took = (time.process_time() - begin) / count * 1e6
                    if turn:  # the first is not counted
                        times.setdefault(f"{recipe}: {name}", []).append(took)
        size = sum(path.stat().st_size for path in data.files) / len(data.files)
    result: dict[str, Any] = {
        "machine": _results.machine(
            "torch", "torchvision", "pillow", "timm", "albumentations", "kornia",
            bytes_an_image=round(size),
        ),
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
