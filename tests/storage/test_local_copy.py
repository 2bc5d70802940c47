"""local_copy=: a pack copied to this machine once, whole, whatever happens meanwhile."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader

import packio
from packio import registry
from packio.errors import CannotCreateError, IntegrityError, LockedError, OptionError
from packio.packs import caches
from packio.storage.local import LocalStore

if TYPE_CHECKING:
    import pathlib

    from object_store import Proxy

FORMATS = [n for n in registry.names("formats") if registry.load("formats", n).caps.writes]
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def pack(image_folder: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    out = tmp_path / "here" / "photos.tar"
    out.parent.mkdir()
    packio.pack(image_folder, out, shards=2)
    return out


@pytest.fixture
def near(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "near"


def _left(near: pathlib.Path) -> list[str]:
    """What is in the folder of copies, by the ends of the names."""
    (home,) = near.iterdir()
    assert home.stat().st_mode & 0o777 == 0o700
    return sorted(path.suffix for path in home.iterdir())


WHOLE = ["", ".lock"]


def _inodes(near: pathlib.Path) -> dict[str, int]:
    return {str(p): p.stat().st_ino for p in near.rglob("*") if p.suffix != ".lock"}


def _all(ds: packio.PackDataset) -> list[Any]:
    return [(image.tolist(), label) for image, label in map(ds.__getitem__, range(len(ds)))]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shards", [1, 3])
def test_the_copy_is_read_instead_of_the_pack(
    name: str, shards: int, near: pathlib.Path, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / ("x" + registry.load("formats", name).caps.suffixes[0])
    packio.pack(image_folder, out, shards=shards)
    expected = [sample.data for sample in packio.open(out)]
    ds = packio.PackDataset(out, local_copy=near)
    before = _inodes(near)
    for path in tmp_path.glob(f"{out.name}*"):
        path.rename(tmp_path / f"away-{path.name}")
    assert [sample.data for sample in ds.pack] == expected
    assert [s.data for s in torch.load(_saved(ds, tmp_path), weights_only=False).pack] == expected
    for path in tmp_path.glob(f"away-{out.name}*"):
        path.rename(tmp_path / path.name.removeprefix("away-"))
    assert ds.pack.path == out
    assert near in ds.pack.storage.path(0).parents
    packio.PackDataset(out, local_copy=near)
    assert _inodes(near) == before
    assert _left(near) == WHOLE


def _saved(ds: packio.PackDataset, folder: pathlib.Path) -> pathlib.Path:
    torch.save(ds, folder / "dataset")
    return folder / "dataset"


def test_a_containers_own_library_reads_the_copy(
    image_folder: pathlib.Path, near: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    packio.pack(image_folder, tmp_path / "x.lmdb")
    ds = packio.LmdbDataset(tmp_path / "x.lmdb", access="lmdb", local_copy=near)
    expected = _all(packio.LmdbDataset(tmp_path / "x.lmdb"))
    shutil.rmtree(tmp_path / "x.lmdb")
    assert _all(ds) == expected


def test_a_container_of_others_is_copied(
    image_folder: pathlib.Path, near: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    packio.pack(image_folder, tmp_path / "x.tfrecord")
    (tmp_path / "x.tfrecord.packio").unlink()
    expected = _all(packio.TFRecordDataset(tmp_path / "x.tfrecord"))
    ds = packio.TFRecordDataset(tmp_path / "x.tfrecord", local_copy=near)
    (tmp_path / "x.tfrecord").unlink()
    assert _all(ds) == expected


def test_an_image_folder_is_copied(
    image_folder: pathlib.Path, near: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "photos"
    shutil.copytree(image_folder, folder)
    expected = _all(packio.FolderDataset(folder))
    ds = packio.FolderDataset(folder, local_copy=near)
    shutil.rmtree(folder)
    assert _all(ds) == expected


def test_a_pack_at_a_url_is_copied(
    s3: Proxy, image_folder: pathlib.Path, near: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(caches, "_PIECE", 10_000)
    url = f"s3://{s3.bucket}/near.tar"
    packio.pack(image_folder, url, shards=3)
    expected = [sample.data for sample in packio.open(url)]
    s3.reset(0.1)  # of the requests fail once or twice
    ds = packio.TarDataset(url, local_copy=near)
    s3.reset()
    assert [sample.data for sample in ds.pack] == expected
    loader = DataLoader(ds, batch_size=5, num_workers=1, collate_fn=len)
    assert sum(loader) == len(expected)
    assert not [line for line in s3.log if "Range" in line or "bytes=" in line]
    assert _left(near) == WHOLE


def test_home_and_variables_are_replaced(
    pack: pathlib.Path, near: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRATCH_HERE", str(near))
    monkeypatch.setenv("HOME", str(near))
    for folder in ("$SCRATCH_HERE/a", "${SCRATCH_HERE}/a", "~/a"):
        packio.TarDataset(pack, local_copy=folder)
    assert [path.name for path in near.iterdir()] == ["a"]
    with pytest.raises(OptionError, match=r"NOT_SET_AT_ALL.*not set"):
        packio.TarDataset(pack, local_copy="$NOT_SET_AT_ALL/a")


def test_a_changed_pack_is_another_copy(
    pack: pathlib.Path, near: pathlib.Path, image_folder: pathlib.Path
) -> None:
    old = packio.TarDataset(pack, local_copy=near)
    expected = _all(old)
    packio.pack(image_folder, pack, shards=2, limit=7, overwrite=True)
    assert len(packio.TarDataset(pack, local_copy=near)) == 7
    assert _all(old) == expected
    assert _left(near) == sorted(2 * WHOLE)


def test_a_copy_that_lost_a_file_is_made_anew(pack: pathlib.Path, near: pathlib.Path) -> None:
    expected = _all(packio.TarDataset(pack, local_copy=near))
    for damage in (lambda p: p.unlink(), lambda p: os.truncate(p, 5)):
        damage(next(near.rglob("*-00001.tar")))
        assert _all(packio.TarDataset(pack, local_copy=near)) == expected
    assert _left(near) == WHOLE


def test_a_damaged_pack_leaves_no_copy(pack: pathlib.Path, near: pathlib.Path) -> None:
    with next(pack.glob("*-00001.tar")).open("r+b") as file:
        file.seek(700)
        file.write(b"\xff\x00\xff")
    with pytest.raises(IntegrityError, match=r"photos-00001.tar is damaged"):
        packio.TarDataset(pack, local_copy=near)
    assert _left(near) == [".lock"]


def test_anothers_folder_is_refused(pack: pathlib.Path, near: pathlib.Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    (near / "packio-0").mkdir(parents=True)
    os.chown(near / "packio-0", 12345, 12345)
    with pytest.raises(OptionError, match="another user"):
        packio.TarDataset(pack, local_copy=near)


def test_a_folder_that_cannot_be_made_is_an_error(pack: pathlib.Path, near: pathlib.Path) -> None:
    near.write_bytes(b"a file")
    with pytest.raises(CannotCreateError, match="near"):
        packio.TarDataset(pack, local_copy=near)


_PROGRAM = """
import json, os, sys
import packio
ds = packio.TarDataset(sys.argv[1], local_copy=sys.argv[2])
print(json.dumps([os.stat(ds.pack.storage.path(i)).st_ino for i in range(2)] + [len(list(ds))]))
"""


def test_processes_that_begin_together_share_one_copy(
    pack: pathlib.Path, near: pathlib.Path
) -> None:
    command = [sys.executable, "-c", _PROGRAM, str(pack), str(near)]
    ranks = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "LOCAL_RANK": str(i)})
        for i in range(2)
    ]
    said = {rank.communicate()[0] for rank in ranks}
    assert len(said) == 1
    assert json.loads(said.pop())[2] == 25
    assert _left(near) == WHOLE


def _stuck(pack: pathlib.Path, near: pathlib.Path, reads: int) -> Any:
    """A process that makes a copy and stops after so many reads, for ever."""
    ready, told = FORK.Pipe(duplex=False)

    def work() -> None:
        read, done = LocalStore.read, []

        def slow(self: LocalStore, file: int, offset: int, length: int) -> bytes:
            done.append(file)
            if len(done) > reads:
                time.sleep(0.3)  # what was read before is being written
                told.send(None)
                signal.pause()
            return read(self, file, offset, length)

        LocalStore.read = slow  # type: ignore[method-assign]  # in this process only
        caches._THREADS = 1
        packio.TarDataset(pack, local_copy=near)

    process = FORK.Process(target=work)
    process.start()
    ready.recv()
    return process


def test_what_a_killed_process_left_is_made_anew(
    pack: pathlib.Path, near: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches, "_PIECE", 10_000)
    expected = _all(packio.TarDataset(pack))
    for reads in (0, 1, 4):
        process = _stuck(pack, near, reads)
        assert _left(near) == [".lock", ".part"]
        process.kill()
        process.join()
        assert _left(near) == [".lock", ".part"]
    assert _all(packio.TarDataset(pack, local_copy=near)) == expected
    assert _left(near) == WHOLE


def test_waiting_ends_and_says_for_whom(
    pack: pathlib.Path, near: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = _stuck(pack, near, 0)
    monkeypatch.setattr(caches, "_PATIENCE", 0.3)
    with pytest.raises(LockedError, match=f"process {process.pid} on .*copied nothing"):
        packio.TarDataset(pack, local_copy=near)
    process.kill()
    process.join()


def test_a_copy_made_while_waiting_is_used(
    pack: pathlib.Path, near: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder that is slower than anybody's patience, but gets on."""
    monkeypatch.setattr(caches, "_PIECE", 10_000)

    def work() -> None:
        read = LocalStore.read

        def slow(self: LocalStore, file: int, offset: int, length: int) -> bytes:
            time.sleep(0.1)
            return read(self, file, offset, length)

        LocalStore.read = slow  # type: ignore[method-assign]  # in this process only
        packio.TarDataset(pack, local_copy=near)

    process = FORK.Process(target=work)
    process.start()
    while process.is_alive() and not any(near.glob("*/*.part")):
        time.sleep(0.01)
    monkeypatch.setattr(caches, "_fill", None)  # a second copy would fail
    assert len(packio.TarDataset(pack, local_copy=near)) == 25
    process.join()
    assert process.exitcode == 0


_MOUNTS = (
    subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode == 0
)
needs_mounts = pytest.mark.skipif(not _MOUNTS, reason="mounting needs root and unshare")

_ON_A_SMALL_DISK = """
mkdir -p "$1" && mount -t tmpfs -o size=100k tmpfs "$1" || exit 99
shift; "$@"
"""

_FULL = """
import shutil, sys, warnings
import packio
from packio.packs import caches
if sys.argv[3] == "found late":
    caches.shutil.disk_usage = lambda _: shutil._ntuple_diskusage(1 << 40, 0, 1 << 40)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    ds = packio.TarDataset(sys.argv[1], local_copy=sys.argv[2])
assert len(list(ds)) == 25
assert len(told) == 1 and "no room for a copy" in str(told[0].message), told
assert told[0].filename == "<string>", told[0].filename
print(ds.pack.storage.path(0))
import os
print(*sorted(name[-5:] for name in os.listdir(sys.argv[2] + "/packio-%d" % os.geteuid())))
"""


@needs_mounts
@pytest.mark.parametrize("how", ["found early", "found late"])
def test_a_full_disk_is_a_warning_and_the_pack_is_read(
    pack: pathlib.Path, near: pathlib.Path, how: str
) -> None:
    assert sum(path.stat().st_size for path in pack.iterdir()) > 100_000
    program = [sys.executable, "-c", _FULL, str(pack), str(near), how]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", _ON_A_SMALL_DISK, "sh", str(near), *program],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode == 99:
        pytest.skip("no tmpfs may be mounted")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(pack / "photos-00000.tar"), ".lock"]


def test_nothing_is_warned_of_otherwise(pack: pathlib.Path, near: pathlib.Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds = packio.TarDataset(pack, local_copy=near, cache="ram")
    assert _all(ds) == _all(packio.TarDataset(pack))
    assert ds.ram is not None
    assert ds.ram.held_samples == 25


@pytest.mark.parametrize("key", ["../../escaped.jpg", "/{outside}/escaped.jpg"])
def test_keys_that_lead_out_of_the_copy_are_refused(
    key: str, near: pathlib.Path, image_folder: pathlib.Path, tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    ds = packio.FolderDataset(image_folder)
    outside = tmp_path / "outside"
    outside.mkdir()
    hostile = key.format(outside=outside)
    monkeypatch.setattr(type(ds.pack), "keys", lambda pack: [hostile] * len(pack))
    monkeypatch.setattr(type(ds.pack.storage), "read", lambda *_: b"")
    with pytest.raises(IntegrityError, match="nothing was copied"):
        caches.open_copy(ds.pack, near)
    assert list(tmp_path.rglob("escaped.jpg")) == []
