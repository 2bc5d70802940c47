"""What becomes of an index that is read by blocks if its cache or its server spoils it."""

from __future__ import annotations

import json
import multiprocessing
import os
import pathlib
import shutil
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from far_index import COUNT

import packio
from packio.errors import IntegrityError, NotAPackError, ReadError
from packio.index.indexfile import crc32c
from packio.storage import blocks
from packio.storage.remote_store import RemoteStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from range_server import RangeServer

MB = 1 << 20

pytestmark = pytest.mark.usefixtures("by_blocks")


@pytest.fixture
def cached(tmp_path: pathlib.Path) -> Callable[[], pathlib.Path]:
    """Path of the one index in the cache."""

    def path() -> pathlib.Path:
        (found,) = (tmp_path / "cache" / "remote").glob("*.blocks")
        return found

    return path


@pytest.fixture
def own(url: str, web: RangeServer) -> pathlib.Path:
    """The index on the server, a file of its own that a test may change."""
    path = web.folder / url.replace(web.url, "").lstrip("/")
    path = path.with_name(path.name + ".packio")
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    return path


def _layout(path: pathlib.Path) -> tuple[dict[str, Any], int]:
    """Header of an index, and where its columns begin."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(size)), 8 + size


def _flip(path: pathlib.Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 0x20]))


def _labels(made: pathlib.Path) -> np.ndarray:
    return np.asarray(packio.open(made / "train.tar").labels)


def test_processes_that_open_at_once_share_one_file(
    url: str, web: RangeServer, cached: Callable[[], pathlib.Path]
) -> None:
    context = multiprocessing.get_context("fork")
    together = context.Barrier(6)
    make = blocks.CachedIndex._made_once

    def slowly(self: Any, *given: Any) -> Any:
        together.wait(60)  # all of them find no file in the cache
        return make(self, *given)

    def work() -> None:
        blocks.CachedIndex._made_once = slowly  # type: ignore[method-assign]  # in the child only
        assert int(packio.open(url).index_file.column("label").array().sum()) > 0

    children = [context.Process(target=work) for _ in range(6)]
    for child in children:
        child.start()
    for child in children:
        child.join(600)
    assert [child.exitcode for child in children] == [0] * 6
    header, start = _layout(web.folder / "train.tar.packio")
    first, stop = (start + n for n in header["label"]["data_offsets"])
    asked = [s for p, s in web.asked if p.endswith(".packio") and first <= s[0] < s[1] <= stop]
    assert sum(b - a for a, b in asked) == stop - first  # each block came once
    assert {p.suffix for p in cached().parent.iterdir()} == {".blocks", ".lock"}


@pytest.mark.parametrize("where", ["size", "header", "checksums"])
def test_a_header_that_the_disk_garbled_comes_again(
    url: str, made: pathlib.Path, cached: Callable[[], pathlib.Path], where: str
) -> None:
    packio.open(url).row(0)
    header, start = _layout(made / "train.tar.packio")
    at = {"size": 2, "header": start // 2, "checksums": start + header["checksums"][
        "data_offsets"][0] + 21}  # fmt: skip
    _flip(cached(), at[where])
    again = packio.open(url)
    again.index_file.check()
    assert np.array_equal(np.asarray(again.labels), _labels(made))


def test_marks_that_the_disk_garbled_do_no_harm(
    url: str, made: pathlib.Path, cached: Callable[[], pathlib.Path]
) -> None:
    packio.open(url).row(0)
    with cached().open("r+b") as file:
        file.seek(-10, os.SEEK_END)
        file.write(b"\1\7" * 5)
    again = packio.open(url)
    again.index_file.check()
    assert np.array_equal(np.asarray(again.labels), _labels(made))


@pytest.mark.parametrize("left", [0, MB])
def test_a_file_that_is_cut_while_open_does_not_grow_again(
    url: str, made: pathlib.Path, cached: Callable[[], pathlib.Path], left: int
) -> None:
    pack, expected = packio.open(url), packio.open(made / "train.tar")
    assert pack.row(0) == expected.row(0)
    path, lacking = cached(), pack.index_file.column("meta_data").lacking()
    os.truncate(path, left)
    far: Any = pack.index_file._far
    with pytest.raises(IntegrityError, match="open the pack anew"):
        far.bring(lacking)  # as another thread does that has looked at the length already
    assert path.stat().st_size == left
    with pytest.raises(IntegrityError, match=r"truncated while it was open.*open the pack anew"):
        pack.row(0)
    assert packio.open(url).row(0) == expected.row(0)


@pytest.mark.parametrize("what", ["link", "folder", "pipe", "empty"])
def test_what_is_no_file_of_the_cache_is_replaced(
    url: str, made: pathlib.Path, cached: Callable[[], pathlib.Path], tmp_path: pathlib.Path,
    what: str,
) -> None:  # fmt: skip
    packio.open(url)
    path = cached()
    victim = tmp_path / "victim"
    shutil.move(path, victim)
    before = victim.read_bytes()
    if what == "link":
        path.symlink_to(victim)
    elif what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.touch()
    if what == "folder":
        with pytest.raises(ReadError, match=r"Is a directory.*PACKIO_CACHE_DIR"):
            packio.open(url)
        return
    assert packio.open(url).row(3) == packio.open(made / "train.tar").row(3)
    assert victim.read_bytes() == before


def test_a_header_that_came_garbled_is_not_kept(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = RemoteStore.read

    def garbled(self: Any, *given: int) -> bytes:
        data = read(self, *given)
        return data.replace(b'"samples\\":200000', b'"samples\\":200001')

    with monkeypatch.context() as patch:
        patch.setattr(RemoteStore, "read", garbled)
        with pytest.raises(IntegrityError, match="header is damaged"):
            packio.open(url)
    assert len(packio.open(url)) == COUNT


def _rewritten(path: pathlib.Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the header of an index; the columns stay."""
    header, start = _layout(path)
    data = path.read_bytes()[start:]
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    head = bytearray(struct.pack("<Q", len(text)) + text + data)
    if "checksums" in header:
        at = 8 + len(text) + header["checksums"]["data_offsets"][0]
        struct.pack_into("<I", head, at, crc32c(bytes(head[: 8 + len(text)])))
    path.write_bytes(head)


def test_an_index_without_checksums_is_no_index(url: str, own: pathlib.Path) -> None:
    def change(header: dict[str, Any]) -> None:
        header["other"] = header.pop("checksums")

    _rewritten(own, change)
    with pytest.raises(NotAPackError, match="checksums do not fit"):
        packio.open(url)


@pytest.mark.parametrize("how", ["other dtype", "too many"])
def test_checksums_that_do_not_fit_are_not_asked_for(
    url: str, own: pathlib.Path, web: RangeServer, how: str
) -> None:
    def change(header: dict[str, Any]) -> None:
        if how == "too many":  # the column before it and this one swap their names
            swapped = header["image/offset"]
            header["image/offset"], header["checksums"] = header["checksums"], swapped
        header["checksums"]["dtype"] = "F32" if how == "other dtype" else "U32"
        if how == "too many":
            header["checksums"]["shape"] = [COUNT * 2]
            header["image/offset"]["dtype"] = "U32"

    _rewritten(own, change)
    web.asked.clear()
    with pytest.raises(NotAPackError, match="checksums do not fit"):
        packio.open(url)
    assert sum(b - a for _, (a, b) in web.asked) < 200_000


def test_wrong_bytes_do_not_reach_the_file_that_others_read(
    url: str, made: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
    cached: Callable[[], pathlib.Path],
) -> None:  # fmt: skip
    pack, other = packio.open(url), packio.open(url)
    pack.index_file.check()
    whole = (made / "train.tar.packio").read_bytes()
    read = RemoteStore.read

    def replaced(self: Any, file: int, start: int, length: int) -> bytes:
        return bytes(byte ^ 1 for byte in read(self, file, start, length))

    monkeypatch.setattr(RemoteStore, "read", replaced)
    far: Any = other.index_file._far
    spans = other.index_file.column("label").lacking()
    assert far.bring(spans, anew=True) == spans
    assert cached().read_bytes()[: len(whole)] == whole


def test_another_version_of_the_same_length_gives_no_wrong_rows(
    url: str, own: pathlib.Path, web: RangeServer, made: pathlib.Path
) -> None:
    web.tags = False
    pack = packio.open(url)
    assert pack.row(0) == packio.open(made / "train.tar").row(0)
    header, start = _layout(own)
    _flip(own, start + header["label"]["data_offsets"][0] + MB + 5)
    assert pack.take_labels(np.array([3])).item() == _labels(made)[3]
    with pytest.raises(IntegrityError, match=r"column label: .*later version"):
        pack.take_labels(np.array([COUNT - 1]))


def test_a_file_of_another_user_is_not_believed(
    url: str, made: pathlib.Path, cached: Callable[[], pathlib.Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    packio.open(url).row(0)
    before = cached().stat().st_ino
    os.chown(cached(), 12345, -1) if os.geteuid() == 0 else monkeypatch.setattr(
        os, "geteuid", lambda: 12345)  # fmt: skip
    assert packio.open(url).row(3) == packio.open(made / "train.tar").row(3)
    assert cached().stat().st_ino != before


def test_a_service_that_fails_at_opening_is_not_taken_for_a_full_cache(
    url: str, web: RangeServer
) -> None:
    web.fault = lambda *_: "503"
    with pytest.raises(ReadError, match=r"^http://\S*packio.*503") as raised:
        packio.open(url)
    assert "cache" not in str(raised.value)


@pytest.mark.parametrize("name", ["label", "key_data", "image/flags", "file_path_data"])
def test_the_column_that_is_damaged_on_the_server_is_named(
    url: str, own: pathlib.Path, name: str
) -> None:
    header, start = _layout(own)
    _flip(own, start + header[name]["data_offsets"][0])
    with pytest.raises(IntegrityError, match=f"column {name}:"):  # flags: zeros, as a hole has
        packio.open(url).index_file.check()


def test_looking_at_rows_imports_nothing() -> None:
    """A thread that imports while another one forks leaves the child a lock that is never free."""
    code = (
        "import sys, numpy as np\n"
        "from packio.index.column import Column, crc32c\n"
        "array = np.arange(9)\n"
        "column = Column(array, np.array([crc32c(array.tobytes())], np.uint32), 'here')\n"
        "before = set(sys.modules)\n"
        "column.take(np.array([1, 2]))\n"
        "assert not {*sys.modules} - before, {*sys.modules} - before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
