"""Zarr 3, checked against zarr-python, tensorstore and z5py: each reads what the other writes.

What N5 and Zarr share is checked in test_format_n5, too.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import random
import shutil
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import made
import numpy as np
import pytest

from packio import errors
from packio.formats import Written
from packio.formats import zarr as container
from packio.formats.chunks import layout as chunks_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

zarr: Any = pytest.importorskip("zarr", minversion="3")
tensorstore: Any = pytest.importorskip("tensorstore")
z5py: Any = pytest.importorskip("z5py")

_SIZES = [0, 10, 600, 500, 0, 999, 1, 0, 1000, 0, 3, 700, 7, 0]


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks_layout, "_BLOCK_BYTES", 1000)


def _records(sizes: Iterable[int], **fields: Any) -> list[made.Made]:
    """Records of random bytes; fields are functions of their numbers."""
    rng = random.Random(0)
    records = []
    for i, size in enumerate(sizes):
        values = {name: make(i) for name, make in fields.items()}
        records.append(
            made.record(rng.randbytes(size), **{"label": i % 7, "key": b"%d.jpg" % i, **values})
        )
    return records


def _full(sizes: Iterable[int]) -> list[made.Made]:
    """Records that have all there is; 14 of them make no array square."""
    return _records(
        sizes,
        label=lambda i: np.array([i, i + 0.5, -i], np.float32),
        key=lambda i: b"\xff\n%d" % i,
        mask=lambda i: bytes([i]) * (i * 37),
        meta=lambda i: b'{"n":%d}' % i,
        boxes=lambda i: np.arange(4 * (i % 3), dtype=np.float32).reshape(-1, 4) + i,
        box_labels=lambda i: np.arange(i % 3) - i,
    )


def _write(path: Path, records: list[made.Made], step: int = 64, **options: Any) -> Written:
    size = sum(len(record.data) for record in records)
    writer = made.writer(container.FORMAT, path, len(records), size=size, **options)
    try:
        for i in range(0, len(records), step):
            writer.add(records[i : i + step])
        return writer.close()
    finally:
        writer.abort()


def _read(path: Path, entry: made.Found | tuple[str, int, int]) -> bytes:
    file, offset, length = entry[1:4] if isinstance(entry, made.Found) else entry
    data = (path / file).read_bytes()[offset : offset + length]
    assert len(data) == length
    return data


def _digests(path: Path) -> dict[str, str]:
    files = [file for file in path.rglob("*") if file.is_file()]
    return {str(f.relative_to(path)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def _by_zarr(path: Path, name: str) -> Any:
    return zarr.open_group(str(path), mode="r")[name][...]


def _by_z5py(path: Path, name: str) -> Any:
    return z5py.File(str(path), "r")[name][:]


def _by_tensorstore(path: Path, name: str) -> Any:
    store = {"driver": "file", "path": str(path / name)}
    return tensorstore.open({"driver": "zarr3", "kvstore": store}).result().read().result()


_PEERS = pytest.mark.parametrize(
    "peer", [_by_zarr, _by_tensorstore, _by_z5py], ids=["zarr", "tensorstore", "z5py"]
)


# Writing


@_PEERS
def test_others_read_the_samples(tmp_path: Path, peer: Callable[[Path, str], Any]) -> None:
    records = _records(_SIZES)
    _write(tmp_path / "a.zarr", records)
    data, offsets, length = (peer(tmp_path / "a.zarr", n) for n in ("data", "offsets", "length"))
    assert (data.dtype, offsets.dtype, length.dtype) == (np.uint8, np.int64, np.int64)
    assert [data[o : o + n].tobytes() for o, n in zip(offsets, length, strict=False)] == [
        record.data for record in records
    ]
    assert offsets[-1] == len(data)


@_PEERS
def test_others_read_the_rest(tmp_path: Path, peer: Callable[[Path, str], Any]) -> None:
    records = _full(_SIZES)
    _write(tmp_path / "a.zarr", records)
    get = functools.partial(peer, tmp_path / "a.zarr")
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
def test_others_read_int_labels(tmp_path: Path, peer: Callable[[Path, str], Any]) -> None:
    values = [0, -1, 2**62, -(2**63)]
    _write(tmp_path / "a.zarr", _records([1] * 4, label=lambda i: values[i]))
    assert peer(tmp_path / "a.zarr", "label").tolist() == values


def test_the_metadata_say_what_it_is(tmp_path: Path) -> None:
    _write(tmp_path / "a.zarr", _records(_SIZES), classes=["cat", "\udcff"])
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="r")
    assert json.loads(group.attrs["packio"])["classes"] == ["cat", "\udcff"]
    assert sorted(group) == ["data", "key_data", "key_offsets", "label", "length", "offsets"]
    assert (group["data"].shape, group["data"].chunks) == ((4710,), (1000,))
    assert group["data"].compressors == ()


def test_chunks_are_all_whole_and_samples_lie_in_one(tmp_path: Path) -> None:
    written = _write(tmp_path / "a.zarr", _records([600, 600, 400, 5]))
    assert written.files == ("data/c/0", "data/c/1", "data/c/2")
    assert list(zip(*written.places["image"][:2], strict=True)) == [
        (0, 0), (1, 0), (1, 600), (2, 0),
    ]  # fmt: skip
    chunks = [(tmp_path / "a.zarr" / name).read_bytes() for name in written.files]
    assert list(map(len, chunks)) == [1000] * 3
    assert chunks[0][600:] == bytes(400)
    assert chunks[2][5:] == bytes(995)


def test_a_sample_larger_than_a_chunk_makes_them_all_larger(tmp_path: Path) -> None:
    _write(tmp_path / "a.zarr", _records([900, 5000, 900, 900]))
    assert _by_zarr(tmp_path / "a.zarr", "offsets").tolist() == [0, 5000, 10000, 10900, 11800]
    assert sorted(os.listdir(tmp_path / "a.zarr/data/c")) == ["0", "1", "2"]


@pytest.mark.parametrize("step", [1, 5, 1000])
def test_the_bytes_do_not_depend_on_how_records_are_handed_over(tmp_path: Path, step: int) -> None:
    records = _full(_SIZES * 5)
    _write(tmp_path / "a.zarr", records)
    _write(tmp_path / "b.zarr", records, step=step)
    assert _digests(tmp_path / "a.zarr") == _digests(tmp_path / "b.zarr")


def test_the_files_are_those_it_tells_of(tmp_path: Path) -> None:
    written = _write(tmp_path / "a.zarr", _full(_SIZES))
    assert sorted(_digests(tmp_path / "a.zarr")) == sorted(written.files + written.sidecars)
    assert os.listdir(tmp_path) == ["a.zarr"]


@pytest.mark.parametrize("sizes", [[], [0], [0, 0, 0]])
def test_nothing_is_written_as_nothing(tmp_path: Path, sizes: list[int]) -> None:
    _write(tmp_path / "a.zarr", _records(sizes, meta=lambda _: b""))
    assert [
        _read(tmp_path / "a.zarr", e) for e in made.scanned(container.FORMAT, tmp_path / "a.zarr")
    ] == [b"" for _ in sizes]
    for peer in (_by_zarr, _by_tensorstore):
        assert peer(tmp_path / "a.zarr", "offsets").tolist() == [0] * (len(sizes) + 1)
        if sizes:
            assert peer(tmp_path / "a.zarr", "meta_data").tolist() == []


# Scanning


def test_scan_finds_what_was_written(tmp_path: Path) -> None:
    records, path = _full(_SIZES * 3), tmp_path / "a.zarr"
    written = _write(path, records)
    found = list(made.scanned(container.FORMAT, path))
    ranges = zip(*written.places["image"][:3], strict=True)
    assert [e[1:4] for e in found] == [(written.files[f], o, n) for f, o, n in ranges]
    for entry, record in zip(found, records, strict=True):
        assert entry.mask is not None
        assert record.boxes is not None
        assert record.box_labels is not None
        assert (_read(path, entry), _read(path, entry.mask)) == (record.data, record.mask_data)
        assert (entry.key, entry.meta) == (record.key, record.meta)
        assert entry.label == tuple(np.asarray(record.label).tolist())
        assert entry.boxes == tuple(map(tuple, record.boxes.tolist()))
        assert entry.box_labels == tuple(record.box_labels.tolist())


def test_what_was_not_given_is_not_found(tmp_path: Path) -> None:
    _write(tmp_path / "a.zarr", _records([5], label=lambda _: None))
    (entry,) = made.scanned(container.FORMAT, tmp_path / "a.zarr")
    assert entry[:4] == (b"0.jpg", "data/c/0", 0, 5)
    assert entry[4:-1] == (None,) * 5 + (False, None)
    assert list(entry.fields) == ["image"]


def _create(path: Path, name: str, values: Any, chunks: Any, **options: Any) -> None:
    group = zarr.open_group(str(path), mode="a", zarr_format=options.pop("zarr_format", 3))
    given = {"compressors": None, **options}
    array = group.create_array(name, shape=values.shape, chunks=chunks, dtype=values.dtype, **given)
    array[...] = values


def _create_tensorstore(path: Path, name: str, values: Any, chunks: Any) -> None:
    metadata = {
        "shape": values.shape, "data_type": values.dtype.name, "codecs": [{"name": "bytes"}],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
    }  # fmt: skip
    store = {"driver": "file", "path": str(path / name)}
    spec = {"driver": "zarr3", "kvstore": store, "create": True, "metadata": metadata}
    tensorstore.open(spec).result()[...].write(values).result()


def _create_z5py(path: Path, name: str, values: Any, chunks: Any) -> None:
    z5py.ZarrFile(str(path), "a", zarr_format=3).create_dataset(
        name, shape=values.shape, chunks=chunks, dtype=values.dtype.name, compression="raw"
    )[:] = values


_CREATE = pytest.mark.parametrize(
    "create",
    [
        _create,
        functools.partial(_create, chunk_key_encoding={"name": "default", "separator": "."}),
        functools.partial(_create, chunk_key_encoding={"name": "v2", "separator": "."}),
        functools.partial(_create, chunk_key_encoding={"name": "v2", "separator": "/"}),
        functools.partial(_create, serializer=zarr.codecs.BytesCodec(endian="big")),
        _create_tensorstore,
        _create_z5py,
    ],
    ids=["zarr", "dots", "v2 dots", "v2 slashes", "big-endian", "tensorstore", "z5py"],
)


@_CREATE
@pytest.mark.parametrize("dtype", ["int32", "uint64", "int64"])
def test_scan_finds_what_others_write(
    tmp_path: Path, create: Callable[..., None], dtype: str
) -> None:
    data, path = np.arange(1, 101, dtype=np.uint8), tmp_path / "a.zarr"
    create(path, "data", data, (40,))
    create(path, "offsets", np.array([3, 17, 40, 80, 99], dtype), (2,))
    create(path, "label", np.arange(1, 13, dtype=np.float32).reshape(4, 3), (3, 2))
    found = list(made.scanned(container.FORMAT, path))
    assert [_read(path, e) for e in found] == [
        data[a:b].tobytes() for a, b in ((3, 17), (17, 40), (40, 80), (80, 99))
    ]
    assert [e.label for e in found] == [(1, 2, 3), (4, 5, 6), (7, 8, 9), (10, 11, 12)]


def test_a_sample_in_two_chunks_is_refused(tmp_path: Path) -> None:
    _create(tmp_path / "a.zarr", "data", np.ones(100, np.uint8), (40,))
    _create(tmp_path / "a.zarr", "offsets", np.array([0, 30, 50, 100]), (4,))
    with pytest.raises(errors.NotAPackError, match="sample 1 lies in two blocks of 40 bytes"):
        list(made.scanned(container.FORMAT, tmp_path / "a.zarr"))


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"compressors": "auto"}, "'bytes', 'zstd'"),
        ({"compressors": zarr.codecs.Crc32cCodec()}, "'bytes', 'crc32c'"),
        ({"shards": (80,)}, "'sharding_indexed'"),
    ],
)
def test_other_codecs_are_refused_with_the_way_out(
    tmp_path: Path, options: dict[str, Any], names: str
) -> None:
    _create(tmp_path / "a.zarr", "data", np.ones(100, np.uint8), (40,), **options)
    with pytest.raises(errors.NotAPackError, match=rf"\[{names}\].*compressors=None"):
        list(made.scanned(container.FORMAT, tmp_path / "a.zarr"))


def test_chunks_left_out_are_not_taken_for_zeros(tmp_path: Path) -> None:
    _create(tmp_path / "a.zarr", "data", np.zeros(100, np.uint8), (40,))
    _create(tmp_path / "a.zarr", "offsets", np.array([0, 40]), (2,))
    with pytest.raises(errors.IntegrityError, match=r"data/c/0: missing.*told to write them"):
        list(made.scanned(container.FORMAT, tmp_path / "a.zarr"))


def test_one_array_is_refused_with_the_way_out(tmp_path: Path) -> None:
    _create(tmp_path / "a.zarr", "data", np.ones(100, np.uint8), (100,))
    with pytest.raises(errors.NotAPackError, match="one array, not a group"):
        list(made.scanned(container.FORMAT, tmp_path / "a.zarr/data"))


def test_a_blob_of_version_2_is_read(tmp_path: Path) -> None:
    values = np.arange(100, dtype=np.uint8)
    _create(tmp_path / "a.zarr", "data", values, (100,), zarr_format=2)
    _create(tmp_path / "a.zarr", "offsets", np.array([0, 40, 100]), (3,), zarr_format=2)
    found = list(made.scanned(container.FORMAT, tmp_path / "a.zarr"))
    assert [_read(tmp_path / "a.zarr", e) for e in found] == [
        values[:40].tobytes(), values[40:].tobytes(),
    ]  # fmt: skip


def test_data_without_offsets_and_other_things_are_refused(tmp_path: Path) -> None:
    _create(tmp_path / "a.zarr", "data", np.ones(100, np.uint8), (100,))
    with pytest.raises(errors.NotAPackError, match="no array `offsets`"):
        list(made.scanned(container.FORMAT, tmp_path / "a.zarr"))
    (tmp_path / "b.zarr").mkdir()
    for name in ("b.zarr", "none.zarr"):
        with pytest.raises(errors.NotAPackError, match="no zarr array `data`"):
            list(made.scanned(container.FORMAT, tmp_path / name))


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    _write(tmp_path / "a.zarr", _records([5]))
    zarr.open_group(str(tmp_path / "a.zarr"), mode="a").attrs["packio"] = (
        '{"format": "zarr", "version": 99}'
    )
    with pytest.raises(errors.VersionError, match="newer packio"):
        list(made.scanned(container.FORMAT, tmp_path / "a.zarr"))


# Damage


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "a.zarr"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks_layout, "_BLOCK_BYTES", 1000)
        _write(path, _full(_SIZES))
    return path


def _scan_frugally(path: Path) -> str | None:
    """Scan what may be damaged; returns the error. No other than packio's, and no memory for it."""
    tracemalloc.start()
    try:
        list(made.scanned(container.FORMAT, path))
        return None
    except errors.PackioError as error:
        return str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 20 << 20


def test_every_missing_or_short_file_is_told(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    shutil.copytree(whole, path)
    for name in _digests(path):
        file = path / name
        content = file.read_bytes()
        for damaged in (None, b"", content[: len(content) // 2], content + b"x"):
            file.unlink()
            if damaged is not None:
                file.write_bytes(damaged)
            error = _scan_frugally(path)
            if name != "zarr.json" or damaged is not None:  # tensorstore makes none for a group
                assert error is not None
                assert name.split("/")[0] in error
            file.write_bytes(content)
    assert _scan_frugally(path) is None


def test_a_pipe_in_place_of_a_file_is_told(whole: Path, tmp_path: Path) -> None:
    for number, name in enumerate(("data/c/0", "label/zarr.json", "offsets/c/0")):
        path = tmp_path / f"{number}.zarr"
        shutil.copytree(whole, path)
        (path / name).unlink()
        os.mkfifo(path / name)
        with pytest.raises(errors.PackioError, match=name):
            list(made.scanned(container.FORMAT, path))


def test_flipped_bits_end_in_an_error_or_other_values(whole: Path, tmp_path: Path) -> None:
    rng, path = random.Random(1), tmp_path / "a.zarr"
    shutil.copytree(whole, path)
    for name in _digests(path):
        file = path / name
        content = file.read_bytes()
        for _ in range(25):
            damaged = bytearray(content)
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            file.write_bytes(damaged)
            _scan_frugally(path)
        file.write_bytes(content)


_ODD: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**57, 2**70, 10**400, 1e300, "x", [], {}, [1], [-1], [2**57],
    [1, 2], [1.5], [True], [[1]], [None], {"a": 1}, [0, 2**57], [2**40, 1], [10**6, 10**6],
    "int64", [{}], "bytes", ["bytes"], "default", "v2", {"name": []}, {"name": "v2"},
]  # fmt: skip


def _mutations(value: Any) -> Iterable[Any]:
    """Copies of a JSON value, each with one part of it replaced."""
    yield from _ODD
    if isinstance(value, dict):
        for key, part in value.items():
            yield {k: v for k, v in value.items() if k != key}
            yield from ({**value, key: changed} for changed in _mutations(part))
    if isinstance(value, list):
        for i, part in enumerate(value):
            yield from ([*value[:i], changed, *value[i + 1 :]] for changed in _mutations(part))


@pytest.mark.parametrize("name", ["", "data", "offsets", "label", "mask_data", "boxes"])
def test_no_value_of_the_metadata_is_believed(whole: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.zarr"
    shutil.copytree(whole, path)
    file = path / name / "zarr.json"
    for changed in _mutations(json.loads(file.read_text())):
        file.write_text(json.dumps(changed))
        _scan_frugally(path)
    for text in (b"\xff", b"[" * 100_000, b'{"shape": NaN}', b'{"a": 1' + b"0" * 5000 + b"}"):
        file.write_bytes(text)
        assert _scan_frugally(path) is not None or name == ""
