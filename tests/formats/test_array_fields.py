"""Named fields in HDF5, pth, N5 and Zarr: written, scanned, indexed, and read by other libraries.

Every kind of field is in all samples of one container, and missing in some samples of another.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chunked
import made
import numpy as np
import one_file
import pytest

from packio import errors, registry
from packio.formats import Reading
from packio.images import encodings
from packio.sample.fields import KINDS, encode
from packio.sample.record import Field

if TYPE_CHECKING:
    from packio.formats import Written

NAMES = ["hdf5", "pth", "n5", "zarr"]
_COUNT = 7
_BASE = ["offsets", "data", "label", "key_data", "key_offsets"]


def _pixels(shape: tuple[int, ...], kind: str = "image") -> Field:
    data = made.saved(np.full(shape, sum(shape), np.uint8))
    return Field(kind, data, encodings.read_facts(data))


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


def _read(name: str, path: Path, peer: str) -> tuple[dict[str, Any], str]:
    """The arrays and the text ``packio``; a library of these is the peer."""
    if name in one_file.KINDS:
        return one_file.KINDS[name].arrays(path, mmap=True)
    kind = chunked.KINDS[name]
    arrays = {p.name: kind.peers[peer](path, p.name) for p in path.iterdir() if p.is_dir()}
    said = json.loads((path / kind.metadata).read_text())
    return arrays, said.get("attributes", said)["packio"]


_PEERS = {"hdf5": ["h5py"], "pth": ["torch"], **{n: [*k.peers] for n, k in chunked.KINDS.items()}}


@pytest.mark.parametrize(("name", "peer"), [(n, peer) for n in NAMES for peer in _PEERS[n]])
def test_other_libraries_see_the_fields(name: str, peer: str, tmp_path: Path) -> None:
    records = [r.with_fields(mask=_value("mask", i)) for i, r in enumerate(_records(KINDS, (2, 5)))]
    path = _path(name, tmp_path)
    _write(name, path, [made.of(r) for r in records])
    arrays, text = _read(name, path, peer)
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
def test_a_container_without_named_fields_has_no_word_of_them(name: str, tmp_path: Path) -> None:
    _write(name, _path(name, tmp_path), _records(()))
    arrays, text = _read(name, _path(name, tmp_path), _PEERS[name][0])
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
