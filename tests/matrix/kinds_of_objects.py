"""Sources that are objects of Python: datasets of torch's, lists, generators."""

from __future__ import annotations

import copy
import io
import pathlib
from typing import TYPE_CHECKING

import numpy as np
from described import upright
from source_kinds import (
    ALL,
    ORDER,
    Written,
    by_folders,
    class_names,
    field_names,
    kind,
    put,
    put_images,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from described import Sample


def _module(folder: pathlib.Path, text: str, values: dict[str, object]) -> str:
    """A module of Python beside its data; its name is of this dataset alone."""
    import pickle

    folder.mkdir(parents=True, exist_ok=True)
    put(folder / "values.pickle", pickle.dumps(values))
    put(folder / "given.py", (
        "import pathlib, pickle\n"
        "values = pickle.loads((pathlib.Path(__file__).parent / 'values.pickle').read_bytes())\n"
        "samples = values['samples']\n" + text
    ).encode())  # fmt: skip
    return "given"


def _values(sample: Sample, names: Sequence[str]) -> dict[str, object]:
    """A sample as a dataset may give it: arrays, bytes, numbers."""
    found: dict[str, object] = {"key": sample["key"], "image": sample["image"]}
    label = sample.get("label")
    if isinstance(label, list):
        found["label"] = [names.index(name) for name in label]
    elif label is not None:
        found["label"] = names.index(label) if isinstance(label, str) else label
    if "mask" in sample:
        found["mask"] = sample["mask"]
    if "boxes" in sample:
        boxes = sample["boxes"]
        found["boxes"] = np.array([upright(sample, b) for b in boxes], np.float32).reshape(-1, 4)
        found["box_labels"] = np.array([names.index(b["class"]) for b in boxes], np.int64)
        found["area"] = np.array([b["area"] for b in boxes], np.float32)
        found["iscrowd"] = np.array([b["crowd"] for b in boxes], np.int64)
    if "meta" in sample:
        found["meta"] = sample["meta"]
    for name, (_, data) in sample.get("fields", {}).items():
        is_array = name == "latent"
        value: object = np.load(io.BytesIO(data)) if is_array else data
        found[name] = data.decode() if name == "caption" else value
    return found


def _field_options(samples: list[Sample]) -> list[str]:
    kinds = {"caption": "caption=caption:text", "depth": "depth=depth:image"}
    names = [name for name in kinds if name in field_names(samples)]
    return [word for name in names for word in ("--field", kinds[name])]


@kind("label=class,many,number", *ALL)
def torch_dataset(samples: list[Sample], folder: pathlib.Path) -> Written:
    """A dataset of torch's, with a length, items and the attribute ``classes``."""
    names = class_names(samples)
    text = (
        "class Data:\n"
        "    classes = values['classes']\n"
        "    def __len__(self): return len(samples)\n"
        "    def __getitem__(self, i): return dict(samples[range(len(samples))[i]])\n"
    )
    found = {"samples": [_values(s, names) for s in samples], "classes": names}
    return Written([f"{_module(folder, text, found)}:Data", *_field_options(samples)], samples)


@kind("label=class,number,vector", "mask=all,some", "meta=all,some", "fields=all,some")
def list_of_dicts(samples: list[Sample], folder: pathlib.Path) -> Written:
    """A list of dicts; labels are names."""
    names = class_names(samples)
    rows = [_values(s, names) for s in samples]
    for row, sample in zip(rows, samples, strict=True):
        if "label" in sample:
            row["label"] = sample["label"]
    module = _module(folder, "", {"samples": rows})
    return Written([f"{module}:samples", *_field_options(samples)], samples)


@kind("boxes=!all,some", "label=number", "meta=all,some", names_boxes=False)
def generator(samples: list[Sample], folder: pathlib.Path) -> Written:
    """A function that yields dicts; labels of boxes are numbers without names."""
    expected = copy.deepcopy(samples)
    for sample in expected:
        for box in sample.get("boxes", []):
            box["class"] = ORDER.index(box["class"])
    rows = [_values(s, ORDER) for s in samples]
    module = _module(folder, "def given():\n    yield from samples\n", {"samples": rows})
    return Written([f"{module}:given"], expected)


_SUPPORT = pathlib.Path(__file__).parents[1] / "support"  # its `vision` imports torchvision


@kind("label=!class", class_folders=True)
def torchvision_folder(samples: list[Sample], folder: pathlib.Path) -> Written:
    """An ImageFolder object of torchvision's."""
    put_images(samples, folder / "tree")
    text = (
        f"import sys; sys.path.append({str(_SUPPORT)!r})\n"
        "import vision\n"
        "def data():\n"
        "    folder = pathlib.Path(__file__).parent / 'tree'\n"
        "    return vision.import_torchvision().datasets.ImageFolder(folder)\n"
    )
    return Written([f"{_module(folder, text, {'samples': 0})}:data"], by_folders(samples))
