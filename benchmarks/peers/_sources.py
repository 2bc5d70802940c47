"""The images that are read: a folder ``images/<class>/*`` each, or raw pixels; made once.

* images: the JPEGs of a folder that is given, or photographs made by tools/make_sample_images.py;
  as many as fill batches of 64.
* photos: 64 JPEGs of 4000 x 3000, quality 92, 4:2:0: 16 of the images side by side, each enlarged
  to 1000 x 750.
* raw224, raw192, raw32: 2,048, 2,048 and 40,960 crops of the images, as ``pixels.npy``,
  (N, H, W, 3) uint8.
* pairs: the images, and in ``masks/`` a PNG of four classes of brightness for each.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _contract import files, mask_of
from PIL import Image

BATCH = 64
SAMPLES = Path(__file__).parents[2] / "tools" / "make_sample_images.py"
RAW = {"raw224": (224, 2048), "raw192": (192, 2048), "raw32": (32, 40_960)}


def source(kind: str, work: Path, given: Path | None, count: int) -> Path:
    """Folder of one kind of source; made if it is not there.

    Args:
        kind: Of the above.
        work: Where sources are.
        given: Image folder, one folder a class; None: made.
        count: Images to take of it, at most.
    """
    out = work / kind
    if out.exists():
        return out
    making = out.with_suffix(".making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    if kind == "images":
        take(given or made(work, count), making, count)
    else:
        MAKERS[kind](source("images", work, given, count), making)
    making.rename(out)
    return out


def made(work: Path, count: int) -> Path:
    """Photographs of 500 pixels."""
    out = work / "made"
    command = [sys.executable, SAMPLES, out, "--n", str(count)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return out


def take(given: Path, out: Path, count: int) -> None:
    """Copy images of all classes alike, as many as fill batches."""
    found = sorted(path for path in given.glob("*/*") if path.is_file())
    count = min(count, len(found)) // BATCH * BATCH
    if not count:
        sys.exit(f"{given}: {len(found)} images in folders of classes; expected at least {BATCH}")
    for place in np.linspace(0, len(found) - 1, count).astype(int):
        target = out / "images" / found[place].parent.name / f"{found[place].stem}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(found[place], target)


def make_photos(images: Path, out: Path) -> None:
    """Large photographs, of small ones side by side."""
    random = np.random.default_rng(0)
    names = [path for path, _ in files(images)]
    for number in range(BATCH):
        photo = Image.new("RGB", (4000, 3000))
        for place, name in enumerate(random.choice(len(names), 16)):
            tile = Image.open(names[name]).convert("RGB")
            tile = tile.resize((1000, 750), Image.Resampling.BICUBIC)
            photo.paste(tile, (place % 4 * 1000, place // 4 * 750))
        path = out / "images" / f"{number % 4}" / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo.save(path, quality=92, subsampling="4:2:0")


def raw_maker(kind: str) -> Callable[[Path, Path], None]:
    """What writes ``pixels.npy`` of one size."""
    side, count = RAW[kind]

    def make(images: Path, out: Path) -> None:
        random = np.random.default_rng(0)
        shape = (count, side, side, 3)
        pixels = np.lib.format.open_memmap(out / "pixels.npy", "w+", np.uint8, shape)
        names = [path for path, _ in files(images)]
        each = -(-count // len(names))
        for number in range(count):
            if number % each == 0:
                image = Image.open(names[number // each]).convert("RGB")
                image = image.resize((side + 32, side + 32), Image.Resampling.BOX)
            top, left = random.integers(0, 33, 2)
            pixels[number] = image.crop((left, top, left + side, top + side))
        pixels.flush()

    return make


def make_pairs(images: Path, out: Path) -> None:
    """The images, and masks of four classes."""
    shutil.copytree(images / "images", out / "images")
    for path, _ in files(out):
        mask = mask_of(path)
        mask.parent.mkdir(parents=True, exist_ok=True)
        bright = Image.open(path).convert("L")
        bright.point([value // 64 for value in range(256)]).save(mask)


MAKERS: dict[str, Callable[[Path, Path], None]] = {
    "photos": make_photos,
    "pairs": make_pairs,
    **{kind: raw_maker(kind) for kind in RAW},
}
