"""HDF5, checked against h5py: what we write it reads, what it writes we find, byte for byte."""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import made
import numpy as np
import pytest

from packio import errors
from packio.formats import Written
from packio.formats import hdf5 as container

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

h5py = pytest.importorskip("h5py")

_SIZES = [0, 1, 100, 4095, 4096, 4097, 70_000, 0, 9_000_017, 5]


def _records(sizes: Iterable[int], seed: int = 0) -> list[made.Made]:
    rng = random.Random(seed)
    return [made.record(rng.randbytes(n), i % 7, b"class/%d.jpg" % i) for i, n in enumerate(sizes)]


def _full(count: int) -> list[made.Made]:
    """Records with all there can be, and keys of any bytes."""
    rng = random.Random(1)
    return [
        made.record(
            rng.randbytes(rng.randrange(3000)),
            np.array([i, 0.5, -i], np.float32),
            b"\xff\x00/%d\n" % i,
            mask=rng.randbytes(i % 5 * 30),
            meta=b'{"i":%d}' % i if i % 2 else b"{}",
            boxes=np.full((i % 3, 4), i + 0.25, np.float32),
            box_labels=np.full(i % 3, -i, np.int64),
        )
        for i in range(count)
    ]


def _write(path: Path, records: list[made.Made], step: int = 64) -> Written:
    writer = made.writer(container.FORMAT, path, len(records), classes=["a", "b"])
    for i in range(0, len(records), step):
        writer.add(records[i : i + step])
    return writer.close()


def _ragged(file: Any, name: str) -> list[bytes]:
    prefix = "" if name == "data" else name.partition("_")[0] + "_"
    data, offsets = file[name][()], file[prefix + "offsets"][()]
    return [data[a:b].tobytes() for a, b in itertools.pairwise(offsets)]


def _at(path: Path, ranges: Iterable[tuple[str, int, int]]) -> list[bytes]:
    whole = path.read_bytes()
    return [whole[o : o + n] for name, o, n in ranges if name == path.name]


def _data(path: Path) -> list[bytes]:
    return _at(path, [(e.file, e.offset, e.length) for e in made.scanned(container.FORMAT, path)])


def _in_a_process(code: str, *arguments: object, **environment: str) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=True,
        env={**os.environ, **environment},
    )  # fmt: skip
    return done.stdout


# Writing


def test_h5py_reads_what_was_written(tmp_path: Path) -> None:
    records = _records(_SIZES)
    _write(tmp_path / "out.h5", records)
    with h5py.File(tmp_path / "out.h5") as file:
        assert sorted(file) == ["data", "key_data", "key_offsets", "label", "offsets"]
        assert _ragged(file, "data") == [r.data for r in records]
        assert _ragged(file, "key_data") == [r.key for r in records]
        assert file["label"][()].tolist() == [r.label for r in records]
        assert file["label"].dtype == file["offsets"].dtype == np.dtype("<i8")
        header = json.loads(file.attrs["packio"])
    assert header == {"classes": ["a", "b"], "format": "hdf5", "samples": 10, "version": 1}


def test_h5py_reads_all_that_a_record_can_have(tmp_path: Path) -> None:
    records = _full(20)
    _write(tmp_path / "out.h5", records)
    with h5py.File(tmp_path / "out.h5") as file:
        assert _ragged(file, "data") == [r.data for r in records]
        assert _ragged(file, "key_data") == [r.key for r in records]
        assert _ragged(file, "mask_data") == [r.mask_data for r in records]
        assert _ragged(file, "meta_data") == [r.meta for r in records]
        assert file["label"][()].tolist() == [[i, 0.5, -i] for i in range(20)]
        assert file["label"].dtype == file["boxes"].dtype == np.dtype("<f4")
        for i in range(20):
            span = slice(*file["box_offsets"][i : i + 2])
            assert file["boxes"][span].tolist() == [[i + 0.25] * 4] * (i % 3)
            assert file["box_labels"][span].tolist() == [-i] * (i % 3)


def test_every_dataset_is_contiguous_and_the_file_in_the_oldest_form(tmp_path: Path) -> None:
    _write(tmp_path / "out.h5", _full(20))
    with h5py.File(tmp_path / "out.h5") as file:
        assert file.id.get_create_plist().get_version()[0] == 0
        for dataset in file.values():
            assert dataset.id.get_create_plist().get_layout() == h5py.h5d.CONTIGUOUS
            assert not dataset.dtype.hasobject
        assert file["data"].id.get_offset() % 4096 == 0


def test_a_writer_tells_where_each_record_lies(tmp_path: Path) -> None:
    records = _full(50)
    written = _write(tmp_path / "out.h5", records)
    assert (written.files, written.sidecars) == (("out.h5",), ())
    for field in ("image", "mask"):
        ranges, values = written.places[field], [r.fields[field].data for r in records]
        assert ranges.file.tolist() == [0] * 50
        pairs = zip(ranges.offset.tolist(), ranges.length.tolist(), strict=True)
        assert _at(tmp_path / "out.h5", [("out.h5", *pair) for pair in pairs]) == values


def test_only_the_file_is_left(tmp_path: Path) -> None:
    _write(tmp_path / "out.h5", _full(3))
    assert os.listdir(tmp_path) == ["out.h5"]


@pytest.mark.parametrize("records", [[], [made.record(b"", None, b"")]], ids=["none", "empty"])
def test_a_file_may_have_no_bytes(tmp_path: Path, records: list[made.Made]) -> None:
    _write(tmp_path / "out.h5", records)
    with h5py.File(tmp_path / "out.h5") as file:
        assert _ragged(file, "data") == [r.data for r in records]
    assert _data(tmp_path / "out.h5") == [r.data for r in records]


def test_many_long_class_names_fit(tmp_path: Path) -> None:
    classes = [f"class number {i}" for i in range(30_000)]
    made.writer(container.FORMAT, tmp_path / "out.h5", 0, classes=classes).close()
    with h5py.File(tmp_path / "out.h5") as file:
        assert json.loads(file.attrs["packio"])["classes"] == classes
    assert list(made.scanned(container.FORMAT, tmp_path / "out.h5")) == []


@pytest.mark.parametrize("step", [1, 17, 100_000])
def test_the_bytes_do_not_depend_on_how_records_are_handed_over(tmp_path: Path, step: int) -> None:
    _write(tmp_path / "a.h5", _full(300), step=64)
    _write(tmp_path / "b.h5", _full(300), step=step)
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


_WRITES = """
import sys
from pathlib import Path
import test_format_hdf5 as t
t._write(Path(sys.argv[1]), t._full(500))
t._write(Path(sys.argv[2]), t._records([9000] * 500))
"""


def test_two_processes_write_the_same_bytes_at_different_times(tmp_path: Path) -> None:
    digests = set()
    for i, filler in enumerate(("85", "170")):  # glibc fills what malloc gives, and frees, with it
        outs = [tmp_path / f"{i}{name}.h5" for name in "ab"]
        _in_a_process(
            _WRITES, *outs, MALLOC_PERTURB_=filler, PYTHONHASHSEED=str(i),
            PYTHONPATH=":".join([*made.FOLDERS, str(Path(container.__file__).parents[3])]),
        )  # fmt: skip
        digests |= {hashlib.sha256(out.read_bytes()).hexdigest() for out in outs}
        time.sleep(1.1 - i)  # time stamps would be of seconds
    assert len(digests) == 2


def test_abort_may_come_at_any_time(tmp_path: Path) -> None:
    writer = made.writer(container.FORMAT, tmp_path / "out.h5", 3)
    writer.add(_records([1]))
    writer.abort()
    writer.abort()
    with pytest.raises(errors.OutputError, match="closed already"):
        writer.add(_records([1]))
    with pytest.raises(errors.OutputError, match="closed already"):
        writer.close()
    assert os.listdir(tmp_path) == []


def test_an_existing_file_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "out.h5").write_bytes(b"mine")
    with pytest.raises(errors.CannotCreateError, match=r"out\.h5"):
        made.writer(container.FORMAT, tmp_path / "out.h5", 1)
    assert (tmp_path / "out.h5").read_bytes() == b"mine"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.CannotCreateError, match=r"none/out\.h5"):
        made.writer(container.FORMAT, tmp_path / "none/out.h5", 1)


def test_a_value_that_reads_back_differently_is_an_error(tmp_path: Path) -> None:
    writer: Any = made.writer(container.FORMAT, tmp_path / "out.h5", 3)
    writer.add(_records([10, 9000, 20_000_000, 30]))
    writer._spool.blobs["image"].crc32c[2] ^= 1
    with pytest.raises(errors.OutputError, match=r"out\.h5: record 2 reads back differently"):
        writer.close()


def _write_with_files_limited(path: Path, limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    writer = made.writer(container.FORMAT, path, 1000)
    try:
        writer.add([made.record(b"x" * 20_000, 1, b"k" * 400)] * 1000)
        writer.close()
    except errors.OutputError as error:
        print(f"{error.exit_code} {error}")
    writer.abort()


# Where the samples do not fit, and where the last of them and the columns do not.
@pytest.mark.parametrize("limit", [3_000_000, 20_000_000])
def test_a_full_disk_names_path_and_space(tmp_path: Path, limit: int) -> None:
    code = (
        f"import sys; sys.path[:0] = {made.FOLDERS!r}; from pathlib import Path;"
        "import test_format_hdf5 as t;"
        "t._write_with_files_limited(Path(sys.argv[1]), int(sys.argv[2]))"
    )
    said = _in_a_process(code, tmp_path / "out.h5", limit)
    assert said.startswith(f"74 {tmp_path}/out.h5: cannot be written")
    assert "bytes free" in said


def test_the_module_needs_no_h5py(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['h5py'] = None; from pathlib import Path;"
        "from packio import errors; from packio.formats import hdf5\n"
        "try: hdf5.FORMAT.writer(Path(sys.argv[1]), count=1)\n"
        "except errors.MissingPackageError as error: print(error)"
    )
    assert "pip install 'packio[hdf5]'" in _in_a_process(code, tmp_path / "out.h5")


# Scanning


@pytest.mark.parametrize("path", ["out.h5", "caf\udce9.hdf5"])
def test_scan_finds_what_the_writer_wrote(tmp_path: Path, path: str) -> None:
    records = _full(30)
    _write(tmp_path / path, records)
    found = list(made.scanned(container.FORMAT, tmp_path / path))
    assert _data(tmp_path / path) == [r.data for r in records]
    assert _at(tmp_path / path, [e.mask for e in found if e.mask]) == [r.mask_data for r in records]
    assert [(e.key, e.meta) for e in found] == [(r.key, r.meta) for r in records]
    one, record = found[2], records[2]
    assert one[:1] + one[3:5] == (record.key, len(record.data), (2.0, 0.5, -2.0))
    assert one[6:9] == (b"{}", ((2.25,) * 4,) * 2, (-2, -2))


def test_scan_finds_labels_that_are_ints_or_none(tmp_path: Path) -> None:
    _write(tmp_path / "ints.h5", _records(_SIZES))
    assert [e.label for e in made.scanned(container.FORMAT, tmp_path / "ints.h5")] == [
        i % 7 for i in range(10)
    ]
    _write(tmp_path / "none.h5", [made.record(b"x", None, b"x")] * 3)
    assert [e.label for e in made.scanned(container.FORMAT, tmp_path / "none.h5")] == [None] * 3


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
    values = [r.data for r in _records([5, 9000, 1, 70_000, 333])]
    path = tmp_path / "foreign.h5"
    with h5py.File(path, "w", libver=libver, userblock_size=userblock) as file:
        make(file, values)
    assert sorted(_data(path)) == sorted(values)
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
    _write(tmp_path / "out.h5", _records([1]))
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
        ("offsets", [0, 2**62, 5]), ("label", [1]), ("label", [[1], [2]]), ("label", 3),
        ("key_offsets", [0, 1]), ("key_offsets", [0, 99, 99]), ("key_data", [1]), ("label", None),
        ("mask_offsets", [0, 1, 1]), ("boxes", [[1, 2, 3, 4]]), ("box_labels", [1, 2]),
    ],
)  # fmt: skip
def test_columns_that_cannot_be_are_integrity_errors(
    tmp_path: Path, name: str, values: Any
) -> None:
    _write(tmp_path / "out.h5", _records([3, 4]))
    with h5py.File(tmp_path / "out.h5", "r+") as file:
        if name in file:
            del file[name]
        if values is None:
            file.create_group(name)
        else:
            file[name] = np.array(values, np.int64)
    with pytest.raises(errors.IntegrityError, match=rf"out\.h5: .*{name}"):
        list(made.scanned(container.FORMAT, tmp_path / "out.h5"))


def test_a_file_that_is_not_there_or_not_hdf5_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.ReadError, match=r"none\.h5"):
        list(made.scanned(container.FORMAT, tmp_path / "none.h5"))
    (tmp_path / "text.h5").write_bytes(b"text" * 1000)
    with pytest.raises(errors.NotAPackError, match=r"text\.h5"):
        list(made.scanned(container.FORMAT, tmp_path / "text.h5"))


def _scan_damaged(path: Path, start: int, count: int) -> None:
    """Scan copies with a few bits turned over, or cut off; print what is no error of packio's."""
    whole = path.read_bytes()
    for seed in range(start, start + count):
        rng = random.Random(seed)
        content = bytearray(whole)
        if seed % 4 == 0:
            del content[rng.randrange(len(content)) :]
        for _ in range(rng.choice((0, 1, 1, 3)) if seed % 4 == 0 else rng.choice((1, 1, 3))):
            if content:
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        damaged = path.with_name(f"{seed}-{path.name}")
        damaged.write_bytes(content)
        try:
            for entry in made.scanned(container.FORMAT, damaged):
                assert entry.offset == -1 or 0 <= entry.offset <= len(content) - entry.length
        except errors.PackioError:
            pass
        damaged.unlink()


@pytest.mark.parametrize("make", [_foreign_blob, _one_dataset_each, None])
def test_damaged_files_raise_nothing_but_errors_of_packio(
    tmp_path: Path, make: Callable[[Any, list[bytes]], None] | None
) -> None:
    """In other processes, for it is h5py that reads the file here."""
    path = tmp_path / "out.h5"
    if make is None:
        _write(path, _full(5))
    else:
        with h5py.File(path, "w") as file:
            make(file, [b"1", b"22", b"", b"333"])
    context = multiprocessing.get_context("fork")
    for start in range(0, 400, 100):
        process = context.Process(target=_scan_damaged, args=(path, start, 100))
        process.start()
        process.join(60)
        assert process.exitcode == 0, f"seeds {start}..{start + 99}"
