"""Raw pixels all at once: the same tensors, bit for bit, as sample by sample."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import leftovers
import made
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import packio
from packio.errors import IntegrityError, OptionError
from packio.formats.chunks import layout
from packio.images.encodings import RAW
from packio.images.frames import Frame
from packio.images.geometry import Geometry
from packio.index import building
from packio.packs import raw
from packio.system.mapping import MappedFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

_FORMATS = (".h5", ".pth", ".n5", ".zarr", ".lmdb", ".tfrecord", ".rec", ".tar")
_SHAPE = (3, 11, 13)  # no two sides alike
_COUNT = 40
_INDICES = [3, 39, 3, 0, -1, 17, 22, 22, 5, 31]
_MODES = {1: "GRAY", 3: "RGB", 4: "RGB_ALPHA"}


@dataclasses.dataclass(frozen=True)
class _Shifted:
    """A geometry of a user's: no random numbers, a box of its own."""

    interpolation: str = "nearest"
    draws: int = 0
    output_size: tuple[int, int] = (9, 20)

    def frame(self, height: int, width: int, u: Any) -> Frame:
        return Frame(0, 0, height, width, height, width, -2, 5, *self.output_size)


_CROPS: list[Geometry | None] = [
    None, packio.RandomCrop(7), packio.RandomCrop((11, 13)), packio.RandomCrop((11, 13), padding=4),
    packio.RandomCrop((20, 5), padding=1), packio.RandomCrop(3, padding=30), packio.CenterCrop(8),
    packio.CenterCrop((15, 10)), packio.Resize((11, 13)), _Shifted(),
    packio.BucketCrop((30, 20), "center", "pad"),
]  # fmt: skip
_RESIZING: list[Geometry] = [
    packio.RandomResizedCrop(16), packio.Resize(7), packio.ResizeCenterCrop(6),
    packio.RandomResizedCrop((5, 9), interpolation="bicubic"),
    packio.Resize((22, 4), interpolation="nearest"), packio.BucketCrop((8, 13)),
]  # fmt: skip


def raw_samples(
    shape: tuple[int, int, int] = _SHAPE, dtype: str = "uint8", encoding: str = "raw",
    count: int = _COUNT,
) -> list[packio.Sample]:  # fmt: skip
    """Samples of random pixels in the order of an encoding."""
    channels, height, width = shape
    planes, bgr = RAW[encoding]
    images = np.random.default_rng(0).integers(0, 250, (count, *shape)).astype(dtype)
    order = [2, 1, 0, *range(3, channels)] if bgr and channels >= 3 else list(range(channels))
    stored = images[:, order] if planes else images[:, order].transpose(0, 2, 3, 1)
    return [
        packio.Sample(
            i, f"{i:04d}", stored[i].tobytes(), encoding, i, height, width, 1, channels, dtype
        )
        for i in range(count)
    ]


def packed(out: Path, samples: list[packio.Sample], **options: Any) -> Path:
    packio.pack(samples, out, **options)
    return out


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(tmp_path_factory.mktemp("packs") / "a.h5", raw_samples())


def one_by_one(ds: packio.PackDataset) -> packio.PackDataset:
    """A dataset of the same pack and options that maps nothing."""
    other = ds.with_options()
    other.pack = packio.open(ds.pack.path)
    other.pack.__dict__["raw_rows"] = None  # where the property keeps it
    return other


@contextlib.contextmanager
def only_at_once() -> Iterator[None]:
    """Forbid to make images one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packio.batches.images, "make", None)
        yield


def assert_same(ds: packio.PackDataset, indices: list[int] = _INDICES) -> None:
    """Compare what is made at once with what is made sample by sample."""
    expected = one_by_one(ds).__getitems__(indices)
    with only_at_once():
        found = ds.__getitems__(indices)
        gathered = ds.gather(indices)
    assert len(found) == len(expected)
    for (images, label), (expected_images, expected_label) in zip(found, expected, strict=True):
        several = images if isinstance(images, tuple) else (images,)
        expected_several = images if isinstance(images, tuple) else (expected_images,)
        for image, other in zip(several, expected_several, strict=True):
            assert image.dtype == other.dtype
            assert image.is_contiguous()
            assert torch.equal(image, other)
        assert label == expected_label
    if len(ds._settings.views) == 1:
        assert torch.equal(gathered[0], torch.stack([image for image, _ in expected]))
        assert gathered[1].tolist() == [label for _, label in expected]


@pytest.mark.parametrize("suffix", _FORMATS)
@pytest.mark.parametrize("shards", [1, 3])
def test_every_format_gives_the_same_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, shards: int
) -> None:
    monkeypatch.setattr(layout, "_BLOCK_BYTES", 6 * 429)  # six rows to a chunk
    out = packed(tmp_path / f"a{suffix}", raw_samples(), shards=shards)
    for crop in (None, packio.RandomCrop(7), packio.RandomCrop((11, 13), padding=4)):
        assert_same(packio.PackDataset(out, crop=crop, hflip=0.5, vflip=0.3, seed=1))
    assert_same(packio.PackDataset(out), list(range(_COUNT)))


@pytest.mark.parametrize("crop", _CROPS, ids=repr)
@pytest.mark.parametrize(("hflip", "vflip"), [(0, 0), (0.5, 0), (0, 0.5), (0.6, 0.4), (1, 1)])
def test_every_crop_gives_the_same_tensors(
    pack: Path, crop: Geometry | None, hflip: float, vflip: float
) -> None:
    for seed in range(2):
        assert_same(packio.PackDataset(pack, crop=crop, hflip=hflip, vflip=vflip, seed=seed))


@pytest.mark.parametrize("encoding", sorted(RAW))
@pytest.mark.parametrize(
    ("channels", "dtype"),
    [(1, "uint8"), (3, "uint8"), (4, "uint8"), (3, "uint16"), (5, "float32")],
)
def test_every_order_and_type_gives_the_same_tensors(
    tmp_path: Path, encoding: str, channels: int, dtype: str
) -> None:
    out = packed(tmp_path / "a.h5", raw_samples((channels, 11, 13), dtype, encoding))
    modes = ["UNCHANGED"]
    if dtype == "uint8" and channels in _MODES:
        modes.append(_MODES[channels])
    for mode in modes:
        for crop in (None, packio.RandomCrop((9, 12)), packio.RandomCrop((11, 13), padding=2)):
            flips = 0.0 if dtype == "uint16" else 0.5  # torch flips no uint16 one by one
            ds = packio.PackDataset(out, mode=mode, crop=crop, hflip=flips, vflip=flips, seed=4)
            assert_same(ds)
            assert_same(ds.with_options(dtype=torch.float32))
            both = ds.with_options(hflip=1, vflip=1).gather(_INDICES)[0].numpy()
            neither = ds.with_options(hflip=1e-300).gather(_INDICES)[0].numpy()  # as many draws
            assert flips or np.array_equal(both, neither[..., ::-1, ::-1])


def test_several_views_differ_and_are_the_same(pack: Path) -> None:
    views = (packio.RandomCrop(7), None, packio.RandomCrop((11, 13), padding=3))
    ds = packio.PackDataset(pack, views=views, hflip=0.5, seed=2)
    assert_same(ds)
    same = packio.PackDataset(pack, views=[packio.RandomCrop(5)] * 2, seed=0).gather([0] * 8)[0]
    assert not torch.equal(same[0], same[1])


@pytest.mark.parametrize("crop", _RESIZING, ids=repr)
@pytest.mark.parametrize("encoding", sorted(RAW))
def test_what_resizes_reads_the_map_and_is_the_same(
    tmp_path: Path, crop: Geometry, encoding: str
) -> None:
    out = packed(tmp_path / "a.h5", raw_samples(encoding=encoding))
    ds = packio.PackDataset(out, crop=crop, hflip=0.5, seed=3)
    expected = one_by_one(ds).__getitems__(_INDICES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packio.packs.opening.Pack, "read", None)
        found = ds.__getitems__(_INDICES)
    for (image, label), (other, other_label) in zip(found, expected, strict=True):
        assert torch.equal(image, other)
        assert label == other_label


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_wide_pixels_at_odd_places_are_read(tmp_path: Path, dtype: str) -> None:
    samples = raw_samples((1, 5, 7), dtype)
    out = packed(tmp_path / "a.tfrecord", samples)
    ds = packio.PackDataset(out, mode="UNCHANGED", crop=packio.Resize((9, 4)))
    offsets = ds.pack.index_file.column("image/offset").array()
    assert (offsets % 2).any()
    for (image, _), (other, _) in zip(
        ds.__getitems__(range(_COUNT)), one_by_one(ds).__getitems__(range(_COUNT)), strict=True
    ):
        assert torch.equal(image, other)


@pytest.mark.parametrize(("channels", "mode"), [(1, "RGB"), (3, "GRAY"), (3, "RGB_ALPHA")])
def test_other_modes_are_converted_one_by_one(tmp_path: Path, channels: int, mode: str) -> None:
    out = packed(tmp_path / "a.h5", raw_samples((channels, 11, 13)))
    ds = packio.PackDataset(out, mode=mode, crop=packio.CenterCrop(8))
    for (image, _), (other, _) in zip(
        ds.__getitems__(_INDICES), one_by_one(ds).__getitems__(_INDICES), strict=True
    ):
        assert torch.equal(image, other)


def test_a_wide_border_of_small_images_takes_little_memory(tmp_path: Path) -> None:
    """Some images are cropped at a time: as many as fit into 2 MB with their border."""
    path = packed(tmp_path / "a.lmdb", raw_samples((3, 1, 1)))
    ds = packio.LmdbDataset(path, crop=packio.RandomCrop(70, padding=3), hflip=0.5, seed=1)
    tracemalloc.start()
    assert_same(ds)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 50e6


def test_limits_hold(pack: Path) -> None:
    ds = packio.PackDataset(pack, max_pixels=100)
    with pytest.raises(packio.DecodeError, match="the limit is 100"):
        ds.gather([0])


def test_one_sample_is_the_same(pack: Path) -> None:
    ds = packio.PackDataset(pack, crop=packio.RandomCrop(7), hflip=0.5)
    other = one_by_one(ds)
    for i in range(8):
        torch.manual_seed(i)
        image, label = ds[i]
        torch.manual_seed(i)
        expected, expected_label = other[i]
        assert torch.equal(image, expected)
        assert label == expected_label
        image += 1  # a copy: the file is not written to


def test_samples_have_the_pixels_packed(pack: Path) -> None:
    ds = packio.PackDataset(pack)
    for sample, (image, label) in zip(raw_samples(), ds.__getitems__(range(_COUNT)), strict=True):
        assert image.numpy().tobytes() == sample.data
        assert label == sample.label


def test_an_empty_batch_and_a_wrong_index(pack: Path) -> None:
    ds = packio.PackDataset(pack, crop=packio.RandomCrop(7, padding=1), hflip=0.5)
    assert ds.gather([])[0].shape == (0, 3, 7, 7)
    assert packio.PackDataset(pack).gather(np.zeros(0, np.int64))[0].shape == (0, *_SHAPE)
    for wrong in (_COUNT, -_COUNT - 1):
        with pytest.raises(IndexError, match=str(wrong)):
            ds.gather([0, wrong])


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])
def test_loaders_give_the_same_batches(pack: Path, method: str, workers: int) -> None:
    ds = packio.PackDataset(pack, crop=packio.RandomCrop((11, 13), padding=4), hflip=0.5, seed=5)
    ds.gather([0, 1])  # the parent has read first
    expected = [ds.gather(list(range(i, i + 8))) for i in range(0, _COUNT, 8)]
    loader = DataLoader(
        ds, batch_size=8, num_workers=workers, multiprocessing_context=method,
        collate_fn=packio.collate,
    )  # fmt: skip
    for (images, labels), (other, other_labels) in zip(loader, expected, strict=True):
        assert images.is_contiguous()
        assert torch.equal(images, other)
        assert torch.equal(labels, other_labels)


def test_forked_workers_share_what_was_checked(pack: Path) -> None:
    ds = packio.PackDataset(pack)
    rows = ds.pack.raw_rows
    assert rows is not None
    assert not rows._checks._seen.any()
    list(DataLoader(ds, batch_size=8, num_workers=1, multiprocessing_context="fork"))
    assert rows._checks._seen.all()


def test_gathering_writes_into_the_tensor_given(pack: Path) -> None:
    indices = [5, 1, 1]
    for options in ({}, {"dtype": torch.float16}, {"crop": packio.RandomCrop(7), "hflip": 0.5}):
        ds = packio.PackDataset(pack, fields="image", seed=0, **options)
        expected = ds.gather(indices)
        out = torch.empty_like(expected)
        assert ds.gather(indices, out=out) is out
        assert torch.equal(out, expected)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2, *_SHAPE), torch.uint8), ((3, 11, 13, 3), torch.uint8), ((3, *_SHAPE), torch.int8)],
)
def test_a_tensor_that_does_not_fit_is_refused(
    pack: Path, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    ds = packio.PackDataset(pack)
    with pytest.raises(OptionError, match="out="):
        ds.gather([0, 1, 2], out=torch.empty(shape, dtype=dtype))
    strided = torch.empty((3, 11, 13, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    with pytest.raises(OptionError, match="contiguous"):
        ds.gather([0, 1, 2], out=strided)
    with pytest.raises(OptionError, match="out="):
        ds.with_options(transform=torch.clone).gather([0], out=torch.empty(1))


@pytest.mark.parametrize("rows", [1, 4, 100])
@pytest.mark.parametrize("crop", [None, packio.RandomCrop(7), packio.RandomResizedCrop(7)])
def test_a_flipped_bit_is_an_error_that_names_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, crop: Geometry | None
) -> None:
    monkeypatch.setattr(building, "_RAW_BYTES", rows * 429)
    out = packed(tmp_path / "a.h5", raw_samples())
    made.damage(out, 17)
    ds = packio.PackDataset(out, crop=crop)
    for _ in range(2):  # it stays an error
        with pytest.raises(IntegrityError, match=r"a\.h5: record 17 \('0017', 429 bytes at .*CRC"):
            ds.gather([3, 16, 17, 18])
        with pytest.raises(IntegrityError, match="record 17"):
            ds[17]
    assert ds.gather([16, 18, 3])[1].tolist() == [16, 18, 3]  # others of its block are intact
    skipping = ds.with_options(on_error="skip", crop=packio.CenterCrop(11))
    with pytest.warns(UserWarning, match="record 17"):
        images, labels = skipping.gather([16, 17, 18])
    assert labels.tolist() == [16, 18, 18]
    assert torch.equal(images[1], images[2])
    assert skipping.replaced == 1


def test_large_rows_are_checked_without_their_neighbours(tmp_path: Path) -> None:
    out = packed(tmp_path / "a.h5", raw_samples((3, 150, 150), count=6))
    ds = packio.PackDataset(out)
    rows = ds.pack.raw_rows
    assert rows is not None
    assert "raw_crc32c" in ds.pack.index_file
    ds.gather([4])
    assert rows._checks._seen.tolist() == [0, 0, 0, 0, 1, 0]
    made.damage(out, 2)
    with pytest.raises(IntegrityError, match="record 2 "):
        ds.gather([1, 2])


def test_a_pack_without_blocks_is_checked_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building.RawBlocks, "columns", lambda _: {})
    out = packed(tmp_path / "a.h5", raw_samples())
    assert "raw_crc32c" not in packio.open(out).index_file
    assert_same(packio.PackDataset(out, crop=packio.RandomCrop(7), seed=0))
    made.damage(out, 30)
    with pytest.raises(IntegrityError, match="record 30"):
        packio.PackDataset(out).gather([30])


def test_a_file_cut_off_is_an_error_not_a_signal(tmp_path: Path) -> None:
    out = packed(tmp_path / "a.h5", raw_samples())
    pack = packio.open(out)
    os.truncate(out, out.stat().st_size - 429)
    assert pack.raw_rows is None  # it was not mapped yet
    with pytest.raises(IntegrityError, match="truncated"):
        pack.read_many(range(_COUNT))
    with pytest.raises(IntegrityError):
        packio.PackDataset(out)


def test_a_dataset_pickles_and_a_pack_closes(pack: Path) -> None:
    ds = packio.PackDataset(pack, crop=packio.RandomCrop(7), seed=1)
    expected = ds.gather([1, 2])[0]
    again = pickle.loads(pickle.dumps(ds))
    assert torch.equal(again.gather([1, 2])[0], expected)
    ds.pack.close()
    assert torch.equal(ds.gather([1, 2])[0], expected)


def test_no_rows_through_a_library(tmp_path: Path) -> None:
    out = packed(tmp_path / "a.lmdb", raw_samples())
    assert packio.open(out).raw_rows is not None
    ds = packio.PackDataset(out, access="lmdb")
    assert ds.pack.raw_rows is None
    assert torch.equal(ds.gather([3])[0][0], packio.PackDataset(out).gather([3])[0][0])


def test_of_many_files_few_stay_open(tmp_path: Path) -> None:
    sizes = [0, 1, 5000, *[3] * 300]
    paths = [tmp_path / str(i) for i in range(len(sizes))]
    for i, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        path.write_bytes(bytes([i % 256]) * size)
    before = leftovers.descriptors_below(tmp_path)
    mapped = MappedFiles(paths, sizes)
    assert leftovers.descriptors_below(tmp_path) == before + 4
    for i, (start, size) in enumerate(zip(mapped.starts.tolist(), sizes, strict=True)):
        assert mapped.bytes[start : start + size].tolist() == [i % 256] * size
    with pytest.raises(OSError, match="size"):
        MappedFiles(paths[:3], [0, 1, 4999])


def test_boxes_are_those_of_the_scalar_crops() -> None:
    r = np.random.default_rng(0)
    for _ in range(200):
        height, width, *size = r.integers(1, 40, 4).tolist()
        crop = packio.RandomCrop((size[0], size[1]), padding=int(r.integers(0, 6)))
        u = np.concatenate((r.random((5, 2)), [[0.0, 1 - 2**-53], [0.5, 0.25]]))
        found = raw.windows(crop, height, width, u)
        assert found is not None
        for i, numbers in enumerate(u.tolist()):
            frame = crop.frame(height, width, numbers)
            # A box that is all black may be as far away as it likes.
            assert found.top[i] == np.clip(frame.out_top, -frame.out_height, height)
            assert found.left[i] == np.clip(frame.out_left, -frame.out_width, width)
            assert (found.height, found.width) == (frame.out_height, frame.out_width)
            assert -found.above <= found.top[i] <= height - found.height + found.above
            assert -found.beside <= found.left[i] <= width - found.width + found.beside
