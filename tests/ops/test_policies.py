"""Policies: each operation has the pixels of torchvision's or timm's, and comes as often."""

from __future__ import annotations

import collections
import itertools
import struct
from typing import Any

import native_core
import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data
from vision import import_torchvision

import packio
from packio.errors import OptionError
from packio.ops import program

photographs: Any = data  # it has no types
pytestmark = native_core.needed
_DRAWS = 20_000


def _photo() -> Image.Image:
    return Image.fromarray(photographs.astronaut()).resize((61, 47))


def _tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def _applied(operations: list[bytes], image: Image.Image) -> torch.Tensor:
    made = _tensor(image)[None].clone()
    program.run(made, [operations])
    return made[0]


@pytest.mark.parametrize("fill", [None, 7, (255, 0, 90)])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("kind", ["rand", "wide", "auto"])
def test_operations_have_the_pixels_of_torchvisions(
    kind: str, interpolation: str, fill: Any
) -> None:
    autoaugment = import_torchvision().transforms.autoaugment
    how = import_torchvision().transforms.InterpolationMode(interpolation)
    theirs, ours, bins = {
        "rand": (autoaugment.RandAugment(), packio.RandAugment, 31),
        "wide": (autoaugment.TrivialAugmentWide(), packio.TrivialAugmentWide, 31),
        "auto": (autoaugment.AutoAugment(), packio.AutoAugment, 10),
    }[kind]
    policy = ours(interpolation=interpolation, fill=fill)
    photo = _photo()
    size = () if kind == "wide" else ((photo.height, photo.width),)
    space = theirs._augmentation_space(bins, *size)
    levels = range(bins) if interpolation == "nearest" else range(0, bins, 7)
    for (name, (magnitudes, signed)), level, sign in itertools.product(
        space.items(), levels, (0.2, 0.7)
    ):
        magnitude = magnitudes[level].item() if magnitudes.ndim else 0.0
        magnitude = -magnitude if signed and sign < 0.5 else magnitude
        wanted = autoaugment._apply_op(photo, name, magnitude, interpolation=how, fill=fill)
        made = _applied(policy._plan(name, level, bins, sign, photo.height, photo.width), photo)
        assert torch.equal(made, _tensor(wanted)), (name, level, sign)


@pytest.mark.parametrize("policy", ["imagenet", "cifar10", "svhn"])
def test_the_policies_are_torchvisions(policy: str) -> None:
    autoaugment = import_torchvision().transforms.autoaugment
    theirs = autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy(policy)).policies
    ours = packio.ops.policies._parse(policy)
    assert [[(n, p, level or 0) for n, p, level in pair] for pair in theirs] == ours
    assert packio.AutoAugment(autoaugment.AutoAugmentPolicy(policy)) == packio.AutoAugment(policy)


@pytest.mark.parametrize("increasing", [0, 1])
def test_operations_have_the_pixels_of_timms(
    increasing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_torchvision()
    theirs = pytest.importorskip("timm.data.auto_augment")
    photo, fill = _photo(), (124, 116, 104)
    for how in ("bilinear", "bicubic"):
        ours = packio.TimmRandAugment(f"rand-m9-inc{increasing}", fill, how)
        hparams = {"img_mean": fill, "interpolation": getattr(Image.Resampling, how.upper())}
        for name, plain in zip(ours.names, packio.ops.timm._NAMES, strict=True):
            for level, turn in itertools.product((0.0, 0.3, 4.5, 9.0, 10.0), (0.1, 0.9)):
                is_black = int(level / 10 * 4) == (4 if increasing else 0)
                if name.startswith("Posterize") and is_black:
                    continue  # Pillow 13 refuses 0 bits
                operation = theirs.AugmentOp(name, 1.0, level, hparams)
                monkeypatch.setattr(theirs.random, "random", lambda turn=turn: turn)
                wanted = operation(photo)
                made = _applied(ours._plan(plain, level, turn, 0.0, 47, 61), photo)
                assert torch.equal(made, _tensor(wanted)), (name, level, turn)


def _count(policy: Any, draws: int) -> tuple[collections.Counter[int], list[int]]:
    """How often each operator comes in some draws, and how many operations each image gets."""
    numbers = torch.rand(
        draws, policy.draws, dtype=torch.float64, generator=torch.Generator().manual_seed(5)
    )
    counts: collections.Counter[int] = collections.Counter()
    each = []
    for u in numbers.tolist():
        operations = policy.operations(u, 3, 224, 224)
        counts.update(struct.unpack_from("@i", one)[0] for one in operations)
        each.append(len(operations))
    return counts, each


def _is_near(count: float, share: float, draws: int) -> bool:
    """Whether a count is within 5 standard deviations of its share of some draws."""
    return bool(abs(count - share * draws) < 5 * (share * (1 - share) * draws) ** 0.5 + 1)


def test_operations_come_as_often_as_torchvisions() -> None:
    names = program.OPERATORS
    for policy, times in ((packio.RandAugment(2, 9), 2), (packio.TrivialAugmentWide(), 1)):
        counts, _ = _count(policy, _DRAWS)
        of_one = {"brightness", "contrast", "saturation", "sharpness", "solarize", "autocontrast",
                  "equalize"}  # fmt: skip
        for name in of_one:
            assert _is_near(counts[names[name]], 1 / 14, times * _DRAWS), (policy, name)
        assert _is_near(counts[names["affine"]], 5 / 14, times * _DRAWS)


def test_operations_come_as_often_as_timms() -> None:
    counts, each = _count(packio.TimmRandAugment("rand-m9-mstd0.5-inc1-n3-p0.4"), _DRAWS)
    assert _is_near(sum(each), 0.4, 3 * _DRAWS)
    for name in ("equalize", "invert", "posterize", "solarize", "solarize_add", "sharpness"):
        assert _is_near(counts[program.OPERATORS[name]], 0.4 / 15, 3 * _DRAWS), name


def test_pairs_of_autoaugment_come_alike() -> None:
    counts, _ = _count(packio.AutoAugment("imagenet"), _DRAWS)
    wanted: dict[str, float] = collections.defaultdict(float)
    for pair in packio.ops.policies._parse("imagenet"):
        for name, p, _ in pair:
            wanted[name] += p
    for name, ours in (("Equalize", "equalize"), ("Invert", "invert"), ("Solarize", "solarize"),
                       ("Color", "saturation")):  # fmt: skip
        found = counts[program.OPERATORS[ours]]
        assert abs(found - wanted[name] / 25 * _DRAWS) < 5 * (found**0.5) + 1, name


def test_timms_magnitudes_are_normal_or_uniform() -> None:
    generator = torch.Generator().manual_seed(2)
    pairs = torch.rand(_DRAWS, 2, dtype=torch.float64, generator=generator).tolist()
    normal = np.array([packio.TimmRandAugment("rand-m5-mstd0.5")._level(*u) for u in pairs])
    assert abs(normal.mean() - 5) < 0.02
    assert abs(normal.std() - 0.5) < 0.02
    uniform = np.array([packio.TimmRandAugment("rand-m8-mstd101")._level(*u) for u in pairs])
    assert abs(uniform.mean() - 4) < 0.1
    assert uniform.min() < 0.05
    assert uniform.max() > 7.95


@pytest.mark.parametrize(
    "make",
    [
        lambda: packio.RandAugment(2, 31), lambda: packio.RandAugment(2, 9, 1),
        lambda: packio.RandAugment(interpolation="lanczos"), lambda: packio.RandAugment(fill=300),
        lambda: packio.TrivialAugmentWide(num_magnitude_bins=1),
        lambda: packio.AutoAugment("cifar"), lambda: packio.TimmRandAugment("augmix-m3"),
        lambda: packio.TimmRandAugment("rand-x9"), lambda: packio.TimmRandAugment("rand-n99"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(make: Any) -> None:
    with pytest.raises(OptionError):
        make()


def test_a_string_of_timm_goes_to_its_own_class() -> None:
    given: Any = "rand-m9"
    with pytest.raises(OptionError, match=r"packio\.TimmRandAugment takes strings of timm"):
        packio.RandAugment(given)
