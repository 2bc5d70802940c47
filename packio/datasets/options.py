"""Options of datasets: which are allowed and which exclude each other; described for states."""

from __future__ import annotations

import dataclasses
import numbers
import os
from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch

from packio.batches import draws
from packio.errors import OptionError
from packio.images import bucketing, floats, geometry, regions
from packio.images.geometry import Geometry, accept_crop, check_probability
from packio.ops import reading as compose
from packio.ops.transform import Transform
from packio.packs.opening import Pack
from packio.storage import urls
from packio.system.signatures import BY_POSITION
from packio.system.threads import check_threads

_OBJECTS = (Transform, floats.Normalize, torch.nn.Module)  # transforms that are made first
OUTPUTS = ("tensor", "numpy", "pil")
_SHOWN = ("hflip", "vflip", "fidelity", "mode", "exif_orientation", "split")  # in descriptions
SETTABLE = ("transform", "target_transform", "transforms", "seed")  # of options, later on

_INSTEAD_OF_LOADER = (
    "packio decodes images itself: transform= is called with each, and output='pil' gives it "
    "Pillow's"
)
_OF_A_LOADER = (
    "it is an argument of what loads the dataset: packio.Loader(dataset, …), or DataLoader"
)
HINTS = {  # arguments of ImageFolder and of loaders → what to write instead
    BY_POSITION: "{kind}(path, transform=…): all but the path by name; the transform gets uint8 "
    "tensors, or Pillow's images with output='pil'",
    "root": "the path of the pack is the first argument: {kind}('train.lmdb', transform=…)",
    "loader": _INSTEAD_OF_LOADER,
    "is_valid_file": "packio pack --include GLOB chooses files, where(key=…) samples",
    "allow_empty": "packio pack --allow-empty packs folders without images",
    **dict.fromkeys(("num_workers", "workers", "batch_size", "shuffle"), _OF_A_LOADER),
}
_LABELS = "target_transform= changes labels; packio reindex mends those of a pack"
_OF_IMAGE_FOLDER = {  # attributes of ImageFolder → what has the effect of setting them
    "samples": "subset() and where() choose samples",
    "imgs": "subset() and where() choose samples",
    "loader": _INSTEAD_OF_LOADER,
    **dict.fromkeys(("targets", "classes", "class_to_idx"), _LABELS),
}


def check_settable(dataset: object, name: str, names: Container[str]) -> None:
    """Refuse to set what has an effect only when a dataset is made."""
    if name in _OF_IMAGE_FOLDER:
        instead = _OF_IMAGE_FOLDER[name]
    elif name in names and name not in SETTABLE:
        instead = f"make another dataset: ds = ds.with_options({name}=…)"
        if name == "path":
            instead = f"make another dataset: {type(dataset).__name__}(path, …)"
    else:
        return
    raise OptionError(
        f"{type(dataset).__name__}.{name} cannot be set, it would do nothing; {instead}"
    )


def check(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check a dataset's options by themselves; return them with packio's crops, and with URLs."""
    _check_path(options["path"])
    choices = {"output": OUTPUTS, "on_error": ("raise", "skip"), "cache": (None, "ram"),
               "fidelity": regions.FIDELITIES, "dtype": (torch.uint8, *floats.DTYPES)}  # fmt: skip
    for name, allowed in choices.items():
        if options[name] not in allowed:
            raise OptionError(f"{name}={options[name]!r}: expected one of {allowed}")
    options = _read_compose(options)
    for name in ("hflip", "vflip"):
        check_probability(name, options[name])
    if options["output"] != "tensor" and options["dtype"] != torch.uint8:
        raise OptionError(
            f"dtype={options['dtype']} needs output='tensor'; output is {options['output']!r}"
        )
    _check_numbers(options)
    _check_bytes(options, "cache_bytes", "cache", "cache='ram'")
    _check_bytes(options, "local_bytes", "local_copy", "a folder as local_copy=")
    if options["cache"] is not None and options["local_bytes"] is not None:
        raise OptionError("cache='ram' and local_bytes= exclude each other: both keep samples")
    _check_views(options)
    _check_transforms(options)
    views = options["views"]
    parsed = {
        name: urls.parse(place) for name in ("path", "index")
        if isinstance(place := options.get(name), (str, os.PathLike))
    }  # fmt: skip
    return {
        **options,
        **{name: url for name, url in parsed.items() if url is not None},
        "crop": accept_crop(options["crop"]),
        "views": None if views is None else tuple(map(accept_crop, views)),
    }


def _check_numbers(options: Mapping[str, Any]) -> None:
    check_threads(options["threads"])
    ignored = options["ignore_index"]
    if type(ignored) is not int or not -(1 << 31) <= ignored < 1 << 31:
        raise OptionError(f"ignore_index={ignored!r}: expected an int of 32 bits")
    if type(options["exif_orientation"]) is not bool:
        raise OptionError(
            f"exif_orientation={options['exif_orientation']!r}: expected True or False"
        )
    seed = options["seed"]
    if isinstance(seed, bool) or not isinstance(seed, (numbers.Integral, type(None))):
        raise OptionError(f"seed={seed!r}: expected an int, or None")


def _check_path(path: object) -> None:
    if isinstance(path, (str, os.PathLike, Pack)):
        return
    what = "with_options() changes the options of a dataset"
    if isinstance(path, (list, tuple)):
        what = "several packs: packio.ConcatPacks([packio.PackDataset(path) for path in paths])"
    raise OptionError(
        f"path={path!r}: expected the path of a pack, or what packio.open gave; {what}"
    )


def _check_bytes(options: Mapping[str, Any], name: str, needed: str, expected: str) -> None:
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
    if not isinstance(options["views"], Sequence) or not 1 <= len(options["views"]) <= draws.VIEWS:
        raise OptionError(
            f"views={options['views']!r}: expected a list of 1 to {draws.VIEWS} crops, as "
            "[packio.RandomResizedCrop(224)] * 2"
        )


def _check_transforms(options: Mapping[str, Any]) -> None:
    transform, views = options["transform"], options["views"]
    if isinstance(transform, (list, tuple)) and views is not None and len(transform) != len(views):
        raise OptionError(
            f"transform= has {len(transform)} items, views= has {len(views)}; the same for each "
            f"view: transform=[[…]] * {len(views)}"
        )
    for name in SETTABLE[:3]:
        _check_functions(name, options[name])
    own = transform if views is None and isinstance(transform, (list, tuple)) else ()
    if any(isinstance(one, (list, tuple)) for one in own):
        raise OptionError(
            "transform= has a list in a list, which is for views=; expected a list of functions"
        )
    is_normal = any(isinstance(one, floats.Normalize) for one in _flatten(transform))
    if is_normal and options["output"] != "tensor":
        raise OptionError(
            f"transform=packio.Normalize needs output='tensor'; output is {options['output']!r}"
        )
    if options["transforms"] is None:
        return
    if any(isinstance(one, Transform) for one in _flatten(options["transforms"])):
        raise OptionError(
            "transforms=: packio's own go into transform=; masks and boxes follow them"
        )
    for name in ("transform", "target_transform", "views"):
        if options[name] is not None:
            raise OptionError(f"transforms= and {name}= exclude each other")


def _check_functions(name: str, given: Any) -> None:
    """Check that a transform, or each of a list, can be called."""
    each = list(compose.flatten(given))
    kinds = [
        one.__name__ for one in each if isinstance(one, type)
        and (issubclass(one, _OBJECTS) or one.__module__.startswith(compose.FOREIGN))
    ]  # fmt: skip
    if kinds:
        raise OptionError(f"{name}={kinds[0]}: a class; write {kinds[0]}()")
    if any(isinstance(one, Geometry) for one in each):
        raise OptionError(f"{name}=: a crop goes into crop=, or into views=")
    if any(isinstance(one, str) and one.startswith("rand-") for one in each):
        raise OptionError(f"{name}={given!r}: write packio.TimmRandAugment(…) of it")
    if not all(one is None or callable(one) for one in each):
        raise OptionError(f"{name}={given!r}: expected a function, or another callable")


def _read_compose(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Take what a Compose of torchvision or timm has: crop, flips, and steps that packio makes.

    A Compose is read if it begins with Pillow's image, and nobody asks for such images.
    """
    if options["output"] != "tensor" or options["views"] is not None:
        return options  # of views, `packio.ops.pipeline.split` reads each
    reading = compose.read(options["transform"])
    if reading is None:
        return options
    twice = [name for name in reading.options if options[name]]
    if twice:
        raise OptionError(
            f"transform= begins with {' and '.join(twice)}, too: leave out "
            f"{', '.join(f'{name}=' for name in twice)}, or what the Compose begins with"
        )
    return {**options, **reading.options, "transform": reading.steps or None}


def _flatten(given: Any) -> list[Any]:
    """The items of a list, and of those in it; or the one thing that is none."""
    if not isinstance(given, (list, tuple)):
        return [given]
    return [one for item in given for one in _flatten(item)]


def describe(options: Mapping[str, Any], digest: str, samples: int) -> dict[str, Any]:
    """Describe what a dataset of a pack shows, as plain numbers and text; for states of loaders.

    A description fits ``torch.save`` and JSON, and is read without packio. A dataset that takes the
    same crops of a pack can be made of it.
    """
    views = options["views"]
    return {
        "digest": digest,
        "samples": samples,
        **{name: options[name] for name in _SHOWN},
        "crop": _describe_crop(options["crop"]),
        "views": None if views is None else [_describe_crop(view) for view in views],
    }


def _describe_crop(crop: Any) -> dict[str, Any] | None:
    if crop is None:
        return None
    values = {name: getattr(crop, name) for name in getattr(crop, "__dataclass_fields__", ())}
    plain = {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}
    return {"name": type(crop).__name__, **plain}


def options_of(description: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a dataset that takes the same crops; see `describe`."""
    views = description.get("views")
    found = {name: description[name] for name in _SHOWN if name in description}
    if views is not None:
        return {**found, "views": [_crop_of(view) for view in views]}
    return {**found, "crop": _crop_of(description.get("crop"))}


def _crop_of(values: Mapping[str, Any] | None) -> Geometry | None:
    if values is None:
        return None
    name = values.get("name")
    kind = next((vars(m)[name] for m in (geometry, bucketing) if name in vars(m)), None)
    given = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items() if n != "name"}
    try:
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            made = kind(**given)
            if isinstance(made, Geometry):
                return made
    except TypeError:  # another version's arguments
        pass
    raise OptionError(
        f"crop={name}: the state was made with a crop that packio does not know; hand the dataset "
        "over in Python, or say a crop"
    )
