"""Fuzz what reads the headers of JPEGs.

    pip install atheris
    python tools/fuzz_jpeg.py -runs=1000000

Options are libFuzzer's. Anything found wrong ends the run, with the input in a file ``crash-…``.
tools/native_sanitize.sh does the same to the native core, with sanitizers.
"""

from __future__ import annotations

import io
import pathlib
import sys
import tempfile
from typing import Any

import atheris
import numpy as np

with atheris.instrument_imports(include=["packio"]):
    from packio.images import encodings

from PIL import Image

_SIZES = ((1, 1), (40, 24), (70, 50))  # (width, height) in pixels
_END_OF_SOS = b"\0\x3f\0"


def _check(data: bytes) -> None:
    found = encodings.parse_jpeg(data)
    if found is not None and not (found.height > 0 and found.width > 0):
        raise AssertionError


def _seeds() -> list[bytes]:
    """Small JPEGs of all kinds."""
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
    return made


def _mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Mutate anything, or only the entropy-coded data: few JPEGs survive a change of the header."""
    start = data.find(_END_OF_SOS) + len(_END_OF_SOS) if seed % 4 else 0
    changed: bytes = atheris.Mutate(data[start:], max(max_size - start, 1))
    return data[:start] + changed


def main() -> None:
    """Run the fuzzer with the command line's options."""
    corpus = pathlib.Path(tempfile.mkdtemp())
    for i, seed in enumerate(_seeds()):
        (corpus / str(i)).write_bytes(seed)
    atheris.Setup([*sys.argv, str(corpus)], _check, custom_mutator=_mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
