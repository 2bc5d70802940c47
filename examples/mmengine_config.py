"""packio in OpenMMLab's configs: as a dataset, and as the place that files are read from.

    python examples/mmengine_config.py
    python examples/mmengine_config.py --data photos    # photos/train and photos/val, class folders

Training takes whole batches of packio's dataset: the fast way, with packio's crops. Validation
keeps an OpenMMLab pipeline as it is, and `backend_args` has its files come out of the pack: so any
config of mmpretrain, mmdet or mmseg reads a pack without other changes.
"""

from __future__ import annotations

import argparse
import io
import pathlib
import subprocess
import sys
from itertools import pairwise

import mmengine.fileio
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, FUNCTIONS, METRICS, MODELS, TRANSFORMS
from mmengine.runner import Runner
from PIL import Image
from torch import nn

import packio
import packio.datasets.mmengine

TOOLS = pathlib.Path(__file__).parent.parent / "tools"

packio.datasets.mmengine.register()  # the backend "packio"
FUNCTIONS.register_module(name="packio.collate", module=packio.collate)


@DATASETS.register_module()
class PackedImages(packio.PackDataset):
    """packio's dataset for configs, which name crops: `dict(type="CenterCrop", size=224)`."""

    def __init__(self, crop: dict, **options: object) -> None:
        crop = dict(crop)
        super().__init__(crop=getattr(packio, crop.pop("type"))(**crop), **options)
        self.metainfo = {"classes": self.classes}  # as OpenMMLab's datasets have it


@DATASETS.register_module()
class ClassFolders(BaseDataset):
    """Files of class folders, as mmpretrain's CustomDataset lists them."""

    def __init__(self, backend_args: dict, **options: object) -> None:
        self.backend_args = backend_args
        super().__init__(**options)

    def load_data_list(self) -> list[dict]:
        root, found = self.data_prefix["img_path"], []
        for name in mmengine.fileio.list_dir_or_file(
            root, list_dir=False, recursive=True, backend_args=self.backend_args
        ):
            label = self.metainfo["classes"].index(name.split("/")[0])
            found.append({"img_path": f"{root}/{name}", "gt_label": label})
        return found


@TRANSFORMS.register_module()
class LoadImage:
    """Read and resize an image: mmcv's LoadImageFromFile and Resize."""

    def __init__(self, size: int, backend_args: dict) -> None:
        self.size, self.backend_args = size, backend_args

    def __call__(self, sample: dict) -> dict:
        data = mmengine.fileio.get(sample["img_path"], backend_args=self.backend_args)
        image = Image.open(io.BytesIO(data)).convert("RGB").resize((self.size, self.size))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return {"inputs": pixels, "labels": sample["gt_label"]}


@MODELS.register_module()
class Classifier(BaseModel):
    """A few convolutions."""

    def __init__(self, classes: int, width: int = 16, **options: object) -> None:
        super().__init__(**options)
        sizes = [3, width, 2 * width, 4 * width]
        stages = [
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.GroupNorm(4, b), nn.ReLU())
            for a, b in pairwise(sizes)
        ]
        pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.layers = nn.Sequential(*stages, *pooled, nn.Linear(4 * width, classes))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor, mode: str = "tensor") -> object:
        scores = self.layers(inputs.float() / 127.5 - 1)
        if mode == "loss":
            return {"loss": nn.functional.cross_entropy(scores, labels)}
        return (scores.argmax(1) == labels).tolist() if mode == "predict" else scores


@METRICS.register_module()
class Accuracy(BaseMetric):
    """Share of the images whose class is found."""

    def process(self, data_batch: dict, data_samples: list) -> None:
        self.results += data_samples

    def compute_metrics(self, results: list) -> dict:
        return {"accuracy": sum(results) / len(results)}


def config(options: argparse.Namespace) -> Config:
    """What is usually a file of its own."""
    classes = packio.open(options.work / "train.lmdb").classes
    packed = {"type": "PackedImages", "path": f"{options.work}/train.lmdb",
              "crop": {"type": "RandomResizedCrop", "size": options.size}, "hflip": 0.5,
              "fields": {"inputs": "image", "labels": "label"}, "seed": 0}  # fmt: skip
    backend = {"backend": "packio", "db_path": f"{options.work}/val.lmdb", "prefix": "data/val"}
    folders = {"type": "ClassFolders", "metainfo": {"classes": classes},
               "data_prefix": {"img_path": "data/val"}, "backend_args": backend,
               "pipeline": [{"type": "LoadImage", "size": options.size, "backend_args": backend}],
              }  # fmt: skip
    loader = {"batch_size": options.batch_size, "num_workers": options.workers}
    return Config({
        "model": {"type": "Classifier", "classes": len(classes)},
        "train_dataloader": {**loader, "dataset": packed,
                             "sampler": {"type": "DefaultSampler", "shuffle": True},
                             "collate_fn": {"type": "packio.collate"}},
        "val_dataloader": {**loader, "dataset": folders,
                           "sampler": {"type": "DefaultSampler", "shuffle": False},
                           "collate_fn": {"type": "default_collate"}},
        "optim_wrapper": {"optimizer": {"type": "AdamW", "lr": 3e-3}},
        "train_cfg": {"by_epoch": True, "max_epochs": options.epochs},
        "val_cfg": {}, "val_evaluator": {"type": "Accuracy"},
        "default_hooks": {"logger": {"type": "LoggerHook", "interval": 1}},
        "randomness": {"seed": 0}, "work_dir": f"{options.work}/out",
    })  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, help="folder with train/ and val/")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("demo/mmengine"))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=96, help="of the crops, pixels")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--short", action="store_true", help="seconds instead of minutes")
    options = parser.parse_args()
    photos = 400
    if options.short:
        photos, options.epochs, options.size, options.batch_size = 64, 4, 32, 16
        options.workers, options.work = 0, options.work / "short"

    options.work.mkdir(parents=True, exist_ok=True)
    source = options.data or options.work
    if options.data is None:
        for seed, part in enumerate(("train", "val")):
            make = [sys.executable, TOOLS / "make_sample_images.py", source / part]
            subprocess.run(
                [*make, "--n", str(photos), "--seed", str(seed), "--size", "240"], check=True
            )
    packio.pack(source / "train", options.work / "train.lmdb")
    packio.pack(source / "val", options.work / "val.lmdb", classes_from=options.work / "train.lmdb")

    runner = Runner.from_cfg(config(options))
    runner.train()
    losses = runner.message_hub.get_scalar("train/loss").data[0]
    found = runner.message_hub.get_scalar("val/accuracy").current()
    n = len(losses) // options.epochs
    print(f"loss {losses[:n].mean():.4f} -> {losses[-n:].mean():.4f}, accuracy {found:.2f}")


if __name__ == "__main__":
    main()
