"""Replayed steps are the batches that runs recorded: their keys, and their pixels.

A recorded run keeps nothing but what its batches had in them. Pixels are compared with crops that
the test makes of the images itself, as the replayed frames say.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import pathlib
import pickle
import random
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from cli_runs import join_words, run
from told import Told
from torch.utils.data import DataLoader, RandomSampler, Subset

import packio
from packio.errors import OptionError, StateError
from packio.inspecting import replaying
from packio.loading import ranks

HERE = pathlib.Path(__file__)
COUNT, OTHERS, BATCH, SIDE = 50, 20, 4, 16


def image(name: str, number: int) -> np.ndarray:
    """Noise of a size of its own, (H, W, 3) uint8 RGB."""
    r = np.random.default_rng([ord(name), number])
    return r.integers(0, 256, (20 + number % 13, 18 + number % 7, 3), np.uint8)


def source(name: str, count: int) -> list[dict[str, Any]]:
    return [{"image": image(name, i), "label": i % 3, "key": f"{name}/{i}.png"}
            for i in range(count)]  # fmt: skip


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> list[pathlib.Path]:
    """A pack of four shards, and another pack."""
    folder = tmp_path_factory.mktemp("replay")
    return [
        packio.pack(source("a", COUNT), folder / "a.tar", shards=4).out,
        packio.pack(source("b", OTHERS), folder / "b.lmdb").out,
    ]


def dataset(pack: Any, **options: Any) -> packio.PackDataset:
    how: dict[str, Any] = {"crop": packio.RandomResizedCrop(SIDE), "hflip": 0.5, "vflip": 0.3,
                           "seed": 7, "fields": ("image", "key")}  # fmt: skip
    return packio.PackDataset(pack, **{**how, **options})


Batch = tuple[Any, list[str]]  # images, keys


def epochs(loader: Any, many: int = 2) -> list[list[Batch]]:
    return [list(loader) for _ in range(many)]


def crop_of(placement: Any, key: str) -> torch.Tensor:
    """The pixels that a placement takes of the image with a key, made without packio."""
    name, number = re.fullmatch(r"(\w)/(\d+)\.png", key).groups()  # type: ignore[union-attr]  # every key matches
    f = placement.frame
    box = image(name, int(number))[f.top : f.top + f.height, f.left : f.left + f.width]
    pixels = torch.from_numpy(np.ascontiguousarray(box.transpose(2, 0, 1)))[None]
    if (f.height, f.width) != (f.to_height, f.to_width):
        size = (f.to_height, f.to_width)
        pixels = torch.nn.functional.interpolate(pixels, size, mode="bilinear", antialias=True)
    out = torch.zeros(1, 3, f.out_height, f.out_width, dtype=torch.uint8)
    for y, x in itertools.product(range(f.out_height), range(f.out_width)):
        inside = 0 <= y + f.out_top < f.to_height and 0 <= x + f.out_left < f.to_width
        if inside:
            out[..., y, x] = pixels[..., y + f.out_top, x + f.out_left]
    out = out.flip(-1) if placement.hflip else out
    return (out.flip(-2) if placement.vflip else out)[0]


def assert_is(replayed: Any, recorded: Batch) -> None:
    """A replayed batch has the keys and the pixels of a recorded batch."""
    images, keys = recorded
    assert [sample.key for sample in replayed.samples] == list(keys)
    views = images if isinstance(images, list) else [images]
    for slot, (sample, key) in enumerate(zip(replayed.samples, keys, strict=True)):
        assert sample.slot == slot
        assert len(sample.placements) == len(views)
        for placement, pixels in zip(sample.placements, views, strict=True):
            assert torch.equal(crop_of(placement, key), pixels[slot]), (key, placement)


Made = tuple[packio.Loader, Any]  # a loader, and what is replayed: paths, or the dataset


def _plain(data: dict[str, Any], **loader: Any) -> Callable[[list[pathlib.Path]], Made]:
    """A loader of one pack."""
    options: dict[str, Any] = {"shuffle": True, **loader}
    return lambda packs: (packio.Loader(dataset(packs[0], **data), BATCH, **options), packs[0])


def _mixed(packs: list[pathlib.Path]) -> Made:
    both = packio.ConcatPacks([dataset(packs[0]), dataset(packs[1], hflip=0)], seed=5)
    sampler = packio.MixedSampler(both, [1, 2], seed=9, samples_per_epoch=43)
    return packio.Loader(both, BATCH, sampler=sampler), packs


def _repeated(packs: list[pathlib.Path]) -> Made:
    data = dataset(packs[0])
    return packio.Loader(data, BATCH, sampler=packio.RepeatAugSampler(data, 3, seed=2)), packs[0]


def _itself(data: Any) -> Made:
    """What is replayed is the dataset, which no path says."""
    return packio.Loader(data, BATCH, shuffle=True), data


def _buckets(packs: list[pathlib.Path]) -> Made:
    data = dataset(packs[0], crop=packio.BucketCrop())
    sizes = [(16, 16), (20, 12), (24, 10)]
    sampler = packio.BucketSampler(data, sizes, batch_size=BATCH, seed=4)
    return packio.Loader(data, batch_sampler=sampler), packs[0]


VIEWS = [packio.RandomResizedCrop((SIDE, 12), (0.3, 1.0)), packio.RandomCrop(10, 2)]
RUNS: dict[str, Callable[[list[pathlib.Path]], Made]] = {
    "threads": _plain({}),
    "workers": _plain({}, num_workers=2),
    "dropping": _plain({}, drop_last=True),
    "in_order": _plain({}, shuffle=False),
    "views": _plain({"crop": None, "views": VIEWS}),
    "padded": _plain({"crop": packio.RandomCrop((24, 12), padding=3), "vflip": 0}),
    "evaluated": _plain({"crop": packio.ResizeCenterCrop(SIDE), "hflip": 0, "vflip": 0}),
    "window": _plain({}, window=2),
    "mixed": _mixed,
    "repeated": _repeated,
    "part": lambda packs: _itself(dataset(packs[0]).where(key="a/?.png")),
    "subset": lambda packs: _itself(Subset(dataset(packs[0]), range(3, 40, 2))),
    "buckets": _buckets,
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_every_step_of_a_run_is_replayed(
    run: Callable[[list[pathlib.Path]], Made], packs: list[pathlib.Path], tmp_path: pathlib.Path
) -> None:
    """From a checkpoint in the middle of the second epoch, alone; and loaded again."""
    loader, data = run(packs)
    recorded = [list(loader), []]
    for batch in loader:
        recorded[1].append(batch)
        if len(recorded[1]) == 2:
            torch.save({"model": torch.zeros(2), "loader": loader.state_dict()}, tmp_path / "c.pt")
    for epoch, batches in enumerate(recorded):
        last = len(batches) - 1
        replay = packio.replay(data, (0, last), state=tmp_path / "c.pt", epoch=epoch)
        assert [(b.epoch, b.step, b.rank) for b in replay.batches] == [
            (epoch, step, 0) for step in range(last + 1)
        ]
        for replayed, batch in zip(replay.batches, batches, strict=True):
            assert_is(replayed, batch)
        with pytest.raises(OptionError, match=f"epoch {epoch} has {last + 1} steps"):
            packio.replay(data, last + 1, state=tmp_path / "c.pt", epoch=epoch)
    again = packio.replay(loader, 1, epoch=1).load(1)
    images = [again[0]] if isinstance(again[0], torch.Tensor) else again[0]
    seen = recorded[1][1][0]
    pairs = zip(images, [seen] if isinstance(seen, torch.Tensor) else seen, strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_dataloader_with_workers_and_a_sampler_is_replayed(
    packs: list[pathlib.Path], tmp_path: pathlib.Path
) -> None:
    """The sampler's state says the order; the rest is said by arguments, or by the dataset."""
    data = dataset(packs[0])
    sampler = packio.ShuffleSampler(data, seed=3)
    loader: Any = DataLoader(data, BATCH, sampler=sampler, num_workers=2, collate_fn=packio.collate)
    recorded = epochs(loader)
    torch.save({"sampler": sampler.state_dict(len(sampler))}, tmp_path / "c.pt")
    ways: list[tuple[Any, dict[str, Any]]] = [
        (packs[0], {"seed": 7, "crop": packio.RandomResizedCrop(SIDE), "hflip": 0.5, "vflip": 0.3}),
        (data, {}),
    ]
    for given, options in ways:
        replay = packio.replay(
            given, range(13), state=tmp_path / "c.pt", epoch=1, batch_size=BATCH, **options
        )
        for replayed, batch in zip(replay.batches, recorded[1], strict=True):
            assert_is(replayed, batch)
    with pytest.raises(OptionError, match="say batch_size="):
        packio.replay(data, 0, state=tmp_path / "c.pt")
    where: dict[str, Any] = {"state": tmp_path / "c.pt", "batch_size": BATCH}
    with pytest.raises(OptionError, match="seed=None"):
        packio.replay(packs[0], 0, **where, crop=packio.RandomResizedCrop(SIDE))
    assert not packio.replay(packs[0], 0, **where).batches[0].crops_known


def test_a_run_is_replayed_without_any_state(packs: list[pathlib.Path]) -> None:
    recorded = epochs(packio.Loader(dataset(packs[0]), BATCH, shuffle=True, window=3))
    replay = packio.replay(
        packs[0], (2, 12), epoch=1, seed=7, batch_size=BATCH, window=3, hflip=0.5, vflip=0.3,
        crop=packio.RandomResizedCrop(SIDE),
    )  # fmt: skip
    for replayed, batch in zip(replay.batches, recorded[1][2:], strict=True):
        assert_is(replayed, batch)
    with pytest.raises(OptionError, match="epoch=None"):
        packio.replay(packs[0], 0, seed=7, batch_size=BATCH)
    with pytest.raises(OptionError, match="seed=None"):
        packio.replay(packs[0], 0, epoch=1, batch_size=BATCH)


def test_two_ranks_are_replayed_from_the_state_of_one(
    packs: list[pathlib.Path], tmp_path: pathlib.Path
) -> None:
    """Two real processes, which resume in the middle of an epoch with another batch size."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                   "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1",
                   "PYTHONPATH": os.pathsep.join(sys.path)}  # fmt: skip
    running = [
        subprocess.Popen(
            [sys.executable, HERE, packs[0], tmp_path], env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=600)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], "\n".join(said)
    for rank in range(2):
        recorded = torch.load(tmp_path / f"recorded-{rank}.pt", weights_only=True)
        assert len(recorded) == 3 + 5  # 24 of 50 samples, then 26 in steps of 6
        replay = packio.replay(packs[0], (0, 7), state=tmp_path / "state.pt", rank=rank)
        assert {b.rank for b in replay.batches} == {rank}
        for replayed, batch in zip(replay.batches, recorded, strict=True):
            assert_is(replayed, batch)
    both = packio.replay(packs[0], 4, state=tmp_path / "state.pt")
    assert [(b.step, b.rank) for b in both.batches] == [(4, 0), (4, 1)]
    with pytest.raises(OptionError, match="rank=2: there were 2 ranks"):
        packio.replay(packs[0], 4, state=tmp_path / "state.pt", rank=2)


def _rank(pack: str, folder: str) -> None:
    """What a process of the two records: its own batches, and rank 0 a state near the end."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    first = packio.Loader(dataset(pack), BATCH, shuffle=True)
    recorded = list(itertools.islice(first, 3))
    second = packio.Loader(dataset(pack), 3, shuffle=True)
    second.load_state_dict(first.state_dict())
    for batch in second:
        recorded.append(batch)
        if rank == 0 and len(recorded) == 7:
            torch.save(second.state_dict(), f"{folder}/state.pt")
    torch.save([(images, list(keys)) for images, keys in recorded], f"{folder}/recorded-{rank}.pt")


@pytest.mark.parametrize("case", range(12))
def test_a_state_knows_all_steps_of_a_run_that_was_resumed_often(case: int) -> None:
    """With other batch sizes and numbers of ranks each time; every step that counts is compared."""
    r = random.Random(case)
    recorded: dict[tuple[int, int, int], Any] = {}  # epoch, step, rank → what the batch had
    state = None
    skip = [(0, 4, 5)] if case % 2 else None
    for _ in range(5):
        world, size = r.choice([(1, 4), (2, 2), (4, 1)] if skip else [(1, 3), (2, 2), (3, 1)])
        loaders = []
        for rank in range(world):
            sampler = packio.ShuffleSampler(COUNT, 3, rank=rank, world_size=world)
            loaders.append(packio.Loader(Told(COUNT), size, sampler=sampler, skip=skip))
            if state is not None:
                loaders[-1].load_state_dict(state)
        for _ in range(r.randint(1, 2)):
            running = [iter(loader) for loader in loaders]
            for _ in range(r.choice((2, 5, 1000))):
                batches = [next(it, None) for it in running]
                if None in batches:
                    break
                told = loaders[0].state_dict()  # of the last batch of an epoch: of the next one
                for rank, batch in enumerate(batches):
                    assert batch is not None
                    epoch = int(batch[1][0])
                    step = told["step"] - 1 if told["epoch"] == epoch else -1
                    recorded[epoch, step, rank] = batch
            state = loaders[0].state_dict()
    where = state["epoch"], state["step"]  # type: ignore[index]  # it is a state by now
    for (epoch, step, rank), batch in recorded.items():
        if step < 0 or (epoch, step) >= where:
            continue
        replay = packio.replay(Told(COUNT), step, state=state, epoch=epoch, rank=rank, seed=0)
        (one,) = replay.batches
        found = [[s.index for s in one.samples], [s.drawn.epoch for s in one.samples],
                 [s.position for s in one.samples]]  # fmt: skip
        assert found == [part.tolist() for part in batch]
        assert not one.left_out


@pytest.mark.parametrize("leftovers", ["carry", "drop", "short"])
@pytest.mark.parametrize("same_size", [False, True])
def test_buckets_of_two_ranks_are_replayed(
    leftovers: str, same_size: bool, packs: list[pathlib.Path]
) -> None:
    """Epochs differ in length where leftovers are carried; the state is of the last epoch."""
    recorded: dict[tuple[int, int, int], Batch] = {}
    for rank in range(2):
        data = dataset(packs[0], crop=packio.BucketCrop(position="center"))
        sampler = packio.BucketSampler(
            data, [(16, 16), (20, 12), (24, 10)], batch_size=3, seed=4, leftovers=leftovers,
            same_size=same_size, rank=rank, world_size=2,
        )  # fmt: skip
        loader = packio.Loader(data, batch_sampler=sampler, skip=[(1, 1, 2)])
        for epoch in range(3):
            batches = list(loader)
            steps = [s for s in range(len(batches) + 2) if epoch != 1 or s not in (1, 2)]
            for step, batch in zip(steps, batches, strict=False):
                recorded[epoch, step, rank] = batch
    state = loader.state_dict()  # of rank 1, behind the last epoch
    for (epoch, step, rank), batch in recorded.items():
        replay = packio.replay(packs[0], step, state=state, epoch=epoch, rank=rank)
        assert_is(replay.batches[0], batch)


def test_a_step_that_was_left_out_is_shown_as_such(packs: list[pathlib.Path]) -> None:
    whole = epochs(packio.Loader(dataset(packs[0]), BATCH, shuffle=True), 1)[0]
    loader = packio.Loader(dataset(packs[0]), BATCH, shuffle=True, skip=[(0, 1, 2)])
    next(iter(loader))
    replay = packio.replay(packs[0], (0, 3), state=loader.state_dict())
    assert [b.left_out for b in replay.batches] == [False, True, True, False]
    for replayed, batch in zip(replay.batches, whole, strict=False):
        assert_is(replayed, batch)


def test_crops_that_nothing_says_are_not_guessed(packs: list[pathlib.Path]) -> None:
    loader = packio.Loader(dataset(packs[0]), BATCH, shuffle=True)
    recorded = next(iter(loader))
    state = loader.state_dict()
    del state["dataset"]  # as of an older packio
    replay = packio.replay(packs[0], 0, state=state)
    (batch,) = replay.batches
    assert [s.key for s in batch.samples] == list(recorded[1])
    assert (batch.crops_known, {s.placements for s in batch.samples}) == (False, {None})
    with pytest.raises(OptionError, match="crops are not known"):
        replay.load(0)
    crop = packio.RandomResizedCrop(SIDE)
    said = packio.replay(packs[0], 0, state=state, crop=crop, hflip=0.5, vflip=0.3)
    assert_is(said.batches[0], recorded)


def test_ranks_with_seeds_of_their_own_are_not_guessed(
    packs: list[pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "current", lambda: (1, 2))
    loader = packio.Loader(dataset(packs[0], seed=None), BATCH, shuffle=True)
    recorded = next(iter(loader))
    replay = packio.replay(packs[0], 0, state=loader.state_dict())
    assert [batch.crops_known for batch in replay.batches] == [False, True]
    assert_is(replay.batches[1], recorded)


# ---- states, and what is no state ----


def test_a_state_is_found_wherever_it_is(packs: list[pathlib.Path], tmp_path: pathlib.Path) -> None:
    loader = packio.Loader(dataset(packs[0]), BATCH, shuffle=True)
    next(iter(loader))
    state = loader.state_dict()
    keys = [s.key for s in packio.replay(packs[0], 3, state=state).batches[0].samples]
    (tmp_path / "s.json").write_text(json.dumps({"a": [1, {"b": state}]}))
    loops = {"train": state, "test": {**state, "epoch": 5}}
    optimizer = torch.optim.SGD([torch.zeros(2)])
    several = {"loops": loops, "lr": 0.1, "optimizer": optimizer.state_dict()}
    torch.save(several, tmp_path / "c.pt")
    found = [
        packio.replay(packs[0], 3, state=tmp_path / "s.json"),
        packio.replay(packs[0], 3, state=tmp_path / "c.pt", state_name="loops.train"),
        packio.replay(packs[0], 3, state={"x": state}),
    ]
    assert [[s.key for s in replay.batches[0].samples] for replay in found] == [keys] * 3
    with pytest.raises(StateError, match=r"'loops\.train', 'loops\.test'; say which"):
        packio.replay(packs[0], 3, state=tmp_path / "c.pt")
    with pytest.raises(StateError, match=r"under 'loop'; there is 'loops\.train'"):
        packio.replay(packs[0], 3, state=tmp_path / "c.pt", state_name="loop")


class _Bomb:
    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_checkpoint_that_is_hostile_or_damaged_is_told(
    packs: list[pathlib.Path], tmp_path: pathlib.Path
) -> None:
    state = packio.Loader(dataset(packs[0]), BATCH).state_dict()
    bomb = _Bomb(tmp_path / "exploded")
    torch.save({"loader": state, "bomb": bomb}, tmp_path / "c.pt")
    with pytest.raises(StateError, match=r"names posix.mkdir .*; save the state alone"):
        packio.replay(packs[0], 0, state=tmp_path / "c.pt")
    (tmp_path / "p.pt").write_bytes(pickle.dumps({"loader": state, "bomb": bomb}))
    with pytest.raises(StateError, match="neither a file of torch"):
        packio.replay(packs[0], 0, state=tmp_path / "p.pt")
    assert not bomb.path.exists()
    torch.save(state, tmp_path / "d.pt")
    (tmp_path / "d.pt").write_bytes((tmp_path / "d.pt").read_bytes()[:-200])
    with pytest.raises(StateError, match=r"d\.pt: .*save the state alone"):
        packio.replay(packs[0], 0, state=tmp_path / "d.pt")


def _nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


HOSTILE: list[tuple[tuple[Any, ...], Any]] = [
    (("order", "seed"), "x"), (("order", "seed"), None), (("order", "seed"), 1.5),
    (("order", "shuffle"), b"x"), (("order", "samples"), 10**30), (("order", "samples"), math.nan),
    (("epoch",), 10**30), (("seed",), 1.5),
    (("stretches",), [[0, 0, 0, 1, 1 << 61]]), (("stretches",), [[0, 0, -(1 << 61), 1, 1]]),
    (("stretches",), [[0, 0, -1, 4, 2]]), (("stretches",), [[0, 10**30, 0, 1, 1]]),
    (("stretches",), [math.nan]), (("left_out",), [[0, 0, math.inf]]),
    (("dataset", "parts"), 7), (("dataset", "parts"), [None]), (("dataset", "parts"), ["x"]),
    (("dataset", "parts", 0, "samples"), "x"), (("dataset", "parts", 0, "samples"), []),
    (("dataset", "parts", 0, "samples"), 10**5000),
    (("dataset", "parts", 0, "samples"), torch.zeros(2)), (("dataset", "parts"), [[1]]),
    (("dataset", "parts", 0, "hflip"), "x"), (("stretches",), [[0, 1 << 62, 0, 1, 1]]),
    (("dataset", "parts", 0, "crop"), 7), (("dataset", "parts", 0, "crop"), {"name": []}),
    (("dataset", "parts", 0, "crop"), {"name": "Geometry"}),
    (("dataset", "parts", 0, "crop", "scale"), []), (("dataset", "parts", 0, "views"), True),
    (("dataset", "parts", 0, "crop", "ratio", 1), math.inf),
    (("epoch",), "1"), (("epoch",), -1), (("seed",), "x"), (("left_out",), [[3, 2, 1]]),
    (("stretches",), [[0, 0, 0, 0, 1]]), (("stretches",), 3), (("stretches",), [[1, 2]]),
    (("order",), 7), (("order",), {"sampler": "Sampler"}),
    (("order",), {"sampler": "MixedSampler"}),
    (("order",), {"sampler": "ShuffleSampler", "seed": 1, "samples": 3}),
    (("epoch",), _nested(5000)),
    (("stretches",), _nested(5000)),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_a_state_of_hostile_values_is_refused_in_short(
    number: int, packs: list[pathlib.Path]
) -> None:
    names, value = HOSTILE[number]
    state = packio.Loader(dataset(packs[0]), BATCH, shuffle=True).state_dict()
    inner: Any = state
    for name in names[:-1]:
        inner = inner[name]
    inner[names[-1]] = value
    with pytest.raises((OptionError, StateError)) as caught:
        packio.replay(packs[0], (0, 2), state=state)
    assert len(str(caught.value)) < 1000


def test_long_names_and_many_states_are_told_in_short(packs: list[pathlib.Path]) -> None:
    state = packio.Loader(dataset(packs[0]), BATCH).state_dict()
    many = {"n" * 1_000_000: {i: dict(state) for i in range(2000)}}
    with pytest.raises(StateError, match="and 990 more; say which") as caught:
        packio.replay(packs[0], 0, state=many)
    assert len(str(caught.value)) < 5000
    deep = functools.reduce(lambda inner, _: {"x": inner}, range(200_000), state)
    with pytest.raises(StateError, match="no state"):
        packio.replay(packs[0], 0, state=deep)


@pytest.mark.parametrize("steps", [(1,), "3", 1.5, (2, 1), range(0), range(1, -3, -1), None])
def test_steps_that_make_no_sense_are_refused(packs: list[pathlib.Path], steps: Any) -> None:
    with pytest.raises(OptionError, match="expected a step from 0 on"):
        packio.replay(packs[0], steps, seed=1, epoch=0, batch_size=4)


@pytest.mark.parametrize("name", ["epoch", "rank", "world_size", "batch_size", "seed"])
def test_numbers_are_taken_as_such_and_nothing_else_is(
    packs: list[pathlib.Path], name: str
) -> None:
    given: dict[str, Any] = {"seed": 1, "epoch": 0, "batch_size": 4, "world_size": 2}
    for value in (1.5, "1") + ((-1,) if name != "seed" else ()):
        with pytest.raises(OptionError, match=f"{name}=.*expected an int"):
            packio.replay(packs[0], 0, **{**given, name: value})
    found = packio.replay(packs[0], np.int64(2), **{**given, name: np.int64(1)})
    expected = packio.replay(packs[0], 2, **{**given, name: 1})
    assert json.loads(json.dumps(found.as_dict())) == json.loads(json.dumps(expected.as_dict()))


def test_the_end_of_an_epoch_is_looked_for_first(
    packs: list[pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    monkeypatch.setattr(replaying, "describe_sample", lambda *_, **__: made.append(1))
    for steps in ((0, 10**12), range(10**12, -1, -1)):
        with pytest.raises(OptionError, match="epoch 0 has 13 steps"):
            packio.replay(packs[0], steps, seed=1, epoch=0, batch_size=4)
    assert not made


def test_a_state_of_a_bucket_sampler_says_the_batch_size(packs: list[pathlib.Path]) -> None:
    data = dataset(packs[0], crop=packio.BucketCrop())
    sampler = packio.BucketSampler(data, [(12, 12), (16, 10)], batch_size=3, seed=4)
    recorded = list(DataLoader(data, batch_sampler=sampler, collate_fn=packio.collate))
    sampler.set_epoch(0)
    sizes: tuple[dict[str, Any], ...] = ({}, {"batch_size": 3})
    for given in sizes:
        hows: tuple[dict[str, Any], ...] = (
            {"state": sampler.state_dict()}, {"sampler": sampler, "epoch": 0},
        )  # fmt: skip
        for how in hows:
            replay = packio.replay(data, (0, 4), **how, **given)
            for batch, (_, keys) in zip(replay.batches, recorded, strict=False):
                assert [s.key for s in batch.samples] == list(keys)
    with pytest.raises(OptionError, match="batches have 3 samples"):
        packio.replay(data, 0, state=sampler.state_dict(), batch_size=8)


def test_a_run_of_another_sampler_or_pack_is_refused(packs: list[pathlib.Path]) -> None:
    data = dataset(packs[0])
    foreign = packio.Loader(data, BATCH, sampler=RandomSampler(data)).state_dict()
    with pytest.raises(OptionError, match="not packio's"):
        packio.replay(packs[0], 0, state=foreign)
    own = packio.Loader(data, BATCH, shuffle=True).state_dict()
    with pytest.raises(OptionError, match=r"digest, samples differ: it has .* give the same packs"):
        packio.replay(packs[1], 0, state=own)
    with pytest.raises(OptionError, match="2 packs; the state is of 1"):
        packio.replay(packs, 0, state=own)
    with pytest.raises(OptionError, match="another order"):
        packio.replay(data, 0, state=own, sampler=packio.ShuffleSampler(data, 8))
    with pytest.raises(OptionError, match="the dataset that was handed over says it"):
        packio.replay(data, 0, state=own, crop=packio.CenterCrop(3))


def test_another_pack_of_the_same_samples_is_a_warning(
    packs: list[pathlib.Path], tmp_path: pathlib.Path
) -> None:
    loader = packio.Loader(dataset(packs[0]), BATCH, shuffle=True)
    recorded = next(iter(loader))
    other = packio.convert(packs[0], tmp_path / "other.h5").out
    with pytest.warns(UserWarning, match="not the dataset of the state: digest differ"):
        replay = packio.replay(other, 0, state=loader.state_dict())
    assert_is(replay.batches[0], recorded)


def test_a_part_is_never_taken_for_the_whole_pack(packs: list[pathlib.Path]) -> None:
    """Parts of as many samples as the pack, in another order: only the dataset itself tells it."""
    mixed = random.Random(1).sample(range(COUNT), COUNT)
    both = packio.ConcatPacks([dataset(packs[0]), dataset(packs[1])])
    parts: list[tuple[Any, Any]] = [
        (packs[0], dataset(packs[0]).subset(mixed)),
        (packs[0], Subset(dataset(packs[0]), mixed)),
        (packs, both.subset(list(range(COUNT + OTHERS))[::-1])),
        (packs, packio.ConcatPacks([dataset(packs[0]).subset(mixed), dataset(packs[1])])),
    ]
    for paths, part in parts:
        loader = packio.Loader(part, BATCH, shuffle=True)
        recorded = next(iter(loader))
        state = loader.state_dict()
        with pytest.raises(OptionError, match="hand the dataset over in Python"):
            packio.replay(paths, 0, state=state)
        assert_is(packio.replay(part, 0, state=state).batches[0], recorded)


def test_another_dataset_than_that_of_the_state_is_a_warning(packs: list[pathlib.Path]) -> None:
    loader = packio.Loader(dataset(packs[0]), BATCH, shuffle=True)
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    packio.replay(dataset(packs[0]), 0, state=state)
    with pytest.warns(UserWarning, match="crop, hflip differ"):
        packio.replay(dataset(packs[0], hflip=0.1, crop=packio.CenterCrop(3)), 0, state=state)
    with pytest.raises(OptionError, match="digest, samples differ"):
        packio.replay(dataset(packs[1]), 0, state=state)


# ---- the command ----


@pytest.fixture(scope="module")
def checkpoint(
    packs: list[pathlib.Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[pathlib.Path, list[Batch]]:
    loader = packio.Loader(dataset(packs[0]), BATCH, shuffle=True)
    recorded = list(itertools.islice(loader, 4))
    path = tmp_path_factory.mktemp("state") / "c.pt"
    torch.save(loader.state_dict(), path)
    return path, recorded


def test_the_command_prints_lines_and_json(
    packs: list[pathlib.Path], checkpoint: tuple[pathlib.Path, list[Batch]]
) -> None:
    path, recorded = checkpoint
    done = run("replay", packs[0], "--state", path, "--steps", "2-3")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "epoch 0, step 2, rank 0: 4 samples"
    assert [line.split()[-1] for line in lines if not line.startswith("epoch")] == [
        *recorded[2][1], *recorded[3][1],
    ]  # fmt: skip
    told = json.loads(run("replay", packs[0], "--state", path, "--steps", "2", "--json").stdout)
    (batch,) = told["batches"]
    expected = packio.replay(packs[0], 2, state=path).batches[0]
    assert [s["key"] for s in batch["samples"]] == list(recorded[2][1])
    for sample, ours in zip(batch["samples"], expected.samples, strict=True):
        (crop,), (placement,) = sample["crops"], ours.placements or ()
        frame = placement.frame
        assert (crop["top"], crop["left"], crop["height"], crop["width"]) == frame[:4]
        assert (crop["hflip"], crop["vflip"]) == (placement.hflip, placement.vflip)
        assert (sample["index"], sample["position"]) == (ours.index, ours.position)
        assert sample["label"] == int(sample["key"].removeprefix("a/").removesuffix(".png")) % 3


def test_the_command_needs_no_state(
    packs: list[pathlib.Path], checkpoint: tuple[pathlib.Path, list[Batch]]
) -> None:
    arguments = ("--steps", 2, "--json")
    of_state = run("replay", packs[0], "--state", checkpoint[0], *arguments)
    said = run("replay", packs[0], *arguments, "--seed", 7, "--epoch", 0, "--batch-size", BATCH,
                   "--crop", SIDE, "--hflip", 0.5, "--vflip", 0.3)  # fmt: skip
    assert json.loads(said.stdout)["batches"] == json.loads(of_state.stdout)["batches"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--steps", "13"), 2, "epoch 0 has 13 steps, counted from 0"),
        (("--steps", "5-3"), 2, "expected a step or first-last"),
        (("--steps", "1", "--crop", "Nothing:3"), 2, "expected 224"),
        (("--steps", "1", "--rank", "1"), 2, "--rank 1: there was 1 rank"),
        (("--steps", "1", "--state", "none.pt"), 65, "none.pt: No such file"),
        (("--steps", "1", "--state", HERE), 65, "neither a file of torch.save"),
    ],
)
def test_the_command_says_what_is_wrong(
    packs: list[pathlib.Path], checkpoint: tuple[pathlib.Path, list[Batch]],
    arguments: tuple[object, ...], code: int, said: str,
) -> None:  # fmt: skip
    given = arguments if "--state" in arguments else ("--state", checkpoint[0], *arguments)
    done = run("replay", packs[0], *given)
    assert done.returncode == code
    assert said in join_words(done.stderr)


if __name__ == "__main__":
    _rank(*sys.argv[1:])
