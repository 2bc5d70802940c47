"""LMDB, checked against py-lmdb: what we write it reads, what it writes we find, byte for byte."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import long
import made
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import packio
from packio import errors
from packio.formats import Reading
from packio.formats.lmdb import FORMAT
from packio.formats.lmdb.library import LmdbWriter
from packio.images import encodings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

lmdb = pytest.importorskip("lmdb")

_BOTH_VERSIONS = int(lmdb.__version__.split(".")[0]) >= 3  # py-lmdb 3 writes file version 3, too
_VERSION = {"lib_version": 0} if _BOTH_VERSIONS else {}
_EACH_VERSION = pytest.mark.parametrize("version", ["1", "3"], indirect=True)
_PAGE = os.sysconf("SC_PAGE_SIZE")
_HALF = _PAGE // 2
_write = functools.partial(made.write, FORMAT)
_write_datums = functools.partial(made.write, FORMAT, values="datum")
# Around the largest value that stays in its leaf, and around whole pages.
_SIZES = [0, 1, 100, *range(_HALF - 60, _HALF + 10), _PAGE - 17, _PAGE - 16, _PAGE - 15, 3_000_017]


@pytest.fixture
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written in this test is of version 1 or 3 of the file format."""
    _write_version(request.param, monkeypatch)


def _write_version(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if version == "3":
        if not _BOTH_VERSIONS:
            pytest.skip("this py-lmdb writes file version 1 only")
        monkeypatch.setitem(_VERSION, "lib_version", 1)


def _header(content: bytes | bytearray) -> int:
    """Bytes of the header of a page, by the place of the magic number in a database."""
    return content.index(b"\xde\xc0\xef\xbe")


def _open(path: Path, **options: Any) -> Any:
    return lmdb.open(str(path), **({"map_size": 1 << 28, "lock": False} | _VERSION | options))


def _fill(path: Path, pairs: Iterable[tuple[bytes, bytes]], **options: Any) -> None:
    with contextlib.closing(_open(path, **options)) as env, env.begin(write=True) as transaction:
        for key, value in pairs:
            transaction.put(key, value)


def _cursor(path: Path, **options: Any) -> list[tuple[bytes, bytes]]:
    """All items, as py-lmdb reads them."""
    with contextlib.closing(_open(path, readonly=True, **options)) as env, env.begin() as reading:
        return list(reading.cursor())


def _scanned(path: Path) -> list[tuple[bytes, bytes]]:
    """All items, as `scan` says where they lie."""
    folder = path if path.is_dir() else path.parent
    items = []
    for entry in made.scanned(FORMAT, path):
        with (folder / entry.file).open("rb") as file:
            file.seek(entry.offset)
            items.append((entry.key, file.read(entry.length)))
    return items


# Writing


def test_lmdb_reads_what_was_written(tmp_path: Path) -> None:
    records = made.random_records(_SIZES)
    _write(tmp_path / "out.lmdb", records)
    expected = [(b"%08d" % i, record.data) for i, record in enumerate(records)]
    assert _cursor(tmp_path / "out.lmdb") == expected


def test_labels_have_a_line_a_record_with_odd_keys_escaped(tmp_path: Path) -> None:
    keys = [b"a/b c.jpg", b"t\ta\\b", b"n\nr\r", b"\xff\xfe", "é".encode()]
    records = [made.record(b"x", i, key) for i, key in enumerate(keys)]
    unlabelled = made.record(b"y", None, b"none")  # of a pack without labels
    _write(tmp_path / "out.lmdb", [*records, unlabelled])
    assert (tmp_path / "out.lmdb/labels.tsv").read_bytes() == (
        b"0\t0\ta/b c.jpg\n1\t1\tt\\ta\\\\b\n2\t2\tn\\nr\\r\n3\t3\t\xff\xfe\n"
        b"4\t4\t\xc3\xa9\n5\t\tnone\n"
    )


def test_keys_are_as_wide_as_the_count_needs(tmp_path: Path) -> None:
    writer = made.writer(FORMAT, tmp_path / "out.lmdb", count=100_000_001, size=0)
    writer.add(made.random_records([3]))
    assert writer.close().info["keys"] == 9
    assert _cursor(tmp_path / "out.lmdb")[0][0] == b"000000000"


def test_a_map_that_grows_loses_nothing(tmp_path: Path) -> None:
    records = made.random_records([90_000] * 600 + [100] * 12_000)
    writer: Any = made.writer(FORMAT, tmp_path / "out.lmdb", count=0, size=0)
    before = writer._map_size
    writer.add(records)
    writer.close()
    assert writer._map_size > 2 * before
    expected = [(b"%08d" % i, record.data) for i, record in enumerate(records)]
    assert _cursor(tmp_path / "out.lmdb") == expected


class _Lying(LmdbWriter):
    """After the database is closed, a bit of a value turns over."""

    def abort(self) -> None:
        super().abort()
        with (self.path / "data.mdb").open("r+b") as file:
            content = file.read()
            position = content.index(b"needle")
            file.seek(position)
            file.write(b"n\x64edle")


def test_a_value_that_reads_back_differently_is_an_error(tmp_path: Path) -> None:
    writer = _Lying(tmp_path / "out.lmdb", 3, 30_000)
    writer.add(
        [*made.random_records([10, 9000]), made.record(b"-" * 5000 + b"needle" * 2, 0, b"k")]
    )
    with pytest.raises(errors.OutputError, match=r"data\.mdb: record 2 reads back differently"):
        writer.close()


def test_scanning_needs_no_lmdb(tmp_path: Path) -> None:
    _write(tmp_path / "out.lmdb", made.random_records([1, 5000]))
    code = (
        "import sys; sys.modules['lmdb'] = None; from pathlib import Path;"
        "from packio import errors;"
        "from packio.formats import Reading; from packio.formats.lmdb import FORMAT as lmdb;"
        "path = Path(sys.argv[1]); lmdb.identity(path);"
        "print([r.image.length for r in lmdb.scan(path, Reading())])\n"
        "try: lmdb.writer(path / 'x', count=1, size=1, classes=())\n"
        "except errors.MissingPackageError as error: print(error)"
    )
    said = made.in_a_process(code, tmp_path / "out.lmdb").splitlines()
    assert said[0] == "[1, 5000]"
    assert "pip install 'lmdb'" in said[1]


# Scanning


def _boundaries(path: Path) -> None:
    _fill(path, [(b"k%05d" % i, bytes([i % 256]) * n) for i, n in enumerate(_SIZES)])


def _tiny(path: Path) -> None:
    _fill(path, [(b"%d" % i, b"v%d" % i) for i in range(5000)])


def _deep(path: Path) -> None:
    """Long keys, so few of them fit into a branch: a tree of 4 levels or more."""
    _fill(path, [(b"%0400d" % (i * 7919 % 9973), b"%d" % i) for i in range(9973)])
    with contextlib.closing(_open(path)) as env:
        assert env.stat()["depth"] >= 4


def _rewritten(path: Path) -> None:
    """Many transactions that put, replace and delete: pages come from the free list."""
    rng = random.Random(5)
    with contextlib.closing(_open(path)) as env:
        for _ in range(60):
            with env.begin(write=True) as transaction:
                for _ in range(40):
                    key = b"%d" % rng.randrange(400)
                    if rng.random() < 0.4:
                        transaction.delete(key)
                    else:
                        transaction.put(key, rng.randbytes(rng.choice((3, 900, 3000, 40_000))))


def _all_deleted(path: Path) -> None:
    _tiny(path)
    with contextlib.closing(_open(path)) as env, env.begin(write=True) as transaction:
        for i in range(5000):
            transaction.delete(b"%d" % i)


def _compacted(path: Path) -> None:
    _rewritten(path.with_name("source"))
    path.mkdir()
    with contextlib.closing(_open(path.with_name("source"))) as env:
        env.copy(str(path), compact=True)


def _mapped(path: Path) -> None:
    """With writemap the file is as long as the map."""
    _fill(path, [(b"%d" % i, bytes(i)) for i in range(4000)], writemap=True, map_size=64 << 20)


def _single_file(path: Path) -> None:
    _fill(path, [(b"%d" % i, bytes(i)) for i in range(4000)], subdir=False)


def _reversed_keys(path: Path) -> None:
    """LMDB compares these keys from their ends."""
    with contextlib.closing(_open(path)) as env:
        pass
    whole = bytearray((path / "data.mdb").read_bytes())
    for page in (0, _PAGE):  # py-lmdb has no way to ask for it in the main database
        struct.pack_into("<H", whole, page + _header(whole) + 24 + 48 + 4, 0x02)
    (path / "data.mdb").write_bytes(whole)
    with contextlib.closing(_open(path)) as env, env.begin(write=True) as transaction:
        for i in range(1000):
            transaction.put(b"%d" % i, b"%d" % i)


_LAYOUTS = [
    _boundaries, _tiny, _deep, _rewritten, _all_deleted, _compacted, _mapped, _single_file,
    _reversed_keys,
]  # fmt: skip


@_EACH_VERSION
@pytest.mark.usefixtures("version")
@pytest.mark.parametrize("make", _LAYOUTS, ids=lambda make: make.__name__[1:])
def test_scan_finds_what_lmdb_finds(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "foreign"
    make(path)
    assert _scanned(path) == _cursor(path, subdir=path.is_dir())


_keys = st.binary(min_size=1, max_size=511)
_values = st.binary(max_size=200) | st.integers(0, 9000).map(lambda n: b"\xa5" * n)


@_EACH_VERSION
@pytest.mark.usefixtures("version")
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.dictionaries(_keys, st.none() | _values, max_size=40), max_size=4))
def test_scan_finds_any_keys_and_values(
    tmp_path: Path, transactions: list[dict[bytes, bytes | None]]
) -> None:
    shutil.rmtree(tmp_path / "any", ignore_errors=True)
    with contextlib.closing(_open(tmp_path / "any")) as env:
        for changes in transactions:
            with env.begin(write=True) as transaction:
                for key, value in changes.items():
                    if value is None:
                        transaction.delete(key)
                    else:
                        transaction.put(key, value)
    assert _scanned(tmp_path / "any") == _cursor(tmp_path / "any")


@_EACH_VERSION
@pytest.mark.usefixtures("version")
def test_databases_within_are_refused_unless_one_is_named(tmp_path: Path) -> None:
    with contextlib.closing(_open(tmp_path / "named", max_dbs=2)) as env:
        env.open_db(b"inner")
    with pytest.raises(errors.NotAPackError, match=r"--database inner, or database='inner'"):
        list(made.scanned(FORMAT, tmp_path / "named"))
    assert not list(made.scanned(FORMAT, tmp_path / "named", database="inner"))


@_EACH_VERSION
@pytest.mark.usefixtures("version")
def test_duplicate_keys_are_refused(tmp_path: Path) -> None:
    _tiny(tmp_path / "dup")
    whole = bytearray((tmp_path / "dup/data.mdb").read_bytes())
    for page in (0, _PAGE):
        struct.pack_into("<H", whole, page + _header(whole) + 24 + 48 + 4, 0x04)
    (tmp_path / "dup/data.mdb").write_bytes(whole)
    with pytest.raises(errors.NotAPackError, match="duplicate keys"):
        list(made.scanned(FORMAT, tmp_path / "dup"))


@pytest.mark.skipif(not _BOTH_VERSIONS, reason="this py-lmdb writes file version 1 only")
def test_a_database_of_lmdb_1_0_is_read_by_ranges(tmp_path: Path) -> None:
    images = [made.saved(Image.new("RGB", (8, 8)), "PNG") + bytes(5000 * i) for i in range(3)]
    _fill(tmp_path / "new", [(b"%d" % i, im) for i, im in enumerate(images)], lib_version=1)
    with packio.open(tmp_path / "new") as pack:
        assert pack.access == "range"
        assert [sample.data for sample in pack] == images
        assert list(pack.keys()) == ["0", "1", "2"]
    before = FORMAT.identity(tmp_path / "new")
    _fill(tmp_path / "new", [(b"3", b"x")], lib_version=1)
    assert FORMAT.identity(tmp_path / "new") != before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an LMDB database"),
        (b"GIF89a" * 3000, "not an LMDB database"),
        (bytes(12) + b"\xde\xc0\xef\xbe" + bytes(9000), "32-bit"),
        (bytes(16) + b"\xbe\xef\xc0\xde" + bytes(9000), "big-endian"),
        (bytes(16) + b"\xde\xc0\xef\xbe\x02\0\0\0" + bytes(9000), "version 2"),
        (bytes(16) + b"\xde\xc0\xef\xbe\x03\0\0\0" + bytes(9000), "32-bit"),
        (bytes(24) + b"\xde\xc0\xef\xbe\x04\0\0\0" + bytes(9000), "version 4"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "data.mdb").write_bytes(content)
    with pytest.raises(errors.NotAPackError, match=message):
        list(made.scanned(FORMAT, tmp_path))


# Damage


@pytest.fixture(scope="module", params=["1", "3"])
def victim(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small database with branches, inline values, overflow pages and a free list."""
    with pytest.MonkeyPatch.context() as patched:
        _write_version(request.param, patched)
        return _victim(tmp_path_factory)


def _victim(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("victim") / "db"
    rng = random.Random(9)
    with contextlib.closing(_open(path)) as env:
        for i in range(3):
            with env.begin(write=True) as transaction:
                for j in range(40):
                    key = b"%0150d" % (j * 3 + i)
                    transaction.put(key, rng.randbytes(rng.choice((0, 20, 500, 3000, 9000))))
    return (path / "data.mdb").read_bytes()


@pytest.mark.parametrize("count", long.after(1, (200, 900)))
def test_garbage_in_a_page_crashes_nothing(tmp_path: Path, victim: bytes, count: int) -> None:
    """Where the nodes of pages begin, which `test_format_damage` seldom meets."""
    rng = random.Random(12)
    for _ in range(count):
        damaged = bytearray(victim)
        page = rng.randrange(len(victim) // _PAGE) * _PAGE
        for _ in range(rng.choice((1, 4, 40))):
            at = page + rng.randrange(rng.choice((24, 200, _PAGE)))
            damaged[at : at + 2] = rng.choice((b"\0\0", b"\xff\xff", rng.randbytes(2)))
        made.survives(FORMAT, tmp_path / "db", bytes(damaged))
        with contextlib.suppress(errors.PackioError):
            FORMAT.identity(tmp_path / "db")


def _roots(content: bytes) -> Iterator[tuple[int, int]]:
    """Position of the root's field in each meta page, and what it says."""
    for page in (0, _PAGE):
        at = page + _header(content) + 24 + 48 + 40
        yield at, struct.unpack_from("<Q", content, at)[0]


def test_a_page_that_is_its_own_child_is_refused(tmp_path: Path, victim: bytes) -> None:
    damaged = bytearray(victim)
    for page in {page for _, page in _roots(victim)}:
        header = _header(victim)
        (node,) = struct.unpack_from("<H", victim, page * _PAGE + header)
        node += 24 if header == 24 else 0  # of version 3, where positions count from the header
        struct.pack_into("<HHH", damaged, page * _PAGE + node, page & 0xFFFF, page >> 16, 0)
    (tmp_path / "db").write_bytes(damaged)
    with pytest.raises(errors.IntegrityError, match=r"db: page \d+ (is in the tree twice|says it)"):
        list(made.scanned(FORMAT, tmp_path / "db"))


def test_a_deep_chain_of_pages_is_refused(tmp_path: Path, victim: bytes) -> None:
    damaged = bytearray(victim)
    for at, _ in _roots(victim):
        struct.pack_into("<H", damaged, at - 34, 60_000)  # the depth
    (tmp_path / "db").write_bytes(damaged)
    with pytest.raises(errors.IntegrityError, match="a tree of depth 60000"):
        list(made.scanned(FORMAT, tmp_path / "db"))


# Identity


def test_identity_changes_with_a_transaction_and_not_with_a_copy(tmp_path: Path) -> None:
    _write(tmp_path / "a.lmdb", made.random_records([10, 5000]))
    before = FORMAT.identity(tmp_path / "a.lmdb")
    shutil.copytree(tmp_path / "a.lmdb", tmp_path / "b.lmdb")
    _fill(tmp_path / "a.lmdb", [(b"00000001", b"other")])
    assert FORMAT.identity(tmp_path / "b.lmdb") == before
    assert FORMAT.identity(tmp_path / "a.lmdb") != before


# Reading through py-lmdb


def _reader(path: Path) -> Any:
    return FORMAT.reader(path, Reading())


def test_a_reader_gets_records_by_number(tmp_path: Path) -> None:
    records = made.random_records(_SIZES)
    _write(tmp_path / "out.lmdb", records)
    reader = _reader(tmp_path / "out.lmdb")
    assert [reader.get(i) for i in range(len(records))] == [r.data for r in records]
    for outside in (-1, len(records)):
        with pytest.raises(IndexError, match="no sample"):
            reader.get(outside)


@pytest.mark.parametrize("count", [10, 1000])
def test_a_reader_gets_records_of_any_keys_in_their_order(tmp_path: Path, count: int) -> None:
    _fill(tmp_path / "db", [(b"%d" % i, b"<%d>" % i) for i in range(count)])
    reader = _reader(tmp_path / "db")
    assert [reader.get(i) for i in range(count)] == [v for _, v in _cursor(tmp_path / "db")]


def test_a_reader_is_not_misled_by_keys_that_look_numbered(tmp_path: Path) -> None:
    _fill(tmp_path / "db", [(b"00", b"a"), (b"01x", b"b"), (b"02", b"c")])
    reader = _reader(tmp_path / "db")
    assert [reader.get(i) for i in (2, 1, 0)] == [b"c", b"b", b"a"]


@pytest.mark.skipif(not _BOTH_VERSIONS, reason="this py-lmdb writes file version 1 only")
def test_a_reader_reads_databases_of_lmdb_1_0(tmp_path: Path) -> None:
    _fill(tmp_path / "new", [(b"%03d" % i, bytes([i]) * 5000) for i in range(200)], lib_version=1)
    reader = _reader(tmp_path / "new")
    assert [reader.get(i) for i in range(200)] == [bytes([i]) * 5000 for i in range(200)]


def test_readers_do_not_mind_who_has_a_database_open(tmp_path: Path) -> None:
    records = made.random_records([10, 5000])
    _write(tmp_path / "out.lmdb", records)
    (tmp_path / "link").symlink_to(tmp_path / "out.lmdb")
    with contextlib.closing(_open(tmp_path / "out.lmdb", readonly=True)) as env:
        readers = [_reader(tmp_path / name) for name in ("out.lmdb", "link")]
        assert {reader.get(1) for reader in readers} == {records[1].data}
        with env.begin() as reading:
            assert reading.get(b"00000000") == records[0].data
    assert len(_cursor(tmp_path / "out.lmdb")) == 2  # py-lmdb refuses what is open here already


def test_a_file_that_kills_the_library_is_an_error(tmp_path: Path) -> None:
    """LMDB maps the file, and a touch beyond its end is a bus error."""
    records = made.random_records([5000] * 100)
    _write(tmp_path / "out.lmdb", records)
    with (tmp_path / "out.lmdb/data.mdb").open("r+b") as file:
        file.truncate(40 * _PAGE)
    reader = _reader(tmp_path / "out.lmdb")
    for _ in range(2):
        with pytest.raises(errors.IntegrityError, match=r"out\.lmdb: its library crashes .*SIGBUS"):
            reader.get(99)


def test_a_reader_reads_a_file_that_lacks_unused_pages_only(tmp_path: Path) -> None:
    """LMDB leaves out pages at the end that a transaction took and gave back (one file in 130)."""
    _fill(tmp_path / "db", [(b"a", b"x" * 9000)])
    whole = bytearray((tmp_path / "db/data.mdb").read_bytes())
    for page in (0, _PAGE):
        last_page = page + 16 + 24 + 2 * 48
        struct.pack_into("<Q", whole, last_page, struct.unpack_from("<Q", whole, last_page)[0] + 3)
    (tmp_path / "db/data.mdb").write_bytes(whole)
    assert _reader(tmp_path / "db").get(0) == b"x" * 9000


def test_a_path_need_not_be_utf8(tmp_path: Path) -> None:
    """File names are bytes; this one is Latin-1."""
    path = tmp_path / "caf\udce9.lmdb"
    _write(path, [made.record(b"data", 0, b"key")])
    assert _reader(path).get(0) == b"data"


# Datums, checked against protobuf


@functools.cache
def _message() -> Any:
    """Caffe's message Datum, as protobuf makes it of caffe.proto."""
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    descriptor_pool = pytest.importorskip("google.protobuf.descriptor_pool")
    message_factory = pytest.importorskip("google.protobuf.message_factory")
    kinds = descriptor_pb2.FieldDescriptorProto
    fields = {
        "channels": kinds.TYPE_INT32, "height": kinds.TYPE_INT32, "width": kinds.TYPE_INT32,
        "data": kinds.TYPE_BYTES, "label": kinds.TYPE_INT32, "float_data": kinds.TYPE_FLOAT,
        "encoded": kinds.TYPE_BOOL,
    }  # fmt: skip
    file = descriptor_pb2.FileDescriptorProto(name="caffe.proto", package="caffe", syntax="proto2")
    message = file.message_type.add(name="Datum")
    for number, (name, kind) in enumerate(fields.items(), 1):
        label = kinds.LABEL_REPEATED if name == "float_data" else kinds.LABEL_OPTIONAL
        message.field.add(name=name, number=number, type=kind, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("caffe.Datum"))


def _raw(pixels: np.ndarray, encoding: str, label: int | None = 3) -> made.Made:
    """Pixels (H, W, C) as planes, as they are."""
    data = pixels.transpose(2, 0, 1).tobytes()
    return made.record(data, label, b"k", encoding, *pixels.shape)


def test_datums_are_protobuf_messages(tmp_path: Path) -> None:
    given, labels = [1, 100, 128, 5000, 3_000_017], [1, -1, 2**31 - 1, -(2**31), 300]
    records = [
        record.replaced(label=label)
        for record, label in zip(made.random_records(given), labels, strict=True)
    ]
    _write_datums(tmp_path / "out.lmdb", records)
    found = _cursor(tmp_path / "out.lmdb")
    assert [key for key, _ in found] == [b"%08d" % i for i in range(5)]
    for record, (_, value) in zip(records, found, strict=True):
        datum = _message().FromString(value)
        assert (datum.data, datum.label, datum.encoded) == (record.data, record.label, True)
        assert not datum.HasField("channels")
        assert datum.SerializeToString(deterministic=True) == value


def test_ranges_are_of_the_images_in_the_datums(tmp_path: Path) -> None:
    path, records = tmp_path / "out.lmdb", made.random_records([1, 100, 5000, 3_000_017])
    records = [r.replaced(mask=bytes([i]) * 3000) for i, r in enumerate(records)]
    written = _write_datums(path, records)
    assert written.info["values"] == "datum"
    whole, masks = ((path / f"{folder}data.mdb").read_bytes() for folder in ("", "mask/"))
    images, others = (
        list(zip(*(column.tolist() for column in written.places[name][1:3]), strict=True))
        for name in ("image", "mask")
    )
    assert [whole[o : o + n] for o, n in images] == [r.data for r in records]
    assert [masks[o : o + n] for o, n in others] == [r.mask_data for r in records]
    entries = list(made.scanned(FORMAT, path))
    assert [(e.offset, e.length) for e in entries] == images
    assert [e.mask and e.mask[2] for e in entries] == [3000] * 4
    assert [(e.label, e.key) for e in entries] == [(r.label, r.key) for r in records]
    (path / "labels.tsv").unlink()
    assert [(e.offset, e.label) for e in made.scanned(FORMAT, path)] == [
        (e.offset, e.label) for e in entries
    ]
    assert _reader(path).get(2) == records[2].data


@pytest.mark.parametrize("label", [None, np.array([0.5, 1], np.float32)])
def test_without_an_int_label_a_datum_has_none(tmp_path: Path, label: np.ndarray | None) -> None:
    _write_datums(tmp_path / "out.lmdb", [made.record(b"image", label, b"k")])
    ((_, value),) = _cursor(tmp_path / "out.lmdb")
    assert not _message().FromString(value).HasField("label")
    (entry,) = made.scanned(FORMAT, tmp_path / "out.lmdb")
    assert entry.label == (None if label is None else (0.5, 1.0))


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("encoding", ["raw", "raw_bgr"])
def test_planes_go_into_datums_as_they_are(tmp_path: Path, dtype: str, encoding: str) -> None:
    pixels = np.arange(5 * 7 * 3).reshape(5, 7, 3).astype(dtype)
    record = _raw(pixels, encoding)
    written = _write_datums(tmp_path / "out.lmdb", [record])
    ((_, value),) = _cursor(tmp_path / "out.lmdb")
    datum = _message().FromString(value)
    assert (datum.height, datum.width, datum.channels, datum.label) == (5, 7, 3, 3)
    assert datum.HasField("encoded")  # DALI takes what does not say for encoded
    assert not datum.encoded
    found = np.frombuffer(datum.data, np.uint8) if dtype == "uint8" else datum.float_data
    assert np.array_equal(np.reshape(found, (3, 5, 7)).transpose(1, 2, 0), pixels)
    (entry,) = made.scanned(FORMAT, tmp_path / "out.lmdb")
    assert (entry.offset, entry.length) == (written.places["image"].offset[0], len(record.data))
    assert entry.facts == encodings.raw_facts(5, 7, 3, dtype, encoding)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (made.record(b"", 1, b"k"), "no bytes"),
        (made.record(b"image", 2**31, b"k"), "label 2147483648; Datums have 32 bits"),
        (_raw(np.zeros((2, 3, 3), np.uint8), "raw_hwc"), r"raw_hwc, 18 bytes.*planes \(C, H, W\)"),
        (_raw(np.zeros((2, 3, 3), np.uint16), "raw"), "36 bytes for 3x2x3"),
    ],
)
def test_what_no_datum_holds_is_refused(tmp_path: Path, record: made.Made, message: str) -> None:
    with pytest.raises(errors.OutputError, match=rf"out\.lmdb: b'k' has .*{message}"):
        _write_datums(tmp_path / "out.lmdb", [record])


def test_other_values_are_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.OptionError, match="values='pickle': expected 'datum'"):
        made.writer(FORMAT, tmp_path / "out.lmdb", count=1, size=1, values="pickle")
    assert not list(tmp_path.iterdir())


def _places(path: Path) -> list[tuple[int, int, int]]:
    with packio.open(path) as pack:
        rows = [pack.row(i) for i in range(len(pack))]
    return [(row.offset, row.length, row.crc32c) for row in rows]


def test_a_pack_of_datums_is_a_pack(tmp_path: Path, image_folder: Path) -> None:
    out = packio.pack(image_folder, tmp_path / "out.lmdb", values="datum", shards=2).out
    plain = packio.open(packio.pack(image_folder, tmp_path / "plain.tar").out)
    for access in ("range", "lmdb"):
        with packio.open(out, access=access) as pack:
            assert [(s.key, s.label, s.data) for s in pack] == [
                (s.key, s.label, s.data) for s in plain
            ]
    assert packio.verify(out).ok
    assert packio.pack(image_folder, out, values="datum", shards=2).up_to_date
    with pytest.raises(errors.OutputExistsError, match="other options"):
        packio.pack(image_folder, out, shards=2)
    before = _places(out)
    (out / "index.packio").unlink()
    packio.reindex(out)
    assert _places(out) == before
    with packio.open(packio.convert(out, tmp_path / "back.tar").out) as back:
        assert [s.data for s in back] == [s.data for s in plain]


def test_only_formats_that_know_an_option_take_it(tmp_path: Path, image_folder: Path) -> None:
    with pytest.raises(
        errors.OptionError, match="values='datum': no option of packing from image_folder to tar"
    ):
        packio.pack(image_folder, tmp_path / "out.tar", values="datum")
    assert not list(tmp_path.iterdir())


# torchvision


@pytest.mark.usefixtures("torchvision")
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # torchvision's
def test_torchvisions_lsun_reads_it(
    tmp_path: Path, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision.datasets import LSUN

    monkeypatch.chdir(tmp_path)  # where it writes a cache
    for name in ("bedroom_train", "tower_val"):
        packio.pack(image_folder, tmp_path / f"{name}_lmdb", format="lmdb")
    dataset = LSUN(str(tmp_path), classes=["bedroom_train", "tower_val"])
    pack = packio.open(tmp_path / "tower_val_lmdb")
    assert len(dataset) == 2 * len(pack)
    for i, sample in enumerate(pack):
        image, target = dataset[len(pack) + i]
        assert target == 1
        assert np.array_equal(image, sample.decode(exif_orientation=False))
    for database in dataset.dbs:
        database.env.close()
