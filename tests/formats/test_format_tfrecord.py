"""TFRecord, checked against protobuf and the package tfrecord, both ways."""

from __future__ import annotations

import functools
import gzip
import io
import json
import os
import random
import struct
import subprocess
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import google_crc32c
import long
import made
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import packio
from packio import errors
from packio.formats import tfrecord
from packio.formats.tfrecord import FORMAT
from packio.formats.tfrecord import fields as example_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_CLASSES = ["cat", "dog", "été"]
_write = functools.partial(made.write, FORMAT, classes=_CLASSES)


# Independent checkers


@pytest.fixture(scope="module")
def example_class() -> Any:
    """tf.train.Example, as protobuf has it."""
    return pytest.importorskip("tfrecord.example_pb2").Example


def _mask(crc: int) -> int:
    return ((crc >> 15) | (crc << 17) & 0xFFFFFFFF) + 0xA282EAD8 & 0xFFFFFFFF


def _framed(data: bytes) -> bytes:
    size = struct.pack("<Q", len(data))
    crcs = [struct.pack("<I", _mask(google_crc32c.value(part))) for part in (size, data)]
    return size + crcs[0] + data + crcs[1]


def _payloads(path: Path) -> Iterator[bytes]:
    """Take a file apart by its lengths alone."""
    whole, at = path.read_bytes(), 0
    while at < len(whole):
        (size,) = struct.unpack_from("<Q", whole, at)
        assert _framed(whole[at + 12 : at + 12 + size]) == whole[at : at + size + 16]
        yield whole[at + 12 : at + 12 + size]
        at += size + 16


def _parsed(example_class: Any, payload: bytes) -> dict[str, Any]:
    features = example_class.FromString(payload).features.feature
    return {key: list(getattr(f, f.WhichOneof("kind")).value) for key, f in features.items()}


def _wire(number: int, content: bytes) -> bytes:
    """One field of wire type 2, of less than 16 KiB."""
    size = len(content)
    return bytes([number << 3 | 2]) + (
        bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    ) + content  # fmt: skip


def _feature(key: bytes, value: bytes, kind: int = 1) -> bytes:
    """A map's entry of one value of bytes, or of a list encoded already."""
    content = _wire(1, value) if kind == 1 else value
    return _wire(1, _wire(1, key) + _wire(2, _wire(kind, content)))


def _example(*entries: bytes) -> bytes:
    return _wire(1, b"".join(entries))


# Data


def _records(count: int = 20, seed: int = 0) -> list[made.Made]:
    rng = random.Random(seed)
    return [
        made.record(
            rng.randbytes(rng.choice((0, 1, 120, 129, 16_500, 300_000))), i % 3,
            b"class/%d.jpg" % i, ("jpeg", "png", "unknown")[i % 3], i * 100, i, 3,
        )
        for i in range(count)
    ]  # fmt: skip


def _full_records(count: int = 12) -> list[made.Made]:
    """With all fields; vectors as labels."""
    rng = np.random.default_rng(0)
    return [
        record.replaced(
            label=rng.normal(size=4).astype(np.float32),
            key=bytes(rng.integers(1, 256, 20, np.uint8)),
            mask=b"mask" * i,
            mask_encoding="png",
            meta=json.dumps({"i": i, "é": None}).encode(),
            height=375,
            width=500,
            boxes=(rng.random((i % 4, 4)) * 375).astype(np.float32),
            box_labels=rng.integers(-5, 2**40, i % 4),
        )
        for i, record in enumerate(_records(count))
    ]


def _read(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def _one(path: Path, payload: bytes) -> made.Found:
    path.write_bytes(_framed(payload))
    (entry,) = made.scanned(FORMAT, path)
    return entry


# Writing


def test_protobuf_reads_what_was_written(tmp_path: Path, example_class: Any) -> None:
    records = _records()
    _write(tmp_path / "out.tfrecord", records)
    for record, payload in zip(records, _payloads(tmp_path / "out.tfrecord"), strict=True):
        name = {"unknown": b""}.get(record.facts.encoding, record.facts.encoding.upper().encode())
        assert isinstance(record.label, int)
        assert _parsed(example_class, payload) == {
            "image/channels": [3], "image/class/label": [record.label],
            "image/class/text": [_CLASSES[record.label].encode()], "image/encoded": [record.data],
            "image/filename": [record.key], "image/format": [name],
            "image/height": [record.facts.height], "image/width": [record.facts.width],
            "packio/key": [record.key],
        }  # fmt: skip


def test_protobuf_reads_all_fields(tmp_path: Path, example_class: Any) -> None:
    records = _full_records()
    _write(tmp_path / "out.tfrecord", records)
    for record, payload in zip(records, _payloads(tmp_path / "out.tfrecord"), strict=True):
        found = _parsed(example_class, payload)
        assert isinstance(record.label, np.ndarray)
        assert record.boxes is not None
        assert record.box_labels is not None
        assert found["image/class/label"] == record.label.tolist()
        assert found["image/filename"] == [record.key.decode(errors="replace").encode()]
        assert found["packio/key"] == [record.key]
        assert found["packio/meta"] == [record.meta]
        assert found["image/segmentation/class/encoded"] == [record.mask_data]
        assert found["image/segmentation/class/format"] == [b"png"]
        assert found["packio/boxes"] == [record.boxes.tobytes()]
        assert found["image/object/class/label"] == record.box_labels.tolist()
        sides = [found[f"image/object/bbox/{side}"] for side in ("xmin", "ymin", "xmax", "ymax")]
        expected = record.boxes / np.array([500, 375, 500, 375], np.float32)
        np.testing.assert_allclose(np.array(sides).T, expected.reshape(-1, 4), rtol=1e-6)


@pytest.mark.parametrize("make", [_records, _full_records])
def test_the_bytes_are_those_of_protobuf(tmp_path: Path, example_class: Any, make: Any) -> None:
    _write(tmp_path / "out.tfrecord", make())
    for payload in _payloads(tmp_path / "out.tfrecord"):
        parsed = example_class.FromString(payload)
        assert parsed.SerializeToString(deterministic=True) == payload


def test_the_package_tfrecord_reads_what_was_written(tmp_path: Path) -> None:
    tfrecord = pytest.importorskip("tfrecord")
    records = _records()
    _write(tmp_path / "out.tfrecord", records)
    for index in (None, str(tmp_path / "out.tfrecord.idx")):
        description = {"image/encoded": "byte", "image/class/label": "int"}
        loader = tfrecord.tfrecord_loader(
            str(tmp_path / "out.tfrecord"), index, description, shard=(0, 1) if index else None
        )
        found = [(bytes(x["image/encoded"]), x["image/class/label"].tolist()) for x in loader]
        assert found == [(r.data, [r.label]) for r in records]


def test_the_index_is_that_of_tfrecord2idx(tmp_path: Path) -> None:
    tools = pytest.importorskip("tfrecord.tools.tfrecord2idx")
    _write(tmp_path / "out.tfrecord", _records())
    tools.create_index(str(tmp_path / "out.tfrecord"), str(tmp_path / "theirs"))
    theirs = (tmp_path / "theirs").read_bytes()
    assert (tmp_path / "out.tfrecord.idx").read_bytes() == theirs


def test_a_record_that_protobuf_cannot_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packio.formats.tfrecord.MOST_BYTES", 1000)
    writer = made.writer(FORMAT, tmp_path / "out.tfrecord", count=1, size=1)
    with pytest.raises(errors.OutputError, match=r"b'a\.jpg' makes a record of 1\d\d\d bytes"):
        writer.add([made.record(bytes(1000), 0, b"a.jpg")])
    writer.abort()


@pytest.mark.parametrize("damage", ["flip", "cut", "more", "swapped"])
def test_what_reads_back_differently_is_an_error(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "out.tfrecord"
    writer = made.writer(FORMAT, path, count=3, size=3)
    writer.add([made.record(bytes(2_000_000) + b"needle", 0, b"k")])  # on disk: over a mebibyte
    whole = path.read_bytes()
    damaged = {
        "flip": whole.replace(b"needle", b"noodle"),
        "cut": whole[:-100],
        "more": whole + whole,
        "swapped": _framed(b"x" * (len(whole) - 16)),
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(
        errors.OutputError, match=r"out\.tfrecord: .*(read back differently|more are there)"
    ):
        writer.close()


# Scanning what packio wrote


def _same(entry: made.Found, record: made.Made, folder: Path) -> bool:
    boxes = record.boxes
    label = record.label
    return (
        _read(folder / entry.file, entry.offset, entry.length) == record.data
        and entry.label == (tuple(label.tolist()) if isinstance(label, np.ndarray) else label)
        and type(entry.label) in (int, tuple, type(None))
        and entry.key == record.key
        and entry.meta == record.meta
        and (entry.mask and _read(folder / entry.mask[0], *entry.mask[1:])) == record.mask_data
        and entry.boxes == (None if boxes is None else tuple(map(tuple, boxes.tolist())))
        and entry.box_labels
        == (None if record.box_labels is None else tuple(record.box_labels.tolist()))
    )


def test_a_record_larger_than_what_is_read_at_once(tmp_path: Path) -> None:
    sizes = (4 << 20, (4 << 20) - 300, 9_000_000, 3)
    records = [made.record(os.urandom(n), None, b"k") for n in sizes]
    _write(tmp_path / "out.tfrecord", records)
    entries = made.scanned(FORMAT, tmp_path / "out.tfrecord")
    assert all(_same(e, r, tmp_path) for e, r in zip(entries, records, strict=True))


_floats = st.floats(width=32, allow_nan=False)
_any_label = (
    st.none()
    | st.integers(-(2**63), 2**63 - 1)
    | st.lists(_floats, min_size=1, max_size=40).map(lambda x: np.array(x, np.float32))
)
_boxes = st.lists(st.tuples(_floats, _floats, _floats, _floats), max_size=40)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.binary(max_size=300), _any_label, st.binary(), st.none() | st.binary(), st.none() | _boxes
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_scan_finds_any_values(
    tmp_path: Path, example_class: Any, data: bytes, label: Any, key: bytes, mask: bytes | None,
    boxes: Any,
) -> None:  # fmt: skip
    path = tmp_path / "any.tfrecord"
    for old in tmp_path.iterdir():
        old.unlink()
    array = None if boxes is None else np.array(boxes, np.float32).reshape(-1, 4)
    record = made.record(data, label, key, mask=mask, meta=mask, boxes=array, height=1, width=1)
    _write(path, [record])
    (entry,) = made.scanned(FORMAT, path)
    assert _same(entry, record, tmp_path)
    (payload,) = _payloads(path)
    assert example_class.FromString(payload).SerializeToString(deterministic=True) == payload


# Scanning what others wrote


def test_scan_reads_what_the_package_tfrecord_wrote(tmp_path: Path) -> None:
    tfrecord = pytest.importorskip("tfrecord")
    writer = tfrecord.TFRecordWriter(str(tmp_path / "their.tfrecord"))
    for i in range(10):
        writer.write({
            "image": (b"image %d" % i, "byte"), "label": (-i, "int"), "index": ([1.5, i], "float"),
        })  # fmt: skip
    writer.close()
    for i, entry in enumerate(made.scanned(FORMAT, tmp_path / "their.tfrecord")):
        assert _read(tmp_path / "their.tfrecord", entry.offset, entry.length) == b"image %d" % i
        assert (entry.label, entry.key, entry.boxes) == (-i, b"%d" % i, None)


def test_scan_reads_protobufs_examples_of_common_keys(tmp_path: Path, example_class: Any) -> None:
    slim, tfds = example_class(), example_class()
    feature = slim.features.feature
    feature["image/encoded"].bytes_list.value.append(b"JPG")
    feature["image/class/label"].int64_list.value.append(7)
    feature["image/filename"].bytes_list.value.append(b"a.jpg")
    feature["image/width"].int64_list.value.append(200)
    feature["image/height"].int64_list.value.append(100)
    for side, value in {"xmin": 0.25, "ymin": 0.5, "xmax": 0.5, "ymax": 1}.items():
        feature[f"image/object/bbox/{side}"].float_list.value.append(value)
    feature["image/object/class/label"].int64_list.value.append(3)
    tfds.features.feature["image"].bytes_list.value.append(b"PNG")
    tfds.features.feature["label"].int64_list.value.extend([0, 1, 1])
    tfds.features.feature["file_name"].bytes_list.value.append(b"b.png")
    path = tmp_path / "foreign"
    path.write_bytes(b"".join(_framed(e.SerializeToString()) for e in (slim, tfds)))
    first, second = made.scanned(FORMAT, path)
    assert _read(path, first.offset, first.length) == b"JPG"
    assert (first.label, first.key) == (7, b"a.jpg")
    assert (first.boxes, first.box_labels) == (((50, 50, 100, 100),), (3,))
    assert _read(path, second.offset, second.length) == b"PNG"
    assert (second.label, second.key, second.boxes) == ((0.0, 1.0, 1.0), b"b.png", None)


def test_boxes_as_tensorflow_datasets_writes_them(tmp_path: Path, example_class: Any) -> None:
    """ymin, xmin, ymax, xmax as fractions, one box after the other; no size but the image's own."""
    held = io.BytesIO()
    Image.new("RGB", (200, 100), (9, 90, 200)).save(held, "JPEG")
    written = []
    for boxes in ([[0.5, 0.25, 1.0, 0.5], [0.0, 0.0, 0.25, 1.0]], []):
        example = example_class()
        feature = example.features.feature
        feature["image"].bytes_list.value.append(held.getvalue())
        feature["image/filename"].bytes_list.value.append(b"%d.jpg" % len(boxes))
        feature["objects/bbox"].float_list.value.extend([x for box in boxes for x in box])
        feature["objects/label"].int64_list.value.extend([17, 3][: len(boxes)])
        feature["objects/is_crowd"].int64_list.value.extend([0, 1][: len(boxes)])
        feature["objects/area"].float_list.value.extend([1250.5, 5000.0][: len(boxes)])
        feature["objects/pose"].bytes_list.value.extend([b"left", b"right"][: len(boxes)])
        for name in ("label", "is_crowd"):
            feature[f"objects/{name}"].int64_list.SetInParent()
        for name in ("bbox", "area"):
            feature[f"objects/{name}"].float_list.SetInParent()
        written.append(_framed(example.SerializeToString()))
    (tmp_path / "coco-train.tfrecord-00000-of-00001").write_bytes(b"".join(written))

    pack = packio.open(tmp_path / "coco-train.tfrecord-00000-of-00001")

    assert pack[0].boxes is not None
    assert pack[0].boxes.tolist() == [[50, 50, 100, 100], [0, 0, 200, 25]]
    columns = {name: values.tolist() for name, values in pack[0].box_columns.items()}
    assert columns == {"crowd": [0, 1], "area": [1250.5, 5000.0]}
    assert pack[0].box_labels is not None
    assert pack[0].box_labels.tolist() == [17, 3]
    assert pack[1].boxes is not None
    assert pack[1].boxes.shape == (0, 4)
    again = tmp_path / "again.tar"
    packio.convert(tmp_path / "coco-train.tfrecord-00000-of-00001", again)
    converted = packio.open(again)[0].boxes
    assert converted is not None
    assert converted.tolist() == pack[0].boxes.tolist()


def test_a_box_of_tensorflow_datasets_has_four_numbers(tmp_path: Path, example_class: Any) -> None:
    example = example_class()
    example.features.feature["image"].bytes_list.value.append(b"PNG")
    example.features.feature["objects/bbox"].float_list.value.extend([0.5, 0.25, 1.0])
    (tmp_path / "x.tfrecord").write_bytes(_framed(example.SerializeToString()))
    with pytest.raises(packio.IntegrityError, match="3 numbers, expected 4 a box"):
        packio.open(tmp_path / "x.tfrecord")


_IMAGE = _feature(b"image/encoded", b"DATA")


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({}, b"0"),
        ({b"filename": b""}, b"0"),
        ({b"image/filename": b"", b"filename": b"a"}, b"a"),
        ({b"packio/key": b"\xff", b"filename": b"a"}, b"\xff"),
        ({b"packio/key": b"", b"filename": b"a"}, b""),
    ],
)
def test_keys_of_others_are_taken_if_not_empty(
    tmp_path: Path, given: dict[bytes, bytes], key: bytes
) -> None:
    features = [_feature(name, value) for name, value in given.items()]
    assert _one(tmp_path / "keys", _example(_IMAGE, *features)).key == key


_ODD: dict[str, tuple[bytes, int | str | tuple[float, ...] | None]] = {
    "no label": (_example(_IMAGE), None),
    "packed": (_example(_IMAGE, _feature(b"label", _wire(1, b"\x05"), 3)), 5),
    "unpacked": (_example(_IMAGE, _feature(b"label", b"\x08\x05", 3)), 5),
    "packed and not": (_example(_IMAGE, _feature(b"y", b"\x08\x05\x0a\x02\x06\x07", 3)), (5, 6, 7)),
    "negative": (_example(_IMAGE, _feature(b"label", b"\x08" + b"\xff" * 9 + b"\x01", 3)), -1),
    "floats": (_example(_IMAGE, _feature(b"label", b"\x0d\0\0\0\x3f", 2)), (0.5,)),
    "packed floats": (
        _example(_IMAGE, _feature(b"label", _wire(1, b"\0\0\0\x3f" * 2), 2)), (.5, .5),
    ),
    "empty list": (_example(_IMAGE, _feature(b"label", b"", 3)), None),
    "empty feature": (_example(_IMAGE, _wire(1, _wire(1, b"label") + _wire(2, b""))), None),
    "no feature": (_example(_IMAGE, _wire(1, _wire(1, b"label"))), None),
    "value before key": (
        _example(_wire(1, _wire(2, _wire(1, _wire(1, b"DATA"))) + _wire(1, b"image"))), None,
    ),
    "unknown fields": (
        b"\x18\x05" + _wire(15, b"?") + _example(b"\x21" + b"8" * 8, _IMAGE, b"\x2d4444")
        + b"\xa0\x06\x01", None,
    ),
    "last wins": (
        _example(_feature(b"image", b"x"), _IMAGE, _feature(b"label", b"\x08\x05", 3),
                 _feature(b"label", b"\x08\x06", 3), _feature(b"image/encoded", b"DATA")), 6,
    ),
    "merged features": (_example(_IMAGE) + _example(_feature(b"label", b"\x08\x05", 3)), 5),
    "merged value": (
        _example(_IMAGE, _wire(1, _wire(1, b"y") + _wire(2, _wire(3, b"\x08\x05")) * 2)), (5, 5),
    ),
    "last of one": (
        _example(_IMAGE, _wire(1, _wire(1, b"y") + _wire(2, b"\x12\0" + _wire(3, b"\x08\x05")))),
        5,
    ),
    "empty key": (_example(_wire(1, _wire(2, _wire(1, b""))), _IMAGE), None),
    "long key": (_example(_feature(b"k" * 133, b"v" * 7), _IMAGE), None),
    "label of bytes": (_example(_IMAGE, _feature(b"label", b"cat")), "cat"),
    "wrong wire type": (_example(_IMAGE, _wire(1, _wire(1, b"y") + b"\x10\x05")), None),
}  # fmt: skip


@pytest.mark.parametrize("name", _ODD)
def test_scan_reads_odd_encodings_as_protobuf_does(
    tmp_path: Path, example_class: Any, name: str
) -> None:
    payload, label = _ODD[name]
    example_class.FromString(payload)  # it reads them
    entry = _one(tmp_path / "odd.tfrecord", payload)
    assert _read(tmp_path / "odd.tfrecord", entry.offset, entry.length) == b"DATA"
    assert entry.label == label


_NAMES = [name.decode() for name in example_fields._IMAGES]
_LABELS = [name.decode() for name in example_fields._LABELS]


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_damage_beneath_a_right_checksum_is_met_as_protobuf_meets_it(
    tmp_path: Path, example_class: Any, data: st.DataObject
) -> None:
    """What it reads we read the same, or refuse; what it refuses does no harm."""
    payload = bytearray(data.draw(st.sampled_from([payload for payload, _ in _ODD.values()])))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at : at + 1] = data.draw(st.binary(max_size=3))
    message = pytest.importorskip("google.protobuf.message")
    path = tmp_path / "odd.tfrecord"
    try:
        entry = _one(path, bytes(payload))
    except errors.PackioError as error:
        assert str(path) in str(error)  # noqa: PT017 (either is right)
        return
    assert 12 <= entry.offset <= entry.offset + entry.length <= 12 + len(payload)
    try:
        example = example_class.FromString(bytes(payload))
    except message.DecodeError:
        return
    size = example.ByteSize()
    example.DiscardUnknownFields()
    if example.ByteSize() != size:
        return  # its implementations differ in what becomes of a map's entry with such a field
    parsed = example.features.feature
    values = [list(parsed[k].bytes_list.value) for k in _NAMES if k in parsed]
    assert next(v for v in values if len(v) == 1) == [_read(path, entry.offset, entry.length)]
    told = [f for f in map(parsed.get, _LABELS) if f]
    said: Any = entry.label
    if isinstance(said, str):  # the name of a class
        assert [os.fsencode(said)] in [list(f.bytes_list.value) for f in told]
        return
    numbers = [[*f.int64_list.value, *f.float_list.value] for f in told]
    label = [] if entry.label is None else np.atleast_1d(entry.label).tolist()
    np.testing.assert_equal(next(filter(None, numbers), []), label)


_MALFORMED = {
    "a field of a record ends outside": b"\x0a\x7f",
    "a field of a map's entry ends outside": _example(b"\x0a\x0a\x0a\x01k")[:-2],
    "a group": b"\x0b\x0c",
    "field 0": b"\x02\x00",
    "a number without end": b"\x08" + b"\xff" * 11,
    "a length without end": b"\x0a\xff",
    "a text": b"Lorem ipsum dolor sit amet",
    "floats of 3 bytes": _example(_IMAGE, _feature(b"label", _wire(1, b"abc"), 2)),
    "a number ends outside its list": _example(_IMAGE, _feature(b"y", _wire(1, b"\x05\xff"), 3)),
    "boxes of 3 bytes": _example(_IMAGE, _feature(b"packio/boxes", b"abc")),
    "boxes of ints": _example(_IMAGE, _feature(b"packio/boxes", b"\x08\x05", 3)),
}


@pytest.mark.parametrize("name", _MALFORMED)
def test_what_is_no_example_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(errors.NotAPackError, match=r"bad: record 0 at 0: no tf\.train\.Example: "):
        _one(tmp_path / "bad", _MALFORMED[name])


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "record 0 at 0: an Example without an encoded image; its features are: none; exp"),
        (_example(_feature(b"a", b"x"), _feature(b"\xff", b"y")), r"features are: \\xff, a; exp"),
        (_example(_feature(b"image", b"\x08\x05", 3)), "features are: image; expected one value"),
        (_example(_feature(b"length", b"\x08\x05", 3)) + _wire(2, b""), "a SequenceExample; its"),
    ],
)
def test_examples_without_an_image_are_refused(
    tmp_path: Path, payload: bytes, message: str
) -> None:
    with pytest.raises(errors.NotAPackError, match=message):
        _one(tmp_path / "bad", payload)


def test_boxes_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    sizes = [_feature(b"image/" + s, b"\x08\x09", 3) for s in (b"width", b"height")]
    sides = [
        _feature(b"image/object/bbox/" + side, _wire(1, b"\0\0\0\x3f" * count), 2)
        for side, count in ((b"xmin", 1), (b"xmax", 1), (b"ymin", 1), (b"ymax", 2))
    ]
    with pytest.raises(errors.IntegrityError, match="record 0 at 0: boxes have"):
        _one(tmp_path / "bad", _example(_IMAGE, *sizes, *sides))
    labels = _feature(b"image/object/class/label", b"\x08\x05", 3)
    boxes = _feature(b"packio/boxes", bytes(32))
    with pytest.raises(errors.IntegrityError, match="2 boxes, 1 labels"):
        _one(tmp_path / "bad", _example(_IMAGE, boxes, labels))


@pytest.mark.parametrize("module", [gzip, zlib])
def test_a_compressed_file_is_refused_with_a_way_out_that_works(
    tmp_path: Path, module: Any
) -> None:
    _write(tmp_path / "plain.tfrecord", _records())
    plain = (tmp_path / "plain.tfrecord").read_bytes()
    (tmp_path / "c.tfrecord").write_bytes(module.compress(plain))
    with pytest.raises(
        errors.NotAPackError, match=f"compressed as a whole by {module.__name__}"
    ) as e:
        list(made.scanned(FORMAT, tmp_path / "c.tfrecord"))
    command = str(e.value).partition("unpack the file first: ")[2]
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)  # noqa: S602 (what we tell users)
    assert (tmp_path / "unpacked.tfrecord").read_bytes() == plain


# Damage


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("victim") / "a.tfrecord"
    _write(path, [r.replaced(data=r.data[:200]) for r in _full_records(5)])
    return path.read_bytes()


def _ends(content: bytes) -> Iterator[int]:
    at = 0
    while at < len(content):
        at += struct.unpack_from("<Q", content, at)[0] + 16
        yield at


@pytest.mark.parametrize("step", long.after(1, (7, 1)))
def test_a_truncated_file_is_refused_at_any_length(
    tmp_path: Path, victim: bytes, step: int
) -> None:
    ends = [0, *_ends(victim)]
    for length in sorted({*range(0, len(victim), step), *ends} - {len(victim)}):
        (tmp_path / "cut").write_bytes(victim[:length])
        if length in ends:  # nothing in a TFRecord file tells how many records there are
            assert len(list(made.scanned(FORMAT, tmp_path / "cut"))) == ends.index(length)
            continue
        with pytest.raises((errors.IntegrityError, errors.NotAPackError), match="cut") as e:
            list(made.scanned(FORMAT, tmp_path / "cut"))
        number = sum(end <= length for end in ends) - 1
        assert number == 0 or f"record {number} at {ends[number]}: is cut off" in str(e.value)


@pytest.mark.parametrize("step", long.after(1, (7, 1)))
def test_every_turned_bit_is_found(tmp_path: Path, victim: bytes, step: int) -> None:
    ends = [0, *_ends(victim)]
    for position in range(0, len(victim), step):
        damaged = bytearray(victim)
        damaged[position] ^= 1 << position % 8
        (tmp_path / "flip").write_bytes(damaged)
        with pytest.raises((errors.IntegrityError, errors.NotAPackError)) as e:
            list(made.scanned(FORMAT, tmp_path / "flip"))
        number = sum(end <= position for end in ends) - 1
        if position >= 12:
            assert f"record {number} at {ends[number]}: i" in str(e.value)


def test_a_huge_length_with_a_right_checksum_allocates_nothing(tmp_path: Path) -> None:
    for length in (2**31 - 1, 2**63, 2**64 - 1):
        (tmp_path / "huge").write_bytes(_framed(b"x") + tfrecord.head(length))
        with pytest.raises(errors.PackioError, match=r"record 1 at 17: (is cut off|has \d+ bytes)"):
            list(tfrecord.frames(tmp_path / "huge"))


def test_the_names_looked_for_are_told(tmp_path: Path) -> None:
    with pytest.raises(errors.NotAPackError) as e:
        _one(tmp_path / "bad", b"")
    names: Iterable[bytes] = example_fields._IMAGES
    assert all(name.decode() in str(e.value) for name in names)
