"""Take the screenshots of docs/images: gallery, overview and doctor, each in light and in dark.

The gallery shows drawn images with boxes. Overview and doctor measure the photographs of
make_sample_images.py, and show none of them; the doctor really runs, for half a minute. This needs
Chromium and its driver.

    python tools/make_screenshots.py
"""

from __future__ import annotations

import io
import json
import pathlib
import random
import subprocess
import sys
import tempfile
from typing import NamedTuple

import make_sample_images
from PIL import Image, ImageDraw

import packio

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
IMAGES = REPOSITORY / "docs" / "images"
SCHEMES = ("light", "dark")
_COLOURS = 128  # of a picture: a fifth of the bytes
_SIZES = (240, 320, 480)  # longer sides of the images, pixels
_SHAPES = ("disk", "square", "triangle")
_PAINTS = ("#c2410c", "#0f766e", "#1d4ed8", "#a16207", "#9d174d")
_TRAIN = """
import pathlib
import random

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
FILES = sorted(pathlib.Path("photos").rglob("*.jpg"))
CLASSES = sorted({path.parent for path in FILES})
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 16, 3, 4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
    torch.nn.Flatten(), torch.nn.Linear(16, len(CLASSES)),
)
optimizer = torch.optim.SGD(model.parameters(), 0.1)


class Photos(Dataset):
    def __len__(self):
        return len(FILES)

    def __getitem__(self, i):
        image = Image.open(FILES[i]).convert("RGB")
        left, top = (random.randrange(side // 2) for side in image.size)
        box = (left, top, left + image.width // 2, top + image.height // 2)
        pixels = np.array(image.resize((224, 224), Image.Resampling.BILINEAR, box))
        return torch.from_numpy(pixels).permute(2, 0, 1) / 255, CLASSES.index(FILES[i].parent)


def make_loader():
    return DataLoader(Photos(), batch_size=32, shuffle=True)


def step(batch):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
"""


class Shot(NamedTuple):
    """A page, and how much of it is shown, in pixels."""

    name: str
    command: tuple[str, ...]  # makes the page as NAME.html, in the folder of `prepare`
    width: int
    height: int


SHOTS = (
    Shot("gallery", ("view", "shapes.lmdb", "-o", "gallery.html", "--limit", "18"), 920, 536),
    Shot("info", ("info", "train.lmdb", "--plot", "info.html"), 940, 1080),
    Shot("doctor", ("doctor", "train:make_loader", "--step", "train:step", "--html", "doctor.html"),
         860, 1100),
)  # fmt: skip


def prepare(folder: pathlib.Path, count: int = 240) -> None:
    """Make what the commands need in a folder: photos, train.lmdb, train.py and shapes.lmdb.

    Args:
        folder: An empty folder.
        count: Images of each size, before some classes lose some.
    """
    for size in _SIZES:
        made = folder / f"of-{size}"
        make_sample_images.write(made, n=count, classes=6, size=size, seed=size)
        for rank, group in enumerate(make_sample_images.GROUPS):
            (folder / "photos" / group).mkdir(parents=True, exist_ok=True)
            files = sorted((made / group).iterdir())
            for path in files[: len(files) * (8 - rank) // 8]:
                path.rename(folder / "photos" / group / f"{size}-{path.name}")
    packio.pack(folder / "photos", folder / "train.lmdb")
    (folder / "train.py").write_text(_TRAIN)
    draw(folder, 18)
    packio.pack(folder / "shapes.json", folder / "shapes.lmdb")


def draw(folder: pathlib.Path, count: int) -> None:
    """Draw shapes, and write their boxes into a COCO file, shapes.json."""
    draws = random.Random(0)
    images, annotations = list[object](), list[object]()
    for number in range(count):
        size = draws.choice([(320, 240), (240, 320), (300, 300)])
        image = Image.linear_gradient("L").resize(size)
        picture = Image.composite(
            Image.new("RGB", size, "#dbeafe"), Image.new("RGB", size, "#fef3c7"), image
        )
        for _ in range(draws.randint(1, 3)):
            kind, side = draws.randrange(len(_SHAPES)), draws.randint(60, 120)
            x, y = (draws.randrange(length - side) for length in size)
            _draw_shape(ImageDraw.Draw(picture), kind, (x, y, x + side, y + side), draws)
            annotations.append(
                {"id": len(annotations), "image_id": number, "category_id": kind, "iscrowd": 0,
                 "bbox": [x, y, side, side], "area": side * side}
            )  # fmt: skip
        images.append({"id": number, "file_name": f"{number:03d}.jpg"})
        picture.save(folder / f"{number:03d}.jpg", quality=90)
    categories = [{"id": number, "name": name} for number, name in enumerate(_SHAPES)]
    made = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "shapes.json").write_text(json.dumps(made))


def _draw_shape(
    drawing: ImageDraw.ImageDraw, kind: int, box: tuple[int, int, int, int], draws: random.Random
) -> None:
    left, top, right, bottom = box
    paint = draws.choice(_PAINTS)
    if _SHAPES[kind] == "disk":
        drawing.ellipse(box, fill=paint)
    elif _SHAPES[kind] == "square":
        drawing.rectangle(box, fill=paint)
    else:
        drawing.polygon([(left, bottom), ((left + right) // 2, top), (right, bottom)], fill=paint)


def take(shot: Shot, folder: pathlib.Path, out: pathlib.Path) -> None:
    """Make a page in a folder, and its pictures in another."""
    sys.path.append(str(REPOSITORY / "tests" / "support"))
    import browsing

    subprocess.run([sys.executable, "-m", "packio", *shot.command], cwd=folder, check=True)
    with browsing.running(folder / f"profile-{shot.name}") as browser:
        for scheme in SCHEMES:
            browser.emulate(shot.width, scheme, shot.height)
            browser.go((folder / f"{shot.name}.html").as_uri())
            picture = Image.open(io.BytesIO(browser.screenshot())).convert("RGB")
            picture.quantize(_COLOURS).save(out / f"{shot.name}-{scheme}.png", optimize=True)


def main() -> None:
    """Take all."""
    with tempfile.TemporaryDirectory() as folder:
        prepare(pathlib.Path(folder))
        for shot in SHOTS:
            take(shot, pathlib.Path(folder), IMAGES)


if __name__ == "__main__":
    main()
