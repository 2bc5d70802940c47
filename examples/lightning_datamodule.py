"""packio in Lightning: a DataModule that packs once and hands out loaders.

    python examples/lightning_datamodule.py
    python examples/lightning_datamodule.py --data photos/train    # a folder of class folders

Ranks share each epoch by themselves, and Lightning's checkpoints hold where the loader stood: a run
that goes on from one (`ckpt_path=`) gets the very batches that would have come.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
from itertools import pairwise

import lightning
import torch
from torch import nn

import packio

TOOLS = pathlib.Path(__file__).parent.parent / "tools"
MEAN, STD = (
    torch.tensor(values).view(3, 1, 1) * 255
    for values in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
)


class Photos(lightning.LightningDataModule):
    """Images of a folder of class folders, packed before they are first used."""

    def __init__(self, source: pathlib.Path, pack: pathlib.Path, size: int, batch: int) -> None:
        super().__init__()
        self.source, self.pack, self.size, self.batch = source, pack, size, batch

    def prepare_data(self) -> None:
        """Pack; Lightning has one process do it, and the others wait."""
        packio.pack(self.source, self.pack, split={"train": 0.8, "val": 0.2})

    def setup(self, stage: str) -> None:
        crop = packio.RandomResizedCrop(self.size)
        self.train = packio.LmdbDataset(self.pack, split="train", crop=crop, hflip=0.5, seed=0)
        crop = packio.ResizeCenterCrop(self.size)
        self.val = self.train.with_options(split="val", crop=crop, hflip=0)

    def train_dataloader(self) -> packio.Loader:
        return packio.Loader(self.train, self.batch, shuffle=True, drop_last=True)

    def val_dataloader(self) -> packio.Loader:
        return packio.Loader(self.val, self.batch, even=True)

    def on_after_batch_transfer(self, batch: list, dataloader_idx: int) -> list:
        """Normalise on the device, to which images came as uint8."""
        images, labels = batch
        return [(images - MEAN.to(images.device)) / STD.to(images.device), labels]


class Classifier(lightning.LightningModule):
    """A few convolutions."""

    def __init__(self, classes: int, width: int = 16) -> None:
        super().__init__()
        sizes = [3, width, 2 * width, 4 * width]
        stages = [
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.GroupNorm(4, b), nn.ReLU())
            for a, b in pairwise(sizes)
        ]
        pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.layers = nn.Sequential(*stages, *pooled, nn.Linear(4 * width, classes))
        self.losses: list[float] = []

    def training_step(self, batch: list, batch_idx: int) -> torch.Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.layers(images), labels)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: list, batch_idx: int) -> None:
        images, labels = batch
        right = (self.layers(images).argmax(1) == labels).float().mean()
        self.log("accuracy", right, batch_size=len(labels), sync_dist=True)

    def on_train_epoch_end(self) -> None:
        print(f"epoch {self.current_epoch + 1}: loss {self.losses[-1]:.4f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, help="folder of class folders of images")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("demo/lightning"))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=96, help="of the crops, pixels")
    parser.add_argument("--short", action="store_true", help="seconds instead of minutes")
    options = parser.parse_args()
    photos = 480
    if options.short:
        photos, options.epochs, options.size, options.batch_size = 80, 4, 32, 16

    options.work.mkdir(parents=True, exist_ok=True)
    source, pack = options.data, options.work / "photos.lmdb"
    if source is None:
        source, pack = options.work / f"photos{photos}", options.work / f"photos{photos}.lmdb"
        make = [sys.executable, TOOLS / "make_sample_images.py", source, "--n", str(photos)]
        subprocess.run([*make, "--size", "240"], check=True)

    lightning.seed_everything(0, verbose=False)
    module = Classifier(classes=len([d for d in source.iterdir() if d.is_dir()]))
    trainer = lightning.Trainer(
        max_epochs=options.epochs,
        accelerator="auto",
        default_root_dir=options.work,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, datamodule=Photos(source, pack, options.size, options.batch_size))
    n = len(module.losses) // options.epochs
    first, last = sum(module.losses[:n]) / n, sum(module.losses[-n:]) / n
    found = trainer.callback_metrics["accuracy"]
    print(f"loss {first:.4f} -> {last:.4f}, accuracy {found:.2f}")


if __name__ == "__main__":
    main()
