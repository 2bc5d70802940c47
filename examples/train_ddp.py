"""Train on several processes: each rank takes its share of every epoch, all take as many steps.

    torchrun --nproc_per_node 2 examples/train_ddp.py
    torchrun --nproc_per_node 2 examples/train_ddp.py --data photos/train

A loader made after `init_process_group` gives each rank its share by itself. All ranks have to be
given the same seed. At the end the ranks compare notes: who saw what, and whether all hold the
same model.
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
from torch import distributed, nn

import packio

TOOLS = pathlib.Path(__file__).parent.parent / "tools"
IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])  # mean, standard deviation


def network(classes: int, width: int) -> nn.Module:
    sizes = [3, width, 2 * width, 4 * width]
    stages = [
        nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.GroupNorm(4, b), nn.ReLU())
        for a, b in pairwise(sizes)
    ]
    return nn.Sequential(
        *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes)
    )


def packed(options: argparse.Namespace, photos: int) -> pathlib.Path:
    """Pack the data; for one rank to do."""
    options.work.mkdir(parents=True, exist_ok=True)
    if options.data is not None:
        packio.pack(options.data, options.work / "photos.lmdb")
        return options.work / "photos.lmdb"
    folder = options.work / f"photos{photos}"
    make = [sys.executable, TOOLS / "make_sample_images.py", folder, "--n", str(photos)]
    subprocess.run([*make, "--size", "240"], check=True)
    packio.pack(folder, f"{folder}.lmdb")
    return pathlib.Path(f"{folder}.lmdb")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, help="folder of class folders of images")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("demo/train_ddp"))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--size", type=int, default=96, help="of the crops, pixels")
    parser.add_argument("--short", action="store_true", help="seconds instead of minutes")
    options = parser.parse_args()
    photos = 480
    if options.short:
        photos, options.epochs, options.size, options.batch_size = 90, 4, 32, 8

    has_gpus = torch.cuda.is_available()
    local_rank = int(os.environ["LOCAL_RANK"])
    distributed.init_process_group("nccl" if has_gpus else "gloo")
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    device = torch.device("cuda", local_rank) if has_gpus else torch.device("cpu")

    found = [packed(options, photos) if rank == 0 else None]
    distributed.broadcast_object_list(found, device=device)  # the other ranks wait here

    # what ranks tell each other goes by a group that can be ended: DDP's never is, and a thread of
    # it that lets go of a tensor while Python exits would abort the process
    notes = distributed.new_group()

    torch.manual_seed(0)
    train = packio.LmdbDataset(
        found[0],
        crop=packio.RandomResizedCrop(options.size),
        hflip=0.5,
        fields=("image", "label", "index"),
        seed=0,
    )
    loader = packio.Loader(
        train, options.batch_size, shuffle=True, device=device, normalize=IMAGENET
    )
    model = network(len(train.classes), 16).to(device)
    model = nn.parallel.DistributedDataParallel(model, [local_rank] if has_gpus else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    losses, steps = [], len(loader)  # of this rank, while there are several
    for epoch in range(options.epochs):
        seen, start = [], time.perf_counter()
        for images, labels, indices in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            distributed.all_reduce(mean := loss.detach() / world_size, group=notes)
            losses.append(mean.item())
            seen += indices.tolist()
        rate = len(train) / (time.perf_counter() - start)
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {losses[-1]:.4f}, {rate:,.0f} images/s")

    mine = {"seen": seen, "losses": losses, "weights": [p.sum().item() for p in model.parameters()]}
    ranks = [None] * world_size
    distributed.all_gather_object(ranks, mine, group=notes)
    distributed.destroy_process_group(notes)
    del notes  # the last reference: its threads have ended now
    distributed.destroy_process_group()
    if rank != 0:
        return
    times = [sum(of["seen"].count(i) for of in ranks) for i in range(len(train))]
    once, twice = times.count(1), times.count(2)  # twice where the ranks do not divide the images
    equal = all(of["losses"] == losses and of["weights"] == mine["weights"] for of in ranks)
    first, last = statistics.mean(losses[:steps]), statistics.mean(losses[-steps:])
    print(f"steps of the ranks: {', '.join(str(len(of['losses'])) for of in ranks)}")
    print(f"images of the last epoch: {len(times)}, seen once {once}, twice {twice}")
    print(f"losses and weights of the ranks: {'equal' if equal else 'DIFFERENT'}")
    print(f"loss {first:.4f} -> {last:.4f}, {world_size} ranks")


if __name__ == "__main__":
    main()
