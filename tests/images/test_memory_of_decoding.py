"""Decoding a large image holds its pixels about once."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from packio.images.decoders import MODES, pillow

if TYPE_CHECKING:
    from pathlib import Path

_SIDE = 5000  # pixels
_PEAK = """
import resource, sys
from PIL import Image
import numpy as np, torch
from packio.batches import masks
from packio.images.decoders import pillow
data = open(sys.argv[1], "rb").read()
pillow.decode(open(sys.argv[2], "rb").read())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if sys.argv[3] == "mask":
    pixels = masks.decode_with_pillow(data, (int(sys.argv[4]),) * 2)
else:
    pixels = pillow.decode(data, sys.argv[3])
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) * 1024 / pixels.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss is Linux's")
@pytest.mark.parametrize("mode", ["RGB", "mask"])
def test_pixels_of_a_large_png_are_held_about_once(mode: str, tmp_path: Path) -> None:
    Image.new("1", (_SIDE, _SIDE)).save(tmp_path / "large.png")
    Image.new("1", (9, 9)).save(tmp_path / "small.png")
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, "large.png", "small.png", mode, str(_SIDE)],
        cwd=tmp_path, capture_output=True, text=True, check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    # the pixels, what Pillow has decoded (a byte a pixel), and strips of a million pixels
    assert float(done.stdout) < (2.7 if mode == "mask" else 1.7)


def _images() -> dict[str, Image.Image]:
    noise = np.random.default_rng(0).integers(0, 256, (70, 31, 4), np.uint8)
    colour = Image.fromarray(noise[..., :3])
    palette = colour.quantize(40)
    clear = palette.copy()
    clear.info["transparency"] = bytes(range(0, 240, 6))
    return {
        "RGB": colour, "RGBA": Image.fromarray(noise), "L": colour.convert("L"),
        "1": colour.convert("1"), "P": palette, "P, transparent": clear,
        "LA": Image.fromarray(noise).convert("LA"), "I;16": Image.fromarray(
            noise.view(np.uint16)[..., 0].copy()
        ),
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize("kind", _images())
@pytest.mark.parametrize("mode", MODES)
def test_strips_have_the_pixels_of_the_whole(
    mode: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.BytesIO()
    _images()[kind].save(file, "PNG")
    if kind == "I;16" and mode != "UNCHANGED":
        pytest.skip("16 bits do not fit")
    whole = pillow.decode(file.getvalue(), mode)
    monkeypatch.setattr(pillow, "_STRIP", 200)  # pixels: six rows
    strips = pillow.decode(file.getvalue(), mode)
    assert (strips.dtype, strips.flags.c_contiguous) == (whole.dtype, True)
    assert np.array_equal(strips, whole)
