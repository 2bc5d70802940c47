"""Write the small JPEGs that tools/native_fuzz.c begins with.

    python tools/native_jpegs.py FOLDER

It wants packio's dependencies and scikit-image.
"""

from __future__ import annotations

import io
import pathlib
import sys
from typing import Any

from PIL import Image
from skimage import data

SIZES = ((40, 48), (9, 17), (75, 60), (1, 1), (33, 5), (8, 130), (17, 16), (120, 90))
WAYS: tuple[dict[str, Any], ...] = (
    {}, {"optimize": True}, {"restart_marker_blocks": 2}, {"restart_marker_rows": 1},
    {"progressive": True}, {"progressive": True, "restart_marker_blocks": 2},
)  # fmt: skip


def encoded(image: Image.Image, **options: Any) -> bytes:
    """An image as a JPEG; options are those of Pillow."""
    held = io.BytesIO()
    image.save(held, "JPEG", **options)
    return held.getvalue()


def main() -> None:
    """Write the JPEGs into the folder that the command line names."""
    folder = pathlib.Path(sys.argv[1])
    names = ("astronaut", "coffee", "chelsea")
    photos = [Image.fromarray(getattr(data, name)()) for name in names]
    for number, (height, width) in enumerate(SIZES):
        photo = photos[number % 3].resize((150, 140)).crop((10, 5, 10 + width, 5 + height))
        for quality in (75, 97):
            for way, options in enumerate(WAYS):
                name = f"{number}-{quality}-{way}"
                gray = encoded(photo.convert("L"), quality=quality, **options)
                (folder / f"{name}-gray.jpg").write_bytes(gray)
                for sampling in range(3 if width > 4 else 1):
                    jpeg = encoded(photo, quality=quality, subsampling=sampling, **options)
                    (folder / f"{name}-{sampling}.jpg").write_bytes(jpeg)


if __name__ == "__main__":
    main()
