"""Raw pixels: what their bytes mean in each order, and that the numbers must fit."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest

import packio
from packio.errors import ModeError
from packio.images import encodings
from packio.images.decoders import Decoder
from packio.sample.record import Facts

if TYPE_CHECKING:
    from pathlib import Path

_ORDERS = sorted(encodings.RAW)


def _pixels(channels: int, dtype: str = "uint8") -> np.ndarray:
    values = np.arange(5 * 7 * channels).reshape(5, 7, channels) * 3
    return values.astype(dtype)


def _bytes(pixels: np.ndarray, encoding: str) -> bytes:
    planes, bgr = encodings.RAW[encoding]
    if bgr and pixels.shape[2] >= 3:
        pixels = np.concatenate([pixels[..., 2::-1], pixels[..., 3:]], axis=2)
    return (pixels.transpose(2, 0, 1) if planes else pixels).tobytes()


@pytest.mark.parametrize("encoding", _ORDERS)
@pytest.mark.parametrize(("channels", "mode"), [(1, "GRAY"), (3, "RGB"), (4, "RGB_ALPHA")])
def test_every_order_gives_the_same_pixels(encoding: str, channels: int, mode: str) -> None:
    pixels = _pixels(channels)
    stored = Facts(encoding, 5, 7, channels, "uint8")
    for name in (mode, "UNCHANGED"):
        found = Decoder(mode=name)(_bytes(pixels, encoding), stored)
        assert np.array_equal(found, pixels)
        assert found.flags.c_contiguous


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_wide_pixels_come_unchanged(dtype: str) -> None:
    pixels = _pixels(3, dtype)
    stored = Facts("raw", 5, 7, 3, dtype)
    found = Decoder(mode="UNCHANGED")(_bytes(pixels, "raw"), stored)
    assert found.dtype == dtype
    assert np.array_equal(found, pixels)
    with pytest.raises(ModeError):
        Decoder(mode="RGB")(_bytes(pixels, "raw"), stored)


@pytest.mark.parametrize("mode", ["RGB", "GRAY", "RGB_ALPHA"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_other_modes_are_pillows(channels: int, mode: str) -> None:
    from PIL import Image

    pixels = _pixels(channels)
    image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
    stored = Facts("raw", 5, 7, channels, "uint8")
    expected = np.asarray(image.convert({"RGB": "RGB", "GRAY": "L", "RGB_ALPHA": "RGBA"}[mode]))
    found = Decoder(mode=mode)(_bytes(pixels, "raw"), stored)
    assert np.array_equal(found, expected.reshape(found.shape))


@pytest.mark.parametrize("length", [0, 1, 104, 106])
def test_a_length_that_does_not_fit_is_refused(length: int) -> None:
    with pytest.raises(packio.DecodeError, match="bytes of raw pixels"):
        Decoder()(bytes(length), Facts("raw", 5, 7, 3, "uint8"))


def test_raw_samples_pack_and_convert(tmp_path: Path, image_folder: Path) -> None:
    source = packio.open(packio.pack(image_folder, tmp_path / "a.lmdb").out)
    samples = []
    for sample in source:
        pixels = sample.decode(exif_orientation=False)
        samples.append(
            dataclasses.replace(
                sample, data=pixels.transpose(2, 0, 1).tobytes(), encoding="raw",
                height=pixels.shape[0], width=pixels.shape[1], channels=3, orientation=1,
            )
        )  # fmt: skip
    raw = packio.open(packio.pack(samples, tmp_path / "b.lmdb").out)
    again = packio.open(packio.convert(raw.path, tmp_path / "c.tfrecord").out)
    for a, b, c in zip(source, raw, again, strict=True):
        assert b.encoding == c.encoding == "raw"
        assert b.data == c.data
        assert np.array_equal(a.decode(exif_orientation=False), c.decode())
