"""packio and timm: its model, its augmentation, its mixup; crops and flips by packio.

    python examples/timm_train.py
    python examples/timm_train.py --data photos/train --model resnet50

timm's transform is given as it is: packio crops while it decodes, and runs RandAugment, floats and
random erasing in its core. Mixup and cutmix of whole batches stay timm's.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import subprocess
import sys
import time

import timm
import timm.data
import torch
from timm.loss import SoftTargetCrossEntropy

import packio

TOOLS = pathlib.Path(__file__).parent.parent / "tools"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, help="folder of class folders of images")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("demo/timm_train"))
    parser.add_argument("--model", default="test_resnet")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=96, help="of the crops, pixels")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--short", action="store_true", help="seconds instead of minutes")
    options = parser.parse_args()
    photos = 480
    if options.short:
        photos, options.epochs, options.size, options.batch_size = 80, 8, 32, 16
        options.workers = 0

    options.work.mkdir(parents=True, exist_ok=True)
    source, pack = options.data, options.work / "photos.lmdb"
    if source is None:
        source, pack = options.work / f"photos{photos}", options.work / f"photos{photos}.lmdb"
        make = [sys.executable, TOOLS / "make_sample_images.py", source, "--n", str(photos)]
        subprocess.run([*make, "--size", "240"], check=True)
    packio.pack(source, pack, split={"train": 0.8, "val": 0.2})

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    classes = len(packio.open(pack).classes)
    model = timm.create_model(options.model, num_classes=classes).to(device)
    how = timm.data.resolve_model_data_config(model)  # mean, std, interpolation, …
    transform = timm.data.create_transform(
        options.size, is_training=True, auto_augment="rand-m5-mstd0.5", re_prob=0.1,
        mean=how["mean"], std=how["std"], interpolation=how["interpolation"],
    )  # fmt: skip
    train = packio.LmdbDataset(pack, split="train", transform=transform, seed=0)
    crop = packio.ResizeCenterCrop(options.size, how["crop_pct"], how["interpolation"])
    val = packio.LmdbDataset(pack, split="val", crop=crop)
    mixup = timm.data.Mixup(
        mixup_alpha=0.2, cutmix_alpha=1.0, prob=0.3, label_smoothing=0.05, num_classes=classes
    )
    loader = packio.Loader(
        train,
        options.batch_size,
        shuffle=True,
        drop_last=True,  # mixup takes an even number
        num_workers=options.workers,
        device=device,
        batch_transform=lambda batch: mixup(*batch),
    )
    val_loader = packio.Loader(
        val, options.batch_size, device=device, normalize=(how["mean"], how["std"])
    )

    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    losses, loss_of = [], SoftTargetCrossEntropy()
    for epoch in range(options.epochs):
        model.train()
        start = time.perf_counter()
        for images, soft_labels in loader:  # (N, 3, size, size), (N, classes)
            loss = loss_of(model(images), soft_labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        rate = len(loader) * options.batch_size / (time.perf_counter() - start)
        print(f"epoch {epoch + 1}: loss {losses[-1]:.4f}, {rate:,.0f} images/s")
    first, last = (
        statistics.mean(part) for part in (losses[: len(loader)], losses[-len(loader) :])
    )
    print(f"loss {first:.4f} -> {last:.4f}, accuracy {accuracy(model, val_loader):.2f}")


@torch.no_grad()
def accuracy(model: torch.nn.Module, loader: packio.Loader) -> float:
    """Share of the images whose class is found."""
    model.eval()
    right = [(model(images).argmax(1) == labels).float() for images, labels in loader]
    return torch.cat(right).mean().item()


if __name__ == "__main__":
    main()
