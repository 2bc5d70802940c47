"""Load a pack through PyTorch's own DataLoader and print how fast that goes.

python tools/demo.py demo/images.lmdb --epochs 3 --workers 2 --batch-size 64
"""

from __future__ import annotations

import argparse
import time

import torch
from torch.utils.data import DataLoader

import packio


def main() -> None:
    """Parse the command line, run the epochs, print one line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pack", help="an LMDB that `packio pack` wrote")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()

    dataset = packio.LmdbDataset(options.pack, crop=packio.RandomResizedCrop(224), hflip=0.5)
    loader = DataLoader(
        dataset,
        batch_size=options.batch_size,
        shuffle=True,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
        collate_fn=packio.collate,
    )
    print(f"{options.pack}: {len(dataset)} images, classes {', '.join(dataset.classes)}")
    for epoch in range(options.epochs):
        run_epoch(loader, epoch)


def run_epoch(loader: DataLoader[object], epoch: int) -> None:
    """Go through the loader once and print the rate, and what a batch is."""
    samples, contiguous = 0, True
    images = torch.empty(0)
    start = time.perf_counter()
    for images, labels in loader:
        samples += len(labels)
        contiguous &= packio.is_contiguous_batch(images)
    seconds = time.perf_counter() - start
    layout = "one contiguous CHW tensor" if contiguous else "NOT contiguous"
    started = ", workers' start included" if epoch == 0 else ""
    print(
        f"epoch {epoch}: {samples} images, {samples / seconds:,.0f} images/s{started}; "
        f"last batch {tuple(images.shape)} {images.dtype}, each {layout}"
    )


if __name__ == "__main__":
    main()
