"""FolderDataset: what a pack of the same folder gives, from a listing kept and refreshed."""

from __future__ import annotations

import os
import pickle
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import leftovers
import made
import pytest
import torch
from PIL import Image

import packio
from packio import registry
from packio.datasets import folders
from packio.errors import (
    BadImagesError,
    CannotCreateError,
    IntegrityError,
    NotAPackError,
    OptionError,
    SourceError,
)
from packio.formats import Reading
from packio.packing.run import reading

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def folder(image_folder: Path, tmp_path: Path) -> Path:
    """An image folder that may be changed."""
    return Path(shutil.copytree(image_folder, tmp_path / "photos"))


@pytest.fixture
def files_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many files each listing has read."""
    counts: list[int] = []
    real = reading.read_ahead

    def counting(listing: Any, positions: range, *, threads: int) -> Any:
        counts.append(len(positions))
        return real(listing, positions, threads=threads)

    monkeypatch.setattr(folders, "read_ahead", counting)
    return counts


def image(colour: str, size: tuple[int, int] = (30, 20)) -> bytes:
    return made.saved(Image.new("RGB", size, colour), "PNG", compress_level=0)


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    found = [folder, *folder.rglob("*")]
    return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in found}


def test_samples_labels_and_facts_equal_a_packs(image_folder: Path, tmp_path: Path) -> None:
    packio.pack(image_folder, tmp_path / "photos.lmdb")
    ours, packed = packio.FolderDataset(image_folder), packio.LmdbDataset(tmp_path / "photos.lmdb")
    assert len(ours) == len(packed) == 25
    assert ours.classes == packed.classes
    assert ours.class_to_idx == packed.class_to_idx
    assert list(ours.pack.keys()) == list(packed.pack.keys())
    assert ours.targets is not None
    assert packed.targets is not None
    assert ours.targets.tolist() == packed.targets.tolist()
    for i in range(25):
        assert torch.equal(ours[i][0], packed[i][0])
        assert ours.pack[i] == packed.pack[i]


def test_the_listing_is_read_once_and_kept(folder: Path, files_read: list[int]) -> None:
    first = packio.FolderDataset(folder)
    again = packio.FolderDataset(folder)
    assert files_read == [25]
    assert first.pack.digest == again.pack.digest


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_opening_again_opens_no_image(folder: Path, tmp_path: Path) -> None:
    packio.FolderDataset(folder)
    code = f"import packio; print(len(packio.FolderDataset({str(folder)!r})))"
    log = tmp_path / "log"
    command = ["strace", "-f", "--seccomp-bpf", "-e", "trace=open,openat", "-o", str(log)]
    command += [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "ptrace" in done.stderr:
        pytest.skip("processes may not be traced here")
    assert done.stdout == "25\n", done.stderr
    opened = log.read_text()
    assert "nature" in opened  # the folder itself is listed
    assert "00.jpg" not in opened


def test_only_changed_and_new_files_are_read_again(folder: Path, files_read: list[int]) -> None:
    packio.FolderDataset(folder)
    changed = folder / "nature" / "plain.png"
    changed.write_bytes(image("red"))
    (folder / "people" / "new.png").write_bytes(image("blue"))
    (folder / "machines" / "cmyk.jpg").unlink()
    ds = packio.FolderDataset(folder)
    assert files_read == [25, 2]
    assert len(ds) == 25
    assert ds.by_key("nature/plain.png")[0][:, 0, 0].tolist() == [255, 0, 0]
    assert ds.by_key("people/new.png")[0][:, 0, 0].tolist() == [0, 0, 255]
    assert "machines/cmyk.jpg" not in list(ds.pack.keys())
    fresh = packio.FolderDataset(shutil.copytree(folder, folder.with_name("copy")))
    for i in range(25):
        assert ds.pack[i] == fresh.pack[i]


def test_a_change_that_keeps_the_size_is_noticed(folder: Path, files_read: list[int]) -> None:
    path = folder / "nature" / "new.png"
    path.write_bytes(image("red"))
    packio.FolderDataset(folder)
    before = path.stat()
    path.write_bytes(image("lime"))
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    ds = packio.FolderDataset(folder)
    assert files_read == [26, 1]
    assert ds.by_key("nature/new.png")[0][:, 0, 0].tolist() == [0, 255, 0]


def test_a_new_class_moves_the_labels(folder: Path, files_read: list[int]) -> None:
    packio.FolderDataset(folder)
    (folder / "animals").mkdir()
    (folder / "animals" / "cat.png").write_bytes(image("red"))
    ds = packio.FolderDataset(folder)
    assert files_read == [25, 1]
    assert ds.classes == ["animals", "machines", "nature", "people"]
    assert all(ds.classes[ds[i][1]] == ds.pack.key(i).split("/")[0] for i in range(len(ds)))


def test_a_removed_file_alone_reads_nothing(folder: Path, files_read: list[int]) -> None:
    packio.FolderDataset(folder)
    (folder / "nature" / "plain.png").unlink()
    assert len(packio.FolderDataset(folder)) == 24
    assert files_read == [25, 0]


def test_a_damaged_index_is_made_anew(folder: Path, own_cache: Path, files_read: list[int]) -> None:
    packio.FolderDataset(folder)
    (index,) = (own_cache / "folders").glob("*/*.packio")
    index.write_bytes(index.read_bytes()[:-9])
    assert len(packio.FolderDataset(folder)) == 25
    assert files_read == [25, 25]


def test_nothing_is_written_beside_the_images(folder: Path, own_cache: Path) -> None:
    before = contents(folder)
    packio.FolderDataset(folder)[0]
    assert contents(folder) == before
    assert len(list((own_cache / "folders").glob("*/*.packio"))) == 1


def test_a_read_only_folder_is_read(folder: Path) -> None:
    paths = [folder, *folder.rglob("*")]
    for path in paths:
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        assert len(packio.FolderDataset(folder)) == 25
    finally:
        for path in paths:
            path.chmod(path.stat().st_mode | stat.S_IWUSR)


def test_a_cache_that_cannot_be_written_is_an_error_that_names_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(CannotCreateError, match="PACKIO_CACHE_DIR"):
        packio.FolderDataset(folder)


def test_bad_images_raise_and_are_all_named(folder: Path, files_read: list[int]) -> None:
    (folder / "nature" / "text.jpg").write_text("no image")
    (folder / "people" / "empty.png").touch()
    for _ in range(2):
        with pytest.raises(BadImagesError, match="bad images: 2") as raised:
            packio.FolderDataset(folder)
        assert [key for key, _ in raised.value.skipped] == ["nature/text.jpg", "people/empty.png"]
    assert files_read == [27]  # what was found is kept, also where it is bad


def test_bad_images_are_left_out_with_a_warning_under_skip(folder: Path) -> None:
    good = packio.FolderDataset(folder)
    (folder / "nature" / "aaa.jpg").write_text("no image")
    (folder / "nature" / "dangling.png").symlink_to("nowhere")
    for _ in range(2):
        with pytest.warns(UserWarning, match="2 bad images are left out"):
            ds = packio.FolderDataset(folder, on_error="skip")
        assert list(ds.pack.keys()) == list(good.pack.keys())
        assert all(torch.equal(ds[i][0], good[i][0]) for i in range(25))
    assert ds.pack.metadata["counts"] == {"found": 27, "packed": 25, "skipped": 2}


def test_a_folder_of_nothing_but_bad_images_raises_under_skip_too(tmp_path: Path) -> None:
    (tmp_path / "root" / "class").mkdir(parents=True)
    (tmp_path / "root" / "class" / "text.jpg").write_text("no image")
    with pytest.raises(BadImagesError, match=r"class/text\.jpg"):
        packio.FolderDataset(tmp_path / "root", on_error="skip")


def test_a_mended_image_comes_back(folder: Path, files_read: list[int]) -> None:
    path = folder / "nature" / "text.jpg"
    path.write_text("no image")
    with pytest.raises(BadImagesError):
        packio.FolderDataset(folder)
    path.write_bytes(image("red"))
    assert len(packio.FolderDataset(folder)) == 26
    assert files_read == [26, 1]


def test_a_file_changed_under_an_open_dataset_is_an_error(folder: Path) -> None:
    ds = packio.FolderDataset(folder)
    path = folder / ds.pack.key(3)
    data = path.read_bytes()
    for changed, found in ((data + b"x", "more bytes"), (data[:-1], f"{len(data) - 1} bytes")):
        path.write_bytes(changed)
        with pytest.raises(IntegrityError, match=found):
            ds[3]
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(IntegrityError, match="CRC32C"):
        ds[3]
    path.unlink()
    with pytest.raises(IntegrityError, match="No such file"):
        ds[3]
    os.mkfifo(path)
    with pytest.raises(IntegrityError, match="Illegal seek"):  # and does not wait for a writer
        ds[3]


def test_skip_replaces_a_file_that_was_changed(folder: Path) -> None:
    options: dict[str, Any] = {"crop": packio.CenterCrop(16), "fields": ("image", "index")}
    ds = packio.FolderDataset(folder, on_error="skip", **options)
    (folder / ds.pack.key(5)).unlink()
    with pytest.warns(UserWarning, match="No such file"):
        samples = ds.__getitems__([4, 5, 6])
    assert [index for _, index in samples] == [4, 6, 6]


def test_a_dataset_pickles_small_and_keeps_its_listing(folder: Path) -> None:
    ds = packio.FolderDataset(folder)
    dumped = pickle.dumps(ds)
    assert len(dumped) < 16_500
    assert torch.equal(pickle.loads(dumped)[3][0], ds[3][0])
    (folder / "nature" / "new.png").write_bytes(image("red"))
    packio.FolderDataset(folder)
    assert len(ds) == 25  # the open one keeps what it has
    assert ds[24][0].shape[0] == 3
    again = pickle.loads(dumped)  # as the workers of its next epoch
    assert len(again) == 25
    assert torch.equal(again[24][0], ds[24][0])


def test_the_cache_keeps_some_listings_of_a_folder(folder: Path, own_cache: Path) -> None:
    datasets = []
    for i in range(10):
        (folder / "nature" / f"new{i}.png").write_bytes(image("red"))
        datasets.append(packio.FolderDataset(folder))
    assert len(list((own_cache / "folders").glob("*/*.packio"))) == 8
    assert [len(pickle.loads(pickle.dumps(ds))) for ds in datasets[2:]] == list(range(28, 36))


def test_the_oldest_listing_is_made_anew_and_kept(folder: Path, own_cache: Path) -> None:
    first = packio.FolderDataset(folder)
    (oldest,) = (own_cache / "folders").glob("*/*.packio")
    new = min(folder.rglob("*.png")).with_name("new.png")
    for number in range(7):
        new.write_bytes(image("red", (30 + number, 20)))
        packio.FolderDataset(folder)
    new.unlink()
    with oldest.open("wb"):  # the state of the beginning, whose index is empty now
        os.utime(oldest, (0, 0))
    assert packio.FolderDataset(folder).pack.digest == first.pack.digest


def test_a_relative_path_survives_a_change_of_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    ds = packio.FolderDataset("photos")
    monkeypatch.chdir("/")
    assert torch.equal(pickle.loads(pickle.dumps(ds))[0][0], ds[0][0])


def test_keys_may_be_any_bytes(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/root/gr\xc3\xbcn/\xff \n.png"
    os.makedirs(os.path.dirname(name))
    with open(name, "wb") as file:
        file.write(image("red"))
    ds = packio.FolderDataset(tmp_path / "root", fields=("image", "key"))
    assert ds[0][1] == "grün/\udcff \n.png"
    assert ds.by_key("grün/\udcff \n.png".encode("utf-8", "surrogateescape"))[1] == ds[0][1]


def test_more_files_than_descriptors(tmp_path: Path) -> None:
    (tmp_path / "root" / "class").mkdir(parents=True)
    for i in range(300):
        (tmp_path / "root" / "class" / f"{i:03d}.png").write_bytes(image("red", (4, 4)))
    ds = packio.FolderDataset(tmp_path / "root", threads=4)
    before = leftovers.descriptors_below(tmp_path)
    assert len(ds.__getitems__(range(300))) == 300
    assert leftovers.descriptors_below(tmp_path) <= before + 4


def test_what_is_no_image_folder_is_refused(tmp_path: Path, image_folder: Path) -> None:
    with pytest.raises(SourceError, match="no such folder"):
        packio.FolderDataset(tmp_path / "nowhere")
    with pytest.raises(OptionError, match="access='lmdb'"):
        packio.FolderDataset(image_folder, access="lmdb")
    with pytest.raises(NotAPackError):
        packio.open(image_folder)  # only FolderDataset takes folders


def test_other_files_are_told(folder: Path) -> None:
    (folder / "nature" / "notes.txt").touch()
    with pytest.warns(UserWarning, match=r"\.txt 1"):
        packio.FolderDataset(folder)


def test_processes_that_list_it_together_agree(folder: Path) -> None:
    code = f"import packio; print(packio.FolderDataset({str(folder)!r}).pack.digest)"
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(3)
    ]
    digests = {process.communicate()[0] for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(digests) == 1


def test_the_format_scans_every_file_below_a_folder(image_folder: Path) -> None:
    entries = list(registry.load("formats", "folder").scan(image_folder, Reading()))
    names = [entry.key for entry in entries]
    assert names == sorted(names)
    assert len(names) == 25
    assert all((image_folder / e.image.file).stat().st_size == e.image.length for e in entries)
