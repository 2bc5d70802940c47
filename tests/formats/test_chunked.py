"""N5 and Zarr, checked against others' libraries: each reads what the other writes."""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chunked
import numpy as np
import pytest
from chunked import KINDS, SIZES, Kind

from packio import errors
from packio.formats.blobs import spool
from packio.formats.chunks import layout

_KINDS = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
_PEERS = pytest.mark.parametrize(
    ("kind", "peer"),
    [
        pytest.param(kind, peer, id=f"{kind.header} {name}")
        for kind in KINDS.values()
        for name, peer in kind.peers.items()
    ],
)
_CREATORS = pytest.mark.parametrize(
    ("kind", "create"),
    [
        pytest.param(kind, create, id=f"{kind.header} {name}")
        for kind in KINDS.values()
        for name, create in kind.creators.items()
    ],
)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_BLOCK_BYTES", 1000)


# Writing


@_PEERS
def test_others_read_the_samples(
    tmp_path: Path, kind: Kind, peer: Callable[[Path, str], Any]
) -> None:
    records, path = chunked.records(SIZES), tmp_path / kind.name
    kind.write(path, records)
    data, offsets, length = (peer(path, n) for n in ("data", "offsets", "length"))
    assert (data.dtype, offsets.dtype, length.dtype) == (np.uint8, np.int64, np.int64)
    assert [data[o : o + n].tobytes() for o, n in zip(offsets, length, strict=False)] == [
        record.data for record in records
    ]
    assert offsets[-1] == len(data)


@_PEERS
def test_others_read_the_rest(tmp_path: Path, kind: Kind, peer: Callable[[Path, str], Any]) -> None:
    records = chunked.full(SIZES)
    kind.write(tmp_path / kind.name, records)
    get = functools.partial(peer, tmp_path / kind.name)
    assert get("label").dtype == np.float32
    assert np.array_equal(get("label"), np.stack([np.asarray(r.label) for r in records]))
    assert np.array_equal(get("boxes"), np.concatenate([r.boxes for r in records]))
    assert np.array_equal(get("box_labels"), np.concatenate([r.box_labels for r in records]))
    assert get("box_offsets").tolist() == np.cumsum([0] + [i % 3 for i in range(14)]).tolist()
    for name, values in (("key", [r.key for r in records]), ("meta", [r.meta for r in records])):
        data, offsets = get(f"{name}_data").tobytes(), get(f"{name}_offsets")
        assert [data[a:b] for a, b in itertools.pairwise(offsets)] == values
    masks = get("mask_data"), get("mask_offsets"), get("mask_length")
    found = [masks[0][o : o + n].tobytes() for o, n in zip(*masks[1:], strict=False)]
    assert found == [r.mask_data for r in records]


@_PEERS
def test_others_read_int_labels(
    tmp_path: Path, kind: Kind, peer: Callable[[Path, str], Any]
) -> None:
    values = [0, -1, 2**62, -(2**63)]
    kind.write(tmp_path / kind.name, chunked.records([1] * 4, label=lambda i: values[i]))
    assert peer(tmp_path / kind.name, "label").tolist() == values


@_KINDS
def test_samples_lie_in_one_block(tmp_path: Path, kind: Kind) -> None:
    written = kind.write(tmp_path / kind.name, chunked.records([600, 600, 400, 5]))
    assert written.files == tuple(f"data/{kind.blocks}{i}" for i in range(3))
    places = [(0, 0), (1, 0), (1, 600), (2, 0)]
    assert list(zip(*written.places["image"][:2], strict=True)) == [
        (file, kind.begin + at) for file, at in places
    ]
    first = (tmp_path / kind.name / written.files[0]).read_bytes()
    assert first[kind.begin + 600 :] == bytes(400)


@_KINDS
def test_a_sample_larger_than_a_block_makes_all_blocks_larger(tmp_path: Path, kind: Kind) -> None:
    kind.write(tmp_path / kind.name, chunked.records([900, 5000, 900, 900]))
    for peer in kind.peers.values():
        offsets = peer(tmp_path / kind.name, "offsets").tolist()
        assert offsets == [0, 5000, 10000, 10900, 11800]
    names = [f"data/{kind.blocks}{i}" for i in (0, 1, 2, 2)]
    assert [e.file for e in kind.scan(tmp_path / kind.name)] == names


@_KINDS
@pytest.mark.parametrize("sizes", [[], [0], [0, 0, 0]])
def test_nothing_is_written_as_nothing(tmp_path: Path, kind: Kind, sizes: list[int]) -> None:
    path = tmp_path / kind.name
    kind.write(path, chunked.records(sizes))
    assert [chunked.read(path, e) for e in kind.scan(path)] == [b"" for _ in sizes]
    for name in kind.peers.keys() - ({"z5py"} if kind.header == "zarr" else set()):
        assert kind.peers[name](path, "offsets").tolist() == [0] * (len(sizes) + 1)


@_KINDS
def test_labels_of_some_samples_are_an_error(tmp_path: Path, kind: Kind) -> None:
    a, b = chunked.full([5, 5])
    with pytest.raises(errors.OutputError, match="all or none"):
        kind.write(tmp_path / kind.name, [a, b.replaced(label=None)])


@_KINDS
def test_a_value_that_reads_back_differently_is_an_error(
    tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = spool.Blob.copy

    def lying(self: Any, target: int, *where: int) -> None:
        copy(self, target, *where)
        os.pwrite(target, b"\0", kind.begin + 30)

    monkeypatch.setattr(spool.Blob, "copy", lying)
    with pytest.raises(errors.OutputError, match="/0: record 1 reads back differently"):
        kind.write(tmp_path / kind.name, chunked.records([30, 40]))


# Scanning


@_KINDS
def test_scan_finds_what_was_written(tmp_path: Path, kind: Kind) -> None:
    records, path = chunked.full(SIZES * 3), tmp_path / kind.name
    written = kind.write(path, records)
    found = kind.scan(path)
    ranges = zip(*written.places["image"][:3], strict=True)
    assert [e[1:4] for e in found] == [(written.files[f], o, n) for f, o, n in ranges]
    masks = zip(*written.places["mask"][:3], strict=True)
    assert [e.mask for e in found] == [(written.files[f], o, n) for f, o, n in masks]
    for entry, record in zip(found, records, strict=True):
        assert entry.mask is not None
        assert record.boxes is not None
        assert record.box_labels is not None
        assert chunked.read(path, entry) == record.data
        assert chunked.read(path, entry.mask) == record.mask_data
        assert (entry.key, entry.meta) == (record.key, record.meta)
        assert entry.label == tuple(np.asarray(record.label).tolist())
        assert entry.boxes == tuple(map(tuple, record.boxes.tolist()))
        assert entry.box_labels == tuple(record.box_labels.tolist())


@_CREATORS
@pytest.mark.parametrize("dtype", ["int32", "uint64", "int64"])
def test_scan_finds_what_others_write(
    tmp_path: Path, kind: Kind, create: Callable[..., None], dtype: str
) -> None:
    data, path = np.arange(1, 101, dtype=np.uint8), tmp_path / kind.name
    create(path, "data", data, (40,))
    create(path, "offsets", np.array([3, 17, 40, 80, 99], dtype), (2,))
    create(path, "label", np.arange(1, 13, dtype=np.float32).reshape(4, 3), (3, 2))
    found = kind.scan(path)
    assert [chunked.read(path, e) for e in found] == [
        data[a:b].tobytes() for a, b in ((3, 17), (17, 40), (40, 80), (80, 99))
    ]
    assert [e.label for e in found] == [(1, 2, 3), (4, 5, 6), (7, 8, 9), (10, 11, 12)]


@_CREATORS
def test_a_sample_in_two_blocks_is_refused(
    tmp_path: Path, kind: Kind, create: Callable[..., None]
) -> None:
    create(tmp_path / kind.name, "data", np.ones(100, np.uint8), (40,))
    create(tmp_path / kind.name, "offsets", np.array([0, 30, 50, 100]), (4,))
    with pytest.raises(errors.NotAPackError, match="sample 1 lies in two blocks of 40 bytes"):
        kind.scan(tmp_path / kind.name)


@_CREATORS
def test_one_array_is_refused_with_the_way_out(
    tmp_path: Path, kind: Kind, create: Callable[..., None]
) -> None:
    create(tmp_path / kind.name, "data", np.ones(100, np.uint8), (100,))
    with pytest.raises(errors.NotAPackError, match="one array, not a group"):
        kind.scan(tmp_path / kind.name / "data")


@_KINDS
def test_data_without_offsets_and_other_things_are_refused(tmp_path: Path, kind: Kind) -> None:
    next(iter(kind.creators.values()))(tmp_path / "a", "data", np.ones(100, np.uint8), (100,))
    with pytest.raises(errors.NotAPackError, match="no array `offsets`"):
        kind.scan(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "c").touch()
    for name in ("b", "c", "none"):
        with pytest.raises(errors.NotAPackError, match=f"no {kind.header} array `data`"):
            kind.scan(tmp_path / name)


@_KINDS
def test_a_newer_version_is_refused(tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / kind.name
    kind.write(path, chunked.records([5]))
    metadata = path / kind.metadata
    metadata.write_text(metadata.read_text().replace(r"\"version\":1", r"\"version\":99"))
    with pytest.raises(errors.VersionError, match="newer packio"):
        kind.scan(path)


# Damage


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "_BLOCK_BYTES", 1000)
        for kind in KINDS.values():
            kind.write(path / kind.name, chunked.full(SIZES))
    return path


def _scan_frugally(kind: Kind, path: Path) -> str | None:
    """Scan what may be damaged; returns the error. No other than packio's, and no memory for it."""
    tracemalloc.start()
    try:
        kind.scan(path)
        return None
    except errors.PackioError as error:
        return str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 20 << 20


@_KINDS
def test_every_missing_or_short_file_is_told(wholes: Path, tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / kind.name
    shutil.copytree(wholes / kind.name, path)
    for name in chunked.digests(path):
        file = path / name
        content = file.read_bytes()
        for damaged in (None, b"", content[: len(content) // 2], content + b"x"):
            file.unlink()
            if damaged is not None:
                file.write_bytes(damaged)
            error = _scan_frugally(kind, path)
            if name != kind.metadata or damaged is not None:  # a group may have none
                assert error is not None
                assert name.split("/")[0] in error
            file.write_bytes(content)
    assert _scan_frugally(kind, path) is None


@_KINDS
def test_a_pipe_in_place_of_a_file_is_told(wholes: Path, tmp_path: Path, kind: Kind) -> None:
    names = (f"data/{kind.blocks}0", f"label/{kind.metadata}", f"offsets/{kind.blocks}0")
    for number, name in enumerate(names):
        path = tmp_path / str(number)
        shutil.copytree(wholes / kind.name, path)
        (path / name).unlink()
        os.mkfifo(path / name)
        with pytest.raises(errors.PackioError, match=name):
            kind.scan(path)


_ODD: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**57, 2**70, 10**400, 1e300, "x", [], {}, [1], [-1], [2**57],
    [1, 2], [1.5], [True], [[1]], [None], {"a": 1}, [0, 2**57], [2**40, 1], [10**6, 10**6],
    "int64", [{}], "bytes", ["bytes"], "default", "v2", {"name": []}, {"name": "v2"},
]  # fmt: skip


@pytest.mark.long
@_KINDS
@pytest.mark.parametrize("name", ["", "data", "offsets", "label", "mask_data", "boxes"])
def test_no_value_of_the_metadata_is_believed(
    wholes: Path, tmp_path: Path, kind: Kind, name: str
) -> None:
    path = tmp_path / kind.name
    shutil.copytree(wholes / kind.name, path)
    file = path / name / kind.metadata
    for changed in chunked.mutations(json.loads(file.read_text()), _ODD):
        file.write_text(json.dumps(changed))
        _scan_frugally(kind, path)
    shape = b'{"dimensions": NaN, "shape": NaN}'
    for text in (b"\xff", b"[" * 100_000, shape, b'{"a": 1' + b"0" * 5000 + b"}"):
        file.write_bytes(text)
        assert _scan_frugally(kind, path) is not None or name == ""


@_KINDS
@pytest.mark.parametrize(
    ("name", "values", "what"),
    [
        ("offsets", [5, 3, 9], "do not ascend"),
        ("offsets", [0, 2**62, 9], "do not ascend"),
        ("offsets", [-5, 3, 9], "do not ascend"),
        ("length", [3, 7], "length does not fit"),
        ("length", [-1, 6], "length does not fit"),
        ("label", [1, 2, 3], "label is"),
        ("key_offsets", [0, 1000, 1000], "key_offsets do not ascend"),
    ],
)
def test_numbers_that_point_outside_are_told(
    tmp_path: Path, kind: Kind, name: str, values: list[int], what: str
) -> None:
    path = tmp_path / kind.name
    kind.write(path, chunked.records([3, 6]))
    shutil.rmtree(path / name)
    kind.creators["tensorstore"](path, name, np.array(values), (10,))
    with pytest.raises(errors.IntegrityError, match=what):
        kind.scan(path)


@_KINDS
def test_own_arrays_that_are_gone_are_missed(tmp_path: Path, kind: Kind) -> None:
    kind.write(tmp_path / kind.name, chunked.records([3, 6]))
    shutil.rmtree(tmp_path / kind.name / "length")
    with pytest.raises(errors.IntegrityError, match="no array `length`"):
        kind.scan(tmp_path / kind.name)
