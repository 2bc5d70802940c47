"""The bytes of samples kept in memory, shared by processes, gone with them; and kept on a disk."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import long
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import packio
from packio.errors import IntegrityError, OptionError
from packio.index.indexfile import crc32c
from packio.storage import sample_cache

if TYPE_CHECKING:
    import pathlib

    from object_store import Proxy

FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def pack(image_folder: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    out = tmp_path_factory.mktemp("packs") / "photos.tar"
    packio.pack(image_folder, out)
    return out


@pytest.fixture(params=["ram", "disk"])
def keep(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> dict[str, Any]:
    """Options of a dataset that keeps samples in memory, or on a disk."""
    on_disk = {"cache": None, "local_copy": tmp_path / "near", "local_bytes": 1 << 30}
    return {"cache": "ram"} if request.param == "ram" else on_disk


def _dataset(path: object, **options: Any) -> packio.PackDataset:
    given = {"crop": packio.ResizeCenterCrop(32), "cache": "ram", "threads": 2, **options}
    return packio.PackDataset(str(path), **given)


def _kept(ds: packio.PackDataset) -> sample_cache.RamCache:
    assert ds.ram is not None
    return ds.ram


def _loader(ds: packio.PackDataset, method: str) -> DataLoader[Any]:
    """Two workers that stay, started by a method."""
    return DataLoader(
        ds, batch_size=4, num_workers=2, multiprocessing_context=method, collate_fn=packio.collate,
        persistent_workers=True,
    )  # fmt: skip


def _images(loader: DataLoader[Any]) -> torch.Tensor:
    return torch.cat([images for images, _ in loader])


def _expected(path: pathlib.Path) -> torch.Tensor:
    """What a dataset gives that keeps nothing."""
    ds = _dataset(path, cache=None)
    return torch.stack([ds[i][0] for i in range(len(ds))])


@pytest.mark.parametrize("method", long.after(2, ("fork", "spawn", "forkserver")))
def test_workers_and_parent_share_what_was_read(
    pack: pathlib.Path, method: str, keep: dict[str, Any]
) -> None:
    expected = _expected(pack)
    ds = _dataset(pack, **keep)
    count, kept, loader = len(ds), _kept(ds), _loader(ds, method)
    for epoch in range(2):
        assert torch.equal(_images(loader), expected)
        assert kept.held_samples == count
        assert (kept.hits, kept.misses) == (epoch * count, count)
    for i in range(count):
        assert torch.equal(ds[i][0], expected[i])
    assert (kept.hits, kept.misses) == (2 * count, count)
    assert kept.held_bytes == sum(len(sample.data) for sample in packio.open(pack))


@pytest.mark.parametrize("name", ["x.lmdb", "x.rec", "x.h5", "folder"])
def test_other_containers_are_kept_as_well(
    name: str, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    if name == "folder":
        ds: packio.PackDataset = packio.FolderDataset(image_folder, cache="ram")
    else:
        packio.pack(image_folder, tmp_path / name)
        access = "lmdb" if name == "x.lmdb" else None
        ds = packio.PackDataset(tmp_path / name, cache="ram", access=access)
    first, again = ([ds[i][0] for i in range(len(ds))] for _ in range(2))
    assert all(map(torch.equal, first, again))
    assert (_kept(ds).hits, _kept(ds).misses) == (25, 25)


def test_masks_are_kept_beside_their_images(tmp_path: pathlib.Path, keep: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    samples = [
        {"image": rng.integers(0, 256, (9, 7, 3), np.uint8), "mask": np.full((9, 7), i, np.uint8)}
        for i in range(6)
    ]
    packio.pack(samples, tmp_path / "x.lmdb", encode="jpeg")
    ds = _dataset(tmp_path / "x.lmdb", crop=None, **keep)
    for _ in range(2):
        _, masks = packio.collate(ds.__getitems__(range(6)))
        assert masks[:, 0, 0].tolist() == list(range(6))
    assert (_kept(ds).hits, _kept(ds).misses, _kept(ds).held_samples) == (12, 12, 6)


def test_no_more_is_kept_than_allowed(pack: pathlib.Path, keep: dict[str, Any]) -> None:
    expected = _expected(pack)
    size = {"local_bytes": 20_000} if "local_copy" in keep else {"cache_bytes": 20_000}
    ds = _dataset(pack, threads=1, **{**keep, **size})
    for _ in range(2):
        assert torch.equal(torch.stack([ds[i][0] for i in range(len(ds))]), expected)
    kept = _kept(ds)
    assert 0 < kept.held_bytes <= 20_000
    assert kept.room == 20_000 or "local_copy" in keep
    most = max(len(sample.data) for sample in packio.open(pack))
    assert most > 20_000 - kept.held_bytes  # as many as there is room for
    assert 0 < kept.held_samples < len(ds)
    assert (kept.hits, kept.misses) == (kept.held_samples, 2 * len(ds) - kept.held_samples)


def test_datasets_of_one_pack_share_what_is_kept(pack: pathlib.Path) -> None:
    ds = _dataset(pack)
    other = ds.with_options(crop=packio.CenterCrop(16))
    assert other.ram is ds.ram
    loader = packio.Loader(ds, batch_size=5, threads=1)  # a dataset with another option
    assert sum(len(labels) for _, labels in loader) == len(ds)
    other.__getitems__(range(len(other)))
    assert (_kept(ds).hits, _kept(ds).misses) == (25, 25)
    assert _dataset(pack, cache_bytes=1000).ram is not ds.ram


def test_a_copy_sent_elsewhere_begins_empty(pack: pathlib.Path) -> None:
    ds = _dataset(pack, cache_bytes=100_000)
    ds.__getitems__(range(len(ds)))
    copy = pickle.loads(pickle.dumps(ds))
    assert _kept(copy).held_samples == 0
    assert _kept(copy).room == 100_000
    assert torch.equal(copy[3][0], ds[3][0])
    assert _kept(copy).held_samples == 1


def test_mapped_pixels_are_not_kept_again(tmp_path: pathlib.Path) -> None:
    packio.pack([{"image": np.zeros((8, 8, 3), np.uint8)}] * 3, tmp_path / "x.h5", encode="raw")
    assert _dataset(tmp_path / "x.h5", crop=None).ram is None


def _corrupt(kept: sample_cache.RamCache, slot: int) -> None:
    position = kept._numbers[2 * (sample_cache._ROWS + slot)]
    os.pwrite(kept._descriptor, b"\xff\x00\xff\x00", position + 100)


def test_damaged_memory_is_read_anew(pack: pathlib.Path) -> None:
    ds = _dataset(pack)
    expected = ds[7][0]
    _corrupt(_kept(ds), 7)
    assert torch.equal(ds[7][0], expected)
    assert (_kept(ds).hits, _kept(ds).misses) == (0, 2)
    assert torch.equal(ds[7][0], expected)
    assert (_kept(ds).hits, _kept(ds).misses) == (1, 2)


def test_damaged_samples_are_never_kept(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for path in pack.parent.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    row = packio.open(pack).row(5)
    with (tmp_path / pack.name).open("r+b") as file:
        file.seek(row.offset + row.length // 2)
        file.write(b"\xff\x01\xff\x02")
    ds = _dataset(tmp_path / pack.name)
    for _ in range(2):
        with pytest.raises(IntegrityError, match="record 5"):
            ds[5]
    assert _kept(ds).held_samples == 0


def _content(slot: int) -> bytes:
    return random.Random(slot).randbytes(1 + slot * 997 % 60_000)


def _fill(kept: sample_cache.RamCache, seed: int) -> None:
    slots = list(range(200))
    random.Random(seed).shuffle(slots)
    for slot in slots:
        data = _content(slot)
        got = kept.get(slot, crc32c(data))
        assert got in (None, data)
        kept.put(slot, data)


def test_processes_that_fill_at_once_lose_nothing() -> None:
    kept = sample_cache.share_cache("filled at once", 200, 1, 50_000_000)
    processes = [FORK.Process(target=_fill, args=(kept, seed)) for seed in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    for slot in range(200):
        data = _content(slot)
        assert kept.get(slot, crc32c(data)) == data
    assert kept.held_samples == 200
    assert kept.hits + kept.misses == 5 * 200
    assert kept.held_bytes <= 4 * sum(len(_content(slot)) for slot in range(200))


def _die_between(kept: sample_cache.RamCache, *, written: bool) -> None:
    def append(data: bytes) -> int:
        if written:
            sample_cache.RamCache._append(kept, data)
        else:
            sample_cache.RamCache._append(kept, data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    kept._append = append  # type: ignore[method-assign]  # to be killed at this very place
    kept.put(3, _content(3))


@pytest.mark.parametrize("written", [False, True])
def test_a_process_killed_while_it_fills_leaves_nothing_to_see(written: bool) -> None:
    kept = sample_cache.share_cache(f"killed {written}", 10, 1, 1_000_000)
    process = FORK.Process(target=_die_between, args=(kept,), kwargs={"written": written})
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    data = _content(3)
    assert kept.get(3, crc32c(data)) is None
    assert not kept.holds(3)
    kept.put(3, data)
    assert kept.get(3, crc32c(data)) == data


def test_processes_killed_at_any_moment_leave_whole_samples_only() -> None:
    kept = sample_cache.share_cache("killed at random", 200, 1, 1 << 30)
    draw = random.Random(0)
    for seed in range(12):
        process = FORK.Process(target=_fill, args=(kept, seed))
        process.start()
        time.sleep(draw.uniform(0, 0.02))
        process.kill()
        process.join()
    contents = [_content(slot) for slot in range(200)]
    for slot, data in enumerate(contents):
        assert kept.get(slot, crc32c(data)) in (None, data)
        kept.put(slot, data)
    assert [kept.get(slot, crc32c(data)) for slot, data in enumerate(contents)] == contents


def test_half_a_sample_behind_a_slot_is_a_miss() -> None:
    kept = sample_cache.share_cache("half", 4, 1, 1_000_000)
    data = _content(9)
    kept.put(1, data)
    kept._numbers[2 * (sample_cache._ROWS + 1) + 1] = len(data) - 1
    assert kept.get(1, crc32c(data)) is None


def test_without_memfd_an_unnamed_file_does(
    pack: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    expected = _expected(pack)
    ds = _dataset(pack, cache_bytes=1_000_001)
    loader = _loader(ds, "spawn")
    for _ in range(2):
        assert torch.equal(_images(loader), expected)
    assert (_kept(ds).hits, _kept(ds).misses) == (25, 25)
    assert not [p for p in tmp_path.iterdir() if p.name != "cache"]


def test_a_wish_beyond_memory_is_told(pack: pathlib.Path) -> None:
    with pytest.warns(UserWarning, match="are available"):
        _dataset(pack, cache_bytes=1 << 60)


_MOUNTS = (
    subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode == 0
)
needs_mounts = pytest.mark.skipif(not _MOUNTS, reason="mounting needs root and unshare")

_IN_LITTLE_SHM = """
mount -t tmpfs -o size=2m tmpfs /dev/shm || exit 99
"$@"; echo $?; ls -A /dev/shm
"""

_PROGRAM = """
import os, signal, sys
import packio
from torch.utils.data import DataLoader

if __name__ == "__main__":
    if sys.argv[3] == "no memfd":
        del os.memfd_create
    ds = packio.PackDataset(sys.argv[1], cache="ram", fields=("index", "image"),
                            crop=packio.CenterCrop(4), threads=1)
    workers = DataLoader(ds, batch_size=2, num_workers=2, collate_fn=len, persistent_workers=True,
                         multiprocessing_context=sys.argv[2])
    assert [sum(workers) for _ in range(2)] == [len(ds)] * 2
    kept = ds.ram
    assert kept.hits + kept.misses == 2 * len(ds), kept
    if sys.argv[3] == "memfd":
        assert kept.held_bytes > 2 << 20, kept  # more than /dev/shm has
        assert kept.hits == len(ds), kept
    else:
        assert kept.room <= 2 << 20, kept
    os.kill(os.getpid(), signal.SIGKILL)
"""


@needs_mounts
@pytest.mark.parametrize(
    ("method", "how"),
    [
        ("fork", "memfd"), pytest.param("spawn", "memfd", marks=pytest.mark.long),
        ("fork", "no memfd"),
    ],
)  # fmt: skip
def test_little_shared_memory_is_enough_and_stays_clean_after_a_kill(
    tmp_path: pathlib.Path, method: str, how: str
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 256, 340, 3), np.uint8)
    packio.pack([{"image": image} for image in pixels], tmp_path / "x.tar", encode="bmp")
    (tmp_path / "program.py").write_text(_PROGRAM)
    program = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "x.tar"), method, how]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", _IN_LITTLE_SHM, "sh", *program],
        check=False, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    if done.returncode == 99:
        pytest.skip("no tmpfs may be mounted")
    status, *left = done.stdout.splitlines()
    assert status == "137", done.stderr
    assert not [name for name in left if not name.startswith("sem.")]  # multiprocessing's own


def test_a_pack_at_a_url_is_fetched_once(
    s3: Proxy, image_folder: pathlib.Path, pack: pathlib.Path, keep: dict[str, Any]
) -> None:
    expected = _expected(pack)
    packio.pack(image_folder, f"s3://{s3.bucket}/kept.tar")
    ds = _dataset(f"s3://{s3.bucket}/kept.tar", **keep)
    loader = _loader(ds, "fork")
    assert torch.equal(_images(loader), expected)
    assert _kept(ds).held_samples == len(ds)
    s3.log.clear()
    assert torch.equal(_images(loader), expected)
    batch, _ = packio.collate(ds.__getitems__(range(len(ds))))
    assert torch.equal(batch, expected)
    assert not s3.log


def test_options_that_cannot_be_meant_are_refused(pack: pathlib.Path) -> None:
    for options in ({"cache": "disk"}, {"cache": None, "cache_bytes": 5}, {"cache_bytes": 0},
                    {"cache_bytes": "8GB"}):  # fmt: skip
        with pytest.raises(OptionError, match="cache"):
            _dataset(pack, **options)
