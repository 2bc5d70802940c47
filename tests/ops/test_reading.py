"""A Compose of torchvision or timm gives, as a dataset's transform, what it gives by itself."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import native_core
import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data
from vision import import_torchvision

import packio
from packio.errors import OptionError, TransformError
from packio.images import native
from packio.ops import program, reading
from packio.ops.reading import ToPillow

photographs: Any = data  # it has no types
pytestmark = native_core.needed
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PNGs of two classes, larger than the crops."""
    root = tmp_path_factory.mktemp("compose")
    for number, photo in enumerate((photographs.astronaut(), photographs.coffee())):
        (root / f"class{number}").mkdir()
        for i in range(3):
            image = Image.fromarray(photo[40 * i : 40 * i + 120, 30 * i : 30 * i + 150])
            image.save(root / f"class{number}" / f"{i}.png")
    return root


def _steps(transforms: Any) -> dict[str, list[Any]]:
    """Steps whose parameters are fixed, so that the result is known."""
    t = transforms
    return {
        "none": [],
        "jitter": [t.ColorJitter((1.4, 1.4)), t.ColorJitter(0, (0.6, 0.6)),
                   t.ColorJitter(saturation=(0.3, 0.3))],
        "hue": [t.ColorJitter(hue=(0.2, 0.2))],
        "gray": [t.RandomGrayscale(1.0), t.RandomInvert(1.0)],
        "tones": [t.RandomPosterize(3, 1.0), t.RandomSolarize(100, 1.0), t.RandomAutocontrast(1.0)],
        "sharp": [t.RandomAdjustSharpness(1.7, 1.0), t.RandomEqualize(1.0)],
        "rotation": [t.RandomRotation((33, 33), t.InterpolationMode.BILINEAR, fill=9)],
        "affine": [t.RandomAffine((20, 20), None, (1.25, 1.25), (5, 5, 3, 3),
                                  interpolation=t.InterpolationMode.BICUBIC, fill=(1, 2, 3))],
        "apply": [t.RandomApply([t.RandomInvert(1.0), t.RandomEqualize(1.0)], 1.0)],
        "nested": [t.Compose([t.RandomInvert(1.0)]), t.RandomHorizontalFlip(0.0)],
    }  # fmt: skip


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("end", ["bytes", "floats", "normalised"])
@pytest.mark.parametrize(
    "name",
    ["none", "jitter", "hue", "gray", "tones", "sharp", "rotation", "affine", "apply", "nested"],
)
def test_a_compose_gives_what_it_gives_by_itself(
    name: str, end: str, version: str, folder: Path
) -> None:
    transforms = import_torchvision().transforms
    t = transforms.v2 if version == "v2" else transforms
    steps = [t.CenterCrop((96, 110)), t.RandomHorizontalFlip(1.0), *_steps(t)[name]]
    if end == "bytes":
        steps.append(t.PILToTensor())
    elif version == "v2":
        steps += [t.ToImage(), t.ToDtype(torch.float32, scale=True)]
    else:
        steps.append(t.ToTensor())
    steps += [t.Normalize(MEAN, STD)] if end == "normalised" else []
    compose = t.Compose(steps)
    ds = packio.FolderDataset(folder, transform=compose, seed=1)
    assert not any(pipeline.rest for pipeline in ds._pipelines)
    batch = ds.gather(range(len(ds)))[0]
    for i, (path, _) in enumerate(ds.samples):
        with Image.open(folder / path) as image:
            wanted = compose(image.convert("RGB"))
        assert ds[i][0].dtype == wanted.dtype
        assert torch.equal(ds[i][0], torch.as_tensor(wanted))
        assert torch.equal(batch[i], ds[i][0])


def test_what_is_not_known_is_called_with_pillows_image(folder: Path) -> None:
    t = import_torchvision().transforms
    seen: list[Any] = []

    def own(image: Any) -> Any:
        seen.append((type(image), image.size))
        return image.rotate(90, expand=True)

    ds = packio.FolderDataset(
        folder, transform=t.Compose([t.CenterCrop((96, 110)), t.RandomInvert(1.0), own,
                                     t.RandomEqualize(1.0), t.ToTensor()])
    )  # fmt: skip
    (pipeline,) = ds._pipelines
    assert len(pipeline.transforms) == 1
    assert isinstance(pipeline.rest[0], ToPillow)
    with Image.open(folder / ds.samples[0][0]) as image:
        wanted = ds.transform[-1](
            t.functional.equalize(
                t.functional.invert(t.functional.center_crop(image, (96, 110))).rotate(
                    90, expand=True
                )
            )
        )
    assert torch.equal(ds[0][0], wanted)
    assert seen == [(Image.Image, (110, 96))]


def test_a_derived_class_is_not_guessed_at(folder: Path) -> None:
    t = import_torchvision().transforms

    class Louder(t.ColorJitter):  # type: ignore[misc, name-defined]  # torchvision has no types
        def forward(self, image: Any) -> Any:
            return image.point(lambda value: 255 - value)

    ds = packio.FolderDataset(
        folder, transform=t.Compose([t.CenterCrop(64), Louder(), t.PILToTensor()])
    )
    plain = packio.FolderDataset(folder, crop=packio.CenterCrop(64))
    assert torch.equal(ds[1][0], 255 - plain[1][0])


@pytest.mark.parametrize("side", [64, 90, 96])
def test_resize_and_center_crop_are_one_crop(side: int, folder: Path) -> None:
    t = import_torchvision().transforms
    read = reading.read(t.Compose([t.Resize(96), t.CenterCrop(side), t.ToTensor()]))
    assert read is not None
    ds = packio.FolderDataset(folder, crop=read.options["crop"])
    frame = read.options["crop"].frame(120, 150, [])
    assert (frame.to_height, frame.to_width) == (96, 120)
    assert (frame.out_top, frame.out_left) == ((96 - side) / 2, (120 - side) / 2)
    assert ds[0][0].shape == (3, side, side)


def test_timms_random_interpolation_is_drawn(folder: Path) -> None:
    import_torchvision()
    create = pytest.importorskip("timm.data").create_transform
    read = reading.read(create(32, is_training=True, interpolation="random"))
    assert read is not None
    crop = read.options["crop"]
    assert crop == packio.RandomResizedCrop((32, 32), interpolation="random")
    both = {}
    for how in ("random", "bilinear", "bicubic"):
        own = dataclasses.replace(crop, interpolation=how)
        ds = packio.FolderDataset(folder, crop=own, seed=5)
        index = list(packio.ShuffleSampler(ds, seed=1))
        both[how] = ds.gather(index)[0], torch.stack([ds[i][0] for i in index])
        assert torch.equal(*both[how])
    counts = [0, 0]
    for i, image in enumerate(both["random"][0]):
        same = [torch.equal(image, both[how][0][i]) for how in ("bilinear", "bicubic")]
        assert sum(same) == 1
        counts[same.index(True)] += 1
    assert min(counts) > 0


def test_a_compose_of_timm_is_read() -> None:
    import_torchvision()
    create = pytest.importorskip("timm.data").create_transform
    compose = create(
        224, is_training=True, auto_augment="rand-m9-mstd0.5-inc1", re_prob=0.25, re_mode="pixel",
        interpolation="bilinear",
    )  # fmt: skip
    read = reading.read(compose)
    assert read is not None
    assert read.options == {"crop": packio.RandomResizedCrop((224, 224)), "hflip": 0.5}
    augment, normalize, erasing = read.steps
    assert augment._values["m"] == 9
    assert augment.fill == (124, 116, 104)
    assert augment.interpolation == "bilinear"
    assert np.allclose([normalize.mean, normalize.std], [MEAN, STD])  # float32 in timm
    assert (erasing.p, erasing.value) == (0.25, "random")
    assert np.allclose(erasing.ratio, (0.3, 1 / 0.3))


def test_what_begins_with_a_tensor_stays_as_it_is(folder: Path) -> None:
    v2 = import_torchvision().transforms.v2
    compose = v2.Compose([v2.CenterCrop(50), v2.RandomInvert(1.0)])
    assert reading.read(compose) is None
    ds = packio.FolderDataset(folder, transform=compose)
    assert ds.transform is compose
    assert ds[0][0].shape == (3, 50, 50)


def test_a_crop_is_given_once(folder: Path) -> None:
    t = import_torchvision().transforms
    with pytest.raises(OptionError, match="begins with crop, too: leave out crop="):
        packio.FolderDataset(
            folder, crop=packio.CenterCrop(40), transform=t.Compose([t.CenterCrop(5), t.ToTensor()])
        )


def test_views_take_flips_of_a_compose_and_crops_are_called(folder: Path) -> None:
    t = import_torchvision().transforms
    crops = [packio.CenterCrop(96)] * 2
    each = [t.Compose([t.RandomHorizontalFlip(1.0), t.RandomInvert(1.0), t.ToTensor()]),
            t.Compose([t.CenterCrop(40), t.RandomInvert(1.0), t.ToTensor()])]  # fmt: skip
    with pytest.warns(UserWarning, match="cropped twice"):
        ds = packio.FolderDataset(folder, views=crops, transform=each)
    plain = packio.FolderDataset(folder, crop=packio.CenterCrop(96))
    first, second = ds[1][0]
    assert torch.equal(first, (255 - plain[1][0].flip(2)) / 255)
    assert torch.equal(second, (255 - plain[1][0][:, 28:68, 28:68]) / 255)
    plain.transform = each[1]
    with pytest.warns(UserWarning, match="cropped twice"):
        assert torch.equal(plain[1][0], second)
    whole = packio.FolderDataset(folder)
    whole.transform = each[1]
    assert whole[1][0].shape == (3, 40, 40)


def test_another_transform_comes_with_its_own_crop(folder: Path) -> None:
    t = import_torchvision().transforms
    train = packio.FolderDataset(
        folder,
        transform=t.Compose([t.RandomResizedCrop(64), t.RandomHorizontalFlip(), t.ToTensor()]),
    )
    val = train.with_options(transform=t.Compose([t.CenterCrop(50), t.ToTensor()]))
    assert val[0][0].shape == (3, 50, 50)
    assert val.options["hflip"] == 0
    assert train.with_options(transform=None).options["crop"] is None
    few = train.with_options(threads=1)
    assert few.options["crop"] == packio.RandomResizedCrop((64, 64))
    assert few.with_options(transform=None)[0][0].shape == (3, 120, 150)
    smaller = train.with_options(crop=packio.CenterCrop(9))
    assert smaller[0][0].shape == (3, 9, 9)
    assert smaller.options["hflip"] == 0.5
    as_pillow = train.with_options(output="pil", transform=t.RandomInvert(1.0))
    assert as_pillow[0][0].size == (150, 120)
    assert torch.is_tensor(train.with_options(output="pil")[0][0])  # the Compose makes tensors
    given = packio.FolderDataset(folder, crop=packio.CenterCrop(8), transform=packio.RandAugment())
    assert given.with_options(transform=None).options["crop"] == packio.CenterCrop(8)


def test_a_loader_normalises_floats_of_a_compose(folder: Path) -> None:
    t = import_torchvision().transforms
    ds = packio.FolderDataset(folder, transform=t.Compose([t.CenterCrop(20), t.ToTensor()]))
    images, _ = next(iter(packio.Loader(ds, 4, normalize=(MEAN, STD))))
    assert torch.allclose(images[0], t.Normalize(MEAN, STD)(ds[0][0]))


@pytest.mark.parametrize("output", ["pil", "numpy", "tensor"])
def test_explain_calls_functions_with_what_they_get(output: str, folder: Path) -> None:
    seen: list[Any] = []

    def own(image: Any) -> Any:
        seen.append(image)
        return image

    ds = packio.FolderDataset(folder, crop=packio.CenterCrop(20), output=output, transform=own)
    text = ds.explain(3)
    assert "called by image" in text
    kinds = {"pil": Image.Image, "numpy": np.ndarray, "tensor": torch.Tensor}
    assert all(isinstance(image, kinds[output]) for image in seen)
    odd: list[Any] = [0, -1, 2.5, "3", True, None]
    for samples in odd:
        with pytest.raises(OptionError, match=r"samples=.*expected a number of 1 or more"):
            ds.explain(samples)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"transform": packio.RandomResizedCrop(64)}, "a crop goes into crop="),
        ({"transform": [packio.CenterCrop(64), packio.ColorJitter(0.4)]}, "a crop goes into crop="),
        ({"transform": "rand-m9-mstd0.5-inc1"}, "packio.TimmRandAugment"),
        ({"transform": packio.RandAugment}, r"a class; write RandAugment\(\)"),
        ({"transforms": packio.RandomAffine(20)}, "packio's own go into transform="),
        ({"transform": [[packio.RandAugment()]]}, "a list in a list, which is for views="),
        ({"views": [packio.CenterCrop(8)] * 2, "transform": [packio.RandAugment()]},
         r"1 items, views= has 2"),
    ],
)  # fmt: skip
def test_messages_say_where_a_thing_goes(options: Any, said: str, folder: Path) -> None:
    with pytest.raises(OptionError, match=said):
        packio.FolderDataset(folder, **options)


@pytest.mark.parametrize("name", ["ToTensor", "ColorJitter"])
def test_a_class_in_a_compose_is_told_of(name: str, folder: Path) -> None:
    t = import_torchvision().transforms
    for steps in ([getattr(t, name), t.PILToTensor()], [t.CenterCrop(8), getattr(t, name)]):
        with pytest.raises(OptionError, match=rf"transform={name}: a class; write {name}\(\)"):
            packio.FolderDataset(folder, transform=t.Compose(steps))


def test_steps_at_a_wrong_place_are_told_where_they_go(folder: Path) -> None:
    class Own:
        pass

    t = import_torchvision().transforms
    floats = [t.ToTensor(), t.Normalize(MEAN, STD)]
    for steps, said in (
        ([*floats, t.ToTensor()], "gets floats: leave it out, or put it before ToTensor"),
        (floats[::-1], r"Normalize failed .* put it behind ToTensor\(\)"),
        ([Own, *floats], r"Own failed .* it is a class: write .*Own\(\)"),
    ):
        ds = packio.FolderDataset(folder, transform=t.Compose([t.CenterCrop(8), *steps]))
        with pytest.raises(TransformError, match=said):
            ds[0]


def test_a_description_names_what_makes_floats(folder: Path) -> None:
    transforms = import_torchvision().transforms
    v1, v2 = transforms, transforms.v2
    ds = packio.FolderDataset(folder, transform=v1.Compose([v1.CenterCrop(8), v1.ToTensor()]))
    assert "transform=[ToTensor()]" in repr(ds)
    scaled = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    ds = packio.FolderDataset(folder, transform=scaled)
    assert "transform=[ToDtype(torch.float32, scale=True)]" in repr(ds)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_datasets_dtype_is_as_to_dtype(dtype: torch.dtype, folder: Path) -> None:
    v2 = import_torchvision().transforms.v2
    steps = [v2.CenterCrop(64), v2.ToImage()]
    wanted = v2.Compose([*steps, v2.ToDtype(dtype, scale=True)])
    ours = v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True)])
    ds = packio.FolderDataset(folder, transform=ours, dtype=dtype)
    for i in (0, 4):
        with Image.open(folder / ds.samples[i][0]) as image:
            assert torch.equal(ds[i][0], wanted(image.convert("RGB")).as_subclass(torch.Tensor))


def _check_as_torchvision(folder: Path, compose: Any, *, is_float: bool = True) -> Any:
    """Whether a dataset gives what a Compose without chance gives by itself."""
    ds = packio.FolderDataset(folder, transform=compose)
    for i in (0, 4):
        with Image.open(folder / ds.samples[i][0]) as image:
            wanted = torch.as_tensor(compose(image.convert("RGB")))
        assert ds[i][0].dtype == wanted.dtype
        assert torch.equal(ds[i][0], wanted.as_subclass(torch.Tensor))
        assert wanted.is_floating_point() == is_float
    return ds


def test_timms_own_to_tensor_is_another_one(folder: Path) -> None:
    t = import_torchvision().transforms
    own = pytest.importorskip("timm.data.transforms").ToTensor()
    _check_as_torchvision(folder, t.Compose([t.CenterCrop(32), own]))


def test_what_is_behind_to_image_gets_one(folder: Path) -> None:
    v2 = import_torchvision().transforms.v2
    kind = pytest.importorskip("torchvision.tv_tensors").Image
    to_float = v2.ToDtype({kind: torch.float32, "others": None}, scale=True)
    _check_as_torchvision(folder, v2.Compose([v2.CenterCrop(32), v2.ToImage(), to_float]))
    fill = v2.RandomRotation((20, 20), fill={kind: 3, "others": 77})
    for middle in ([], [v2.ToDtype(torch.float32, scale=True)]):
        compose = v2.Compose([v2.CenterCrop(32), v2.ToImage(), *middle, fill])
        _check_as_torchvision(folder, compose, is_float=bool(middle))


@pytest.mark.parametrize("several", [True, False])
def test_pillows_nearest_pixel_stays_pillows(several: bool, folder: Path) -> None:
    t = import_torchvision().transforms
    how = t.InterpolationMode.NEAREST
    steps = [t.Resize(50, how), t.CenterCrop(40)] if several else [t.Resize((24, 28), how)]
    _check_as_torchvision(folder, t.Compose([*steps, t.PILToTensor()]), is_float=False)


def _change(step: Any, what: str) -> Any:
    """Give a step a hook or a function of its own."""
    if what == "hook":
        step.register_forward_hook(lambda _, given, __: given[0])
    elif what == "hook before":
        step.register_forward_pre_hook(lambda _, given: Image.new("RGB", given[0].size))
    else:
        setattr(step, what, lambda image, *_: image)
    return step


@pytest.mark.parametrize("what", ["forward", "hook", "hook before"])
@pytest.mark.parametrize("where", ["step", "crop", "within", "sequential"])
def test_what_was_changed_in_place_is_called(where: str, what: str, folder: Path) -> None:
    t = import_torchvision().transforms
    invert, crop = t.RandomInvert(1.0), t.CenterCrop(32)
    if where == "crop":
        crop = _change(crop, what)
    elif where == "sequential":
        invert = _change(torch.nn.Sequential(invert), what)
    else:
        invert = _change(invert, what)
        invert = t.RandomApply([invert], 1.0) if where == "within" else invert
    compose = t.Compose([crop, invert, t.PILToTensor()])
    ds = _check_as_torchvision(folder, compose, is_float=False)
    assert ds._pipelines[0].rest


@pytest.mark.parametrize("what", ["get_params", "make_params", "transform", "compose"])
def test_other_functions_that_were_changed_in_place_are_called(what: str, folder: Path) -> None:
    transforms = import_torchvision().transforms
    t = transforms if what == "get_params" else transforms.v2
    step = t.RandomRotation((20, 20))
    if what == "get_params":
        step.get_params = lambda _: 90.0
    elif what == "make_params":
        step.make_params = lambda _: {"angle": 90.0}
    elif what == "transform":
        step = _change(step, what)
    else:
        step = _change(t.Compose([t.RandomInvert(1.0)]), "hook before")
    _check_as_torchvision(
        folder, t.Compose([t.CenterCrop(32), step, t.PILToTensor()]), is_float=False
    )


@pytest.mark.parametrize("where", ["end", "within", "all", "sequential"])
@pytest.mark.parametrize("how", ["hook", "derived"])
def test_changed_makers_of_tensors_get_pillows_image(where: str, how: str, folder: Path) -> None:
    v2 = import_torchvision().transforms.v2

    def change(step: Any) -> Any:
        if how == "hook":
            step.register_forward_hook(lambda _, __, found: 255 - found)
        else:
            kind: Any = type(step)
            forward = {"forward": lambda self, image: 255 - kind.forward(self, image)}
            step.__class__ = type("Own", (kind,), forward)
        return step

    crop, size = v2.CenterCrop(64), v2.Resize((40, 30))
    compose = {
        "end": lambda: v2.Compose([crop, size, change(v2.PILToTensor())]),
        "within": lambda: v2.Compose([change(v2.Compose([crop, size, v2.PILToTensor()]))]),
        "all": lambda: change(v2.Compose([crop, size, v2.PILToTensor()])),
        "sequential": lambda: v2.Compose(
            [change(torch.nn.Sequential(crop, size, v2.PILToTensor()))]
        ),
    }[where]()
    _check_as_torchvision(folder, compose, is_float=False)


def test_timms_other_parameters_are_left_to_it() -> None:
    import_torchvision()
    make = pytest.importorskip("timm.data.auto_augment").rand_augment_transform
    assert reading._attempt(reading._timms, make("rand-m9-n1", {})) is not None
    for hparams in ({"translate_pct": 0.1}, {"interpolation": (0, 3)}):
        given = {"img_mean": (1, 2, 3), **hparams}
        assert reading._attempt(reading._timms, make("rand-m9-n1", given)) is None
    patched = make("rand-m9-n1", {})
    patched.ops[0].aug_fn = test_timms_other_parameters_are_left_to_it
    assert reading._attempt(reading._timms, patched) is None


@pytest.mark.parametrize(("mode", "pillows"), [("GRAY", "L"), ("RGB_ALPHA", "RGBA")])
def test_images_of_other_modes_are_called_with(mode: str, pillows: str, folder: Path) -> None:
    t = import_torchvision().transforms
    kept: list[Any] = []

    def keep(image: Any) -> Any:
        kept.append(image)
        return image

    compose = t.Compose([t.CenterCrop(32), keep, t.Pad(2), t.ToTensor()])
    ds = packio.FolderDataset(folder, mode=mode, transform=compose)
    with Image.open(folder / ds.samples[0][0]) as image:
        wanted = t.functional.center_crop(image.convert(pillows), 32)
    made = ds.gather([0, 1])[0]
    assert torch.equal(made[0][:, 2:-2, 2:-2], t.functional.to_tensor(wanted))
    del made
    ds.gather([2, 3])
    assert kept[0].mode == pillows
    assert kept[0].tobytes() == wanted.tobytes()


def test_floats_are_no_pillows_images(folder: Path) -> None:
    t = import_torchvision().transforms
    compose = t.Compose([t.CenterCrop(8), t.Pad(2), t.ToTensor()])
    with pytest.raises(OptionError, match=r"dtype=torch.float16: a step .* gets Pillow's image"):
        packio.FolderDataset(folder, transform=compose, dtype=torch.float16)
    known = t.Compose([t.CenterCrop(8), t.ToTensor(), t.RandomInvert(1.0)])
    ds = packio.FolderDataset(folder, transform=known, dtype=torch.float16)
    assert ds[0][0].dtype == torch.float16


def test_what_is_behind_a_tensor_gets_it(folder: Path) -> None:
    t = import_torchvision().transforms
    for middle in ([t.Lambda(lambda image: image // 2)], [t.RandomInvert(1.0)], []):
        steps = [t.CenterCrop(32), t.PILToTensor(), *middle, t.ToPILImage(), t.ToTensor()]
        ds = _check_as_torchvision(folder, t.Compose(steps))
        few = ds.with_options(threads=1).subset([0])
        assert torch.equal(few.gather([0])[0][0], ds[0][0])
        ds.transform = t.Compose(steps[1:])
        assert torch.equal(ds[0][0], few[0][0])


def test_without_the_core_all_is_called(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    t = import_torchvision().transforms
    monkeypatch.setattr(native, "why_not", lambda: "it was left out")
    _check_as_torchvision(folder, t.Compose([t.CenterCrop(32), t.RandomInvert(1.0), t.ToTensor()]))


def test_thresholds_of_v2_are_its_own() -> None:
    transforms = import_torchvision().transforms
    v2 = transforms.v2
    gray = torch.arange(256, dtype=torch.uint8).view(1, 16, 16)
    theirs = v2.TrivialAugmentWide()
    ours = reading._read_step(theirs)
    assert ours == packio.TrivialAugmentWide(thresholds_of_v2=True)
    for level in range(31):
        magnitude = theirs._AUGMENTATION_SPACE["Solarize"][0](31, 16, 16)[level].item()
        pillow = Image.fromarray(gray[0].numpy())
        wanted = theirs._apply_image_or_video_transform(
            pillow, "Solarize", magnitude, interpolation=theirs.interpolation, fill={}
        )
        made = gray[None].clone()
        program.run(made, [ours._plan("Solarize", level, 31, 0.9, 16, 16)])
        assert np.array_equal(made[0, 0].numpy(), np.asarray(wanted)), level


def test_a_list_of_torchvisions_steps_is_a_compose(folder: Path) -> None:
    t = import_torchvision().transforms
    steps = [t.CenterCrop(32), t.RandomInvert(1.0), t.ToTensor()]
    ds = packio.FolderDataset(folder, transform=steps)
    assert torch.equal(ds[1][0], packio.FolderDataset(folder, transform=t.Compose(steps))[1][0])
    assert not ds._pipelines[0].rest
    own = [packio.RandomInvert(1.0), t.ToTensor()]  # not meant as one: the list is packio's
    with pytest.raises(TransformError, match="ToTensor failed"):
        packio.FolderDataset(folder, transform=own).gather([0])


def test_packios_transforms_take_pillows_image_behind_others(folder: Path) -> None:
    t = import_torchvision().transforms
    compose = t.Compose([t.CenterCrop(32), t.Lambda(lambda image: image), packio.RandomInvert(1.0),
                         t.Grayscale(), packio.RandomSolarize(90, 1.0), t.ToTensor()])  # fmt: skip
    _check_as_torchvision(folder, compose)


def test_nobody_normalises_twice(folder: Path) -> None:
    t = import_torchvision().transforms
    end = [t.ToTensor(), t.Normalize(MEAN, STD)]
    for steps in (end, [t.Lambda(lambda image: image), *end]):
        ds = packio.FolderDataset(folder, transform=t.Compose([t.CenterCrop(20), *steps]))
        with pytest.raises(OptionError, match="normalised twice"):
            packio.Loader(ds, 4, normalize=(MEAN, STD))


def test_numbers_of_another_scale_are_told_of(folder: Path) -> None:
    t = import_torchvision().transforms
    steps = [t.CenterCrop(8), t.ToTensor(), t.Normalize([123.0, 117.0, 104.0], [58.0, 57.0, 57.0])]
    with pytest.warns(UserWarning, match="values in 0..255"):
        packio.FolderDataset(folder, transform=t.Compose(steps))


def test_explain_says_why_a_compose_is_not_read(folder: Path) -> None:
    t = import_torchvision().transforms
    ds = packio.FolderDataset(folder, transform=t.Compose([t.CenterCrop(8)]))
    assert "no step makes a tensor" in ds.explain(2)
    ds = packio.FolderDataset(folder, transform=t.Compose([t.CenterCrop(8), t.PILToTensor()]))
    assert "no step makes a tensor" not in ds.explain(2)
