"""Write a small pack of every format into tests/frozen/VERSION, once for each version on disk.

    python tools/make_frozen_packs.py

Packs that are there already are left alone: what was written must stay readable for ever.
"""

from __future__ import annotations

import io
import pathlib

import numpy as np
from PIL import Image

import packio
from packio import registry
from packio.index import indexfile
from packio.sample.sample import Sample


def samples() -> list[Sample]:
    """Three images with all that a sample can have."""
    made = []
    for i, encoding in enumerate(("JPEG", "PNG", "WEBP")):
        pixels = (np.indices((8 + i, 12)).sum(0)[:, :, None] * (5 + i) + np.arange(3) * 40) % 256
        image, mask = io.BytesIO(), io.BytesIO()
        Image.fromarray(pixels.astype(np.uint8)).save(image, encoding)
        Image.fromarray((pixels[:, :, 0] % 4).astype(np.uint8)).save(mask, "PNG")
        height, width = pixels.shape[:2]
        made.append(
            Sample(
                index=i,
                key=f"class {i % 2}/é{i}.{encoding.lower()}",
                data=image.getvalue(),
                encoding=encoding.lower(),
                label=i % 2,
                height=height,
                width=width,
                mask=mask.getvalue(),
                meta={"number": i, "text": "ü"},
                boxes=np.array([[1, 2, 3.5, 4]] * i, np.float32).reshape(-1, 4),
                box_labels=np.arange(i),
            )
        )
    return made


def main() -> None:
    """Write what is missing."""
    root = pathlib.Path(__file__).parent.parent / "tests/frozen" / f"v{indexfile.VERSION}"
    root.mkdir(parents=True, exist_ok=True)
    for name in registry.names("formats"):
        module = registry.load("formats", name)
        out = root / f"frozen{module.SUFFIXES[0]}" if module.SUFFIXES else root
        if hasattr(module, "Writer") and not out.exists():
            print(packio.pack(samples(), out).out)


if __name__ == "__main__":
    main()
