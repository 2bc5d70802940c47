"""Train a small U-Net on images and masks, which are cropped and mirrored together.

    python examples/train_segmentation.py                                # makes images with masks
    python examples/train_segmentation.py --data VOC2012 --classes 21    # Cityscapes, ADE20K, …

Data is whatever `packio pack` takes, as a folder with images/ and masks/. Masks are resized to the
nearest pixel; what is 255 in them, as where a crop reaches beyond its image, the loss ignores.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import time

import numpy as np
import skimage.data
import skimage.filters
import torch
from PIL import Image
from torch import nn

import packio

IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])  # mean, standard deviation
IGNORED = 255  # class id of pixels that are beyond the image, or that nobody labelled


def make_data(folder: pathlib.Path) -> pathlib.Path:
    """Photographs as images/*.jpg, and what is bright in them as masks/*.png of class ids 0, 1."""
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for name in ("astronaut", "chelsea", "coffee", "coins", "hubble_deep_field", "rocket"):
        image = Image.fromarray(getattr(skimage.data, name)())
        image.thumbnail((256, 256))
        image.save(folder / "images" / f"{name}.jpg")
        gray = skimage.filters.gaussian(np.asarray(image.convert("L")), 2)
        mask = (gray > skimage.filters.threshold_otsu(gray)).astype("uint8")
        Image.fromarray(mask).save(folder / "masks" / f"{name}.png")
    return folder


def convolutions(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    """Down twice, up twice, and what was there before beside what came up."""

    def __init__(self, classes: int, width: int = 8) -> None:
        super().__init__()
        self.top, self.middle = convolutions(3, width), convolutions(width, 2 * width)
        self.bottom = convolutions(2 * width, 4 * width)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear")
        self.middle_up = convolutions(6 * width, 2 * width)
        self.top_up = convolutions(3 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        top = self.top(images)
        middle = self.middle(nn.functional.max_pool2d(top, 2))
        bottom = self.bottom(nn.functional.max_pool2d(middle, 2))
        middle = self.middle_up(torch.cat([self.up(bottom), middle], 1))
        return self.head(self.top_up(torch.cat([self.up(middle), top], 1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, help="images and masks")
    parser.add_argument("--classes", type=int, default=2)
    parser.add_argument(
        "--work", type=pathlib.Path, default=pathlib.Path("demo/train_segmentation")
    )
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=6)
    parser.add_argument("--size", type=int, default=96, help="of the crops, a multiple of 4")
    parser.add_argument("--short", action="store_true", help="seconds instead of minutes")
    options = parser.parse_args()
    if options.short:
        options.epochs, options.size = 15, 32

    source = options.data or make_data(options.work / "made")
    pack = options.work / "train.lmdb"
    packio.pack(source, pack)

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train = packio.LmdbDataset(
        pack,
        crop=packio.RandomResizedCrop(options.size, scale=(0.2, 1.0)),
        hflip=0.5,
        fields=("image", "mask"),
        ignore_index=IGNORED,
        seed=0,
    )
    whole = train.with_options(crop=packio.Resize((options.size, options.size)), hflip=0)
    on_device = {"device": device, "normalize": IMAGENET}  # masks stay class ids, uint8
    loader = packio.Loader(train, options.batch_size, shuffle=True, **on_device)

    model = UNet(options.classes).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses = []
    for epoch in range(options.epochs):
        start = time.perf_counter()
        for images, masks in loader:  # (N, 3, size, size) float32, (N, size, size) uint8
            scores = model(images)
            loss = nn.functional.cross_entropy(scores, masks.long(), ignore_index=IGNORED)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if (epoch + 1) % 10 == 0:
            rate = len(train) / (time.perf_counter() - start)
            print(f"epoch {epoch + 1}: loss {losses[-1]:.4f}, {rate:,.0f} images/s")
    found = mean_iou(model, packio.Loader(whole, options.batch_size, **on_device), options.classes)
    n = max(1, len(losses) // 5)
    first, last = statistics.mean(losses[:n]), statistics.mean(losses[-n:])
    print(f"loss {first:.4f} -> {last:.4f}, mean IoU {found:.2f}")


@torch.no_grad()
def mean_iou(model: nn.Module, loader: packio.Loader, classes: int) -> float:
    """Intersection over union of what is found and what is there, mean of the classes."""
    model.eval()
    counts = torch.zeros(())
    for images, masks in loader:
        there = masks != IGNORED
        pairs = model(images).argmax(1)[there] * classes + masks[there]
        counts = counts + torch.bincount(pairs.cpu(), minlength=classes**2)
    both = counts.view(classes, classes)
    return (both.diag() / (both.sum(0) + both.sum(1) - both.diag())).nanmean().item()


if __name__ == "__main__":
    main()
