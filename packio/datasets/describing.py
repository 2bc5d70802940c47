"""What a dataset shows of its samples, as plain numbers and text: for states of loaders.

A description fits ``torch.save`` and JSON, and is read without packio. A dataset that takes the
same crops of a pack can be made of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from packio.errors import OptionError
from packio.images import bucketing, geometry
from packio.images.geometry import Geometry

_SHOWN = ("hflip", "vflip", "fidelity", "mode", "exif_orientation", "split")  # options


def described(options: Mapping[str, Any], digest: str, samples: int) -> dict[str, Any]:
    """Describe a dataset of one pack."""
    views = options["views"]
    return {
        "digest": digest,
        "samples": samples,
        **{name: options[name] for name in _SHOWN},
        "crop": _of_geometry(options["crop"]),
        "views": None if views is None else [_of_geometry(view) for view in views],
    }


def _of_geometry(crop: Any) -> dict[str, Any] | None:
    if crop is None:
        return None
    names = [field.name for field in getattr(crop, "__dataclass_fields__", {}).values()]
    values = {name: getattr(crop, name) for name in names}
    plain = {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}
    return {"name": type(crop).__name__, **plain}


def options_of(description: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a dataset that takes the same crops; see `described`."""
    views = description.get("views")
    found = {name: description[name] for name in _SHOWN if name in description}
    if views is not None:
        return {**found, "views": [_geometry(view) for view in views]}
    return {**found, "crop": _geometry(description.get("crop"))}


def _geometry(values: Mapping[str, Any] | None) -> Geometry | None:
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
