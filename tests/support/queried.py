"""A pack with everything that a query can ask for, and a plain description of its samples."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import fielded
import numpy as np

from packio.sample import fields
from packio.sample.record import Field, Record

if TYPE_CHECKING:
    import pathlib

CLASSES = ["cat", "dog", "20", "1"]
SPLITS = ["train", "val"]
COUNT = 40


class Described(NamedTuple):
    """One sample, as plain Python has it."""

    key: str
    label: int
    split: str
    fields: dict[str, int]  # name → bytes
    boxes: list[list[float]]
    box_labels: list[int]
    crowd: list[int]
    meta: dict[str, Any]

    @property
    def name(self) -> str | None:
        """Of its class."""
        return CLASSES[self.label] if self.label >= 0 else None


def meta_of(i: int) -> dict[str, Any]:
    """Values of one type, of two, and lists; some samples lack some of them."""
    return {
        "city": ("Ulm", "Köln", None)[i % 3],
        "n": i - 3,
        "score": i / 4 if i % 2 else i,
        "seen": i % 5 == 0,
        "mixed": (i, "x", 1.5, True)[i % 4],
        "tags": ["a", i],
        "width": f"wide {i}",
        "a b/c~'\"": i,
        **({"rare": 2**60 + i} if i % 7 == 0 else {}),
        **({"huge": 2**70 if i % 2 else 3} if i % 3 == 0 else {}),
    }


def samples() -> list[Described]:
    """What the pack of `write` holds."""
    found = []
    for i in range(COUNT):
        count = i % 4
        values = {"image": len(fielded.png(i)), "depth": len(fielded.png(200 + i, 1)),
                  "caption": len(f"text ü {i}".encode())}  # fmt: skip
        if i % 6 == 4:
            del values["depth"]
        if i % 6 == 3:
            del values["caption"]
        found.append(Described(
            f"{'aé'[i % 2]}/{i:02d}.png", i % 5 - 1, SPLITS[i % 3 == 0], values,
            [[0.0, j, 2.5 + j, i] for j in range(count)], [(i + j) % 4 for j in range(count)],
            [j % 2 for j in range(count)], meta_of(i),
        ))  # fmt: skip
    return found


def records() -> list[Record[Field]]:
    """The same samples as packing takes them."""
    found = []
    for i, sample in enumerate(samples()):
        values = {"image": Field("image", fielded.png(i))}
        if "depth" in sample.fields:
            values["depth"] = Field("image", fielded.png(200 + i, 1))
        if "caption" in sample.fields:
            values["caption"] = fields.encode(f"text ü {i}")
        of_boxes = {"labels": np.array(sample.box_labels, np.int64),
                    "crowd": np.array(sample.crowd, np.int64)}  # fmt: skip
        found.append(Record(
            os.fsencode(sample.key), values, sample.label, SPLITS.index(sample.split),
            np.array(sample.boxes, np.float32).reshape(-1, 4), of_boxes,
            json.dumps(sample.meta, ensure_ascii=False).encode(),
        ))  # fmt: skip
    return found


def write(folder: pathlib.Path) -> pathlib.Path:
    """Write the pack into a folder that does not exist yet."""
    return fielded.write(folder, records(), classes=CLASSES, splits=SPLITS)
