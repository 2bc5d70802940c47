"""Named fields in HDF5, pth, N5 and Zarr: written, scanned, indexed, and read by other libraries.

Every kind of field is in all samples of one container, and missing in some samples of another.
"""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import made
import numpy as np
import pytest
from PIL import Image

import packio
from packio import errors, registry
from packio.formats import Reading
from packio.images import encodings
from packio.sample.fields import KINDS, encode
from packio.sample.record import Field

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from packio.formats import Written

NAMES = ["hdf5", "pth", "n5", "zarr"]
_COUNT = 7
_BASE = ["offsets", "data", "label", "key_data", "key_offsets"]
_BOXES = ["boxes", "box_labels", "box_offsets", "box_area", "box_crowd"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the test's own."""
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))


def _pixels(shape: tuple[int, ...], kind: str = "image") -> Field:
    file = io.BytesIO()
    Image.fromarray(np.full(shape, sum(shape), np.uint8)).save(file, "PNG")
    return Field(kind, file.getvalue(), encodings.read_facts(file.getvalue()))


def _value(kind: str, i: int) -> Field:
    return {
        "image": _pixels((5 + i, 6, 3)), "mask": _pixels((5 + i, 6), "mask"),
        "array": encode(np.arange(i * 3, dtype="f2").reshape(i, 3)),
        "text": encode("grün " * i), "bytes": encode(bytes(range(i))),
    }[kind]  # fmt: skip


def _records(kinds: tuple[str, ...], missing: tuple[int, ...] = ()) -> list[made.Made]:
    """Samples with a field ``my-<kind>`` of each of some kinds."""
    found = []
    for i in range(_COUNT):
        fields = {f"my-{kind}": _value(kind, i) for kind in kinds if i not in missing}
        image = _pixels((3 + i, 4, 3)).data
        found.append(made.record(image, i % 3, b"%d.png" % i, "png", 3 + i, 4, 3, fields=fields))
    return found


def _write(name: str, path: Path, records: list[made.Made]) -> Written:
    form = registry.load("formats", name)
    try:
        writer = made.writer(form, path, len(records))
    except errors.MissingPackageError as error:
        pytest.skip(str(error))
    for start in range(0, len(records), 3):
        writer.add(records[start : start + 3])
    return writer.close()


def _path(name: str, folder: Path) -> Path:
    return folder / f"a{registry.load('formats', name).caps.suffixes[0]}"


@pytest.mark.parametrize("missing", [(), (0,), (3, 6), tuple(range(1, _COUNT))], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_fields_come_back(name: str, missing: tuple[int, ...], tmp_path: Path) -> None:
    records, path = _records(KINDS, missing), _path(name, tmp_path)
    written = _write(name, path, records)
    folder = path if path.is_dir() else tmp_path
    form = registry.load("formats", name)
    found = list(form.scan(path, Reading()))
    for field, ranges in written.places.items():
        for i, record in enumerate(records):
            if field not in record.fields:
                assert ranges.offset[i] == -1
                assert field not in found[i].fields
                continue
            place = found[i].fields[field]
            file = written.files[ranges.file[i]]
            assert place[:4] == (
                record.fields[field].kind,
                file,
                ranges.offset[i],
                ranges.length[i],
            )
            whole = (folder / place.file).read_bytes()
            data = whole[place.offset : place.offset + place.length]
            assert data == record.fields[field].data
    packio.reindex(path)
    with packio.open(path) as pack:
        assert pack.fields == {"image": "image"} | {f"my-{kind}": kind for kind in KINDS}
        for i, kind in itertools.product(range(_COUNT), KINDS):
            one, given = pack.field(f"my-{kind}", i), records[i].fields.get(f"my-{kind}")
            assert (one is None) == (given is None)
            if one is not None and given is not None:
                assert (one.kind, one.data) == (given.kind, given.data)
    assert packio.verify(path).ok


def _by_h5py(path: Path) -> tuple[dict[str, Any], str]:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path) as file:
        return {name: dataset[()] for name, dataset in file.items()}, file.attrs["packio"]


def _by_torch(path: Path) -> tuple[dict[str, Any], str]:
    import torch

    found = torch.load(path, weights_only=True, mmap=True)
    return {n: tensor.numpy() for n, tensor in found.items() if n != "packio"}, found["packio"]


def _by_zarr(path: Path) -> tuple[dict[str, Any], str]:
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(str(path), mode="r")
    return {name: array[...] for name, array in group.arrays()}, group.attrs["packio"]


def _by_z5py(path: Path) -> tuple[dict[str, Any], str]:
    z5py = pytest.importorskip("z5py")
    file = z5py.File(str(path), "r")
    return {name: file[name][:] for name in file}, file.attrs["packio"]


def _by_tensorstore(path: Path) -> tuple[dict[str, Any], str]:
    tensorstore = pytest.importorskip("tensorstore")
    driver = "n5" if path.suffix == ".n5" else "zarr3"
    found = {}
    for folder in (p for p in path.iterdir() if p.is_dir()):
        spec = {"driver": driver, "kvstore": {"driver": "file", "path": str(folder)}}
        values = tensorstore.open(spec).result().read().result()
        found[folder.name] = values.T if driver == "n5" else values
    text = json.loads((path / ("attributes.json" if driver == "n5" else "zarr.json")).read_text())
    return found, text.get("attributes", text)["packio"]


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("hdf5", _by_h5py), ("pth", _by_torch), ("n5", _by_z5py), ("n5", _by_tensorstore),
        ("zarr", _by_zarr), ("zarr", _by_tensorstore),
    ],
)  # fmt: skip
def test_other_libraries_see_the_fields(
    name: str, read: Callable[[Path], tuple[Mapping[str, Any], str]], tmp_path: Path
) -> None:
    records = [r.with_fields(mask=_value("mask", i)) for i, r in enumerate(_records(KINDS, (2, 5)))]
    path = _path(name, tmp_path)
    _write(name, path, [made.of(r) for r in records])
    arrays, text = read(path)
    assert json.loads(text)["fields"] == {f"my-{kind}": kind for kind in sorted(KINDS)}
    for field in ("mask", *(f"my-{kind}" for kind in KINDS)):
        data, offsets = arrays[f"{field}_data"], arrays[f"{field}_offsets"]
        present = arrays.get(f"{field}_present", np.ones(_COUNT))
        assert (f"{field}_present" in arrays) == (field != "mask")
        length = arrays.get(f"{field}_length", np.diff(offsets))
        for i, record in enumerate(records):
            begin = int(offsets[i])
            value = bytes(data[begin : begin + int(length[i])])
            assert bool(present[i]) == (field in record.fields)
            assert value == (record.fields[field].data if field in record.fields else b"")


@pytest.mark.parametrize("name", NAMES)
def test_columns_of_boxes_come_back(name: str, tmp_path: Path) -> None:
    records, path = [], _path(name, tmp_path)
    for i, record in enumerate(_records(())):
        boxes = np.full((i, 4), i, "f4")
        columns = {"labels": np.arange(i), "area": np.arange(i) / 2, "crowd": np.arange(i) % 2}
        records.append(made.Made(record.key, record.fields, i, None, boxes, columns))
    _write(name, path, records)
    for given, found in zip(
        records, registry.load("formats", name).scan(path, Reading()), strict=True
    ):
        np.testing.assert_array_equal(found.boxes, given.boxes)
        assert found.box_columns.keys() == given.box_columns.keys()
        for column, values in given.box_columns.items():
            np.testing.assert_array_equal(found.box_columns[column], values)
        assert found.box_columns["crowd"].dtype == np.int64
        assert found.box_columns["area"].dtype == np.float32


@pytest.mark.parametrize("name", NAMES)
def test_a_container_without_named_fields_has_no_word_of_them(name: str, tmp_path: Path) -> None:
    _write(name, _path(name, tmp_path), _records(()))
    read = {"hdf5": _by_h5py, "pth": _by_torch, "n5": _by_z5py, "zarr": _by_zarr}[name]
    arrays, text = read(_path(name, tmp_path))
    assert json.loads(text).keys() == {"classes", "format", "samples", "version"}
    assert arrays.keys() - {"length"} == set(_BASE)


@pytest.mark.parametrize("field", ["key", "meta", "box", "image_2/x"])
@pytest.mark.parametrize("name", NAMES)
def test_names_that_other_arrays_have_are_refused(name: str, field: str, tmp_path: Path) -> None:
    record = made.record(b"x", 1, fields={field: encode("a")})
    writer = made.writer(registry.load("formats", name), _path(name, tmp_path))
    with pytest.raises(errors.OutputError, match=f"'{field}' cannot name a field"):
        writer.add([record])
    writer.abort()


@pytest.mark.parametrize("column", ["offsets", "a/b"])
@pytest.mark.parametrize("name", NAMES)
def test_columns_with_names_of_other_arrays_are_refused(
    name: str, column: str, tmp_path: Path
) -> None:
    record = made.record(b"x", 1, boxes=np.zeros((1, 4), "f4"))
    record = made.Made(b"k", record.fields, 1, None, record.boxes, {column: np.zeros(1)})
    writer = made.writer(registry.load("formats", name), _path(name, tmp_path))
    with pytest.raises(errors.OutputError, match=f"'{column}' cannot name"):
        writer.add([record])
    writer.abort()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fields", []), ("fields", {"depth": "pixels"}),
        ("fields", {"my-text": "text", "x": "text"}), ("fields", {"key": "text"}),
        ("fields", {"../a": "text"}), ("fields", {"image": "text"}),
        ("box_columns", {}), ("box_columns", [1]), ("box_columns", ["x"]),
        ("box_columns", ["offsets"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["n5", "zarr"])
def test_a_header_that_lies_is_refused(name: str, key: str, value: Any, tmp_path: Path) -> None:
    path = _path(name, tmp_path)
    _write(name, path, _records(("text",)))
    file = path / ("attributes.json" if name == "n5" else "zarr.json")
    metadata = json.loads(file.read_text())
    at = metadata if name == "n5" else metadata["attributes"]
    at["packio"] = json.dumps({**json.loads(at["packio"]), key: value})
    file.write_text(json.dumps(metadata))
    with pytest.raises(errors.IntegrityError):
        list(registry.load("formats", name).scan(path, Reading()))


@pytest.mark.parametrize(
    ("array", "values"),
    [
        ("my-text_offsets", [0, 1]), ("my-text_offsets", [0, 5, 3, 3, 3, 3, 3, 3]),
        ("my-text_present", [1, 0]), ("my-text_present", [[1]] * _COUNT), ("my-text_data", [1, 2]),
        ("my-text_offsets", None),
    ],
)  # fmt: skip
def test_arrays_of_a_field_that_cannot_be_are_refused(
    array: str, values: Any, tmp_path: Path
) -> None:
    h5py = pytest.importorskip("h5py")
    _write("hdf5", tmp_path / "a.h5", _records(("text",), (1,)))
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        del file[array]
        if values is not None:
            file[array] = np.array(values, np.int64)
    with pytest.raises(errors.IntegrityError, match=r"a\.h5: .*my-text"):
        list(registry.load("formats", "hdf5").scan(tmp_path / "a.h5", Reading()))
