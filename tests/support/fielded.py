"""A small pack with fields of every kind, written without a container's own library."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from packio.index import columns, indexfile
from packio.index.building import IndexBuilder, Ranges
from packio.sample import fields
from packio.sample.record import Field, Record

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence

CLASSES = ["cat", "dog"]
SPLITS = ["train", "val"]


def png(seed: int, channels: int = 3) -> bytes:
    """An image of 5 by 6 pixels."""
    shape = (5, 6) if channels == 1 else (5, 6, channels)
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 9, shape, np.uint8)).save(file, "PNG")
    return file.getvalue()


def records(count: int = 6) -> list[Record[Field]]:
    """Samples with everything a sample can have; sample 2 has no mask, sample 3 no caption."""
    found = []
    for i in range(count):
        values = {
            "image": Field("image", png(i)),
            "mask": Field("mask", png(100 + i, 1)),
            "depth": Field("image", png(200 + i, 1)),
            "caption": fields.encode(f"ü {i}\n"),
            "latent": fields.encode(np.arange(4, dtype=np.float32) + i),
            "blob": Field("bytes", b"\0blob %d" % i),
        }
        absent = {2: "mask", 3: "caption"}.get(i)
        boxes = np.array([[0, 0, 3.3, 4]] * (i % 3), np.float32).reshape(-1, 4)
        of_boxes: dict[str, np.ndarray] = {
            "labels": np.arange(i % 3) % 2, "crowd": np.arange(i % 3),
                    "area": np.full(i % 3, 13.2, np.float32)}  # fmt: skip
        found.append(
            Record(
                b"%s/%d\xff.png" % (CLASSES[i % 2].encode(), i),
                {n: v for n, v in values.items() if n != absent},
                i % 2, i % 2, boxes, of_boxes, b'{"place": "\xc3\xbc", "n": %d}' % i,
            )
        )  # fmt: skip
    return found


def write(
    folder: pathlib.Path, given: Sequence[Record[Field]] | None = None, **metadata: Any
) -> pathlib.Path:
    """Write a pack into a folder that does not exist yet: all values in one file, and the index."""
    given = records() if given is None else given
    builder, data = IndexBuilder(), bytearray()
    offsets: dict[str, list[tuple[int, int]]] = {}
    for record in given:
        builder.add(record)
    for record in given:
        for name in builder.fields:
            field = record.fields.get(name)
            place = (-1, 0) if field is None else (len(data), len(field.data))
            offsets.setdefault(name, []).append(place)
            data += field.data if field else b""
    places = {
        name: Ranges(np.zeros(len(given), np.uint32), *np.array(pairs, np.int64).T)
        for name, pairs in offsets.items()
    }
    folder.mkdir()
    (folder / "data.tar").write_bytes(data)
    table = builder.columns(places) | columns.file_columns(folder, ["data.tar"])
    said = {
        "version": 2, "format": "tar", "fields": builder.fields, "classes": CLASSES,
        "splits": SPLITS, "shards": [{"name": "data.tar", "samples": len(given)}],
        "counts": {"packed": len(given), "skipped": 0}, **metadata,
    }  # fmt: skip
    indexfile.write(folder / "index.packio", table, said)
    return folder
