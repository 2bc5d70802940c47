"""Options of datasets: which values are allowed, and which options exclude each other."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from packio.batches import draws
from packio.errors import OptionError
from packio.images import regions
from packio.images.accepting import accepted
from packio.storage import urls

OUTPUTS = ("tensor", "numpy", "pil")
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check a dataset's options by themselves, without its pack.

    Returns:
        The options, with torchvision's crops as packio's, and URLs as such.

    Raises:
        OptionError: a value is not allowed, or two options exclude each other.
    """
    choices = {"output": OUTPUTS, "on_error": ("raise", "skip"), "cache": (None, "ram"),
               "fidelity": regions.FIDELITIES, "dtype": (torch.uint8, *FLOATS)}  # fmt: skip
    for name, allowed in choices.items():
        if options[name] not in allowed:
            raise OptionError(f"{name}={options[name]!r}: expected one of {allowed}")
    for name in ("hflip", "vflip"):
        if not 0 <= options[name] <= 1:
            raise OptionError(f"{name}={options[name]!r}: expected a probability, 0..1")
    if options["output"] != "tensor" and options["dtype"] != torch.uint8:
        raise OptionError(
            f"dtype={options['dtype']} needs output='tensor'; output is {options['output']!r}"
        )
    threads = options["threads"]
    if threads != "auto" and (not isinstance(threads, int) or threads < 1):
        raise OptionError(f"threads={threads!r}: expected 'auto' or an int of at least 1")
    ignored = options["ignore_index"]
    if type(ignored) is not int or not -(1 << 31) <= ignored < 1 << 31:
        raise OptionError(f"ignore_index={ignored!r}: expected an int of 32 bits")
    _check_bytes(options, "cache_bytes", "cache", "cache='ram'")
    _check_bytes(options, "local_bytes", "local_copy", "a folder as local_copy=")
    if options["cache"] is not None and options["local_bytes"] is not None:
        raise OptionError("cache='ram' and local_bytes= exclude each other: both keep samples")
    _check_views(options)
    _check_transforms(options)
    views = options["views"]
    places = {name: options[name] for name in ("path", "index") if _is_text(options.get(name))}
    return {
        **options,
        **{n: url for n, p in places.items() if isinstance(url := urls.place(p), urls.Url)},
        "crop": accepted(options["crop"]),
        "views": None if views is None else tuple(map(accepted, views)),
    }


def _is_text(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def _check_bytes(options: Mapping[str, Any], name: str, needed: str, expected: str) -> None:
    """Check a limit, which needs another option."""
    size = options[name]
    if size is None:
        return
    if options[needed] is None:
        raise OptionError(f"{name}= needs {needed}=: expected {expected} with it")
    if type(size) is not int or size < 1:
        raise OptionError(f"{name}={size!r}: expected a number of bytes, at least 1")


def _check_views(options: Mapping[str, Any]) -> None:
    if options["views"] is None:
        return
    if options["crop"] is not None:
        raise OptionError("crop= and views= exclude each other; put the crop into views")
    if not 1 <= len(options["views"]) <= draws.VIEWS:
        raise OptionError(f"views=: expected 1 to {draws.VIEWS} geometries")


def _check_transforms(options: Mapping[str, Any]) -> None:
    if options["transforms"] is None:
        return
    for name in ("transform", "target_transform", "views"):
        if options[name] is not None:
            raise OptionError(f"transforms= and {name}= exclude each other")
