"""`packio.Loader`: the same batches in threads and in workers, resumed anywhere."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import pathlib
import threading
from typing import Any, cast

import numpy as np
import pytest
import torch

import packio
from packio.errors import DecodeError, OptionError

BATCH = 4
MODES: list[dict[str, Any]] = [{"num_workers": 0}, {"num_workers": 2}]


@pytest.fixture(scope="module")
def pack(image_folder: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """25 photographs in 4 shards."""
    out = tmp_path_factory.mktemp("loader") / "x.lmdb"
    return packio.pack(image_folder, out, shards=4).out


def _dataset(pack: pathlib.Path, **options: Any) -> packio.PackDataset:
    return packio.PackDataset(
        pack, crop=packio.RandomResizedCrop(16), hflip=0.5, seed=3,
        fields=("image", "label", "index"), **options,
    )  # fmt: skip


def _same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, y) for one, other in zip(a, b, strict=True)
        for x, y in zip(one, other, strict=True)
    )  # fmt: skip


@pytest.fixture
def nothing_left() -> Any:
    """No thread and no process more than before."""
    before, children = threading.active_count(), set(multiprocessing.active_children())
    yield
    gc.collect()
    decoding = [t for t in threading.enumerate() if t.name.startswith("packio-decode")]
    assert threading.active_count() - len(decoding) <= before
    assert set(multiprocessing.active_children()) <= children


@pytest.mark.usefixtures("nothing_left")
def test_threads_workers_and_dataloader_give_the_same(pack: pathlib.Path) -> None:
    plain = torch.utils.data.DataLoader(
        _dataset(pack), BATCH, sampler=packio.ShuffleSampler(25, 3), collate_fn=packio.collate
    )
    expected = list(plain)
    for mode in (*MODES, {"threads": 1}, {"threads": 3}, {"device": "cpu"}):
        assert _same(list(packio.Loader(_dataset(pack), BATCH, shuffle=True, **mode)), expected)


@pytest.mark.parametrize("mode", MODES)
def test_each_iteration_is_another_epoch(mode: dict[str, Any], pack: pathlib.Path) -> None:
    loader = packio.Loader(_dataset(pack), BATCH, shuffle=True, **mode)
    assert len(loader) == 7
    first, second = list(loader), list(loader)
    assert sorted(i for b in first for i in b[2].tolist()) == list(range(25))
    assert [b[2].tolist() for b in first] != [b[2].tolist() for b in second]
    loader.set_epoch(0)
    assert _same(list(loader), first)
    cast("Any", loader.sampler).set_epoch(1)  # as people do
    assert _same(list(loader), second)
    next(iter(loader))
    assert loader.epoch == 3


def test_in_order_by_default_and_the_last_one_left_out(pack: pathlib.Path) -> None:
    loader = packio.Loader(_dataset(pack), BATCH, drop_last=True)
    batches = list(loader)
    assert len(batches) == len(loader) == 6
    assert [i for b in batches for i in b[2].tolist()] == list(range(24))
    assert not _same(batches, list(loader))  # another epoch draws other crops
    loader = packio.Loader(_dataset(pack), 26, drop_last=True)
    with pytest.warns(UserWarning, match="the epoch has no batch: a rank gets 25 samples"):
        assert list(loader) == []


class _Foreign(torch.utils.data.Dataset[tuple[int, float]]):
    """Not packio's: one sample at a time."""

    def __len__(self) -> int:
        return 25

    def __getitem__(self, index: int) -> tuple[int, float]:
        if index == 99:
            raise ValueError("no such thing")
        return index, index / 2


def _samplers(pack: pathlib.Path) -> list[dict[str, Any]]:
    data = _dataset(pack)
    random = torch.utils.data.RandomSampler(data)
    return [
        {"shuffle": True}, {}, {"sampler": random},
        {"sampler": torch.utils.data.WeightedRandomSampler([1.0] * 25, 25)},
        {"batch_sampler": torch.utils.data.BatchSampler(random, 3, drop_last=False)},
        {"sampler": packio.ShuffleSampler(25, 8), "drop_last": True},
        {"shuffle": True, "window": 2},
        {"sampler": packio.MixedSampler([20, 5], [1, 2], 6, samples_per_epoch=31)},
        {"batch_sampler": torch.utils.data.BatchSampler(
            packio.RepeatAugSampler(25, 2, 6), 5, drop_last=False)},
    ]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("number", range(9))
def test_a_resumed_epoch_goes_on_bit_for_bit(
    number: int, mode: dict[str, Any], pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    def made() -> packio.Loader:
        options = {"batch_size": BATCH, **_samplers(pack)[number]}
        if "batch_sampler" in options:
            del options["batch_size"]
        return packio.Loader(_dataset(pack), **options, **mode)

    torch.manual_seed(number)
    loader = made()
    list(loader)
    running = iter(loader)
    for _ in range(1 + number % 3):
        next(running)
    torch.save(loader.state_dict(), tmp_path / "first")
    rest = list(running)
    assert len(rest) >= 2
    torch.manual_seed(99)  # as in another process
    again = made()
    again.load_state_dict(torch.load(tmp_path / "first", weights_only=True))
    torch.save(again.state_dict(), tmp_path / "same")
    running = iter(again)
    assert _same([next(running)], rest[:1])
    torch.save(again.state_dict(), tmp_path / "second")
    assert _same(list(running), rest[1:])
    for name, left in (("same", rest), ("second", rest[1:])):
        once_more = made()
        once_more.load_state_dict(torch.load(tmp_path / name, weights_only=True))
        assert _same(list(once_more), left)
    assert _same(list(again), list(loader)) or number in (2, 3, 4)  # torch's draw anew


def test_a_state_fits_other_batch_sizes_and_no_other_order(pack: pathlib.Path) -> None:
    loader = packio.Loader(_dataset(pack), 4, shuffle=True)
    list(loader)
    again = packio.Loader(_dataset(pack), 4, shuffle=True)
    again.load_state_dict(loader.state_dict())  # after the last batch: the next epoch comes
    assert again.epoch == 1  # as `range(loader.epoch, epochs)` wants to know
    assert _same(list(again), list(loader))
    running = iter(loader)
    next(running)
    state, rest = loader.state_dict(), [i for b in running for i in b[2].tolist()]
    again = packio.Loader(_dataset(pack), 7, shuffle=True)
    again.load_state_dict(state)
    assert [i for b in again for i in b[2].tolist()] == rest
    with pytest.raises(OptionError, match="seed"):
        packio.Loader(_dataset(pack).with_options(seed=4), 4).load_state_dict(state)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("nothing_left")
def test_a_bad_sample_is_named_and_nothing_stays(mode: dict[str, Any], tmp_path: pathlib.Path,
                                                 image_folder: pathlib.Path) -> None:  # fmt: skip
    source = tmp_path / "source"
    (source / "a").mkdir(parents=True)
    for i, path in enumerate(sorted(image_folder.rglob("*.jpg"))[:6]):
        data = path.read_bytes()
        (source / f"a/{i}.jpg").write_bytes(data if i != 4 else data[: len(data) // 2])
    packio.pack(source, tmp_path / "x.lmdb")
    loader = packio.Loader(_dataset(tmp_path / "x.lmdb"), 2, **mode)
    with pytest.raises(DecodeError, match=r"a/4\.jpg"):
        list(loader)
    del loader


def test_datasets_of_others_and_their_errors() -> None:
    loader = packio.Loader(_Foreign(), BATCH)
    first, half = next(iter(loader))
    assert (first.tolist(), half.tolist()) == ([0, 1, 2, 3], [0, 0.5, 1, 1.5])
    with pytest.raises(OptionError, match="a dataset of packio"):
        packio.Loader(_Foreign(), threads=2)
    with pytest.raises(ValueError, match="no such") as caught:
        list(packio.Loader(_Foreign(), 2, sampler=[1, 2, 99]))
    assert getattr(caught.value, "__notes__", ["sample 99 of _Foreign"]) == [
        "sample 99 of _Foreign"
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"num_workers": -1}, "num_workers=-1"),
        ({"prefetch_factor": 0}, "prefetch_factor=0"),
        ({"sampler": [0], "shuffle": True}, "exclude"),
        ({"batch_sampler": [[0]], "drop_last": True}, "excludes"),
        ({"dtype": torch.int64}, "dtype="),
        ({"timeout": 3}, "need num_workers="),
        ({"device": "cpu", "normalize": ([9.0], [1.0])}, "normalize="),
    ],
)
def test_what_cannot_be_meant_is_refused(
    options: dict[str, Any], message: str, pack: pathlib.Path
) -> None:
    with pytest.raises(OptionError, match=message):
        packio.Loader(_dataset(pack), **options)


def _frozen(_image: torch.Tensor) -> torch.Tensor:
    return torch.tensor(gc.get_freeze_count())


@pytest.mark.parametrize("kind", [packio.Loader, torch.utils.data.DataLoader])
def test_workers_leave_their_parents_objects_alone(kind: Any, pack: pathlib.Path) -> None:
    ds = packio.PackDataset(pack, transform=_frozen, fields="image")
    assert gc.get_freeze_count() == 0
    for batch in kind(ds, 4, num_workers=1, collate_fn=packio.collate):
        assert min(batch) > 10_000  # what the collector would write to, and so copy


OURS: list[Any] = [
    packio.ShuffleSampler, packio.RepeatAugSampler,
    lambda n: packio.MixedSampler([n - 5, 5], [1, 1]),
    lambda n: torch.utils.data.BatchSampler(packio.ShuffleSampler(n), 2, False),
]  # fmt: skip
TORCHS: list[Any] = [
    lambda n: torch.utils.data.RandomSampler(range(n)),
    lambda n: torch.utils.data.SequentialSampler(range(n)),
    lambda n: torch.utils.data.WeightedRandomSampler([1.0] * n, 3),
    lambda n: torch.utils.data.DistributedSampler(cast("Any", range(n)), 1, 0),
]


@pytest.mark.parametrize(
    ("sampler", "more"), [*itertools.product(OURS, (-1, 1)), *((made, 1) for made in TORCHS)]
)
def test_a_sampler_of_another_dataset_is_refused(
    sampler: Any, more: int, pack: pathlib.Path
) -> None:
    made = sampler(25 + more)
    name = "batch_sampler" if isinstance(made, torch.utils.data.BatchSampler) else "sampler"
    options: dict[str, Any] = {name: made}
    with pytest.raises(OptionError, match=f"was made for {25 + more} samples, the dataset has 25"):
        packio.Loader(_dataset(pack), **options)
    options[name] = sampler(25)
    packio.Loader(_dataset(pack), **options)


def test_an_index_beyond_the_dataset_tells_of_samplers(pack: pathlib.Path) -> None:
    for dataset in (_dataset(pack), _dataset(pack).subset(range(5))):
        loader = torch.utils.data.DataLoader(
            dataset, 4, sampler=packio.ShuffleSampler(99), collate_fn=packio.collate
        )
        with pytest.raises(IndexError, match=r"out of range: .*a sampler must be made of the same"):
            list(loader)


def test_batches_that_a_function_leaves_as_samples_go_to_a_device(pack: pathlib.Path) -> None:
    loader = packio.Loader(_dataset(pack), 5, collate_fn=lambda samples: samples, device="cpu")
    plain = packio.Loader(_dataset(pack), 5, collate_fn=lambda samples: samples)
    assert (loader.device, plain.device) == (torch.device("cpu"), None)
    for sent, batch in zip(loader, plain, strict=True):
        assert [sample[2] for sample in sent] == [sample[2] for sample in batch]
        assert _same([[sample[0]] for sample in sent], [[sample[0]] for sample in batch])


@pytest.mark.parametrize("mode", MODES)
def test_a_sampler_needs_no_length(pack: pathlib.Path, mode: dict[str, Any]) -> None:
    class Some(torch.utils.data.Sampler[int]):
        def __iter__(self) -> Any:
            return iter([3, 1, 4, 1, 5])

    loader = packio.Loader(_dataset(pack), 2, sampler=Some(), **mode)
    assert [batch[2].tolist() for batch in loader] == [[3, 1], [4, 1], [5]]
    again = packio.Loader(_dataset(pack), 2, sampler=Some(), **mode)
    running = iter(again)
    next(running)
    state = again.state_dict()
    again.load_state_dict(state)
    assert [batch[2].tolist() for batch in again] == [[4, 1], [5]]


def test_images_of_several_sizes_come_from_a_worker_in_one_storage(tmp_path: pathlib.Path) -> None:
    draw = np.random.default_rng(3)
    sizes = [(3 + i % 7, 4 + i % 5) for i in range(24)]
    images = [draw.integers(0, 256, (*size, 3), np.uint8) for size in sizes]
    masks = [image[:, :, 0].astype(np.uint16) * 200 for image in images]
    samples = [{"image": i, "mask": m, "label": 0} for i, m in zip(images, masks, strict=True)]
    out = packio.pack(samples, tmp_path / "x.lmdb").out
    ds = packio.PackDataset(out, fields=("image", "mask"))
    loader = packio.Loader(ds, batch_size=8, num_workers=1)
    found: list[torch.Tensor] = []
    for made, drawn in loader:
        assert len({image.untyped_storage().data_ptr() for image in made}) == 1
        assert len({mask.untyped_storage().data_ptr() for mask in drawn}) == 1
        assert all(value.is_contiguous() for value in (*made, *drawn))
        for image, mask in zip(made, drawn, strict=True):
            number = len(found)
            assert np.array_equal(image.permute(1, 2, 0).numpy(), images[number])
            assert np.array_equal(np.squeeze(mask.numpy()), masks[number])
            found.append(image)
    assert len(found) == 24
