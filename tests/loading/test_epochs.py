"""Epochs of loaders and samplers: seeds, ranks, states, and iterations that are left early."""

from __future__ import annotations

import itertools
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import vision
from torch.utils.data import Dataset, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

import packio
from packio.errors import OptionError
from packio.loading import ranks
from packio.system import threads


class Numbers(Dataset[tuple[int, int]]):
    """0, 1, 2, …; with a seed as packio's datasets have it."""

    def __init__(self, count: int, seed: int | None = None) -> None:
        self.count, self.seed, self.seeded = count, 1 if seed is None else seed, seed is not None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[int, int]:
        return int(index), self.seed


def _ids(batches: Any) -> list[int]:
    return [i for batch in batches for i in batch[0].tolist()]


def _ranks(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    monkeypatch.setattr(ranks, "current", lambda: (rank, world_size))


def test_an_iterator_that_gave_nothing_takes_no_epoch() -> None:
    sampler = packio.ShuffleSampler(40, 3)
    iter(sampler)
    assert list(sampler) == list(packio.ShuffleSampler(40, 3))


def test_a_rank_is_known_when_the_epoch_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a Loader is made before `torch.distributed.init_process_group`."""
    seen = []
    for rank in range(2):
        _ranks(monkeypatch, 0, 1)
        torch.manual_seed(rank)
        loader = packio.Loader(Numbers(41, seed=7 + rank), 4, shuffle=True)
        sampler = packio.ShuffleSampler(41)
        _ranks(monkeypatch, rank, 2)
        seen.append((_ids(loader), list(sampler)))
    for ours in zip(*seen, strict=True):
        assert len(set(ours[0]) | set(ours[1])) == 41
        assert len(ours[0]) == len(ours[1]) == 21


def test_a_promised_length_that_changes_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = packio.Loader(Numbers(40), 4)
    assert len(loader) == 10
    _ranks(monkeypatch, 1, 2)
    with pytest.warns(UserWarning, match=r"2 processes share .* 40 then and is 20 now"):
        assert len(_ids(loader)) == 20
    assert len(loader) == 5


@pytest.mark.parametrize("generator", [None, 5])
def test_ranks_share_an_order_whatever_their_seeds(
    generator: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for rank in range(3):
        _ranks(monkeypatch, rank, 3)
        own = None if generator is None else torch.Generator().manual_seed(generator + rank)
        seen += _ids(packio.Loader(Numbers(96, seed=7 + rank), 4, shuffle=True, generator=own))
    assert sorted(seen) == list(range(96))
    _ranks(monkeypatch, 0, 1)
    order = packio.Loader(Numbers(96, seed=7), 4, shuffle=True, order_seed=2)
    assert _ids(order) == list(packio.ShuffleSampler(96, 2))


def test_a_state_gives_its_seeds_to_a_run_without_any() -> None:
    torch.manual_seed(1)
    data = Numbers(40)
    data.seed = 77
    loader = packio.Loader(data, 4, shuffle=True, order_seed=None)
    running = iter(loader)
    next(running)
    state, rest = loader.state_dict(), _ids(running)
    torch.manual_seed(2)
    again = packio.Loader(Numbers(40), 4, shuffle=True)
    again.load_state_dict(state)
    assert _ids(again) == rest
    assert _ids(again) == _ids(loader)
    assert again.dataset.seed == 77
    for other in (state, loader.state_dict()):  # the second one at the end of an epoch
        with pytest.raises(OptionError, match="another order"):
            packio.Loader(Numbers(40), 4, shuffle=True, order_seed=1).load_state_dict(other)
    with pytest.raises(OptionError, match="seed=77"):
        packio.Loader(Numbers(40, seed=4), 4, shuffle=True).load_state_dict(state)


def test_persistent_workers_get_a_seed_that_was_loaded() -> None:
    loader = packio.Loader(Numbers(12), 4, num_workers=1, persistent_workers=True)
    list(loader)
    loader.load_state_dict({**loader.state_dict(), "seed": 9})
    assert {int(seed) for _, seeds in loader for seed in seeds} == {9}


def test_a_sampler_does_not_guess_what_was_trained_on() -> None:
    sampler = packio.ShuffleSampler(40, 3)
    running = iter(sampler)
    list(itertools.islice(running, 12))
    with pytest.raises(OptionError, match="consumed="):
        sampler.state_dict()
    assert sampler.state_dict(12)["consumed"] == 12
    assert sampler.state_dict(40) == {**sampler.state_dict(12), "epoch": 1, "consumed": 0}
    other = iter(sampler)
    next(other)
    with pytest.raises(OptionError, match="2 iterations"):
        sampler.state_dict(12)


def _resumed(first: Any, second: Any) -> tuple[list[int], list[int]]:
    """What is left of an epoch in which two batches came; and what another loader makes of it."""
    loader = first()
    list(loader)
    running = iter(loader)
    next(running), next(running)
    state = loader.state_dict()
    again = second()
    again.load_state_dict(state)
    return _ids(running), _ids(again)


def test_a_foreign_sampler_goes_on_or_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Numbers(40)

    def made(seed: int = 3, batch: int = 4) -> packio.Loader:
        generator = torch.Generator().manual_seed(seed)
        return packio.Loader(data, batch, sampler=RandomSampler(data, generator=generator))

    rest, again = _resumed(made, lambda: made(seed=8, batch=7))  # the state has the generator's
    assert again == rest
    with pytest.raises(OptionError, match="another order"):
        _resumed(made, lambda: packio.Loader(data, 4, sampler=SequentialSampler(data)))

    def another_rank() -> packio.Loader:
        _ranks(monkeypatch, 1, 2)
        return made()

    with pytest.raises(OptionError, match="a state of its own"):
        _resumed(made, another_rank)


def test_ranks_of_a_distributed_sampler_go_on_from_the_state_of_one() -> None:
    def made(rank: int) -> packio.Loader:
        sampler: Any = DistributedSampler(Numbers(40), 2, rank, seed=3)
        return packio.Loader(Numbers(40), 4, sampler=sampler)

    state: dict[str, Any] = {}
    rests = []
    for rank in range(2):
        loader = made(rank)
        list(loader)
        running = iter(loader)
        next(running)
        state = state or loader.state_dict()
        rests.append(_ids(running))
    for rank in range(2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ranks, "current", lambda rank=rank: (rank, 1))
            again = made(rank)
            again.load_state_dict(state)
            assert _ids(again) == rests[rank]


class Random(Dataset[torch.Tensor]):
    """Draws from torch's generator, as transforms do."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(())


def test_random_numbers_of_users_functions_come_in_order() -> None:
    """Interleaved with those of the training step, which a thread would race with."""
    runs = []
    for _ in range(3):
        loader = packio.Loader(Random())
        torch.manual_seed(0)
        runs.append([(batch.tolist(), torch.rand(()).item()) for batch in loader])
    assert runs[0] == runs[1] == runs[2]
    torch.manual_seed(0)
    expected = [(torch.rand(1).tolist(), torch.rand(()).item()) for _ in range(12)]
    assert runs[0] == expected


def test_the_training_thread_keeps_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding keeps torch to one thread meanwhile: not the thread that trains."""
    decoding, seen = threading.Event(), threading.Event()
    found: list[int] = []

    def made(_dataset: Any, _collate: Any, indices: Any, *_: Any, **__: Any) -> Any:
        for batch in indices:
            with threads.alone():
                decoding.set()
                seen.wait(60)
            yield batch

    monkeypatch.setattr("packio.loading.loader._made", made)
    loader = packio.Loader(Numbers(4), prefetch_factor=1)

    def let_go() -> None:
        decoding.wait(60)
        seen.set()

    def train() -> None:  # a thread that has not used torch yet
        running = iter(loader)
        threading.Thread(target=let_go).start()
        next(running)
        found.append(torch.get_num_threads())

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        trainer = threading.Thread(target=train)
        trainer.start()
        trainer.join()
    finally:
        torch.set_num_threads(before)
    assert found == [3]


@pytest.mark.parametrize("wrapper", ["accelerate", "lightning"])
def test_a_wrapper_that_shares_out_gets_the_whole_order(
    wrapper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = torch.distributed
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    sampler = packio.ShuffleSampler(40, 3)
    batches = torch.utils.data.BatchSampler(sampler, 4, drop_last=False)
    if wrapper == "accelerate":
        shards = pytest.importorskip("accelerate.data_loader").BatchSamplerShard
        seen = [i for rank in range(2) for b in shards(batches, 2, rank) for i in b]
    else:
        vision.import_torchvision()
        kind = pytest.importorskip("lightning.fabric.utilities.distributed")
        seen = []
        for rank in range(2):
            sampler.set_epoch(0)
            wrapped = kind.DistributedSamplerWrapper(sampler, num_replicas=2, rank=rank)
            seen += list(wrapped)
    assert len(seen) == 40
    assert wrapper == "accelerate" or sorted(seen) == list(range(40))
    assert len(list(sampler)) == 20


@pytest.fixture(scope="module")
def pack(photos: list[np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    out = tmp_path_factory.mktemp("pack") / "photos.lmdb"
    packio.pack(photos, out)
    return out


def _crops(loader: Any) -> list[bytes]:
    return [image.numpy().tobytes() for batch in loader for image in batch[0]]


def test_a_sample_that_comes_again_is_cropped_anew(pack: pathlib.Path) -> None:
    dataset = packio.PackDataset(pack, crop=packio.RandomCrop(8), fields=("image", "index"), seed=5)
    often = torch.utils.data.WeightedRandomSampler([1] + [0] * (len(dataset) - 1), 40)
    crops = _crops(packio.Loader(dataset, 1, sampler=often))
    assert len(crops) == 40
    assert len(set(crops)) > 20


def test_an_endless_batch_sampler_with_a_length_yields_batches(pack: pathlib.Path) -> None:
    class Endless:
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[list[int]]:
            while True:
                yield [0, 1]

    loader = packio.Loader(packio.PackDataset(pack, crop=packio.CenterCrop(8)),
                           batch_sampler=Endless())  # fmt: skip
    assert len(list(itertools.islice(loader, 10))) == 10


def test_an_iteration_that_has_not_begun_is_of_the_next_epoch() -> None:
    sampler = packio.ShuffleSampler(23, 3)
    list(sampler)
    iteration: Any = iter(sampler)
    state = iteration.state_dict()
    other = packio.ShuffleSampler(23, 3)
    other.load_state_dict(state)
    assert list(other) == list(iteration)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["numpy", "tensor", "subset"])
def test_crops_go_on_as_they_were_whatever_the_indices(
    pack: pathlib.Path, kind: str, num_workers: int
) -> None:
    def loader() -> Any:
        torch.manual_seed(1)
        dataset = packio.PackDataset(pack, crop=packio.RandomCrop(8), fields=("image", "index"))
        assert len(dataset) >= 9
        if kind == "subset":
            part = torch.utils.data.Subset(dataset, range(9))
            return packio.Loader(part, 3, shuffle=True, num_workers=num_workers)
        order: Any = np.random.default_rng(0).permutation(9)
        order = torch.from_numpy(order) if kind == "tensor" else order
        return packio.Loader(dataset, 3, sampler=order, num_workers=num_workers)

    whole = _crops(loader())
    first = loader()
    begun = next(iter(first))[0]
    state = first.state_dict()
    rest = loader()
    torch.rand(5)  # the training draws
    rest.load_state_dict(state)
    assert [image.numpy().tobytes() for image in begun] + _crops(rest) == whole
