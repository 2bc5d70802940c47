"""Boxes as torchvision's, pixels as torchvision's."""

from __future__ import annotations

import math
import random
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from packio.batches import draws
from packio.errors import OptionError
from packio.images import frames, regions
from packio.images import pixels as rendering
from packio.images.bucketing import BucketCrop
from packio.images.frames import Frame
from packio.images.geometry import (
    INTERPOLATIONS,
    CenterCrop,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    ResizeCenterCrop,
    accept_crop,
)

SIZES = [(375, 500), (500, 375), (224, 224), (31, 200), (200, 31), (1, 1), (640, 481), (17, 9)]


def render(pixels: np.ndarray, frame: Frame, how: str = "bilinear", **flips: bool) -> np.ndarray:
    out = np.full((pixels.shape[2], frame.out_height, frame.out_width), 0xA5, pixels.dtype)
    flips = {"hflip": False, "vflip": False, **flips}
    rendering.render(boxed(pixels, frame), frame, out, how=how, **flips)
    return out


def boxed(pixels: np.ndarray, frame: Frame) -> np.ndarray:
    box: np.ndarray = pixels[frame.top :, frame.left :][: frame.height, : frame.width]
    return box


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Smooth but busy RGB pixels."""
    r = np.random.default_rng(seed)
    small = r.integers(0, 256, (max(2, height // 8), max(2, width // 8), 3), np.uint8)
    return np.array(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def differences(a: np.ndarray, b: np.ndarray) -> int:
    assert a.shape == b.shape
    return int(np.abs(a.astype(int) - b.astype(int)).max(initial=0))


def test_random_resized_crop_is_distributed_as_torchvisions(torchvision: ModuleType) -> None:
    """Two-sample Kolmogorov-Smirnov on area, ratio and place, 4,000 boxes each."""
    crop = RandomResizedCrop(224)
    height, width, n = 300, 451, 4000
    u = draws.uniforms(5, np.arange(n), 0, crop.draws).tolist()
    ours = np.array([crop.frame(height, width, x)[:4] for x in u], float)
    torch.manual_seed(0)
    image = torch.empty(3, height, width)
    params = torchvision.transforms.RandomResizedCrop.get_params
    theirs = np.array([params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(n)], float)
    for ours_i, theirs_i in (
        (ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3]),
        (ours[:, 3] / ours[:, 2], theirs[:, 3] / theirs[:, 2]),
        (ours[:, 0], theirs[:, 0]),
        (ours[:, 1], theirs[:, 1]),
    ):
        assert ks_statistic(ours_i, theirs_i) < 0.045  # p = 0.0006 for n = m = 4,000


def ks_statistic(a: np.ndarray, b: np.ndarray) -> float:
    points = np.sort(np.concatenate((a, b)))
    below = [np.searchsorted(np.sort(x), points, side="right") / len(x) for x in (a, b)]
    return float(np.abs(below[0] - below[1]).max())


@pytest.mark.parametrize("size", SIZES)
def test_random_resized_crop_stays_inside(size: tuple[int, int]) -> None:
    crop = RandomResizedCrop((64, 48), scale=(0.01, 1.0), ratio=(0.1, 10.0))
    for u in draws.uniforms(1, np.arange(500), 0, crop.draws).tolist():
        f = crop.frame(*size, u)
        assert 0 <= f.top < f.top + f.height <= size[0]
        assert 0 <= f.left < f.left + f.width <= size[1]
        assert (f.out_height, f.out_width) == (64, 48)


@pytest.mark.parametrize(("size", "box"), [((10, 1000), (10, 13)), ((1000, 10), (13, 10))])
def test_random_resized_crop_falls_back_to_the_centre(
    size: tuple[int, int], box: tuple[int, int]
) -> None:
    crop = RandomResizedCrop(32, scale=(0.9, 1.0))
    f = crop.frame(*size, [0.3] * crop.draws)
    assert (f.height, f.width) == box
    assert abs((size[0] - f.height) - 2 * f.top) <= 1
    assert abs((size[1] - f.width) - 2 * f.left) <= 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("target", [24, (24, 31), 256, (300, 20)])
def test_center_crop_equals_torchvisions(
    size: tuple[int, int], target: Any, torchvision: ModuleType
) -> None:
    pixels = picture(*size)
    ours = render(pixels, CenterCrop(target).frame(*size, []))
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    theirs = torchvision.transforms.v2.functional.center_crop(
        tensor, [target] if isinstance(target, int) else list(target)
    )
    np.testing.assert_array_equal(ours, theirs.numpy())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("target", "longest"), [(24, None), (200, None), ((24, 31), None), (24, 40), (150, 151)]
)
@pytest.mark.parametrize("how", ["bilinear", "bicubic"])
def test_resize_equals_torchvisions(
    size: tuple[int, int], target: Any, longest: int | None, how: str, torchvision: ModuleType
) -> None:
    if max(size) > 20 * min(size):
        pytest.skip("enlarges to gigabytes")
    pixels = picture(*size)
    crop = Resize(target, longest, interpolation=how)
    ours = render(pixels, crop.frame(*size, []), how)
    theirs = torchvision.transforms.v2.functional.resize(
        torch.from_numpy(pixels).permute(2, 0, 1),
        [target] if isinstance(target, int) else list(target),
        interpolation=getattr(torchvision.transforms.InterpolationMode, how.upper()),
        max_size=longest,
        antialias=True,
    )
    assert differences(ours, theirs.numpy()) == 0


@pytest.mark.parametrize("size", [(375, 500), (500, 375), (256, 256), (300, 200), (90, 120)])
@pytest.mark.parametrize(
    ("target", "pct", "how"),
    [(224, 0.875, "bilinear"), (384, 1.0, "bicubic"), ((96, 64), 0.9, "bilinear")],
)
def test_resize_center_crop_equals_timms_evaluation(
    size: tuple[int, int], target: Any, pct: float, how: str, timm: ModuleType
) -> None:
    """Within 2 grey levels: timm resizes with Pillow, packio as torchvision does on tensors."""
    transforms_imagenet_eval = timm.data.transforms_factory.transforms_imagenet_eval
    pixels = picture(*size)
    ours = render(pixels, ResizeCenterCrop(target, pct, how).frame(*size, []), how)
    transform = transforms_imagenet_eval(
        target, crop_pct=pct, interpolation=how, use_prefetcher=True
    )
    theirs = np.asarray(transform(Image.fromarray(pixels)))
    assert differences(ours, theirs) <= 2


def test_resize_is_within_one_grey_level_of_pillow(photos: list[np.ndarray]) -> None:
    for pixels in photos:
        height, width, _ = pixels.shape
        ours = render(pixels, Resize((97, 61)).frame(height, width, []))
        theirs = np.asarray(Image.fromarray(pixels).resize((61, 97), Image.Resampling.BILINEAR))
        assert differences(ours, theirs.transpose(2, 0, 1)) <= 1


@pytest.mark.parametrize("how", ["area", "nearest"])
def test_area_and_nearest_equal_pytorchs(how: str) -> None:
    pixels = picture(90, 120)
    ours = render(pixels, Resize((45, 40), interpolation=how).frame(90, 120, []), how)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)[None].float()
    theirs = torch.nn.functional.interpolate(tensor, (45, 40), mode=how)[0].round().byte()
    assert differences(ours, theirs.numpy()) == 0


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
@pytest.mark.parametrize("how", INTERPOLATIONS)
def test_other_dtypes_resize(dtype: Any, how: str) -> None:
    pixels = picture(90, 120)[:, :, :1].astype(dtype) * (257 if dtype is np.uint16 else 1)
    ours = render(pixels, Resize((45, 40), interpolation=how).frame(90, 120, []), how)
    mode = {"bilinear": "BILINEAR", "bicubic": "BICUBIC", "area": "BOX", "nearest": None}[how]
    assert ours.dtype == dtype
    if mode:
        image = Image.fromarray(pixels[:, :, 0].astype(np.float32))
        theirs = np.asarray(image.resize((40, 45), getattr(Image.Resampling, mode)))
        limit = 65535 if dtype is np.uint16 else math.inf
        assert (
            np.abs(ours[0].astype(float) - np.clip(theirs, 0 if limit < 1e9 else -1e9, limit)).max()
            <= 1
        )


@pytest.mark.parametrize("size", [(40, 50), (32, 32), (20, 100), (5, 5)])
@pytest.mark.parametrize("padding", [0, 4, 40])
def test_random_crop_cuts_from_the_padded_image(size: tuple[int, int], padding: int) -> None:
    """Against NumPy: pad with black, then cut; every place is reached, none beyond."""
    pixels = picture(*size) | 1  # no black inside
    crop = RandomCrop(32, padding)
    border = [padding + max(0, 32 - side - 2 * padding) for side in size]
    padded = np.pad(pixels, ((border[0],) * 2, (border[1],) * 2, (0, 0))).transpose(2, 0, 1)
    seen = set()
    for u in draws.uniforms(3, np.arange(300), 0, crop.draws).tolist():
        f = crop.frame(*size, u)
        top, left = f.out_top + border[0], f.out_left + border[1]
        seen.add(top)
        expected = padded[:, top : top + 32, left : left + 32]
        np.testing.assert_array_equal(render(pixels, f), expected)
    places = size[0] + 2 * border[0] - 32 + 1
    assert seen <= set(range(places))
    assert len(seen) > 0.5 * min(places, 100)
    assert {0, places - 1} <= seen or places > 60


@pytest.mark.parametrize(("length", "padding"), [(20, 0), (20, 4), (28, 2), (30, 4), (40, 3)])
def test_small_images_get_the_border_of_torchvisions(
    length: int, padding: int, torchvision: ModuleType
) -> None:
    crop: Any = torchvision.transforms.RandomCrop(32, padding, pad_if_needed=True)
    image = Image.new("L", (length, length), 255)
    theirs = {crop(image).getbbox() for _ in range(600)}
    own: Any = accept_crop(crop)
    tops = {own.frame(length, length, [i / 60, 0.5]).out_top for i in range(60)}
    assert {(max(0, -top), min(32, length - top)) for top in tops} == {
        (top, bottom) for _, top, _, bottom in theirs
    }


@pytest.mark.parametrize(
    "crop", [RandomResizedCrop(20), CenterCrop(50), RandomCrop(30, 2), Resize(25)]
)
@pytest.mark.parametrize(("hflip", "vflip"), [(True, False), (False, True), (True, True)])
def test_flips_mirror_the_result(crop: Any, hflip: bool, vflip: bool) -> None:
    pixels = picture(40, 60)
    frame = crop.frame(40, 60, [0.4] * crop.draws)
    plain = render(pixels, frame)
    flipped = render(pixels, frame, hflip=hflip, vflip=vflip)
    expected = plain[:, :: -1 if vflip else 1, :: -1 if hflip else 1]
    np.testing.assert_array_equal(flipped, expected)


def test_every_byte_of_the_output_is_written() -> None:
    """Outputs are uninitialised memory: whatever was there must not shine through."""
    for crop in (CenterCrop(70), RandomCrop(70), ResizeCenterCrop(70), RandomResizedCrop(70)):
        frame = crop.frame(40, 60, [0.5] * crop.draws)
        pixels = picture(40, 60)
        outs = []
        for poison in (0x00, 0xA5):
            out = np.full((3, 70, 70), poison, np.uint8)
            box = boxed(pixels, frame)
            rendering.render(box, frame, out, hflip=False, vflip=False, how="bilinear")
            outs.append(out)
        np.testing.assert_array_equal(outs[0], outs[1])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_as_pillows(orientation: int) -> None:
    pixels = picture(20, 30)
    image = Image.fromarray(pixels)
    image.getexif()[0x0112] = orientation
    expected = np.asarray(ImageOps.exif_transpose(image))
    turned = frames.orient(pixels, orientation)
    np.testing.assert_array_equal(turned, expected)
    assert turned.flags.c_contiguous


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomResizedCrop(0),
        lambda: RandomResizedCrop(224, scale=(0.5, 0.1)),
        lambda: RandomResizedCrop(224, scale=(0.0, 1.0)),
        lambda: RandomResizedCrop(224, ratio=(2.0, 1.0)),
        lambda: RandomResizedCrop(224, interpolation="lanczos"),
        lambda: CenterCrop((1, 2, 3)),  # type: ignore[arg-type]  # that is the point
        lambda: Resize(100, max_size=50),
        lambda: Resize((10, 10), max_size=50),
        lambda: ResizeCenterCrop(224, crop_pct=1.5),
        lambda: RandomCrop(32, padding=-1),
    ],
)
def test_senseless_arguments_are_refused(make: Any) -> None:
    with pytest.raises(OptionError, match=r"expected|needs"):
        make()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (CenterCrop, {"size": 2.5}), (CenterCrop, {"size": None}), (CenterCrop, {"size": True}),
        (CenterCrop, {"size": ("8", "8")}), (CenterCrop, {"size": (math.nan, 8)}),
        (RandomResizedCrop, {"size": 8, "scale": 0.5}),
        (RandomResizedCrop, {"size": 8, "scale": (0.5,)}),
        (RandomResizedCrop, {"size": 8, "scale": (0.1, 0.2, 0.3)}),
        (RandomResizedCrop, {"size": 8, "ratio": ("1", 2)}), (Resize, {"size": 8.0}),
        (Resize, {"size": 8, "max_size": 9.5}), (Resize, {"size": 8, "max_size": "9"}),
        (ResizeCenterCrop, {"size": 8, "crop_pct": "0.9"}),
        (RandomCrop, {"size": 8, "padding": 2.5}), (RandomCrop, {"size": 8, "padding": [1, 1]}),
    ],
)  # fmt: skip
def test_arguments_of_another_kind_are_refused(kind: Any, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"expected|needs"):
        kind(**options)


def test_integers_of_numpy_are_integers() -> None:
    eight: Any = np.int64(8)
    assert Resize(eight).frame(16, 32, []) == Resize(8).frame(16, 32, [])
    assert CenterCrop(eight).output_size == CenterCrop((eight, 8)).output_size == (8, 8)


def test_a_part_of_a_resized_image_is_the_part_of_all_of_it() -> None:
    """Bit for bit; with fast=True it may be moved by hundredths of a pixel."""
    draw = random.Random(0)
    smaller = 0
    for number in range(300):
        most = draw.choice([30, 200, 500])
        size = draw.randint(max(1, most // 8), most), draw.randint(max(1, most // 8), most)
        pixels = picture(*size, seed=number)[:, :, : draw.choice([1, 3])].copy()
        pixels = pixels.astype(draw.choice([np.uint8, np.uint8, np.uint16, np.float32]))
        how = draw.choice(["bilinear", "bicubic", "area", "nearest"])
        target = draw.choice([(24, 24), (97, 61), (draw.randint(1, 50), draw.randint(1, 50))])
        frame = ResizeCenterCrop(target, draw.choice([0.5, 0.875, 1.0]), how).frame(*size, [])
        whole = render(pixels, frame, how)
        part = frames.visible_part(frame, how)
        assert 0 <= part.top <= part.top + part.height <= size[0]
        assert 0 <= part.left <= part.left + part.width <= size[1]
        np.testing.assert_array_equal(render(pixels, part, how), whole)
        smaller += part[2:4] != frame[2:4]
        moved = render(pixels, frames.visible_part(frame, how, fast=True), how)
        error = np.square(moved.astype(np.float64) - whole).mean()
        assert error < 255**2 / 10**3.5, "35 dB"
    assert smaller > 80


def test_a_border_is_the_same_around_a_part() -> None:
    pixels = picture(120, 90)
    for out_top, out_left in [(-5, -7), (-5, 40), (30, -60), (100, 10), (10, 100)]:
        frame = Frame(10, 5, 100, 80, 60, 70, out_top, out_left, 40, 50)
        part = frames.visible_part(frame, "bilinear")
        np.testing.assert_array_equal(render(pixels, part), render(pixels, frame))


def test_what_evaluation_does_not_show_is_not_looked_at() -> None:
    frame = ResizeCenterCrop(224).frame(375, 500, [])
    exact, fast = (frames.visible_part(frame, "bilinear", fast=fast) for fast in (False, True))
    assert exact.height * exact.width < 0.8 * 375 * 500
    assert fast.height * fast.width < 0.65 * 375 * 500


@pytest.mark.parametrize(
    "crop",
    [
        RandomResizedCrop(24),
        RandomResizedCrop((64, 48), scale=(0.01, 1), ratio=(0.1, 10)),
        RandomResizedCrop(32, scale=(0.9, 1)),
        CenterCrop((24, 301)),
        Resize(24),
        Resize(200, 300),
        ResizeCenterCrop(224),
        ResizeCenterCrop((96, 64), 0.9, "bicubic"),
        ResizeCenterCrop(40, 1.0, "nearest"),
        RandomCrop((20, 40), 4),
        BucketCrop((64, 96)),
        BucketCrop((300, 200), small="pad", interpolation="bicubic"),
        BucketCrop((224, 224), "center", "pad", "nearest"),
    ],
)
@pytest.mark.parametrize("fast", [False, True])
def test_the_frames_of_a_batch_are_those_of_its_images(crop: Any, fast: bool) -> None:
    """Columns give the same bits as numbers, of frames, what they show, and stored boxes."""
    r, n = np.random.default_rng(0), 400
    height, width = r.integers(1, 600, n), np.concatenate([r.integers(1, 2000, 300), [40] * 100])
    height[-50:], orientation = 40, r.integers(1, 9, n)
    u = draws.uniforms(7, np.arange(n), 0, max(1, crop.draws))
    columns = crop.frame(height, width, u.T)
    sizes = list(zip(height.tolist(), width.tolist(), strict=True))
    one_by_one = [crop.frame(*size, own) for size, own in zip(sizes, u.tolist(), strict=True)]
    assert frames.each(columns, n) == one_by_one
    turns: Any = orientation, u[:, 0] < 0.5
    place = frames.Placement(columns, *turns)
    how = crop.interpolation
    wanted = regions.compute_need(place, height, width, how, fast=fast)
    for found, frame, turn, own, size in zip(
        frames.each(wanted, n), one_by_one, orientation.tolist(), u.tolist(), sizes, strict=True
    ):
        alone = frames.Placement(frame, turn, own[0] < 0.5)
        expected = regions.compute_need(alone, *size, how, fast=fast)
        assert found == expected
        assert isinstance(found.frame.top, int)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(50, 1), (1, 50), (1, 1)])
def test_a_turned_line_can_be_resized(size: tuple[int, int], orientation: int) -> None:
    """PyTorch refuses negative strides, also along a side of one pixel."""
    turned = frames.orient(picture(*size), orientation)
    assert min(turned.strides) > 0
    assert rendering.resize(turned, (4, 4), "bilinear").shape == (4, 4, 3)


def test_torchvisions_crops_are_taken_as_ours(torchvision: ModuleType) -> None:
    for transforms in (torchvision.transforms, torchvision.transforms.v2):
        bicubic = torchvision.transforms.InterpolationMode.BICUBIC
        assert accept_crop(transforms.RandomResizedCrop(24, (0.2, 1), interpolation=bicubic)) == (
            RandomResizedCrop((24, 24), (0.2, 1), interpolation="bicubic")
        )
        assert accept_crop(transforms.CenterCrop((20, 30))) == CenterCrop((20, 30))
        assert accept_crop(transforms.RandomCrop(20, 4)) == RandomCrop((20, 20), 4)
        assert accept_crop(transforms.Resize(20, max_size=30)) == Resize(20, 30)
        assert accept_crop(transforms.Resize((20, 30))) == Resize((20, 30))
        for other in (transforms.RandomCrop(20, padding_mode="reflect", padding=2),
                      transforms.CenterCrop, transforms.RandomHorizontalFlip()):  # fmt: skip
            with pytest.raises(OptionError, match="crop="):
                accept_crop(other)
    with pytest.raises(OptionError, match="size=None"):
        accept_crop(torchvision.transforms.v2.Resize(size=None, max_size=9))


@pytest.mark.parametrize("crop", [64, "center", RandomResizedCrop, (224, 224)])
def test_what_is_no_crop_is_refused(crop: Any) -> None:
    with pytest.raises(OptionError, match="expected an object such as"):
        accept_crop(crop)
