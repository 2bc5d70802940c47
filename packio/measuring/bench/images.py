"""Images to measure decoders on: of a pack, of a folder, or sample photographs."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

import packio
from packio import registry
from packio.errors import DecodeError, MissingPackageError, OptionError, SourceError
from packio.images import dct, encodings
from packio.sample.record import Facts

_QUALITY = 95
_SYNTHETIC = ((500, 375), (375, 500), (640, 480), (1024, 768))  # (width, height) in pixels


class EncodedImage(NamedTuple):
    """Bytes of an image, and what decoders need to know of it."""

    data: bytes
    stored: Facts

    @property
    def pixels(self) -> int:
        return self.stored.height * self.stored.width


class Images(NamedTuple):
    """Images, their origin in words, and the number of files that Pillow does not know."""

    images: list[EncodedImage]
    origin: str
    unreadable: int


def find_decoders(names: Iterable[str] | None) -> tuple[dict[str, str], dict[str, str]]:
    """Give the versions of the decoders that are installed, and why the others are not."""
    versions: dict[str, str] = {}
    missing: dict[str, str] = {}
    for name in registry.names("decoders") if names is None else dict.fromkeys(names):
        try:
            versions[name] = registry.load("decoders", name).version()
        except MissingPackageError as error:
            if names is not None:
                raise
            missing[name] = str(error)
    return versions, missing


def collect(path: str | os.PathLike[str] | None, limit: int) -> Images:
    """Read up to ``limit`` images, spread evenly over those of a folder or a pack.

    Without a path: all sample photographs, as JPEGs.
    """
    if limit < 1:
        raise OptionError(f"limit={limit}: expected 1 or more")
    if path is None:
        return _read_photographs()
    origin = os.fspath(path)
    if not os.path.isdir(path) or os.path.exists(os.path.join(path, "index.packio")):
        return _read_pack(origin, limit)
    files = sorted(
        os.path.join(folder, name)
        for folder, _, names in os.walk(path)
        for name in names
        if not name.startswith(".")
    )
    return _identify((Path(file).read_bytes() for file in _spread(files, limit)), origin)


def _read_pack(path: str, limit: int) -> Images:
    with packio.open(path) as pack:
        samples = [pack[i] for i in _spread(range(len(pack)), limit)]
    images = [
        EncodedImage(
            s.as_file(),
            Facts(dct.file_encoding(s.encoding), s.height, s.width, s.channels, s.dtype),
        )
        for s in samples
        if s.encoding != "raw"
    ]
    if not images:
        raise SourceError(f"{path}: holds raw pixels only; expected encoded images")
    return Images(images, path, 0)


def _spread(items: Sequence[Any], limit: int) -> list[Any]:
    count = len(items)
    return [items[i * count // min(limit, count)] for i in range(min(limit, count))]


def _identify(datas: Iterable[bytes], origin: str) -> Images:
    images, unreadable = [], 0
    for data in datas:
        try:
            images.append(EncodedImage(data, encodings.read_facts(data)))
        except DecodeError:
            unreadable += 1
    if not images:
        raise SourceError(f"{origin}: no image among {unreadable} files; expected some")
    return Images(images, origin, unreadable)


def _read_photographs() -> Images:
    """Take the photographs in the wheels of scikit-image and scikit-learn, else draw pictures."""
    arrays: list[Any] = []
    with contextlib.suppress(ImportError):
        from skimage import data

        loaders: list[Any] = [data.astronaut, data.chelsea, data.coffee]  # those in its wheel
        arrays += [load() for load in loaders]
    with contextlib.suppress(ImportError):
        from sklearn.datasets import load_sample_images

        arrays += load_sample_images().images
    origin = f"photographs of scikit-image and scikit-learn, JPEG at quality {_QUALITY}"
    if not arrays:
        arrays = _draw_pictures()
        origin = f"synthetic pictures, JPEG at quality {_QUALITY} (give a folder for real ones)"
    jpegs = []
    for array in arrays:
        buffer = io.BytesIO()
        Image.fromarray(array).save(buffer, "JPEG", quality=_QUALITY)
        jpegs.append(buffer.getvalue())
    return _identify(jpegs, origin)


def _draw_pictures() -> list[Any]:
    """Make smooth waves with some noise: their JPEGs are about as large as those of photographs."""
    random = np.random.default_rng(0)
    arrays = []
    for width, height in _SYNTHETIC:
        y, x, channel = np.ogrid[:height, :width, :3]
        waves = np.sin(x / (17 + 5 * channel)) + np.cos(y / (23 - 4 * channel))
        noise = random.normal(0, 6, (height, width, 3))
        arrays.append(np.clip(128 + 50 * waves + noise, 0, 255).astype(np.uint8))
    return arrays
