"""An index at a URL that is read by blocks, against the same index on a disk."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import pickle
import signal
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from far_index import COUNT, LENGTH
from torch.utils.data import DataLoader

import packio
from packio.errors import IntegrityError, KeyNotFoundError, ReadError
from packio.storage import blocks, remote

if TYPE_CHECKING:
    from collections.abc import Callable

    from object_store import Proxy
    from range_server import RangeServer

MB = 1 << 20

pytestmark = pytest.mark.usefixtures("by_blocks")


def _asked(web: RangeServer) -> list[tuple[int, int]]:
    """Ranges of the index that were asked for so far."""
    found = [span for path, span in web.asked if path.endswith(".packio")]
    web.asked.clear()
    return found


def _bytes(spans: list[tuple[int, int]]) -> int:
    return sum(stop - start for start, stop in spans)


def _cached(tmp_path: pathlib.Path) -> pathlib.Path:
    (path,) = (tmp_path / "cache" / "remote").glob("*.blocks")
    return path


def test_all_that_a_pack_tells_is_what_the_whole_index_tells(
    url: str, made: pathlib.Path, web: RangeServer
) -> None:
    far, near = packio.open(url), packio.open(made / "train.tar")
    assert far.index_file.is_far
    assert not near.index_file.is_far
    assert far.digest == near.digest
    draw = np.random.default_rng(1)
    some = draw.integers(0, COUNT, 50)
    assert far.rows(some) == near.rows(some)
    assert [far.row(i) for i in some.tolist()] == [near.row(i) for i in some.tolist()]
    assert far.take_labels(some).tolist() == near.take_labels(some).tolist()
    for i in some.tolist():
        assert far.key(i) == near.key(i)
        assert far.meta(i) == near.meta(i)
        assert far.find(near.key(i)) == i
    with pytest.raises(KeyNotFoundError):
        far.find("k/nowhere")
    assert far[some.item(0)].data == bytes(LENGTH)
    assert np.array_equal(np.asarray(far.labels), np.asarray(near.labels))
    for name in near.index_file.column_names:
        expected = near.index_file.column(name).array()
        assert np.array_equal(far.index_file.column(name).array(), expected), name
    _asked(web)
    far.index_file.check()
    assert not _asked(web)


def test_opening_asks_for_the_header_and_the_files_only(url: str, web: RangeServer) -> None:
    size = (web.folder / "train.tar.packio").stat().st_size
    pack = packio.open(url)
    assert len(pack) == COUNT
    spans = _asked(web)
    assert _bytes(spans) < 200_000 < size
    pack.row(0)
    first = _asked(web)
    assert len(first) <= 11  # one for each column at most, all at the same time
    assert _bytes(first) <= 11 * MB
    pack.row(1)
    assert not _asked(web)


def test_rows_of_a_batch_come_by_one_round_of_requests(
    url: str, web: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, rounds = packio.open(url), []
    bring = blocks.CachedIndex.bring

    def counted(self: Any, spans: Any, **more: Any) -> None:
        before = len(web.asked)
        bring(self, spans, **more)
        rounds.append(len(web.asked) - before)

    monkeypatch.setattr(blocks.CachedIndex, "bring", counted)
    for batch in (range(0, COUNT, 1000), range(0, COUNT, 777)):
        pack.rows(np.array(batch))
    assert sum(requests > 0 for requests in rounds) == 1
    rounds.clear()
    some = np.arange(0, COUNT, 901)
    pack.bring("meta", some)
    pack.bring("key", some)
    assert sum(requests > 0 for requests in rounds) == 4  # offsets and values of both
    rounds.clear()
    for i in some.tolist():
        pack.meta(i), pack.key(i)
    assert not any(rounds)


def test_what_has_come_is_found_by_later_runs(
    url: str, web: RangeServer, tmp_path: pathlib.Path
) -> None:
    pack = packio.open(url)
    expected = pack.rows(np.arange(0, COUNT, 5000))
    del pack
    _asked(web)
    again = packio.open(url)
    assert again.rows(np.arange(0, COUNT, 5000)) == expected
    assert not _asked(web)
    assert _cached(tmp_path).stat().st_blocks * 512 < web_size(web) * 0.8


def web_size(web: RangeServer) -> int:
    """Bytes of the index on the server."""
    return (web.folder / "train.tar.packio").stat().st_size


def _in_children(work: Callable[[int], None], count: int) -> list[int | None]:
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=work, args=(i,)) for i in range(count)]
    for child in children:
        child.start()
    for child in children:
        child.join(600)
    return [child.exitcode for child in children]


def test_processes_do_not_fetch_a_block_twice(url: str, web: RangeServer) -> None:
    pack = packio.open(url)
    _asked(web)

    def read(_: int) -> None:
        assert int(pack.index_file.column("label").array().sum()) > 0
        assert len(pack.rows(np.arange(0, COUNT, 1000))) == 200

    assert _in_children(read, 4) == [0] * 4
    spans = _asked(web)
    assert len({*spans}) == len(spans)
    pack.index_file.column("label").array()
    assert not _asked(web)  # this process finds what its children have fetched


def test_a_process_that_is_killed_leaves_nothing_wrong(
    url: str, made: pathlib.Path, web: RangeServer
) -> None:
    pack, held = packio.open(url), threading.Event()

    def answer_nothing() -> None:
        held.wait()

    web.held = answer_nothing
    context = multiprocessing.get_context("fork")
    child = context.Process(target=lambda: pack.index_file.column("label").array())
    child.start()
    while not any(path.endswith(".packio") and span[0] > MB for path, span in web.asked):
        child.join(0.01)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join(600)
    held.set()
    expected = packio.open(made / "train.tar").labels
    assert np.array_equal(np.asarray(pack.labels), np.asarray(expected))


def test_a_block_that_was_lost_on_the_disk_comes_again(
    url: str, made: pathlib.Path, web: RangeServer, tmp_path: pathlib.Path
) -> None:
    pack = packio.open(url)
    pack.index_file.check()
    with _cached(tmp_path).open("r+b") as file:  # zeros, though the block is marked
        file.seek(5 * MB)
        file.write(bytes(2 * MB))
    _asked(web)
    again = packio.open(url)
    again.index_file.check()
    assert 0 < _bytes(_asked(web)) <= 4 * MB
    assert again.rows([7, COUNT - 1]) == packio.open(made / "train.tar").rows([7, COUNT - 1])


def test_a_file_of_the_cache_that_was_cut_short_is_made_anew(
    url: str, made: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    packio.open(url).row(0)
    os.truncate(_cached(tmp_path), MB)
    assert packio.open(url).row(9) == packio.open(made / "train.tar").row(9)
    total = _cached(tmp_path).stat().st_size
    os.truncate(_cached(tmp_path), total - 3)  # some marks are gone
    packio.open(url).index_file.check()


def test_a_block_that_is_damaged_on_the_server_is_an_error(url: str, web: RangeServer) -> None:
    path = web.folder / "train.tar.packio"
    data = bytearray(path.read_bytes())
    data[3 * MB] ^= 1
    path.unlink()  # the fixture's file has this name, too
    path.write_bytes(data)
    pack = packio.open(url)
    with pytest.raises(IntegrityError, match=r"http://\S*packio, column \S+: bytes .* damaged"):
        pack.index_file.check()


def test_an_index_that_is_replaced_is_an_error(url: str, web: RangeServer) -> None:
    pack = packio.open(url)
    path = web.folder / "train.tar.packio"
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-1] + b"x")
    with pytest.raises(IntegrityError, match="was replaced"):
        pack.row(0)


def test_a_service_that_fails_is_asked_again_then_named(url: str, web: RangeServer) -> None:
    pack = packio.open(url)
    web.asked.clear()
    web.fault = lambda *_: "503" if len(web.asked) < 5 else None
    assert pack.row(0).length == LENGTH
    web.fault = lambda *_: "503"
    with pytest.raises(ReadError, match=r"http://\S*train.tar.packio.*503"):
        pack.index_file.check()


def test_a_full_cache_is_told(
    url: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = packio.open(url)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(ReadError, match=r"No space left.*PACKIO_CACHE_DIR"):
            pack.row(0)
    assert pack.row(0).length == LENGTH
    assert {p.suffix for p in _cached(tmp_path).parent.iterdir()} == {".blocks", ".lock"}


def test_packs_pickle_and_copy(url: str, made: pathlib.Path, tmp_path: pathlib.Path) -> None:
    pack = pickle.loads(pickle.dumps(packio.open(url)))
    assert pack.row(5) == packio.open(made / "train.tar").row(5)
    pack.index_file.copy_to(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == (made / "train.tar.packio").read_bytes()
    given = packio.open(url, index=f"{url}.packio")
    assert given.index_file.is_far
    assert pickle.loads(pickle.dumps(given)).key(3) == pack.key(3)


@pytest.fixture
def pair(s3: Proxy, image_folder: pathlib.Path, tmp_path: pathlib.Path) -> tuple[str, str]:
    """A pack of photographs in a bucket, and the same on a disk."""
    here = str(tmp_path / "here.tar")
    packio.pack(image_folder, here)
    there = f"s3://{s3.bucket}/there.tar"
    packio.pack(image_folder, there)
    for path in (tmp_path / "cache" / "remote").iterdir():
        path.unlink()  # uploading has put a copy there
    return there, here


@pytest.mark.parametrize("workers", [0, 2])
def test_datasets_and_loaders_read_the_same(pair: tuple[str, str], workers: int) -> None:
    options: dict[str, Any] = {
        "crop": packio.RandomResizedCrop(8), "seed": 3, "fields": ("image", "label", "key"),
    }  # fmt: skip
    sets = [packio.TarDataset(path, **options) for path in pair]
    assert sets[0].pack.index_file.is_far
    assert len(sets[0].where(label=0)) == len(sets[1].where(label=0)) > 0
    assert np.array_equal(np.asarray(sets[0].targets), np.asarray(sets[1].targets))
    assert len(sets[0].subset([1, 0])) == 2
    found = [
        list(packio.Loader(
            d, batch_size=3, sampler=packio.ShuffleSampler(d, seed=1), num_workers=workers
        ))
        for d in sets
    ]  # fmt: skip
    for one, other in zip(*found, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
        assert list(one[2]) == list(other[2])
    plain = [
        list(DataLoader(d, batch_size=3, num_workers=workers, multiprocessing_context=(
            "fork" if workers else None))) for d in sets
    ]  # fmt: skip
    for one, other in zip(*plain, strict=True):
        assert torch.equal(one[0], other[0])


def test_a_small_index_is_copied_whole(
    url: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "WHOLE", 1 << 30)
    pack = packio.open(url)
    assert not pack.index_file.is_far
    (path,) = (tmp_path / "cache" / "remote").iterdir()
    assert path.suffix == ".packio"
    monkeypatch.setattr(remote, "WHOLE", 0)
    assert not packio.open(url).index_file.is_far  # the copy is there already
