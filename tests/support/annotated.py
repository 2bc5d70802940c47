"""Small datasets of images with boxes, as other tools write them, and what becomes of them."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

from PIL import Image

import packio

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping

    from packio.sources import Listing

WIDTH, HEIGHT = 40, 30


def image(kind: str = "JPEG", turned: int = 1, mode: str = "RGB") -> bytes:
    """A gray image of 40x30 pixels."""
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = turned
    options = {"exif": exif} if turned > 1 else {}
    Image.new(mode, (WIDTH, HEIGHT), "gray").save(file, kind, **options)
    return file.getvalue()


def tree(root: pathlib.Path, files: Mapping[str, Any]) -> pathlib.Path:
    """Write files: bytes, text, JSON, and images where the content of a .jpg or .png is empty."""
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = data if isinstance(data, (str, bytes)) else json.dumps(data)
        if not content and name.lower().endswith((".jpg", ".png")):
            content = image("PNG" if name.endswith("png") else "JPEG")
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def packed(path: pathlib.Path, **options: Any) -> dict[str, packio.Sample]:
    """Pack a dataset; its samples by their keys."""
    out = path.parent / f"{path.name}.lmdb"
    packio.pack(path, out, **options)
    with packio.open(out) as pack:
        return {sample.key: sample for sample in pack}


def boxes(sample: packio.Sample) -> list[list[float]]:
    """The boxes, rounded."""
    assert sample.boxes is not None
    return [[round(value, 3) for value in box] for box in sample.boxes.tolist()]


def unlisted(listing: Listing) -> list[str]:
    """What cannot be packed, and why."""
    return [f"{key.decode()}: {reason}" for key, reason in listing.unlisted]
