"""Progressive JPEGs: the core decodes all scans, with libjpeg-turbo's pixels, or none."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path
from typing import Any

import made
import native_core
import numpy as np
import pytest
import torch
from native_core import kernels
from PIL import Image
from skimage import data as photographs

import packio
from packio.images import native
from packio.images.frames import Frame

__all__ = ["kernels"]

pytestmark = native_core.needed
_COFFEE: Any = photographs.coffee  # untyped
_MUTANTS = int(os.environ.get("PACKIO_NATIVE_MUTANTS", "4000"))


def _jpeg(height: int, width: int, mode: str = "RGB", **options: Any) -> bytes:
    photo = Image.fromarray(_COFFEE()).resize((500, 400)).crop((60, 50, 60 + width, 50 + height))
    return made.saved(photo.convert(mode), "JPEG", progressive=True, **options)


JPEGS = {
    "plain": _jpeg(93, 130),
    "rough": _jpeg(93, 130, quality=12),
    "fine": _jpeg(93, 130, quality=100, subsampling=0),
    "4:2:2": _jpeg(61, 90, quality=95, subsampling=1),
    "4:4:4": _jpeg(61, 90, quality=75, subsampling=0),
    "gray": _jpeg(70, 50, mode="L", quality=96),
    "restarts": _jpeg(93, 130, quality=85, restart_marker_blocks=4),
    "restart rows": _jpeg(93, 130, quality=85, restart_marker_rows=1, subsampling=0),
    "one pixel": _jpeg(1, 1, mode="L"),
    "a column": _jpeg(120, 6, subsampling=0),
    "a row": _jpeg(3, 300),
}


def _pixels(jpeg: bytes) -> np.ndarray:
    """(C, H, W), by Pillow."""
    pixels = np.asarray(Image.open(io.BytesIO(jpeg)))
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _make(jpeg: bytes, shape: tuple[int, ...], box: tuple[int, int, int, int]) -> Any:
    """Pixels of a box by the core, or a status."""
    channels, height, width = shape
    out = np.full((channels, *box[2:]), 99, np.uint8)
    frame = Frame(*box, *box[2:], 0, 0, *box[2:])
    status = native_core.make(jpeg, (height, width), box, frame, out)
    return status or out


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", list(JPEGS))
def test_pixels_are_those_of_libjpeg_turbo(name: str) -> None:
    whole, draw = _pixels(JPEGS[name]), random.Random(name)
    _, height, width = whole.shape
    boxes = [(0, 0, height, width)]
    for _ in range(20):
        high, broad = draw.randint(1, height), draw.randint(1, width)
        boxes.append((draw.randint(0, height - high), draw.randint(0, width - broad), high, broad))
    for top, left, high, broad in boxes:
        found = _make(JPEGS[name], whole.shape, (top, left, high, broad))
        assert np.array_equal(found, whole[:, top : top + high, left : left + broad])


def test_a_pack_of_progressive_jpegs_is_read_by_the_core(tmp_path: Path) -> None:
    names = [name for name in JPEGS if name not in ("gray", "one pixel")]
    samples = [{"image": JPEGS[name]} for name in names]
    out = packio.pack(samples, tmp_path / "x.lmdb").out
    for fidelity in ("exact", "fast"):
        ds = packio.LmdbDataset(out, crop=packio.ResizeCenterCrop(40), fidelity=fidelity)
        found = ds.gather(range(len(ds)))[0]
        assert all(torch.equal(found[i], ds[i][0]) for i in range(len(ds)))
        assert not ds.declined
    ours = packio.LmdbDataset(out, crop=packio.ResizeCenterCrop(40))
    theirs = packio.LmdbDataset(out, crop=packio.ResizeCenterCrop(40), decoder="pillow")
    assert torch.equal(*(ds.gather(range(len(ds)))[0] for ds in (ours, theirs)))


def _scans(jpeg: bytes) -> list[int]:
    """Where the SOS of each scan is."""
    return [i for i in range(len(jpeg)) if jpeg[i : i + 2] == b"\xff\xda"]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("scans", range(1, 10))
def test_a_jpeg_without_its_last_scans_is_declined(scans: int) -> None:
    """Libjpeg smooths the blocks of such a JPEG."""
    jpeg = JPEGS["plain"]
    assert len(_scans(jpeg)) == 10
    cut = jpeg[: _scans(jpeg)[scans]] + b"\xff\xd9"
    assert _make(cut, (3, 93, 130), (0, 0, 93, 130)) in (native.KIND, 2)


@pytest.mark.usefixtures("kernels")
def test_mutants_have_the_pixels_of_libjpeg_turbo_or_none() -> None:
    draw, jpegs, made_of = random.Random(0), list(JPEGS.values()), 0
    for _ in range(_MUTANTS // 2):
        jpeg = draw.choice(jpegs)
        shape, mutant = _pixels(jpeg).shape, bytearray(jpeg)
        for _ in range(draw.choice((1, 1, 3))):
            place = draw.randrange(len(mutant))
            way = draw.randrange(5)
            if way < 2:
                mutant[place] ^= 1 << draw.randrange(8)
            elif way == 2:
                mutant[place] = draw.randrange(256)
            elif way == 3:
                del mutant[place : place + draw.randrange(1, 9)]
            else:
                mutant[place:place] = draw.randbytes(draw.randrange(1, 9))
        found = _make(bytes(mutant), shape, (0, 0, *shape[1:]))
        if not isinstance(found, int):
            assert np.array_equal(found, _pixels(bytes(mutant)))
            made_of += 1
    assert made_of > _MUTANTS // 50
