"""What .pth alone has, and what torch saves; test_one_file has what HDF5 and .pth share."""

from __future__ import annotations

import os
import zipfile
from collections import Counter, OrderedDict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import made
import numpy as np
import one_file
import pytest
import torch

from packio import errors
from packio.formats import Reading
from packio.formats import pth as container

if TYPE_CHECKING:
    from collections.abc import Callable

# Writing


def test_the_archive_is_sound_and_its_tensors_are_aligned(tmp_path: Path) -> None:
    written = made.write(container.FORMAT, tmp_path / "out.pth", one_file.full(20))
    with zipfile.ZipFile(tmp_path / "out.pth") as archive:
        assert archive.testzip() is None
        assert all(b"out" not in info.filename.encode() for info in archive.infolist())
        assert all(str(tmp_path).encode() not in archive.read(n) for n in archive.namelist())
    aligned = 4096 if hasattr(torch.utils, "serialization") else 64
    assert written.places["image"].offset[0] % aligned == 0


# Scanning


def _tensor(value: bytes) -> torch.Tensor:
    return torch.tensor(list(value), dtype=torch.uint8)


_VALUES = [r.data for r in made.random_records([5, 9000, 1, 0, 333])]
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
    assert one_file.data(container.FORMAT, tmp_path / "foreign.pth") == _VALUES
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
    made.write(container.FORMAT, tmp_path / "ours.pth", one_file.full(3))
    monkeypatch.setattr(torch, "load", None)
    assert len(list(made.scanned(container.FORMAT, tmp_path / "ours.pth"))) == 3
    assert len(list(made.scanned(container.FORMAT, tmp_path / "foreign.pth"))) == 5
    reader = container.FORMAT.reader(tmp_path / "foreign.pth", Reading())
    assert [reader.get(i) for i in range(5)] == _VALUES


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_bytes_of_newer_pickle_protocols_are_ranges(tmp_path: Path, protocol: int) -> None:
    value = list(zip(_VALUES, [4, 3, 2, 1, 0], strict=True))
    torch.save(value, tmp_path / "foreign.pth", pickle_protocol=protocol)
    assert one_file.data(container.FORMAT, tmp_path / "foreign.pth") == _VALUES
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
    assert one_file.data(container.FORMAT, tmp_path / "a.pth") == _VALUES
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
    made.write(container.FORMAT, tmp_path / "out.pth", made.random_records([3, 4]))
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
