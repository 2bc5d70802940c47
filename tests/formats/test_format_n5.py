"""N5, checked against z5py and tensorstore: each reads what the other writes, byte for byte."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import made
import numpy as np
import pytest

from packio import errors
from packio.formats import Written
from packio.formats import n5 as container
from packio.formats.blobs import blob
from packio.formats.chunks import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

z5py: Any = pytest.importorskip("z5py")
tensorstore: Any = pytest.importorskip("tensorstore")

_SIZES = [0, 10, 600, 500, 0, 999, 1, 0, 1000, 0, 3, 700, 7, 0]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_BLOCK_BYTES", 1000)


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


def _by_z5py(path: Path, name: str) -> Any:
    return z5py.File(str(path), "r")[name][:]


def _by_tensorstore(path: Path, name: str) -> Any:
    """Tensorstore shows the axes as they are on disk: in the other order than z5py."""
    store = {"driver": "file", "path": str(path / name)}
    return tensorstore.open({"driver": "n5", "kvstore": store}).result().read().result().T


_PEERS = pytest.mark.parametrize("peer", [_by_z5py, _by_tensorstore], ids=["z5py", "tensorstore"])


# Writing


@_PEERS
def test_others_read_the_samples(tmp_path: Path, peer: Callable[[Path, str], Any]) -> None:
    records = _records(_SIZES)
    _write(tmp_path / "a.n5", records)
    data, offsets, length = (peer(tmp_path / "a.n5", n) for n in ("data", "offsets", "length"))
    assert (data.dtype, offsets.dtype, length.dtype) == (np.uint8, np.int64, np.int64)
    assert [data[o : o + n].tobytes() for o, n in zip(offsets, length, strict=False)] == [
        record.data for record in records
    ]
    assert offsets[-1] == len(data)


@_PEERS
def test_others_read_the_rest(tmp_path: Path, peer: Callable[[Path, str], Any]) -> None:
    records = _full(_SIZES)
    _write(tmp_path / "a.n5", records)
    get = functools.partial(peer, tmp_path / "a.n5")
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
    _write(tmp_path / "a.n5", _records([1] * 4, label=lambda i: values[i]))
    assert peer(tmp_path / "a.n5", "label").tolist() == values


def test_the_attributes_say_what_it_is(tmp_path: Path) -> None:
    _write(tmp_path / "a.n5", _records(_SIZES), classes=["cat", "\udcff"])
    attributes = dict(z5py.File(str(tmp_path / "a.n5"), "r").attrs)
    assert attributes.pop("n5") == "4.0.0"
    assert json.loads(attributes.pop("packio"))["classes"] == ["cat", "\udcff"]
    assert attributes == {}
    assert json.loads((tmp_path / "a.n5/data/attributes.json").read_text()) == {
        "dimensions": [4710], "blockSize": [1000], "dataType": "uint8",
        "compression": {"type": "raw"},
    }  # fmt: skip


def test_blocks_are_whole_but_for_the_last_and_samples_lie_in_one(tmp_path: Path) -> None:
    written = _write(tmp_path / "a.n5", _records([600, 600, 400, 5]))
    assert written.files == ("data/0", "data/1", "data/2")
    assert list(zip(*written.places["image"][:2], strict=True)) == [
        (0, 8), (1, 8), (1, 608), (2, 8),
    ]  # fmt: skip
    blocks = [(tmp_path / "a.n5" / name).read_bytes() for name in written.files]
    assert [block[:8] for block in blocks] == [
        struct.pack(">HHI", 0, 1, n) for n in (1000, 1000, 5)
    ]
    assert list(map(len, blocks)) == [1008, 1008, 13]
    assert blocks[0][608:] == bytes(400)


def test_a_sample_larger_than_a_block_makes_them_all_larger(tmp_path: Path) -> None:
    _write(tmp_path / "a.n5", _records([900, 5000, 900, 900]))
    assert z5py.File(str(tmp_path / "a.n5"), "r")["data"].chunks == (5000,)
    assert sorted(os.listdir(tmp_path / "a.n5/data")) == ["0", "1", "2", "attributes.json"]
    assert [e.file for e in made.scanned(container.FORMAT, tmp_path / "a.n5")] == [
        "data/0", "data/1", "data/2", "data/2",
    ]  # fmt: skip


def test_a_blob_smaller_than_a_block_is_one_block_of_its_size(tmp_path: Path) -> None:
    _write(tmp_path / "a.n5", _records([30, 40]))
    assert z5py.File(str(tmp_path / "a.n5"), "r")["data"].chunks == (70,)


def test_a_sample_too_large_for_the_format_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container._Layout, "largest", 50)
    with pytest.raises(errors.OutputError, match=r"b'1\.jpg' has over 50 bytes"):
        _write(tmp_path / "a.n5", _records([50, 51]))


@pytest.mark.parametrize("step", [1, 5, 1000])
def test_the_bytes_do_not_depend_on_how_records_are_handed_over(tmp_path: Path, step: int) -> None:
    records = _full(_SIZES * 5)
    _write(tmp_path / "a.n5", records)
    _write(tmp_path / "b.n5", records, step=step)
    assert _digests(tmp_path / "a.n5") == _digests(tmp_path / "b.n5")


def test_the_files_are_those_it_tells_of(tmp_path: Path) -> None:
    written = _write(tmp_path / "a.n5", _full(_SIZES))
    assert sorted(_digests(tmp_path / "a.n5")) == sorted(written.files + written.sidecars)
    assert os.listdir(tmp_path) == ["a.n5"]


@pytest.mark.parametrize("sizes", [[], [0], [0, 0, 0]])
def test_nothing_is_written_as_nothing(tmp_path: Path, sizes: list[int]) -> None:
    _write(tmp_path / "a.n5", _records(sizes))
    assert [
        _read(tmp_path / "a.n5", e) for e in made.scanned(container.FORMAT, tmp_path / "a.n5")
    ] == [b"" for _ in sizes]
    for peer in (_by_z5py, _by_tensorstore):
        assert peer(tmp_path / "a.n5", "offsets").tolist() == [0] * (len(sizes) + 1)


def test_abort_may_come_at_any_time(tmp_path: Path) -> None:
    writer = made.writer(container.FORMAT, tmp_path / "a.n5", 3)
    writer.add(_records([1]))
    writer.abort()
    writer.abort()
    with pytest.raises(errors.OutputError, match="closed already"):
        writer.add(_records([1]))
    with pytest.raises(errors.OutputError, match="closed already"):
        writer.close()
    assert os.listdir(tmp_path) == ["a.n5"]


def test_an_existing_directory_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "a.n5").mkdir()
    with pytest.raises(errors.CannotCreateError, match=r"a\.n5"):
        made.writer(container.FORMAT, tmp_path / "a.n5", 1)


@pytest.mark.parametrize("fields", [{"label": None}], ids=str)
def test_some_with_and_some_without_is_an_error(tmp_path: Path, fields: Any) -> None:
    a, b = _full([5, 5])
    with pytest.raises(errors.OutputError, match="all or none"):
        _write(tmp_path / "a.n5", [a, b.replaced(**fields)])


def test_a_value_that_reads_back_differently_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = blob.Blob.copy

    def lying(self: Any, target: int, *where: int) -> None:
        copy(self, target, *where)
        os.pwrite(target, b"\0", 8 + 30)

    monkeypatch.setattr(blob.Blob, "copy", lying)
    with pytest.raises(errors.OutputError, match="data/0: record 1 reads back differently"):
        _write(tmp_path / "a.n5", _records([30, 40]))


def _write_with_files_limited(path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))
    writer = made.writer(container.FORMAT, path, 1000)
    try:
        writer.add(_records([20_000] * 1000))
        writer.close()
    except errors.OutputError as error:
        print(f"{error.exit_code} {error}")
    writer.abort()


def test_a_full_disk_names_path_and_space(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path[:0] = {made.FOLDERS!r}; from pathlib import Path;"
        "import test_format_n5 as t; t._write_with_files_limited(Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.n5")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.startswith(f"74 {tmp_path}/a.n5: cannot be written")
    assert "bytes free" in done.stdout


# Scanning


def test_scan_finds_what_was_written(tmp_path: Path) -> None:
    records, path = _full(_SIZES * 3), tmp_path / "a.n5"
    written = _write(path, records)
    found = list(made.scanned(container.FORMAT, path))
    ranges = zip(*written.places["image"][:3], strict=True)
    assert [e[1:4] for e in found] == [(written.files[f], o, n) for f, o, n in ranges]
    masks = zip(*written.places["mask"][:3], strict=True)
    assert [e.mask for e in found] == [(written.files[f], o, n) for f, o, n in masks]
    for entry, record in zip(found, records, strict=True):
        assert entry.mask is not None
        assert record.label is not None
        assert record.boxes is not None
        assert record.box_labels is not None
        assert (_read(path, entry), _read(path, entry.mask)) == (record.data, record.mask_data)
        assert (entry.key, entry.meta) == (record.key, record.meta)
        assert entry.label == tuple(np.asarray(record.label).tolist())
        assert entry.boxes == tuple(map(tuple, record.boxes.tolist()))
        assert entry.box_labels == tuple(record.box_labels.tolist())


def test_what_was_not_given_is_not_found(tmp_path: Path) -> None:
    _write(tmp_path / "a.n5", _records([5], label=lambda _: None))
    (entry,) = made.scanned(container.FORMAT, tmp_path / "a.n5")
    assert entry[:4] == (b"0.jpg", "data/0", 8, 5)
    assert entry[4:-1] == (None,) * 5 + (False, None)
    assert list(entry.fields) == ["image"]


def _create_z5py(path: Path, name: str, values: Any, block: Any, compression: str = "raw") -> None:
    file = z5py.File(str(path), "a")
    dataset = file.create_dataset(
        name, shape=values.shape, chunks=block, dtype=values.dtype.name, compression=compression
    )
    dataset[:] = values


def _create_tensorstore(path: Path, name: str, values: Any, block: Any) -> None:
    metadata = {
        "dimensions": values.shape[::-1], "blockSize": block[::-1],
        "dataType": values.dtype.name, "compression": {"type": "raw"},
    }  # fmt: skip
    store = {"driver": "file", "path": str(path / name)}
    spec = {"driver": "n5", "kvstore": store, "create": True, "metadata": metadata}
    tensorstore.open(spec).result()[...].write(values.T).result()


_CREATE = pytest.mark.parametrize(
    "create", [_create_z5py, _create_tensorstore], ids=["z5py", "tensorstore"]
)


@_CREATE
@pytest.mark.parametrize("dtype", ["int32", "uint64", "int64"])
def test_scan_finds_what_others_write(
    tmp_path: Path, create: Callable[..., None], dtype: str
) -> None:
    data, path = np.arange(1, 101, dtype=np.uint8), tmp_path / "a.n5"
    create(path, "data", data, (40,))
    create(path, "offsets", np.array([3, 17, 40, 80, 99], dtype), (2,))
    create(path, "label", np.arange(1, 13, dtype=np.float32).reshape(4, 3), (3, 2))
    found = list(made.scanned(container.FORMAT, path))
    assert [_read(path, e) for e in found] == [
        data[a:b].tobytes() for a, b in ((3, 17), (17, 40), (40, 80), (80, 99))
    ]
    assert [e.label for e in found] == [(1, 2, 3), (4, 5, 6), (7, 8, 9), (10, 11, 12)]


@_CREATE
def test_a_sample_in_two_blocks_is_refused(tmp_path: Path, create: Callable[..., None]) -> None:
    create(tmp_path / "a.n5", "data", np.ones(100, np.uint8), (40,))
    create(tmp_path / "a.n5", "offsets", np.array([0, 30, 50, 100]), (4,))
    with pytest.raises(errors.NotAPackError, match="sample 1 lies in two blocks of 40 bytes"):
        list(made.scanned(container.FORMAT, tmp_path / "a.n5"))


def test_compressed_data_is_refused_with_the_way_out(tmp_path: Path) -> None:
    _create_z5py(tmp_path / "a.n5", "data", np.ones(100, np.uint8), (40,), "gzip")
    with pytest.raises(errors.NotAPackError, match=r"compressed \('gzip'\).*the compression 'raw'"):
        list(made.scanned(container.FORMAT, tmp_path / "a.n5"))


@_CREATE
def test_one_array_is_refused_with_the_way_out(tmp_path: Path, create: Callable[..., None]) -> None:
    create(tmp_path / "a.n5", "data", np.ones(100, np.uint8), (100,))
    with pytest.raises(errors.NotAPackError, match="one array, not a group"):
        list(made.scanned(container.FORMAT, tmp_path / "a.n5/data"))


def test_data_without_offsets_and_other_things_are_refused(tmp_path: Path) -> None:
    _create_z5py(tmp_path / "a.n5", "data", np.ones(100, np.uint8), (100,))
    with pytest.raises(errors.NotAPackError, match="no array `offsets`"):
        list(made.scanned(container.FORMAT, tmp_path / "a.n5"))
    (tmp_path / "b.n5").mkdir()
    (tmp_path / "c.n5").touch()
    for name in ("b.n5", "c.n5", "none.n5"):
        with pytest.raises(errors.NotAPackError, match="no n5 array `data`"):
            list(made.scanned(container.FORMAT, tmp_path / name))
    (tmp_path / "b.n5/zarr.json").touch()
    with pytest.raises(errors.NotAPackError, match="is Zarr, not N5"):
        list(made.scanned(container.FORMAT, tmp_path / "b.n5"))


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    _write(tmp_path / "a.n5", _records([5]))
    header = '{"format": "n5", "version": 99}'
    (tmp_path / "a.n5/attributes.json").write_text(json.dumps({"n5": "4.0.0", "packio": header}))
    with pytest.raises(errors.VersionError, match="newer packio"):
        list(made.scanned(container.FORMAT, tmp_path / "a.n5"))


# Damage


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "a.n5"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "_BLOCK_BYTES", 1000)
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
    path = tmp_path / "a.n5"
    shutil.copytree(whole, path)
    for name in _digests(path):
        file = path / name
        content = file.read_bytes()
        for damaged in (None, b"", content[: len(content) // 2], content + b"x"):
            file.unlink()
            if damaged is not None:
                file.write_bytes(damaged)
            error = _scan_frugally(path)
            if name != "attributes.json" or damaged is not None:  # N5 does not need that of a group
                assert error is not None
                assert name.split("/")[0] in error
            file.write_bytes(content)
    assert _scan_frugally(path) is None


def test_flipped_bits_end_in_an_error_or_other_values(whole: Path, tmp_path: Path) -> None:
    rng, path = random.Random(1), tmp_path / "a.n5"
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
    None, True, -1, 0, 1, 2**31, 2**57, 2**70, 10**400,
    1e300, "x", [], {}, [1], [-1], [2**57], [1, 2],
    [1.5], [True], [[1]], [None], {"a": 1}, [0, 2**57], [2**40, 1], [10**6, 10**6], "int64", [{}],
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
    path = tmp_path / "a.n5"
    shutil.copytree(whole, path)
    file = path / name / "attributes.json"
    for changed in _mutations(json.loads(file.read_text())):
        file.write_text(json.dumps(changed))
        _scan_frugally(path)
    for text in (b"\xff", b"[" * 100_000, b'{"dimensions": NaN}', b'{"a": 1' + b"0" * 5000 + b"}"):
        file.write_bytes(text)
        assert _scan_frugally(path) is not None or name == ""


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
    tmp_path: Path, name: str, values: list[int], what: str
) -> None:
    path = tmp_path / "a.n5"
    _write(path, _records([3, 6]))
    shutil.rmtree(path / name)
    _create_z5py(path, name, np.array(values), (10,))
    with pytest.raises(errors.IntegrityError, match=what):
        list(made.scanned(container.FORMAT, path))


def test_own_arrays_that_are_gone_are_missed(tmp_path: Path) -> None:
    _write(tmp_path / "a.n5", _records([3, 6]))
    shutil.rmtree(tmp_path / "a.n5/length")
    with pytest.raises(errors.IntegrityError, match="has no length"):
        list(made.scanned(container.FORMAT, tmp_path / "a.n5"))
