"""Fuzz what reads JPEGs: the header, windows, and the making of restarts.

    pip install atheris
    python tools/fuzz_jpeg.py header|window|restarts -runs=1000000

Options are libFuzzer's. Anything found wrong ends the run, with the input in a file ``crash-…``.
tools/native_sanitize.sh does the same to the native core, with sanitizers.
"""

from __future__ import annotations

import io
import pathlib
import struct
import sys
import tempfile
from typing import Any

import atheris
import numpy as np

with atheris.instrument_imports(include=["packio"]):
    from packio.images.jpeg import header, restarts, window

import simplejpeg
from PIL import Image

_BOX = struct.Struct(">4H")  # before the JPEG in the input of `_check_window`
_SIZES = ((1, 1), (40, 24), (70, 50))  # (width, height) in pixels
_FEW_PIXELS = 100_000
_END_OF_SOS = b"\0\x3f\0"


def _demand(holds: bool) -> None:
    if not holds:
        raise AssertionError


def _check_header(data: bytes) -> None:
    found = header.parse(data)
    _demand(found is None or (found.height > 0 and found.width > 0))


def _check_window(data: bytes) -> None:
    if len(data) < _BOX.size:
        return
    box, data = _BOX.unpack_from(data), data[_BOX.size :]
    cut, top, left = window.window(data, box)
    _demand(top >= 0 and left >= 0 and len(cut) <= len(data))
    if cut is data:
        _demand((top, left) == (0, 0))
    else:
        _demand(header.parse(bytes(cut)) is not None and cut.endswith(b"\xff\xd9"))


def _check_restarts(data: bytes) -> None:
    made = restarts.make_seekable(data)
    if made is data:
        return
    _demand(restarts.is_seekable(made) and restarts.make_seekable(made) is made)
    facts = header.parse(data)
    if facts is not None and facts.height * facts.width < _FEW_PIXELS:
        try:
            pixels = simplejpeg.decode_jpeg(data)
        except ValueError:
            return
        _demand(np.array_equal(simplejpeg.decode_jpeg(made), pixels))


_CHECKS = {"header": _check_header, "window": _check_window, "restarts": _check_restarts}


def _seeds() -> list[bytes]:
    """Small JPEGs of all kinds, as they are and seekable."""
    options: list[dict[str, Any]] = [
        {"subsampling": 0},
        {"subsampling": 1, "optimize": True},
        {"subsampling": 2},
        {"progressive": True},
        {"keep_rgb": True},
        {"restart_marker_blocks": 2},
        {"restart_marker_rows": 1, "comment": b"a comment", "icc_profile": bytes(20)},
    ]
    made = []
    for size in _SIZES:
        noise = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), np.uint8)
        for mode in ("RGB", "L", "CMYK"):
            for option in options:
                buffer = io.BytesIO()
                Image.fromarray(noise).convert(mode).save(buffer, "JPEG", **option)
                made.append(buffer.getvalue())
    return made + [restarts.make_seekable(data) for data in made]


def _mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Mutate anything, or only the entropy-coded data: few JPEGs survive a change of the header."""
    start = data.find(_END_OF_SOS) + len(_END_OF_SOS) if seed % 4 else 0
    changed: bytes = atheris.Mutate(data[start:], max(max_size - start, 1))
    return data[:start] + changed


def main() -> None:
    """Run the fuzzer with the command line's options."""
    check = _CHECKS[sys.argv.pop(1)]
    restarts._LEAST_BYTES = 30  # noqa: SLF001 (so that small JPEGs have several segments)
    corpus = pathlib.Path(tempfile.mkdtemp())
    for i, seed in enumerate(_seeds()):
        box = _BOX.pack(9, 9, 12, 20) if check is _check_window else b""
        (corpus / str(i)).write_bytes(box + seed)
    atheris.Setup([*sys.argv, str(corpus)], check, custom_mutator=_mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
