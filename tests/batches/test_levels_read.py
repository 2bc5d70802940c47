"""Levels as batches use them: which one a crop takes, its pixels, masks, boxes, and damage."""

from __future__ import annotations

import dataclasses
import io
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import range_server
import torch
from made import damage
from PIL import Image
from skimage import data as photographs
from sklearn.datasets import load_sample_images

import packio
from packio.batches import samples
from packio.batches.draws import PositionedIndex
from packio.batches.framing import draw_by_position
from packio.errors import IntegrityError
from packio.images import native
from packio.images.frames import Frame
from packio.sample.record import Field

_ORIENTATION = 0x0112
_COLOURS = {1: (200, 40, 40), 2: (40, 200, 40), 4: (40, 40, 200), 8: (200, 200, 40)}
_WITHOUT_CORE = "pillow"
DECODERS = [_WITHOUT_CORE] if native.why_not() else ["auto", _WITHOUT_CORE]


@dataclasses.dataclass(frozen=True)
class Box:
    """A crop that takes one box of every image: top, left, height, width; and its output's size."""

    box: tuple[int, int, int, int]
    size: tuple[int, int]
    interpolation: str = "bilinear"
    draws: int = 0

    @property
    def output_size(self) -> tuple[int, int]:
        """(height, width) of every output."""
        return self.size

    def frame(self, height: Any, width: Any, u: Any) -> Frame:
        """The frame of any image, or of a column of images."""
        top, left, high, broad = (np.zeros_like(height) + n for n in self.box)
        return Frame(top, left, high, broad, *self.size, 0, 0, *self.size)


def _jpeg(image: Image.Image, orientation: int = 1, **options: Any) -> bytes:
    file, exif = io.BytesIO(), Image.Exif()
    exif[_ORIENTATION] = orientation
    image.save(file, "JPEG", **{"quality": 95, "subsampling": "4:4:4", "exif": exif, **options})
    return file.getvalue()


def _size_at(size: tuple[int, int], divisor: int) -> tuple[int, int]:
    return -(-size[0] // divisor), -(-size[1] // divisor)


def _coloured(size: tuple[int, int], orientation: int, divisors: Any, key: str) -> packio.Sample:
    """A red image, whose levels have other colours."""
    images = {
        d: _jpeg(Image.new("RGB", _size_at(size, d), _COLOURS[d]), orientation)
        for d in (1, *divisors)
    }
    fields = {f"image_div{d}": Field("image", images[d]) for d in divisors}
    return packio.Sample(0, key, images[1], "jpeg", None, size[1], size[0], orientation,
                         fields=fields)  # fmt: skip


def _seen(image: torch.Tensor) -> int:
    """Which image or level an output was made of, by its colour."""
    mean = image.float().mean((1, 2)).numpy()
    return min(_COLOURS, key=lambda d: float(np.abs(mean - _COLOURS[d]).sum()))


def _expected(box: tuple[int, ...], size: tuple[int, int], divisors: Any) -> int:
    """The smallest level with 1.1 pixels for one of the output, along both sides."""
    fit = [d for d in divisors if box[2] / d >= 1.1 * size[0] and box[3] / d >= 1.1 * size[1]]
    return max(fit, default=1)


_BOXES = [
    ((0, 0, 400, 400), (40, 40)), ((3, 5, 397, 395), (45, 44)), ((3, 5, 351, 351), (40, 40)),
    ((8, 8, 176, 176), (40, 40)), ((8, 8, 175, 300), (40, 40)), ((1, 1, 88, 88), (40, 40)),
    ((1, 1, 87, 400), (40, 40)), ((0, 0, 300, 353), (20, 40)), ((30, 20, 50, 50), (50, 50)),
    ((30, 20, 40, 40), (80, 80)), ((100, 0, 301, 397), (17, 11)),
]  # fmt: skip


@pytest.fixture(scope="module", params=[(8, 4, 2), (4,), (8, 2)], ids=str)
def coloured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, tuple[int, ...]]:
    """Samples upright and turned, of odd sizes; the last one has no levels."""
    rows = [
        _coloured((407, 403), 1, request.param, "0"), _coloured((405, 401), 6, request.param, "1"),
        _coloured((403, 409), 3, request.param, "2"), _coloured((400, 400), 1, (), "3"),
        *(_coloured((401, 402), 1, request.param, key) for key in "45"),
    ]  # fmt: skip
    out = tmp_path_factory.mktemp("coloured") / "x.tar"
    return packio.pack(rows, out).out, request.param


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(("box", "size"), _BOXES)
def test_a_crop_takes_the_smallest_level_that_is_large_enough(
    box: tuple[int, int, int, int], size: tuple[int, int], decoder: str,
    coloured: tuple[Path, tuple[int, ...]],
) -> None:  # fmt: skip
    path, divisors = coloured
    options: dict[str, Any] = {"crop": Box(box, size), "fields": "image", "decoder": decoder}
    fast = packio.PackDataset(path, fidelity="fast", **options)
    wanted = [_expected(box, size, divisors)] * 6
    wanted[3] = 1
    assert [_seen(image) for image in fast.gather(range(6))] == wanted
    assert [_seen(fast[i]) for i in range(6)] == wanted
    exact = packio.PackDataset(path, **options)
    assert [_seen(image) for image in exact.gather(range(6))] == [1] * 6
    assert _seen(exact[0]) == 1


@pytest.mark.parametrize("how", ["bicubic", "nearest", "area"])
def test_only_what_is_smoothed_takes_a_level(
    how: str, coloured: tuple[Path, tuple[int, ...]]
) -> None:
    path, divisors = coloured
    crop = Box((0, 0, 400, 400), (40, 40), how)
    ds = packio.PackDataset(path, crop=crop, fidelity="fast", fields="image")
    assert _seen(ds[0]) == (max(divisors) if how == "bicubic" else 1)
    assert (
        _seen(packio.PackDataset(path, fidelity="fast", fields="image")[0]) == 1
    )  # without a crop


def test_several_views_take_a_level_each(coloured: tuple[Path, tuple[int, ...]]) -> None:
    path, divisors = coloured
    views = [Box(box, size) for box, size in _BOXES]
    how: dict[str, Any] = {"fidelity": "fast", "fields": "image"}
    ds = packio.PackDataset(path, views=views, **how)
    alone = [packio.PackDataset(path, crop=view, **how) for view in views]
    assert [_seen(view) for view in ds[0]] == [_expected(*each, divisors) for each in _BOXES]
    for i, images in enumerate(ds.gather(range(6))):
        assert torch.equal(images, alone[i].gather(range(6)))


def test_levels_are_hidden_but_can_be_named(coloured: tuple[Path, tuple[int, ...]]) -> None:
    path, divisors = coloured
    assert len(packio.PackDataset(path)[0]) == 1
    assert not packio.open(path)[0].fields
    name = f"image_div{divisors[0]}"
    ds = packio.PackDataset(path, fields=("image", name), crop=Box((0, 0, 400, 400), (40, 40)),
                            fidelity="fast")  # fmt: skip
    for image, level in [ds[0], [each[0] for each in ds.gather([0])]]:
        assert _seen(image) == _seen(level) == divisors[0]
    with pytest.raises(packio.PackioError, match=r"it has image, key, index$"):
        packio.PackDataset(path, fields="depth")


def test_what_is_read_soon_is_what_will_be_read(coloured: tuple[Path, tuple[int, ...]]) -> None:
    path, divisors = coloured
    crop = packio.RandomResizedCrop(20, scale=(0.9, 1))
    ds = packio.PackDataset(path, crop=crop, fidelity="fast", fields="image")
    settings, where = vars(ds)["_settings"], np.arange(6)
    found = samples.rows_expected(ds.pack, settings, where, draw_by_position(0, 0, range(6)))
    assert {n: [row.position for row in rows] for n, rows in found.items()} == {
        "image": [3], f"image_div{divisors[0]}": [0, 1, 2, 4, 5]
    }  # fmt: skip
    assert not samples.rows_expected(ds.pack, settings, where, None)
    exact = dataclasses.replace(settings, fast=False)
    assert list(samples.rows_expected(ds.pack, exact, where, None)) == ["image"]


def test_crops_that_follow_their_batch_take_the_level_that_fits_its_size(
    coloured: tuple[Path, tuple[int, ...]],
) -> None:
    path, divisors = coloured
    ds = packio.PackDataset(path, crop=packio.BucketCrop(), fidelity="fast", fields="image")
    settings, where = vars(ds)["_settings"], np.arange(6)
    for size in ((30, 30), (90, 90), (400, 400)):
        fits = max((d for d in divisors if 400 / d >= 1.1 * size[0]), default=1)
        wanted = [1 if i == 3 else fits for i in range(6)]
        batch = [PositionedIndex(i, 0, i, size) for i in range(6)]
        assert [_seen(image) for image in ds.gather(batch)] == wanted
        draw = draw_by_position(0, 0, range(6))._replace(size=size)
        found = samples.rows_expected(ds.pack, settings, where, draw)
        names = {"image" if d == 1 else f"image_div{d}" for d in wanted}
        assert {name for name, rows in found.items() if rows} == names


# ---- photographs ----


def _photos() -> list[Image.Image]:
    named = [photographs.astronaut(), photographs.chelsea()]  # type: ignore[no-untyped-call]  # skimage
    return [Image.fromarray(pixels) for pixels in (*named, *load_sample_images().images)]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Photographs of odd sizes with masks and boxes: with levels, and without."""
    rows = []
    for number, photo in enumerate(_photos()):
        width, height = photo.width - number % 2, photo.height - 3
        orientation = (1, 6, 1, 8)[number]
        image = photo.crop((0, 0, width, height))
        ids = (np.arange(height)[:, None] // 16 + np.arange(width) // 16).astype(np.uint8)
        mask = io.BytesIO()
        Image.fromarray(ids).save(mask, "PNG")
        boxes = [[10, 20, width - 30, height - 40], [width / 2, 5, width, height / 3]]
        rows.append({
            "key": f"{number}.jpg", "image": _jpeg(image, orientation, subsampling="4:2:0"),
            "mask": mask.getvalue(), "boxes": boxes, "box_labels": [1, 2],
        })  # fmt: skip
    folder = tmp_path_factory.mktemp("photographs")
    kinds = {"mask": ("mask", "mask")}
    return (
        packio.pack(rows, folder / "with.tar", levels=3, levels_crop=40, fields=kinds).out,
        packio.pack(rows, folder / "without.tar", fields=kinds).out,
    )


def _level(path: Path, index: int, divisor: int) -> Image.Image:
    with packio.open(path) as pack:
        data = pack.read_field(f"image_div{divisor}", index)
    assert data is not None
    return Image.open(io.BytesIO(data)).convert("RGB")


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("flips", [(0, 0), (1, 0), (0, 1)])
@pytest.mark.parametrize("box", [(0, 0, 270, 270), (13, 27, 231, 201), (101, 3, 190, 211)])
def test_pixels_are_those_that_pillow_makes_of_the_level(
    box: tuple[int, int, int, int], flips: tuple[int, int], decoder: str, packed: tuple[Path, Path]
) -> None:
    size, divisor = (60, 63), 2
    assert _expected(box, size, (4, 2)) == divisor
    ds = packio.PackDataset(packed[0], crop=Box(box, size), hflip=flips[0], vflip=flips[1],
                            fidelity="fast", fields="image", decoder=decoder)  # fmt: skip
    for i, made in enumerate(ds.gather(range(4))):
        wanted = _by_pillow(packed[0], i, divisor, box, size, clipped=decoder != _WITHOUT_CORE)
        pixels = wanted[:: -1 if flips[1] else 1, :: -1 if flips[0] else 1]
        difference = np.abs(made.permute(1, 2, 0).numpy().astype(np.int16) - pixels)
        assert difference.max() <= 2, (i, difference.max())


def _by_pillow(
    path: Path, index: int, divisor: int, box: tuple[int, ...], size: tuple[int, int], *,
    clipped: bool,
) -> np.ndarray:  # fmt: skip
    """A box of the upright image, out of the pixels of a level: (H, W, 3).

    Args:
        path, index, divisor: Of the level.
        box: top, left, height, width in the upright image.
        size: (height, width) of the result.
        clipped: Whether pixels beyond the box count for nothing, as the core has it.
    """
    sample, level = packio.open(path)[index], _level(path, index, divisor)
    top, left, height, width = box
    turn = {1: None, 6: Image.Transpose.ROTATE_270, 8: Image.Transpose.ROTATE_90}[
        sample.orientation
    ]
    if sample.orientation == 6:  # what is upright on the left is stored at the bottom
        left, top, width, height = top, sample.height - left - width, height, width
    if sample.orientation == 8:
        left, top, width, height = sample.width - top - height, left, height, width
    x, y, x1, y1 = (n / divisor for n in (left, top, left + width, top + height))
    to = size if turn is not None else size[::-1]
    if clipped:
        whole = math.floor(x), math.floor(y), math.ceil(x1), math.ceil(y1)
        level = level.crop(whole)
        x, y, x1, y1 = x - whole[0], y - whole[1], x1 - whole[0], y1 - whole[1]
    small = level.resize(to, Image.Resampling.BILINEAR, (x, y, x1, y1))
    return np.asarray(small if turn is None else small.transpose(turn), np.int16)


@pytest.mark.parametrize("decoder", DECODERS)
def test_exact_is_the_same_with_and_without_levels(decoder: str, packed: tuple[Path, Path]) -> None:
    options: dict[str, Any] = {"crop": packio.RandomResizedCrop(40), "hflip": 0.5, "seed": 1,
                               "fields": ("image", "mask", "boxes", "box_labels"),
                               "decoder": decoder}  # fmt: skip
    a, b = (packio.PackDataset(path, **options) for path in packed)
    for epoch in range(3):
        a.set_epoch(epoch)
        b.set_epoch(epoch)
        for x, y in zip(a.gather(range(4)), b.gather(range(4)), strict=True):
            pairs = zip(x, y, strict=True)
            assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(("interpolation", "least"), [("bilinear", 35), ("bicubic", 33.5)])
def test_crops_are_near_exact_ones_and_masks_and_boxes_the_same(
    interpolation: str, least: float, decoder: str, packed: tuple[Path, Path]
) -> None:
    options: dict[str, Any] = {
        "crop": packio.RandomResizedCrop(64, interpolation=interpolation), "hflip": 0.5, "seed": 1,
        "fields": ("image", "mask", "boxes", "box_labels"), "decoder": decoder,
    }  # fmt: skip
    exact = packio.PackDataset(packed[1], **options)
    fast = packio.PackDataset(packed[0], fidelity="fast", **options)
    alone = packio.PackDataset(packed[1], fidelity="fast", **options)
    changed = 0
    for epoch in range(6):
        for ds in (exact, fast, alone):
            ds.set_epoch(epoch)
        a, b, c = (ds.gather(range(4)) for ds in (exact, fast, alone))
        changed += not torch.equal(b[0], c[0])
        assert torch.equal(a[1], b[1])
        for column in (2, 3):
            assert all(torch.equal(x, y) for x, y in zip(a[column], b[column], strict=True))
        errors = ((a[0].double() - b[0].double()) ** 2).mean((1, 2, 3))
        assert (10 * torch.log10(255**2 / errors.clamp_min(1e-9))).min() >= least
    assert changed == 6
    assert not fast.declined or decoder != "auto"


def _damaged(path: Path, to: Path, name: str, index: int) -> Path:
    """A copy of a pack with one changed byte in a field of a sample."""
    for old in path.parent.glob(f"{path.stem}.*"):
        (to / old.name).write_bytes(old.read_bytes())
    damage(to / path.name, index, name)
    return to / path.name


def test_a_damaged_level_is_replaced_by_the_image_and_counted(
    packed: tuple[Path, Path], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"crop": Box((0, 0, 280, 280), (66, 66)), "fidelity": "fast",
                               "fields": "image"}  # fmt: skip
    path = _damaged(packed[0], tmp_path, "image_div2", 1)
    assert not packio.verify(path).ok
    whole, plain = (
        packio.PackDataset(packed[0], **options),
        packio.PackDataset(packed[1], **options),
    )
    for threads in (1, 2):
        ds = packio.PackDataset(path, threads=threads, **options)
        made = ds.gather(range(4))
        assert torch.equal(made[[0, 2, 3]], whole.gather([0, 2, 3]))
        assert torch.equal(made[1], plain[1])
        assert not torch.equal(made[1], whole[1])
        assert ds.declined == {"bad level": 1}
        assert torch.equal(ds[1], plain[1])
        assert ds.declined == {"bad level": 2}
    views = packio.PackDataset(path, views=[options["crop"], Box((9, 9, 80, 80), (40, 40))],
                               fidelity="fast", fields="image")  # fmt: skip
    assert (views[1][0].float() - plain[1].float()).abs().mean() < 3
    assert views.declined == {"bad level": 1}
    damaged = packio.PackDataset(_damaged(packed[0], tmp_path, "image", 2), **options)
    assert torch.equal(damaged[2], whole[2])  # nobody reads the image
    with pytest.raises(IntegrityError):
        packio.PackDataset(damaged.pack.path, **{**options, "fidelity": "exact"})[2]


def test_a_level_of_another_size_is_not_taken(tmp_path: Path) -> None:
    sample = _coloured((400, 400), 1, (2,), "0")
    wrong = _jpeg(Image.new("RGB", (201, 200), _COLOURS[2]))
    sample = dataclasses.replace(sample, fields={"image_div2": Field("image", wrong)})
    packio.pack([sample], tmp_path / "x.tar")
    ds = packio.PackDataset(tmp_path / "x.tar", crop=Box((0, 0, 400, 400), (40, 40)),
                            fidelity="fast", fields="image")  # fmt: skip
    assert _seen(ds[0]) == 1
    assert ds.declined == {}


def test_the_limit_of_pixels_is_that_of_the_image(packed: tuple[Path, Path]) -> None:
    ds = packio.PackDataset(packed[0], crop=Box((0, 0, 280, 280), (60, 60)), fidelity="fast",
                            max_pixels=100_000)  # fmt: skip
    with pytest.raises(packio.DecodeError, match="the limit is 100,000"):
        ds[0]


@pytest.mark.skipif(native.why_not() is not None, reason="no native core")
def test_modes_are_those_of_the_image(packed: tuple[Path, Path]) -> None:
    options: dict[str, Any] = {"crop": Box((0, 0, 280, 280), (60, 60)), "fields": "image"}
    for mode in ("GRAY", "RGB_ALPHA", "UNCHANGED"):
        exact = packio.PackDataset(packed[0], mode=mode, **options)[0]
        fast = packio.PackDataset(packed[0], mode=mode, fidelity="fast", **options)[0]
        assert fast.shape == exact.shape
        assert (fast.float() - exact.float()).abs().mean() < 4


def test_from_a_url_only_levels_are_read(packed: tuple[Path, Path]) -> None:
    options: dict[str, Any] = {
        "crop": packio.RandomResizedCrop(40, scale=(0.8, 1)), "fidelity": "fast", "seed": 2,
        "fields": "image",
    }  # fmt: skip
    wanted = packio.PackDataset(packed[0], **options)
    sampler = packio.ShuffleSampler(wanted, seed=0)
    server = range_server.RangeServer(packed[0].parent)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        ds = packio.PackDataset(f"{server.url}/with.tar", **options)
        server.asked.clear()
        loader = packio.Loader(ds, batch_size=2, sampler=packio.ShuffleSampler(ds, seed=0))
        made = torch.cat([batch.clone() for batch in loader])
    finally:
        server.shutdown()
        server.server_close()
    assert torch.equal(made, wanted.gather(list(sampler)))
    images = [(ds.pack.row(i).offset, ds.pack.row(i).length) for i in range(4)]
    tar = [span for path, span in server.asked if path.endswith(".tar")]
    assert tar
    for start, stop in tar:
        assert all(stop <= offset or start >= offset + length for offset, length in images)
