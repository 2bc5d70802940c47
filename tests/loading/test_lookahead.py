"""Batches that tell the next ones, and loaders of packs at URLs that ask for them early."""

from __future__ import annotations

import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from range_server import web

import packio
from packio.datasets.lookahead import AHEAD, BatchWithLookahead, add_lookahead

if TYPE_CHECKING:
    import pathlib

    from range_server import RangeServer

pytestmark = pytest.mark.usefixtures("own_cache")

__all__ = ["web"]


@pytest.fixture
def url(web: RangeServer, image_folder: pathlib.Path) -> str:
    packio.pack(image_folder, web.folder / "x.tar")
    return f"{web.url}/x.tar"


@pytest.mark.parametrize("size", [1, 7, 64, 200])
@pytest.mark.parametrize("processes", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("count", [0, 1, 5, 64, 301])
def test_each_batch_is_told_once_to_the_process_that_makes_it(
    size: int, processes: int, count: int
) -> None:
    batches = [list(range(n * size, n * size + size)) for n in range(count)]
    told: list[Any] = list(add_lookahead(iter(batches), processes))
    assert [list(batch) for batch in told] == batches
    by = max(processes, 1)
    for process in range(by):
        mine = told[process::by]
        assert [batch.anew for batch in mine] == [number == 0 for number in range(len(mine))]
        known = [list(mine[0])] if mine else []
        for number, batch in enumerate(mine):
            assert list(batch) in known[number:]  # it was told before it came
            known += [list(later) for later in batch.later]
        assert known == batches[process::by]


def test_no_more_than_needed_is_drawn_ahead() -> None:
    drawn: list[int] = []

    def batches() -> Any:
        for number in range(10_000):
            drawn.append(number)
            yield [number] * 64

    next(add_lookahead(batches(), 2))
    assert len(drawn) <= 1 + 2 * (AHEAD // 64)


def test_a_batch_that_tells_more_pickles() -> None:
    batch = pickle.loads(pickle.dumps(BatchWithLookahead([1, 2], [[3, 4]], anew=True)))
    assert (list(batch), batch.later, batch.anew) == ([1, 2], [[3, 4]], True)


def _expected(web: RangeServer, indices: Any, **options: Any) -> torch.Tensor:
    ds = packio.PackDataset(web.folder / "x.tar", crop=packio.CenterCrop(32), **options)
    images: torch.Tensor = ds.gather(list(indices))[0]
    return images


@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork"), (2, "spawn")])
def test_an_epoch_from_a_url_is_the_same_and_asks_once(
    workers: int, method: str | None, url: str, web: RangeServer
) -> None:
    ds = packio.PackDataset(url, crop=packio.CenterCrop(32), seed=3)
    loader = packio.Loader(
        ds, 4, shuffle=True, num_workers=workers, multiprocessing_context=method, order_seed=1,
        persistent_workers=workers > 0,
    )  # fmt: skip
    for epoch in range(2):
        order = list(packio.ShuffleSampler(25, 1, epoch=epoch))
        web.asked.clear()
        found = torch.cat([batch[0] for batch in loader])
        assert torch.equal(found, _expected(web, order))
        spans = sorted(span for path, span in web.asked if path == "/x.tar")
        assert len(spans) <= 25 + 7 * workers  # those that open the pack are among them


def test_the_next_batches_are_on_their_way_before_the_first_is_there(
    url: str, web: RangeServer
) -> None:
    ds = packio.PackDataset(url, crop=packio.CenterCrop(32))
    together = threading.Barrier(7)  # as many requests as there are batches, all at once

    def held() -> None:
        if not together.broken:
            together.wait(120)

    web.asked.clear()
    web.held = held
    loader = packio.Loader(ds, 4)
    assert torch.equal(torch.cat([b[0] for b in loader]), _expected(web, range(25)))
    assert not together.broken
    assert len(web.asked) == 7


def test_an_epoch_left_early_is_forgotten(url: str, web: RangeServer) -> None:
    ds = packio.PackDataset(url, crop=packio.CenterCrop(32))
    loader = packio.Loader(ds, 4)
    for _ in range(3):
        next(iter(loader))
    assert torch.equal(torch.cat([b[0] for b in loader]), _expected(web, range(25)))
    flight: Any = ds.pack.storage
    assert not flight._flight._coming
    assert flight._flight._bytes == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_subsets_and_several_packs_look_ahead(
    workers: int, url: str, web: RangeServer, image_folder: pathlib.Path
) -> None:
    packio.pack(image_folder, web.folder / "y.tar", shuffle=1)
    far = [packio.PackDataset(u, crop=packio.CenterCrop(32)) for u in (url, f"{web.url}/y.tar")]
    near = [
        packio.PackDataset(web.folder / n, crop=packio.CenterCrop(32)) for n in ("x.tar", "y.tar")
    ]
    order = [3, 40, 1, 26, 49, 0, 12]
    for there, here in (
        (packio.ConcatPacks(far), packio.ConcatPacks(near)),
        (packio.ConcatPacks(far).subset(order), packio.ConcatPacks(near).subset(order)),
        (far[0].where(label=0), near[0].where(label=0)),
    ):
        assert there.looks_ahead
        found = torch.cat([b[0] for b in packio.Loader(there, 3, num_workers=workers)])
        assert torch.equal(found, here.gather(range(len(here)))[0])
    part = torch.utils.data.Subset(far[0], [5, 7, 1, 2, 20])
    found = torch.cat([b[0] for b in packio.Loader(part, 2, num_workers=workers)])
    assert torch.equal(found, near[0].gather([5, 7, 1, 2, 20])[0])


def test_a_resumed_epoch_goes_on_where_it_was(url: str) -> None:
    ds = packio.PackDataset(url, crop=packio.RandomResizedCrop(32), seed=5)
    loader = packio.Loader(ds, 4, shuffle=True, num_workers=2)
    batches = [batch[0] for batch in loader]
    loader.set_epoch(0)
    running = iter(loader)
    for _ in range(3):
        next(running)
    state = loader.state_dict()
    other = packio.Loader(ds, 4, shuffle=True)
    other.load_state_dict(state)
    assert all(torch.equal(a[0], b) for a, b in zip(other, batches[3:], strict=True))


def test_a_sample_that_does_not_come_is_replaced_or_told(
    url: str, web: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packio.storage.urls, "_WAITS", (0.01,))
    order = [24, 0, 12]  # far from each other: a request each
    monkeypatch.setattr(packio.storage.remote_store, "_GAP", 0)
    ds = packio.PackDataset(url, crop=packio.CenterCrop(32))
    row = ds.pack.row(0)
    web.fault = lambda _, span: "500" if span[0] == row.offset else None
    with pytest.raises(packio.errors.ReadError, match="500"):
        list(packio.Loader(ds.subset(order), 3))
    web.fault = lambda *_: None
    assert torch.equal(next(iter(packio.Loader(ds.subset(order), 3)))[0], _expected(web, order))


def test_a_library_of_others_gets_plain_lists() -> None:
    class Foreign(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 9

        def __getitems__(self, indices: list[int]) -> list[int]:
            assert type(indices) is list
            return [int(i) for i in indices]

    assert [b.tolist() for b in packio.Loader(Foreign(), 4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
