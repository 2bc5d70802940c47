"""Train a small ResNet: mixed precision, validation, checkpoints, and resuming exactly.

    python examples/train_classifier.py                        # makes photographs to train on
    python examples/train_classifier.py --data photos/train    # a folder of class folders
    python examples/train_classifier.py --resume               # goes on from the last checkpoint

Interrupted anywhere and resumed, it ends with the same weights, bit for bit: batches, crops and
flips follow from the seed and from where the loader stood.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time
from itertools import pairwise

import torch
from torch import nn

import packio

TOOLS = pathlib.Path(__file__).parent.parent / "tools"
IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])  # mean, standard deviation


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.around = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.path(x) + self.around(x))


def resnet(classes: int, width: int) -> nn.Module:
    """A ResNet of four stages, the last one eight times as wide as the first."""
    widths = [width, width, 2 * width, 4 * width, 8 * width]
    stages = [Block(a, b, 2 - (i == 0)) for i, (a, b) in enumerate(pairwise(widths))]
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), *stages,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, help="folder of class folders of images")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("demo/train_classifier"))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=96, help="of the crops, pixels")
    parser.add_argument("--amp", action="store_true", help="bfloat16 on a CPU, too: mostly slower")
    parser.add_argument("--save-every", type=int, default=10, help="steps")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--stop-at", type=int, help="step to end at, as if interrupted there")
    parser.add_argument("--short", action="store_true", help="seconds instead of minutes")
    options = parser.parse_args()
    photos = 480
    if options.short:
        photos, options.epochs, options.size, options.batch_size = 80, 4, 32, 16
        options.save_every, options.amp = 3, True

    # Pack once: the same command again finds the pack up to date.
    options.work.mkdir(parents=True, exist_ok=True)
    source, pack = options.data, options.work / "photos.lmdb"
    if source is None:
        source, pack = options.work / f"photos{photos}", options.work / f"photos{photos}.lmdb"
        make = [sys.executable, TOOLS / "make_sample_images.py", source, "--n", str(photos)]
        subprocess.run([*make, "--size", "240"], check=True)
    packio.pack(source, pack, split={"train": 0.8, "val": 0.2})

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train = packio.LmdbDataset(
        pack, split="train", crop=packio.RandomResizedCrop(options.size), hflip=0.5, seed=0
    )
    val = train.with_options(split="val", crop=packio.ResizeCenterCrop(options.size), hflip=0)
    on_device = {"device": device, "normalize": IMAGENET, "memory_format": torch.channels_last}
    loader = packio.Loader(train, options.batch_size, shuffle=True, drop_last=True, **on_device)
    val_loader = packio.Loader(val, options.batch_size, **on_device)

    model = resnet(len(train.classes), 16).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    steps = options.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, steps)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": loader}
    amp = options.amp or device.type == "cuda"
    checkpoint, losses = options.work / "checkpoint.pt", []
    if options.resume:
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        losses = saved.pop("losses")
        for name, state in saved.items():
            parts[name].load_state_dict(state)
        print(f"resumed after step {len(losses)}")

    for epoch in range(loader.epoch, options.epochs):
        model.train()
        start, before = time.perf_counter(), len(losses)
        for images, labels in loader:
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=amp):
                loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            if len(losses) % options.save_every == 0 or len(losses) == steps:
                states = {name: part.state_dict() for name, part in parts.items()}
                torch.save({**states, "losses": losses}, f"{checkpoint}.new")
                os.replace(f"{checkpoint}.new", checkpoint)  # whole, whenever the run is killed
            if len(losses) == options.stop_at:
                sys.exit(f"stopped at step {len(losses)}")
        rate = (len(losses) - before) * options.batch_size / (time.perf_counter() - start)
        print(f"epoch {epoch + 1}: loss {losses[-1]:.4f}, {rate:,.0f} images/s")
    first, last = (
        statistics.mean(part) for part in (losses[: len(loader)], losses[-len(loader) :])
    )
    print(f"loss {first:.4f} -> {last:.4f}, accuracy {accuracy(model, val_loader):.2f}")


@torch.no_grad()
def accuracy(model: nn.Module, loader: packio.Loader) -> float:
    """Share of the images whose class is found."""
    model.eval()
    right = [(model(images).argmax(1) == labels).float() for images, labels in loader]
    return torch.cat(right).mean().item()


if __name__ == "__main__":
    main()
