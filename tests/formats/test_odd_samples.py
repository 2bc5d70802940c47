"""Foreign containers in which one sample is unlike the others: nothing is dropped silently."""

from __future__ import annotations

import io
import struct
import tarfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from PIL import Image

import packio
from packio.formats import tfrecord
from packio.formats.recordio import framing
from packio.formats.wire.protobuf import varint
from packio.index.indexfile import crc32c

msgpack: Any = pytest.importorskip("msgpack")
_VERSION_1: Any = {"lib_version": 0} if int(lmdb.__version__.split(".")[0]) >= 3 else {}
_Samples = Sequence[tuple[bytes, "int | float | None"]]  # image, label


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))


def _image(grey: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), grey, np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def _tar(path: Path, samples: _Samples) -> None:
    with tarfile.open(path, "w") as archive:
        for i, (image, label) in enumerate(samples):
            members = {"png": image, "cls": b"" if label is None else b"%d" % int(label)}
            for suffix, content in members.items():
                if content:
                    info = tarfile.TarInfo(f"{i}.{suffix}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))


def _sized(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + varint(len(content)) + content


def _feature(key: bytes, kind: int, content: bytes) -> bytes:
    return _sized(0x0A, _sized(0x0A, key) + _sized(0x12, _sized(kind, _sized(0x0A, content))))


def _tfrecord(path: Path, samples: _Samples) -> None:
    with path.open("wb") as file:
        for image, label in samples:
            features = _feature(b"image/encoded", 0x0A, image)
            if isinstance(label, float):
                features += _feature(b"label", 0x12, struct.pack("<f", label))
            elif label is not None:
                features += _feature(b"label", 0x1A, varint(label))
            data = _sized(0x0A, features)
            crc = tfrecord.TAIL.pack(tfrecord.mask_crc(crc32c(data)))
            file.write(tfrecord.head(len(data)) + data + crc)


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
    assert pack.labels is not None
    assert pack.labels.tolist() == [0, 1, 3]


@pytest.mark.parametrize("name", _WRITERS)
def test_images_that_cannot_be_read_are_told(tmp_path: Path, name: str) -> None:
    samples = [(b"no image" if i == 2 else _image(i), i) for i in range(4)]
    _WRITERS[name](tmp_path / name, samples)
    with pytest.warns(UserWarning, match=r"1 of 4 records are left out.*the first: '2"):
        pack = packio.open(tmp_path / name)
    assert pack.labels is not None
    assert pack.labels.tolist() == [0, 1, 3]


@pytest.mark.parametrize("name", ["a.rec", "a.tfrecord"])
def test_ints_among_floats_are_floats(tmp_path: Path, name: str) -> None:
    labels = [0.5, 1.0, 2.0] if name == "a.rec" else [0.5, 1, 2]
    _WRITERS[name](tmp_path / name, [(_image(i), label) for i, label in enumerate(labels)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pack = packio.open(tmp_path / name)
    assert pack.labels is not None
    assert pack.labels.tolist() == [[0.5], [1.0], [2.0]]
