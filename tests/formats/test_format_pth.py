"""Files of torch.save, checked against torch: it loads ours, and we find what it wrote."""

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
import zipfile
from collections import Counter, OrderedDict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import made
import numpy as np
import pytest
import torch

from packio import errors
from packio.formats import Reading, Written
from packio.formats import pth as container

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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


def _ragged(pack: Any, name: str) -> list[bytes]:
    prefix = "" if name == "data" else name.partition("_")[0] + "_"
    data, offsets = pack[name].numpy(), pack[prefix + "offsets"].tolist()
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


@pytest.mark.parametrize("mmap", [False, True])
def test_torch_loads_what_was_written(tmp_path: Path, mmap: bool) -> None:
    records = _records(_SIZES)
    _write(tmp_path / "out.pth", records)
    pack = torch.load(tmp_path / "out.pth", weights_only=True, mmap=mmap)
    assert list(pack) == ["data", "offsets", "label", "key_data", "key_offsets", "packio"]
    assert _ragged(pack, "data") == [r.data for r in records]
    assert _ragged(pack, "key_data") == [r.key for r in records]
    assert pack["label"].tolist() == [r.label for r in records]
    assert pack["label"].dtype == pack["offsets"].dtype == torch.int64
    header = json.loads(pack["packio"])
    assert header == {"classes": ["a", "b"], "format": "pth", "samples": 10, "version": 1}


def test_torch_loads_all_that_a_record_can_have(tmp_path: Path) -> None:
    records = _full(20)
    _write(tmp_path / "out.pth", records)
    pack = torch.load(tmp_path / "out.pth", weights_only=True)
    assert _ragged(pack, "data") == [r.data for r in records]
    assert _ragged(pack, "key_data") == [r.key for r in records]
    assert _ragged(pack, "mask_data") == [r.mask_data for r in records]
    assert _ragged(pack, "meta_data") == [r.meta for r in records]
    assert pack["label"].tolist() == [[i, 0.5, -i] for i in range(20)]
    assert pack["label"].dtype == pack["boxes"].dtype == torch.float32
    for i in range(20):
        span = slice(*pack["box_offsets"][i : i + 2])
        assert pack["boxes"][span].tolist() == [[i + 0.25] * 4] * (i % 3)
        assert pack["box_labels"][span].tolist() == [-i] * (i % 3)


def test_the_archive_is_sound_and_its_tensors_are_aligned(tmp_path: Path) -> None:
    written = _write(tmp_path / "out.pth", _full(20))
    with zipfile.ZipFile(tmp_path / "out.pth") as archive:
        assert archive.testzip() is None
        assert all(b"out" not in info.filename.encode() for info in archive.infolist())
        assert all(str(tmp_path).encode() not in archive.read(n) for n in archive.namelist())
    aligned = 4096 if hasattr(torch.utils, "serialization") else 64
    assert written.places["image"].offset[0] % aligned == 0


def test_a_writer_tells_where_each_record_lies(tmp_path: Path) -> None:
    records = _full(50)
    written = _write(tmp_path / "out.pth", records)
    assert (written.files, written.sidecars) == (("out.pth",), ())
    for field in ("image", "mask"):
        ranges, values = written.places[field], [r.fields[field].data for r in records]
        assert ranges.file.tolist() == [0] * 50
        pairs = zip(ranges.offset.tolist(), ranges.length.tolist(), strict=True)
        assert _at(tmp_path / "out.pth", [("out.pth", *pair) for pair in pairs]) == values


def test_only_the_file_is_left(tmp_path: Path) -> None:
    _write(tmp_path / "out.pth", _full(3))
    assert os.listdir(tmp_path) == ["out.pth"]


@pytest.mark.parametrize("records", [[], [made.record(b"", None, b"")]], ids=["none", "empty"])
def test_a_file_may_have_no_bytes(tmp_path: Path, records: list[made.Made]) -> None:
    _write(tmp_path / "out.pth", records)
    pack = torch.load(tmp_path / "out.pth", weights_only=True, mmap=True)
    assert _ragged(pack, "data") == [r.data for r in records]
    assert _data(tmp_path / "out.pth") == [r.data for r in records]


@pytest.mark.parametrize("step", [1, 17, 100_000])
def test_the_bytes_do_not_depend_on_how_records_are_handed_over(tmp_path: Path, step: int) -> None:
    _write(tmp_path / "a.pth", _full(300), step=64)
    _write(tmp_path / "b.pth", _full(300), step=step)
    assert (tmp_path / "a.pth").read_bytes() == (tmp_path / "b.pth").read_bytes()


_WRITES = """
import sys
from pathlib import Path
import test_format_pth as t
t._write(Path(sys.argv[1]), t._full(500))
t._write(Path(sys.argv[2]), t._records([9000] * 500))
"""


def test_two_processes_write_the_same_bytes(tmp_path: Path) -> None:
    digests = set()
    for i, filler in enumerate(("85", "170")):  # glibc fills what malloc gives, and frees, with it
        outs = [tmp_path / f"{i}{name}.pth" for name in "ab"]
        _in_a_process(
            _WRITES, *outs, MALLOC_PERTURB_=filler, PYTHONHASHSEED=str(i),
            PYTHONPATH=":".join([*made.FOLDERS, str(Path(container.__file__).parents[3])]),
        )  # fmt: skip
        digests |= {hashlib.sha256(out.read_bytes()).hexdigest() for out in outs}
    assert len(digests) == 2


def test_abort_may_come_at_any_time(tmp_path: Path) -> None:
    writer = made.writer(container.FORMAT, tmp_path / "out.pth", 3)
    writer.add(_records([1]))
    writer.abort()
    writer.abort()
    with pytest.raises(errors.OutputError, match="closed already"):
        writer.add(_records([1]))
    with pytest.raises(errors.OutputError, match="closed already"):
        writer.close()
    assert os.listdir(tmp_path) == []


def test_an_existing_file_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "out.pth").write_bytes(b"mine")
    with pytest.raises(errors.CannotCreateError, match=r"out\.pth"):
        made.writer(container.FORMAT, tmp_path / "out.pth", 1)
    assert (tmp_path / "out.pth").read_bytes() == b"mine"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.CannotCreateError, match=r"none/out\.pth"):
        made.writer(container.FORMAT, tmp_path / "none/out.pth", 1)


def test_a_value_that_reads_back_differently_is_an_error(tmp_path: Path) -> None:
    writer: Any = made.writer(container.FORMAT, tmp_path / "out.pth", 3)
    writer.add(_records([10, 9000, 20_000_000, 30]))
    writer._spool.blobs["image"].crc32c[2] ^= 1
    with pytest.raises(errors.OutputError, match=r"out\.pth: record 2 reads back differently"):
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
        "import test_format_pth as t;"
        "t._write_with_files_limited(Path(sys.argv[1]), int(sys.argv[2]))"
    )
    said = _in_a_process(code, tmp_path / "out.pth", limit)
    assert said.startswith(f"74 {tmp_path}/out.pth: cannot be written")
    assert "bytes free" in said


# Scanning


@pytest.mark.parametrize("path", ["out.pth", "caf\udce9.pt"])
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
    _write(tmp_path / "ints.pth", _records(_SIZES))
    assert [e.label for e in made.scanned(container.FORMAT, tmp_path / "ints.pth")] == [
        i % 7 for i in range(10)
    ]
    _write(tmp_path / "none.pth", [made.record(b"x", None, b"x")] * 3)
    assert [e.label for e in made.scanned(container.FORMAT, tmp_path / "none.pth")] == [None] * 3


def _tensor(value: bytes) -> torch.Tensor:
    return torch.tensor(list(value), dtype=torch.uint8)


_VALUES = [r.data for r in _records([5, 9000, 1, 0, 333])]
_TENSORS = [_tensor(value) for value in _VALUES]
_BLOB = {
    "images": _tensor(b"".join(_VALUES)),
    "offsets": torch.tensor([0, 5, 9005, 9006, 9006, 9339]),
}


@pytest.mark.parametrize(
    ("value", "labels"),
    [
        (_TENSORS, [None] * 5),
        (tuple(_TENSORS), [None] * 5),
        ((_TENSORS, [4, 3, 2, 1, 0]), [4, 3, 2, 1, 0]),
        ((_TENSORS, torch.arange(5, dtype=torch.uint8)), [0, 1, 2, 3, 4]),
        ({"data": _TENSORS, "labels": torch.ones(5, 2)}, [(1.0, 1.0)] * 5),
        ({**_BLOB, "targets": torch.arange(5)}, [0, 1, 2, 3, 4]),
        (_BLOB, [None] * 5),
        (list(torch.split(_BLOB["images"], [5, 9000, 1, 0, 333])), [None] * 5),  # of one storage
    ],
    ids=range(8),
)  # fmt: skip
def test_scan_finds_what_others_write(tmp_path: Path, value: Any, labels: list[Any]) -> None:
    torch.save(value, tmp_path / "foreign.pth")
    assert _data(tmp_path / "foreign.pth") == _VALUES
    assert [e.label for e in made.scanned(container.FORMAT, tmp_path / "foreign.pth")] == labels


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/never",)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([torch.zeros(3)], "item 0 is Tensor"),
        ([torch.zeros(1, dtype=torch.uint8).expand(2**40)], "not a plain, contiguous tensor"),
        ({"state_dict": 1}, "holds NoneType"), (1, "holds int"),
        ([_Evil()], "refuses.*posix.system"), ([timedelta(1)], r"refuses.*datetime\.timedelta"),
        ((_TENSORS, ["a"] * 5), "labels are list"),
        ({**_BLOB, "offsets": [0, 1]}, "no blob of bytes"),
    ],
    ids=range(8),
)  # fmt: skip
def test_what_is_no_range_of_bytes_is_refused_with_a_reason(
    tmp_path: Path, value: Any, reason: str
) -> None:
    torch.save(value, tmp_path / "foreign.pth")
    with pytest.raises(errors.NotAPackError, match=reason):
        list(made.scanned(container.FORMAT, tmp_path / "foreign.pth"))


def test_no_file_reaches_torch_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save((_VALUES, [4, 3, 2, 1, 0]), tmp_path / "foreign.pth")
    _write(tmp_path / "ours.pth", _full(3))
    monkeypatch.setattr(torch, "load", None)
    assert len(list(made.scanned(container.FORMAT, tmp_path / "ours.pth"))) == 3
    assert len(list(made.scanned(container.FORMAT, tmp_path / "foreign.pth"))) == 5
    reader = container.FORMAT.reader(tmp_path / "foreign.pth", Reading())
    assert [reader.get(i) for i in range(5)] == _VALUES


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_bytes_of_newer_pickle_protocols_are_ranges(tmp_path: Path, protocol: int) -> None:
    value = list(zip(_VALUES, [4, 3, 2, 1, 0], strict=True))
    torch.save(value, tmp_path / "foreign.pth", pickle_protocol=protocol)
    assert _data(tmp_path / "foreign.pth") == _VALUES
    assert [e.label for e in made.scanned(container.FORMAT, tmp_path / "foreign.pth")] == [
        4,
        3,
        2,
        1,
        0,
    ]


class _Kind(torch.Tensor):
    pass


def test_what_else_a_file_holds_does_not_matter(tmp_path: Path) -> None:
    marked = torch.ones(2)
    marked.note = 1  # type: ignore[attr-defined]  # attributes of tensors are saved, too
    others = {
        "order": OrderedDict(a=1), "set": {1, 2}, "size": torch.Size([2]), "complex": 1j,
        "half": torch.ones(2, dtype=torch.bfloat16), "parameter": torch.nn.Parameter(marked),
        "sparse": torch.eye(2).to_sparse(), "dtype": torch.uint8, "device": torch.device("cpu"),
        "counter": Counter("aab"), "long": 10**30, ("a", 1): None, "empty": b"", "marked": marked,
        "conjugate": torch.ones(2, dtype=torch.complex64).conj(), "array": bytearray(3),
    }  # fmt: skip
    torch.save({**others, "images": _TENSORS, "labels": [1, 2, 3, 4, 5]}, tmp_path / "a.pth")
    assert _data(tmp_path / "a.pth") == _VALUES
    assert [e.label for e in made.scanned(container.FORMAT, tmp_path / "a.pth")] == [1, 2, 3, 4, 5]
    images = torch.nn.Parameter(torch.ones(2, 3, 4, 4))
    for value in ([images], images, images.detach().as_subclass(_Kind), marked.to_sparse()):
        torch.save(value, tmp_path / "b.pth")
        with pytest.raises(errors.NotAPackError):
            list(made.scanned(container.FORMAT, tmp_path / "b.pth"))


def _rewrite(source: Path, target: Path, change: Callable[[str, bytes], bytes]) -> None:
    """Copy an archive, with each member changed."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            new.writestr(info.filename, change(info.filename, old.read(info)))


def test_an_archive_of_a_big_endian_machine_is_read_where_bytes_are_whole(tmp_path: Path) -> None:
    def change(name: str, content: bytes) -> bytes:
        if name.endswith("byteorder"):
            return b"big"
        return (
            np.frombuffer(content, "<i8").astype(">i8").tobytes() if name[-2:] == "/1" else content
        )

    labels = torch.tensor([4, 3, 2, 1, 0])
    torch.save((torch.zeros(5, 3, 4, 4, dtype=torch.uint8), labels), tmp_path / "a.pth")
    _rewrite(tmp_path / "a.pth", tmp_path / "b.pth", change)
    assert [e.label for e in made.scanned(container.FORMAT, tmp_path / "b.pth")] == [4, 3, 2, 1, 0]
    torch.save((torch.zeros(5, 3, 4, 4, dtype=torch.uint16), labels), tmp_path / "a.pth")
    _rewrite(tmp_path / "a.pth", tmp_path / "b.pth", change)
    with pytest.raises(errors.NotAPackError, match="big-endian"):
        list(made.scanned(container.FORMAT, tmp_path / "b.pth"))


_STORAGE = b"(X\7\0\0\0storagectorch\nByteStorage\nX\1\0\0\x000X\3\0\0\0cpuK\4tQ"
_REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"


@pytest.mark.parametrize(
    "pickled",
    [
        b"cos\nsystem\nX\4\0\0\0true\x85R", b"ctorch\nload\n(K\1tb", b"(K\1K\2tQ", b"K\1Q",
        b"c__builtin__\neval\nX\1\0\0\x001\x85R", b"K\1K\2\x85R", b"]}b",
        _REBUILD + b"(" + _STORAGE + b"K\0J\xff\xff\xff\xff\x85K\1\x85\x89NtR",
        _REBUILD + b"(" + _STORAGE + b"K\0(" + b"K\2" * 1000 + b"t(" + b"K\1" * 1000 + b"t\x89NtR",
        _REBUILD + b"(K\1tR", _REBUILD + b"(" + _STORAGE + b"K\0K\2K\1\x89NtR",
        _REBUILD + b"(" + _STORAGE + b"K\0K\x09\x85K\1\x85\x89NtR",  # beyond its storage
        b"c_codecs\nencode\n(K\1K\2tR", b"ccollections\nOrderedDict\n(]K\1tR",
        b"ccollections\nOrderedDict\n(](]K\1tatR", b"ctorch\nSize\nK\1\x85R",
    ],
    ids=range(16),
)  # fmt: skip
def test_hostile_pickles_of_torch_are_refused(tmp_path: Path, pickled: bytes) -> None:
    torch.save([torch.zeros(4, dtype=torch.uint8)], tmp_path / "a.pth")
    data = b"\x80\2]" + pickled + b"a."
    _rewrite(tmp_path / "a.pth", tmp_path / "b.pth", lambda n, c: data if n[-4:] == ".pkl" else c)
    with pytest.raises((errors.NotAPackError, errors.IntegrityError), match=r"b\.pth"):
        list(made.scanned(container.FORMAT, tmp_path / "b.pth"))


def test_a_newer_version_and_other_headers_are_refused(tmp_path: Path) -> None:
    texts: dict[str, type[errors.PackioError]]
    texts = {'{"format":"pth","version":2}': errors.VersionError}
    texts |= dict.fromkeys(['{"format":"hdf5","version":1}', "[]", "{", "1"], errors.NotAPackError)
    for text, kind in texts.items():
        torch.save({"packio": text}, tmp_path / "out.pth")
        with pytest.raises(kind):
            list(made.scanned(container.FORMAT, tmp_path / "out.pth"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("offsets", torch.tensor([0, 5, 3])), ("offsets", torch.tensor([0, 1, 999])),
        ("offsets", torch.tensor([])), ("offsets", 3), ("label", torch.tensor([1])),
        ("key_offsets", torch.tensor([0, 99, 99])), ("mask_offsets", torch.tensor([0, 1, 1])),
    ],
)  # fmt: skip
def test_columns_that_cannot_be_are_integrity_errors(tmp_path: Path, name: str, value: Any) -> None:
    _write(tmp_path / "out.pth", _records([3, 4]))
    pack = torch.load(tmp_path / "out.pth", weights_only=True)
    torch.save({**pack, name: value}, tmp_path / "out.pth")
    with pytest.raises(errors.IntegrityError, match=rf"out\.pth: .*{name}"):
        list(made.scanned(container.FORMAT, tmp_path / "out.pth"))


def test_a_file_that_is_not_there_or_not_torchs_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.ReadError, match=r"none\.pth"):
        list(made.scanned(container.FORMAT, tmp_path / "none.pth"))
    (tmp_path / "text.pth").write_bytes(b"text" * 1000)
    torch.save(_TENSORS, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    for name in ("text.pth", "old.pth"):
        with pytest.raises(errors.NotAPackError, match=f"{name}: not a zip archive"):
            list(made.scanned(container.FORMAT, tmp_path / name))


def test_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    torch.save(_TENSORS, tmp_path / "a.pth")
    with (
        zipfile.ZipFile(tmp_path / "a.pth") as source,
        zipfile.ZipFile(tmp_path / "b.pth", "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for name in source.namelist():
            target.writestr(name, source.read(name))
    with pytest.raises(errors.IntegrityError, match="not a stored member"):
        list(made.scanned(container.FORMAT, tmp_path / "b.pth"))


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
                assert 0 <= entry.offset <= entry.offset + entry.length <= len(content)
        except errors.PackioError:
            pass
        damaged.unlink()


_SMALL = [_tensor(b"1"), _tensor(b"22")]  # little but the archive's own fields to damage


@pytest.mark.parametrize("value", [_BLOB, (_SMALL, [1, 2]), None], ids=["blob", "list", "ours"])
def test_damaged_files_raise_nothing_but_errors_of_packio(tmp_path: Path, value: Any) -> None:
    """In other processes, so that a signal fails the test and not the run."""
    if value is None:
        _write(tmp_path / "out.pth", _full(5))
    else:
        torch.save(value, tmp_path / "out.pth")
    context = multiprocessing.get_context("fork")
    for start in range(0, 400, 100):
        process = context.Process(target=_scan_damaged, args=(tmp_path / "out.pth", start, 100))
        process.start()
        process.join(60)
        assert process.exitcode == 0, f"seeds {start}..{start + 99}"
