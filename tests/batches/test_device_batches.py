"""Batches that a device makes: the same boxes, and the same pixels within a grey level.

A plugin of the tests' own decodes with simplejpeg; where torchvision's compiled part loads, its
decoder is tried as well. On a machine with a GPU everything happens there, and nvJPEG is tried.
"""

from __future__ import annotations

import pathlib
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import simplejpeg
import torch
from made import damage
from PIL import Image

import packio
from packio import registry
from packio.batches import device, framing
from packio.errors import DecodeError, IntegrityError, LimitError, MissingPackageError, OptionError
from packio.images import decoders, devices, tensors
from packio.images.decoders import nvjpeg
from packio.packs import opening
from packio.packs.table import RowList

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


GEOMETRIES: dict[str, Any] = {
    "rrc": packio.RandomResizedCrop(32),
    "rrc, small boxes": packio.RandomResizedCrop((24, 40), scale=(0.05, 0.2)),
    "rrc, bicubic": packio.RandomResizedCrop(32, interpolation="bicubic"),
    "rrc, area": packio.RandomResizedCrop(32, interpolation="area"),
    "rrc, nearest": packio.RandomResizedCrop(32, interpolation="nearest"),
    "center crop": packio.CenterCrop(60),
    "larger center crop": packio.CenterCrop((333, 150)),
    "random crop": packio.RandomCrop(70, padding=40),
    "resize": packio.Resize((50, 41)),
    "resize center crop": packio.ResizeCenterCrop(48),
    "resize center crop, not square": packio.ResizeCenterCrop((31, 64), crop_pct=0.5),
    "bucket": packio.BucketCrop((64, 48)),
    "bucket, padded": packio.BucketCrop((200, 170), small="pad"),
    "resize to a side": packio.Resize(40),
    "as it is": None,
}
pytestmark = pytest.mark.gpu
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _loads_torchvision() -> bool:
    try:
        nvjpeg._library()
    except MissingPackageError:
        return False
    return True


DECODERS = ["batching", *(["torchvisions"] if DEVICE == "cpu" and _loads_torchvision() else [])]


@pytest.fixture(autouse=True)
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The tests' own plugins, beside packio's; gives "batching"."""
    folder = str(pathlib.Path(__file__).parents[1] / "plugins")
    monkeypatch.setattr(decoders, "__path__", [*decoders.__path__, folder])
    registry.names.cache_clear()
    registry.list_built_in.cache_clear()
    module: ModuleType = registry.load("decoders", "batching")
    module.CALLS.clear()
    yield module
    monkeypatch.undo()
    registry.names.cache_clear()
    registry.list_built_in.cache_clear()


@pytest.fixture(scope="module")
def mixed(image_folder: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """25 photographs: JPEGs of all kinds, among them CMYK, gray and turned ones, and a PNG."""
    return packio.pack(image_folder, tmp_path_factory.mktemp("mixed") / "x.lmdb").out


@pytest.fixture(scope="module")
def turned(photos: list[np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Photographs of each orientation."""
    folder = tmp_path_factory.mktemp("turned")
    (folder / "photos/all").mkdir(parents=True)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        image = Image.fromarray(photos[orientation]).resize((400 - 9 * orientation, 301))
        path = folder / "photos/all" / f"{orientation}.jpg"
        image.save(path, exif=exif, quality=90, subsampling=orientation % 3)
    return packio.pack(folder / "photos", folder / "x.tar").out


def _dataset(pack: pathlib.Path, decoder: str, **options: Any) -> packio.PackDataset:
    fields = options.pop("fields", ("image", "label", "index"))
    return packio.PackDataset(pack, decoder=decoder, seed=3, fields=fields, **options)


def _pair(pack: pathlib.Path, decoder: str = "batching", **options: Any) -> tuple[Any, Any]:
    """Batches as the device makes them, and as simplejpeg and the processor do."""
    how: dict[str, Any] = {"batch_size": 7, "shuffle": True}
    theirs = packio.Loader(_dataset(pack, decoder, **options), device=DEVICE, **how)
    ours = packio.Loader(_dataset(pack, "simplejpeg", **options), **how)
    return theirs, ours


def _assert_near(made: Any, expected: Any, most: float = 1) -> None:
    """Images differ by a grey level at most, and are of the device, contiguous."""
    if isinstance(expected, list):
        assert len(made) == len(expected)
        for one, other in zip(made, expected, strict=True):
            _assert_near(one, other, most)
        return
    assert made.device.type == DEVICE
    assert made.shape == expected.shape
    assert made.dtype == expected.dtype
    assert made.is_contiguous()
    difference = (made.cpu().float() - expected.float()).abs()
    assert difference.numel() == 0 or difference.max() <= most


def _assert_alike(pair: tuple[Any, Any], most: float = 1) -> int:
    """The batches of two loaders have the same samples; gives how many there were."""
    count = 0
    for theirs, ours in zip(*pair, strict=True):
        _assert_near(theirs[0], ours[0], most)
        for one, other in zip(theirs[1:], ours[1:], strict=True):
            assert torch.equal(one.cpu(), other)
        count += len(ours[-1])
    return count


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_pixels_are_the_processors(name: str, decoder: str, mixed: pathlib.Path) -> None:
    options: dict[str, Any] = {"crop": GEOMETRIES[name], "hflip": 0.5, "vflip": 0.5}
    assert _assert_alike(_pair(mixed, decoder, **options)) == 25


@pytest.mark.skipif(DEVICE == "cpu", reason="nvJPEG needs a GPU")
@pytest.mark.parametrize("subsampling", ["420", "422", "444", "gray"])
def test_nvjpegs_pixels_are_those_of_chroma_that_is_repeated(
    subsampling: str, photos: list[np.ndarray]
) -> None:
    for photo in photos:
        if subsampling == "gray":
            mode, how = "GRAY", {"colorspace": "GRAY"}
        else:
            mode, how = "RGB", {"colorspace": "RGB", "colorsubsampling": subsampling}
        pixels = np.ascontiguousarray(photo[..., :1] if mode == "GRAY" else photo)
        data = simplejpeg.encode_jpeg(pixels, 90, **how)
        expected = simplejpeg.decode_jpeg(data, mode, fastupsample=True)
        difference = np.abs(nvjpeg.decode(data, mode).astype(int) - expected.reshape(pixels.shape))
        assert difference.max() <= 1


@pytest.mark.parametrize("name", GEOMETRIES)
def test_images_are_turned(name: str, turned: pathlib.Path, plugin: Any) -> None:
    options: dict[str, Any] = {"crop": GEOMETRIES[name], "hflip": 0.5}
    assert _assert_alike(_pair(turned, **options)) == 8
    whole = packio.open(turned).index_file.column("image/length").array()
    if name == "rrc, small boxes":
        assert sum(sum(call) for call in plugin.CALLS) == whole.sum()


def test_all_jpegs_of_a_batch_go_to_one_call(mixed: pathlib.Path, plugin: Any) -> None:
    ds = _dataset(mixed, "batching", crop=GEOMETRIES["rrc"])
    ds.gather(range(25), device=DEVICE)
    assert [len(call) for call in plugin.CALLS] == [23]  # not the PNG, not the CMYK one
    assert ds.fallbacks == 2


def test_very_large_images_go_to_several(
    mixed: pathlib.Path, plugin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "_MOST", 200_000)
    assert _assert_alike(_pair(mixed, crop=GEOMETRIES["rrc"])) == 25
    assert len(plugin.CALLS) > 4


def test_several_views_are_of_one_decode(mixed: pathlib.Path, plugin: Any) -> None:
    views = [GEOMETRIES["rrc"], GEOMETRIES["resize"], None]
    for theirs, ours in zip(*_pair(mixed, views=views, hflip=0.5), strict=True):
        for one, other in zip(theirs[0], ours[0], strict=True):
            _assert_near(one, other)
    assert sum(len(call) for call in plugin.CALLS) == 23


@pytest.mark.parametrize("mode", ["GRAY", "RGB_ALPHA", "UNCHANGED"])
def test_modes_are_the_processors(mode: str, mixed: pathlib.Path) -> None:
    assert _assert_alike(_pair(mixed, mode=mode, crop=GEOMETRIES["rrc"])) == 25


@pytest.mark.parametrize("fidelity", ["exact", "fast"])
def test_either_fidelity_is_exact_there(fidelity: str, turned: pathlib.Path) -> None:
    crop = packio.RandomResizedCrop(16, scale=(0.5, 1))
    theirs, ours = _pair(turned, crop=crop)
    fast = theirs.dataset.with_options(fidelity=fidelity)
    assert _assert_alike((packio.Loader(fast, 7, shuffle=True, device=DEVICE), ours)) == 8


def test_what_is_made_much_smaller_is_not_for_the_device(turned: pathlib.Path, plugin: Any) -> None:
    assert _assert_alike(_pair(turned, crop=packio.Resize((9, 200)))) == 8
    assert plugin.CALLS == []
    frame = packio.Resize((9, 200)).frame(9 * devices.MOST, 10, [])
    assert devices.is_for_device(frame)
    assert not devices.is_for_device(frame._replace(height=frame.height + 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_floats_are_scaled_there(dtype: torch.dtype, mixed: pathlib.Path) -> None:
    pair = _pair(mixed, crop=GEOMETRIES["rrc"], dtype=dtype)
    assert _assert_alike(pair, 1.01 / 255 if dtype == torch.float32 else 3 / 255) == 25


def test_transforms_get_tensors_of_the_device(mixed: pathlib.Path) -> None:
    seen = set()

    def inverted(image: torch.Tensor) -> torch.Tensor:
        seen.add(image.device.type)
        return 255 - image

    pair = _pair(mixed, crop=GEOMETRIES["rrc"], transform=inverted)
    assert _assert_alike((pair[0], list(pair[1]))) == 25
    assert seen == {"cpu", DEVICE}


def test_masks_and_boxes_go_beside(photos: list[np.ndarray], tmp_path: pathlib.Path) -> None:
    samples = []
    for i, photo in enumerate(photos[:5]):
        path = tmp_path / f"{i}.jpg"
        Image.fromarray(photo).save(path)
        ids = np.full(photo.shape[:2], i, np.uint8)
        samples.append({"image": path, "mask": ids, "boxes": [[3, 4, 90, 80]], "box_labels": [i]})
    packio.pack(samples, tmp_path / "x.lmdb")
    fields = ("image", "mask", "boxes", "box_labels", "key")
    for theirs, ours in zip(
        *_pair(tmp_path / "x.lmdb", crop=GEOMETRIES["rrc"], hflip=0.5, fields=fields), strict=True
    ):
        _assert_near(theirs[0], ours[0])
        assert torch.equal(theirs[1].cpu(), ours[1])
        for one, other in zip(theirs[2] + theirs[3], ours[2] + ours[3], strict=True):
            assert torch.equal(one.cpu(), other)
        assert theirs[4] == ours[4]


def test_raw_pixels_need_no_decoder(photos: list[np.ndarray], tmp_path: pathlib.Path) -> None:
    packio.pack([{"image": photo[:90, :120]} for photo in photos], tmp_path / "x.h5", encode="raw")
    for crop in (packio.RandomCrop(64), packio.RandomResizedCrop(32)):
        options: dict[str, Any] = {"crop": crop, "fields": ("image", "index")}
        assert _assert_alike(_pair(tmp_path / "x.h5", **options), 0) == 12


# ---- bad samples ----


@pytest.fixture
def damaged(tmp_path: pathlib.Path, image_folder: pathlib.Path) -> pathlib.Path:
    """A pack of eight good images and two bad ones, of which one looks plain."""
    source = tmp_path / "source" / "class"
    source.mkdir(parents=True)
    jpeg = (image_folder / "people/04.jpg").read_bytes()
    table = jpeg.index(b"\xff\xc4")  # DHT
    for i in range(8):
        (source / f"{i}.jpg").write_bytes(jpeg)
    (source / "3b.jpg").write_bytes(jpeg[: len(jpeg) // 2])
    (source / "5b.jpg").write_bytes(jpeg[: table + 5] + b"\xff" * 16 + jpeg[table + 21 :])
    return packio.pack(source.parent, tmp_path / "x.lmdb").out


def test_bad_images_are_named(damaged: pathlib.Path, plugin: Any) -> None:
    ds = _dataset(damaged, "batching", crop=GEOMETRIES["rrc"])
    with pytest.raises(DecodeError, match=r"3b\.jpg"):
        ds.gather(range(10), device=DEVICE)
    with pytest.raises(DecodeError, match=r"5b\.jpg"):
        list(packio.Loader(ds.subset([0, 1, 2, 3, 5, 6, 7]), 7, device=DEVICE))
    assert len(plugin.CALLS[-1]) == 1  # found by halves


def test_bad_images_are_replaced_as_always(damaged: pathlib.Path) -> None:
    pair = _pair(damaged, crop=GEOMETRIES["rrc"], on_error="skip")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert _assert_alike(pair) == 10
    assert sum("replaced by another" in str(w.message) for w in caught) == 4
    assert pair[0].dataset.replaced == 2


def test_a_slot_of_a_bad_image_is_black(damaged: pathlib.Path) -> None:
    ds = _dataset(damaged, "batching", crop=GEOMETRIES["larger center crop"])
    rows = ds.pack.rows(range(10))
    planned = framing.Framing.draw(ds._settings, rows, framing.Draw(0, np.arange(10)))
    with devices.side_stream(torch.device(DEVICE)) as stream:
        made = device.make(ds.pack, planned, None, stream)
    (images,) = made.views
    assert sorted(made.errors) == [4, 7]
    assert [bool(image.any()) for image in images] == [i not in (4, 7) for i in range(10)]


def test_changed_bytes_are_found(damaged: pathlib.Path) -> None:
    damage(damaged, 0)
    with pytest.raises(IntegrityError, match="record 0"):
        _dataset(damaged, "batching").gather([0, 1], device=DEVICE)


@pytest.mark.parametrize("change", [(0, 16), (-24, 0), (5000, 5000), (-9999, -9999)])
@pytest.mark.parametrize("name", ["rrc", "as it is", "larger center crop"])
def test_an_index_that_lies_about_a_size_is_found_out(
    name: str, change: tuple[int, int], turned: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    ds = _dataset(turned, "batching", crop=GEOMETRIES[name])
    rows = opening.Pack.rows

    def lying(self: opening.Pack, *given: Any) -> RowList:
        found = rows(self, *given)
        height, width = (max(side + d, 1) for side, d in zip(found[1][5:7], change, strict=True))
        found[1] = found[1]._replace(height=height, width=width)
        return RowList(found)

    height, width = ds.pack.row(1).height, ds.pack.row(1).width
    assert ds.pack.rows([0, 1])[1][5:7] == (height, width)
    monkeypatch.setattr(opening.Pack, "rows", lying)
    with pytest.raises(DecodeError, match=f"decodes to {width}x{height} pixels"):
        ds.gather([0, 1, 2], device=DEVICE)


def test_pixels_of_another_size_than_asked_for_are_not_taken(
    mixed: pathlib.Path, plugin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "LIES", [True])
    assert _assert_alike(_pair(mixed, crop=GEOMETRIES["rrc"])) == 25


def test_the_pixel_limit_holds(mixed: pathlib.Path) -> None:
    with pytest.raises(LimitError, match="the limit is 4,000"):
        _dataset(mixed, "batching", max_pixels=4000).gather(range(25), device=DEVICE)


# ---- loaders ----


def test_batches_are_prepared_there(mixed: pathlib.Path) -> None:
    ds = _dataset(mixed, "batching", crop=GEOMETRIES["rrc"])
    how: dict[str, Any] = {"normalize": ([0.5] * 3, [0.25] * 3), "dtype": torch.float32}
    for images, labels, _ in packio.Loader(ds, 9, device=DEVICE, **how):
        assert images.device.type == labels.device.type == DEVICE
        assert images.dtype == torch.float32
        assert images.min() < -1


@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads_gives_the_same(threads: int, mixed: pathlib.Path) -> None:
    ds = _dataset(mixed, "batching", crop=GEOMETRIES["rrc"])
    made = [ds.with_options(threads=t).gather(range(25), device=DEVICE) for t in (2, threads)]
    assert torch.equal(made[0][0], made[1][0])


def test_without_a_device_each_image_is_decoded_by_itself(mixed: pathlib.Path, plugin: Any) -> None:
    theirs, ours = (_dataset(mixed, name, crop=packio.CenterCrop(40)) for name in
                    ("batching", "simplejpeg"))  # fmt: skip
    for one, other in zip(theirs.gather(range(25)), ours.gather(range(25)), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(theirs[3][0], ours[3][0])
    assert plugin.CALLS == []


def test_what_cannot_be_meant_is_refused(mixed: pathlib.Path) -> None:
    ds = _dataset(mixed, "batching", crop=GEOMETRIES["rrc"])
    with pytest.raises(OptionError, match="num_workers=0"):
        packio.Loader(ds, 4, num_workers=2)
    with pytest.raises(OptionError, match="expected a decoder of batches"):
        ds.with_options(decoder="auto").gather([0], device=DEVICE)
    with pytest.raises(OptionError, match="output='numpy'"):
        list(packio.Loader(ds.with_options(output="numpy"), 4, device=DEVICE))
    with pytest.raises(OptionError, match="no out="):
        ds.gather([0], out=torch.zeros(1, 3, 32, 32, dtype=torch.uint8), device=DEVICE)


def test_what_is_on_a_device_is_not_pinned() -> None:
    assert tensors.pin(torch.empty(3, device="meta")).device.type == "meta"


# ---- nvJPEG ----


@pytest.mark.skipif(DEVICE == "cuda", reason="there is a GPU")
def test_without_a_gpu_the_error_says_so(mixed: pathlib.Path) -> None:
    with pytest.raises(MissingPackageError, match=r"finds no GPU here; .*pip install"):
        packio.PackDataset(mixed, decoder="nvjpeg")
    with pytest.raises(OptionError, match="device='cpu'"):
        nvjpeg.decode_batch([], "RGB", torch.device("cpu"))


def _encoded(photo: np.ndarray, tmp_path: pathlib.Path, mode: str = "RGB", **how: Any) -> bytes:
    path = tmp_path / "x.jpg"
    Image.fromarray(photo).convert(mode).save(path, **how)
    return path.read_bytes()


@pytest.mark.parametrize(
    "how",
    [
        *({"subsampling": s, "progressive": p} for s in (0, 1, 2) for p in (False, True)),
        {"mode": "L"},
        {"restart_marker_blocks": 2},
        {"optimize": True, "comment": b"\xff\xc0"},
    ],
)
def test_plain_jpegs_are_taken(
    how: dict[str, Any], photos: list[np.ndarray], tmp_path: pathlib.Path
) -> None:
    data = _encoded(photos[0], tmp_path, **how)
    assert nvjpeg.size(data, "RGB") == photos[0].shape[:2]


def test_others_are_left_to_pillow(photos: list[np.ndarray], tmp_path: pathlib.Path) -> None:
    plain = _encoded(photos[0], tmp_path, subsampling=2)
    frame = plain.index(b"\xff\xc0")
    unusual = bytearray(plain)
    unusual[frame + 11] = 0x41  # luma sampled four times as often
    adobe = b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0"
    for data in (
        _encoded(photos[0], tmp_path, "CMYK"),
        _encoded(photos[0], tmp_path, keep_rgb=True),
        plain[:2] + adobe + b"\0" + plain[2:],
        plain[:-2],
        plain[: len(plain) // 2],
        bytes(unusual),
        b"\x89PNG",
        b"",
    ):
        with pytest.raises(DecodeError):
            nvjpeg.size(data, "RGB")
    assert nvjpeg.size(plain[:2] + adobe + b"\1" + plain[2:], "RGB")  # YCbCr, Adobe says
    with pytest.raises(DecodeError, match="GRAY"):
        nvjpeg.size(plain, "GRAY")


def test_in_a_worker_the_error_says_where_it_works(
    mixed: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvjpeg, "version", lambda: "0")  # as where there is a GPU
    loader = torch.utils.data.DataLoader(_dataset(mixed, "nvjpeg"), 4, num_workers=1)
    with pytest.raises(OptionError, match="main process only: expected num_workers=0"):
        next(iter(loader))


def test_auto_never_takes_it() -> None:
    assert not nvjpeg.EXACT
    assert decoders.automatic("jpeg") != "nvjpeg"
