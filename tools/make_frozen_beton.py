"""Write tests/frozen/foreign/photos.beton with FFCV's own DatasetWriter, once.

FFCV 1.0.2 is built from source and is no dependency of packio's; on Debian, in a virtual
environment of its own:

    apt-get install libopencv-dev libturbojpeg0-dev pkg-config
    pip install 'numpy<2.4' numba opencv-python-headless torch pillow tqdm scikit-image setuptools
    pip install --no-build-isolation --no-deps ffcv
    python tools/make_frozen_beton.py
"""

from __future__ import annotations

import pathlib
from typing import Any

import make_sample_images
import numpy as np

PATH = pathlib.Path(__file__).parent.parent / "tests/frozen/foreign/photos.beton"
PAGE = 8192  # bytes; FFCV's least is 2 MiB, of which these samples would leave nearly all empty
LARGEST_RAW = 2000  # bytes of an image; a larger one is stored as a JPEG
_PHOTOGRAPHS = ("astronaut.png", "chelsea.png", "coffee.png")


def samples() -> list[dict[str, Any]]:
    """What is in the file: six photographs of 16x16 to 31x36 pixels, and a value of each type."""
    made = []
    for i in range(6):
        photograph = make_sample_images.photograph(f"skimage/data/{_PHOTOGRAPHS[i % 3]}")
        pixels = np.array(photograph)[::8, ::8][: 16 + 3 * i, : 16 + 4 * i]
        made.append({
            "image": np.ascontiguousarray(pixels),
            "label": i % 3 - 1,
            "score": i / 3,
            "caption": b"\xff caf\xc3\xa9" * (i % 2),
            "info": {"number": i, "text": "ü", "nothing": None},
            "box": np.arange(4, dtype=np.float32).reshape(2, 2) + i,
        })  # fmt: skip
    return made


class _Rows:
    """The samples as FFCV takes them: by position, each a tuple in the order of the fields."""

    def __init__(self, given: list[dict[str, Any]]) -> None:
        self._rows = [
            tuple(np.frombuffer(v, np.uint8) if isinstance(v, bytes) else v for v in s.values())
            for s in given
        ]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> tuple[Any, ...]:
        return self._rows[i]


def main() -> None:
    """Write it, if it is missing."""
    from ffcv import fields  # type: ignore[import-not-found]  # in an environment of its own
    from ffcv.writer import DatasetWriter  # type: ignore[import-not-found]  # the same

    if PATH.exists():
        return
    PATH.parent.mkdir(parents=True, exist_ok=True)
    types = {
        "image": fields.RGBImageField(write_mode="smart", smart_threshold=LARGEST_RAW),
        "label": fields.IntField(),
        "score": fields.FloatField(),
        "caption": fields.BytesField(),
        "info": fields.JSONField(),
        "box": fields.NDArrayField(np.dtype(np.float32), (2, 2)),
    }
    writer = DatasetWriter(str(PATH), types, num_workers=1)
    writer.page_size = PAGE
    writer.from_indexed_dataset(_Rows(samples()))


if __name__ == "__main__":
    main()
