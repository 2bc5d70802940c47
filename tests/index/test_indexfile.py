"""The index file: any safetensors reader opens it, and no damage to it passes unnoticed."""

from __future__ import annotations

import json
import os
import random
import struct
from typing import TYPE_CHECKING, Any

import long
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from packio.errors import (
    IntegrityError,
    KeyNotFoundError,
    NotAPackError,
    PackioError,
    ReadError,
    VersionError,
)
from packio.index import indexfile, layout
from packio.index.columns import join_values
from packio.index.indexfile import BLOCK, Index, Keys, NumberColumns

if TYPE_CHECKING:
    import pathlib

METADATA = {"version": 2, "format": "lmdb", "classes": ["cat", "é\udcff"]}
KEYS = [b"cat/1.jpg", b"cat/10.jpg", b"", b"\xff\xfe\n", "é".encode()]


def _columns(keys: list[bytes], seed: int = 0) -> dict[str, np.ndarray]:
    draw, n = np.random.default_rng(seed), len(keys)
    columns = {
        name: draw.integers(0, 200, n).astype(code) for name, code in layout.PER_SAMPLE.items()
    }
    columns["label"] = draw.integers(0, 1000, n)
    columns["key_data"], columns["key_offsets"] = join_values(keys)
    columns["key_order"] = np.array(sorted(range(n), key=keys.__getitem__), np.uint32)
    columns["file_path_data"], columns["file_path_offsets"] = join_values(
        [b"data.mdb", b"labels.tsv"]
    )
    columns["file_bytes"] = np.array([1 << 40, 7])
    columns["file_digest"] = draw.integers(0, 256, (2, 32), np.uint8)
    return columns


def _made(path: pathlib.Path, keys: list[bytes] = KEYS) -> tuple[bytes, dict[str, np.ndarray]]:
    columns = _columns(keys)
    indexfile.write(path, columns, METADATA)
    return path.read_bytes(), columns


def _everything(path: pathlib.Path) -> dict[str, Any]:
    """All an index says, each column touched."""
    index = Index(path)
    said: dict[str, Any] = {n: index.column(n).array().tobytes() for n in index.column_names}
    said["metadata"] = index.metadata
    return said


def _assemble(
    header: dict[str, Any] | bytes, data: bytes, checksums: np.ndarray | None = None
) -> bytes:
    """An index with this header and a right checksum of it: damage that is no accident."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    head = struct.pack("<Q", len(text)) + text
    if checksums is not None and not isinstance(header, bytes):
        begin, end = header["checksums"]["data_offsets"]
        checksums[0] = indexfile.crc32c(head)
        data = data[:begin] + checksums.tobytes() + data[end:]
    return head + data


def _parts(whole: bytes) -> tuple[dict[str, Any], bytes, np.ndarray]:
    """Header, data and checksums of an index, by an own parser."""
    (size,) = struct.unpack_from("<Q", whole)
    header, data = json.loads(whole[8 : 8 + size]), whole[8 + size :]
    begin, end = header["checksums"]["data_offsets"]
    return header, data, np.frombuffer(data[begin:end], "<u4").copy()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """An index of 10^6 samples: each of its columns is longer than one checksum covers."""
    n = 1_000_000
    path = tmp_path_factory.mktemp("large") / "index.packio"
    columns = _columns([b"x"])
    rows = np.arange(n)
    columns |= {name: (rows % 199).astype(code) for name, code in layout.PER_SAMPLE.items()} | {
        "label": rows % 1000,
        "key_order": rows.astype(np.uint32),
    }
    width = len(b"c/%07d.jpg" % 0)
    text = b"".join(b"c/%07d.jpg" % i for i in range(n))
    columns["key_data"] = np.frombuffer(text, np.uint8)
    columns["key_offsets"] = np.arange(n + 1) * width
    indexfile.write(path, columns, METADATA)
    return path


def test_safetensors_reads_the_same_columns_and_metadata(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "index.packio"
    _, columns = _made(path)
    loaded = safetensors.numpy.load_file(path)
    assert set(loaded) == {*columns, "checksums"}
    for name, column in columns.items():
        assert loaded[name].dtype == column.dtype, name
        np.testing.assert_array_equal(loaded[name], column)
    with safetensors.safe_open(path, "numpy") as file:
        assert set(file.metadata()) == {"packio"}
        assert json.loads(file.metadata()["packio"]) == METADATA


def test_an_index_gives_back_what_was_written(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "index.packio"
    _, columns = _made(path)
    index = Index(path)
    for name, column in columns.items():
        np.testing.assert_array_equal(index.column(name).array(), column)
        assert not index.column(name).array().flags.writeable
    assert index.metadata == METADATA
    assert list(Keys(index)) == [os.fsdecode(k) for k in KEYS]
    assert [f[:2] for f in index.files()] == [("data.mdb", 1 << 40), ("labels.tsv", 7)]
    assert [f[2] for f in index.files()] == [bytes(d) for d in columns["file_digest"]]


def test_columns_are_aligned_to_their_items(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "index.packio"
    _made(path)
    index = Index(path)
    for name in index.column_names:
        assert index.column(name).array().flags.aligned, name


def test_the_same_columns_give_the_same_bytes_in_any_order(tmp_path: pathlib.Path) -> None:
    columns = _columns(KEYS)
    first = indexfile.write(tmp_path / "a", columns, METADATA)
    again = indexfile.write(
        tmp_path / "b", dict(reversed(columns.items())), dict(reversed(METADATA.items()))
    )
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert first == again == Index(tmp_path / "a").digest
    columns["label"] = columns["label"] + 1
    assert indexfile.write(tmp_path / "c", columns, METADATA) != first


@pytest.mark.parametrize("step", long.after(1, (7, 1)))
def test_no_turned_bit_passes_unnoticed(tmp_path: pathlib.Path, step: int) -> None:
    path = tmp_path / "index.packio"
    whole, _ = _made(path)
    damaged = tmp_path / "damaged"
    for position in range(0, len(whole), step):
        for bit in {position % 8, 7 - position % 5}:
            turned = bytearray(whole)
            turned[position] ^= 1 << bit
            damaged.write_bytes(turned)
            with pytest.raises(PackioError):
                _everything(damaged)
    path.write_bytes(whole)
    _everything(path)


def test_only_the_block_touched_is_checked(large: pathlib.Path) -> None:
    whole = large.read_bytes()
    (size,) = struct.unpack_from("<Q", whole)
    begin, end = json.loads(whole[8 : 8 + size])["image/offset"]["data_offsets"]
    damaged = large.with_name("one_block")
    damaged.write_bytes(whole)
    with damaged.open("r+b") as file:
        file.seek(8 + size + begin + 3 * BLOCK + 17)  # a byte of the fourth block
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    column = Index(damaged).column("image/offset")
    rows = BLOCK // 8  # of one block
    assert len(column) == (end - begin) // 8
    column.span(0, 3 * rows)
    column.take(np.array([0, 3 * rows - 1, 4 * rows]))
    column.span(4 * rows, len(column))
    with pytest.raises(IntegrityError, match="column image/offset"):
        column.span(3 * rows - 1, 3 * rows + 1)
    with pytest.raises(IntegrityError, match="column image/offset"):
        column.take(np.array([3 * rows + 5]))
    with pytest.raises(IntegrityError, match="column image/offset"):
        column.array()
    damaged.unlink()


def test_rows_that_are_not_there_are_an_error(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "index.packio"
    _made(path)
    column = Index(path).column("image/offset")
    for start, stop in ((-1, 0), (0, 6), (3, 2), (1 << 62, 1 << 63), (0, 1 << 62)):
        with pytest.raises(IntegrityError):
            column.span(start, stop)
    assert len(column.span(5, 5)) == 0


def test_a_truncated_index_is_refused_at_any_length(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "index.packio"
    whole, _ = _made(path)
    for length in (*range(0, len(whole), 7), len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(PackioError):
            Index(path)


@pytest.mark.parametrize("added", [b"\0", b"\n", bytes(4096), b"x" * 63])
def test_an_index_that_was_appended_to_is_refused(tmp_path: pathlib.Path, added: bytes) -> None:
    path = tmp_path / "index.packio"
    whole, _ = _made(path)
    path.write_bytes(whole + added)
    with pytest.raises(IntegrityError, match="appended"):
        Index(path)


_OTHER_FILES = {
    "empty": b"",
    "seven bytes": b"1234567",
    "huge header": struct.pack("<Q", 1 << 63) + b"{}" + bytes(100),
    "header as long as can be": b"\xff" * 64,
    "header of the whole file": struct.pack("<Q", 8) + b"{}      ",
    "header beyond the limit": struct.pack("<Q", 100_000_001) + b"{",
    "deep header": struct.pack("<Q", 100_000) + b'{"a":' + b"[" * 99_995,
    "header is a list": struct.pack("<Q", 8) + b"[1,2,3 ]",
    "header is not text": struct.pack("<Q", 8) + b'{"\xff\xfe":1',
    "jpeg": b"\xff\xd8\xff\xe0" + bytes(1000),
    "json": b'{"version": 1}',
}


@pytest.mark.parametrize("content", _OTHER_FILES.values(), ids=_OTHER_FILES.keys())
def test_other_files_are_no_index(tmp_path: pathlib.Path, content: bytes) -> None:
    path = tmp_path / "index.packio"
    path.write_bytes(content)
    with pytest.raises(NotAPackError):
        Index(path)


def test_garbage_is_no_index(tmp_path: pathlib.Path) -> None:
    draw, path = random.Random(1), tmp_path / "index.packio"
    for _ in range(200):
        start = struct.pack("<Q", draw.choice((0, 2, 100, 1 << 40))) + b"{" * draw.randrange(2)
        path.write_bytes(start + draw.randbytes(draw.randrange(300)))
        with pytest.raises(PackioError):
            Index(path)


def test_an_ordinary_safetensors_file_is_no_index(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.safetensors"
    for metadata in (None, {"format": "pt"}, {"packio": "not JSON"}, {"packio": "[]"}):
        safetensors.numpy.save_file({"weight": np.ones((2, 2))}, path, metadata)
        with pytest.raises(NotAPackError):
            Index(path)


def test_what_is_not_there_is_a_read_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ReadError):
        Index(tmp_path / "missing")
    with pytest.raises(ReadError):
        Index(tmp_path)


@pytest.mark.parametrize("version", [3, 99, 1 << 80])
def test_a_newer_version_is_refused_with_the_way_out(tmp_path: pathlib.Path, version: int) -> None:
    path = tmp_path / "index.packio"
    indexfile.write(path, _columns(KEYS), {**METADATA, "version": version})
    with pytest.raises(VersionError, match="pip install -U packio"):
        Index(path)


@pytest.mark.parametrize("version", [0, -1, "1", None, 1.5, True, [1]])
def test_a_version_that_is_none_is_refused(tmp_path: pathlib.Path, version: Any) -> None:
    path = tmp_path / "index.packio"
    indexfile.write(path, _columns(KEYS), {**METADATA, "version": version})
    with pytest.raises(NotAPackError, match="version"):
        Index(path)


@pytest.mark.parametrize("name", sorted(layout.REQUIRED))
def test_a_column_that_is_missing_or_odd_is_refused(tmp_path: pathlib.Path, name: str) -> None:
    path = tmp_path / "index.packio"
    columns = _columns(KEYS)
    whole = columns.pop(name)
    odd = [whole.astype(np.float32), whole[:, None], np.zeros(0, whole.dtype)]
    if name not in ("key_data", "file_path_data"):  # their lengths are in the offsets
        odd += [whole[:-1], np.concatenate([whole, whole])]
    indexfile.write(path, columns, METADATA)
    with pytest.raises(NotAPackError, match=name):
        Index(path)
    for array in odd:
        indexfile.write(path, {**columns, name: array}, METADATA)
        with pytest.raises(PackioError):
            _everything_and_keys(path)


def _everything_and_keys(path: pathlib.Path) -> None:
    index = Index(path)
    index.files()
    list(Keys(index))


@pytest.mark.parametrize(
    "label", [np.zeros(4, np.int64), np.zeros(5, np.float32), np.zeros((5, 2, 1), np.int64)]
)
def test_labels_of_another_shape_are_refused(tmp_path: pathlib.Path, label: np.ndarray) -> None:
    path = tmp_path / "index.packio"
    indexfile.write(path, {**_columns(KEYS), "label": label}, METADATA)
    with pytest.raises(NotAPackError, match="label"):
        Index(path)


def test_columns_of_later_versions_are_ignored(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "index.packio"
    later = {"depth": np.zeros((5, 2, 3), np.float64), "valid": np.ones(5, bool)}
    later["single"] = np.array(3, np.int16)
    indexfile.write(path, {**_columns(KEYS), **later}, METADATA)
    assert len(Index(path)) == len(KEYS)


_HEADERS: dict[str, tuple[str, Any]] = {
    "an endless shape": ("shape", [0, 1 << 70]),
    "a negative shape": ("shape", [-1, -5]),
    "an infinite shape": ("shape", [float("inf")]),
    "a shape of strings": ("shape", ["5"]),
    "many dimensions": ("shape", [1] * 70),
    "a fractional offset": ("data_offsets", [0.0, 40.0]),
    "offsets backwards": ("data_offsets", [40, 0]),
    "three offsets": ("data_offsets", [0, 40, 41]),
    "an unknown dtype": ("dtype", "F8_E4M3"),
    "a dtype of another width": ("dtype", "U16"),
    "no shape": ("shape", None),
}


@pytest.mark.parametrize("change", _HEADERS.values(), ids=_HEADERS.keys())
def test_a_header_that_does_not_add_up_is_refused(
    tmp_path: pathlib.Path, change: tuple[str, Any]
) -> None:
    path = tmp_path / "index.packio"
    whole, _ = _made(path)
    for name in ("image/offset", "checksums", "file_digest"):
        header, data, checksums = _parts(whole)
        header[name][change[0]] = change[1]
        if name == "checksums" and change[0] == "data_offsets":
            path.write_bytes(_assemble(header, data))
        else:
            path.write_bytes(_assemble(header, data, checksums))
        with pytest.raises(PackioError):
            Index(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("key_offsets", [0, 9, 1 << 62, 5, -3, 2]), ("key_order", [0, 1, 2, 3, 1 << 31])],
)
def test_numbers_that_lead_nowhere_are_an_error(
    tmp_path: pathlib.Path, name: str, value: list[int]
) -> None:
    path = tmp_path / "index.packio"
    columns = _columns(KEYS)
    indexfile.write(path, {**columns, name: np.array(value, columns[name].dtype)}, METADATA)
    index = Index(path)
    with pytest.raises(IntegrityError):
        [*Keys(index), *map(index.find, [*KEYS, b"\xff\xff"])]


@pytest.mark.parametrize("name", [b"/etc/passwd", b"../x", b"a/../../x", b"", b"a\0b", b".."])
def test_files_outside_the_pack_are_refused(tmp_path: pathlib.Path, name: bytes) -> None:
    path = tmp_path / "index.packio"
    columns = _columns(KEYS)
    columns["file_path_data"], columns["file_path_offsets"] = join_values([b"data.mdb", name])
    indexfile.write(path, columns, METADATA)
    with pytest.raises(IntegrityError):
        Index(path).files()


def test_every_key_is_found_and_no_other(tmp_path: pathlib.Path) -> None:
    draw = random.Random(2)
    some = {draw.randbytes(draw.randrange(1, 12)) for _ in range(100_000)}
    some |= {b"", b"\0", b"\0\0", b"\xff", b"\xff" * 300, b"a", b"a/", b"a/b", b"a/b.jpg"}
    keys = list(some)
    draw.shuffle(keys)
    path = tmp_path / "index.packio"
    _made(path, keys)
    index = Index(path)
    for row in [
        *draw.sample(range(len(keys)), 2000),
        *map(keys.index, (b"", b"a/b", b"\xff" * 300)),
    ]:
        assert index.find(keys[row]) == row
    for key in (draw.randbytes(13) for _ in range(500)):
        with pytest.raises(KeyNotFoundError):
            index.find(key)
    for key in sorted(some)[:: len(some) // 500]:
        for near in (key[:-1], key + b"\0", b"\0" + key):
            if near not in some:
                with pytest.raises(KeyNotFoundError):
                    index.find(near)


def test_an_index_of_nothing_finds_nothing(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "index.packio"
    _made(path, [])
    index = Index(path)
    assert len(index) == 0
    assert list(Keys(index)) == []
    with pytest.raises(KeyNotFoundError):
        index.find(b"")


def test_a_sample_takes_at_most_48_bytes_and_its_key(large: pathlib.Path) -> None:
    index = Index(large)
    keys = sum(index.column(n).array().nbytes for n in index.column_names if n.startswith("key_"))
    assert large.stat().st_size <= 48 * len(index) + keys


def test_writing_leaves_no_temporary_file_where_it_fails(tmp_path: pathlib.Path) -> None:
    target = tmp_path / "index.packio"
    target.mkdir()
    with pytest.raises(OSError, match="directory"):
        indexfile.write(target, _columns(KEYS), METADATA)
    assert os.listdir(tmp_path) == ["index.packio"]


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("split", np.zeros(4, np.uint8)),
        ("split", np.zeros(5, np.int64)),
        ("meta_offsets", np.zeros(5, np.int64)),
        ("box_offsets", np.zeros(7, np.int64)),
        ("boxes", np.zeros((2, 3), np.float32)),
        ("boxes/labels", np.zeros(3, np.int64)),
        ("depth/offset", np.zeros(4, np.int64)),
        ("depth/crc32c", np.zeros(5, np.int64)),
        ("mask/height", np.zeros(6, np.uint32)),
    ],
)
def test_an_optional_column_of_another_shape_is_refused(
    tmp_path: pathlib.Path, name: str, column: np.ndarray
) -> None:
    count = len(KEYS)
    assert count == 5
    good: dict[str, np.ndarray] = {
        "meta_data": np.zeros(0, np.uint8), "meta_offsets": np.zeros(6, np.int64),
        "boxes": np.zeros((2, 4), np.float32), "box_offsets": np.zeros(6, np.int64),
    }  # fmt: skip
    path = tmp_path / "index.packio"
    indexfile.write(path, {**_columns(KEYS), **good}, METADATA)
    Index(path)
    indexfile.write(path, {**_columns(KEYS), **good, name: column}, METADATA)
    with pytest.raises(NotAPackError, match=name):
        Index(path)


@pytest.mark.parametrize("part", [1, 3, 8, 1 << 17])
def test_rows_are_those_of_the_columns(
    tmp_path: pathlib.Path, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexfile, "_PART", part)
    _made(tmp_path / "i", KEYS)
    index = Index(tmp_path / "i")
    names = ("image/offset", "image/crc32c", "image/encoding")
    columns = [index.column(name).array().tolist() for name in names]
    numbers = NumberColumns([index.column(name) for name in names], index)
    for _ in range(2):
        for i in (*range(len(KEYS)), *reversed(range(len(KEYS)))):
            assert list(numbers(i)) == [column[i] for column in columns]
            assert index.key(i) == KEYS[i]


def test_damage_is_told_where_it_is_first_touched(tmp_path: pathlib.Path) -> None:
    count = 2 * indexfile._PART
    path = tmp_path / "i"
    _made(path, [b"%07d" % i for i in range(count)])
    data = bytearray(path.read_bytes())
    header, start = layout.header_of(bytes(data), path)
    start += header["image/offset"]["data_offsets"][0]
    data[start + 8 * (indexfile._PART + 5)] ^= 1
    path.write_bytes(data)
    index = Index(path)
    numbers = NumberColumns([index.column("image/offset"), index.column("image/length")], index)
    next(numbers(indexfile._PART - 1))
    for _ in range(2):
        with pytest.raises(IntegrityError, match="column image/offset"):
            numbers(count - 1)
    assert index.key(count - 1) == b"%07d" % (count - 1)
