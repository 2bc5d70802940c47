"""Masks: every id is that of the pixel it lies on, whatever is cropped, turned and mirrored."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import coordinates
import numpy as np
import pytest
import torch
from made import saved
from PIL import Image

import packio
from packio.batches import masks
from packio.errors import BadImagesError, DecodeError, IntegrityError, OptionError
from packio.images.geometry import Geometry
from packio.images.pixels import nearest

_CROPS: list[Geometry | None] = [
    None, packio.RandomCrop(16), packio.RandomCrop((50, 20), padding=3), packio.CenterCrop(24),
    packio.CenterCrop((60, 21)), packio.Resize((20, 27), interpolation="nearest"),
    packio.Resize(45, interpolation="nearest"),
    packio.ResizeCenterCrop(20, 0.8, interpolation="nearest"),
    packio.ResizeCenterCrop((70, 30), 0.9, interpolation="nearest"),
    packio.RandomResizedCrop(17, interpolation="nearest"),
    packio.RandomResizedCrop((40, 9), scale=(0.01, 0.5), interpolation="nearest"),
    packio.BucketCrop((30, 20), interpolation="nearest"),
    packio.BucketCrop((16, 48), small="pad", interpolation="nearest"),
    packio.BucketCrop((64, 36), "center", "pad", "nearest"),
]  # fmt: skip
_FLIPS = [(0.0, 0.0), (0.5, 0.5)]


def assert_aligned(image: torch.Tensor, mask: torch.Tensor, *, ignore: int, wide: bool) -> None:
    x, y, inside = coordinates.stored_places(image)
    expected = np.where(inside, coordinates.id_at(x, y, wide=wide), ignore)
    assert mask.dtype == (torch.int32 if wide else torch.uint8)
    assert mask.is_contiguous()
    np.testing.assert_array_equal(mask.numpy(), expected)


@pytest.fixture(scope="module", params=[".lmdb", ".tar", ".h5"])
def pack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coordinates.packed(tmp_path_factory.mktemp("packs"), request.param)


@pytest.fixture(scope="module")
def lmdb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coordinates.packed(tmp_path_factory.mktemp("packs"), ".lmdb")


@pytest.fixture(scope="module", params=[False, True], ids=["8 bits", "16 bits"])
def raw(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A pack of raw pixels of one size, and whether its ids have 16 bits."""
    out = tmp_path_factory.mktemp("packs") / "raw.h5"
    rows = coordinates.samples(((33, 41),), (1,) * 12, wide=request.param)
    packio.pack(rows, out, encode="raw")
    return out, request.param


def _packed(path: Path, *pairs: tuple[np.ndarray | bytes, bytes]) -> Path:
    """A pack of images and encoded masks."""
    data = [i if isinstance(i, bytes) else coordinates.png(i) for i, _ in pairs]
    rows = zip(data, pairs, strict=True)
    packio.pack([{"image": image, "mask": mask} for image, (_, mask) in rows], path)
    return path


@pytest.mark.parametrize("crop", _CROPS, ids=repr)
@pytest.mark.parametrize(("hflip", "vflip"), _FLIPS)
def test_every_geometry_takes_the_same_of_image_and_mask(
    pack: Path, crop: Geometry | None, hflip: float, vflip: float
) -> None:
    ds = packio.PackDataset(
        pack, crop=crop, hflip=hflip, vflip=vflip, fields=("image", "mask"), seed=1
    )
    for image, mask in [*ds.__getitems__(range(16)), *(ds[i] for i in range(16))]:
        assert_aligned(image, mask, ignore=255, wide=False)


@pytest.mark.parametrize("crop", _CROPS, ids=repr)
@pytest.mark.parametrize(("hflip", "vflip"), _FLIPS)
def test_masks_of_raw_pixels_follow_their_windows(
    raw: tuple[Path, bool], crop: Geometry | None, hflip: float, vflip: float
) -> None:
    path, wide = raw
    ds = packio.PackDataset(path, crop=crop, hflip=hflip, vflip=vflip, seed=2)
    assert ds.pack.raw_rows is not None
    for image, mask, _ in [*ds.__getitems__(range(12)), *(ds[i] for i in range(12))]:
        assert_aligned(image, mask, ignore=255, wide=wide)


@pytest.mark.parametrize("exif_orientation", [True, False])
@pytest.mark.parametrize("output", ["tensor", "numpy", "pil"])
def test_masks_lie_as_their_image_is_stored(
    lmdb: Path, exif_orientation: bool, output: str
) -> None:
    ds = packio.PackDataset(lmdb, exif_orientation=exif_orientation, output=output)
    for image, mask, label in ds.__getitems__(range(16)):
        kinds = {"tensor": torch.Tensor, "numpy": np.ndarray, "pil": Image.Image}
        assert isinstance(mask, kinds[output])
        planes: Any = image
        ids: Any = mask
        if output != "tensor":
            planes = torch.from_numpy(np.array(image).transpose(2, 0, 1).copy())
            ids = torch.from_numpy(np.array(mask))
        assert_aligned(planes, ids, ignore=255, wide=False)
        size = (33, 41) if label < 8 else (40, 28)
        turned = exif_orientation and label % 8 >= 4
        assert planes.shape[1:] == (size[::-1] if turned else size)


@pytest.mark.parametrize("crop", [packio.Resize((20, 27)), packio.RandomResizedCrop(48)])
def test_masks_are_taken_where_images_are_mixed(lmdb: Path, crop: Geometry) -> None:
    """Bilinear interpolation mixes neighbours: coordinates are off by as much as is averaged."""
    ds = packio.PackDataset(lmdb, crop=crop, hflip=0.5, seed=3)
    where = {int(coordinates.id_at(x, y, wide=False)) for x in range(41) for y in range(40)}
    for image, mask, _ in ds.__getitems__(range(16)):
        x, y, _ = coordinates.stored_places(image)
        assert set(mask.unique().tolist()) <= where
        near = [
            coordinates.id_at(x + dx, y + dy, wide=False) == mask.numpy()
            for dx in range(-2, 3) for dy in range(-2, 3)
        ]  # fmt: skip
        assert np.any(near, axis=0).all()


@pytest.mark.parametrize("sizes", [(375, 500), (7, 3), (1, 1), (224, 224), (511, 97)])
def test_pixels_taken_are_those_of_torchvision(
    sizes: tuple[int, int], torchvision: ModuleType
) -> None:
    resize = torchvision.transforms.v2.functional.resize
    ids = np.arange(sizes[0] * sizes[1]).reshape(sizes) % 256
    mask = torchvision.tv_tensors.Mask(torch.from_numpy(ids.astype(np.uint8))[None])
    for to in [(224, 224), (5, 11), (sizes[0], 2 * sizes[1]), (97, 333), (1, 1)]:
        taken = ids[nearest(sizes[0], to[0])][:, nearest(sizes[1], to[1])]
        np.testing.assert_array_equal(resize(mask, list(to))[0].numpy(), taken)


def test_a_batch_is_one_tensor_and_equals_its_samples(lmdb: Path) -> None:
    ds = packio.PackDataset(lmdb, crop=packio.ResizeCenterCrop(20))
    samples = ds.__getitems__([3, 3, -1, 0])
    images, mask, labels = packio.collate(samples)
    assert (images.shape, mask.shape) == ((4, 3, 20, 20), (4, 20, 20))
    assert [m.data_ptr() for _, m, _ in samples] == [m.data_ptr() for m in mask]
    for row, i in enumerate([3, 3, 15, 0]):
        assert torch.equal(mask[row], ds[i][1])
        assert labels[row] == i
    gathered = ds.gather([3, 3, -1, 0])
    assert torch.equal(gathered[1], mask)
    theirs = torch.utils.data.default_collate(list(samples))
    assert torch.equal(theirs[1], mask)


def test_sizes_that_vary_come_as_a_list(lmdb: Path) -> None:
    ds = packio.PackDataset(lmdb)
    images, mask, labels = packio.collate(ds.__getitems__([0, 4, 8]))
    assert [tuple(m.shape) for m in mask] == [(33, 41), (41, 33), (40, 28)]
    assert [tuple(i.shape[1:]) for i in images] == [(33, 41), (41, 33), (40, 28)]
    assert labels.tolist() == [0, 4, 8]
    alike = packio.collate(ds.__getitems__([0, 1]))
    assert alike[1].shape == (2, 33, 41)


def test_views_each_have_their_mask(lmdb: Path) -> None:
    views = [packio.RandomCrop(12), packio.RandomCrop(12), None]
    ds = packio.PackDataset(lmdb, views=views, hflip=0.5, seed=5)
    for images, mask, _ in [*ds.__getitems__(range(16)), ds[5]]:
        assert len(images) == len(mask) == 3
        for image, ids in zip(images, mask, strict=True):
            assert_aligned(image, ids, ignore=255, wide=False)
    images, mask, _ = packio.collate(ds.__getitems__([0, 8]))
    assert [type(view) for view in mask] == [torch.Tensor, torch.Tensor, list]
    assert mask[0].shape == (2, 12, 12)


@pytest.mark.parametrize(
    ("ignore", "dtype"), [(0, torch.uint8), (254, torch.uint8), (-100, torch.int32)]
)
def test_the_border_is_ignored(lmdb: Path, ignore: int, dtype: torch.dtype) -> None:
    ds = packio.PackDataset(lmdb, crop=packio.CenterCrop(60), ignore_index=ignore)
    for image, mask, _ in [*ds.__getitems__(range(16)), ds[3]]:
        assert mask.dtype == dtype
        assert (mask[image[2] == 0] == ignore).all()
        assert (image[2] == 0).any()


def test_ids_are_as_stored(tmp_path: Path) -> None:
    """Palettes, 1, 8 and 16 bits, and what is no PNG."""
    ids = np.arange(48, dtype=np.uint8).reshape(6, 8)
    palette = Image.fromarray(ids)
    palette.putpalette(np.random.default_rng(0).integers(0, 256, 768).tolist())
    assert palette.mode == "P"
    few = Image.fromarray(ids % 3)
    few.putpalette([9, 9, 9, 0, 0, 0, 200, 100, 7])
    deep = ids.astype(np.uint16) * 1300
    bits = ids % 2 == 1
    wanted = [
        (saved(palette), ids), (saved(palette, transparency=3), ids),
        (saved(few, bits=2), ids % 3), (saved(Image.fromarray(ids)), ids),
        (saved(Image.fromarray(bits)), bits), (saved(Image.fromarray(deep)), deep),
        (saved(Image.fromarray(deep), "TIFF"), deep), (saved(palette, "GIF"), ids),
        (saved(Image.fromarray(ids), "PPM"), ids), (saved(palette, "BMP"), ids),
    ]  # fmt: skip
    image = np.zeros((6, 8, 3), np.uint8)
    ds = packio.PackDataset(_packed(tmp_path / "a.lmdb", *((image, m) for m, _ in wanted)))
    for (_, mask), (_, expected) in zip((ds[i] for i in range(len(ds))), wanted, strict=True):
        np.testing.assert_array_equal(mask.numpy(), expected)
        assert mask.dtype == (torch.int32 if expected.dtype == np.uint16 else torch.uint8)
    batch = ds.with_options(crop=packio.CenterCrop((6, 8))).gather(range(len(ds)))[1]
    assert batch.dtype == torch.int32
    np.testing.assert_array_equal(batch.numpy(), np.stack([ids for _, ids in wanted]))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (coordinates.png(coordinates.mask_of(6, 8, wide=False))[:50], "Pillow"),
    ],
)  # fmt: skip
def test_bad_masks_are_errors_that_name_the_sample(
    tmp_path: Path, mask: np.ndarray | bytes, message: str
) -> None:
    data = mask if isinstance(mask, bytes) else coordinates.png(mask)
    good = np.zeros((6, 8, 3), np.uint8), coordinates.png(np.full((6, 8), 9, np.uint8))
    rows = [packio.Sample(i, f"{i}.png", coordinates.png(image), "png", None, 6, 8, mask=m)
            for i, (image, m) in enumerate([good, (good[0], data), good])]  # fmt: skip
    packio.pack(rows, tmp_path / "a.lmdb")
    ds = packio.PackDataset(tmp_path / "a.lmdb", crop=packio.CenterCrop(4))
    with pytest.raises(DecodeError, match=rf"mask of sample 1 \('1.png'\): .*{message}"):
        ds[1]
    with pytest.raises(DecodeError, match=message):
        ds.__getitems__([0, 1, 2])
    assert ds.with_options(fields="image")[1].shape == (3, 4, 4)
    skipping = ds.with_options(on_error="skip", fields=("image", "mask", "index"))
    with pytest.warns(UserWarning, match="mask of sample 1"):
        _, ids, index = packio.collate(skipping.__getitems__([0, 1, 2]))
    assert index.tolist() == [0, 2, 2]
    assert (ids == 9).all()
    assert skipping.replaced == 1


@pytest.mark.parametrize(
    ("mask", "told"),
    [(coordinates.png(np.zeros((6, 8, 3), np.uint8)), "of mode RGB"), (b"nothing", "can identify")],
)
def test_a_mask_without_class_ids_is_not_packed(tmp_path: Path, mask: bytes, told: str) -> None:
    image = coordinates.png(np.zeros((6, 8, 3), np.uint8))
    rows = [packio.Sample(0, "0.png", image, "png", None, 6, 8, mask=mask)]
    with pytest.raises(BadImagesError, match=rf"0\.png: mask: .*{told}"):
        packio.pack(rows, tmp_path / "a.lmdb")


def test_a_bad_image_takes_its_mask_along(tmp_path: Path) -> None:
    rows = coordinates.samples(((33, 41),), (1, 1, 1))
    rows[1]["image"] = rows[1]["image"][:-40]
    packio.pack(rows, tmp_path / "a.lmdb")
    for crop in (packio.RandomCrop(20), None):
        ds = packio.PackDataset(tmp_path / "a.lmdb", crop=crop, seed=0, on_error="skip")
        with pytest.warns(UserWarning, match="sample 1"):
            samples = ds.__getitems__([0, 1, 2])
        assert [label for _, _, label in samples] == [0, 2, 2]
        for image, mask, _ in samples:
            assert_aligned(image, mask, ignore=255, wide=False)


def test_damaged_masks_are_noticed(lmdb: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.h5"
    packio.convert(lmdb, out)
    with packio.open(out) as pack:
        mask = pack.mask(4)
    assert mask is not None
    data = bytearray(out.read_bytes())
    assert data.count(mask) >= 1
    start = 0
    while (start := data.find(mask, start)) >= 0:
        data[start + len(mask) // 2] ^= 1
        start += 1
    out.write_bytes(data)
    with pytest.raises(IntegrityError, match="mask of record"):
        packio.PackDataset(out).__getitems__(range(16))


def test_a_sample_without_a_mask_is_all_border(tmp_path: Path) -> None:
    image, zeros = coordinates.png(coordinates.image_of(6, 8)), np.zeros((6, 8), np.uint8)
    given = enumerate([b"", coordinates.png(zeros)])
    rows = [packio.Sample(i, f"{i}.png", image, "png", None, 6, 8, mask=m) for i, m in given]
    packio.pack(rows, tmp_path / "a.lmdb")
    ds = packio.PackDataset(tmp_path / "a.lmdb", crop=packio.CenterCrop(5), ignore_index=7)
    assert [mask.unique().tolist() for _, mask in ds.__getitems__([0, 1])] == [[7], [0]]
    assert ds.with_options(crop=None)[0][1].shape == (6, 8)


def test_too_many_pixels_are_refused_before_decoding(lmdb: Path) -> None:
    with pytest.raises(DecodeError, match="limit is 100"):
        packio.PackDataset(lmdb, max_pixels=100, fields="mask")[0]


def test_masks_alone_read_no_image(lmdb: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = packio.PackDataset(lmdb, crop=packio.RandomCrop(9), seed=1).gather([1, 2, 3])
    names: list[str] = []
    read = packio.Pack.read

    def spy(pack: packio.Pack, row: Any, name: str) -> bytes:
        names.append(name)
        return read(pack, row, name)

    monkeypatch.setattr(packio.Pack, "read", spy)
    ds = packio.PackDataset(lmdb, crop=packio.RandomCrop(9), seed=1, fields="mask")
    assert torch.equal(ds.gather([1, 2, 3]), expected[1])
    assert set(names) == {"mask"}


def test_float_images_leave_masks_alone(lmdb: Path) -> None:
    ds = packio.PackDataset(lmdb, crop=packio.CenterCrop(20), dtype=torch.float32)
    images, ids, _ = ds.gather([0, 1])
    assert (images.dtype, ids.dtype) == (torch.float32, torch.uint8)
    out = torch.empty(2, 3, 20, 20)
    again = ds.gather([0, 1], out=out)
    assert again[0] is out
    assert torch.equal(again[1], ids)


@pytest.mark.parametrize("ignore", [None, 1.5, True, 1 << 40])
def test_senseless_ignore_indices_are_refused(lmdb: Path, ignore: Any) -> None:
    with pytest.raises(OptionError, match="ignore_index"):
        packio.PackDataset(lmdb, ignore_index=ignore)


def test_sizes_are_checked_before_pixels_are_decoded() -> None:
    data = coordinates.png(np.zeros((500, 400), np.uint8))[:80]
    with pytest.raises(DecodeError, match="400x500 pixels, its image has 5x4"):
        masks.decode(data, (4, 5))
