"""packio in Hugging Face's Trainer: samples are dicts with the names that the model expects.

    python examples/hf_trainer.py
    python examples/hf_trainer.py --data photos/train    # a folder of class folders

Two arguments make it fast: `data_collator=packio.collate` hands over whole batches, and
`remove_unused_columns=False` keeps the Trainer from taking them apart before that.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys

import torch
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

import packio

TOOLS = pathlib.Path(__file__).parent.parent / "tools"


class FromUint8(torch.nn.Module):
    """A model that takes images as they are decoded, and scales them on the device."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor | None = None) -> object:
        return self.model(pixel_values.float() / 127.5 - 1, labels=labels)


class TellEpoch(TrainerCallback):
    """Tells the dataset the epoch: Accelerate does not where it resumes within an epoch."""

    def __init__(self, dataset: packio.PackDataset) -> None:
        self.dataset = dataset

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.dataset.set_epoch(int(state.epoch or 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, help="folder of class folders of images")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("demo/hf_trainer"))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=96, help="of the crops, a multiple of 8")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--short", action="store_true", help="seconds instead of minutes")
    options = parser.parse_args()
    photos = 480
    if options.short:
        photos, options.epochs, options.size, options.batch_size = 80, 4, 32, 16
        options.workers = 0

    options.work.mkdir(parents=True, exist_ok=True)
    source, pack = options.data, options.work / "photos.lmdb"
    if source is None:
        source, pack = options.work / f"photos{photos}", options.work / f"photos{photos}.lmdb"
        make = [sys.executable, TOOLS / "make_sample_images.py", source, "--n", str(photos)]
        subprocess.run([*make, "--size", "240"], check=True)
    packio.pack(source, pack, split={"train": 0.8, "val": 0.2})

    train = packio.LmdbDataset(
        pack,
        split="train",
        crop=packio.RandomResizedCrop(options.size),
        hflip=0.5,
        fields={"pixel_values": "image", "labels": "label"},
        seed=0,
    )
    val = train.with_options(split="val", crop=packio.ResizeCenterCrop(options.size), hflip=0)

    torch.manual_seed(0)
    config = ViTConfig(
        image_size=options.size,
        patch_size=8,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_labels=len(train.classes),
        id2label=dict(enumerate(train.classes)),
    )
    trainer = Trainer(
        FromUint8(ViTForImageClassification(config)),
        TrainingArguments(
            str(options.work / "out"),
            num_train_epochs=options.epochs,
            per_device_train_batch_size=options.batch_size,
            per_device_eval_batch_size=options.batch_size,
            learning_rate=2e-3,
            dataloader_num_workers=options.workers,
            dataloader_pin_memory=torch.cuda.is_available(),
            remove_unused_columns=False,
            logging_strategy="epoch",
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=0,
        ),
        data_collator=packio.collate,
        callbacks=[TellEpoch(train)],
        train_dataset=train,
        eval_dataset=val,
        compute_metrics=lambda found: {
            "accuracy": (found.predictions.argmax(1) == found.label_ids).mean()
        },
    )
    trainer.train()
    history = trainer.state.log_history
    losses = [float(entry["loss"]) for entry in history if "loss" in entry]
    found = [float(entry["eval_accuracy"]) for entry in history if "eval_accuracy" in entry]
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, accuracy {found[-1]:.2f}")


if __name__ == "__main__":
    main()
