"""Slices: what the core reads, checks and makes in one call is what others make one by one."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import resource
import shutil
from collections.abc import Callable
from typing import Any

import google_crc32c
import leftovers
import numpy as np
import pytest
import torch
from PIL import Image

import packio
from packio.errors import IntegrityError, OptionError, PackioError
from packio.images import native
from packio.index import indexfile
from packio.packing import assembly
from packio.storage import local

pytestmark = pytest.mark.skipif(bool(native.why_not()), reason="the core is not compiled")

FORMATS = ("lmdb", "hdf5", "tfrecord", "pth", "recordio", "tar")
CROPS: dict[str, dict[str, Any]] = {
    "random": {"crop": packio.RandomResizedCrop(48), "hflip": 0.5, "vflip": 0.3},
    "center": {"crop": packio.ResizeCenterCrop(40)},
    "bicubic": {"crop": packio.ResizeCenterCrop((40, 64), interpolation="bicubic")},
    "area": {"crop": packio.Resize((40, 64), interpolation="area"), "hflip": 0.5},
    "border": {"crop": packio.RandomCrop(280, padding=9)},
    "gray": {"crop": packio.RandomResizedCrop(32), "mode": "GRAY"},
    "stored": {"crop": packio.RandomResizedCrop(32), "exif_orientation": False},
}


class _MakeNone:
    """Leaves each sample to the caller, as `native.Slices` does with what the core declines."""

    def __init__(self, _: np.ndarray, __: np.ndarray, numbers: np.ndarray, **___: bytes) -> None:
        self._left, self.count = numbers.tolist(), len(numbers)

    def is_done(self) -> bool:
        return not self._left

    def make(self) -> list[int]:
        return [self._left.pop() for _ in self._left[:16]]


@pytest.fixture(scope="module")
def packs(
    image_folder: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, pathlib.Path]:
    """Photographs of all kinds, in files of each format."""
    folder = tmp_path_factory.mktemp("slices")
    raw = packio.pack(image_folder, folder / "raw.tar", encode="raw", shards=2).out
    return {"raw": raw} | {
        name: packio.pack(image_folder, folder / name, format=name, shards=2).out
        for name in FORMATS
    }


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many samples the core was given in each batch."""
    counts: list[int] = []

    class Counted(native.Slices):
        def __init__(self, samples: Any, requests: Any, numbers: np.ndarray, **more: Any) -> None:
            counts.append(len(numbers))
            super().__init__(samples, requests, numbers, **more)

    monkeypatch.setattr(native, "Slices", Counted)
    return counts


@pytest.mark.parametrize("crop", CROPS)
@pytest.mark.parametrize("name", [*FORMATS, "raw"])
def test_the_pixels_are_those_of_another_decoder(
    name: str, crop: str, packs: dict[str, pathlib.Path], made: list[int]
) -> None:
    options = {**CROPS[crop], "seed": 5}
    ours = packio.PackDataset(packs[name], decoder="native", threads=3, **options)
    other = packio.PackDataset(packs[name], decoder="simplejpeg", threads=1, **options)
    everything = list(range(len(ours)))
    for indices in (everything, everything[::-1], [3, 3, 0, 7, 3], everything * 3):
        assert torch.equal(ours.gather(indices)[0], other.gather(indices)[0])
    least = {"gray": 0 if name == "raw" else 1}  # few are stored gray, no raw ones
    assert sum(made) >= least.get(crop, len(ours) + 1)


_STEPS = [packio.RandAugment(2, 9), packio.GaussianBlur(5), packio.RandomRotation(20)]
_FLOATS = packio.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("steps", [_STEPS, []], ids=["steps", "plain"])
@pytest.mark.parametrize("name", ["tar", "raw"])
def test_images_are_finished_as_those_of_another_decoder(
    name: str, steps: list[Any], dtype: torch.dtype, packs: dict[str, pathlib.Path], made: list[int]
) -> None:
    transform = (steps or None) if dtype == torch.uint8 else [*steps, _FLOATS]
    options = {**CROPS["random"], "seed": 5, "transform": transform, "dtype": dtype}
    for more in (
        {},
        {"views": [packio.RandomResizedCrop(48), packio.Resize((20, 24))], "crop": None},
    ):
        own = {**options, **more}
        if more and transform:
            own["transform"] = [transform, transform[-1:]]
        ours = packio.PackDataset(packs[name], decoder="native", threads=3, **own)
        other = packio.PackDataset(packs[name], decoder="simplejpeg", threads=1, **own)
        everything = [*range(len(ours)), 3, 3, 0]
        first, second = (ds.gather(everything) for ds in (ours, other))
        views = [(first[0], second[0])] if not more else list(zip(first[0], second[0], strict=True))
        for a, b in views:
            assert a.dtype == dtype
            assert torch.equal(a, b)
    assert sum(made) > len(ours)


def test_pixels_go_where_they_are_wanted(packs: dict[str, pathlib.Path], made: list[int]) -> None:
    options: dict[str, Any] = {"crop": packio.ResizeCenterCrop(40)}
    ds = packio.PackDataset(packs["tar"], decoder="native", **options)
    other = packio.PackDataset(packs["tar"], decoder="simplejpeg", **options)
    out = torch.full((10, 3, 40, 40), 77, dtype=torch.uint8)
    ds.gather(range(8), out=out[1:9])
    assert torch.equal(out[1:9], other.gather(range(8))[0])
    assert (out[0] == 77).all()
    assert (out[9] == 77).all()
    assert made


@pytest.mark.parametrize("crop", ["random", "center", "bicubic", "area"])
def test_fast_pixels_are_those_that_are_made_one_by_one(
    crop: str, packs: dict[str, pathlib.Path], made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = packio.PackDataset(
        packs["lmdb"], decoder="native", fidelity="fast", seed=1, **CROPS[crop]
    )  # fmt: skip
    order = list(range(len(ds)))
    found = ds.gather(order)[0]
    assert sum(made) > len(ds) // 2
    monkeypatch.setattr(native, "Slices", _MakeNone)
    assert torch.equal(found, ds.gather(order)[0])


def test_what_the_core_declines_is_made_and_counted_once(
    packs: dict[str, pathlib.Path], made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def declined(*, by_slices: bool) -> Any:
        ds = packio.PackDataset(packs["tar"], crop=packio.RandomResizedCrop(32), seed=2)
        with monkeypatch.context() as patched:
            if not by_slices:
                patched.setattr(native, "Slices", _MakeNone)
            return ds.gather(range(len(ds)))[0], dict(ds.declined)

    (pixels, counts), (wanted, wanted_counts) = declined(by_slices=True), declined(by_slices=False)
    assert torch.equal(pixels, wanted)
    assert counts == wanted_counts != {}
    assert made


def _spoil(path: pathlib.Path, what: bytes) -> None:
    """Change a byte in the middle of some bytes of a file."""
    data = path.read_bytes()
    at = data.index(what) + len(what) // 2
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 0x55]))


def test_a_damaged_sample_is_named_and_no_other(
    image_folder: pathlib.Path, tmp_path: pathlib.Path, made: list[int]
) -> None:
    out = packio.pack(image_folder, tmp_path / "x.tar").out
    with packio.open(out) as pack:
        bad = next(i for i in range(4, len(pack)) if pack.row(i).encoding == "jpeg")
        key, data = pack.key(bad), pack.read(pack.row(bad))
    _spoil(out, data)
    ds = packio.PackDataset(out, decoder="native", crop=packio.RandomResizedCrop(32), seed=0)
    with pytest.raises(IntegrityError, match=f"{key}.*CRC32C differs"):
        ds.gather(range(len(ds)))
    good = [i for i in range(len(ds)) if i != bad]
    assert len(ds.gather(good)[0]) == len(good)
    assert made


def test_files_that_change_under_the_reader_are_told_of(
    image_folder: pathlib.Path, tmp_path: pathlib.Path, made: list[int]
) -> None:
    out = packio.pack(image_folder, tmp_path / "x", format="tar", shards=2).out
    ds = packio.PackDataset(out, decoder="native", crop=packio.RandomResizedCrop(32), seed=0)
    ds.gather(range(len(ds)))
    shard = min(out.glob("*.tar"))
    with shard.open("r+b") as file:
        file.truncate(5000)
    with pytest.raises(IntegrityError, match="tar: 5000 bytes, the index says"):
        ds.gather(range(len(ds)))
    ds.pack.storage.close()
    shard.unlink()
    with pytest.raises(PackioError, match="No such file"):
        ds.gather(range(len(ds)))
    assert made


@pytest.mark.parametrize("number", [7, 1 << 31, (1 << 32) - 1])
def test_a_file_that_there_is_not_is_an_error(
    number: int, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = packio.pack(image_folder, tmp_path / "x.tar").out
    with packio.open(out) as pack:
        columns, metadata = dict(assembly.columns_of(pack.index_file)), dict(pack.metadata)
        path = pathlib.Path(pack.index_file.path)
    columns["image/file"] = columns["image/file"].astype(np.uint32)
    columns["image/file"][5] = number
    indexfile.write(path, columns, metadata)
    ds = packio.PackDataset(out, decoder="native", crop=packio.RandomResizedCrop(32), seed=0)
    with pytest.raises(IntegrityError, match=f"no file {number}"):
        ds.gather(range(len(ds)))


def test_more_files_than_may_stay_open(
    image_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    made: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local, "_LEAST_OPEN", 2)
    monkeypatch.setattr(local, "spare_descriptors", lambda: 2)
    out = packio.pack(image_folder, tmp_path / "x", format="tar", shards=9).out
    options: dict[str, Any] = {"crop": packio.RandomResizedCrop(32), "seed": 3}
    ours = packio.PackDataset(out, decoder="native", threads=3, **options)
    other = packio.PackDataset(out, decoder="simplejpeg", **options)
    order = list(range(len(ours))) * 4
    assert torch.equal(ours.gather(order)[0], other.gather(order)[0])
    assert made


@pytest.mark.parametrize("avx2", [0, 1])
def test_checksums_are_those_of_another_library(avx2: int) -> None:
    library = native._library()
    assert not isinstance(library, str)
    library.packio_crc32c.argtypes = [ctypes.c_char_p, ctypes.c_int64]
    library.packio_crc32c.restype = ctypes.c_uint32
    data = np.random.default_rng(avx2).integers(0, 256, 40_000, np.uint8).tobytes()
    lengths = [*range(80), *range(3060, 3100), *range(6140, 6150), 9216, 39_000]
    library.packio_choose(avx2)
    try:
        for length in lengths:
            for start in (0, 1, 7):
                part = data[start : start + length]
                assert library.packio_crc32c(part, length) == google_crc32c.value(part), length
    finally:
        library.packio_choose(1)


@pytest.mark.parametrize("crop", CROPS)
def test_files_of_a_folder_are_read_by_the_core_too(
    crop: str, image_folder: pathlib.Path, made: list[int]
) -> None:
    options = {**CROPS[crop], "seed": 5}
    ours = packio.FolderDataset(image_folder, decoder="native", threads=3, **options)
    other = packio.FolderDataset(image_folder, decoder="simplejpeg", threads=1, **options)
    everything = list(range(len(ours)))
    for indices in (everything, everything[::-1], [3, 3, 0, 7, 3], everything * 3):
        assert torch.equal(ours.gather(indices)[0], other.gather(indices)[0])
    assert sum(made) > (0 if crop == "gray" else len(ours))


def _longer(path: pathlib.Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def _shorter(path: pathlib.Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _fifo(path: pathlib.Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: pathlib.Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_longer, "more bytes, it had"),
        (_shorter, "bytes, it had"),
        (pathlib.Path.unlink, "No such file"),
        (_fifo, "Illegal seek"),
        (_folder, "Is a directory"),
    ],
)
def test_a_file_of_a_folder_that_changed_is_named(
    change: Callable[[pathlib.Path], None], said: str, image_folder: pathlib.Path,
    tmp_path: pathlib.Path, made: list[int],
) -> None:  # fmt: skip
    folder = shutil.copytree(image_folder, tmp_path / "folder")
    ds = packio.FolderDataset(
        folder, decoder="native", crop=packio.RandomResizedCrop(32), seed=0, threads=2
    )
    bad = next(i for i in range(4, len(ds)) if ds.pack.row(i).encoding == "jpeg")
    change(folder / ds.pack.key(bad))
    for _ in range(2):
        with pytest.raises(IntegrityError, match=f"{ds.pack.key(bad)}: .*{said}"):
            ds.gather(range(len(ds)))
    good = [i for i in range(len(ds)) if i != bad]
    other = packio.FolderDataset(
        image_folder, decoder="simplejpeg", crop=packio.RandomResizedCrop(32), seed=0
    )
    assert torch.equal(ds.gather(good)[0], other.gather(good)[0])
    is_open = leftovers.descriptors_below(folder)
    with pytest.raises(IntegrityError):
        ds.gather(range(len(ds)))
    assert torch.equal(ds.gather(good)[0], other.gather(good)[0])
    assert leftovers.descriptors_below(folder) == is_open
    assert sum(made) > 5 * len(good) // 2


VIEWS: dict[str, list[Any]] = {
    "two": [packio.RandomResizedCrop(48), packio.RandomResizedCrop(32, scale=(0.02, 0.3))],
    "ten": [*[packio.RandomResizedCrop(40, scale=(0.3, 1))] * 2,
            *[packio.RandomResizedCrop(16, scale=(0.02, 0.3))] * 8],
    "sixteen": [packio.RandomResizedCrop(16)] * 16,
    "ways": [packio.ResizeCenterCrop(40), packio.CenterCrop(20), packio.Resize((24, 40))],
}  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"seek_points": False}], ids=str)
@pytest.mark.parametrize("views", VIEWS)
def test_several_views_are_those_of_another_decoder(
    views: str, options: dict[str, Any], image_folder: pathlib.Path, tmp_path: pathlib.Path,
    made: list[int],
) -> None:  # fmt: skip
    out = packio.pack(image_folder, tmp_path / "x.tar", **options).out
    given: dict[str, Any] = {
        "views": VIEWS[views], "seed": 4, "hflip": 0.5, "fields": "image",
    }  # fmt: skip
    ours = packio.PackDataset(out, decoder="native", threads=2, **given)
    other = packio.PackDataset(out, decoder="simplejpeg", threads=1, **given)
    everything = list(range(len(ours)))
    for indices in (everything, everything[::-1], [3, 3, 0, 7, 3]):
        for found, wanted in zip(ours.gather(indices), other.gather(indices), strict=True):
            assert torch.equal(found, wanted)
    assert sum(made) > len(ours)


def test_fast_views_are_those_that_are_made_one_by_one(
    packs: dict[str, pathlib.Path], made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = packio.PackDataset(
        packs["lmdb"], decoder="native", fidelity="fast", seed=1, views=VIEWS["ten"],
        fields="image",
    )  # fmt: skip
    order = list(range(len(ds)))
    found = ds.gather(order)
    assert sum(made) > 0
    monkeypatch.setattr(native, "Slices", _MakeNone)
    for ours, wanted in zip(found, ds.gather(order), strict=True):
        assert torch.equal(ours, wanted)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("shards", [22, 16])
def test_a_batch_of_many_shards_opens_few_at_a_time(
    shards: int, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    packio.pack(image_folder, tmp_path / "x.tar", shards=shards)
    ds = packio.PackDataset(tmp_path / "x.tar", crop=packio.ResizeCenterCrop(40), threads=1)
    expected = ds.gather(range(len(ds)))[0]
    ds.pack.close()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 64, limits[1]))
    held: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(8):
            os.close(held.pop())
        assert torch.equal(ds.gather(range(len(ds)))[0], expected)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in held:
            os.close(descriptor)


@pytest.mark.parametrize("shards", [3, None])
def test_an_error_that_is_kept_keeps_no_file_open(
    shards: int | None, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    count = shards or len(list(image_folder.rglob("*.*")))
    packio.pack(image_folder, tmp_path / "x.tar", shards=count)
    ds = packio.PackDataset(tmp_path / "x.tar", crop=packio.ResizeCenterCrop(40), threads=1)
    (tmp_path / "x.tar" / f"x-{count - 1:05d}.tar").rename(tmp_path / "gone")
    before = _descriptors()
    with pytest.raises(PackioError) as error:
        ds.gather(range(len(ds)))
    ds.pack.close()
    assert _descriptors() == before
    assert error.value.__traceback__ is not None


def test_whole_images_of_one_size_are_one_tensor(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").mkdir()
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 256, (9, 24, 40, 3), np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / "a" / f"{number}.{'png' if number % 3 else 'jpg'}")
    packio.pack(tmp_path / "a", tmp_path / "x.lmdb")
    ds = packio.PackDataset(tmp_path / "x.lmdb", hflip=0.5, seed=1)
    drawn = [packio.PackDataset(tmp_path / "x.lmdb")[i][0] for i in range(9)]
    for size in (9, 2):  # columns are computed for four and more
        out = torch.zeros(size, 3, 24, 40, dtype=torch.uint8)
        assert ds.gather(range(size), out=out)[0] is out
        for image, whole in zip(out, drawn, strict=False):
            assert torch.equal(image, whole) or torch.equal(image, whole.flip(2))
        samples = ds.__getitems__(list(range(size)))
        assert len({image.untyped_storage().data_ptr() for (image,) in samples}) == 1


def test_whole_images_of_several_sizes_are_a_list(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(6):
        Image.new("RGB", (30 + number % 2, 20), (number, 0, 0)).save(
            tmp_path / "a" / f"{number}.png"
        )
    packio.pack(tmp_path / "a", tmp_path / "x.lmdb")
    ds = packio.PackDataset(tmp_path / "x.lmdb")
    assert [tuple(image.shape) for image in ds.gather(range(3))[0]] == [
        (3, 20, 30), (3, 20, 31), (3, 20, 30)
    ]  # fmt: skip
    assert ds.gather([0, 2, 4])[0].shape == (3, 3, 20, 30)
    with pytest.raises(OptionError, match="the images may differ in size"):
        ds.gather(range(6), out=torch.zeros(6, 3, 20, 30, dtype=torch.uint8))
