"""RecordIO, checked against an independent parser and a file that mxnet 1.9.1 wrote.

``tools/interop_mxnet.sh`` compares with mxnet itself, both ways.
"""

from __future__ import annotations

import base64
import functools
import random
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import long
import made
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packio import errors
from packio.formats.recordio import FORMAT, framing

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAGIC = struct.pack("<I", 0xCED7230A)
_write = functools.partial(made.write, FORMAT)

# By mxnet 1.9.1: what `_FIXTURE_RECORDS` says, ids 0 to 5.
_FIXTURE = (
    "eNrjUr5+TpYBBhwcGNBAZm5ieiqQ5gKqk0ASZ0RTB5I3AtLMUD4TAwawZ2Bo2A+ypDi1LLUoMUchJzEpNacYbrYCRN"
    "kDB2YsZvMA9QGdkpkM4hgaGYMokFlQOgFEqyG0OLKgmWEAUlCal5iTmZ6XmgIxUwZup4AjK5r61LwURZjZAEXkK4Y="
)
_FIXTURE_INDEX = "0\t0\n1\t40\n2\t72\n3\t132\n4\t200\n5\t248\n"
_FIXTURE_RECORDS: list[tuple[int | list[float], bytes]] = [
    (3, b"image"),
    (0, b""),
    ([0.5, -1.0, 2.0], b"several labels"),
    (7, _MAGIC + b"magic" + _MAGIC + b"123" + _MAGIC * 2),
    (8, b"0" + _MAGIC + b"unaligned"),
    (9, b"end!" + _MAGIC),
]


def _fixture() -> bytes:
    return zlib.decompress(base64.b64decode(_FIXTURE))


def _record(label: Any, data: bytes, key: bytes = b"k", **more: Any) -> made.Made:
    label = np.array(label, np.float32) if isinstance(label, list) else label
    return made.record(data, label, key, "jpeg", **more)


def _stuffed(count: int, seed: int = 0) -> list[made.Made]:
    """Records full of magic numbers, aligned and not."""
    rng = random.Random(seed)
    pieces = (_MAGIC, b"", b"\0" * 4, b"\x0a", b"\x23\xd7", _MAGIC[1:])
    return [
        _record(i, b"".join(rng.choices(pieces, k=rng.randrange(30))), b"a/%d.jpg" % i)
        for i in range(count)
    ]


def _parse(content: bytes) -> Iterator[tuple[int, int, list[float], bytes]]:
    """Position, id, labels and image of every record: a parser that shares nothing with packio."""
    at, begin = 0, 0
    parts: list[bytes] = []
    while at < len(content):
        magic, word = struct.unpack_from("<II", content, at)
        assert magic == 0xCED7230A
        kind, size = divmod(word, 2**29)
        assert kind in ((2, 3) if parts else (0, 1))
        begin = begin if parts else at
        parts.append(content[at + 8 : at + 8 + size])
        assert len(parts[-1]) == size
        at += 8 + (size + 3) // 4 * 4
        if kind in (0, 3):
            record = _MAGIC.join(parts)
            flag, label, number, second = struct.unpack_from("<IfQQ", record)
            assert second == 0
            labels = struct.unpack_from(f"<{flag}f", record, 24) if flag else (label,)
            yield begin, number, list(labels), record[24 + 4 * flag :]
            parts = []
    assert at == len(content)
    assert not parts


def _scanned(path: Path) -> list[tuple[Any, bytes]]:
    """Label and image of every record, as `scan` says where they lie."""
    return [(e.label, _image(path, e)) for e in made.scanned(FORMAT, path)]


def _image(path: Path, entry: made.Found) -> bytes:
    raw = (path.parent / entry.file).read_bytes()[entry.offset : entry.offset + entry.length]
    return FORMAT.unsplit(raw) if entry.split else raw


# Writing


def test_the_bytes_are_those_of_mxnet(tmp_path: Path) -> None:
    _write(tmp_path / "out.rec", [_record(*record) for record in _FIXTURE_RECORDS])
    assert (tmp_path / "out.rec").read_bytes() == _fixture()
    assert (tmp_path / "out.idx").read_text() == _FIXTURE_INDEX


def test_another_parser_reads_what_was_written(tmp_path: Path) -> None:
    records = _stuffed(500)
    _write(tmp_path / "out.rec", records)
    found = list(_parse((tmp_path / "out.rec").read_bytes()))
    assert [(i, [float(r.label)], r.data) for i, r in enumerate(records)] == [
        (number, labels, image) for _, number, labels, image in found
    ]
    index = "".join(f"{number}\t{begin}\n" for begin, number, _, _ in found)
    assert (tmp_path / "out.idx").read_text() == index


_FLOATS = [0.1, -1e30, float(np.frombuffer(_MAGIC, "<f4")[0])]


@pytest.mark.parametrize("label", [0, 5, -3, 2**24, -(2**24), 2**31, _FLOATS, [1.0]], ids=repr)
def test_a_label_comes_back(tmp_path: Path, label: int | list[float]) -> None:
    _write(tmp_path / "out.rec", [_record(label, b"image"), _record(label, _MAGIC)])
    expected = label if isinstance(label, int) else tuple(np.array(label, np.float32).tolist())
    assert _scanned(tmp_path / "out.rec") == [(expected, b"image"), (expected, _MAGIC)]


def test_no_label_is_0_and_the_info_says_so(tmp_path: Path) -> None:
    written = _write(tmp_path / "out.rec", [_record(None, b"image")])
    assert written.info == {"labels": "none; 0 stands in the container"}
    assert _scanned(tmp_path / "out.rec") == [(0, b"image")]


@pytest.mark.parametrize("label", [2**24 + 1, -(2**24) - 1, 2**63 - 1])
def test_a_label_that_float32_cannot_hold_is_refused(tmp_path: Path, label: int) -> None:
    writer = made.writer(FORMAT, tmp_path / "out.rec", count=1, size=1)
    with pytest.raises(errors.OutputError, match=f"label {label} of b'k' does not fit"):
        writer.add([_record(label, b"image")])
    writer.abort()


def test_a_record_of_half_a_gibibyte_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packio.formats.recordio.MOST_BYTES", 1000)
    writer = made.writer(FORMAT, tmp_path / "out.rec", count=1, size=1)
    writer.add([_record(1, bytes(975))])
    with pytest.raises(errors.OutputError, match="b'k' has 976 bytes"):
        writer.add([_record(1, bytes(976))])
    writer.abort()


def test_the_list_has_a_line_a_record_with_odd_keys_escaped(tmp_path: Path) -> None:
    keys = [b"a/b c.jpg", b"t\ta\\b", b"n\nr\r", b"\xff\xfe"]
    records = [_record(i, b"x", key) for i, key in enumerate(keys)]
    _write(tmp_path / "out.rec", [*records, _record([0.5, 0.1], b"x"), _record(None, b"x")])
    assert (tmp_path / "out.lst").read_bytes() == (
        b"0\t0\ta/b c.jpg\n1\t1\tt\\ta\\\\b\n2\t2\tn\\nr\\r\n3\t3\t\xff\xfe\n"
        b"4\t0.5\t0.100000001\tk\n5\t0\tk\n"
    )


def test_masks_are_in_a_file_of_their_own(tmp_path: Path) -> None:
    records = [_record(i, b"image %d" % i, mask=b"mask %d" % i) for i in range(20)]
    written = _write(tmp_path / "out.rec", records)
    assert written.files == ("out.rec", "out.mask.rec")
    assert written.sidecars == ("out.idx", "out.lst", "out.mask.idx")
    assert written.places["mask"] is not None
    assert written.places["mask"].file.tolist() == [1] * 20
    entries = list(made.scanned(FORMAT, tmp_path / "out.rec"))
    ranges = zip(
        written.places["mask"].offset.tolist(), written.places["mask"].length.tolist(), strict=True
    )
    assert [e.mask for e in entries] == [("out.mask.rec", *pair) for pair in ranges]
    masks = [image for _, _, _, image in _parse((tmp_path / "out.mask.rec").read_bytes())]
    assert masks == [r.mask_data for r in records]


# Scanning what others write


def test_a_file_of_mxnet_is_read(tmp_path: Path) -> None:
    (tmp_path / "theirs.rec").write_bytes(_fixture())
    expected = [
        (label if isinstance(label, int) else tuple(label), image)
        for label, image in _FIXTURE_RECORDS
    ]
    assert _scanned(tmp_path / "theirs.rec") == expected


def _frame(flag: int, label: float, number: int, labels: list[float], image: bytes) -> bytes:
    record = struct.pack(f"<IfQQ{len(labels)}f", flag, label, number, 0, *labels) + image
    return _MAGIC + struct.pack("<I", len(record)) + record + bytes(-len(record) % 4)


def _faces(samples: int, identities: int) -> bytes:
    """A file as InsightFace's tools write it."""
    last = float(1 + samples)
    frames = [_frame(2, 0, 0, [last, last + identities], b"")]
    frames += [_frame(0, i // 2, i, [], b"face %d" % i) for i in range(1, samples + 1)]
    frames += [_frame(2, 0, samples + 1 + i, [1.0, last], b"") for i in range(identities)]
    return b"".join(frames)


def test_faces_are_read_without_header_and_identities(tmp_path: Path) -> None:
    (tmp_path / "faces.rec").write_bytes(_faces(7, 3))
    assert _scanned(tmp_path / "faces.rec") == [(i // 2, b"face %d" % i) for i in range(1, 8)]


def test_missing_faces_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "faces.rec").write_bytes(_faces(7, 3)[: -6 * 40])
    with pytest.raises(errors.IntegrityError, match="record 0 says there are 8, 5 are there"):
        _scanned(tmp_path / "faces.rec")


def test_a_label_with_a_fraction_is_a_vector_of_one(tmp_path: Path) -> None:
    (tmp_path / "x.rec").write_bytes(_frame(0, 0.5, 0, [], b"image"))
    assert _scanned(tmp_path / "x.rec") == [((0.5,), b"image")]


# Damage


def test_records_of_something_else_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.rec").write_bytes(_MAGIC + struct.pack("<I", 4) + b"text")
    with pytest.raises(errors.NotAPackError, match="4 bytes, too few for MXNet's image records"):
        list(made.scanned(FORMAT, tmp_path / "x.rec"))


def test_a_file_cut_off_between_records_is_known_by_its_index(tmp_path: Path) -> None:
    written = _write(tmp_path / "out.rec", [_record(i, bytes(100)) for i in range(10)])
    with (tmp_path / "out.rec").open("r+b") as file:
        file.truncate(int(written.places["image"].offset[9]) - 32)
    with pytest.raises(errors.IntegrityError, match=r"cut off: out\.idx has a record at 1188"):
        list(made.scanned(FORMAT, tmp_path / "out.rec"))


def test_missing_masks_are_an_error(tmp_path: Path) -> None:
    _write(tmp_path / "out.rec", [_record(i, b"image", mask=b"mask") for i in range(3)])
    whole = (tmp_path / "out.mask.rec").read_bytes()
    (tmp_path / "out.mask.rec").write_bytes(whole[: 2 * len(whole) // 3])
    with pytest.raises(errors.IntegrityError, match=r"out\.mask\.rec: cut off: out\.mask\.idx has"):
        list(made.scanned(FORMAT, tmp_path / "out.rec"))
    (tmp_path / "out.mask.rec").write_bytes(whole + whole)
    with pytest.raises(errors.IntegrityError, match=r"record 3 is of sample 0; expected ascending"):
        list(made.scanned(FORMAT, tmp_path / "out.rec"))


def test_a_count_of_labels_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "x.rec").write_bytes(_frame(2**32 - 1, 0, 0, [], b"image"))
    with pytest.raises(errors.IntegrityError, match="claims to have 4294967295 labels"):
        list(made.scanned(FORMAT, tmp_path / "x.rec"))


def _survives(path: Path, content: bytes) -> int | None:
    """Scan and read all there is; only packio's errors may come. Return the number of records."""
    path.write_bytes(content)
    try:
        entries = list(made.scanned(FORMAT, path))
    except errors.PackioError as error:
        assert str(path) in str(error)  # noqa: PT017 (some survive)
        return None
    for entry in entries:
        assert 0 <= entry.offset <= entry.offset + entry.length <= len(content)
        if entry.split:
            FORMAT.unsplit(content[entry.offset : entry.offset + entry.length])
    return len(entries)


@pytest.mark.parametrize("records", long.after(1, (12, 40)))
def test_every_truncation_is_an_error_or_between_records(tmp_path: Path, records: int) -> None:
    _write(tmp_path / "out.rec", _stuffed(records))
    whole = (tmp_path / "out.rec").read_bytes()
    begins = {begin: i for i, (begin, _, _, _) in enumerate(_parse(whole))}
    for length in range(len(whole)):
        assert _survives(tmp_path / "cut.rec", whole[:length]) == begins.get(length)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from((_MAGIC, b"\x18\0\0\0", b"\0\0\0\x20", b"\0\0\0\x60", bytes(24)))))
def test_frames_in_any_order_crash_nothing(tmp_path: Path, pieces: list[bytes]) -> None:
    _survives(tmp_path / "x.rec", _MAGIC + b"".join(pieces))


@settings(max_examples=300)
@given(st.lists(st.sampled_from((_MAGIC, b"", b"\0", b"12345678")), max_size=20))
def test_unsplit_undoes_frames(pieces: list[bytes]) -> None:
    header, data = struct.pack("<IfQQ", 0, 1.0, 2, 0), b"".join(pieces)
    raw = b"".join(framing.frames(header, data))
    assert FORMAT.unsplit(raw) == data
    assert [image for _, _, _, image in _parse(raw)] == [data]


def test_damaged_split_records_are_errors() -> None:
    header = struct.pack("<IfQQ", 0, 1.0, 2, 0)
    raw = b"".join(framing.frames(header, b"1234" + _MAGIC * 3 + b"12345"))
    for length in range(len(raw)):
        for damaged in (raw[:length], raw[len(raw) - length :], raw + raw[:length] + b"\0"):
            with pytest.raises(errors.IntegrityError, match="split record"):
                FORMAT.unsplit(damaged)
