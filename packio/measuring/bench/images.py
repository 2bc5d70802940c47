"""Images to measure decoders on: of a pack, of a folder, or sample photographs."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packio.errors import DecodeError, OptionError, SourceError
from packio.images import encodings
from packio.images.decoders import Stored

_QUALITY = 95
_SYNTHETIC = ((500, 375), (375, 500), (640, 480), (1024, 768))  # (width, height) in pixels


class Encoded(NamedTuple):
    """One encoded image, and what decoders need to know of it."""

    data: bytes
    stored: Stored


class Images(NamedTuple):
    """Images, and their origin.

    Attributes:
        unreadable: Number of files that Pillow cannot identify as an image.
    """

    images: list[Encoded]
    origin: str
    unreadable: int


def collect(path: str | os.PathLike[str] | None, limit: int) -> Images:
    """Read up to ``limit`` images, spread evenly over those of a folder or a pack.

    Args:
        path: Folder or pack; None: photographs, made JPEGs.
        limit: Images at most.
    """
    if limit < 1:
        raise OptionError(f"limit={limit}: expected 1 or more")
    if path is None:
        return _photographs()
    files = _files(os.fspath(path))
    if files is None:
        return _from_pack(path, limit)
    datas = (Path(file).read_bytes() for file in _spread(files, limit))
    return _identified(datas, os.fspath(path))


def _from_pack(path: str | os.PathLike[str], limit: int) -> Images:
    import packio

    with packio.open(path) as pack:
        samples = [pack[i] for i in _spread(range(len(pack)), limit)]
    images = [
        Encoded(s.data, Stored(s.encoding, s.height, s.width, s.channels, s.dtype))
        for s in samples
        if s.encoding != "raw"
    ]
    if not images:
        raise SourceError(f"{os.fspath(path)}: holds raw pixels only; expected encoded images")
    return Images(images, os.fspath(path), 0)


def _files(path: str) -> list[str] | None:
    """List the files of a folder; None if the path is a pack, or no folder."""
    if not os.path.isdir(path) or os.path.exists(os.path.join(path, "index.packio")):
        return None
    found = [
        os.path.join(folder, name)
        for folder, _, names in os.walk(path)
        for name in names
        if not name.startswith(".")
    ]
    return sorted(found)


def _spread(items: Sequence[Any], limit: int) -> list[Any]:
    count = len(items)
    return [items[i * count // min(limit, count)] for i in range(min(limit, count))]


def _identified(datas: Iterable[bytes], origin: str) -> Images:
    images, unreadable = [], 0
    for data in datas:
        try:
            facts = encodings.read_facts(data)
        except DecodeError:
            unreadable += 1
            continue
        stored = Stored(facts.encoding, facts.height, facts.width, facts.channels, facts.dtype)
        images.append(Encoded(data, stored))
    if not images:
        raise SourceError(f"{origin}: no image among {unreadable} files; expected some")
    return Images(images, origin, unreadable)


def _photographs() -> Images:
    arrays = [*_from_skimage(), *_from_sklearn()]
    origin = f"photographs of scikit-image and scikit-learn, JPEG at quality {_QUALITY}"
    if not arrays:
        arrays = _synthetic()
        origin = f"synthetic pictures, JPEG at quality {_QUALITY} (give a folder for real ones)"
    return _identified((_jpeg(a) for a in arrays), origin)


def _from_skimage() -> list[Any]:
    try:
        from skimage import data
    except ImportError:
        return []
    loaders: list[Any] = [data.astronaut, data.chelsea, data.coffee]  # those that are in its wheel
    return [load() for load in loaders]


def _from_sklearn() -> list[Any]:
    try:
        from sklearn.datasets import load_sample_images
    except ImportError:
        return []
    return list(load_sample_images().images)


def _synthetic() -> list[Any]:
    """Make smooth waves with some noise: their JPEGs are about as large as those of photographs."""
    import numpy as np

    random = np.random.default_rng(0)
    arrays = []
    for width, height in _SYNTHETIC:
        y, x, channel = np.ogrid[:height, :width, :3]
        waves = np.sin(x / (17 + 5 * channel)) + np.cos(y / (23 - 4 * channel))
        noise = random.normal(0, 6, (height, width, 3))
        arrays.append(np.clip(128 + 50 * waves + noise, 0, 255).astype(np.uint8))
    return arrays


def _jpeg(array: Any) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()
