"""Write tests/frozen/crops.npz: what torchvision v2 makes of crops of real photographs.

    python tools/make_frozen_crops.py

Boxes are drawn by torchvision's RandomResizedCrop; each is resized to 224 x 224 by its
``resized_crop`` on uint8 tensors, antialiased. The photographs are those that scikit-image and
scikit-learn carry, decoded by Pillow. Kept are, of each crop, the pixels of a grid of GRID rows and
columns: bilinear as they are, bicubic less bilinear, since that packs well.
"""

from __future__ import annotations

import importlib
import json
import pathlib
import sys
from typing import Any

import make_sample_images
import numpy as np
import torch

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
OUT = REPOSITORY / "tests" / "frozen" / "crops.npz"
SIZE, CROPS = 224, 36  # pixels; of each photograph
GRID = slice(6, None, 19)  # 12 of 224
HOWS = ("bilinear", "bicubic")


def photographs() -> list[str]:
    """Those in colour, and textures, whose channels are equal."""
    groups = (*make_sample_images.COLOUR, "textures")
    return [name for group in groups for name in make_sample_images.GROUPS[group]]


def crops(torchvision: Any, name: str) -> tuple[list[list[int]], list[list[np.ndarray]]]:
    """Boxes of a photograph, and their grids for each of HOWS: (12, 12, 3) uint8."""
    v2, modes = torchvision.transforms.v2, torchvision.transforms.InterpolationMode
    pixels = np.array(make_sample_images.photograph(name))
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    draw = torchvision.transforms.RandomResizedCrop.get_params
    boxes = [list(draw(image, [0.08, 1.0], [3 / 4, 4 / 3])) for _ in range(CROPS)]
    grids = []
    for how in HOWS:
        mode = modes(how)
        made = [v2.functional.resized_crop(image, *b, [SIZE, SIZE], mode, True) for b in boxes]
        grids.append([m[:, GRID, GRID].permute(1, 2, 0).numpy() for m in made])
    return boxes, grids


def main() -> None:
    """Write the file."""
    sys.path.append(
        str(REPOSITORY / "tests" / "support")
    )  # it loads torchvision beside a CPU build of torch
    torchvision = importlib.import_module("vision").import_torchvision()
    torch.manual_seed(0)
    names = photographs()
    found = [crops(torchvision, name) for name in names]
    bilinear, bicubic = (np.array([g for _, grids in found for g in grids[i]]) for i in range(2))
    facts = {
        "photographs": names,
        "crops": CROPS,
        "size": SIZE,
        "grid": [GRID.start, GRID.step],
        "torchvision": torchvision.__version__,
        "torch": torch.__version__,
    }
    np.savez_compressed(
        OUT,
        boxes=np.array([box for boxes, _ in found for box in boxes], np.int16),
        bilinear=bilinear,
        bicubic=bicubic - bilinear,  # modulo 256
        facts=np.frombuffer(json.dumps(facts).encode(), np.uint8),
    )
    print(f"{OUT}: {len(bilinear)} crops, {OUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
