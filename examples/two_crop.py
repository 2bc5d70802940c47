"""Learn from two crops of each photograph, without labels, as SimCLR does.

    python examples/two_crop.py                    # makes photographs
    python examples/two_crop.py --data photos/     # a folder of images, or whatever packio packs

Both crops come from one read of the image.
Source: Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", 2020.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import statistics
import subprocess
import sys
import time
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

import packio

TOOLS = pathlib.Path(__file__).parent.parent / "tools"
IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])  # mean, standard deviation


def encoder(width: int, features: int) -> nn.Module:
    sizes = [3, width, 2 * width, 4 * width]
    stages = [
        nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
        for a, b in pairwise(sizes)
    ]
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*stages, *pooled, nn.Linear(4 * width, features))


def jittered(views: list[torch.Tensor]) -> list[torch.Tensor]:
    """Change brightness and contrast of each image, on the device."""
    changed = []
    for images in views:
        gain, shift = torch.empty(2, len(images), 1, 1, 1, device=images.device).uniform_(-0.4, 0.4)
        changed.append(images * (1 + gain) + shift)
    return changed


def contrast(first: torch.Tensor, second: torch.Tensor, temperature: float = 0.2) -> torch.Tensor:
    """NT-Xent: of all other crops of the batch, which one is of the same image?"""
    z = functional.normalize(torch.cat([first, second]).float())
    scores = z @ z.T / temperature
    scores.fill_diagonal_(float("-inf"))
    return functional.cross_entropy(scores, torch.arange(len(z), device=z.device).roll(len(first)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, help="folder of images")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("demo/two_crop"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=96, help="of the crops, pixels")
    parser.add_argument("--short", action="store_true", help="seconds instead of minutes")
    options = parser.parse_args()
    photos = 512
    if options.short:
        photos, options.epochs, options.size, options.batch_size = 64, 5, 32, 16

    options.work.mkdir(parents=True, exist_ok=True)
    source, pack = options.data, options.work / "photos.lmdb"
    if source is None:
        source, pack = options.work / f"photos{photos}", options.work / f"photos{photos}.lmdb"
        make = [sys.executable, TOOLS / "make_sample_images.py", source, "--n", str(photos)]
        subprocess.run([*make, "--size", "240"], check=True)
    packio.pack(source, pack)

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    crop = packio.RandomResizedCrop(options.size, scale=(0.2, 1.0))
    train = packio.LmdbDataset(pack, views=[crop, crop], hflip=0.5, fields="image", seed=0)
    loader = packio.Loader(
        train,
        options.batch_size,
        shuffle=True,
        drop_last=True,
        device=device,
        normalize=IMAGENET,
        batch_transform=jittered,
    )

    model = encoder(16, 64).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for epoch in range(options.epochs):
        start = time.perf_counter()
        for first, second in loader:  # (N, 3, size, size) each: two crops of the same images
            loss = contrast(model(first), model(second))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        rate = 2 * len(loader) * options.batch_size / (time.perf_counter() - start)
        print(f"epoch {epoch + 1}: loss {losses[-1]:.4f}, {rate:,.0f} crops/s")
    n = len(loader)
    begin, end = statistics.mean(losses[:n]), statistics.mean(losses[-n:])
    print(f"loss {begin:.4f} -> {end:.4f}, by chance {math.log(2 * options.batch_size - 1):.4f}")


if __name__ == "__main__":
    main()
