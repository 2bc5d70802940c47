"""FFCV's .beton, checked against a file that FFCV wrote, and some made by the description alone."""

from __future__ import annotations

import io
import json
import random
import struct
from typing import TYPE_CHECKING, Any

import long
import made
import make_frozen_beton
import numpy as np
import pytest
from PIL import Image

import packio
from packio import errors
from packio.formats import beton
from packio.formats.beton import FORMAT
from packio.images import encodings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_FLOAT, _INT, _IMAGE, _BYTES, _ARRAY, _JSON, _TENSOR = range(7)
_JPEG = b"\xff\xd8\xff\xe0 a photo"
_RAW = bytes(range(24))  # 2x4 pixels


def _cell(kind: int, value: Any, at: int) -> bytes:
    """Encode a cell whose value, if it lies elsewhere, lies at ``at``."""
    if kind in (_FLOAT, _INT):
        return struct.pack("<d" if kind == _FLOAT else "<q", value)
    if kind == _IMAGE:
        return struct.pack("<BHHQ", value == _RAW, 4, 2, at)
    if kind in (_BYTES, _JSON):
        return struct.pack("<QQ", at, len(value))
    return struct.pack("<Q", at)


def _array_field(descr: Any, *shape: int) -> bytes:
    text = json.dumps(descr).encode()
    return struct.pack("<32QQ", *shape, *bytes(32 - len(shape)), len(text)) + text


def _beton(
    fields: Mapping[str, int | tuple[int, bytes]], samples: list[list[Any]], page: int = 4096
) -> bytes:
    """Encode a dataset, independently of packio and of NumPy's alignment."""
    types = [(kind, b"") if isinstance(kind, int) else kind for kind in fields.values()]
    described = b"".join(
        struct.pack("<B16s1024s", kind, name.encode(), arguments)
        for name, (kind, arguments) in zip(fields, types, strict=True)
    )
    aligned = [8 if kind in (_FLOAT, _INT, _ARRAY, _TENSOR) else 1 for kind, _ in types]
    row, offsets = 0, []
    for (kind, _), alignment in zip(types, aligned, strict=True):
        row += -row % alignment
        offsets.append(row)
        row += {_IMAGE: 13, _BYTES: 16, _JSON: 16}.get(kind, 8)
    row += -row % max(aligned, default=1)
    start = 24 + len(described) + row * len(samples)
    start += -start % page
    rows, data, allocations = bytearray(row * len(samples)), b"", []
    for i, sample in enumerate(samples):
        for (kind, _), offset, value in zip(types, offsets, sample, strict=True):
            cell = _cell(kind, value, start + len(data))
            rows[i * row + offset : i * row + offset + len(cell)] = cell
            if kind not in (_FLOAT, _INT):
                allocations.append(struct.pack("<QQQ", i, start + len(data), len(value)))
                data += value
    data += bytes(-len(data) % page)
    head = struct.pack("<HHIQQ", 2, len(fields), page, len(samples), start + len(data))
    random.Random(1).shuffle(allocations)  # workers finish in any order
    return (head + described + rows).ljust(start, b"\0") + data + b"".join(allocations)


def _scanned(path: Path, content: bytes) -> list[made.Found]:
    path.write_bytes(content)
    return list(made.scanned(FORMAT, path))


def _read(path: Path, entry: made.Found) -> bytes:
    return (path / entry.file).read_bytes()[entry.offset :][: entry.length]


# A file of FFCV's


def test_scan_reads_what_ffcv_wrote() -> None:
    entries = list(made.scanned(FORMAT, make_frozen_beton.PATH))
    given = make_frozen_beton.samples()
    assert [e.key for e in entries] == [b"%d" % i for i in range(len(given))]
    for entry, sample in zip(entries, given, strict=True):
        pixels, data = sample["image"], _read(make_frozen_beton.PATH.parent, entry)
        height, width = pixels.shape[:2]
        assert entry.label == sample["label"]
        if pixels.nbytes <= make_frozen_beton.LARGEST_RAW:
            assert entry.facts == encodings.raw_facts(height, width, 3, "uint8", "raw_hwc")
            assert data == pixels.tobytes()
        else:
            assert entry.facts is None
            with Image.open(io.BytesIO(data)) as image:
                assert image.size == (width, height)
                assert np.abs(np.asarray(image, int) - pixels).mean() < 12
            assert data.endswith(b"\xff\xd9")
    assert {entry.facts is None for entry in entries} == {True, False}


def test_other_fields_are_metadata() -> None:
    given = make_frozen_beton.samples()
    for entry, sample in zip(made.scanned(FORMAT, make_frozen_beton.PATH), given, strict=True):
        assert entry.meta is not None
        assert json.loads(entry.meta) == {
            "score": sample["score"],
            "caption": sample["caption"].decode("utf-8", "surrogateescape"),
            "info": sample["info"],
            "box": sample["box"].tolist(),
        }


def test_it_opens_as_a_pack_and_is_converted(tmp_path: Path) -> None:
    pack = packio.open(make_frozen_beton.PATH)
    again = packio.open(packio.convert(make_frozen_beton.PATH, tmp_path / "a.lmdb").out)
    for found, other, sample in zip(pack, again, make_frozen_beton.samples(), strict=True):
        assert (found.data, found.label, found.meta) == (other.data, other.label, other.meta)
        pixels = other.decode()
        assert pixels.shape == sample["image"].shape
        assert (other.encoding == "jpeg") or np.array_equal(pixels, sample["image"])


# Files made here


@pytest.mark.parametrize("count", [1, 50])
def test_scan_reads_a_dataset(tmp_path: Path, count: int) -> None:
    images = [(_JPEG * (1 + i % 3), _RAW)[i % 2] for i in range(count)]
    samples = [[i, images[i], i - 2, b"text" * (i % 3)] for i in range(count)]
    fields = {"id": _INT, "image": _IMAGE, "label": _INT, "text": _BYTES}
    entries = _scanned(tmp_path / "a.beton", _beton(fields, samples))
    assert [_read(tmp_path, e) for e in entries] == images
    assert [e.label for e in entries] == [i - 2 for i in range(count)]
    assert [e.facts for e in entries] == [
        encodings.raw_facts(2, 4, 3, "uint8", "raw_hwc") if image == _RAW else None
        for image in images
    ]
    assert json.loads(entries[0].meta or b"") == {"id": 0, "text": ""}


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({"image": _IMAGE}, None),
        ({"image": _IMAGE, "age": _INT, "weight": _FLOAT}, 1),
        ({"image": _IMAGE, "weight": _FLOAT, "age": _INT}, 2),
        ({"image": _IMAGE, "a": _FLOAT, "b": _FLOAT}, 1.5),
        ({"image": _IMAGE, "age": _INT, "Target": _FLOAT}, 2.5),
        ({"image": _IMAGE, "a": _INT, "b": _INT, "label": _INT}, 3),
    ],
)
def test_the_label_is_found(tmp_path: Path, fields: Any, label: Any) -> None:
    kinds = list(fields.values())[1:]
    sample = [_JPEG, *(i + 1 if kind == _INT else i + 1.5 for i, kind in enumerate(kinds))]
    (entry,) = _scanned(tmp_path / "a", _beton(fields, [sample]))
    assert entry.label == label


@pytest.mark.parametrize(("names", "image"), [(("a", "b"), 0), (("a", "Image"), 1)])
def test_the_image_is_found(tmp_path: Path, names: tuple[str, str], image: int) -> None:
    sample = [_JPEG, _RAW]
    (entry,) = _scanned(tmp_path / "a", _beton(dict.fromkeys(names, _IMAGE), [sample]))
    assert _read(tmp_path, entry) == sample[image]
    assert entry.meta is None


def test_an_image_after_an_empty_value_has_its_own_size(tmp_path: Path) -> None:
    samples = [[_JPEG, b""], [_JPEG * 2, b""], [_JPEG * 3, b"x"]]
    entries = _scanned(tmp_path / "a", _beton({"image": _IMAGE, "text": _BYTES}, samples))
    assert [_read(tmp_path, e) for e in entries] == [sample[0] for sample in samples]


@pytest.mark.parametrize(
    ("descr", "shape", "expected"),
    [
        ([["", "<f4"]], (2,), [1.5, -2.0]),
        ([["", "<i8"]], (), -5),
        ([["", "|u1"]], (2, 2), [[1, 2], [3, 4]]),
        ([["", "|b1"]], (1, 2), [[True, False]]),
        ([["", "<M8[s]"]], (1,), None),
        ([["", "<U3"]], (1,), None),
        ([["a", "<i4"], ["b", "<i4"]], (1,), None),
    ],
)
@pytest.mark.parametrize("kind", [_ARRAY, _TENSOR])
def test_arrays_are_lists(
    tmp_path: Path, kind: int, descr: Any, shape: tuple[int, ...], expected: Any
) -> None:
    value = bytes(8)
    if expected is not None:
        value = np.array(expected, descr[0][1]).tobytes()
    fields: dict[str, Any] = {"image": _IMAGE, "a": (kind, _array_field(descr, *shape))}
    (entry,) = _scanned(tmp_path / "a", _beton(fields, [[_JPEG, value]]))
    assert (entry.meta and json.loads(entry.meta)) == (
        None if expected is None else {"a": expected}
    )


def test_large_values_are_no_metadata(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"image": _IMAGE, "a": _BYTES, "b": _BYTES}
    samples = [[_JPEG, b"a", b"b"], [_JPEG, bytes(1 << 17), b"b"]]
    first, second = _scanned(tmp_path / "a", _beton(fields, samples, page=1 << 18))
    assert first.meta == second.meta == b'{"b": "b"}'


# What is no dataset, or none that can be read


def test_a_dataset_without_images_is_refused_with_its_fields(tmp_path: Path) -> None:
    with pytest.raises(errors.NotAPackError, match="no field of images: a, b; expected"):
        _scanned(tmp_path / "a", _beton({"a": _INT, "b": _BYTES}, [[1, b""]]))


def test_fields_of_the_users_own_are_refused(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"image": _IMAGE, "mine": (255, b"?")}
    with pytest.raises(errors.NotAPackError, match="'mine' is of type 255"):
        _scanned(tmp_path / "a", _beton(fields, [[_JPEG, b"12345678"]]))


def test_what_was_not_finished_is_refused(tmp_path: Path) -> None:
    content = bytearray(_victim())
    content[16:24] = bytes(8)
    with pytest.raises(errors.IntegrityError, match="was not finished"):
        _scanned(tmp_path / "a", bytes(content))


@pytest.mark.parametrize("text", [b"", b"{\0", b"[" * 50_000, b"\xff\0"])
def test_json_that_is_none_is_refused(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(errors.IntegrityError, match=r"sample 0: 'info' at .*: no JSON"):
        _scanned(tmp_path / "a", _beton({"i": _IMAGE, "info": _JSON}, [[_JPEG, text]], 1 << 16))


@pytest.mark.parametrize(
    "arguments",
    [
        b"",
        struct.pack("<32QQ", *[0] * 32, 1 << 60) + b"[",
        _array_field({"a": "<i4"}),
        _array_field([[]]),
        _array_field([["", "<f9"]]),
        struct.pack("<32QQ", *[0] * 32, 700) + b"[" * 700,
        _array_field([["", "<i4"]], 0, 1 << 63),
    ],
)
def test_arrays_that_make_no_sense_are_refused(tmp_path: Path, arguments: bytes) -> None:
    fields: dict[str, Any] = {"i": _IMAGE, "a": (_ARRAY, arguments)}
    with pytest.raises(errors.IntegrityError, match="field 'a' makes no sense"):
        _scanned(tmp_path / "a", _beton(fields, [[_JPEG, bytes(8)]]))


@pytest.mark.parametrize("shape", [(1 << 40,), (1 << 63, 1 << 63), (500, 500)])
def test_arrays_beyond_the_file_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    fields: dict[str, Any] = {"i": _IMAGE, "a": (_ARRAY, _array_field([["", "<i8"]], *shape))}
    with pytest.raises(errors.IntegrityError, match="'a' lies outside"):
        _scanned(tmp_path / "a", _beton(fields, [[_JPEG, bytes(8)]]))


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("mode", 2, "neither JPEG nor raw"),
        ("width", 5, "another size than its pixels"),
        ("height", 65535, "another size than its pixels"),
        ("ptr", 3, "nowhere allocated"),
        ("ptr", (1 << 64) - 1, "nowhere allocated"),
    ],
)
def test_images_that_make_no_sense_are_refused(
    tmp_path: Path, column: str, value: int, problem: str
) -> None:
    content = bytearray(_beton({"image": _IMAGE}, [[_JPEG], [_RAW]]))
    cells = np.frombuffer(content, beton._PICTURE, 2, 24 + 1041)
    cells[column][1] = value
    with pytest.raises(errors.IntegrityError, match=f"sample 1: the value of 'image' .*{problem}"):
        _scanned(tmp_path / "a", bytes(content))


# Damage


def _victim() -> bytes:
    fields: dict[str, Any] = {
        "image": _IMAGE, "label": _INT, "text": _BYTES, "info": _JSON,
        "box": (_ARRAY, _array_field([["", "<f4"]], 2)),
    }  # fmt: skip
    samples = [[(_JPEG, _RAW)[i % 2], i, b"t" * i, b"[1]\0", bytes(8)] for i in range(4)]
    return _beton(fields, samples, page=64)


def test_a_truncated_file_is_refused_at_any_length(tmp_path: Path) -> None:
    whole = _victim()
    assert len(made.survives(FORMAT, tmp_path / "cut", whole) or []) == 4
    for length in (*range(0, len(whole) - 600, 7), *range(len(whole) - 600, len(whole))):
        assert made.survives(FORMAT, tmp_path / "cut", whole[:length]) is None
    assert made.survives(FORMAT, tmp_path / "cut", whole + bytes(24)) is None


@pytest.mark.parametrize("count", long.after(1, (300, 1500)))
def test_garbage_crashes_nothing(tmp_path: Path, count: int) -> None:
    whole, rng = _victim(), random.Random(5)
    starts = [0, *(24 + 1041 * i for i in range(5)), 24 + 4 * 1041 + 17, 24 + 5 * 1041]
    for _ in range(count):
        damaged = bytearray(whole)
        for _ in range(rng.choice((1, 3, 20))):
            at = rng.choice((rng.choice(starts) + rng.randrange(300), rng.randrange(len(whole))))
            size = rng.choice((1, 2, 8))
            damaged[at : at + size] = rng.choice((bytes(size), b"\xff" * size, rng.randbytes(size)))
        made.survives(FORMAT, tmp_path / "garbage", bytes(damaged))
