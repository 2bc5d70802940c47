"""Other people's transforms and collate functions on packio's samples, the real libraries."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, default_collate

import packio
from packio.errors import TransformError


@pytest.fixture(scope="module")
def pack(image_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packs") / "photos.lmdb"
    packio.pack(image_folder, out)
    return out


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchvision_v1_on_pillow_images_equals_image_folder(
    pack: Path, image_folder: Path, torchvision: ModuleType, num_workers: int
) -> None:
    t = torchvision.transforms
    transform = t.Compose([t.Resize((32, 40)), t.ToTensor(), t.Normalize([0.5] * 3, [0.25] * 3)])
    ds = packio.LmdbDataset(pack, output="pil", transform=transform)
    theirs = torchvision.datasets.ImageFolder(image_folder)
    assert [Path(p).relative_to(image_folder).as_posix() for p, _ in theirs.samples] == list(
        ds.pack.keys()
    )
    assert ds.classes == theirs.classes
    assert ds.class_to_idx == theirs.class_to_idx
    batches = list(DataLoader(ds, batch_size=5, num_workers=num_workers))
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert labels.tolist() == theirs.targets
    for i, (path, _) in enumerate(theirs.samples):
        upright = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
        assert torch.equal(images[i], transform(upright))


def test_torchvision_v2_on_tensors(pack: Path, torchvision: ModuleType) -> None:
    v2 = torchvision.transforms.v2
    transform = v2.Compose(
        [v2.RandomHorizontalFlip(1.0), v2.ToDtype(torch.float32, scale=True), v2.RandomErasing(0.0)]
    )
    plain = packio.LmdbDataset(pack, crop=packio.CenterCrop(32))
    ds = plain.with_options(transform=transform)
    torch.testing.assert_close(ds[4][0], plain[4][0].flip(2).float() / 255)
    images, _ = next(iter(DataLoader(ds, batch_size=4, collate_fn=packio.collate)))
    assert torch.equal(images[3], ds[3][0])


@pytest.mark.parametrize("name", ["CutMix", "MixUp"])
@pytest.mark.parametrize("collate", [default_collate, packio.collate])
def test_cutmix_and_mixup_in_collate(
    pack: Path, torchvision: ModuleType, name: str, collate: Any
) -> None:
    ds = packio.LmdbDataset(pack, crop=packio.Resize((32, 32)), dtype=torch.float32)
    mix = getattr(torchvision.transforms.v2, name)(num_classes=len(ds.classes))

    def collate_and_mix(samples: list[Any]) -> Any:
        return mix(*collate(samples))

    for images, labels in DataLoader(ds, batch_size=5, num_workers=2, collate_fn=collate_and_mix):
        assert images.shape[1:] == (3, 32, 32)
        assert labels.shape == (len(images), 3)
        torch.testing.assert_close(labels.sum(1), torch.ones(len(images)))


def test_to_tensor_on_a_tensor_is_told_what_to_do(pack: Path, torchvision: ModuleType) -> None:
    ds = packio.LmdbDataset(pack, transform=torchvision.transforms.ToTensor())
    with pytest.raises(TransformError, match=r"ToTensor failed.*output='pil'"):
        ds[0]
    with pytest.raises(TransformError, match="output='pil'"):
        next(iter(DataLoader(ds, batch_size=2, num_workers=1)))


def test_albumentations_on_arrays(pack: Path) -> None:
    albumentations = pytest.importorskip("albumentations")
    transform = albumentations.Compose(
        [albumentations.HorizontalFlip(p=1.0), albumentations.CenterCrop(8, 9)]
    )
    plain = packio.LmdbDataset(pack, output="numpy")
    ds = plain.with_options(transform=transform)
    flipped = plain[6][0][:, ::-1]
    top, left = (flipped.shape[0] - 8) // 2, (flipped.shape[1] - 9) // 2
    np.testing.assert_array_equal(ds[6][0], flipped[top : top + 8, left : left + 9])
    images, _ = next(iter(DataLoader(ds, batch_size=4, num_workers=2)))
    assert images.shape == (4, 8, 9, 3)


def test_albumentations_to_tensor_is_made_contiguous(pack: Path) -> None:
    pytest.importorskip("albumentations")
    from albumentations.pytorch import ToTensorV2

    ds = packio.LmdbDataset(
        pack, crop=packio.CenterCrop(20), output="numpy", transform=ToTensorV2()
    )
    expected = ds.with_options(output="tensor", transform=None)[0][0]
    image = ds[0][0]  # no warning: the view is the library's, not the user's
    assert image.is_contiguous()
    assert torch.equal(image, expected)


def test_timm_sets_the_transform_afterwards(pack: Path, timm: ModuleType) -> None:
    ds = packio.LmdbDataset(pack, output="pil")
    loader = timm.data.create_loader(
        ds, input_size=(3, 32, 32), batch_size=5, is_training=True, no_aug=False,
        use_prefetcher=False, num_workers=2, color_jitter=0.2, auto_augment="rand-m5-n2",
    )  # fmt: skip
    assert ds.transform is not None
    seen = 0
    for images, labels in loader:
        assert images.shape[1:] == (3, 32, 32)
        assert images.dtype == torch.float32
        assert images.is_contiguous()
        seen += len(labels)
    assert seen == len(ds) // 5 * 5  # timm drops the last batch when it trains


def test_target_transform(pack: Path) -> None:
    ds = packio.LmdbDataset(pack, crop=packio.CenterCrop(8), target_transform=lambda y: y + 100)
    assert ds[0][1] == 100
    _, labels = packio.collate(ds.__getitems__([0, len(ds) - 1]))
    assert labels.tolist() == [100, 102]


@pytest.mark.parametrize("name", ["transform", "target_transform", "transforms"])
def test_a_failing_transform_names_the_sample(pack: Path, name: str) -> None:
    def fail(*_: Any) -> Any:
        raise KeyError("oops")

    options: dict[str, Any] = {"crop": packio.CenterCrop(8), name: fail}
    ds: Any = packio.LmdbDataset(pack, **options)
    both = packio.ConcatPacks([ds.subset([0]), ds])
    sample = rf"photos\.lmdb, sample 3 \('{ds.pack.key(3)}'\): .*fail failed on .*oops"
    works: list[Callable[[], Any]] = [
        lambda: ds[3], lambda: ds.gather([3, 5]), lambda: ds.subset([3])[0],
        lambda: ds.by_key(ds.pack.key(3)), lambda: both[4],
    ]  # fmt: skip
    for work in works:
        with pytest.raises(TransformError, match=sample) as raised:
            work()
        assert isinstance(raised.value.__cause__, KeyError)


@pytest.fixture
def street(tmp_path: Path) -> Path:
    """A pack of one image with a mask and a box."""
    pixels = np.zeros((20, 30, 3), np.uint8)
    item = {"image": pixels, "mask": pixels[:, :, 0], "boxes": [[1, 2, 5, 9]]}
    packio.pack([item], tmp_path / "street.tar")
    return tmp_path / "street.tar"


def test_a_transform_that_moves_the_image_alone_is_told_once(
    street: Path, torchvision: ModuleType
) -> None:
    v2 = torchvision.transforms.v2
    transform = v2.Compose([v2.ColorJitter(), torch.nn.Sequential(v2.RandomHorizontalFlip(1.0))])
    with pytest.warns(
        UserWarning, match="RandomHorizontalFlip moves the image alone, and mask, boxes would"
    ):
        ds = packio.TarDataset(street, transform=transform, fields=("image", "mask", "boxes"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(ds[0]) == 3


def test_transforms_that_move_nothing_or_all_are_not_told(
    street: Path, torchvision: ModuleType
) -> None:
    v2 = torchvision.transforms.v2
    flip = v2.RandomHorizontalFlip(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        packio.TarDataset(street, transform=v2.Compose([v2.ColorJitter(), v2.RandomErasing()]))
        packio.TarDataset(street, transform=v2.RandomPhotometricDistort())
        packio.TarDataset(street, transform=flip, fields=("image", "key"))
        packio.TarDataset(street, transforms=flip)
