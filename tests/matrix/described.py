"""Small datasets, described by plain Python values: the matrix compares every pack with these.

A sample is a dict; it lacks the names of what it does not have::

    {"key": "cat/03.jpg", "image": b"...", "orientation": 6, "label": "cat", "mask": b"...",
     "boxes": [{"box": [1.0, 2.0, 9.0, 7.0], "class": "dog", "crowd": 0, "area": 35.5}],
     "meta": {"place": "attic", "n": 3}, "split": "train",
     "fields": {"caption": ("text", b"a dog"), "depth": ("image", b"...")}}

``box`` is in pixels of the stored image, as packs have it; sources give it as `upright`. ``label``
is the name of a class, a list of names (many-hot), a number, or a tuple of floats. All images are
`SIZE` bytes long, so that a changed image has the size of the old one.
"""

from __future__ import annotations

import copy
import io
import random
from typing import Any

import numpy as np
from PIL import Image

Sample = dict[str, Any]

SIZE = 1536  # bytes of every image
COUNT = 12
HALF = COUNT // 2
# Classes of the first and of the second half. Each source numbers them in another order.
CLASSES = (["cat", "dog"], ["bird", "cat", "polar bear"])
# What a dataset may have: the name of an annotation, and the ways it may come.
ANNOTATIONS = {
    "label": ("class", "many", "number", "vector"),
    "mask": ("all", "some"),
    "boxes": ("all", "some"),
    "meta": ("all", "some"),
    "fields": ("all", "some"),
    "split": ("all",),
    "turned": ("all",),
}
Annotations = dict[str, str]  # of those names, the ways of one dataset


def image(width: int, height: int, draw: random.Random, kind: str = "JPEG", turned: int = 1,
          size: int = SIZE) -> bytes:  # fmt: skip
    """An image file of ``size`` bytes; a comment in it fills it up."""
    pixels = np.frombuffer(draw.randbytes(width * height * 3), np.uint8).reshape(height, width, 3)
    file, exif = io.BytesIO(), Image.Exif()
    if turned != 1:
        exif[0x0112] = turned
    small = Image.fromarray(pixels // 16 * 16)
    small.save(file, kind, exif=exif, **({"quality": 60} if kind == "JPEG" else {}))
    missing = size - file.tell()
    if kind == "JPEG":
        segment = b"\xff\xfe" + (missing - 2).to_bytes(2, "big") + bytes(missing - 4)
        return file.getvalue()[:2] + segment + file.getvalue()[2:]
    return file.getvalue()[:-12] + _png_chunk(missing - 12) + file.getvalue()[-12:]


def _png_chunk(length: int) -> bytes:
    import zlib

    chunk = b"tEXt" + b"c\0" + bytes(length - 2).replace(b"\0", b".")
    return length.to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big")


def gray(width: int, height: int, draw: random.Random, most: int = 256) -> bytes:
    """A gray PNG: a mask of class ids, or a depth map."""
    file = io.BytesIO()
    values = [draw.randrange(most) for _ in range(width * height)]
    Image.fromarray(np.array(values, np.uint8).reshape(height, width)).save(file, "PNG")
    return file.getvalue()


def array(draw: random.Random) -> bytes:
    """A file in the .npy format, (2, 3) float32."""
    file = io.BytesIO()
    np.save(file, np.array([draw.random() for _ in range(6)], np.float32).reshape(2, 3))
    return file.getvalue()


def dataset(
    seed: int, annotations: Annotations, *, count: int = COUNT, class_folders: bool = True,
    same_size: bool = False,
) -> list[Sample]:  # fmt: skip
    """Make a dataset.

    Args:
        seed: The same seed makes the same dataset.
        annotations: Which annotations it has.
        count: How many samples.
        class_folders: Whether a key begins with a folder of the sample's class.
        same_size: Whether all images have the same size in pixels, as raw pixels may need.
    """
    draw = random.Random(seed)
    return [_sample(i, count, draw, annotations, class_folders, same_size) for i in range(count)]


def _sample(
    i: int, count: int, draw: random.Random, annotations: Annotations, class_folders: bool,
    same_size: bool,
) -> Sample:  # fmt: skip
    names = CLASSES[2 * i >= count]
    name = names[i % len(names)]
    width, height = (24, 16) if same_size else (draw.randrange(12, 28), draw.randrange(12, 28))
    turned = 6 if "turned" in annotations and i % 2 else 1
    width += turned == 6 and width == height  # its size says how a mask lies
    kind = "PNG" if i % 5 == 4 and turned == 1 else "JPEG"
    ending = "png" if kind == "PNG" else "jpg"
    key = f"{i:02d}.{ending}"
    found: Sample = {
        "key": f"{name}/{key}" if class_folders else key,
        "image": image(width, height, draw, kind, turned),
        "size": (height, width),
        "orientation": turned,
    }
    wanted = {n for n, way in annotations.items() if way != "some" or i % 3 != 1}
    if "label" in wanted:
        found["label"] = {
            "class": name, "many": sorted({name, names[(i // 2) % len(names)]}),
            "number": i * 7 % 5,
            "vector": tuple(draw.randrange(64) / 8 for _ in range(3)),
        }[annotations["label"]]  # fmt: skip
    if "mask" in wanted:
        found["mask"] = gray(width, height, draw, 4)
    if "boxes" in wanted:
        found["boxes"] = [_box(width, height, names, draw) for _ in range(i % 3)]
    if "meta" in wanted:
        found["meta"] = {"place": draw.choice(["attic", "cellar, left", "Küche"]), "n": i}
    if "split" in wanted:
        found["split"] = draw.choice(["train", "val"])
    if "fields" in wanted:
        found["fields"] = {
            "caption": ("text", f"„{name}“ number {i}".encode()),
            "depth": ("image", gray(width, height, draw)),
            "latent": ("array", array(draw)),
        }
    return found


def _box(width: int, height: int, names: list[str], draw: random.Random) -> dict[str, Any]:
    x0, y0 = draw.randrange(width - 4), draw.randrange(height - 4)
    x1, y1 = draw.randrange(x0 + 1, width), draw.randrange(y0 + 1, height)
    area = float((x1 - x0) * (y1 - y0))
    corners = [float(x0), float(y0), float(x1), float(y1)]
    crowd = draw.randrange(2)
    return {"box": corners, "class": draw.choice(names), "crowd": crowd, "area": area / 2}


def upright(sample: Sample, box: dict[str, Any]) -> list[float]:
    """A box as people see it: Exif's orientation 6 turns the stored image right."""
    x0, y0, x1, y1 = box["box"]
    height = float(sample["size"][0])
    return [height - y1, x0, height - y0, x1] if sample["orientation"] == 6 else box["box"]


def changed(sample: Sample, what: str, seed: int) -> Sample:
    """A sample whose image, label, boxes, … is another one, of as many bytes."""
    draw, found = random.Random(seed), copy.deepcopy(sample)
    height, width = sample["size"]
    if what == "image":
        is_png = sample["key"].endswith("png")
        found["image"] = image(width, height, draw, "PNG" if is_png else "JPEG",
                               sample["orientation"])  # fmt: skip
    elif what == "label":
        others = sorted({name for names in CLASSES for name in names} - {sample["label"]})
        found["label"] = others[0]
    elif what == "boxes":
        found["boxes"][0]["box"][2] += 1.0
    elif what == "meta":
        found["meta"]["n"] += 1
    elif what == "mask":
        found["mask"] = gray(width, height, draw, 4)
    else:
        found["fields"]["caption"] = ("text", found["fields"]["caption"][1][:-1] + b"!")
    return found
