"""packio.decode: bytes of anybody's images become the tensors that Pillow, or a dataset, makes."""

from __future__ import annotations

import functools
import io
import multiprocessing
import subprocess
import sys
from typing import TYPE_CHECKING, Any, cast

import long
import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data as photographs
from vision import import_torchvision

import packio
from packio.errors import LimitError, ModeError, OptionError
from packio.images import native
from packio.images.frames import Frame

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@functools.cache
def _photo(number: int = 0) -> Image.Image:
    module: Any = photographs
    pixels = (module.astronaut(), module.chelsea(), module.coffee())[number % 3]
    return Image.fromarray(pixels[number : 300 + number, 2 * number : 420])


def _encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    image.save(file := io.BytesIO(), kind, **options)
    return file.getvalue()


@functools.cache
def _kinds() -> dict[str, bytes]:
    """Images of every kind that people have, by name."""
    photo, exif = _photo(), Image.Exif()
    exif[0x0112] = 6
    return {
        "jpeg": _encoded(photo, quality=88),
        "progressive": _encoded(photo, progressive=True),
        "4:4:4": _encoded(photo, subsampling=0, quality=95),
        "gray": _encoded(photo.convert("L")),
        "cmyk": _encoded(photo.convert("CMYK")),
        "turned": _encoded(photo, exif=exif),
        "png": _encoded(photo.resize((97, 61)), "PNG"),
        "palette": _encoded(photo.resize((97, 61)).convert("P"), "PNG"),
        "alpha": _encoded(photo.resize((97, 61)).convert("RGBA"), "PNG"),
        "gif": _encoded(photo.resize((97, 61)), "GIF"),
        "webp": _encoded(photo, "WEBP"),
        "bmp": _encoded(photo.resize((97, 61)), "BMP"),
        "tiny": _encoded(photo.resize((1, 1)), "PNG"),
    }


def _pillows(data: bytes, mode: str = "RGB") -> torch.Tensor:
    """What Pillow decodes, upright: (C, H, W) uint8."""
    from PIL import ImageOps

    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    pixels = np.array(upright.convert({"GRAY": "L"}.get(mode, mode)))
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1)


def _batch(images: Any) -> torch.Tensor:
    assert isinstance(images, torch.Tensor)
    return images


@pytest.mark.parametrize("name", [*_kinds()])
@pytest.mark.parametrize("mode", ["RGB", "GRAY"])
def test_whole_images_are_pillows(name: str, mode: str) -> None:
    data = _kinds()[name]
    made = _batch(packio.decode(data, mode=mode))
    assert torch.equal(made, _pillows(data, mode))
    assert made.is_contiguous()
    two, many = (_batch(packio.decode([data] * count, mode=mode)) for count in (2, 5))
    assert torch.equal(two[1], made)
    assert (len(many), all(torch.equal(image, made) for image in many)) == (5, True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("kinds")
    (root / "a").mkdir()
    for number, data in enumerate(_kinds().values()):
        (root / "a" / f"{number:02}.jpg").write_bytes(data)
    return root


CROPS: dict[str, Any] = {
    "center": packio.CenterCrop(64), "resized": packio.ResizeCenterCrop(64),
    "whole": packio.Resize((40, 50)), "side": packio.Resize(48), "none": None,
    "bucket": packio.BucketCrop((48, 64), position="center"),
}  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"mode": "GRAY"}, {"fidelity": "fast"},
                                     {"dtype": torch.float16}, {"exif_orientation": False},
                                     {"decoder": "pillow"}], ids=str)  # fmt: skip
@pytest.mark.parametrize("crop", CROPS)
def test_crops_are_those_of_a_dataset(crop: str, options: Any, folder: Path) -> None:
    datas = list(_kinds().values())
    ds = packio.FolderDataset(folder, fields="image", crop=CROPS[crop], **options)
    expected = [ds[i] for i in range(len(datas))]
    for threads in ("auto", 1, 3):
        made = packio.decode(datas, CROPS[crop], threads=threads, **options)
        assert all(map(torch.equal, made, expected))
    assert isinstance(made, torch.Tensor) == (len({image.shape for image in expected}) == 1)
    for data, image in zip(datas, expected, strict=True):
        assert torch.equal(_batch(packio.decode(data, CROPS[crop], **options)), image)


def test_floats_are_torchvisions() -> None:
    datas, crop = [_encoded(_photo(i)) for i in range(7)], packio.CenterCrop(90)
    pixels = torch.stack([_pillows(data) for data in datas[:1]])
    expected = pixels / 255
    made = packio.decode(datas[0], dtype=torch.float32)
    assert torch.equal(_batch(made), expected[0])
    mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (MEAN, STD))
    for normalize in ((MEAN, STD), packio.Normalize(MEAN, STD)):
        for dtype in (torch.float32, torch.bfloat16):
            bytes_made = _batch(packio.decode(datas, crop))
            made = packio.decode(datas, crop, dtype=dtype, normalize=normalize)
            assert torch.equal(_batch(made), ((bytes_made / 255 - mean) / std).to(dtype))
    assert _batch(packio.decode(datas[0], normalize=(MEAN, STD))).dtype == torch.float32
    several = packio.decode(datas, normalize=(MEAN, STD))
    assert [image.shape for image in several] == [_pillows(data).shape for data in datas]
    assert all(image.dtype == torch.float32 for image in several)


def test_size_is_that_of_whole_images() -> None:
    datas = [_encoded(_photo(i)) for i in range(5)]
    made = _batch(packio.decode(datas, size=(50, 70)))
    assert torch.equal(made, _batch(packio.decode(datas, packio.Resize((50, 70)))))
    assert _batch(packio.decode(_encoded(_photo()), size=60)).shape == (3, 60, 84)
    with pytest.raises(OptionError, match="a crop= has a size of its own"):
        packio.decode(datas, packio.CenterCrop(8), size=8)


def test_draws_are_torchs_or_a_generators() -> None:
    datas, crop = [_encoded(_photo())] * 6, packio.RandomResizedCrop(32)

    def make(generator: torch.Generator | None = None) -> torch.Tensor:
        return _batch(packio.decode(datas, crop, 0.5, vflip=0.5, generator=generator))

    torch.manual_seed(3)
    first, other = make(), make()
    assert len({image.numpy().tobytes() for image in [*first, *other]}) == 12
    torch.manual_seed(3)
    assert torch.equal(make(), first)
    state = torch.random.get_rng_state()
    one = make(torch.Generator().manual_seed(5))
    assert torch.equal(make(torch.Generator().manual_seed(5)), one)
    assert not torch.equal(make(torch.Generator().manual_seed(6)), one)
    packio.decode(datas, packio.CenterCrop(32))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_crop_may_have_lists_and_be_of_torchvision() -> None:
    data = _encoded(_photo())
    sides, scale = cast("Any", [32, 48]), cast("Any", [0.5, 1.0])  # as configurations have them
    lists = packio.RandomResizedCrop(sides, scale=scale)
    assert _batch(packio.decode(data, lists)).shape == (3, 32, 48)
    v2 = import_torchvision().transforms.v2
    with pytest.raises(OptionError, match="packio resizes with antialias=True"):
        packio.decode(data, v2.Resize(32, antialias=False))
    theirs = v2.CenterCrop(32)
    ours = _batch(packio.decode(data, packio.CenterCrop(32)))
    assert torch.equal(_batch(packio.decode([data] * 4, theirs))[3], ours)


def test_a_crop_that_changes_counts() -> None:
    data, crop = _encoded(_photo()), import_torchvision().transforms.v2.CenterCrop(32)
    assert _batch(packio.decode(data, crop)).shape == (3, 32, 32)
    crop.size = (16, 16)
    assert _batch(packio.decode(data, crop)).shape == (3, 16, 16)


class _Wrong:
    interpolation, draws, output_size = "bilinear", 0, (32, 32)

    def __init__(self, side: int) -> None:
        self.side = side

    def frame(self, height: Any, width: Any, u: Any) -> Frame:
        return Frame(0, 0, height, width, self.side, self.side, 0, 0, self.side, self.side)


@pytest.mark.parametrize("side", [31, 33, 2000])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_geometry_whose_outputs_have_another_size_is_refused(side: int, count: int) -> None:
    with pytest.raises(OptionError, match="its frame makes another size"):
        packio.decode([_encoded(_photo())] * count, _Wrong(side))


def test_flips_mirror() -> None:
    data = _encoded(_photo())
    whole = _pillows(data)
    assert torch.equal(_batch(packio.decode(data, hflip=1.0)), whole.flip(2))
    both = _batch(packio.decode([data] * 4, hflip=1.0, vflip=1.0))
    assert torch.equal(both[3], whole.flip(1).flip(2))


@pytest.mark.parametrize(
    "given",
    [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8),
     lambda data: torch.frombuffer(bytearray(data), dtype=torch.uint8),
     lambda data: memoryview(data + b"more")[: len(data)]],
)  # fmt: skip
def test_bytes_may_lie_anywhere(given: Callable[[bytes], Any]) -> None:
    data = _encoded(_photo())
    assert torch.equal(_batch(packio.decode(given(data))), _pillows(data))
    batch = _batch(packio.decode([given(data)] * 4, packio.CenterCrop(20)))
    assert torch.equal(batch[2], _batch(packio.decode(data, packio.CenterCrop(20))))


def test_paths_are_read(tmp_path: Path) -> None:
    data = _encoded(_photo())
    (tmp_path / "a.jpg").write_bytes(data)
    assert torch.equal(_batch(packio.decode(tmp_path / "a.jpg")), _pillows(data))
    assert len(packio.decode([str(tmp_path / "a.jpg"), data])) == 2
    with pytest.raises(FileNotFoundError, match=r"b\.jpg"):
        packio.decode(str(tmp_path / "b.jpg"))


def test_no_image_is_no_batch() -> None:
    assert len(packio.decode([])) == 0
    assert _batch(packio.decode([], packio.CenterCrop(8))).shape == (0, 3, 8, 8)


@pytest.mark.parametrize("count", [2, 9])
def test_errors_name_the_image(count: int, tmp_path: Path) -> None:
    good = _encoded(_photo())
    bad = {"cut": good[: len(good) // 2], "empty": b"", "text": b"<html>not here</html>",
           "png": _kinds()["png"][:-40]}  # fmt: skip
    for name, data in bad.items():
        datas = [good] * count
        datas[1] = data
        for crop in (packio.CenterCrop(8), None):
            with pytest.raises(packio.DecodeError, match=r"^data\[1\]: "):
                packio.decode(datas, crop)
        with pytest.raises(packio.DecodeError, match=r"^data: "):
            packio.decode(data)
        (tmp_path / name).write_bytes(data)
        with pytest.raises(packio.DecodeError, match=rf"^{tmp_path / name}: "):
            packio.decode(tmp_path / name)
        with pytest.raises(packio.DecodeError, match=rf"^data\[1\] \({tmp_path / name}\): "):
            packio.decode([good, str(tmp_path / name)])


def test_of_several_errors_the_first_is_told() -> None:
    good = _encoded(_photo())
    datas = [good] * 3 + [good[: len(good) // 2]] + [good] * 9 + [good[:-300]] * 3
    for _ in range(5):
        with pytest.raises(packio.DecodeError, match=r"^data\[3\]: "):
            packio.decode(datas, packio.CenterCrop(8), threads=2)


def test_pixels_of_16_bits() -> None:
    pixels = np.arange(48, dtype=np.uint16).reshape(6, 8) * 1000
    data = _encoded(Image.fromarray(pixels), "PNG")
    made = _batch(packio.decode(data, mode="UNCHANGED"))
    assert made.dtype == torch.uint16
    assert np.array_equal(made.numpy()[0], pixels)
    with pytest.raises(ModeError, match=r"^data\[0\]: uint16"):
        packio.decode([data])
    scaled = _batch(packio.decode([data] * 4, mode="UNCHANGED", dtype=torch.float32))
    assert np.array_equal(scaled[3, 0].numpy(), pixels.astype(np.float32) / 65535)


def test_too_many_pixels_are_refused() -> None:
    data = bytearray(_encoded(_photo()))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = b"\xff\xff\xff\xff"
    with pytest.raises(LimitError, match=r"^data: 65535x65535 pixels"):
        packio.decode(bytes(data))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"crop": 224}, "crop=224: expected an object such as"),
        ({"hflip": 2}, "hflip=2: expected a probability"),
        ({"vflip": "x"}, "vflip='x': expected a probability"),
        ({"dtype": torch.int64}, "dtype="),
        ({"normalize": ([123.7], [58.4])}, r"not in 0\.\.255"),
        ({"mode": "BGR"}, "mode='BGR'"),
        ({"fidelity": "good"}, "fidelity='good'"),
        ({"threads": 0}, "threads=0"),
        ({"decoder": "none"}, "none"),
        ({"size": 0}, "size=0"),
        ({"seek_points": [b"", b""]}, "2 for 1 images"),
        ({"seek_points": 5}, "int; expected bytes, or a list"),
        ({"exif_orientation": "no"}, "expected True or False"),
        ({"generator": 5}, "generator=5: expected a torch.Generator"),
    ],
)
def test_arguments_that_make_no_sense(options: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        packio.decode(_encoded(_photo()), **options)


@pytest.mark.parametrize(
    "image", [None, 5, torch.zeros(3, 8, 8), np.zeros((4, 4), np.uint8), {"bytes": b""}]
)
def test_what_has_no_bytes_of_a_file(image: Any) -> None:
    for given, name in ((image, "data"), ([b"", image], r"data\[1\]")):
        with pytest.raises(OptionError, match=f"^{name}: .*expected the bytes of an image file"):
            packio.decode(given)


@pytest.mark.skipif(native.why_not() is not None, reason="no core")
def test_seek_points_give_the_same_pixels() -> None:
    large = _photo().resize((1600, 1200))
    datas = [_encoded(large, quality=90)] * 4
    points = packio.seek_points(datas[0])
    assert 0 < len(points) < len(datas[0]) / 100
    crop = packio.CenterCrop(100)
    expected = _pillows(datas[0])[:, 550:650, 750:850]
    assert torch.equal(_batch(packio.decode(datas[0], crop, seek_points=points)), expected)
    made = _batch(packio.decode(datas, crop, seek_points=[points, None, points, points]))
    assert all(torch.equal(image, expected) for image in made)
    for others in (bytes(len(points)), packio.seek_points(_encoded(large, quality=91))):
        with pytest.raises(OptionError, match=r"seek_points\[0\]: of another image"):
            packio.decode(datas[0], crop, seek_points=others)
    for place in range(4, len(points), 5):
        damaged = bytearray(points)
        damaged[place] ^= 0x10
        with pytest.raises(OptionError, match=r"seek_points\[0\]: .* or damaged"):
            packio.decode(datas[0], crop, seek_points=bytes(damaged))
    with pytest.raises(OptionError, match=r"seek_points\[1\]: bytearray; expected bytes"):
        packio.decode(datas[:2], crop, seek_points=cast("Any", [points, bytearray(points)]))
    assert packio.seek_points(_kinds()["png"]) == b""


def test_without_the_core_pixels_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from packio.batches import decoding

    datas, crop = [_encoded(_photo(i)) for i in range(5)], packio.ResizeCenterCrop(48)
    expected = _batch(packio.decode(datas, crop))
    monkeypatch.setattr(native, "why_not", lambda: "it was left out")
    decoding._settings.cache_clear()
    assert torch.equal(_batch(packio.decode(datas, crop)), expected)
    decoding._settings.cache_clear()


_MANY = """
import resource, sys, torch, packio
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
crop = {"one": packio.CenterCrop(32), "several": None}[sys.argv[1]]
paths = sys.argv[2:] * 200
class Own(torch.utils.data.Dataset):
    def __len__(self):
        return len(paths)
    def __getitem__(self, i):
        return packio.decode(paths[i], crop)
    if crop is None:
        def __getitems__(self, indices):
            return packio.decode([paths[i] for i in indices], normalize=([0.5], [0.5]))
collate = torch.utils.data.default_collate if crop else list
loader = torch.utils.data.DataLoader(Own(), 400, num_workers=1, collate_fn=collate)
print([len(batch) for batch in loader])
"""


@pytest.mark.parametrize("kind", ["one", "several"])
def test_many_images_of_a_worker_take_few_descriptors(kind: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        image = _photo().resize((40, 40 + len(name) + ord(name)))
        (tmp_path / name).write_bytes(_encoded(image))
    program = [sys.executable, "-c", _MANY, kind, str(tmp_path / "a"), str(tmp_path / "b")]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == ("[400]\n"), done.stderr


class _Encoded(torch.utils.data.Dataset[Any]):
    def __init__(self, datas: list[bytes]) -> None:
        self.datas = datas

    def __len__(self) -> int:
        return len(self.datas)

    def __getitem__(self, i: int) -> Any:
        return packio.decode(self.datas[i], packio.RandomResizedCrop(32), 0.5), i

    def __getitems__(self, indices: list[int]) -> Any:
        images = packio.decode([self.datas[i] for i in indices], packio.CenterCrop(32))
        return list(zip(images, indices, strict=True))


@pytest.mark.parametrize("method", long.after(1, ["fork", "spawn"]))
def test_workers_decode_after_this_process_did(method: str) -> None:
    ds = _Encoded([_encoded(_photo(i)) for i in range(12)])
    expected = _batch(packio.decode(ds.datas, packio.CenterCrop(32), threads=2))
    loader: Any = torch.utils.data.DataLoader(
        ds, batch_size=5, num_workers=2, multiprocessing_context=method
    )
    batches = list(loader)
    assert torch.equal(torch.cat([images for images, _ in batches]), expected)
    sets: Any = [
        list(torch.utils.data.DataLoader(ds, None, num_workers=2, multiprocessing_context=method))
        for _ in range(2)
    ]
    made = [[image.numpy().tobytes() for image, _ in epoch] for epoch in sets]
    assert not set(made[0]) & set(made[1])  # torch seeds its workers anew for each epoch


def test_a_forked_child_decodes_with_threads_of_its_own() -> None:
    datas = [_encoded(_photo(i)) for i in range(8)]
    expected = _batch(packio.decode(datas, packio.CenterCrop(32), threads=2)).numpy()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def work() -> None:
        made = _batch(packio.decode(datas, packio.CenterCrop(32), threads=2))
        theirs.send(bool((made.numpy() == expected).all()))

    child = context.Process(target=work)
    child.start()
    assert ours.poll(60)
    assert ours.recv()
    child.join()
