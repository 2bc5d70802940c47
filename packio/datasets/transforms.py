"""Call users' transforms: helpful errors, contiguous results."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from packio.batches.boxes import LABELS
from packio.batches.samples import BOXES
from packio.errors import OptionError, TransformError
from packio.images.tensors import ensure_contiguous
from packio.sample.fields import PIXELS
from packio.sample.record import IMAGE, MASK

_BY_NAME = {"boxes": "bboxes"}  # albumentations' names, where they are not ours
_MOVING = re.compile(
    "Flip|Crop|Rotat|Affine|Perspective|Elastic|Resize|Zoom|Shear|Pad|Transpose|ScaleJitter|Shortest"
    "Size|OpticalDistort|GridDistort|RandAugment|AutoAugment|TrivialAugment|AugMix",
    re.IGNORECASE,  # functions, too
)


def warn_of_moves(native: Sequence[Any], rest: Sequence[Any], kinds: Mapping[str, str]) -> None:
    """Warn of a transform that moves the image, where something that belongs to it stays.

    Masks and boxes follow the ``native`` ones, if the image is among the fields.
    """
    further = [n for n, kind in kinds.items() if n != IMAGE and kind == "image"]
    others = [n for n, kind in kinds.items() if kind == "mask" or n == "boxes"]
    alone, own = _find_moving(rest), _find_moving(native)
    if alone and (further or others):
        _warn(alone, further + others, "write packio's own of that name, before any function of "
              "yours; or give torchvision's v2 transforms as transforms=")  # fmt: skip
    elif own and others and IMAGE not in kinds:
        _warn(own, others, "give the image among the fields, too")
    elif own and further:
        _warn(own, further, "only crop=, hflip= and vflip= move further images")


def _warn(moving: Sequence[str], left: Sequence[str], advice: str) -> None:
    names = ", ".join(dict.fromkeys(moving))
    warnings.warn(
        f"transform=: {names} moves the image alone, and {', '.join(left)} would stay where the "
        f"image was: {advice}",
        stacklevel=5,
    )


def normalizes(transforms: Sequence[Any]) -> bool:
    """Whether one of some transforms, or of those in them, is a Normalize."""
    return any(_name(one).rpartition(".")[2] == "Normalize" for one in _each(list(transforms)))


def _find_moving(transforms: Sequence[Any]) -> list[str]:
    """Names of those that move an image, by their own name or that of a class they derive from."""
    each = list(_each(list(transforms)))
    names = [
        " ".join([_name(one).rpartition(".")[2], *(kind.__name__ for kind in type(one).__mro__)])
        for one in each
    ]
    return [_name(one) for one, n in zip(each, names, strict=True) if _MOVING.search(n)]


def _each(transform: Any) -> Iterator[Any]:
    """A transform and those that it is composed of."""
    parts: Any = getattr(transform, "transforms", ())
    if isinstance(transform, (torch.nn.Sequential, list, tuple)):
        parts = list(transform)
    if callable(transform):
        yield transform
    for part in parts if isinstance(parts, Iterable) else ():
        yield from _each(part)


def transform_sample(
    values: dict[str, Any], kinds: Mapping[str, str], transforms: Callable[..., Any] | None,
    each: Sequence[Sequence[Callable[[Any], Any]]],
    target_transform: Callable[[Any], Any] | None,
) -> dict[str, Any]:  # fmt: skip
    """Apply the transforms of a dataset to one sample, the joint ones first."""
    if transforms is not None:
        values |= _joint(transforms, values, kinds)
    if any(each) and IMAGE in values:
        image = values[IMAGE]
        views = list(image) if isinstance(image, tuple) else [image]
        if len(each) != len(views):
            raise TransformError(f"{len(each)} transforms for {len(views)} views of an image")
        for number, transforms_of_view in enumerate(each):
            for transform in transforms_of_view:
                views[number] = _contiguous(apply_transform(transform, {IMAGE: views[number]})[0])
        values[IMAGE] = tuple(views) if isinstance(image, tuple) else views[0]
    if target_transform is not None and "label" in values:
        label = values["label"]
        try:
            values["label"] = target_transform(label)
        except Exception as error:
            raise TransformError(
                f"the target_transform {_name(target_transform)} failed on the label {label!r}: "
                f"{type(error).__name__}: {error}"
            ) from error
    return values


def apply_transform(transform: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Call a transform, albumentations' too, with some values: it returns as many."""
    try:
        if type(transform).__module__.partition(".")[0] == "albumentations":
            given = {_BY_NAME.get(name, name): value for name, value in values.items()}
            results = transform(**given)
            return [results[name] for name in given]
        results = transform(*values.values())
    except Exception as error:
        first = next(iter(values.values()))
        raise TransformError(_explanation(transform, first, error)) from error
    if results is None:
        raise TransformError(f"the transform {_name(transform)} returned None; no return?")
    return [results] if len(values) == 1 else results


def _contiguous(value: Any) -> Any:
    """Lay out what torch does not take as it is, as the array ``image[:, ::-1]``."""
    if isinstance(value, np.ndarray):
        return value if value.flags.c_contiguous else value.copy()
    return ensure_contiguous(value)


def _joint(
    transforms: Callable[..., Any], values: Mapping[str, Any], kinds: Mapping[str, str]
) -> dict[str, Any]:
    """Apply transforms to image, masks, boxes and label of a sample; results are contiguous."""
    pixels = [name for name in values if kinds.get(name) in PIXELS]
    boxes = [name for name in values if kinds.get(name) == BOXES]
    order = (IMAGE, MASK, *pixels, "boxes", LABELS, *boxes, "label")
    names = [name for name in dict.fromkeys(order) if name in values]
    results = apply_transform(
        transforms, _as_tv_tensors({name: values[name] for name in names}, kinds)
    )
    if not isinstance(results, (tuple, list)) or len(results) != len(names):
        raise TransformError(
            f"the transforms {_name(transforms)} returned {type(results).__name__}; "
            f"expected a tuple of {', '.join(names)}"
        )
    plain = [v.as_subclass(torch.Tensor) if isinstance(v, torch.Tensor) else v for v in results]
    return dict(zip(names, map(_contiguous, plain), strict=True))


def _as_tv_tensors(values: dict[str, Any], kinds: Mapping[str, str]) -> dict[str, Any]:
    """Wrap tensors so that torchvision's transforms know their kinds, if torchvision is there."""
    try:
        import torchvision.tv_tensors as tv
    except (ImportError, OSError, RuntimeError):  # not there, or not of this torch's build
        return values
    wrapped, size = dict(values), None
    for name, value in values.items():
        if kinds.get(name) in PIXELS and isinstance(value, torch.Tensor):
            wrapped[name] = (tv.Image if kinds[name] == "image" else tv.Mask)(value)
            size = value.shape[-2:] if size is None else size
    if isinstance(boxes := values.get("boxes"), torch.Tensor) and size is not None:
        wrapped["boxes"] = tv.BoundingBoxes(boxes, format="XYXY", canvas_size=size)
    return wrapped


def _name(transform: Any) -> str:
    return getattr(transform, "__qualname__", None) or type(transform).__qualname__


def _explanation(transform: Any, image: Any, error: Exception) -> str:
    shape = getattr(image, "shape", None) or getattr(image, "size", None)  # arrays, Pillow's
    what = f"{type(image).__name__}" + (f" of shape {tuple(shape)}" if shape else "")
    hint = ""
    said = str(error)
    name, is_tensor = _name(transform), isinstance(image, torch.Tensor)
    if isinstance(transform, type):
        hint = f"; it is a class: write {name}()"
    elif hasattr(image, "getbands") and ("Tensor Image" in said or "support PIL" in said):
        hint = "; it takes tensors: put it behind ToTensor()"
    elif is_tensor and "float tensor" in said:
        hint = "; packio.Normalize(mean, std) takes bytes; before torchvision's put ToTensor"
    elif is_tensor and image.is_floating_point() and "PIL Image" in said:
        hint = "; it takes Pillow's image, and gets floats: leave it out, or put it before ToTensor"
    elif is_tensor and image.is_floating_point():
        hint = "; colours are changed before Normalize and ToTensor make floats"
    elif is_tensor and not isinstance(error, OptionError):
        hint = (
            "; if it wants a Pillow image, as torchvision's ToTensor does, make the dataset with "
            "output='pil'; if it wants an array, as albumentations does, with output='numpy'"
        )
    return f"the transform {name} failed on a {what}: {type(error).__name__}: {error}{hint}"
