"""local_copy= with local_bytes=: samples kept on a disk, shared, checked, never too many."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
from typing import TYPE_CHECKING, Any

import made
import pytest
import torch

import packio
from packio.errors import OptionError
from packio.storage import sample_cache

if TYPE_CHECKING:
    import pathlib

    from range_server import RangeServer


FORK = multiprocessing.get_context("fork")


@pytest.fixture
def pack(image_folder: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    out = tmp_path / "here" / "photos.tar"
    out.parent.mkdir()
    packio.pack(image_folder, out, shards=2)
    return out


def _dataset(path: object, near: Any, size: int = 1 << 30, **options: Any) -> packio.PackDataset:
    given = {"crop": packio.CenterCrop(32), "threads": 1, **options}
    return packio.PackDataset(str(path), local_copy=near, local_bytes=size, **given)


def _kept(ds: packio.PackDataset) -> sample_cache.RamCache:
    assert isinstance(ds.ram, sample_cache.DiskCache)
    return ds.ram


def _all(ds: packio.PackDataset) -> torch.Tensor:
    images: torch.Tensor = ds.gather(range(len(ds)))[0]
    return images


def test_the_second_epoch_is_read_from_the_disk(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    expected = _all(packio.PackDataset(pack, crop=packio.CenterCrop(32)))
    ds = _dataset(pack, tmp_path / "near")
    assert torch.equal(_all(ds), expected)
    assert (_kept(ds).held_samples, _kept(ds).hits) == (25, 0)
    for file in pack.glob("*.tar"):  # nothing is read there any more
        file.write_bytes(bytes(file.stat().st_size))
    assert torch.equal(_all(ds), expected)
    assert _kept(ds).hits == 25


def test_a_later_process_finds_what_was_kept(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    ds = _dataset(pack, tmp_path / "near")
    _all(ds)
    assert (_kept(ds).hits, _kept(ds).misses) == (0, 25)
    code = (
        "import sys, packio\n"
        "ds = packio.PackDataset(sys.argv[1], local_copy=sys.argv[2], local_bytes=1 << 30)\n"
        "for i in range(len(ds)): ds[i]\n"
        "print(ds.ram.hits, ds.ram.misses)\n"
    )
    assert made.in_a_process(code, pack, tmp_path / "near") == "25 25\n"
    (home,) = (tmp_path / "near").iterdir()
    assert home.stat().st_mode & 0o777 == 0o700
    (told,) = home.glob("*.json")
    assert json.loads(told.read_text()) == {"pack": str(pack), "samples": 25, "fields": 1}


def test_damage_is_read_again(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    ds = _dataset(pack, tmp_path / "near")
    expected = _all(ds)
    (path,) = (tmp_path / "near").glob("*/*.samples")
    table = sample_cache.table_bytes(25, 1)
    for at, what in (
        (table + 100, b"\xff" * 5000),  # bytes
        (table - 8, b"\xff" * 8),  # the length of the last sample
        (table - 16, (3).to_bytes(8, "little")),  # its place
        (table - 16, (2**63 - 1).to_bytes(8, "little")),  # where no file reaches
        (table - 16, (2**63 - 50).to_bytes(8, "little") + (1000).to_bytes(8, "little")),
    ):
        with path.open("r+b") as file:
            file.seek(at)
            file.write(what)
        assert torch.equal(_all(ds), expected)
    assert torch.equal(_all(_dataset(pack, tmp_path / "near")), expected)


def test_a_file_that_was_cut_is_made_anew(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    expected = _all(_dataset(pack, tmp_path / "near"))
    (path,) = (tmp_path / "near").glob("*/*.samples")
    os.truncate(path, 1000)
    ds = _dataset(pack, tmp_path / "near")
    assert _kept(ds).held_samples == 0
    assert torch.equal(_all(ds), expected)


def test_a_changed_pack_has_a_cache_of_its_own(
    pack: pathlib.Path, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    _all(_dataset(pack, tmp_path / "near"))
    packio.pack(image_folder, pack, shards=2, overwrite=True, shuffle=1)
    ds = _dataset(pack, tmp_path / "near")
    assert _kept(ds).held_samples == 0
    assert torch.equal(_all(ds), _all(packio.PackDataset(pack, crop=packio.CenterCrop(32))))


def test_a_link_in_its_place_is_not_followed(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    mine = tmp_path / "mine"
    mine.write_bytes(b"precious")
    _dataset(pack, tmp_path / "near")
    (path,) = (tmp_path / "near").glob("*/*.samples")
    path.unlink()
    path.symlink_to(mine)
    with pytest.raises(packio.errors.CannotCreateError):
        _dataset(pack, tmp_path / "near")
    assert mine.read_bytes() == b"precious"


def test_a_full_disk_keeps_less_and_reads_on(
    pack: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _all(packio.PackDataset(pack, crop=packio.CenterCrop(32)))
    write, room = os.write, [40_000]

    def full(file: int, data: bytes) -> int:
        if len(data) < 200:
            return write(file, data)
        part = data[: room[0]]
        room[0] -= len(part)
        if not part:
            raise OSError(28, "No space left on device")
        return write(file, part)

    ds = _dataset(pack, tmp_path / "near")
    monkeypatch.setattr(os, "write", full)
    assert torch.equal(_all(ds), expected)
    monkeypatch.undo()
    assert _kept(ds).held_samples < 25
    assert torch.equal(_all(ds), expected)
    assert _kept(ds).held_samples == 25  # there is room again


def test_without_room_for_its_table_it_is_told_and_read_on(
    pack: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_cache, "free_bytes", lambda _: 100)
    with pytest.warns(UserWarning, match="no room to keep samples"):
        ds = _dataset(pack, tmp_path / "near")
    assert ds.ram is None
    assert len(_all(ds)) == 25


def test_a_process_that_is_killed_leaves_a_cache_that_works(
    pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    def keep_for_ever() -> None:
        ds = _dataset(pack, tmp_path / "near")
        begun.set()
        while True:
            _all(ds)
            _kept(ds)._table()[:] = 0  # so that it keeps samples all the time

    expected = _all(packio.PackDataset(pack, crop=packio.CenterCrop(32)))
    for _ in range(3):
        begun = FORK.Event()
        child = FORK.Process(target=keep_for_ever)
        child.start()
        assert begun.wait(600)
        child.kill()
        child.join()
        assert torch.equal(_all(_dataset(pack, tmp_path / "near")), expected)


def test_two_processes_make_one_cache(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with FORK.Pool(2) as pool:
        given = [(str(pack), str(tmp_path / "near"))] * 6
        assert pool.starmap(_slots, given, chunksize=1) == [25] * 6
    assert len(list((tmp_path / "near").glob("*/*.samples"))) == 1


def _slots(pack: str, near: str) -> int:
    ds = _dataset(pack, near)
    _all(ds)
    return _kept(ds).held_samples


def test_a_pickled_cache_is_found_again_or_done_without(
    pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    ds = _dataset(pack, tmp_path / "near")
    expected = _all(ds)
    text = pickle.dumps(ds)
    again = pickle.loads(text)
    assert torch.equal(_all(again), expected)
    assert _kept(again).hits == 25
    assert "DiskCache" in repr(_kept(again))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"local_bytes": 5}, "needs local_copy="),
        ({"local_bytes": 0, "local_copy": "x"}, "at least 1"),
        ({"local_bytes": 5, "local_copy": "x", "cache": "ram"}, "exclude each other"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: dict[str, Any], text: str, pack: pathlib.Path
) -> None:
    with pytest.raises(OptionError, match=text):
        packio.PackDataset(pack, **options)


def test_a_sample_that_comes_twice_is_not_expected_for_ever(
    web: RangeServer, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    packio.pack(image_folder, web.folder / "x.tar")
    ds = _dataset(f"{web.url}/x.tar", tmp_path / "near")
    expected = _all(packio.PackDataset(web.folder / "x.tar", crop=packio.CenterCrop(32)))
    loader = packio.Loader(ds, 2, sampler=[3, 1, 3, 1, 3, 1, 9, 1])
    assert torch.equal(torch.cat([b[0] for b in loader]), expected[[3, 1, 3, 1, 3, 1, 9, 1]])
    files: Any = ds.pack.storage
    assert not files._flight._coming
    assert files._flight._bytes == 0


def test_a_server_that_dies_is_survived_by_what_is_kept(
    web: RangeServer, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    packio.pack(image_folder, web.folder / "x.tar")
    ds = _dataset(f"{web.url}/x.tar", tmp_path / "near")
    expected = _all(ds)
    web.fault = lambda *_: "404"
    assert torch.equal(_all(ds), expected)
