"""Other people's training loops, mostly in two processes: every sample once, resumed in epoch 1.

Each loop runs twice: whole, and saves its state after two steps of epoch 1; then new processes
resume from that state. The processes report ids and a digest of the pixels; crops are random.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import pathlib
import socket
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

HERE = pathlib.Path(__file__)
COUNT, BATCH, STOP = 26, 3, 2  # the last step of an epoch has a smaller batch
LIBRARIES = {
    "torchdata": "torchdata", "torchdata_workers": "torchdata", "accelerate": "accelerate",
    "accelerate_stateful": "torchdata", "lightning": "lightning", "trainer": "transformers",
    "trainer_loader": "transformers", "trainer_alone": "transformers",
}  # fmt: skip
ALONE = ("trainer_alone",)  # in one process


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Noise of 24 x 24 pixels; each label is the sample's number."""
    import packio

    r = np.random.default_rng(0)
    samples = [{"image": r.integers(0, 256, (24, 24, 3), np.uint8), "label": i}
               for i in range(COUNT)]  # fmt: skip
    return packio.pack(samples, tmp_path_factory.mktemp("trainers") / "x.lmdb").out


def _run(loop: str, pack: pathlib.Path, folder: pathlib.Path, mode: str) -> list[Any]:
    """Run a loop in its processes; return of each rank its list of (epoch, ids, digest)."""
    count = 1 if loop in ALONE else 2
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                   "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count),
                   "OMP_NUM_THREADS": "1",
                   "ACCELERATE_USE_CPU": "1", "CUDA_VISIBLE_DEVICES": ""}  # fmt: skip
    ranks = [
        subprocess.Popen(
            [sys.executable, HERE, loop, pack, folder, mode],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(count)
    ]  # fmt: skip
    said = [process.communicate()[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0] * count, "\n".join(said)
    return [json.loads((folder / f"{mode}-{rank}.json").read_text()) for rank in range(count)]


@pytest.mark.long
@pytest.mark.timeout(900)  # four processes import large libraries
@pytest.mark.parametrize("loop", LIBRARIES)
def test_every_sample_comes_once_and_a_resumed_epoch_goes_on(
    loop: str, pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    if importlib.util.find_spec(LIBRARIES[loop]) is None:
        pytest.skip(f"{LIBRARIES[loop]} is not installed")
    whole = _run(loop, pack, tmp_path, "whole")
    for epoch in range(2):
        ids = [i for rank in whole for number, some, _ in rank if number == epoch for i in some]
        assert sorted(set(ids)) == list(range(COUNT))
        assert len(ids) <= COUNT + 2 * BATCH  # a wrapper may fill up the last step
    resumed = _run(loop, pack, tmp_path, "resumed")
    for rank in range(len(whole)):
        steps = [number for number, *_ in whole[rank]]
        assert resumed[rank] == whole[rank][steps.index(1) + STOP :]


# ---- what the processes run ----


class Told:
    """What a rank has seen."""

    def __init__(self, folder: pathlib.Path, mode: str, rank: int) -> None:
        self.folder, self.mode, self.rank = folder, mode, rank
        self.batches: list[Any] = []

    def __call__(self, epoch: int, images: Any, ids: Any) -> bool:
        """Note a batch; True where the run has to save its state."""
        digest = hashlib.sha256(images.contiguous().numpy().tobytes()).hexdigest()
        self.batches.append((epoch, ids.tolist(), digest))
        steps = sum(number == 1 for number, *_ in self.batches)
        return self.mode == "whole" and (epoch, steps) == (1, STOP)

    def write(self) -> None:
        """Write all to a file, for the test."""
        (self.folder / f"{self.mode}-{self.rank}.json").write_text(json.dumps(self.batches))


def _dataset(pack: str, **options: Any) -> Any:
    import packio

    return packio.PackDataset(
        pack, crop=packio.RandomResizedCrop(8), hflip=0.5, seed=3, threads=1, **options
    )


def _group() -> None:
    import torch

    torch.distributed.init_process_group("gloo")


def torchdata(pack: str, told: Told, workers: int = 0) -> None:
    """Plain torch with torchdata's loader; all ranks load what rank 0 saved."""
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader

    import packio

    ds = _dataset(pack)
    sampler = packio.ShuffleSampler(ds, seed=5)  # made before the process group
    _group()
    loader = StatefulDataLoader(ds, BATCH, sampler=sampler, num_workers=workers)
    state = told.folder / "state"
    first = 0
    if told.mode == "resumed":
        loader.load_state_dict(torch.load(state, weights_only=False))
        first = 1
    for epoch in range(first, 2):
        for images, ids in loader:
            if told(epoch, images, ids) and told.rank == 0:
                torch.save(loader.state_dict(), state)


def torchdata_workers(pack: str, told: Told) -> None:
    """The same, with a worker."""
    torchdata(pack, told, workers=1)


def accelerate(pack: str, told: Told, *, stateful: bool = False) -> None:
    """Accelerate, which shares out what the sampler gives; it skips batches to resume."""
    import torch
    from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
    from torch.utils.data import DataLoader

    import packio

    ds = _dataset(pack)
    loader: Any = DataLoader(ds, BATCH, sampler=packio.ShuffleSampler(ds, seed=5))
    how = DataLoaderConfiguration(use_stateful_dataloader=stateful)
    accelerator = Accelerator(cpu=True, dataloader_config=how)
    loader = accelerator.prepare(loader)
    state = told.folder / f"state-{told.rank}"
    resumed = told.mode == "resumed"
    for epoch in range(int(resumed), 2):
        loader.set_epoch(epoch)
        batches = loader
        if resumed and epoch == 1 and stateful:
            loader.load_state_dict(torch.load(state, weights_only=False))
        elif resumed and epoch == 1:
            batches = skip_first_batches(loader, STOP)
            batches.set_epoch(epoch)
        for images, ids in batches:
            if told(epoch, images, ids) and stateful:
                torch.save(loader.state_dict(), state)


def accelerate_stateful(pack: str, told: Told) -> None:
    """Accelerate with torchdata's loader beneath."""
    accelerate(pack, told, stateful=True)


def lightning(pack: str, told: Told) -> None:
    """Lightning's DDP with `packio.Loader`, made before there are processes."""
    import torch
    import vision

    vision.import_torchvision()
    from lightning.pytorch import LightningModule, Trainer

    import packio

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def training_step(self, batch: Any, _: int) -> Any:
            self.saves = told(self.current_epoch, *batch)
            return self.weight * batch[0].float().mean()

        def on_train_batch_end(self, *_: Any) -> None:
            if self.saves:
                self.trainer.save_checkpoint(told.folder / "state.ckpt")

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    loader = packio.Loader(_dataset(pack), BATCH, shuffle=True)
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=told.folder,
    )  # fmt: skip
    resumed = told.folder / "state.ckpt" if told.mode == "resumed" else None
    trainer.fit(Module(), loader, ckpt_path=resumed, weights_only=False)


def trainer(pack: str, told: Told, *, own_loader: bool = False, tells_epoch: bool = False) -> None:
    """Hugging Face's Trainer, with its own DataLoader or with `packio.Loader`."""
    import torch
    import vision

    vision.import_torchvision()
    import transformers

    import packio

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def forward(self, pixel_values: Any, labels: Any) -> Any:
            control.saves = told(int(control.state.epoch or 0), pixel_values, labels)
            return {"loss": self.weight * pixel_values.float().mean()}

    class Control(transformers.TrainerCallback):
        saves = False
        state: Any = None

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.state = state
            if tells_epoch:
                ds.set_epoch(int(state.epoch))

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_save = self.saves

    class Packed(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            if own_loader:
                return packio.Loader(self.train_dataset, BATCH, shuffle=True)
            return super().get_train_dataloader()

    control = Control()
    arguments = transformers.TrainingArguments(
        str(told.folder / "hf"), num_train_epochs=2, per_device_train_batch_size=BATCH,
        use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, seed=7,
        remove_unused_columns=False, dataloader_pin_memory=False,
    )  # fmt: skip
    ds = _dataset(pack, fields={"pixel_values": "image", "labels": "label"})
    trained = Packed(Model(), arguments, train_dataset=ds, callbacks=[control],
                     data_collator=packio.collate)  # fmt: skip
    trained.train(resume_from_checkpoint=told.mode == "resumed" or None)


def trainer_alone(pack: str, told: Told) -> None:
    """The Trainer in one process, which does not tell a dataset in which epoch it resumes."""
    trainer(pack, told, tells_epoch=True)


def trainer_loader(pack: str, told: Told) -> None:
    """The Trainer with `packio.Loader`."""
    trainer(pack, told, own_loader=True)


if __name__ == "__main__":
    _, name, path, folder, mode = sys.argv
    sys.path += [str(HERE.parents[1] / "support")]
    seen = Told(pathlib.Path(folder), mode, int(os.environ["RANK"]))
    globals()[name](path, seen)
    seen.write()
    import torch

    if torch.distributed.is_initialized():  # else its threads may abort the process at its end
        torch.distributed.destroy_process_group()
