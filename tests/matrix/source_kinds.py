"""Every kind of source, written by hand from a described dataset. A new kind is one function here.

A function writes samples into a folder and returns what `packio pack` is told, and the samples as
they have to come out, in order: where the kind itself adds or renames something, the function says
so. ``@kind(...)`` lists the annotations that the kind can carry, as ``label=class``.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import described
from described import Annotations, Sample


class Written(NamedTuple):
    """A dataset on disk."""

    arguments: list[str]  # source and options, as `packio pack` and `packio append` take them
    samples: list[Sample]  # as they must come out, in order


Write = Callable[[list[Sample], pathlib.Path], Written]


class Kind(NamedTuple):
    """A kind of source."""

    write: Write
    carries: dict[str, set[str]]  # annotation → the ways that it can be carried
    class_folders: bool  # the folder in a sample's key is the sample's class
    names_boxes: bool  # labels of boxes are names of classes

    def fits(self, annotations: Annotations) -> bool:
        """Tell whether the kind can carry them all, and has what it needs."""
        if self.names_boxes and "boxes" in annotations and annotations.get("label") in _NUMBERS:
            return False  # numbers would count the names that the boxes have
        ways = {n: annotations.get(n, "none") for n in [*annotations, *self.carries]}
        return all(way in self.carries.get(n, set()) for n, way in ways.items())


KINDS: dict[str, Kind] = {}
ALL = ("mask=all,some", "boxes=all,some", "meta=all,some", "fields=all,some")
_NUMBERS = ("number", "vector")


def kind(
    *carries: str, class_folders: bool = False, names_boxes: bool = True
) -> Callable[[Write], Write]:
    """Register a kind. An annotation may be left out, unless its ways begin with ``!``."""
    ways: dict[str, set[str]] = {}
    for text in (*carries, "turned=all"):
        name, _, listed = text.partition("=")
        found = listed.removeprefix("!").split(",")
        ways[name] = {*found, *([] if listed.startswith("!") else ["none"])}

    def register(write: Write) -> Write:
        KINDS[write.__name__] = Kind(write, ways, class_folders, names_boxes)
        return write

    return register


def put(path: pathlib.Path, data: bytes) -> str:
    """Write a file with a fixed time, so that no time tells whether it has changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (1_700_000_000, 1_700_000_000))
    return str(path)


def put_images(samples: list[Sample], folder: pathlib.Path) -> None:
    for sample in samples:
        put(folder / sample["key"], sample["image"])


def stem_of(sample: Sample) -> str:
    return str(sample["key"].rpartition(".")[0])


def class_names(samples: list[Sample]) -> list[str]:
    """Names of the classes that labels and boxes have, in an order that is not sorted."""
    found: set[str] = set()
    for sample in samples:
        label = sample.get("label")
        found |= {
            *(label if isinstance(label, list) else [label] if isinstance(label, str) else [])
        }
        found |= {box["class"] for box in sample.get("boxes", [])}
    return [name for name in ORDER if name in found]


ORDER = ("polar bear", "dog", "zebra", "cat", "bird")  # of classes, where a source gives one


def by_folders(samples: list[Sample]) -> list[Sample]:
    return sorted(samples, key=lambda s: s["key"].encode())


ENDINGS = {"caption": ".txt", "depth": ".png", "latent": ".npy"}


def field_names(samples: list[Sample]) -> list[str]:
    return sorted({name for sample in samples for name in sample.get("fields", {})})


def annotations_of(kind_name: str) -> list[Annotations]:
    """What a kind needs, alone and with every single annotation that the kind carries."""
    carries = KINDS[kind_name].carries
    needed = {n: min(ways) for n, ways in carries.items() if "none" not in ways}
    found = [needed]
    for name, ways in described.ANNOTATIONS.items():
        possible = [way for way in ways if way in carries.get(name, ())]
        found += [needed | {name: way} for way in possible if needed.get(name) != way]
    return found
