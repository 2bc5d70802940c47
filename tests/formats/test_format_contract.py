"""The contract of formats: what is written is read by range, scanned, indexed and verified alike.

The records have fields of every kind, some of them missing in some samples; labels of every kind;
boxes with columns; metadata; and keys of any bytes. Foreign libraries read the same containers.
"""

from __future__ import annotations

import dataclasses
import os
import re
import resource
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import made
import numpy as np
import pytest
from containers import COUNT, folder_of, path_of, records, write

import packio
from packio import registry
from packio.errors import (
    CannotCreateError,
    IntegrityError,
    NotAPackError,
    OutputError,
    ReadError,
)
from packio.formats import Reading
from packio.sample.fields import decode_array
from packio.sample.record import UNKNOWN, Field, Place, Record
from packio.system import files

if TYPE_CHECKING:
    from packio.formats import Format

FORMATS = [n for n in registry.names("formats") if registry.load("formats", n).caps.writes]
CONTAINERS = [
    n for n in registry.list_built_in("formats") if registry.load("formats", n).caps.suffixes
]
LABELS = ["int", "vector", "none"]


def read(form: Format, path: Path, place: Place) -> bytes:
    whole = (folder_of(form, path) / place.file).read_bytes()
    data = whole[place.offset : place.offset + place.length]
    return form.unsplit(data) if place.split else data


def assert_same(found: Record[Any], given: Record[Field], keeps: frozenset[str]) -> None:
    """See that two records are alike in what a container keeps."""
    if "key" in keeps:
        assert found.key == given.key
    if "label" in keeps and given.label is not None:
        np.testing.assert_array_equal(found.label, given.label)
        assert type(found.label) is type(given.label)
    if "meta" in keeps:
        assert found.meta is not None
        assert given.meta is not None
        assert found.meta.strip() == given.meta.strip()
    if "boxes" in keeps:
        np.testing.assert_array_equal(found.boxes, given.boxes)
        assert found.box_columns.keys() == given.box_columns.keys()
        for name, values in given.box_columns.items():
            np.testing.assert_array_equal(found.box_columns[name], values)
            assert not len(values) or found.box_columns[name].dtype == values.dtype


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_lies_where_the_writer_says(name: str, tmp_path: Path) -> None:
    form, given = registry.load("formats", name), records()
    path = path_of(form, tmp_path)
    written = write(form, path, given)
    assert written.places.keys() == {field for r in given for field in r.fields}
    for field, ranges in written.places.items():
        assert len(ranges.file) == len(ranges.offset) == len(ranges.length) == COUNT
        for i, record in enumerate(given):
            assert (ranges.offset[i] == -1) == (field not in record.fields)
            if field in record.fields:
                split = ranges.split is not None and bool(ranges.split[i])
                file = written.files[ranges.file[i]]
                place = Place("", file, int(ranges.offset[i]), int(ranges.length[i]), split)
                assert read(form, path, place) == record.fields[field].data
    folder = folder_of(form, path)
    there = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert there == {*written.files, *written.sidecars}


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("name", FORMATS)
def test_scanning_finds_what_was_written(name: str, label: str, tmp_path: Path) -> None:
    form, given = registry.load("formats", name), records(label)
    path = path_of(form, tmp_path).with_stem("caf\udce9")  # a path need not be UTF-8
    write(form, path, given)
    found = list(form.scan(path, Reading()))
    assert len(found) == COUNT
    for record, expected in zip(found, given, strict=True):
        assert record.fields.keys() == expected.fields.keys()
        for field, place in record.fields.items():
            assert place.kind == expected.fields[field].kind
            assert read(form, path, place) == expected.fields[field].data
        assert_same(record, expected, form.caps.keeps)


@pytest.mark.parametrize("name", FORMATS)
def test_a_container_that_lost_its_index_is_indexed_anew(name: str, tmp_path: Path) -> None:
    form, given = registry.load("formats", name), records()
    path = path_of(form, tmp_path)
    write(form, path, given)
    packio.reindex(path)
    with packio.open(path) as pack:
        assert pack.fields == {n: f.kind for r in given for n, f in r.fields.items()}
        for i, expected in enumerate(given):
            record = pack.record(i)
            assert {n: (f.kind, f.data) for n, f in record.fields.items()} == {
                n: (f.kind, f.data) for n, f in expected.fields.items()
            }
            assert_same(record, expected, form.caps.keeps)
        number = next(i for i, record in enumerate(given) if "caption" in record.fields)
        offset = pack.index_file.column("caption/offset").item(number)
        file = pack.index_file.files()[pack.index_file.column("caption/file").item(number)][0]
    assert packio.verify(path).ok
    with (folder_of(form, path) / file).open("r+b") as opened:
        opened.seek(offset)
        opened.write(b"A")  # it was an a
    report = packio.verify(path)
    assert not report.ok
    assert any("caption" in damage.problem for damage in report.damages), report.damages


@pytest.fixture(scope="module")
def many() -> list[Record[Field]]:
    """Records of all sizes, more than a writer holds in memory."""
    random, result = np.random.default_rng(0), list[Record[Field]]()
    for number, size in enumerate([None] * 20 + [30_000] * 20 + [0, 3_000_000] + [None] * 5):
        for record in records() if size is None else records()[:3]:
            image = record.image if size is None else Field("image", random.bytes(size), UNKNOWN)
            fields, key = {**record.fields, "image": image}, b"%d %b" % (number, record.key)
            result.append(dataclasses.replace(record, key=key, fields=fields))
    return result


@pytest.mark.parametrize("name", FORMATS)
def test_the_bytes_do_not_depend_on_how_records_are_handed_over(
    name: str, many: list[Record[Field]], tmp_path: Path
) -> None:
    form, found = registry.load("formats", name), []
    for step in (64, 1, 17, 100_000):
        (tmp_path / f"{step}").mkdir()
        write(form, path_of(form, tmp_path / f"{step}"), many, step)
        found.append(made.files_below(tmp_path / f"{step}"))
    assert found[0] == found[1] == found[2] == found[3]


_WRITES = """
import pathlib, random, sys
import containers, made
from packio import registry
rng = random.Random(3)
sizes = rng.choices((0, 10, 1900, 2100, 9000, 150_000), k=800)
large = [made.record(rng.randbytes(n), n, b"%d" % n) for n in sizes]
for name in sys.argv[2:]:
    form = registry.load("formats", name)
    for kind, records in (("large", large), ("full", containers.records())):
        folder = pathlib.Path(sys.argv[1], kind)
        folder.mkdir(exist_ok=True)
        writer = made.writer(form, containers.path_of(form, folder))  # foretold: one record
        writer.add(records)
        writer.close()
"""


def test_two_processes_write_the_same_bytes_at_different_times(tmp_path: Path) -> None:
    for i, filler in enumerate(("85", "170")):  # glibc fills what malloc gives, and frees, with it
        (tmp_path / f"{i}").mkdir()
        environment = {"MALLOC_PERTURB_": filler, "PYTHONHASHSEED": f"{i}"}
        made.in_a_process(
            _WRITES, tmp_path / f"{i}", *FORMATS, PYTHONPATH=":".join(sys.path), **environment
        )
    first, second = (made.files_below(tmp_path / name) for name in "01")
    assert len(first) > 2 * len(FORMATS)
    assert first == second


@pytest.mark.parametrize("name", FORMATS)
def test_no_records_make_an_empty_container(name: str, tmp_path: Path) -> None:
    form = registry.load("formats", name)
    path = path_of(form, tmp_path)
    assert all(len(ranges.offset) == 0 for ranges in write(form, path, []).places.values())
    assert list(form.scan(path, Reading())) == []


@pytest.mark.parametrize("name", FORMATS)
def test_abort_may_come_at_any_time(name: str, tmp_path: Path) -> None:
    form, given = registry.load("formats", name), records()
    path = path_of(form, tmp_path)
    writer = form.writer(path, count=3, size=3, classes=[])
    writer.add(given)
    writer.abort()
    writer.abort()
    for left in tmp_path.iterdir():
        assert left.name.startswith("pack.")
        files.remove(left)
    write(form, path, given)


@pytest.mark.parametrize("name", FORMATS)
def test_what_exists_is_not_written_over(name: str, tmp_path: Path) -> None:
    form = registry.load("formats", name)
    path = path_of(form, tmp_path / "out")
    (tmp_path / "out").mkdir()
    written = write(form, path, records())
    names = [path.name] if form.caps.is_directory else [*written.files, *written.sidecars]
    for victim in names:
        files.remove(tmp_path / "out")
        (tmp_path / "out").mkdir()
        if form.caps.is_directory:
            path.mkdir()
        else:
            (tmp_path / "out" / victim).write_bytes(b"precious")
        with pytest.raises(OutputError, match=f"out/{re.escape(victim)}"):
            write(form, path, records())
        if not form.caps.is_directory:
            assert (tmp_path / "out" / victim).read_bytes() == b"precious"
    with pytest.raises(CannotCreateError, match=f"none/{path.name}"):
        write(form, tmp_path / "none" / path.name, records())


def _write_with_files_limited(form: Format, path: Path, limit: int) -> str:
    """Write 20 MB in a child whose files may have so many bytes; the code and text of the error."""
    records = [made.record(bytes(20_000), 1, b"a/%d.jpg" % i) for i in range(1000)]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            writer = made.writer(form, path, 1000, size=20_000_000)
            try:
                for start in range(0, 1000, 50):
                    writer.add(records[start : start + 50])
                writer.close()
            except OutputError as error:
                os.write(writing, f"{error.exit_code} {error}".encode())
            writer.abort()
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as said:
        text = said.read()
    os.waitpid(child, 0)
    return text


# Where the samples do not fit, and where the last of them and what comes after them do not.
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("limit", [3_000_000, 20_000_000])
def test_a_full_disk_names_path_and_space(name: str, limit: int, tmp_path: Path) -> None:
    form = registry.load("formats", name)
    path = path_of(form, tmp_path)
    if form.caps.is_directory and name != "lmdb" and limit > 3_000_000:
        pytest.skip("each array is a file of its own")
    said = _write_with_files_limited(form, path, limit)
    assert said.startswith(f"74 {path}: cannot be written")
    assert "bytes free" in said


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_recognises_what_it_wrote(name: str, tmp_path: Path) -> None:
    form = registry.load("formats", name)
    plain = [dataclasses.replace(r, fields={"image": r.image}) for r in records()]
    write(form, path_of(form, tmp_path), plain)
    odd = path_of(form, tmp_path).rename(tmp_path / "odd")
    assert packio.packs.recognising.find(odd).format == name  # type: ignore[union-attr]  # it is one


@pytest.mark.parametrize(
    "content",
    [b"GIF89a" * 3000, b"\x89PNG\r\n\x1a\n" * 1000, b"short", b"\1" * 1000, b"\xff" * 1000],
    ids=range(5),
)
@pytest.mark.parametrize("name", CONTAINERS)
def test_other_files_are_refused(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(content)
    may_be_part = content == b"short" and name in ("tar", "recordio")  # whose headers are longer
    with pytest.raises(IntegrityError if may_be_part else NotAPackError, match=r"/other/?: "):
        list(registry.load("formats", name).scan(tmp_path / "other", Reading()))


@pytest.mark.parametrize("name", CONTAINERS)
def test_what_is_not_there_is_an_error(name: str, tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises((NotAPackError, ReadError), match=re.escape(str(path))):
            list(registry.load("formats", name).scan(path, Reading()))


# Foreign readers


def _present(given: list[Record[Field]], field: str) -> dict[int, bytes]:
    return {i: r.fields[field].data for i, r in enumerate(given) if field in r.fields}


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)
def test_webdataset_sees_the_fields_of_a_tar(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    given = records()
    write(registry.load("formats", "tar"), tmp_path / "a.tar", given)
    samples = list(webdataset.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False))
    for suffix, field in (
        ("depth.png", "depth"), ("instances.png", "instances"), ("caption.txt", "caption"),
        ("txt", "txt"), ("latent.npy", "latent"), ("raw-1.bin", "Raw-1"), ("mask.png", "mask"),
    ):  # fmt: skip
        found = {i: s[suffix] for i, s in enumerate(samples) if suffix in s}
        assert found == _present(given, field)


def test_the_package_tfrecord_sees_the_fields(tmp_path: Path) -> None:
    reader = pytest.importorskip("tfrecord.reader")
    given = records()
    write(registry.load("formats", "tfrecord"), tmp_path / "a.tfrecord", given)
    samples = list(reader.tfrecord_loader(str(tmp_path / "a.tfrecord"), None))
    for field in ("depth", "instances", "caption", "txt", "latent", "Raw-1"):
        key = f"{field}/encoded"
        found = {i: bytes(s[key]) for i, s in enumerate(samples) if key in s}
        assert found == _present(given, field)
    assert [list(s["image/object/is_crowd"]) for s in samples] == [
        r.box_columns["crowd"].tolist() for r in given
    ]


def test_py_lmdb_sees_the_fields(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    given = records()
    write(registry.load("formats", "lmdb"), tmp_path / "a.lmdb", given)
    for field, folder in (
        ("mask", "mask"),
        ("caption", "caption.text"),
        ("latent", "latent.array"),
    ):
        with lmdb.open(str(tmp_path / "a.lmdb" / folder), readonly=True, lock=False) as env:
            found = {int(key): value for key, value in env.begin().cursor()}
        assert found == _present(given, field)


def test_a_plain_parser_sees_the_fields_of_a_recordio(tmp_path: Path) -> None:
    given = records()
    write(registry.load("formats", "recordio"), tmp_path / "a.rec", given)
    found, rest = {}, (tmp_path / "a.latent.array.rec").read_bytes()
    while rest:
        magic, word = struct.unpack("<II", rest[:8])
        assert magic == 0xCED7230A
        assert word >> 29 == 0
        record, rest = rest[8 : 8 + word], rest[8 + word + -word % 4 :]
        found[struct.unpack("<IfQQ", record[:24])[2]] = record[24:]
    assert found == _present(given, "latent")
    assert decode_array(found[2]).shape == (2, 3)
