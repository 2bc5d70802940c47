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
from packio.sample.fields import encode
from packio.sample.packed import Sample

# Named fields of all samples but the second: since version 2.
FIELDS = {"caption": encode("ein Satz\n"), "latent": encode(np.arange(6, dtype=np.float32)),
          "raw": encode(b"\0\1")}  # fmt: skip


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
                split="train" if i < 2 else "val",
                box_columns={"crowd": np.arange(i) % 2},
                fields=FIELDS if i != 1 else {},
            )
        )
    return made


def main() -> None:
    """Write what is missing."""
    root = pathlib.Path(__file__).parent.parent / "tests/frozen" / f"v{indexfile.VERSION}"
    root.mkdir(parents=True, exist_ok=True)
    for name in registry.names("formats"):
        caps = registry.load("formats", name).caps
        if caps.writes and not (out := root / f"frozen{caps.suffixes[0]}").exists():
            print(packio.pack(samples(), out).out)


if __name__ == "__main__":
    main()
