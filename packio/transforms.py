"""Calling the transforms of users: errors that help, results that are contiguous."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from packio.errors import TransformError
from packio.tensors import ensure_contiguous, is_contiguous_batch


class Apply:
    """Applies transforms; warns the first time that one returns a tensor that is not contiguous."""

    def __init__(self) -> None:
        self._warned = False

    def __call__(self, transform: Callable[..., Any], image: Any) -> Any:
        """Return what a transform makes of an image, contiguous.

        Args:
            transform: Called with the image; albumentations' with ``image=image``.
            image: A (C, H, W) tensor, an (H, W, C) array, or a Pillow image.

        Raises:
            TransformError: the transform failed.
        """
        try:
            if type(transform).__module__.partition(".")[0] == "albumentations":
                value = transform(image=image)["image"]
            else:
                value = transform(image)
        except Exception as error:
            raise TransformError(_explanation(transform, image, error)) from error
        if is_contiguous_batch(value):
            return value
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"the transform {_name(transform)} returned a tensor that is not contiguous, "
                "a view with other strides; packio copies it, since training on it can be many "
                "times slower. End the transform with .contiguous() to silence this.",
                stacklevel=3,
            )
        return ensure_contiguous(value)


def _name(transform: Any) -> str:
    return getattr(transform, "__qualname__", None) or type(transform).__qualname__


def _explanation(transform: Any, image: Any, error: Exception) -> str:
    shape = tuple(getattr(image, "shape", None) or image.size)
    what = f"{type(image).__name__} of shape {shape}"
    hint = ""
    if isinstance(image, torch.Tensor):
        hint = (
            "; if it wants a Pillow image, as torchvision's ToTensor does, make the dataset with "
            "output='pil'; if it wants an array, as albumentations does, with output='numpy'"
        )
    name = _name(transform)
    return f"the transform {name} failed on a {what}: {type(error).__name__}: {error}{hint}"
