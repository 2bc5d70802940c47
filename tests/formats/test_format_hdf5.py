"""What HDF5 alone has, and what h5py writes; test_one_file has what HDF5 and .pth share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import made
import numpy as np
import one_file
import pytest

from packio import errors
from packio.formats import hdf5 as container

if TYPE_CHECKING:
    from collections.abc import Callable

h5py = pytest.importorskip("h5py")

# Writing


def test_every_dataset_is_contiguous_and_the_file_in_the_oldest_form(tmp_path: Path) -> None:
    made.write(container.FORMAT, tmp_path / "out.h5", one_file.full(20))
    with h5py.File(tmp_path / "out.h5") as file:
        assert file.id.get_create_plist().get_version()[0] == 0
        for dataset in file.values():
            assert dataset.id.get_create_plist().get_layout() == h5py.h5d.CONTIGUOUS
            assert not dataset.dtype.hasobject
        assert file["data"].id.get_offset() % 4096 == 0


def test_many_long_class_names_fit(tmp_path: Path) -> None:
    classes = [f"class number {i}" for i in range(30_000)]
    made.writer(container.FORMAT, tmp_path / "out.h5", 0, classes=classes).close()
    with h5py.File(tmp_path / "out.h5") as file:
        assert json.loads(file.attrs["packio"])["classes"] == classes
    assert list(made.scanned(container.FORMAT, tmp_path / "out.h5")) == []


def test_the_module_needs_no_h5py(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['h5py'] = None; from pathlib import Path;"
        "from packio import errors; from packio.formats import hdf5\n"
        "try: hdf5.FORMAT.writer(Path(sys.argv[1]), count=1, size=1, classes=())\n"
        "except errors.MissingPackageError as error: print(error)"
    )
    assert "pip install 'packio[hdf5]'" in made.in_a_process(code, tmp_path / "out.h5")


# Scanning


def _foreign_blob(file: Any, values: list[bytes]) -> None:
    file["images"] = np.frombuffer(b"".join(values), np.uint8)
    file["offsets"] = np.cumsum([0, *map(len, values)]).astype("i4")
    file.create_dataset("labels", data=np.arange(len(values), dtype="u1"), compression="gzip")


def _one_dataset_each(file: Any, values: list[bytes]) -> None:
    for i, value in enumerate(values):
        file[f"class {i % 2}/{i:03}.jpg"] = np.frombuffer(value, np.uint8)


def _opaque_scalars(file: Any, values: list[bytes]) -> None:
    for i, value in enumerate(values):
        file[f"{i:03}"] = np.void(value)


@pytest.mark.parametrize("userblock", [0, 512])
@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("make", [_foreign_blob, _one_dataset_each, _opaque_scalars])
def test_scan_finds_what_others_write(
    tmp_path: Path, make: Callable[[Any, list[bytes]], None], libver: str, userblock: int
) -> None:
    values = [r.data for r in made.random_records([5, 9000, 1, 70_000, 333])]
    path = tmp_path / "foreign.h5"
    with h5py.File(path, "w", libver=libver, userblock_size=userblock) as file:
        make(file, values)
    assert sorted(one_file.data(container.FORMAT, path)) == sorted(values)
    found = list(made.scanned(container.FORMAT, path))
    if make is _foreign_blob:
        assert [e.label for e in found] == [0, 1, 2, 3, 4]
    elif make is _one_dataset_each:
        assert {e.key for e in found} == {b"class %d/%03d.jpg" % (i % 2, i) for i in range(5)}


def _numbers(file: Any) -> None:
    file["a"] = np.zeros(9, np.uint8)
    file["b"] = np.zeros(9, np.float32)


def _external(file: Any) -> None:
    file.create_dataset("a", (9,), "u1", external=[("/etc/hostname", 0, 9)])


def _elsewhere(file: Any) -> None:
    file["a"] = h5py.ExternalLink("/etc/hostname", "/")
    file["b"] = h5py.SoftLink("/none")


def _nothing(file: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_numbers, "/b is float32"), (_external, "external"), (_elsewhere, "no datasets"),
        (_nothing, "no datasets"),
    ],
)  # fmt: skip
def test_what_is_no_image_is_refused_with_a_reason(
    tmp_path: Path, make: Callable[[Any], None], reason: str
) -> None:
    with h5py.File(tmp_path / "foreign.h5", "w") as file:
        make(file)
    with pytest.raises(errors.NotAPackError, match=reason):
        list(made.scanned(container.FORMAT, tmp_path / "foreign.h5"))


def test_a_newer_version_and_other_headers_are_refused(tmp_path: Path) -> None:
    made.write(container.FORMAT, tmp_path / "out.h5", made.random_records([1]))
    texts: dict[str, type[errors.PackioError]]
    texts = {'{"format":"hdf5","version":2}': errors.VersionError}
    texts |= dict.fromkeys(['{"format":"pth","version":1}', "[]", "{", "1"], errors.NotAPackError)
    for text, kind in texts.items():
        with h5py.File(tmp_path / "out.h5", "r+") as file:
            file.attrs["packio"] = text
        with pytest.raises(kind):
            list(made.scanned(container.FORMAT, tmp_path / "out.h5"))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("offsets", [0, 5, 3]), ("offsets", [0, 1, 999]), ("offsets", [-1, 1, 2]), ("offsets", []),
        ("offsets", [0, 2**62, 5]), ("label", [1]), ("label", 3),
        ("key_offsets", [0, 1]), ("key_offsets", [0, 99, 99]), ("key_data", [1]), ("label", None),
        ("mask_offsets", [0, 1, 1]), ("boxes", [[1, 2, 3, 4]]), ("box_labels", [1, 2]),
    ],
)  # fmt: skip
def test_columns_that_cannot_be_are_integrity_errors(
    tmp_path: Path, name: str, values: Any
) -> None:
    made.write(container.FORMAT, tmp_path / "out.h5", made.random_records([3, 4]))
    with h5py.File(tmp_path / "out.h5", "r+") as file:
        if name in file:
            del file[name]
        if values is None:
            file.create_group(name)
        else:
            file[name] = np.array(values, np.int64)
    with pytest.raises(errors.IntegrityError, match=rf"out\.h5: .*{name}"):
        list(made.scanned(container.FORMAT, tmp_path / "out.h5"))
