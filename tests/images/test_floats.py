"""Floats of images: bit for bit those of torchvision's ToTensor and Normalize."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import native_core
import numpy as np
import pytest
import torch
from PIL import Image
from vision import import_torchvision

import packio
from packio.errors import OptionError, TransformError
from packio.images import floats, native
from packio.system.threads import Threads

if TYPE_CHECKING:
    from pathlib import Path

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
KINDS = {
    "imagenet": (MEAN, STD), "clip": ((0.48145466, 0.4578275, 0.40821073),
                                      (0.26862954, 0.26130258, 0.27577711)),
    "halves": ((0.5,) * 3, (0.5,) * 3), "odd": ((0.0, 1.0, 1 / 3), (1e-3, 7.5, 1 / 3)),
    "one": ((0.1307,), (0.3081,)), "scaled": None,
}  # fmt: skip


def torchvisions(image: np.ndarray, kind: str, dtype: torch.dtype) -> torch.Tensor:
    """What torchvision makes of (H, W, C) bytes, as a tensor of a type."""
    transforms = import_torchvision().transforms
    made = transforms.functional.to_tensor(np.ascontiguousarray(image))
    if KINDS[kind] is not None:
        made = transforms.functional.normalize(made, *map(list, KINDS[kind] or ()))
    result: torch.Tensor = made.to(dtype)
    return result


def _normalize(kind: str) -> packio.Normalize | None:
    return None if KINDS[kind] is None else packio.Normalize(*(KINDS[kind] or ()))


@functools.cache
def _bytes(channels: int) -> np.ndarray:
    """(16, 16, C): each channel has all 256 values, in an order of its own."""
    rng = np.random.default_rng(7)
    planes = [rng.permutation(256).astype(np.uint8) for _ in range(channels)]
    return np.stack(planes, axis=1).reshape(16, 16, channels)


@pytest.mark.parametrize("core", ["AVX2", "portable", ""])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_all_values_are_torchvisions(
    kind: str, dtype: torch.dtype, core: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not core:
        monkeypatch.setattr(native, "why_not", lambda: "it was left out")
    elif not native.why_not():
        with native_core.chosen(core):
            _check_all_values(kind, dtype)
        return
    _check_all_values(kind, dtype)


def _check_all_values(kind: str, dtype: torch.dtype) -> None:
    pixels = _bytes(3)
    expected = torchvisions(pixels, kind, dtype)
    planes = torch.from_numpy(pixels).permute(2, 0, 1)
    for image in (planes, planes.contiguous()):
        assert torch.equal(floats.to_floats(image, dtype, _normalize(kind)), expected)
    batch = torch.stack([planes, planes.flip(1), planes.flip(2)])
    for layout in (torch.contiguous_format, torch.channels_last):
        out = torch.empty(batch.shape, dtype=dtype).contiguous(memory_format=layout)
        for threads in (None, Threads(3)):
            out.fill_(9)
            made = floats.to_floats(batch, dtype, _normalize(kind), out, threads)
            assert made is out
            assert torch.equal(made[0], expected)
            assert torch.equal(made[2], expected.flip(2))


@pytest.mark.parametrize("channels", [1, 2, 4, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_number_of_channels(channels: int, dtype: torch.dtype) -> None:
    planes = torch.from_numpy(_bytes(channels)).permute(2, 0, 1)
    mean, std = torch.linspace(0, 1, channels), torch.linspace(0.1, 1, channels)
    expected = ((planes / 255 - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)).to(dtype)
    normalize = packio.Normalize(mean.tolist(), std.tolist())
    assert torch.equal(floats.to_floats(planes, dtype, normalize), expected)
    last = torch.empty((2, *planes.shape), dtype=dtype).to(memory_format=torch.channels_last)
    assert torch.equal(floats.to_floats(torch.stack([planes] * 2), dtype, normalize, last)[1],
                       expected)  # fmt: skip


def test_large_batches_in_parts() -> None:
    draw = torch.Generator().manual_seed(2)
    batch = torch.randint(0, 256, (70, 3, 61, 67), dtype=torch.uint8, generator=draw)
    expected = (batch / 255 - torch.tensor(MEAN).view(-1, 1, 1)) / torch.tensor(STD).view(-1, 1, 1)
    for threads in (None, Threads(2)):
        made = floats.to_floats(batch, torch.float32, packio.Normalize(MEAN, STD), None, threads)
        assert torch.equal(made, expected)


def test_integers_of_16_bits_and_floats_are_computed() -> None:
    wide = torch.from_numpy(np.arange(0, 65536, 257, dtype=np.uint16).reshape(1, 16, 16))
    expected = torch.from_numpy(wide.numpy().astype(np.float32)) / 65535
    assert torch.equal(floats.to_floats(wide, torch.float32), expected)
    normalize = packio.Normalize([0.5], [0.25])
    assert torch.equal(normalize(wide), (expected - 0.5) / 0.25)
    assert torch.equal(normalize(expected), (expected - 0.5) / 0.25)
    assert normalize(expected.half()).dtype == torch.float16


def test_no_image_is_an_empty_batch() -> None:
    for shape in ((0, 3, 8, 8), (4, 3, 0, 8)):
        made = floats.to_floats(torch.empty(shape, dtype=torch.uint8), torch.float16)
        assert (tuple(made.shape), made.dtype) == (shape, torch.float16)


@pytest.mark.parametrize(
    ("mean", "std", "said"),
    [
        ([123.7, 116.3, 103.5], [58.4, 57.1, 57.4], r"not in 0\.\.255"),
        ([0.5], [0.0], "above 0"),
        ([0.5, 0.5], [0.5], "one a channel"),
        ([], [], "one a channel"),
        ([float("nan")], [0.5], "means in"),
        ([0.5, 0.5], [0.5, float("nan")], "means in"),
        ([0.5], [float("inf")], "means in"),
        ("ab", [0.5, 0.5], "expected a list of numbers"),
        (0.5, [0.5], r"expected a list of numbers, as \[0\.5\]"),
        ([0.5], [58.4], r"not in 0\.\.255"),
    ],
)
def test_what_cannot_be_meant_is_refused(mean: Any, std: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        packio.Normalize(mean, std)


# ---- of datasets and loaders ----


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from skimage import data

    folder = tmp_path_factory.mktemp("photos")
    module: Any = data
    sources = [module.astronaut(), module.chelsea(), module.coffee()]
    for i in range(13):
        kind = "png" if i % 4 == 3 else "jpg"
        path = folder / "ab"[i % 2] / f"{i:02}.{kind}"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(sources[i % 3][i:, i:]).save(path, quality=91)
    return folder


PACKS: dict[str, dict[str, Any]] = {
    "lmdb": {}, "tar": {}, "h5": {"encode": "raw", "resize": "exact=80x70"},
    "zarr": {"encode": "png", "resize": "short=96"},
}  # fmt: skip


@pytest.fixture(scope="module", params=PACKS)
def pack(request: pytest.FixtureRequest, photos: Path, tmp_path_factory: Any) -> Path:
    out: Path = tmp_path_factory.mktemp("packs") / f"out.{request.param}"
    packio.pack(photos, out, **PACKS[request.param])
    return out


CROPS: list[dict[str, Any]] = [
    {"crop": packio.RandomResizedCrop(48), "hflip": 0.5},
    {"crop": packio.RandomCrop(40)},
    {},
    {"views": [packio.RandomResizedCrop(48), packio.CenterCrop(32)]},
    {"crop": packio.CenterCrop(24), "mode": "GRAY"},
]


def _views(image: Any) -> list[Any]:
    return list(image) if isinstance(image, (tuple, list)) else [image]


def _expected(image: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    normalize = MEAN[: len(image)], STD[: len(image)]
    mean, std = (torch.tensor(each).view(-1, 1, 1) for each in normalize)
    return ((image / 255 - mean) / std).to(dtype)


@pytest.mark.parametrize("dtype", [torch.uint8, *DTYPES])
@pytest.mark.parametrize("options", CROPS)
def test_a_dataset_gives_normalised_floats_however_it_is_asked(
    pack: Path, options: dict[str, Any], dtype: torch.dtype
) -> None:
    channels = 1 if "mode" in options else 3
    normalize = packio.Normalize(MEAN[:channels], STD[:channels])
    plain = packio.PackDataset(pack, seed=5, fields="image", **options)
    ds = plain.with_options(transform=normalize, dtype=dtype)
    wanted = torch.float32 if dtype == torch.uint8 else dtype
    indices = [*packio.ShuffleSampler(plain)]
    expected = [[_expected(v, wanted) for v in _views(plain[index])] for index in indices]

    def check(images: list[Any]) -> None:
        for image, views in zip(images, expected, strict=True):
            assert all(map(torch.equal, _views(image), views))
            assert {view.dtype for view in _views(image)} == {wanted}
            assert all(view.is_contiguous() for view in _views(image))

    check([ds[index] for index in indices])
    check(ds.__getitems__(indices))
    batch = ds.gather(indices)
    check(list(zip(*batch, strict=True)) if "views" in options else list(batch))
    if isinstance(batch, torch.Tensor):
        out = torch.empty_like(batch)
        assert ds.gather(indices, out=out) is out
        check(list(out))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dtype", [None, *DTYPES])
def test_a_loader_gives_them_for_any_dataset_and_no_device(
    pack: Path, dtype: Any, workers: int
) -> None:
    ds = packio.PackDataset(pack, seed=5, crop=packio.RandomResizedCrop(32), fields="image")
    expected = [_expected(image, dtype or torch.float32)
                for batch in packio.Loader(ds, 4, shuffle=True) for image in batch]  # fmt: skip
    for options in ({}, {"memory_format": torch.channels_last}, {"device": "cpu"}):
        loader = packio.Loader(
            ds, 4, shuffle=True, num_workers=workers, dtype=dtype, normalize=(MEAN, STD), **options
        )
        batches = list(loader)
        layout = options.get("memory_format", torch.contiguous_format)
        assert all(batch.is_contiguous(memory_format=layout) for batch in batches)
        assert all(map(torch.equal, [image for batch in batches for image in batch], expected))
    own = packio.Loader(ds, 4, shuffle=True, dtype=dtype, normalize=packio.Normalize(MEAN, STD))
    assert all(map(torch.equal, [image for batch in own for image in batch], expected))
    foreign = torch.utils.data.TensorDataset(torch.stack([ds[i] for i in range(6)]))
    (made,) = packio.Loader(foreign, 6, dtype=dtype, normalize=(MEAN, STD))
    assert torch.equal(made[0][2], _expected(foreign[2][0], dtype or torch.float32))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_makes_floats_of_images_of_several_sizes(pack: Path, workers: int) -> None:
    for fields, at in (("image", None), (("label", "image"), 1), ({"x": "image"}, "x")):
        ds = packio.PackDataset(pack, fields=fields)
        loader = packio.Loader(ds, 7, num_workers=workers, normalize=(MEAN, STD))
        images = [image for batch in loader for image in (batch if at is None else batch[at])]
        samples = [ds[i] if at is None else ds[i][at] for i in range(len(ds))]
        assert (len({image.shape for image in samples}) > 1) == (pack.suffix != ".h5")
        assert all(map(torch.equal, images, [_expected(x, torch.float32) for x in samples]))


@pytest.mark.parametrize("option", [{"dtype": torch.float16}, {"normalize": (MEAN, STD)}])
@pytest.mark.parametrize("output", ["pil", "numpy"])
def test_a_loader_makes_no_floats_of_pillows_images(pack: Path, output: str, option: Any) -> None:
    plain = packio.PackDataset(pack, output=output, crop=packio.CenterCrop(32), fields="image")
    with pytest.raises(OptionError, match="need images that are tensors"):
        packio.Loader(plain, 4, **option)
    transforms = import_torchvision().transforms
    ds = plain.with_options(transform=transforms.ToTensor())
    batch = next(iter(packio.Loader(ds, 4, **option)))
    assert batch.dtype == option.get("dtype", torch.float32)


@pytest.mark.parametrize(
    "image", [torch.zeros(4, 4, dtype=torch.uint8), torch.zeros(3, 4, 4, dtype=torch.bool), "no"]
)
def test_what_is_no_image_is_refused(image: Any) -> None:
    with pytest.raises(OptionError, match="expected a tensor of numbers"):
        packio.Normalize([0.5], [0.5])(image)


def test_inference_mode_leaves_nothing_behind() -> None:
    normalize = packio.Normalize([0.25], [0.75])
    with torch.inference_mode():
        normalize(torch.zeros(1, 2, 2))
    weight = torch.zeros(1, 2, 2, requires_grad=True)
    torch.autograd.backward(normalize(weight).sum())
    assert weight.grad is not None


def test_images_are_normalised_once_beside_other_functions(pack: Path) -> None:
    plain = packio.PackDataset(pack, crop=packio.CenterCrop(32), fields=("image", "index"))
    expected = _expected(plain[2][0], torch.float32)
    ds = plain.with_options(
        fields=("image", "label"), transform=packio.Normalize(MEAN, STD), target_transform=str
    )
    assert torch.equal(ds[2][0], expected)
    assert torch.equal(ds.gather([2])[0][0], expected)
    joined = packio.ConcatPacks([ds, ds])
    assert torch.equal(joined.gather([2, 2 + len(ds)])[0][1], expected)


class _More(packio.Normalize):
    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return super().__call__(image) + 100


def test_a_class_derived_from_it_is_called(pack: Path) -> None:
    plain = packio.PackDataset(pack, crop=packio.CenterCrop(32), fields="image")
    ds = plain.with_options(transform=_More(MEAN, STD))
    expected = _expected(plain[2], torch.float32) + 100
    assert torch.equal(ds[2], expected)
    assert torch.equal(ds.gather([2])[0], expected)


def test_a_transform_that_is_set_later_counts(pack: Path) -> None:
    ds: Any = packio.PackDataset(pack, crop=packio.CenterCrop(32), fields="image")
    image = ds[1]
    ds.transform = packio.Normalize(MEAN, STD)
    for made in (ds[1], ds.gather([1])[0], ds.__getitems__([1])[0]):
        assert torch.equal(made, _expected(image, torch.float32))
    ds.transform = lambda tensor: packio.Normalize(MEAN, STD)(tensor).double()
    assert torch.equal(ds[1], _expected(image, torch.float32).double())
    ds.transform = None
    assert torch.equal(ds.gather([1])[0], image)


def test_joined_packs_have_one_type(photos: Path, tmp_path: Path) -> None:
    packio.pack(photos, tmp_path / "a.lmdb")
    plain = packio.PackDataset(tmp_path / "a.lmdb", crop=packio.CenterCrop(32))
    floats_of = plain.with_options(transform=packio.Normalize(MEAN, STD))
    joined = packio.ConcatPacks([floats_of, floats_of])
    assert torch.equal(joined.gather([14, 2])[0][0], floats_of[1][0])
    with pytest.raises(OptionError, match="dtype differ"):
        packio.ConcatPacks([plain, floats_of])


def test_means_of_other_images_are_refused(photos: Path, tmp_path: Path) -> None:
    packio.pack(photos, tmp_path / "a.lmdb")
    gray = packio.PackDataset(
        tmp_path / "a.lmdb", mode="GRAY", crop=packio.CenterCrop(32),
        transform=packio.Normalize(MEAN, STD),
    )  # fmt: skip
    with pytest.raises(OptionError, match="3 means for images of 1 channel"):
        _ = gray[0]
    with pytest.raises(OptionError, match="3 means for images of 1 channel"):
        gray.gather([0, 1])
    with pytest.raises(OptionError, match="needs output='tensor'; output is 'numpy'"):
        packio.PackDataset(
            tmp_path / "a.lmdb", output="numpy", transform=packio.Normalize(MEAN, STD)
        )


@pytest.mark.filterwarnings("ignore:Turned has a __getitem__:UserWarning")
def test_batches_of_another_form_are_prepared_or_refused(pack: Path) -> None:
    def rename(samples: Any) -> Any:
        images, labels = packio.collate(samples)
        return {"labels": labels, "pixel_values": images}

    ds = packio.PackDataset(pack, crop=packio.CenterCrop(32))
    expected = _expected(ds[0][0], torch.float32)
    batch = next(iter(packio.Loader(ds, 4, collate_fn=rename, normalize=(MEAN, STD))))
    assert torch.equal(batch["pixel_values"][0], expected)

    class Turned(packio.PackDataset):
        def __getitem__(self, index: Any) -> Any:
            image, label = super().__getitem__(index)
            return label, image

    turned = next(iter(packio.Loader(Turned(pack, crop=packio.CenterCrop(32)), 4,
                                     normalize=(MEAN, STD))))  # fmt: skip
    assert torch.equal(turned[1][0], expected)
    for empty, options in ((ds.with_options(fields="label"), {"dtype": torch.float16}),
                           (list(range(4)), {"normalize": (MEAN, STD)})):  # fmt: skip
        with pytest.raises(OptionError, match="no images"):
            next(iter(packio.Loader(empty, 4, **options)))


def test_a_loader_leaves_classes_of_pixels_alone() -> None:
    images, masks = torch.full((4, 3, 8, 8), 255, dtype=torch.uint8), torch.ones(4, 1, 8, 8)
    foreign = torch.utils.data.TensorDataset(images, masks.long(), masks.bool())
    made = next(iter(packio.Loader(foreign, 4, normalize=([0.5] * 3, [0.5] * 3))))
    assert [part.dtype for part in made] == [torch.float32, torch.int64, torch.bool]
    assert (int(made[0].min()), int(made[1].max())) == (1, 1)


@pytest.mark.parametrize("given", [0.5, "ab", {"mean": 0.5, "std": 0.5}, ([0.5],), (1, 2, 3)])
def test_normalize_of_another_kind_is_refused(given: Any, pack: Path) -> None:
    with pytest.raises(OptionError, match=r"expected \(mean, std\), as"):
        packio.Loader(packio.PackDataset(pack), 4, normalize=given)


def test_nobody_normalises_twice(pack: Path) -> None:
    ds = packio.PackDataset(pack, transform=packio.Normalize([0.5], [0.5]))
    for dataset in (ds, packio.ConcatPacks([ds, ds])):
        with pytest.raises(OptionError, match="normalised twice"):
            packio.Loader(dataset, 4, normalize=(MEAN, STD))


def test_transforms_that_cannot_be_meant_are_told(pack: Path) -> None:
    plain = packio.PackDataset(pack, crop=packio.CenterCrop(32))
    with pytest.raises(TransformError, match="returned None; no return"):
        _ = plain.with_options(transform=lambda _: None)[0]
    theirs = import_torchvision().transforms.v2.Normalize([0.5], [0.5])
    with pytest.raises(TransformError, match=r"packio\.Normalize\(mean, std\) takes bytes"):
        _ = plain.with_options(transform=theirs)[0]


def test_other_images_of_a_sample_keep_their_type(photos: Path, tmp_path: Path) -> None:
    packio.pack(photos, tmp_path / "a.lmdb")
    depths = {}
    for path in photos.rglob("*.*"):
        with Image.open(path) as image:
            width, height = image.size
        pixels = np.arange(height * width).astype(np.uint16).reshape(height, width)
        Image.fromarray(pixels).save(tmp_path / "depth.png")
        depths[path.relative_to(photos).as_posix()] = (tmp_path / "depth.png").read_bytes()
    packio.add_field(tmp_path / "a.lmdb", "depth", depths, kind="image")
    ds = packio.PackDataset(
        tmp_path / "a.lmdb", crop=packio.CenterCrop(16), fields=("image", "depth"),
        transform=packio.Normalize(MEAN, STD),
    )  # fmt: skip
    plain = ds.with_options(transform=None)
    (batch, *_) = packio.Loader(plain, 3, normalize=(MEAN, STD))
    batched = [column[0] for column in ds.gather([2])], [column[2] for column in batch]
    for floats_of, depth in (ds[2], *batched):
        assert (floats_of.dtype, depth.dtype) == (torch.float32, torch.uint16)
        assert torch.equal(floats_of, _expected(plain[2][0], torch.float32))
