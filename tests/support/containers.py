"""Containers of samples that have everything a sample can have, as each format writes them."""

from __future__ import annotations

import io
import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from packio.errors import MissingPackageError
from packio.images import encodings
from packio.sample.fields import encode
from packio.sample.record import Field, Record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from packio.formats import Format, Written

COUNT = 11
_ODD_METAS = (b"{}", b'{"b": 1e400, "a":{"meta":[1,{"x":"}"}]} }', b' {"x":1}')


def pixels(height: int, width: int, *, seed: int, kind: str = "image", form: str = "PNG") -> Field:
    """An image or a mask of random pixels."""
    random = np.random.default_rng(seed)
    shape = (height, width, 3) if kind == "image" else (height, width)
    file = io.BytesIO()
    Image.fromarray(random.integers(0, 256, shape, np.uint8)).save(file, form)
    return Field(kind, file.getvalue(), encodings.read_facts(file.getvalue()))


def records(label: str = "int") -> list[Record[Field]]:
    """Samples with everything that a sample can have."""
    made = []
    for i in range(COUNT):
        fields = {
            "image": pixels(9 + i, 20, seed=i, form=("PNG", "JPEG", "BMP")[i % 3]),
            "mask": pixels(9 + i, 20, seed=i, kind="mask"),
            "depth": pixels(5, 6, seed=100 + i),
            "instances": pixels(5, 6, seed=200 + i, kind="mask"),
            "caption": encode(f"a cat, {'ü' * i}\n\udcff"),
            "txt": encode(str(i)),
            "latent": encode(np.arange(i * 3, dtype=np.float32).reshape(i, 3)),
            "Raw-1": encode(bytes(range(i))),
            "magic": encode(struct.pack("<I", 0xCED7230A) * (i % 3)),  # RecordIO splits at it
        }
        for n, name in enumerate(list(fields)[1:]):  # all but one are missing in some samples
            if (i + n) % 4 == 0 and name != "txt":
                del fields[name]
        box_columns: dict[str, np.ndarray] = {
            "labels": np.arange(i % 4), "crowd": np.arange(i % 4) % 2,
            "area": np.linspace(0.1, 9, i % 4, dtype=np.float32),
        }  # fmt: skip
        labels: dict[str, Any] = {
            "int": i % 3, "vector": np.linspace(0, i, 4, dtype=np.float32), "none": None,
        }  # fmt: skip
        key = f"c{i % 3}/{'ü' * (i % 3)} {i}\udcff\t\n.x.jpg" if i else ',"meta":{}'
        meta = json.dumps({"i": i, "text": "grün\n"}, ensure_ascii=False).encode()
        made.append(Record(
            key.encode("utf-8", "surrogateescape"), fields, labels[label], None,
            np.random.default_rng(i).random((i % 4, 4), np.float32), box_columns,
            dict(enumerate(_ODD_METAS)).get(i, meta),
        ))  # fmt: skip
    return made


def write(
    form: Format, path: Path, given: Sequence[Record[Field]], step: int = 4, **options: Any
) -> Written:
    """Write a container; the test is skipped where the format's library is not installed."""
    try:
        writer = form.writer(
            path, count=len(given), size=sum(len(r.image.data) for r in given),
            classes=["a", "b", "c"], **options,
        )  # fmt: skip
    except MissingPackageError as error:
        pytest.skip(str(error))
    for start in range(0, len(given), step):
        writer.add(given[start : start + step])
    return writer.close()


def path_of(form: Format, folder: Path) -> Path:
    """Path of a container with the suffix of its format."""
    return folder / f"pack{form.caps.suffixes[0]}"


def folder_of(form: Format, path: Path) -> Path:
    """The folder that the names of a container's files begin in."""
    return path if form.caps.is_directory else path.parent
