"""Foreign containers in which one sample is unlike the others: nothing is dropped silently."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lmdb
import made
import numpy as np
import pytest

import packio
from packio.formats.recordio import framing

msgpack: Any = pytest.importorskip("msgpack")
_VERSION_1: Any = {"lib_version": 0} if int(lmdb.__version__.split(".")[0]) >= 3 else {}
_Samples = Sequence[tuple[bytes, "int | float | None"]]  # image, label


def _image(grey: int) -> bytes:
    return made.saved(np.full((8, 8, 3), grey, np.uint8), "PNG")


def _tar(path: Path, samples: _Samples) -> None:
    members = {}
    for i, (image, label) in enumerate(samples):
        members[f"{i}.png"] = image
        if label is not None:
            members[f"{i}.cls"] = b"%d" % int(label)
    made.tar(path, members)


def _tfrecord(path: Path, samples: _Samples) -> None:
    writer = pytest.importorskip("tfrecord").TFRecordWriter(str(path))
    for image, label in samples:
        given = {} if label is None else {
            "label": (label, "float" if isinstance(label, float) else "int")
        }  # fmt: skip
        writer.write({"image/encoded": (image, "byte"), **given})
    writer.close()


def _lmdb(path: Path, samples: _Samples) -> None:
    with lmdb.open(str(path), **_VERSION_1) as env, env.begin(write=True) as transaction:
        for i, (image, label) in enumerate(samples):
            value = [image] if label is None else [image, label]
            transaction.put(b"%d" % i, msgpack.packb(value))


def _rec(path: Path, samples: _Samples) -> None:
    with path.open("wb") as file:
        for i, (image, label) in enumerate(samples):
            header = framing.HEADER.pack(0, float(label or 0), i, 0)
            file.write(b"".join(framing.frames(header, image)))


_WRITERS: dict[str, Callable[[Path, _Samples], None]] = {
    "a.tar": _tar, "a.tfrecord": _tfrecord, "a.lmdb": _lmdb, "a.rec": _rec,
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in _WRITERS if name != "a.rec"])
def test_one_sample_without_a_label_is_told(tmp_path: Path, name: str) -> None:
    _WRITERS[name](tmp_path / name, [(_image(i), None if i == 2 else i) for i in range(4)])
    with pytest.warns(UserWarning, match=r"1 of 4 records are left out; the first: '2.*no label"):
        pack = packio.open(tmp_path / name)
    assert made.labels(pack) == [0, 1, 3]


@pytest.mark.parametrize("name", _WRITERS)
def test_images_that_cannot_be_read_are_told(tmp_path: Path, name: str) -> None:
    samples = [(b"no image" if i == 2 else _image(i), i) for i in range(4)]
    _WRITERS[name](tmp_path / name, samples)
    with pytest.warns(UserWarning, match=r"1 of 4 records are left out.*the first: '2"):
        pack = packio.open(tmp_path / name)
    assert made.labels(pack) == [0, 1, 3]


@pytest.mark.parametrize("name", ["a.rec", "a.tfrecord"])
def test_ints_among_floats_are_floats(tmp_path: Path, name: str) -> None:
    labels = [0.5, 1.0, 2.0] if name == "a.rec" else [0.5, 1, 2]
    _WRITERS[name](tmp_path / name, [(_image(i), label) for i, label in enumerate(labels)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pack = packio.open(tmp_path / name)
    assert made.labels(pack) == [[0.5], [1.0], [2.0]]
