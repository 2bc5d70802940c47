"""Archives of images are listed as the unpacked folder would be; hostile ones do no harm."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import pathlib
import pickle
import random
import resource
import shlex
import struct
import subprocess
import sys
import tarfile
import zipfile
from typing import TYPE_CHECKING, Any

import leftovers
import made
import numpy as np
import pytest

import packio
from packio.errors import DecodeError, OptionError, PackioError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from packio.sources import Listing

archive = made.Asked("archive")
flat_folder = made.Asked("flat_folder")
folder_source = made.Asked("image_folder")


def _png(seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), np.uint8)
    return made.saved(pixels, "PNG")


PNG = _png()


def _tar(path: pathlib.Path, *members: tuple[str, bytes], form: int = tarfile.PAX_FORMAT) -> None:
    made.tar(path, members, form=form)


def _zip(path: pathlib.Path, *members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> None:
    made.zipped(path, members, method)


def _samples(listing: Listing) -> dict[bytes, bytes]:
    with listing.open_records() as read:
        return {key: read(i).image.data for i, key in enumerate(listing.keys)}


def _files(root: pathlib.Path) -> list[tuple[str, bytes]]:
    return [
        (os.path.relpath(path, root.parent), path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file()
    ]


def _by_gnu_tar(root: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
    subprocess.run(["tar", "-cf", out / "a.tar", "-C", root.parent, root.name], check=True)
    return out / "a.tar"


def _by_tarfile(form: int) -> Callable[[pathlib.Path, pathlib.Path], pathlib.Path]:
    def make(root: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
        _tar(out / "a.tar", *_files(root), form=form)
        return out / "a.tar"

    return make


def _by_zip(*options: str) -> Callable[[pathlib.Path, pathlib.Path], pathlib.Path]:
    def make(root: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
        command = ["zip", "-q", "-r", *options, str(out / "a.zip"), root.name]
        subprocess.run(command, check=True, cwd=root.parent)
        return out / "a.zip"

    return make


def _by_compressing(
    suffix: str, compress: Callable[[bytes], bytes]
) -> Callable[[pathlib.Path, pathlib.Path], pathlib.Path]:
    def make(root: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
        path = out / f"a{suffix}"
        path.write_bytes(compress(_by_gnu_tar(root, out).read_bytes()))
        return path

    return make


MAKERS = {
    "GNU tar": _by_gnu_tar,
    "pax": _by_tarfile(tarfile.PAX_FORMAT),
    "ustar": _by_tarfile(tarfile.USTAR_FORMAT),
    "gnu": _by_tarfile(tarfile.GNU_FORMAT),
    "zip stored": _by_zip("-0"),
    "zip deflated": _by_zip("-9"),
    "zip without extra fields": _by_zip("-X"),
    "tar.gz": _by_compressing(".tar.gz", gzip.compress),
    "tgz": _by_compressing(".TGZ", gzip.compress),
    "tar.bz2": _by_compressing(".tar.bz2", bz2.compress),
    "tar.xz": _by_compressing(".tar.xz", lzma.compress),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_an_archive_is_listed_as_its_folder(
    image_folder: pathlib.Path,
    tmp_path: pathlib.Path,
    make: Callable[[pathlib.Path, pathlib.Path], pathlib.Path],
) -> None:
    path = make(image_folder, tmp_path)
    assert archive.recognise(path)
    assert archive.recognise(str(path))
    found, expected = archive.listing(path), folder_source.listing(image_folder)
    assert (found.keys, found.sizes) == (expected.keys, expected.sizes)
    assert (found.labels, found.classes) == (expected.labels, expected.classes)
    assert _samples(found) == _samples(expected)
    assert (found.unlisted, found.warnings) == ([], [])


def _odd_tree(root: pathlib.Path) -> pathlib.Path:
    """Files whose names have every byte there can be, long ones, and NFC beside NFD."""
    names = [b"c/x" + bytes([byte]) + b".png" for byte in range(1, 256) if byte != ord("/")]
    names += [b"c/\xc3\xa9.png", b"c/e\xcc\x81.png", b"caf\xe9/1.png", "K\u212a/1.PNG".encode()]
    names += [b"c/" + b"d" * 200 + b"/" + b"n" * 250 + b".png", b"c/" + b"m" * 94 + b".png"]
    names += [b"c/\xff\xfe\n\t .jpg", b"c/" + "ü".encode() * 120 + b".png", b"c/..png", b"c/.png"]
    for i, name in enumerate(names):
        path = os.path.join(os.fsencode(root), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        pathlib.Path(os.fsdecode(path)).write_bytes(_png(i % 5))
    return root


@pytest.mark.parametrize("kind", ["gnu", "posix", "zip", "zip utf-8"])
def test_odd_names_are_kept_byte_for_byte(tmp_path: pathlib.Path, kind: str) -> None:
    root = _odd_tree(tmp_path / "odd")
    expected = folder_source.listing(root)
    path = tmp_path / ("a.zip" if kind.startswith("zip") else "a.tar")
    if kind.startswith("zip"):
        _write_raw_zip(path, expected, flagged=kind == "zip utf-8")
    else:
        subprocess.run(["tar", f"--format={kind}", "-cf", path, "-C", root, "."], check=True)
    found = archive.listing(path)
    assert len(expected.keys) > 211
    assert (found.keys, found.labels) == (expected.keys, expected.labels)
    assert (found.classes, found.unlisted) == (expected.classes, [])
    assert _samples(found) == _samples(expected)


def _write_raw_zip(path: pathlib.Path, files: Listing, *, flagged: bool) -> None:
    """Write names as they are, by way of placeholders: zipfile takes only text."""
    samples, places = _samples(files), {}
    with zipfile.ZipFile(path, "w") as file:
        for i, (key, data) in enumerate(samples.items()):
            name = f"{i:05d}".ljust(len(key), "#")
            with contextlib.suppress(UnicodeDecodeError):
                if flagged and not key.isascii():
                    name = key.decode()
            places[name] = key
            file.writestr(name, data)
    content = path.read_bytes()
    for name, key in places.items():
        content = content.replace(name.encode(), key)
    path.write_bytes(content)


def test_order_is_that_of_names_not_of_members(tmp_path: pathlib.Path) -> None:
    names = ["b/1.png", "a/z.png", "a/b/1.png", "a b/1.png", "a/A.png"]
    for i in range(5):
        random.Random(i).shuffle(names)
        _tar(tmp_path / "a.tar", *((name, name.encode()) for name in names))
        keys = archive.listing(tmp_path / "a.tar").keys
        assert keys == [b"a/A.png", b"a/z.png", b"a/b/1.png", b"a b/1.png", b"b/1.png"]


def test_a_flat_archive_has_no_labels(tmp_path: pathlib.Path) -> None:
    (tmp_path / "jpg").mkdir()
    for name in ("2.png", "10.png", "1.PNG"):
        (tmp_path / "jpg" / name).write_bytes(PNG)
    path = _by_gnu_tar(tmp_path / "jpg", tmp_path)
    found = archive.listing(path, classes=["a", "b"])
    assert found.keys == flat_folder.listing(tmp_path / "jpg").keys == [
        b"1.PNG", b"10.png", b"2.png",
    ]  # fmt: skip
    assert (found.labels, found.classes) == (None, ["a", "b"])


def test_the_top_is_the_folder_in_common_or_the_one_given(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.tar"
    _tar(path, ("./data/train/a/1.png", PNG), ("./data/train/b/1.png", PNG), ("./readme.txt", b""))
    assert archive.listing(path).keys == [b"a/1.png", b"b/1.png"]
    whole = archive.listing(path, folder=".")
    assert (whole.keys[0], whole.classes) == (b"data/train/a/1.png", ["data"])
    one = archive.listing(path, folder="data/train/b/")
    assert (one.keys, one.labels) == ([b"1.png"], None)
    for wrong in ("test", "../data", "/", ""):
        with pytest.raises(OptionError, match="at its top are data"):
            archive.listing(path, folder=wrong)


def test_splits_are_refused_with_commands_that_name_a_folder(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "my data.zip"
    _zip(path, *((f"d/{split}/{c}/1.png", PNG) for split in ("val", "train") for c in "ab"))
    with pytest.raises(SourceError, match="splits") as caught:
        archive.listing(path)
    assert "ziptrain" not in str(caught.value)
    commands = str(caught.value).rpartition("by itself: ")[2].split("; ")
    words = [shlex.split(command) for command in commands]
    assert words[0] == ["packio", "pack", str(path), "train.lmdb", "--folder", "d/train"]
    assert words[1][3:] == ["val.lmdb", "--folder", "d/val", "--classes-from", "train.lmdb"]
    assert archive.listing(path, folder="d/train").classes == ["a", "b"]


def test_classes_can_be_given(tmp_path: pathlib.Path) -> None:
    _tar(tmp_path / "a.tar", ("a/1.png", PNG), ("caf\udce9/1.png", PNG))
    found = archive.listing(tmp_path / "a.tar", classes=["caf\udce9", "z", "a"])
    assert (found.labels, found.classes) == (
        [0, 2],
        ["caf\udce9", "z", "a"],
    )  # by label, as folders
    assert found.keys == [b"caf\xe9/1.png", b"a/1.png"]
    with pytest.raises(SourceError, match="does not name"):
        archive.listing(tmp_path / "a.tar", classes=["a"])


@pytest.mark.parametrize("make", [_tar, _zip])
def test_a_list_of_labels_goes_with_a_flat_archive(tmp_path: pathlib.Path, make: Any) -> None:
    path = tmp_path / f"a.{make.__name__[1:]}"
    make(path, *((f"val/{i}.JPEG", _png(i)) for i in (3, 1, 2)))
    (tmp_path / "labels.txt").write_text("2.JPEG 7\n1.JPEG 5\n")
    found = archive.listing(path, labels=tmp_path / "labels.txt", label_offset=-1)
    assert (found.keys, found.labels) == ([b"1.JPEG", b"2.JPEG"], [4, 6])
    assert list(_samples(found).values()) == [_png(1), _png(2)]
    assert found.unlisted == [(b"3.JPEG", "no label in labels.txt")]
    (tmp_path / "labels.txt").write_text("cat\ndog\ncat\n")
    by_order = archive.listing(path, labels=str(tmp_path / "labels.txt"))
    assert (by_order.labels, by_order.classes) == ([0, 1, 0], ["cat", "dog"])


def test_imagenets_archive_of_archives_is_read_in_place(tmp_path: pathlib.Path) -> None:
    inner = []
    for wnid in ("n02", "n01"):
        _tar(tmp_path / "inner", *((f"{wnid}_{i}.JPEG", _png(i)) for i in range(3)))
        inner.append((f"{wnid}.tar", (tmp_path / "inner").read_bytes()))
    path = tmp_path / "ILSVRC2012_img_train.tar"
    _tar(path, *inner)
    found = archive.listing(path)
    assert found.classes == ["n01", "n02"]
    assert found.keys[:2] == [b"n01/n01_0.JPEG", b"n01/n01_1.JPEG"]
    assert list(_samples(found).values()) == [_png(i) for i in range(3)] * 2
    whole, cut = inner[0][1], inner[1][1][:2000]
    _tar(path, ("n02.tar", whole), ("n01.tar", cut), ("n03.tar", b"no archive" * 100))
    damaged = archive.listing(path)
    assert damaged.keys[-3:] == [b"n02/n02_0.JPEG", b"n02/n02_1.JPEG", b"n02/n02_2.JPEG"]
    assert {key for key, _ in damaged.unlisted} >= {b"n01.tar", b"n03.tar"}


def test_names_that_lead_out_are_told_and_nothing_is_written(tmp_path: pathlib.Path) -> None:
    bad = ["../up.png", "/abs.png", "a/../../up.png", "..", "a/..", "a/../b.png"]
    good = ["./a/1.png", "a//2.png", "a/./3.png", "b/1..png", "b/...png", "b/..c/1.png"]
    members = [(name, PNG) for name in bad + good]
    (tmp_path / "in").mkdir()
    _tar(tmp_path / "in/a.tar", *members)
    _zip(tmp_path / "in/a.zip", *members)
    for path in (tmp_path / "in/a.tar", tmp_path / "in/a.zip"):
        found = archive.listing(path, include_hidden=True)
        assert set(_samples(found).values()) == {PNG}
        assert found.keys == [
            b"a/1.png", b"a/2.png", b"a/3.png", b"b/...png", b"b/1..png", b"b/..c/1.png",
        ]  # fmt: skip
        expected = [name.encode() for name in bad if name.endswith(".png")]
        assert [key for key, reason in found.unlisted if "leads out" in reason] == expected
    assert sorted(os.listdir(tmp_path)) == ["in"]
    assert sorted(os.listdir(tmp_path / "in")) == ["a.tar", "a.zip"]


def test_a_name_with_nul_is_told(tmp_path: pathlib.Path) -> None:
    _zip(tmp_path / "a.zip", ("a/x.png", PNG), ("b/1#.png", PNG))
    content = (tmp_path / "a.zip").read_bytes().replace(b"b/1#.png", b"b/1\0.png")
    (tmp_path / "a.zip").write_bytes(content)
    assert archive.listing(tmp_path / "a.zip").unlisted == [
        (b"b/1\0.png", "its name leads out of the archive")
    ]


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")  # zipfile's
@pytest.mark.parametrize("make", [_tar, _zip])
def test_the_last_of_a_name_counts_as_when_unpacked(tmp_path: pathlib.Path, make: Any) -> None:
    path = tmp_path / f"a.{make.__name__[1:]}"
    make(path, ("a/1.png", _png(1)), ("b/1.png", PNG), ("a/./1.png", _png(2)))
    found = archive.listing(path)
    assert _samples(found)[b"a/1.png"] == _png(2)
    assert found.unlisted == [(b"a/./1.png", "there twice; the last one counts")]


def test_links_devices_and_sparse_files_are_told(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "s"
    for folder in ("a", "b"):
        (root / folder).mkdir(parents=True)
        (root / folder / "1.png").write_bytes(PNG)
    os.symlink("/etc/passwd", root / "a/link.png")
    os.link(root / "a/1.png", root / "b/hard.png")
    os.mkfifo(root / "b/fifo.png")
    with (root / "b/sparse.png").open("wb") as file:
        file.seek(1 << 20)
        file.write(b"end")
    for form in ("gnu", "posix"):
        subprocess.run(
            ["tar", "-S", f"--format={form}", "--sort=name", "-cf", tmp_path / "a.tar", "-C",
             tmp_path, "s"], check=True,
        )  # fmt: skip
        found = archive.listing(tmp_path / "a.tar")
        assert found.keys == [b"a/1.png", b"b/1.png"]
        reasons = {key: reason.partition(";")[0] for key, reason in found.unlisted}
        assert reasons == {
            b"s/a/link.png": "a symbolic link",
            b"s/b/hard.png": "a hard link",
            b"s/b/fifo.png": "a FIFO",
            b"s/b/sparse.png": "a sparse file",
        }


def test_what_a_zip_cannot_give_is_told(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "s"
    for folder in ("a", "b"):
        (root / folder).mkdir(parents=True)
        (root / folder / "1.png").write_bytes(PNG * 9)
    (root / "b/2.png").write_bytes(PNG)
    os.symlink("/etc/passwd", root / "a/link.png")
    zipped = ["zip", "-q", "-r", "-y"]
    subprocess.run([*zipped, tmp_path / "a.zip", "s"], check=True, cwd=tmp_path)
    subprocess.run([*zipped, "-P", "x", tmp_path / "a.zip", "s/b/1.png"], check=True, cwd=tmp_path)
    with zipfile.ZipFile(tmp_path / "a.zip", "a") as file:
        file.writestr("s/b/lzma.png", PNG, zipfile.ZIP_LZMA)
    found = archive.listing(tmp_path / "a.zip")
    assert found.keys == [b"a/1.png", b"b/2.png"]
    assert dict(found.unlisted) == {
        b"s/a/link.png": "a symbolic link",
        b"s/b/1.png": "encrypted",
        b"s/b/lzma.png": "compressed by method 14; expected stored or deflated",
    }


def _claiming(path: pathlib.Path, size: int) -> pathlib.Path:
    """Change what the directory of a zip with one member claims of its size."""
    content = bytearray(path.read_bytes())
    struct.pack_into("<I", content, content.index(b"PK\1\2") + 24, size)
    path.write_bytes(content)
    return path


def test_a_zip_member_is_never_larger_than_it_claims(tmp_path: pathlib.Path) -> None:
    bomb = PNG + bytes(8 << 20)
    _zip(tmp_path / "a.zip", ("1.png", bomb), method=zipfile.ZIP_DEFLATED)
    packed = (tmp_path / "a.zip").stat().st_size
    for claimed in (100, len(bomb) - 1, len(bomb) + 1):
        found = archive.listing(_claiming(tmp_path / "a.zip", claimed))
        with found.open_records() as read, pytest.raises(DecodeError, match="size or CRC-32"):
            read(0)
    with pytest.raises(SourceError, match="cannot hold them"):  # deflate can do 1032 to 1
        archive.listing(_claiming(tmp_path / "a.zip", packed * 1033))


def _many(folder: pathlib.Path, data: bytes, name: str) -> Iterator[Any]:
    """Listings of one file: in a zip, deflated or stored, in a tar, and in a folder."""
    for kind, method in (("deflated", zipfile.ZIP_DEFLATED), ("stored", zipfile.ZIP_STORED)):
        _zip(folder / f"{kind}.zip", (f"x/{name}", data), method=method)
        yield archive.listing(folder / f"{kind}.zip", endings=".tga,.pcx,.sgi,.gif,.ico")
    _tar(folder / "a.tar", (f"x/{name}", data))
    yield archive.listing(folder / "a.tar", endings=".tga,.pcx,.sgi,.gif,.ico")
    (folder / "flat").mkdir()
    (folder / "flat" / name).write_bytes(data)
    yield flat_folder.listing(folder / "flat", endings=".tga,.pcx,.sgi,.gif,.ico")


@pytest.mark.parametrize("form", ["bmp", "ppm", "png", "tiff", "webp", "tga", "pcx", "sgi", "gif"])
def test_large_images_of_every_kind_are_read(tmp_path: pathlib.Path, form: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (800, 1700, 3), np.uint8)
    data = made.saved(pixels, form, **({"lossless": True} if form == "webp" else {}))
    assert len(data) > 1 << 20
    for listing in _many(tmp_path, data, f"a.{form}"):
        with listing.open_records() as read:
            assert read(0).image.data == data


def test_a_sample_has_a_limit(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo("1.png")
        info.size = 0
        tar.addfile(info)
        info.name, info.size = "2.png", (1 << 31) + 512
        header = info.tobuf()
    with path.open("r+b") as file:
        file.seek(512)
        file.write(header)
        file.seek(info.size, os.SEEK_CUR)
        file.write(bytes(1024))
    found = archive.listing(path)
    assert (found.keys, found.sizes) == ([b"1.png", b"2.png"], [0, info.size])
    with found.open_records() as read:
        assert read(0).image.data == b""
        with pytest.raises(DecodeError, match="the limit is"):
            read(1)


def test_a_tar_cut_off_anywhere_is_told(tmp_path: pathlib.Path) -> None:
    members = [(f"{c}/{'n' * 120 * (i % 2)}{i}.png", _png(i)) for c in "ab" for i in range(3)]
    _tar(tmp_path / "whole.tar", *members)
    content = (tmp_path / "whole.tar").read_bytes().rstrip(b"\0")
    whole = _samples(archive.listing(tmp_path / "whole.tar"))
    path = tmp_path / "a.tar"
    for size in range(0, len(content), 128):
        path.write_bytes(content[:size])
        try:
            found = archive.listing(path)
        except SourceError:
            continue
        assert b"a.tar" in [key for key, _ in found.unlisted]
        for key, data in _samples(found).items():  # keys have no class while there is only one
            assert data in (whole.get(key), whole.get(b"a/" + key))


@pytest.mark.parametrize("kind", ["pax", "gnu", "zip stored", "zip deflated", "tar.gz"])
def test_damage_gives_the_same_samples_or_errors(tmp_path: pathlib.Path, kind: str) -> None:
    (tmp_path / "s").mkdir()
    for i in range(4):
        (tmp_path / "s" / f"{'n' * 150 * (i % 2)}{i}.png").write_bytes(_png(i))
    path = MAKERS[kind](tmp_path / "s", tmp_path)
    content = path.read_bytes()
    whole = _samples(archive.listing(path))
    is_checked = kind.startswith("zip") or kind == "tar.gz"
    chance = random.Random(kind)
    told = 0
    for _ in range(250):
        damaged = bytearray(content)
        place = chance.randrange(len(content))
        damaged[place] ^= 1 << chance.randrange(8)
        if chance.random() < 0.1:
            damaged[place : place + 8] = chance.randbytes(8)
        path.write_bytes(damaged)
        try:
            found = archive.listing(path)
            told += bool(found.unlisted)
            with found.open_records() as read:
                for i, key in enumerate(found.keys):
                    data = read(i).image.data
                    assert not is_checked or data == whole.get(key, data)
        except PackioError:
            told += 1
    assert told > 0


@pytest.mark.parametrize(
    "size",
    [b"\x80" + b"\xff" * 11, b"\xff" * 12, b"\xff" * 11 + b"\0", b"\x80" + bytes(3) + b"\x7f" * 8],
)
@pytest.mark.parametrize("kind", [b"0", b"x", b"L", b"S", b"5", b"1"])
def test_a_tar_with_an_absurd_size_ends(tmp_path: pathlib.Path, size: bytes, kind: bytes) -> None:
    _tar(tmp_path / "a.tar", ("a/1.png", PNG), ("b/2.png", PNG), form=tarfile.GNU_FORMAT)
    content = bytearray((tmp_path / "a.tar").read_bytes())
    start = 1024
    content[start + 124 : start + 136] = size
    content[start + 156 : start + 157] = kind
    content[start + 148 : start + 156] = b" " * 8
    total = sum(content[start : start + 512])
    content[start + 148 : start + 156] = b"%06o\0 " % total
    (tmp_path / "a.tar").write_bytes(content)
    found = archive.listing(tmp_path / "a.tar")
    assert list(_samples(found).values())[:1] == [PNG]
    assert b"a.tar" in [key for key, _ in found.unlisted]


@pytest.mark.parametrize("form", [b"%06o\0\0", b"%6o\0 ", b"%07o ", b"  %05o\0"])
def test_checksums_of_any_form_and_one_block_of_zeros_are_read(
    form: bytes, tmp_path: pathlib.Path
) -> None:
    _tar(tmp_path / "a.tar", ("a/1.png", PNG))
    content = bytearray((tmp_path / "a.tar").read_bytes().rstrip(b"\0"))
    content += bytes(-len(content) % 512 + 512)
    content[148:156] = b" " * 8
    content[148:156] = form % sum(content[:512])
    (tmp_path / "a.tar").write_bytes(content)
    with tarfile.open(tmp_path / "a.tar") as theirs:
        assert theirs.getnames() == ["a/1.png"]
    found = archive.listing(tmp_path / "a.tar")
    assert list(_samples(found).values()) == [PNG]
    assert not found.unlisted


def test_the_same_members_of_another_owner_are_the_same_source(tmp_path: pathlib.Path) -> None:
    for owner in (0, 1000):
        with tarfile.open(tmp_path / "a.tar", "w") as file:
            member = tarfile.TarInfo("a/1.png")
            member.size, member.uid, member.mode, member.mtime = len(PNG), owner, 0o600 + owner, 9
            file.addfile(member, io.BytesIO(PNG))
        report = packio.pack(tmp_path / "a.tar", tmp_path / "x.lmdb", source_kind="archive")
        assert report.up_to_date is bool(owner)


def test_a_chain_of_headers_ends(tmp_path: pathlib.Path) -> None:
    _tar(tmp_path / "one.tar", ("n" * 200 + ".png", PNG), form=tarfile.GNU_FORMAT)
    header = (tmp_path / "one.tar").read_bytes()[:1024]
    (tmp_path / "a.tar").write_bytes(header * 5000)
    with pytest.raises(SourceError, match="cut off"):
        archive.listing(tmp_path / "a.tar")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tar", b""), ("a.tar", b"text" * 999), ("a.zip", b""), ("a.zip", b"PK\3\4" * 99),
        ("a.tar.gz", gzip.compress(b"text" * 999, mtime=0)),
        ("a.tar.gz", gzip.compress(bytes(99), mtime=0)[:-9]),
        ("a.tar.gz", b"\x1f\x8b" + b"x" * 99), ("a.tar.bz2", b"BZh9" * 9),
        ("a.tar.xz", b"\xfd7zXZ\0" * 9), ("a.tar.gz", b"no gzip"),
    ],
)  # fmt: skip
def test_what_is_no_archive_is_refused(tmp_path: pathlib.Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=r"damaged|no images"):
        archive.listing(tmp_path / name)


def test_missing_empty_and_zstd_archives_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SourceError, match="No such file"):
        archive.listing(tmp_path / "a.tar")
    with pytest.raises(SourceError, match="directory"):
        archive.listing(tmp_path)
    (tmp_path / "a.tar").write_bytes(bytes(10240))
    _zip(tmp_path / "a.zip", ("readme.txt", b""))
    for name in ("a.tar", "a.zip"):
        with pytest.raises(SourceError, match="no images in it"):
            archive.listing(tmp_path / name)
    (tmp_path / "b.tar").write_bytes(b"\x28\xb5\x2f\xfd" + b"x" * 99)
    with pytest.raises(SourceError, match="unzstd < "):
        archive.listing(tmp_path / "b.tar")


def test_no_room_to_unpack_is_told(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "a.tgz").write_bytes(gzip.compress(random.Random(0).randbytes(4 << 20)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(
            SourceError,
            match=r"1,048,576 bytes here: .*, or name another .* TMPDIR, or unpack",
        ):
            archive.listing(tmp_path / "a.tgz")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path / "tmp") == []


def test_an_unpacked_archive_has_no_name_and_ends_with_its_listing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    _tar(tmp_path / "plain", ("a/1.png", PNG), ("b/1.png", PNG))
    (tmp_path / "a.tgz").write_bytes(gzip.compress((tmp_path / "plain").read_bytes()))
    descriptors = leftovers.descriptors_below(tmp_path / "tmp")
    found = archive.listing(tmp_path / "a.tgz")
    assert os.listdir(tmp_path / "tmp") == []
    assert set(_samples(found).values()) == {PNG}
    sent = pickle.dumps(found)
    code = "import pickle, sys; f = pickle.load(sys.stdin.buffer)\n"
    code += "with f.open_records() as read: print(read(1).image.data.hex())"
    read = subprocess.run([sys.executable, "-c", code], input=sent, check=True, capture_output=True)
    assert read.stdout.decode().strip() == PNG.hex()
    del found
    assert leftovers.descriptors_below(tmp_path / "tmp") == descriptors


def test_an_archive_that_changes_meanwhile_is_told(tmp_path: pathlib.Path) -> None:
    _tar(tmp_path / "a.tar", ("a/1.png", PNG), ("b/1.png", PNG))
    found = archive.listing(tmp_path / "a.tar")
    _tar(tmp_path / "a.tar", ("a/1.png", _png(1)), ("b/1.png", PNG))
    with pytest.raises(SourceError, match="changed after it was listed"), found.open_records():
        pass


def test_the_version_tells_contents_of_a_zip_apart(tmp_path: pathlib.Path) -> None:
    versions = set()
    for data in (b"abc", b"abd", b"abc"):
        _zip(tmp_path / "a.zip", ("a/1.png", data), ("b/1.png", PNG))
        versions.add(archive.listing(tmp_path / "a.zip").version)
    assert len(versions) == 2


def test_files_that_are_no_images_are_counted(tmp_path: pathlib.Path) -> None:
    _zip(
        tmp_path / "a.zip", ("d/a/1.png", PNG), ("d/b/1.png", PNG), ("d/LICENSE", b""),
        ("d/b/x.gif", b""), ("__MACOSX/d/a/._1.png", b"\0\5\x16\7"), ("d/.DS_Store", b""),
        ("d/loose.png", PNG),
    )  # fmt: skip
    found = archive.listing(tmp_path / "a.zip")
    assert found.keys == [b"a/1.png", b"b/1.png"]
    assert found.others == {"": 1, ".gif": 1}
    others, beside, hidden = found.warnings
    assert hidden.startswith("left out: 1 hidden or system folder (__MACOSX/)")
    assert others.startswith("2 files")
    assert beside == "1 images beside the class folders belong to no class (loose.png)"


def test_webdatasets_are_left_to_packs(image_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(tmp_path / "w.tar")) as writer:
        for i in range(3):
            writer.write({"__key__": f"cats/{i}", "png": PNG, "cls": i})
    packio.pack(image_folder, tmp_path / "p.tar")
    os.rename(tmp_path / "p.tar", tmp_path / "bare.tar")
    _tar(tmp_path / "m.tar", ("1.jpg", PNG), ("1.mask.png", PNG))
    for name in ("w.tar", "bare.tar", "m.tar"):
        assert not archive.recognise(tmp_path / name)
    for name in ("w.tar", "bare.tar"):
        with pytest.raises(SourceError, match="a WebDataset"):
            archive.listing(tmp_path / name)
    (tmp_path / "w.tgz").write_bytes(gzip.compress((tmp_path / "w.tar").read_bytes()))
    with pytest.raises(SourceError, match=r"a WebDataset.* gunzip < "):
        archive.listing(tmp_path / "w.tgz")


def test_images_with_dots_in_their_names_are_no_webdataset(tmp_path: pathlib.Path) -> None:
    _tar(tmp_path / "a.tar", ("a/1.left.png", PNG), ("a/1.right.png", PNG), ("a/.png", PNG))
    assert archive.recognise(tmp_path / "a.tar")
    assert len(archive.listing(tmp_path / "a.tar", include_hidden=True).keys) == 3


def test_packs_folders_and_other_files_are_not_recognised(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    packio.pack(image_folder, tmp_path / "pack.tar")
    (tmp_path / "folder.tar").mkdir()
    _zip(tmp_path / "a.pth", ("1.png", PNG))
    for name in ("pack.tar", "folder.tar", "a.pth", "missing.tar"):
        assert not archive.recognise(tmp_path / name)
    (tmp_path / "damaged.tar").write_bytes(b"damaged")
    assert archive.recognise(tmp_path / "damaged.tar")  # so that listing says why


def test_of_two_images_with_one_stem_the_first_has_the_fields(tmp_path: pathlib.Path) -> None:
    names = [f"{i}.{ending}" for i in range(12) for ending in ("png", "jpg", "txt")]
    _zip(tmp_path / "a.zip", *((name, PNG) for name in names))
    found = archive.listing(tmp_path / "a.zip")
    with found.open_records() as read:
        with_text = [key for i, key in enumerate(found.keys) if "txt" in read(i).fields]
    assert sorted(with_text) == sorted(b"%d.png" % i for i in range(12))


def test_a_bomb_is_refused_before_it_fills_the_disk(tmp_path: pathlib.Path) -> None:
    """100 MB of zeros in 0.4 MB; the zeros behind them make the file large, and count nothing."""
    with gzip.open(tmp_path / "a.tar.gz", "wb", compresslevel=1) as file:
        for _ in range(100):
            file.write(bytes(1 << 20))
    os.truncate(tmp_path / "a.tar.gz", 14 << 20)
    with pytest.raises(SourceError, match=r"200 times as large unpacked.* gunzip < "):
        archive.listing(tmp_path / "a.tar.gz")
