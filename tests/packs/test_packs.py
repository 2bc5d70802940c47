"""A pack, opened: a sequence of samples, and no damage to its files goes unnoticed."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import leftovers
import lmdb
import numpy as np
import pytest
from made import png

import packio
from packio.errors import (
    IntegrityError,
    KeyNotFoundError,
    NotAPackError,
    OptionError,
    PackioError,
    ReadError,
    UnfinishedPackError,
)
from packio.index import indexfile
from packio.storage import local
from packio.storage.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, image_folder: pathlib.Path) -> pathlib.Path:
    """A pack of the image folder and some odd names; copy it before changing it."""
    root = tmp_path_factory.mktemp("made")
    source = shutil.copytree(image_folder, root / "source")
    for name in (b"caf\xe9.jpg", "é.jpg".encode(), "e\u0301.jpg".encode(), b"new\nline.jpg"):
        shutil.copy(source / "nature/tiny.jpg", source / "nature" / os.fsdecode(name))
    packio.pack(source, root / "x.lmdb")
    return root / "x.lmdb"


@pytest.fixture
def mine(made: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of that pack."""
    return shutil.copytree(made, tmp_path / "x.lmdb")


def test_a_pack_is_a_sequence_of_its_samples(made: pathlib.Path) -> None:
    pack = packio.open(made)
    source = made.parent / "source"
    samples = list(pack)
    assert len(samples) == len(pack) == 29
    for i, sample in enumerate(samples):
        assert sample.index == i
        assert sample.data == (source / sample.key).read_bytes()
        assert isinstance(sample.label, int)
        assert pack.classes[sample.label] == sample.key.split("/")[0]
        assert pack[i - len(pack)] == pack[np.int32(i)] == sample
    assert pack[2:20:5] == samples[2:20:5]
    assert pack[::-1] == samples[::-1]
    assert pack[100:] == []
    assert [s.index for s in reversed(pack)] == list(range(28, -1, -1))


def test_a_sample_that_is_read_is_as_one_that_is_made(made: pathlib.Path) -> None:
    read = packio.open(made)[3]
    fields = {field.name: getattr(read, field.name) for field in dataclasses.fields(read)}
    built = packio.Sample(**fields)
    assert type(read) is packio.Sample
    assert (read, repr(read), hash(read.key)) == (built, repr(built), hash(built.key))
    assert pickle.loads(pickle.dumps(read)) == copy.deepcopy(read) == built
    assert dataclasses.replace(read, label=7) == dataclasses.replace(built, label=7) != built
    with pytest.raises(dataclasses.FrozenInstanceError):
        read.label = 7  # type: ignore[misc]  # that is what is tested


@pytest.mark.parametrize("index", [29, -30, 1 << 40, -(1 << 70), 1 << 70])
def test_an_index_out_of_range_is_an_index_error(made: pathlib.Path, index: int) -> None:
    pack = packio.open(made)
    asked: list[Callable[[Any], Any]] = [
        pack.__getitem__, pack.key, pack.key_bytes, pack.label, pack.keys().__getitem__,
        lambda i: pack.rows([0, i]), lambda i: pack.read_many([i]),
    ]  # fmt: skip
    for ask in asked:
        with pytest.raises((IndexError, OverflowError)):
            ask(index)


@pytest.mark.parametrize("index", [1.0, "1", None, b"1"])
def test_what_is_no_integer_is_a_type_error(made: pathlib.Path, index: Any) -> None:
    pack = packio.open(made)
    for ask in (pack.__getitem__, pack.key, pack.key_bytes, pack.label):
        with pytest.raises(TypeError, match=r"index .*; expected a whole number, as find\(key\)"):
            ask(index)


def test_negative_indices_count_from_the_end(made: pathlib.Path) -> None:
    pack = packio.open(made)
    for i in range(-29, 0):
        assert pack.key(i) == pack.keys()[i] == pack[i].key == pack.key(i + 29)
        assert pack.label(i) == pack[i].label
    assert pack.keys()[-3:] == [s.key for s in pack[-3:]]


def test_samples_are_found_by_key(made: pathlib.Path) -> None:
    pack = packio.open(made)
    for i in range(len(pack)):
        assert pack.find(pack.key(i)) == pack.find(pack.key_bytes(i)) == i
        assert pack.by_key(pack.key_bytes(i)) == pack[i]
    assert pack.by_key("nature/caf\udce9.jpg") == pack.by_key(b"nature/caf\xe9.jpg")
    assert pack.find("nature/é.jpg") != pack.find("nature/e\u0301.jpg")


@pytest.mark.parametrize(
    "key", ["", b"", "nature", "nature/caf\u00e9\udce9.jpg", b"\0", "a" * 9999]
)
def test_a_key_that_is_not_there_is_a_key_error(made: pathlib.Path, key: str | bytes) -> None:
    with pytest.raises(KeyNotFoundError, match="no sample has the key") as caught:
        packio.open(made).by_key(key)
    assert isinstance(caught.value, KeyError)


def test_labels_cannot_be_changed(made: pathlib.Path) -> None:
    labels = packio.open(made).labels
    assert labels is not None
    assert labels.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        labels[0] = 7


def test_many_samples_come_in_the_order_asked_for(made: pathlib.Path) -> None:
    pack = packio.open(made)
    wanted = [5, 0, 28, -1, 5, 3]
    assert pack.read_many(wanted) == [pack[i].data for i in wanted]
    assert pack.read_many(np.array(wanted)) == pack.read_many(wanted)
    assert pack.read_many([]) == []


def test_the_library_reads_what_byte_ranges_read(made: pathlib.Path) -> None:
    with packio.open(made) as ranges, packio.open(made, access="lmdb") as library:
        assert list(library) == list(ranges)
        assert (ranges.access, library.access) == ("range", "lmdb")
    with pytest.raises(OptionError, match="access='tar'"):
        packio.open(made, access="tar")


def test_a_pickle_of_a_pack_that_has_changed_is_refused(
    mine: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    pickled = pickle.dumps(packio.open(mine))
    assert pickle.loads(pickled).digest == packio.open(mine).digest
    (tmp_path / "s/a").mkdir(parents=True)
    shutil.copy(mine.parent / "x.lmdb/data.mdb", tmp_path / "unused")
    with packio.open(mine) as pack:
        (tmp_path / "s/a/1.jpg").write_bytes(pack[0].data)
    packio.pack(tmp_path / "s", mine, overwrite=True)
    with pytest.raises(IntegrityError, match="has changed since"):
        pickle.loads(pickled)


def test_a_relative_path_survives_a_change_of_folder(
    made: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made)
    pack = packio.open(".")
    monkeypatch.chdir("/")
    assert len(list(pack)) == 29


def _instead(make: Callable[[pathlib.Path], object]) -> Callable[[pathlib.Path], object]:
    def replace(file: pathlib.Path) -> None:
        file.unlink()
        make(file)

    return replace


_OF_FILES: dict[str, Callable[[pathlib.Path], object]] = {
    "truncated": lambda file: os.truncate(file, file.stat().st_size - 1),
    "truncated to nothing": lambda file: os.truncate(file, 0),
    "grown": lambda file: os.truncate(file, file.stat().st_size + 4096),
    "missing": pathlib.Path.unlink,
    "a folder": _instead(pathlib.Path.mkdir),
    "a FIFO": _instead(os.mkfifo),
    "a dangling link": _instead(lambda file: file.symlink_to("nowhere")),
}


@pytest.mark.parametrize("change", _OF_FILES.values(), ids=_OF_FILES.keys())
@pytest.mark.parametrize("name", ["data.mdb", "labels.tsv", "index.packio"])
def test_files_that_are_not_as_they_were_are_refused_when_opening(
    mine: pathlib.Path, name: str, change: Callable[[pathlib.Path], object]
) -> None:
    if (name, change) == ("index.packio", pathlib.Path.unlink):
        return  # a container without an index is indexed: see test_formats.py
    is_gone = change in (_OF_FILES["missing"], _OF_FILES["a dangling link"])
    change(mine / name)
    is_file = change not in (_OF_FILES["a folder"], _OF_FILES["a FIFO"])
    if name == "labels.tsv" and is_file:  # packio does not read this file
        with pytest.warns(UserWarning, match=name) if is_gone else contextlib.nullcontext():
            packio.open(mine)
        assert name in {damage.file for damage in packio.verify(mine).damages}
        return
    with pytest.raises(PackioError, match=name):
        packio.open(mine)


def test_the_file_of_a_pack_of_the_same_sizes_is_noticed_when_read(
    mine: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    shutil.copytree(mine, tmp_path / "y.lmdb")
    source = tmp_path / "s"
    with packio.open(mine) as pack:
        for sample in pack:
            path = os.path.join(source, sample.key)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(sample.data[:-1] + b"\x00")
    packio.pack(source, tmp_path / "y.lmdb", overwrite=True)
    shutil.copy(tmp_path / "y.lmdb/data.mdb", mine / "data.mdb")
    pack = packio.open(mine)
    for i in range(len(pack)):
        with pytest.raises(IntegrityError, match="CRC32C differs"):
            pack[i]


def test_a_turned_bit_names_key_record_and_place(mine: pathlib.Path) -> None:
    pack = packio.open(mine)
    row = pack.rows([17])[0]
    with (mine / "data.mdb").open("r+b") as file:
        file.seek(row.offset + row.length // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0x10]))
    for access in ("range", "lmdb"):
        with packio.open(mine, access=access) as opened:
            with pytest.raises(IntegrityError) as caught:
                opened[17]
            said = str(caught.value)
            for part in ("data.mdb", "record 17", repr(pack.key(17)), f"at {row.offset}"):
                assert part in said
            assert opened[16].data == pack[16].data
            assert opened.read(row, check=False) != b""


def test_a_file_truncated_while_open_is_an_error_and_no_signal(mine: pathlib.Path) -> None:
    pack = packio.open(mine)
    rows = sorted(pack.rows(range(len(pack))), key=lambda row: row.offset)
    samples = [pack[row.position] for row in rows]
    os.truncate(mine / "data.mdb", rows[-1].offset + 5)
    with pytest.raises(IntegrityError, match="truncated while it was open"):
        pack[rows[-1].position]
    assert [pack[row.position] for row in rows[:-1]] == samples[:-1]
    os.truncate(mine / "data.mdb", 0)
    for i in range(len(pack)):
        with pytest.raises(IntegrityError):
            pack[i]


def test_a_file_that_goes_while_the_pack_is_open_still_reads(mine: pathlib.Path) -> None:
    pack = packio.open(mine)
    expected = [pack[i].data for i in range(len(pack))]
    shutil.rmtree(mine)
    assert [s.data for s in pack] == expected
    pack.close()
    with pytest.raises(ReadError, match="No such file"):
        pack[0]


_OPTIONS: Any = {"lib_version": 0} if int(lmdb.__version__.split(".")[0]) >= 3 else {}


def _change(database: pathlib.Path, **options: Any) -> None:
    """Change a database in place; its files keep their sizes."""
    file = database if database.is_file() else database / "data.mdb"
    size = file.stat().st_size
    env = lmdb.open(str(database), map_size=size * 2, lock=False, **_OPTIONS, **options)
    with env.begin(write=True) as transaction:
        transaction.put(b"00000003", b"another image")
    env.close()
    os.truncate(file, size)


def test_a_database_changed_since_is_refused(mine: pathlib.Path) -> None:
    _change(mine)
    with pytest.raises(IntegrityError, match=f"^{mine}: changed since it was packed.*pack again"):
        packio.open(mine)


def test_a_changed_database_of_others_is_to_be_indexed_again(tmp_path: pathlib.Path) -> None:
    theirs = tmp_path / "theirs.lmdb"
    with lmdb.open(str(theirs), map_size=1 << 20, subdir=False, **_OPTIONS) as env:
        for i in range(20):
            with env.begin(write=True) as transaction:
                transaction.put(b"%08d" % i, png(width=4 + i))
    packio.reindex(theirs)
    _change(theirs, subdir=False)
    advice = f"^{theirs}: changed since it was indexed.*run packio reindex$"
    with pytest.raises(IntegrityError, match=advice):
        packio.open(theirs)


_NO_PACKS: dict[str, Callable[[pathlib.Path], object]] = {
    "nothing": lambda path: path,
    "an empty folder": lambda path: path.mkdir(),
    "a file": lambda path: path.write_bytes(b"x"),
    "an empty file": lambda path: path.touch(),
    "a folder with an index that is a folder": lambda path: (path / "index.packio").mkdir(
        parents=True
    ),
    "a FIFO": os.mkfifo,
    "a link to itself": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("make", _NO_PACKS.values(), ids=_NO_PACKS.keys())
def test_what_is_no_pack_is_told_apart(
    tmp_path: pathlib.Path, make: Callable[[pathlib.Path], object]
) -> None:
    make(tmp_path / "x.lmdb")
    with pytest.raises((NotAPackError, ReadError), match=r"x\.lmdb"):
        packio.open(tmp_path / "x.lmdb")


@pytest.mark.parametrize("path", ["x" * 300, "a\0b", "", "x/y/z", "/dev/null", "/dev/null/x"])
def test_odd_paths_are_no_packs(
    path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((NotAPackError, ReadError)):
        packio.open(path)


def test_a_folder_beside_says_that_packing_is_unfinished(mine: pathlib.Path) -> None:
    workshop = mine.with_name("x.lmdb.packio-tmp")
    workshop.mkdir()
    with pytest.raises(UnfinishedPackError, match=r"x\.lmdb\.packio-tmp is there"):
        packio.open(mine)
    (workshop / "replaced").mkdir()  # a run that replaces the pack was killed
    (workshop / "new-files").touch()
    with pytest.raises(UnfinishedPackError, match="do not delete that folder: the old pack may"):
        packio.open(mine)
    (workshop / "published").touch()  # the new pack is in place
    with pytest.raises(UnfinishedPackError, match="or delete that folder to give up"):
        packio.open(mine)
    shutil.rmtree(workshop)
    packio.open(mine)


def test_a_pack_with_the_longest_name_opens(mine: pathlib.Path) -> None:
    longest = mine.with_name("x" * 255)
    mine.rename(longest)
    assert len(list(packio.open(longest))) == 29


def test_a_pack_is_opened_through_a_link(mine: pathlib.Path) -> None:
    link = mine.with_name("link")
    link.symlink_to(mine.name)
    assert packio.open(link).digest == packio.open(mine).digest


def _rewritten(pack: pathlib.Path, metadata: dict[str, Any], **changed: np.ndarray) -> None:
    """Write the index of a pack again: right in itself, and wrong."""
    index = indexfile.Index(pack / "index.packio")
    columns = {name: index.column(name).array().copy() for name in index.column_names}
    indexfile.write(pack / "index.packio", {**columns, **changed}, {**index.metadata, **metadata})


@pytest.mark.parametrize(
    ("name", "value"),
    [("file", 2), ("file", 1 << 31), ("offset", -1), ("offset", 1 << 62), ("length", -1),
     ("length", 1 << 62), ("dtype", 9), ("crc32c", 0), ("length", 0)],
)  # fmt: skip
def test_an_index_with_wrong_numbers_is_an_error_and_ends_no_loop(
    mine: pathlib.Path, name: str, value: int
) -> None:
    column = indexfile.Index(mine / "index.packio").column(f"image/{name}").array().copy()
    column[5] = value
    _rewritten(mine, {}, **{f"image/{name}": column})
    pack = packio.open(mine)
    with pytest.raises(IntegrityError):
        pack[5]
    with pytest.raises(IntegrityError):  # an IndexError would look like the end
        list(pack)


@pytest.mark.parametrize("format_name", ["zip", None, "../lmdb"])
def test_an_index_of_an_unknown_format_is_refused(mine: pathlib.Path, format_name: Any) -> None:
    _rewritten(mine, {"format": format_name})
    with pytest.raises(NotAPackError, match="is unknown"):
        packio.open(mine)


@pytest.mark.parametrize(("spare", "expected"), [(0, 64), (100, 100)])
def test_as_many_files_are_open_as_the_process_spares(
    spare: int, expected: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "spare_descriptors", lambda: spare * len(local._all))
    names = [f"{i}.bin" for i in range(200)]
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    files = LocalStore(tmp_path, names, [len(n) for n in names])
    before = leftovers.descriptors_below(tmp_path)
    most = 0
    for i in [*range(200), *range(199, -1, -1)]:
        assert files.read(i, 0, len(names[i])) == names[i].encode()
        most = max(most, leftovers.descriptors_below(tmp_path) - before)
    assert expected - 4 <= most <= expected
    files.close()
    assert leftovers.descriptors_below(tmp_path) == before


def test_many_threads_read_many_files(tmp_path: pathlib.Path) -> None:
    names = [f"{i}.bin" for i in range(150)]
    for name in names:
        (tmp_path / name).write_bytes(name.encode() * 100)
    files = LocalStore(tmp_path, names, [len(n) * 100 for n in names])
    wrong: list[str] = []

    def read(seed: int) -> None:
        chosen = [names[i] for i in np.random.default_rng(seed).integers(0, 150, 1500)]
        read = (files.read(names.index(name), len(name), len(name)) for name in chosen)
        wrong.extend(n for n, data in zip(chosen, read, strict=True) if data != n.encode())

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


_READ_ONLY = """
mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" || exit 99
exec "$2" -c "
import os, sys, packio
try:
    open(os.path.join(sys.argv[1], 'x'), 'w')
except OSError:
    for access in ('range', 'lmdb'):
        print(sum(len(s.data) for s in packio.open(sys.argv[1], access=access)))
" "$1"
"""


def test_a_pack_on_a_read_only_file_system_reads(mine: pathlib.Path) -> None:
    command = ["unshare", "-m", "sh", "-c", _READ_ONLY, "sh", str(mine), sys.executable]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    except FileNotFoundError:
        pytest.skip("unshare is missing")
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip("nothing may be mounted")
    total = sum(len(s.data) for s in packio.open(mine))
    assert (done.stdout, done.stderr) == (f"{total}\n{total}\n", "")


@pytest.mark.parametrize("access", ["range", "lmdb"])
def test_opening_and_reading_write_nothing(mine: pathlib.Path, access: str) -> None:
    def state() -> list[tuple[str, int, int]]:
        found = [mine.parent, *mine.parent.rglob("*")]
        return [(str(p), p.stat().st_mtime_ns, p.stat().st_ctime_ns) for p in sorted(found)]

    before = state()
    with packio.open(mine, access=access) as pack:
        list(pack)
        pack.find(pack.key(3))
    assert state() == before


def test_metadata_is_what_was_packed(made: pathlib.Path) -> None:
    pack = packio.open(made)
    assert pack.classes == ["machines", "nature", "people"]
    assert pack.class_to_idx == {"machines": 0, "nature": 1, "people": 2}
    assert pack.metadata["source"] == {"kind": "image_folder"}
    assert json.loads(json.dumps(pack.metadata)) == pack.metadata
    assert repr(pack) == f"<packio.Pack {made} (29 samples, lmdb)>"
