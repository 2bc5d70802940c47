"""Read a user's Compose of torchvision or timm: what packio makes itself, with the same result.

What is not known for certain, as a derived class, ends the reading: that step and all behind it are
called with each image, as they would be without packio.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from packio.errors import OptionError
from packio.images import native
from packio.images.floats import LARGEST_STD, Normalize
from packio.images.geometry import (
    Geometry,
    RandomResizedCrop,
    ResizeCenterCrop,
    accept_crop,
)  # fmt: skip
from packio.ops import policies, transforms
from packio.ops.erasing import RandomErasing
from packio.ops.timm import TRANSLATE_PCT, TimmRandAugment
from packio.ops.transform import RandomApply, Transform, is_own, to_pillow

_CROPS = ("RandomResizedCrop", "CenterCrop", "RandomCrop", "Resize")
_FLIPS = {"RandomHorizontalFlip": "hflip", "RandomVerticalFlip": "vflip"}
# Names of classes that timm has, or has, too; its ToTensor is another one.
_TIMMS = ("MaybeToTensor", "MaybePILToTensor", "RandomResizedCropAndInterpolation")
_BOTH = ("RandAugment", "RandomErasing")
_TO_FLOATS = ("ToTensor", "MaybeToTensor")
_TO_BYTES = ("PILToTensor", "MaybePILToTensor", "ToImage")
FOREIGN = "torchvision.transforms.", "timm.data."  # modules


class Steps(list[Any]):
    """What is left of a Compose that was read; nobody reads it again.

    What stands behind its ToTensor gets tensors. As a list of torchvision's steps it would seem to
    get Pillow's image.
    """

    def __repr__(self) -> str:
        return f"[{', '.join(map(_name, self))}]"


class Reading(NamedTuple):
    """What a Compose is.

    Attributes:
        options: Of a dataset: crop, hflip, vflip, as far as the Compose has them.
        steps: What is done behind them; see `packio.ops.pipeline.split`.
    """

    options: dict[str, Any]
    steps: Steps


def read(transform: Any, *, frames: bool = True) -> Reading | None:
    """Read a Compose that begins with Pillow's image.

    Returns None of anything else, of a Compose that makes no tensors, and of what was read. Without
    ``frames`` there are no options: flips are steps, and a crop gets Pillow's image.
    """
    if isinstance(transform, Steps):
        return None
    steps = list(flatten(transform))
    is_list = isinstance(transform, (list, tuple)) and all(map(_is_foreign, transform))
    if not (is_list or _is_compose(transform)) or not any(map(_takes_pillow, steps)):
        return None
    options: dict[str, Any] = {}
    if frames:
        _read_frame(steps, options)
    known: list[Any] = []
    while steps and not native.why_not() and (own := _read_step(steps[0])) is not None:
        known.append(own)
        steps.pop(0)
    if steps and not _makes_tensors(steps[0]):
        return Reading(options, Steps([*known, ToPillow(), *steps]))
    return Reading(options, Steps(known + _read_end(steps)))


def lacks_tensors(transform: Any) -> bool:
    """Whether it is a Compose that packio would read if it made a tensor of Pillow's image."""
    return _is(transform, "Compose") and not any(map(_takes_pillow, flatten(transform)))


def crops_first(transform: Any) -> bool:
    """Whether it is a Compose that begins with a crop."""
    reading = read(transform)
    return reading is not None and "crop" in reading.options


class ToPillow:
    """Make Pillow's image of a tensor, (C, H, W) uint8, for a step that wants one."""

    def __call__(self, image: torch.Tensor) -> Any:
        """Make the image: of mode L, LA, RGB or RGBA."""
        return to_pillow(image)

    def __repr__(self) -> str:
        return "ToPillow()"


def flatten(transform: Any) -> Iterator[Any]:
    """The steps of a Compose or a list, and of those in it."""
    is_plain = type(transform) is torch.nn.Sequential and not _is_changed(transform)
    if isinstance(transform, (list, tuple)) or is_plain or _is(transform, "Compose"):
        for step in getattr(transform, "transforms", transform):
            yield from flatten(step)
    else:
        yield transform


def _is(step: Any, *names: str) -> bool:
    """Whether a step is of one of some classes of torchvision or timm, as it was made there.

    It is not if its class is derived from one of them, or if it got a function or a hook itself.
    """
    module, name = type(step).__module__, type(step).__name__
    if name not in names or _is_changed(step):
        return False
    return module.startswith("timm.data." if name in _TIMMS else "torchvision.transforms.") or (
        name in _BOTH and module.startswith("timm.data.")
    )


def _is_changed(step: Any) -> bool:
    """Whether a step has a hook, or a function of its own in the place of one of its class."""
    own = getattr(step, "__dict__", {})
    has_hooks = any(own.get(name) for name in ("_forward_hooks", "_forward_pre_hooks"))
    return has_hooks or any(callable(getattr(type(step), name, None)) for name in own)


def _is_foreign(step: Any) -> bool:
    """Whether a step is torchvision's or timm's: a list of such ones is meant as a Compose."""
    return type(step).__module__.startswith(FOREIGN)


def _makes_tensors(step: Any) -> bool:
    return _is(step, *_TO_FLOATS, *_TO_BYTES)


def _takes_pillow(step: Any) -> bool:
    """Whether a step makes a tensor of Pillow's image, also one that is not read."""
    if _is_compose(step) or isinstance(step, torch.nn.Sequential):
        return any(map(_takes_pillow, getattr(step, "transforms", step)))
    return not _names(step).isdisjoint((*_TO_FLOATS, *_TO_BYTES))


def _is_compose(step: Any) -> bool:
    """Whether a step is a Compose, also one that is derived or changed."""
    return "Compose" in _names(step)


def _names(step: Any) -> set[str]:
    """Names of the classes of torchvision and timm that a step is of."""
    return {c.__name__ for c in type(step).__mro__ if c.__module__.startswith(FOREIGN)}


def _name(step: Any) -> str:
    """What a step that was read is called: floats of 0..1 by the step that made them."""
    if type(step) is not Normalize or not step.only_scales:
        return repr(step)
    return "ToDtype(torch.float32, scale=True)" if step.scales_by_product else "ToTensor()"


def _read_frame(steps: list[Any], options: dict[str, Any]) -> None:
    """Take crop and flips from the beginning of some steps."""
    first, second = (*steps, None, None)[:2]
    if _is(first, "Resize") and _is(second, "CenterCrop") and (crop := _resized(first, second)):
        options["crop"] = crop
        del steps[:2]
    elif (own := _attempt(_crop, first)) is not None:
        options["crop"] = own
        del steps[0]
    while steps and _is(steps[0], *_FLIPS) and _FLIPS[type(steps[0]).__name__] not in options:
        step = steps.pop(0)
        options[_FLIPS[type(step).__name__]] = float(step.p)


def _crop(step: Any) -> Geometry | None:
    """Make packio's crop of one of torchvision or timm; None: it is none."""
    if _is(step, "RandomResizedCropAndInterpolation"):
        drawn = isinstance(step.interpolation, (list, tuple))
        how = "random" if drawn else step.interpolation.value
        return RandomResizedCrop(tuple(step.size), tuple(step.scale), tuple(step.ratio), how)
    own = accept_crop(step) if _is(step, *_CROPS) else None
    # Pillow's nearest pixel is another one than torch's
    resizes = _is(step, "RandomResizedCrop", "Resize")
    return None if own is None or (resizes and own.interpolation == "nearest") else own


def _resized(resize: Any, crop: Any) -> Geometry | None:
    """Resize of the short side and CenterCrop as one crop."""
    size = resize.size if isinstance(resize.size, int) else list(resize.size)
    side = size if isinstance(size, int) else size[0] if len(size) == 1 else None
    square = {*crop.size}
    if side is None or len(square) != 1 or getattr(resize, "max_size", None) is not None:
        return None
    own = square.pop()
    if getattr(resize, "antialias", True) is False or own > side or int(own / (own / side)) != side:
        return None
    how = getattr(resize.interpolation, "value", resize.interpolation)
    if how == "nearest":
        return None
    try:
        return ResizeCenterCrop(own, own / side, how)
    except OptionError:
        return None


def _read_end(steps: list[Any]) -> list[Any]:
    """Read what makes tensors, floats, and erases boxes; behind that is the rest."""
    first = steps.pop(0)
    is_product = not _is(first, *_TO_FLOATS)
    again = [first] if _is(first, "ToImage") else []  # what is behind it gets a tv_tensors.Image
    if is_product:
        if not steps or not _scales(steps[0]):
            return again + steps if steps else []
        is_product = ".v2." in type(steps.pop(0)).__module__
    known: list[Any] = [Normalize((0.0,), (1.0,), is_product)]
    if steps and _is(steps[0], "Normalize"):
        if (own := _attempt(_normalize, steps[0])) is not None:
            known = [dataclasses.replace(own, scales_by_product=is_product)]
            del steps[0]
        elif max(_numbers(steps[0].std)) > LARGEST_STD:
            warnings.warn(
                f"transform=: {steps[0]} follows floats of 0..1, and its numbers seem to be those "
                "of values in 0..255", stacklevel=2,
            )  # fmt: skip
    while steps and (own := _attempt(_erasing, steps[0])) is not None:
        known.append(own)
        del steps[0]
    return known + again + steps if steps else known


def _scales(step: Any) -> bool:
    """Whether a step makes float32 in 0..1 of bytes."""
    is_known = _is(step, "ConvertImageDtype") or (_is(step, "ToDtype") and bool(step.scale))
    return is_known and step.dtype == torch.float32


def _normalize(step: Any) -> Normalize:
    return Normalize(_numbers(step.mean), _numbers(step.std))


def _numbers(given: Any) -> list[float]:
    return [float(number) for number in ([given] if isinstance(given, (int, float)) else given)]


def _read_step(step: Any) -> Transform | None:
    """Make packio's transform of one; None: it is not known."""
    if is_own(step):
        return step  # type: ignore[no-any-return]  # it is one
    reader = _READERS.get(type(step).__name__)
    if reader is None or not _is(step, type(step).__name__):
        return None
    own: Transform | None = _attempt(reader, step)
    return own


def _attempt(reader: Callable[[Any], Any], step: Any) -> Any:
    """Read a step; None if it has not what is expected."""
    try:
        return reader(step)
    except (OptionError, AttributeError, TypeError, ValueError):
        return None


def _color_jitter(step: Any) -> Transform:
    factors = [getattr(step, n) for n in ("brightness", "contrast", "saturation", "hue")]
    return transforms.ColorJitter(*(0.0 if given is None else tuple(given) for given in factors))


def _rotation(step: Any) -> Transform:
    if step.expand:
        raise OptionError("expand")
    how = getattr(step, "interpolation", "nearest")
    return transforms.RandomRotation(tuple(step.degrees), how, step.center, _fill(step))


def _affine(step: Any) -> Transform:
    shear = None if step.shear is None else tuple(step.shear)
    return transforms.RandomAffine(
        tuple(step.degrees), step.translate, step.scale, shear, step.interpolation, _fill(step),
        step.center,
    )  # fmt: skip


def _fill(step: Any) -> Any:
    fill = step.fill
    return list(fill) if isinstance(fill, Sequence) else fill


def _is_v2(step: Any) -> bool:
    return ".v2." in type(step).__module__


def _rand_augment(step: Any) -> Transform:
    if type(step).__module__.startswith("timm."):
        return _timms(step)
    return policies.RandAugment(
        step.num_ops,
        step.magnitude,
        step.num_magnitude_bins,
        step.interpolation,
        _fill(step),
        _is_v2(step),
    )


def _timms(step: Any) -> Transform:
    """Timm's RandAugment, if all its operations are alike and those of a configuration string."""
    names = [op.name for op in step.ops]
    grows = "PosterizeIncreasing" in names
    first = step.ops[0]
    alike = {(op.prob, op.magnitude, op.magnitude_std, op.magnitude_max, str(op.kwargs))
             for op in step.ops}  # fmt: skip
    config = f"rand-m{first.magnitude}-n{step.num_layers}-p{first.prob}-inc{int(grows)}"
    if first.magnitude_std:
        config += f"-mstd{min(first.magnitude_std, 101)}"
    if first.magnitude_max:
        config += f"-mmax{first.magnitude_max}"
    how = first.kwargs["resample"]
    if isinstance(how, (list, tuple)):
        how = "random" if [int(one) for one in how] == [2, 3] else "several"
    is_usual = all(
        op.hparams.get("translate_pct", TRANSLATE_PCT) == TRANSLATE_PCT
        and op.aug_fn.__module__.startswith("timm.")
        for op in step.ops
    )
    made = TimmRandAugment(config, tuple(first.kwargs["fillcolor"]), how)
    is_usual &= len(alike) == 1 and step.choice_weights is None
    if not is_usual or names != made.names:
        raise OptionError(config)
    return made


def _erasing(step: Any) -> RandomErasing | None:
    if not _is(step, "RandomErasing"):
        return None
    if type(step).__module__.startswith("timm."):
        if step.max_count != 1 or step.mode not in ("const", "pixel"):
            return None
        ratio = torch.tensor(step.log_aspect_ratio, device="cpu").exp().tolist()
        value = "random" if step.mode == "pixel" else 0
        return RandomErasing(step.probability, (step.min_area, step.max_area), ratio, value)
    value = "random" if step.value is None else step.value
    return RandomErasing(step.p, tuple(step.scale), tuple(step.ratio), value)


_READERS: dict[str, Callable[[Any], Transform]] = {
    "RandAugment": _rand_augment,
    "TrivialAugmentWide": lambda s: policies.TrivialAugmentWide(
        s.num_magnitude_bins, s.interpolation, _fill(s), _is_v2(s)
    ),
    "AutoAugment": lambda s: policies.AutoAugment(s.policy, s.interpolation, _fill(s), _is_v2(s)),
    "ColorJitter": _color_jitter,
    "RandomHorizontalFlip": lambda s: transforms.RandomHorizontalFlip(s.p),
    "RandomVerticalFlip": lambda s: transforms.RandomVerticalFlip(s.p),
    "RandomGrayscale": lambda s: transforms.RandomGrayscale(s.p),
    "RandomInvert": lambda s: transforms.RandomInvert(s.p),
    "RandomEqualize": lambda s: transforms.RandomEqualize(s.p),
    "RandomAutocontrast": lambda s: transforms.RandomAutocontrast(s.p),
    "RandomPosterize": lambda s: transforms.RandomPosterize(s.bits, s.p),
    "RandomSolarize": lambda s: transforms.RandomSolarize(s.threshold, s.p),
    "RandomAdjustSharpness": lambda s: transforms.RandomAdjustSharpness(s.sharpness_factor, s.p),
    "GaussianBlur": lambda s: transforms.GaussianBlur(tuple(s.kernel_size), tuple(s.sigma)),
    "RandomRotation": _rotation,
    "RandomAffine": _affine,
    "RandomPerspective": lambda s: transforms.RandomPerspective(
        s.distortion_scale, s.p, s.interpolation, _fill(s)
    ),
    "RandomApply": lambda s: RandomApply([_known(one) for one in s.transforms], s.p),
}


def _known(step: Any) -> Transform:
    own = _read_step(step)
    if own is None:
        raise OptionError(repr(step))
    return own
