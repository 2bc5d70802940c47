"""Transforms of a dataset: of a whole batch as of one image, from the dataset's numbers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import native_core
import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data
from torch.utils.data import DataLoader

import packio
from packio.batches.framing import Draw
from packio.errors import OptionError, TransformError
from packio.ops import program
from packio.ops.pipeline import Pipeline, _numbers, split

if TYPE_CHECKING:
    from collections.abc import Iterator

photographs: Any = data  # it has no types
pytestmark = native_core.needed
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RECIPE = [
    packio.RandAugment(2, 9), packio.ColorJitter(0.4, 0.4, 0.4, 0.1), packio.GaussianBlur(5),
    packio.Normalize(MEAN, STD), packio.RandomErasing(0.7, value="random"),
]  # fmt: skip


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 JPEGs of two classes and several sizes."""
    root = tmp_path_factory.mktemp("pipeline")
    for number, photo in enumerate((photographs.astronaut(), photographs.coffee())):
        folder = root / "images" / f"class{number}"
        folder.mkdir(parents=True)
        for i in range(20):
            image = Image.fromarray(photo[8 * i : 8 * i + 100 + i, 5 * i : 5 * i + 140 - i])
            image.save(folder / f"{i:02d}.jpg", quality=90)
    return packio.pack(root / "images", root / "pack.lmdb").out


def _crop(**options: Any) -> dict[str, Any]:
    return {"crop": packio.RandomResizedCrop(48), "hflip": 0.5, "seed": 3, **options}


def _epoch(loader: Any) -> torch.Tensor:
    return torch.cat([images for images, _ in loader])


def test_workers_threads_and_single_samples_give_the_same(pack: Path) -> None:
    ds = packio.LmdbDataset(pack, transform=RECIPE, threads=3, **_crop())
    wanted = _epoch(packio.Loader(ds, 16, sampler=packio.ShuffleSampler(ds)))
    assert wanted.dtype == torch.float32
    for threads, workers, batch in ((1, 0, 16), (2, 2, 8)):
        other = packio.LmdbDataset(pack, transform=RECIPE, threads=threads, **_crop())
        sampler = packio.ShuffleSampler(other)
        loader = DataLoader(
            other, batch, sampler=sampler, num_workers=workers, collate_fn=packio.collate
        )
        assert torch.equal(_epoch(loader), wanted)
    sampler = packio.ShuffleSampler(ds)
    assert torch.equal(torch.stack([ds[index][0] for index in sampler]), wanted)


def test_another_epoch_and_another_seed_draw_others(pack: Path) -> None:
    ds = packio.LmdbDataset(pack, transform=packio.RandAugment(), **_crop(crop=None, hflip=0.0))
    plain = packio.LmdbDataset(pack)
    loader = packio.Loader(ds, 8)
    first, second = ([image for batch, _ in loader for image in batch] for _ in range(2))
    changed = [not torch.equal(a, b) for a, b in zip(first, second, strict=True)]
    assert sum(changed) > len(ds) / 2
    assert any(not torch.equal(image, plain[i][0]) for i, image in enumerate(first))
    other = packio.LmdbDataset(pack, transform=packio.RandAugment(), seed=4)
    again = [image for batch, _ in packio.Loader(other, 8) for image in batch]
    assert sum(not torch.equal(a, b) for a, b in zip(first, again, strict=True)) > len(ds) / 2


def test_a_run_resumes_with_the_same_batches(pack: Path) -> None:
    ds = packio.LmdbDataset(pack, transform=RECIPE, **_crop())
    loader = packio.Loader(ds, 8, shuffle=True)
    batches, states = [], []
    for images, _ in loader:
        batches.append(images.clone())
        states.append(loader.state_dict())
    again = packio.Loader(packio.LmdbDataset(pack, transform=RECIPE, **_crop()), 8, shuffle=True)
    again.load_state_dict(states[1])
    rest = [images for images, _ in again]
    assert len(rest) == len(batches) - 2
    assert all(map(torch.equal, rest, batches[2:]))


def test_crops_are_drawn_as_without_transforms(pack: Path) -> None:
    plain = packio.LmdbDataset(pack, **_crop())
    ds = packio.LmdbDataset(pack, transform=packio.RandomInvert(1.0), **_crop())
    for images, inverted in zip(packio.Loader(plain, 8), packio.Loader(ds, 8), strict=True):
        assert torch.equal(inverted[0], 255 - images[0])


def test_a_list_is_done_in_its_order(pack: Path) -> None:
    def add_one(image: torch.Tensor) -> torch.Tensor:
        return image + 1

    steps = [packio.RandomInvert(1.0), packio.RandomPosterize(4, 1.0), add_one, add_one]
    ds = packio.LmdbDataset(pack, transform=steps, **_crop())
    plain = packio.LmdbDataset(pack, **_crop())
    ours, wanted = (next(iter(packio.Loader(one, 8)))[0] for one in (ds, plain))
    assert torch.equal(ours, ((255 - wanted) & 0xF0) + 2)


def test_views_have_transforms_of_their_own(pack: Path) -> None:
    crops, normalize = [packio.CenterCrop(40), packio.CenterCrop(24)], packio.Normalize(MEAN, STD)
    each = [[packio.RandomInvert(1.0), normalize], normalize]
    ds = packio.LmdbDataset(pack, views=crops, transform=each)
    plain = packio.LmdbDataset(pack, views=crops)
    (large, small), _ = next(iter(packio.Loader(ds, 8)))
    (large_plain, small_plain), _ = next(iter(packio.Loader(plain, 8)))
    assert torch.equal(small, normalize(small_plain))
    assert torch.equal(large, normalize(255 - large_plain))
    assert torch.equal(ds[3][0][1], small[3])
    with pytest.raises(TransformError, match=r"floats of some views only.*\[\[…\]\] \* 2"):
        packio.LmdbDataset(pack, views=crops, transform=[packio.ColorJitter(0.4), normalize])
    both = packio.LmdbDataset(pack, views=crops, transform=packio.RandAugment(), seed=0)
    sampler = packio.ShuffleSampler(both)
    index = next(iter(sampler))
    assert [tuple(view.shape) for view in both[index][0]] == [(3, 40, 40), (3, 24, 24)]


def test_views_draw_numbers_of_their_own(pack: Path) -> None:
    ds = packio.LmdbDataset(
        pack, views=[packio.CenterCrop(60)] * 2, transform=packio.RandAugment(3, 20), seed=1
    )
    first, second = next(iter(packio.Loader(ds, 40)))[0]
    assert sum(not torch.equal(a, b) for a, b in zip(first, second, strict=True)) > 20


def test_images_of_several_sizes(pack: Path) -> None:
    plain = packio.LmdbDataset(pack)
    ds = packio.LmdbDataset(
        pack, transform=[packio.RandomInvert(1.0), packio.Normalize(MEAN, STD)], threads=2
    )
    images = ds.gather(range(40))[0]
    assert isinstance(images, list)
    normalize = packio.Normalize(MEAN, STD)
    assert all(torch.equal(image, normalize(255 - plain[i][0])) for i, image in enumerate(images))


def test_joined_packs_have_them_too(pack: Path) -> None:
    ds = packio.LmdbDataset(pack, transform=packio.RandAugment(2, 20), **_crop())
    joined = packio.ConcatPacks([ds, packio.LmdbDataset(pack, transform=packio.RandomInvert(1.0),
                                                        **_crop())])  # fmt: skip
    images, _ = joined.gather([*range(5), *range(40, 45)])
    assert images.shape == (10, 3, 48, 48)
    by_one = torch.stack([image for image, _ in joined.__getitems__([*range(5), *range(40, 45)])])
    assert torch.equal(images, by_one)


def test_out_is_changed_and_nothing_beside_it(pack: Path) -> None:
    ds = packio.LmdbDataset(pack, transform=packio.RandomInvert(1.0), crop=packio.CenterCrop(32))
    out = torch.full((10, 3, 32, 32), 77, dtype=torch.uint8)
    ds.gather(range(8), out=out[1:9])
    plain = packio.LmdbDataset(pack, crop=packio.CenterCrop(32)).gather(range(8))[0]
    assert torch.equal(out[1:9], 255 - plain)
    assert bool((out[::9] == 77).all())


def test_gray_images_stay_gray(pack: Path) -> None:
    ds = packio.LmdbDataset(pack, mode="GRAY", transform=[packio.RandAugment(3, 20)], seed=0)
    assert ds[0][0].shape[0] == 1


@pytest.mark.parametrize("output", ["pil", "numpy"])
def test_pillows_images_are_changed_before_they_are_made(output: str, pack: Path) -> None:
    ds = packio.LmdbDataset(
        pack, crop=packio.CenterCrop(20), output=output, transform=packio.RandomInvert(1.0)
    )
    plain = packio.LmdbDataset(pack, crop=packio.CenterCrop(20))
    for image in (ds[2][0], ds.__getitems__([2])[0][0]):
        wanted = 255 - plain[2][0].permute(1, 2, 0).numpy()
        assert np.array_equal(np.asarray(image), wanted)


def test_a_transform_that_is_set_later_counts(pack: Path) -> None:
    ds = packio.LmdbDataset(pack, crop=packio.CenterCrop(20), seed=1)
    before = ds[0][0]
    ds.transform = packio.RandomInvert(1.0)
    assert torch.equal(ds[0][0], 255 - before)
    ds.transform = packio.RandAugment(3, 25)
    index = next(iter(packio.ShuffleSampler(ds)))
    assert torch.equal(ds[index][0], ds[index][0])
    ds.transform = None
    assert torch.equal(ds[0][0], before)


def test_four_channels_are_refused_by_name(pack: Path) -> None:
    ds = packio.LmdbDataset(pack, mode="RGB_ALPHA", transform=packio.RandAugment(), seed=0)
    with pytest.raises(TransformError, match=r"RandAugment.*expected .*C 1 or 3; .*mode='RGB'"):
        ds.gather([0])


@pytest.mark.parametrize(
    "transform", [packio.RandomPerspective(0.5, 1.0), packio.GaussianBlur(5)], ids=["warp", "blur"]
)
def test_an_image_that_cannot_be_changed_is_named(transform: Any, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number, height in enumerate((20, 1)):
        Image.new("RGB", (20, height)).save(tmp_path / "a" / f"{number}.png")
    ds = packio.FolderDataset(tmp_path, transform=transform)
    for make in (lambda: ds[1], lambda: ds.gather([0, 1]), lambda: list(packio.Loader(ds, 2))):
        with pytest.raises(TransformError, match=r"sample 1 \('a/1\.png'\): "):
            make()


def test_erasing_before_normalize_erases_pixels(pack: Path) -> None:
    normalize, plain = packio.Normalize(MEAN, STD), packio.LmdbDataset(pack)
    erasing = packio.RandomErasing(1.0, (0.5, 0.5), (1.0, 1.0), value=255)
    image = packio.LmdbDataset(pack, transform=[erasing, normalize])[0][0]
    is_white = (image == normalize(torch.full((3, 1, 1), 255, dtype=torch.uint8))).all(0)
    assert 0.4 < is_white.double().mean() < 0.6
    assert torch.equal(image[:, ~is_white], normalize(plain[0][0])[:, ~is_white])


@pytest.mark.parametrize("transform", [3, [packio.RandAugment(), 3], [[3]]])
def test_what_is_no_transform_is_refused(transform: Any, pack: Path) -> None:
    with pytest.raises(OptionError, match="expected a function"):
        packio.LmdbDataset(pack, transform=transform)


@pytest.mark.parametrize("mode", ["P", "1", "RGBA", "CMYK", "HSV", "I;16"])
def test_pillows_images_of_other_modes_are_refused(mode: str) -> None:
    with pytest.raises(OptionError, match=f"mode {mode}; expected L or RGB"):
        packio.RandomInvert(1.0)(Image.new(mode, (5, 4)))


def test_a_split_keeps_the_order() -> None:
    def own(image: Any) -> Any:
        return image

    augment, normalize = packio.RandAugment(), packio.Normalize(MEAN, STD)
    erasing = packio.RandomErasing()
    assert split(None) == Pipeline()
    assert split([augment, normalize, erasing]) == Pipeline((augment,), normalize, (erasing,))
    assert split([own, augment, normalize]) == Pipeline(rest=(own, augment, normalize))
    assert split([augment, own, normalize]) == Pipeline((augment,), rest=(own, normalize))
    assert split([normalize, augment]) == Pipeline((), normalize, rest=(augment,))


def test_a_transform_alone_takes_numbers_of_torchs_generator() -> None:
    images = torch.from_numpy(photographs.astronaut()).permute(2, 0, 1)[:, ::4, ::4].contiguous()
    batch = torch.stack([images] * 6)
    for transform in (packio.RandAugment(3, 20), packio.RandomErasing(1.0)):
        torch.manual_seed(1)
        first = transform(batch)
        torch.manual_seed(1)
        assert torch.equal(transform(batch), first)
        assert not torch.equal(first[0], first[1])
        assert not torch.equal(transform(images), images)
        assert torch.equal(batch[5], images)  # the given ones stay


def test_erasing_is_as_often_and_as_large_as_torchvisions() -> None:
    erasing = packio.RandomErasing(0.3, (0.1, 0.2), (0.5, 2.0), value=9)
    numbers = torch.rand(
        4000, erasing.draws, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    ).tolist()
    shares, ratios = [], []
    for u in numbers:
        image = torch.zeros(1, 60, 80)
        erasing.erase(image, u)
        if image.any():
            assert {*image.flatten().tolist()} <= {0.0, 9.0}
            rows, columns = (image[0].any(dim).sum().item() for dim in (1, 0))
            assert image[0].sum() == 9 * rows * columns
            shares.append(rows * columns / 4800)
            ratios.append(rows / columns)
    assert abs(len(shares) / 4000 - 0.3) < 0.04
    assert 0.08 < min(shares) < 0.11
    assert 0.19 < max(shares) < 0.22
    assert abs(float(np.mean(shares)) - 0.15) < 0.005
    assert abs(float(np.mean(np.log(ratios)))) < 0.05


@pytest.mark.parametrize("mode", ["GRAY", "RGB_ALPHA"])
def test_erasing_says_if_the_channels_are_others(mode: str, pack: Path) -> None:
    erasing = packio.RandomErasing(0.0, value=(1, 2, 3))
    ds = packio.LmdbDataset(pack, mode=mode, crop=packio.CenterCrop(8), transform=erasing)
    with pytest.raises(TransformError, match=r"value=\(1, 2, 3\) for an image of [14] channels"):
        ds.gather(range(3))
    packio.LmdbDataset(pack, transform=erasing).gather(range(3))


def test_noise_is_that_of_its_numbers() -> None:
    erasing = packio.RandomErasing(1.0, (0.3, 0.3), value="random")
    u = [0.5] * erasing.draws
    first, second = torch.zeros(3, 50, 50), torch.zeros(3, 50, 50)
    erasing.erase(first, u)
    erasing.erase(second, u)
    assert torch.equal(first, second)
    noise = first[first != 0]
    assert abs(float(noise.mean())) < 0.1
    assert abs(float(noise.std()) - 1) < 0.1


def test_a_program_runs_in_threads_and_interrupts_nothing() -> None:
    from packio.system.threads import Threads

    images = torch.randint(0, 256, (50, 3, 20, 30), dtype=torch.uint8)
    programs = [[program.pack("invert")] * (i % 3) for i in range(50)]
    wanted = torch.stack([255 - x if i % 3 == 1 else x for i, x in enumerate(images)])
    for threads in (None, Threads(4)):
        made = images.clone()
        program.run(made, programs, threads)
        assert torch.equal(made, wanted)
    program.run(images[:0], [])


def test_explain_names_each_step(pack: Path) -> None:
    def own(image: torch.Tensor) -> torch.Tensor:
        return image

    ds = packio.LmdbDataset(pack, transform=[*RECIPE, own], **_crop())
    lines = ds.explain(8).splitlines()[1:]
    names = ("RandomResizedCrop", "RandAugment", "ColorJitter", "GaussianBlur", "Normalize",
             "RandomErasing", "own")  # fmt: skip
    for line, name in zip(lines, names, strict=True):
        assert name in line
        assert ("called by image" in line) == (name == "own")
        assert int(line.split()[0]) >= 0
    views = packio.LmdbDataset(pack, views=[packio.CenterCrop(8)] * 2)
    assert views.explain().count("view ") == 2
    joined = packio.ConcatPacks([ds.subset([]), ds])
    head, _, *told = joined.explain(8).splitlines()
    assert head == "dataset 1"
    assert [line[8:] for line in told] == [one[8:] for one in lines]


@pytest.fixture
def meta_by_default() -> Iterator[None]:
    """Tensors that are made without saying where have no values, as in a script for a GPU."""
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@pytest.mark.usefixtures("meta_by_default")
def test_another_default_device_changes_nothing(pack: Path) -> None:
    caches = (packio.ops.policies._magnitudes, packio.ops.policies._operation)
    each: list[Any] = [
        packio.RandAugment(), packio.TrivialAugmentWide(), packio.AutoAugment(),
        packio.RandomPerspective(0.5, 1.0), packio.TimmRandAugment(), packio.Normalize(MEAN, STD),
        packio.RandomErasing(1.0, value="random"), packio.RandomErasing(1.0, value=(1, 2, 3)),
    ]  # fmt: skip
    ds = packio.LmdbDataset(pack, transform=each, **_crop())
    index = list(packio.ShuffleSampler(ds))[:4]
    image = torch.zeros(3, 20, 20, dtype=torch.uint8, device="cpu")
    for cache in caches:
        cache.cache_clear()
    made = ds.gather(index)[0]
    alone = [one(image) for one in each if isinstance(one, packio.ops.Transform)]
    alone += [one(image.float()) for one in each if isinstance(one, packio.RandomErasing)]
    assert {one.device.type for one in (made, *alone)} == {"cpu"}
    torch.set_default_device(None)
    assert torch.equal(made, ds.gather(index)[0])


def test_what_makes_no_sense_together_is_refused(pack: Path) -> None:
    normalize, noise = packio.Normalize(MEAN, STD), packio.RandomErasing(1.0, value="random")
    with pytest.raises(TransformError, match="normalised twice"):
        packio.LmdbDataset(pack, transform=[normalize, normalize], **_crop())
    with pytest.raises(TransformError, match=r"put packio\.Normalize before it"):
        packio.LmdbDataset(pack, transform=noise, **_crop())[0]
    ds = packio.LmdbDataset(pack, dtype=torch.bfloat16, **_crop())
    with pytest.raises(OptionError, match="rounded to 16 bits"):
        packio.Loader(ds, 4, normalize=(MEAN, STD))


def test_explain_draws_nothing_from_generators(pack: Path) -> None:
    def draw(image: torch.Tensor) -> torch.Tensor:
        return image + int(torch.rand(()) < 2) + int(random.random() < 2)

    ds = packio.LmdbDataset(pack, transform=draw, **_crop())
    states = torch.get_rng_state(), random.getstate()
    ds.explain(2)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert "not measured: target_transform=" in packio.LmdbDataset(
        pack, target_transform=str, **_crop()
    ).explain(2)


def test_any_number_of_numbers_is_drawn(pack: Path) -> None:
    many = packio.RandomApply([packio.RandAugment(32, 9), packio.RandAugment(32, 9)], 1.0)
    assert many.draws > 64
    (numbers,) = _numbers([many], 1, Draw(5, np.array([3])), 0)
    assert len(numbers) == len(set(numbers)) == many.draws
    eight = packio.RandomApply([packio.RandomPerspective(0.5, 1.0)] * 8, 1.0)
    ds = packio.LmdbDataset(pack, transform=eight, **_crop())
    assert ds.gather(range(4))[0].shape == (4, 3, 48, 48)


def test_a_derived_class_is_called_and_not_planned(pack: Path) -> None:
    class Nothing(packio.RandomInvert):
        def __call__(self, images: torch.Tensor) -> torch.Tensor:
            return images

    ds = packio.LmdbDataset(pack, transform=Nothing(1.0))
    assert torch.equal(ds[0][0], packio.LmdbDataset(pack)[0][0])
    with pytest.raises(OptionError, match="expected a list of packio's transforms"):
        packio.RandomApply([Nothing(1.0)])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("RandomAffine", {"degrees": 9, "translate": 0.1}),
        ("RandomAffine", {"degrees": 9, "translate": ("0", 1)}),
        ("RandomAffine", {"degrees": 9, "scale": 1.2}),
        ("RandomAffine", {"degrees": 9, "scale": (2, 1)}),
        ("RandomAffine", {"degrees": 9, "shear": (1, 2, 3, "4")}),
        ("RandomAffine", {"degrees": 9, "center": 5}), ("RandomAffine", {"degrees": ("1", 2)}),
        ("RandomRotation", {"degrees": 9, "center": (1, 2, 3)}),
        ("RandomRotation", {"degrees": 9, "interpolation": [0]}),
        ("RandAugment", {"magnitude": 9.0}), ("RandAugment", {"num_ops": 2.0}),
        ("AutoAugment", {"policy": ["imagenet"]}), ("ColorJitter", {"brightness": ("0.5", 1)}),
        ("GaussianBlur", {"sigma": "0.5"}), ("GaussianBlur", {"sigma": (None, 1)}),
        ("RandomAdjustSharpness", {"sharpness_factor": "2"}),
        ("RandomAdjustSharpness", {"sharpness_factor": None}),
        ("RandomSolarize", {"threshold": "128"}), ("RandomSolarize", {"threshold": [128]}),
        ("RandomPerspective", {"distortion_scale": "0.5"}),
        ("RandomErasing", {"scale": 0.5}), ("RandomErasing", {"scale": ("0", 1)}),
        ("RandomErasing", {"ratio": 1}), ("RandomErasing", {"ratio": (1, np.inf)}),
        ("RandomErasing", {"value": np.zeros(3)}),
    ],
)  # fmt: skip
def test_arguments_of_another_kind_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="expected"):
        getattr(packio, name)(**options)


def test_numbers_of_numpy_are_numbers() -> None:
    images = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (2, 3, 9, 9), np.uint8))
    degrees: Any = np.float32(0)
    own = packio.RandomAffine(degrees, scale=(np.float64(2), np.float64(2)))
    assert torch.equal(own(images), packio.ops.affine(images, 0, (0, 0), 2, 0))
    numbers: Any = np.float32(0), np.zeros(2), np.float64(2), np.float32(0)
    assert torch.equal(packio.ops.affine(images, *numbers), own(images))


def test_images_that_are_too_long_are_told_of() -> None:
    with pytest.raises(TransformError, match=r"40000x1 pixels; .* 32,768 along a side"):
        packio.RandomInvert(1.0)(torch.zeros(3, 1, 40000, dtype=torch.uint8))


@pytest.mark.parametrize(
    "transform",
    [packio.GaussianBlur(23), packio.GaussianBlur(3, (1, float("inf"))),
     packio.RandomSolarize(float("nan"), 1.0), packio.RandomAdjustSharpness(float("nan"), 1.0)],
)  # fmt: skip
def test_values_without_a_meaning_are_told_of(transform: Any, pack: Path) -> None:
    ds = packio.LmdbDataset(pack, crop=packio.CenterCrop(8), transform=transform)
    with pytest.raises(TransformError, match=r"kernel's half|has no meaning"):
        ds.gather(range(3))
