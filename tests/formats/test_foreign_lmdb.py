"""LMDB databases as others write them: images and labels come back, and nothing in them is run."""

from __future__ import annotations

import base64
import collections
import contextlib
import functools
import json
import os
import pickle
import struct
import sys
import tracemalloc
import zlib
from typing import TYPE_CHECKING, Any

import made
import numpy as np
import pytest
from cli_runs import run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import packio
from packio import errors
from packio.formats.lmdb import values as lmdb_values
from packio.formats.wire import ByteSpan, MalformedError, pickles

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

lmdb = pytest.importorskip("lmdb")

_VERSION_1 = {"lib_version": 0} if int(lmdb.__version__.split(".")[0]) >= 3 else {}
_COUNT = 12  # so that the key 10 sorts before the key 2


def _image(number: int, encoding: str = "JPEG", size: int = 40) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (size, 50, 3), np.uint8)
    return made.saved(pixels, encoding)


IMAGES = [_image(i, "PNG" if i % 3 else "JPEG", 8 + 4 * i) for i in range(_COUNT)]
LABELS = [7 * i % 5 + 1 for i in range(_COUNT)]


def _fill(path: Path, records: dict[bytes, bytes], *, subdir: bool = True) -> Path:
    env = lmdb.open(str(path), subdir=subdir, map_size=1 << 26, lock=False, **_VERSION_1)
    with env.begin(write=True) as transaction:
        for key, value in records.items():
            transaction.put(key, value)
    env.close()
    return path


def _numbered(values: list[bytes], form: bytes = b"%d") -> dict[bytes, bytes]:
    return {form % i: value for i, value in enumerate(values)}


def _check(path: Path, labels: list[int] | None = LABELS, **options: Any) -> packio.Pack:
    if options:
        packio.reindex(path, **options)
    pack = packio.open(path)
    assert [sample.data for sample in pack] == IMAGES
    if labels is None:
        assert pack.labels is None
    else:
        assert made.labels(pack) == labels
    return pack


def _number(number: int) -> bytes:
    return b"\xd2" + struct.pack(">i", number)


def _msgpack_bytes(data: bytes) -> bytes:
    return b"\xc6" + struct.pack(">I", len(data)) + data


def _msgpack_text(data: bytes) -> bytes:  # as msgpack wrote bytes before it had a type for them
    return b"\xdb" + struct.pack(">I", len(data)) + data


def _varint(number: int) -> bytes:
    out = bytearray()
    number &= (1 << 64) - 1
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _datum(image: bytes, label: int, *, encoded: bool = True) -> bytes:
    size = b"\x08\x03\x10\x28\x18\x32"
    return (
        size + b"\x22" + _varint(len(image)) + image + b"\x28" + _varint(label)
        + (b"\x38\x01" if encoded else b"")
    )  # fmt: skip


def _union(pa: Any, value: Any, wrapped: bool) -> Any:
    """A dense union of one row, as pyarrow.serialize builds it: a child for each type."""
    kinds: dict[str, list[Any]] = collections.defaultdict(list)
    rows = value if isinstance(value, list) else [value]
    types, offsets = [], []
    for row in rows:
        kind = {bytes: "4", int: "2", str: "5", tuple: "12"}[type(row)]
        types.append(list(kinds).index(kind) if kind in kinds else len(kinds))
        offsets.append(len(kinds[kind]))
        kinds[kind].append(row)
    children = [_child(pa, kind, values, wrapped) for kind, values in kinds.items()]
    return pa.UnionArray.from_dense(
        pa.array(types, pa.int8()), pa.array(offsets, pa.int32()), children, list(kinds)
    )


def _child(pa: Any, kind: str, values: list[Any], wrapped: bool) -> Any:
    if kind != "12":
        return pa.array(values, {"4": pa.binary(), "2": pa.int64(), "5": pa.utf8()}[kind])
    items = _union(pa, [item for value in values for item in value], wrapped)
    ends = np.cumsum([0, *map(len, values)])
    lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), items)
    return pa.StructArray.from_arrays([lists], ["tuple"]) if wrapped else lists


def _serialized(value: Any, header: int = 16, *, legacy: bool = False, old: bool = False) -> bytes:
    """A payload of pyarrow.serialize."""
    pa = pytest.importorskip("pyarrow")
    batch = pa.record_batch([_union(pa, [value], old)], ["list"])
    version = pa.ipc.MetadataVersion.V4 if old else pa.ipc.MetadataVersion.V5
    options = pa.ipc.IpcWriteOptions(use_legacy_format=legacy, metadata_version=version)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return bytes(header) + bytes(sink.getvalue())


_PAIRS = list(zip(IMAGES, LABELS, strict=True))
_KEYS = [b"%d" % i for i in range(_COUNT)]


@pytest.mark.parametrize("subdir", [True, False])
def test_folder2lmdb_with_pyarrow_is_read(subdir: bool, tmp_path: Path) -> None:
    records = _numbered([_serialized(pair) for pair in _PAIRS])
    records |= {b"__keys__": _serialized(tuple(_KEYS)), b"__len__": _serialized(_COUNT)}
    pack = _check(_fill(tmp_path / "train.lmdb", records, subdir=subdir))
    assert [os.fsencode(sample.key) for sample in pack] == _KEYS
    assert pack.metadata["counts"]["skipped"] == 0
    assert pack.metadata["labels"]["min"] == 1


@pytest.mark.parametrize("header", [16, 12, 8])
@pytest.mark.parametrize("legacy", [False, True])
def test_payloads_of_older_pyarrow_are_read(header: int, legacy: bool, tmp_path: Path) -> None:
    values = [_serialized(pair, header, legacy=legacy, old=True) for pair in _PAIRS]
    _check(_fill(tmp_path / "a", _numbered(values)))


@pytest.mark.skipif(not _VERSION_1, reason="this py-lmdb writes file version 1 only")
@pytest.mark.parametrize("is_datum", [True, False])
def test_values_of_others_are_read_in_databases_of_lmdb_1_0(
    tmp_path: Path, is_datum: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_VERSION_1, "lib_version", 1)
    pairs = zip(IMAGES, LABELS, strict=True)
    values = [_datum(image, label) if is_datum else b"\x92" + _msgpack_bytes(image) + _number(label)
              for image, label in pairs]  # fmt: skip
    path = _fill(tmp_path / "a.lmdb", _numbered(values))
    assert _check(path).access == "range"
    _check(packio.convert(path, tmp_path / "b.tar").out)


@pytest.mark.parametrize("is_datum", [True, False])
def test_images_within_values_are_not_read_by_the_library(tmp_path: Path, is_datum: bool) -> None:
    pairs = zip(IMAGES, LABELS, strict=True)
    values = [_datum(image, label) if is_datum else b"\x92" + _msgpack_bytes(image) + _number(label)
              for image, label in pairs]  # fmt: skip
    path = _fill(tmp_path / "a.lmdb", _numbered(values))
    with pytest.raises(errors.OptionError, match="say access='range'"):
        packio.open(path, access="lmdb")[0]
    if is_datum:  # the order of padded keys is that of the numbers
        records = {b"%08d" % i: value for i, value in enumerate(values)}
        pack = packio.open(_fill(tmp_path / "b.lmdb", records), access="lmdb")
        assert [sample.data for sample in pack] == IMAGES


def test_msgpack_that_is_not_installed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = b"\x92" + _msgpack_bytes(IMAGES[0]) + _number(LABELS[0])
    path = _fill(tmp_path / "a.lmdb", _numbered([value]))
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(errors.MissingPackageError, match=r"pip install 'packio\[msgpack\]'"):
        packio.open(path)


def test_what_pyarrow_reads_is_what_is_read_here() -> None:
    pa = pytest.importorskip("pyarrow")
    for value in ((b"x" * 1000, -(2**40), "text"), b"", 5, ((b"a", 1), (b"b", 2))):
        data = _serialized(value)
        stream = pa.ipc.open_stream(pa.py_buffer(data[16:])).read_all()
        assert _resolved(lmdb_values.arrow(data), data) == stream.column(0)[0].as_py()


def _resolved(value: Any, data: bytes) -> Any:
    if isinstance(value, ByteSpan):
        return data[value.start : value.stop]
    if isinstance(value, (list, tuple)):
        return type(value)(_resolved(v, data) for v in value)
    if isinstance(value, dict):
        return {k: _resolved(v, data) for k, v in value.items()}
    return value


# Written by those versions of pyarrow: (image, -3) and {"image": image, "label": 5}; deflated.
_PAYLOADS = {
    ("11.0.0", "pair"): (
        "eNqlUjtOw0AQnbUNtsIq2iJCLlKkdEFhIoqUuQpFhCyRihQcIAdIwSFyBA5AmQNQcBRgebM7a8zIEkKMtev5"
        "vHkzu7NEP8VDjobIBWtCls7pjCpoEFPAJlgV9kJ2uOX/8uk9rGkNfSG+DOsGgEbs++5hx1QHH7A9hoSnin47"
        "g14P+J3grpdE76jTRtx0Dt+V4HKsJ67BNcXX7TZbCj3zSWLnqW4+qMvc+8iZca255Kf4UjgqKoWDzBrbc8wp"
        "OGemcriHI+JvEWPGMC3WCXGHSIUOy3DDTu4/5tQjOUX44rweTeRlsXQpE7OBifIi5K/7CU9g2zA9nulJ7tYM"
        "3sDFQE9+OXPfh1PvxilcLf8024WKNyq/UfFW2SuFX6k4S6nOMSY6nv0R/5udOM0IMffqX323vb3bfPhvoX/I"
        "F0RFStc="
    ),
    ("11.0.0", "dict"): (
        "eNqlUjFOw0AQXDs2sYJBhxQhFylSULhIQRBIKShSpqCgTEkQFolwpEiJkPgDT6Ck4Ak8ggdQUPAEXoCZu1s7"
        "x8ZShFhr7Zvdubm99RL9tgI29YmUQS2KaYdCirCCeQEwAUV4B/xGmL/Rd1EA7SdYdzkGKfoCIWWcz5YrLfVk"
        "uRWHWOfCxuM21omjr5jX7xMNwVlZ3p486xPeZjxbZXOtuwD3mWvrAB9xvgF/hN/Aexy7n+RLvee8WNfXcOoz"
        "97Favq6pw/vK/InpTwxvmv7o8FCfafUC5dRX7jnVMeRHluPVcY7hA+TzYt3j1Ln3mDka32UP5g6R+XsR17HZ"
        "61erFdaddwZ/Qf5jS01vyCtkIpzUNNOheHbsnqRmT2Ce9bwlvtXWFtMhT1xs1KgRGI1FNaEt4NhMn57Jnmdn"
        "w3Nm+MBZl3H+F9W5Ssy9ErxE5Etc9q8r+Kngp9V9rA2q6q2NhN6l0BsLvbHIXwk8FfypyGvbFX2qM5n3t2D6"
        "J9/7Iy41PW+TEzr9nc0nt1k+uc5y5tQUontTvBeGGjrzSH+wH0NOaR0="
    ),
    ("0.14.1", "pair"): (
        "eNqNUTFuAjEQHPsOsJATXYGiKygoUlBySkORgkfkAaRA0UlQQckTeAYlT0lBySP4QuTs2nsnWOVERvLZszO7"
        "3lsD9/gwQBFPQ3j00YOjE8FkxEHM0TeXL4Vlfw8hEHt2kt9oJa1T0toYY51i/ox7P9ddknaQekfiY9Et59F6"
        "jT7uLnXT1LZSm+t8p3zL3pHkQ/IcBpIHsxB/FfsYUbxPqo8szcHk5U2PiHve9vsm8Xq32kB6qKoUW9fbXTPX"
        "vUl9MDxeZLI+3oQsi3NatK8wJO7jlHn2V7nf3LzTE7rhOvZC+Qqll0ovlT5RfKr8U6XPFJ8r/1zpjJ76T/zB"
        "7QPd4H+wHWbuJ1xCvfn8Wv2EhK4av8LQL0U="
    ),
    ("0.14.1", "dict"): (
        "eNqtUrFOw0AMdS5JG1VHlaFCGTowMHRgSAUDI2NHBoYMDBQpIpFSCYl+BAMDH8DIZ/ABfAIDAx/AyMzh8zlp"
        "aunE0Fpy7p7fs32+C8C2fQYAKe1GoGEAMSS4QwtCxIAowW/EXwzz+vZrDKLxM+e3XIb+47guZu3bxXQh9Lbu"
        "F3LaEH9wgsEJ8wr9lTUR8rnTjB9hW3OFPkVvzKav4r62R+Xi6riXB1RXow+pvpVesH6O/uJyIqvXvZwnjFvN"
        "ae8O3/lcFc/fzpZzjwHforyTFE+TIDukDim/QxBnsLkjoDXq8s56fW2sXpcr4HnnuYs19cO61UyVmxlojkN+"
        "YU0dIQzpvPddxRFiTa9t/4Frfqug13MCfks8ayp0qeAzwftwqz8SeCb0M9HnXOCF0C9EvUuBC6EvBH8jcCX0"
        "leDbfSB0Eqsd8X/1fearE9Mf4qxeLe/KZnlbNv7idkbzYUgaw37sD6ixRTU="
    ),
    ("0.10.0", "pair"): (
        "eNqVUTtOw0AQfbt2klW0WC5Q5IKCgiIlBUXKHIBDQGEhS46EhOlyhByBkuNQUHIY0DKzO07MiJXgSeOdmffm"
        "410gYW+AOnpLeMwxgyOPYAqKQZGjbylfSst5EUKgqLqR+pFryA6JO+YYtyl39omfeu67Ja5PvH//hb8jTnpW"
        "rzxbeEvWk11FHW+fth1n28n8t1RvWXsu9ZA6h4XUwWxxQk1KR10X8SZquSdTNpMdEc/y6EPy3dDu2J+RDc+P"
        "fav4vnsa2H8xaR+Gx0pewMeJKIp4n6edlhT7+Br8RuNdmknvCnm4zFkrXS4e9Y3iG8Vfqnit9GvFX6t4o/Qb"
        "xTPm6r/xh9j+U5+DzYh5v/ARut39Q/sVEjj/DQcqOK4="
    ),
    ("0.10.0", "dict"): (
        "eNqlUjtOw0AQHTt2YqIlcgHIBQUFRQoKCgoKCsqUFClSxhALWzgSkiMkbpCCA+QIHIKSgpKSggNwCszszK5t"
        "RqxAYqS1981789nZBWBTPkBMuyEo6EMIEe7QvB5iQBThNzBfdJv/5rOuEY2ePY63XILrlbnGp+2FfdsPQq/z"
        "PiH3wbya/8C/IxfVHH+Czh3DY+vwaDSA/BFrRmv4rpni2seV121ffqe3Bfv9w04cUF6Fa8D5UXAOrW04JtB6"
        "1YlZk59N++7SsqLzm95yMyN7vmNTp28mLecWY0cRsgOqEpu78sIE2jlxraDZ29o32X1l98UqW9r9orhagdCW"
        "RUW+M59nQG8D9syLUFQdej3q/baJHCJW9Dr0mynN3Xmd3Lvgtsjxj4XOha0+EbwLW/2BwGOhH4s6pwJPhH4i"
        "8l0IPBP6meDnAudCnwte25aYM/wB+//Ev+V3mStPSC+IrVim11mZXmalO7k+f/1WkzTs+L8AAZdQ3Q=="
    ),
}


@pytest.mark.parametrize(("version", "kind"), list(_PAYLOADS))
def test_payloads_that_pyarrow_wrote_are_read(version: str, kind: str) -> None:
    data = zlib.decompress(base64.b64decode(_PAYLOADS[version, kind]))
    found = lmdb_values.sample(lmdb_values.arrow(data), data)
    assert data[found.start : found.stop] == b"\xff\xd8\xffimage"
    assert found.label == {"pair": -3, "dict": 5}[kind]


def test_image2lmdb_takes_its_names_from_the_file_beside(tmp_path: Path) -> None:
    records = _numbered([_serialized(image) for image in IMAGES])
    path = _fill(tmp_path / "train.lmdb", records, subdir=False)
    lines = "".join(f"a picture {i}.jpg {i}\n" for i in range(_COUNT))
    (tmp_path / "train_images_idx.txt").write_text(lines)
    pack = _check(path, None)
    assert [sample.key for sample in pack] == [f"a picture {i}.jpg" for i in range(_COUNT)]


@pytest.mark.parametrize("as_bytes", [_msgpack_bytes, _msgpack_text])
def test_folder2lmdb_with_msgpack_is_read(
    as_bytes: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    values = [b"\x92\x91\x81\xa4data" + as_bytes(image) + _number(label) for image, label in _PAIRS]
    nested = _numbered(values) | {b"__keys__": b"\x90"}
    _check(_fill(tmp_path / "a", nested))
    plain = [b"\x92\x81\xa4data" + as_bytes(image) + _number(label) for image, label in _PAIRS]
    _check(_fill(tmp_path / "b", _numbered(plain) | {b"__keys__": b"\x90"}))


@pytest.fixture
def of_several_ints(tmp_path: Path) -> Path:
    """A database of lists: image, height, width, label."""
    values = [
        b"\x94" + _msgpack_bytes(image) + _number(40) + _number(30) + _number(label)
        for image, label in zip(IMAGES, LABELS, strict=True)
    ]
    return _fill(tmp_path / "lists.lmdb", _numbered(values))


def test_several_ints_that_may_be_the_label_are_refused(of_several_ints: Path) -> None:
    with pytest.raises(errors.NotAPackError, match=r"\[40, 30, 1\].*say label='2'"):
        packio.open(of_several_ints)


@pytest.mark.parametrize(("label", "found"), [("3", LABELS), ("1", [40] * _COUNT), ("", None)])
def test_the_label_is_named_by_its_position(
    of_several_ints: Path, label: str, found: list[int] | None
) -> None:
    _check(of_several_ints, found, label=label)


def test_a_position_without_an_int_is_refused(of_several_ints: Path) -> None:
    with pytest.raises(errors.NotAPackError, match=r"label='7' is not in the values"):
        packio.reindex(of_several_ints, label="7")


def test_tensorpack_with_msgpack_is_read(tmp_path: Path) -> None:
    array = b"\x84\xc4\x02nd\xc3\xc4\x04type\xa3|u1\xc4\x05shape\x91"
    values = [
        b"\x92" + array + _number(len(image)) + b"\xc4\x04data" + _msgpack_bytes(image)
        + _number(label) for image, label in _PAIRS
    ]  # fmt: skip
    _check(_fill(tmp_path / "a", _numbered(values, b"%08d")))


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("kind", [tuple, list])
def test_plain_pickles_are_read_when_trusted(
    protocol: int, kind: type[Any], tmp_path: Path
) -> None:
    values = [pickle.dumps(kind(pair), protocol) for pair in _PAIRS]
    records = _numbered(values) | {b"__keys__": pickle.dumps(_KEYS), b"__len__": pickle.dumps(12)}
    path = _fill(tmp_path / "a", records)
    with pytest.raises(errors.NotAPackError, match=r"--trust-plain.*trust_plain_pickle=True"):
        packio.open(path)
    _check(path, trust_plain_pickle=True)


def test_pickled_dicts_are_read(tmp_path: Path) -> None:
    values = [pickle.dumps({"path": b"x", "image": i, "label": n}) for i, n in _PAIRS]
    _check(_fill(tmp_path / "a", _numbered(values)), trust_plain_pickle=True)


def test_datums_are_read(tmp_path: Path) -> None:
    labels = [-1, *LABELS[1:]]
    values = [_datum(image, label) for image, label in zip(IMAGES, labels, strict=True)]
    _check(_fill(tmp_path / "a", _numbered(values, b"%08d_name.jpg")), labels)


# Pixels, first an image that begins as a BMP file does.
PIXELS = [np.random.default_rng(i).integers(0, 256, (6 + i, 50, 3), np.uint8) for i in range(9)]
PIXELS[0][0, :2, 2] = (*b"BM",)  # as planes
PIXELS[0][0, 0, 1:] = (*b"MB",)  # and not


def _bgr(pixels: np.ndarray) -> np.ndarray:
    """The pixels as OpenCV and Caffe have them."""
    return np.ascontiguousarray(pixels[..., ::-1])


def _pixel_datum(pixels: np.ndarray, label: int) -> bytes:
    """As Caffe's CVMatToDatum makes it; floats packed."""
    height, width, channels = pixels.shape
    content = _bgr(pixels).transpose(2, 0, 1).tobytes()
    size = b"".join(t + _varint(n) for t, n in ((b"\x08", channels), (b"\x10", height)))
    size += b"\x18" + _varint(width)
    size += b"\x22" if pixels.dtype == np.uint8 else b"\x32"
    return size + _varint(len(content)) + bytes(content) + b"\x28" + _varint(label)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_datums_of_pixels_are_read(dtype: type[Any], tmp_path: Path) -> None:
    given = [pixels.astype(dtype) for pixels in PIXELS]
    values = [_pixel_datum(pixels, i) for i, pixels in enumerate(given)]
    pack = packio.open(_fill(tmp_path / "a", _numbered(values, b"%08d")))
    _check_pixels(pack, given)
    assert made.labels(pack) == list(range(9))
    again = packio.open(packio.convert(pack.path, tmp_path / "b.lmdb", values="datum").out)
    _check_pixels(again, given)


def _check_pixels(pack: packio.Pack, given: list[np.ndarray]) -> None:
    assert pack.metadata["counts"]["skipped"] == 0
    for sample, pixels in zip(pack, given, strict=True):
        found = sample.decode("UNCHANGED")
        assert found.dtype == pixels.dtype
        assert np.array_equal(found, pixels)


def test_datums_of_floats_one_by_one_are_refused(tmp_path: Path) -> None:
    value = b"\x08\x01\x10\x01\x18\x02" + b"\x35\0\0\x80\x3f" * 2 + b"\x28\x01"
    path = _fill(tmp_path / "a", _numbered([value] * 3, b"%08d"))
    with pytest.raises(errors.NotAPackError, match="floats that are a field each"):
        packio.open(path)


@pytest.mark.filterwarnings("ignore:.*left out")
@pytest.mark.parametrize("size", [(6, 50, 2), (1 << 40, 0, 3), (-6, -50, 3), (0, 0, 0)])
def test_datums_whose_size_is_wrong_are_skipped(size: tuple[int, ...], tmp_path: Path) -> None:
    good = _pixel_datum(PIXELS[0], 0)
    wrong = b"".join(bytes([8 * (i + 1)]) + _varint(n) for i, n in enumerate((size[2], *size[:2])))
    values = [good, wrong + good[6:]]
    pack = packio.open(_fill(tmp_path / "a", _numbered(values, b"%08d")))
    assert pack.metadata["counts"] == {"found": 2, "packed": 1, "skipped": 1}


def test_databases_of_text_recognition_are_read(tmp_path: Path) -> None:
    records = {b"image-%09d" % (i + 1): image for i, image in enumerate(IMAGES)}
    texts = [f'wörd "{i}"' for i in range(_COUNT)]
    records |= {b"label-%09d" % (i + 1): text.encode() for i, text in enumerate(texts)}
    del records[b"label-%09d" % 3]
    pack = _check(_fill(tmp_path / "a", records | {b"num-samples": b"12"}), None)
    texts[2] = None  # type: ignore[call-overload]  # it has none
    assert [(sample.meta or {})["text"] for sample in pack] == texts
    assert pack[0].key == "image-000000001"


def test_of_stylegan_databases_the_largest_size_is_read(tmp_path: Path) -> None:
    records = {b"1024-%05d" % (99_994 + i): image for i, image in enumerate(IMAGES)}
    records |= {b"128-%05d" % i: IMAGES[0] for i in range(5)}
    pack = _check(_fill(tmp_path / "a", records | {b"length": b"12"}), None)
    assert pack[11].key == "1024-100005"


def test_every_entry_of_lsun_is_an_image(tmp_path: Path) -> None:
    records = {b"%032x" % (i + 2**100): image for i, image in enumerate(IMAGES)}
    _check(_fill(tmp_path / "bedroom_val_lmdb", records), None)


def test_basicsr_takes_its_names_from_meta_info(tmp_path: Path) -> None:
    records = {b"0801_s%03d" % i: image for i, image in enumerate(IMAGES)}
    path = _fill(tmp_path / "DIV2K.lmdb", records)
    lines = "".join(f"0801_s{i:03d}.png (480,480,3) 1\n" for i in range(_COUNT))
    (path / "meta_info.txt").write_text(lines)
    pack = _check(path, None)
    assert pack[3].key == "0801_s003.png"


_WIDE = [(pixels * 257.0).astype(np.uint16) for pixels in PIXELS]
_GRAY = [p[..., :1] for p in PIXELS]


@pytest.mark.parametrize("given", [PIXELS, _WIDE, _GRAY], ids=["uint8", "uint16", "gray"])
def test_pixels_whose_shapes_are_in_a_list_are_read(
    given: list[np.ndarray], tmp_path: Path
) -> None:
    keys = [f"{i}.jpg" for i in range(9)]
    path = _fill(
        tmp_path / "a.lmdb", {b"%d.jpg" % i: _bgr(p).tobytes() for i, p in enumerate(given)}
    )
    lines = "".join("{}.jpg ({},{},{})\n".format(i, *p.shape) for i, p in enumerate(given))
    (path / "meta_info.txt").write_text(lines)
    pack = packio.open(path)
    _check_pixels(pack, given)
    assert [sample.key for sample in pack] == keys
    again = packio.open(packio.convert(path, tmp_path / "b.tar").out)
    assert [sample.data for sample in again] == [sample.data for sample in pack]


def test_pixels_whose_shapes_are_in_a_pickle_are_refused_by_name(tmp_path: Path) -> None:
    """As PySODToolBox and mmsr, the BasicSR of 2019, write it."""
    path = _fill(tmp_path / "a.lmdb", {b"0.jpg": _bgr(PIXELS[1]).tobytes()})
    meta = {"name": "TrainSet", "resolution": ["3_7_50"], "keys": ["0.jpg"]}
    (path / "meta_info.pkl").write_bytes(pickle.dumps(meta))
    for trust in (False, True):
        with pytest.raises(errors.NotAPackError, match=r"PySODToolBox.*say.*meta_info\.txt"):
            packio.reindex(path, trust_plain_pickle=trust)
    (path / "meta_info.txt").write_text("0.jpg (7,50,3)\n")
    _check_pixels(packio.open(path), PIXELS[1:2])


@pytest.mark.filterwarnings("ignore:.*left out")
def test_a_pixel_value_of_another_length_is_skipped(tmp_path: Path) -> None:
    lines = "".join("0{}.png ({},{},{}) 1\n".format(i, *p.shape) for i, p in enumerate(PIXELS))
    records = {b"0%d" % i: _bgr(pixels).tobytes() for i, pixels in enumerate(PIXELS)}
    path = _fill(tmp_path / "a.lmdb", {**records, b"zzz": b"\0" * 900})
    (path / "meta_info.txt").write_text(lines)
    pack = packio.open(path)
    assert pack.metadata["counts"] == {"found": 10, "packed": 9, "skipped": 1}
    assert pack[2].key == "02.png"
    assert np.array_equal(pack[2].decode(), PIXELS[2])


@pytest.mark.filterwarnings("ignore:.*left out")
def test_a_value_unlike_the_others_is_skipped_and_counted(tmp_path: Path) -> None:
    values = [_datum(*pair) for pair in _PAIRS]
    path = _fill(tmp_path / "a", {**_numbered(values, b"%08d"), b"zzz": b"\xffnothing"})
    pack = _check(path)
    assert pack.metadata["counts"] == {"found": 13, "packed": 12, "skipped": 1}


def test_label_offset_moves_labels(tmp_path: Path) -> None:
    path = _fill(tmp_path / "a", _numbered([_datum(*pair) for pair in _PAIRS], b"%08d"))
    pack = _check(path, [label - 1 for label in LABELS], label_offset=-1)
    assert pack.metadata["labels"] == {"min": 1, "offset": -1}
    with pytest.raises(errors.OptionError, match="64 bits"):
        packio.reindex(path, label_offset=1 << 63)


def test_the_command_reindexes(tmp_path: Path) -> None:
    values = [pickle.dumps(pair) for pair in _PAIRS]
    path = _fill(tmp_path / "a", _numbered(values))
    arguments = ["reindex", str(path), "--trust-plain-pickle", "--label-offset", "-1"]
    done = run(*arguments)
    assert done.returncode == 0
    assert done.stdout == f"{path / 'index.packio'}: 12 samples, 0 skipped, 0 classes\n"
    _check(path, [label - 1 for label in LABELS])
    place = str(path / "index.packio")
    said = json.loads(run(*arguments, "--json").stdout)
    assert said == {"index": place, "samples": 12, "skipped": 0, "classes": 0}
    done = run(*arguments, "--quiet")
    assert (done.returncode, done.stdout) == (0, "")


class _Runs:
    """Unpickled, it would run a command."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch packio-was-here",)


_HOSTILE = {
    "GLOBAL": b"\x80\x02cos\nsystem\nX\x04\0\0\0trueq\0\x85R.",
    "STACK_GLOBAL": pickle.dumps((_Runs(), 1), 4),
    "REDUCE": b"\x80\x04)\x8c\x01a\x85R.",
    "BUILD": b"\x80\x04}}b.",
    "NEWOBJ": b"\x80\x04))\x81.",
    "INST": b"\x80\x02(ios\nsystem\n.",
    "OBJ": b"\x80\x02(NNo.",
    "EXT1": b"\x80\x02\x82\x01.",
    "BINPERSID": b"\x80\x02NQ.",
    "NEXT_BUFFER": b"\x80\x05\x97.",
    "EMPTY_SET": b"\x80\x04\x8f.",
}
_SENSELESS = {
    "in a bytes8": b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7fabc.",
    "in a bytes4": b"\x80\x04B\xff\xff\xff\xffabc.",
    "more than 10000 steps": b"\x80\x04" + b"(" * 100_000 + b"t" * 100_000 + b".",
    "more than": b"\x80\x04N" + b"\x85" * 1_000_000 + b".",
    "no image": b"\x80\x04]\x94h\0a.",  # a list in itself
    "an int of 200": b"\x80\x04\x8a\xc8" + b"\x7f" * 200 + b".",
    "leaves values over": b"\x80\x04NN.",
    "without a mark": b"\x80\x04Nt.",
    "a mark for a value": b"\x80\x04(a.",
    "no list": b"\x80\x04NNa.",
    "no dict": b"\x80\x04]NNs.",
    "key of type list": b"\x80\x04}]Ns.",
    "KeyError": b"\x80\x04h\x07.",
}
_EVENTS: list[str] | None = None
_FORBIDDEN = ("os.system", "subprocess.Popen", "exec", "compile", "import", "pickle.find_class")


def _listen(event: str, _: object) -> None:
    if _EVENTS is not None and event in _FORBIDDEN:
        _EVENTS.append(event)


@pytest.fixture(scope="module")
def _auditing() -> None:
    sys.addaudithook(_listen)  # for good: hooks cannot be taken away


def _events_and_peak(data: bytes) -> tuple[list[str], int, Exception]:
    """What happens while a pickle is read, the memory it takes in bytes, and the error."""
    global _EVENTS  # noqa: PLW0603 (the hook outlives the test)
    tracemalloc.start()
    _EVENTS = []
    try:
        with pytest.raises((errors.PackioError, MalformedError)) as caught:
            lmdb_values.sample(pickles.read_pickle(data), data)
        return _EVENTS, tracemalloc.get_traced_memory()[1], caught.value
    finally:
        _EVENTS = None
        tracemalloc.stop()


@pytest.mark.usefixtures("_auditing")
@pytest.mark.parametrize("name", [*_HOSTILE, *_SENSELESS])
def test_hostile_pickles_are_refused_and_run_nothing(name: str, tmp_path: Path) -> None:
    data = (_HOSTILE | _SENSELESS)[name]
    with pytest.raises((errors.PackioError, MalformedError)):
        lmdb_values.sample(pickles.read_pickle(data), data)  # loads what there is to load
    events, peak, error = _events_and_peak(data)
    assert events == []
    assert peak < 4_000_000
    assert name in str(error)
    path = _fill(tmp_path / "a", {b"0": pickle.dumps(_PAIRS[0]), b"1": data})
    refusal = errors.NotAPackError if name in _HOSTILE else errors.IntegrityError
    with pytest.raises(refusal, match=name):
        packio.reindex(path, trust_plain_pickle=True)
    with pytest.raises(errors.NotAPackError, match="trust_plain_pickle"):
        packio.open(path)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
    | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
), st.sampled_from([3, 4, 5]))  # fmt: skip
def test_plain_data_is_read_as_pickle_reads_it(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    assert pickles.is_likely(data)
    assert _resolved(pickles.read_pickle(data), data) == pickle.loads(data)


@functools.cache
def _seeds() -> list[bytes]:
    image = b"\xff\xd8\xff" + bytes(60)
    seeds = [
        b"\x92\x91\x81\xa4data" + _msgpack_bytes(image) + _number(3),
        _datum(image, 3),
        pickle.dumps((image, 3)),
        pickle.dumps({"image": image, "label": [3, "a"]}),
    ]
    with contextlib.suppress(pytest.skip.Exception):
        seeds.append(_serialized((image, 3)))
    return seeds


_WALKERS = {
    "arrow": lmdb_values.arrow,
    "msgpack": lmdb_values.msgpack,
    "datum": lmdb_values.parse_datum,
    "pickle": pickles.read_pickle,
}


def _walk(data: bytes) -> None:
    for walker in _WALKERS.values():
        try:
            found = walker(data)
            if not isinstance(found, lmdb_values.FoundImage):
                found = lmdb_values.sample(found, data)
        except (errors.PackioError, MalformedError):
            continue
        assert 0 <= found.start <= found.stop <= len(data)
        assert found.label is None or -(2**63) <= found.label < 2**63


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_values_raise_only_our_errors(data: st.DataObject) -> None:
    value = bytearray(data.draw(st.sampled_from(_seeds())))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(value) - 1))
        value[at] = data.draw(st.sampled_from([0, 1, 2, 4, 127, 128, 255]) | st.integers(0, 255))
    _walk(bytes(value[: data.draw(st.integers(0, len(value)) | st.just(len(value)))]))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_raise_only_our_errors(value: bytes) -> None:
    _walk(value)
    _walk(b"\x80\x04" + value + b".")


# Whose values are pickles, and databases within


def test_pickled_values_are_read_where_the_user_says_so(tmp_path: Path) -> None:
    values = [pickle.dumps(pair, 4) for pair in zip(IMAGES, LABELS, strict=True)]
    path = _fill(tmp_path / "theirs.lmdb", _numbered(values))
    for refused in (packio.open, packio.LmdbDataset):
        with pytest.raises(errors.NotAPackError) as caught:
            refused(path)
        assert f"packio pack {path} OUT.lmdb --trust-plain-pickle" in str(caught.value)
        assert f"packio.open({str(path)!r}, trust_plain_pickle=True)" in str(caught.value)
    pack = packio.open(path, trust_plain_pickle=True)
    assert [s.data for s in pack] == IMAGES
    assert [s.label for s in pickle.loads(pickle.dumps(pack))] == LABELS
    ds = packio.LmdbDataset(path, trust_plain_pickle=True, output="numpy", exif_orientation=False)
    assert (len(ds), ds[0][1]) == (_COUNT, LABELS[0])
    report = packio.pack(path, tmp_path / "o.tar", trust_plain_pickle=True)
    assert report.packed == _COUNT
    with pytest.raises(errors.NotAPackError):  # it is not remembered: each reader says so
        packio.open(path)
    assert sorted(p.name for p in path.iterdir()) == ["data.mdb"]
    assert [s.label for s in packio.open(tmp_path / "o.tar")] == LABELS


def test_the_command_line_trusts_plain_pickles(tmp_path: Path) -> None:
    values = [pickle.dumps(pair, 4) for pair in zip(IMAGES, LABELS, strict=True)]
    path = _fill(tmp_path / "theirs.lmdb", _numbered(values))
    arguments = ["pack", str(path), str(tmp_path / "o.tar"), "--trust-plain-pickle", "--quiet"]
    assert run(*arguments).returncode == 0
    assert len(packio.open(tmp_path / "o.tar")) == _COUNT


def _fill_databases(path: Path, of: dict[bytes, dict[bytes, bytes]], **version: Any) -> Path:
    with lmdb.open(str(path), map_size=1 << 26, lock=False, max_dbs=8, **version) as env:
        for name, records in of.items():
            database = env.open_db(name or None)
            with env.begin(write=True, db=database) as transaction:
                for key, value in records.items():
                    transaction.put(key, value)
    return path


def _named(count: int, first: int = 0) -> dict[bytes, bytes]:
    return {b"%04d" % i: _image(first + i, "PNG", 12) for i in range(count)}


_EACH_VERSION = [{"lib_version": 0}, {"lib_version": 1}] if _VERSION_1 else [{}]


@pytest.mark.parametrize("version", _EACH_VERSION)
def test_a_database_within_is_read_by_its_name(tmp_path: Path, version: dict[str, int]) -> None:
    train, val = _named(300), _named(3, 500)
    path = _fill_databases(tmp_path / "t.lmdb", {b"train": train, b"val": val}, **version)
    with pytest.raises(errors.NotAPackError, match=r"databases with names: 'train', 'val'") as no:
        packio.open(path)
    assert f"packio pack {path} OUT.lmdb --database train" in str(no.value)
    pack = packio.open(path, database="train")
    assert [(os.fsencode(s.key), s.data) for s in pack] == list(train.items())
    assert [s.data for s in packio.open(path, database="val")] == list(val.values())
    assert len(packio.LmdbDataset(path, database="val")) == 3
    assert packio.pack(path, tmp_path / "o.tar", database="val").packed == 3
    with pytest.raises(errors.OptionError, match=r"no database 'test' in it; .*'train', 'val'"):
        packio.open(path, database="test")
    with pytest.raises(errors.OptionError, match="access='range'"):
        _ = packio.open(path, database="val", access="lmdb")[0].data


def test_the_records_beside_databases_are_read_by_an_empty_name(tmp_path: Path) -> None:
    images = _named(4)
    path = _fill_databases(tmp_path / "t.lmdb", {b"": images, b"0002-more": {b"a": b"b"}})
    with pytest.raises(errors.NotAPackError, match=r"databases with names: '0002-more'"):
        packio.open(path)
    assert [s.data for s in packio.open(path, database="")] == list(images.values())


def test_the_index_beside_keeps_which_database_it_is_of(tmp_path: Path) -> None:
    path = _fill_databases(tmp_path / "t.lmdb", {b"train": _named(5), b"val": _named(2)})
    arguments = ["reindex", str(path), "--database", "train", "--quiet"]
    assert run(*arguments).returncode == 0
    assert len(packio.open(path)) == len(packio.open(path, database="train")) == 5
    with pytest.raises(errors.OptionError, match="has an index already"):
        packio.open(path, database="val")
    assert packio.verify(path, decode=True).ok


def test_a_damaged_tree_of_a_database_is_an_error(tmp_path: Path) -> None:
    path = _fill_databases(tmp_path / "t.lmdb", {b"train": _named(5)}, **_VERSION_1)
    content = bytearray((path / "data.mdb").read_bytes())
    at = content.index(b"train") + 5
    for place in range(at, at + 48):
        damaged = bytearray(content)
        damaged[place] ^= 0x7F
        (path / "data.mdb").write_bytes(damaged)
        with contextlib.suppress(errors.PackioError):
            packio.open(path, database="train")
