"""tar, checked against Python's tarfile, GNU tar and webdataset, both ways."""

from __future__ import annotations

import functools
import io
import json
import shutil
import subprocess
import tarfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import long
import made
import numpy as np
import pytest

from packio import errors
from packio.formats import Reading
from packio.formats.tar import FORMAT

if TYPE_CHECKING:
    from collections.abc import Iterable

_SIZES = [0, 1, 511, 512, 513, 1023, 1024, 100_000, 1_500_000]
_ENCODINGS = ["jpeg", "png", "webp", "bmp", "gif", "tiff", "pnm", "jp2", "avif", "unknown"]
_SUFFIXES = ["jpg", "png", "webp", "bmp", "gif", "tif", "ppm", "jp2", "avif", "img"]
_records = functools.partial(made.random_records, encoding="jpeg")
_write = functools.partial(made.write, FORMAT)


def _one(path: Path, record: made.Made) -> made.Found:
    """Write one record, and scan it."""
    _write(path, [record])
    (entry,) = made.scanned(FORMAT, path)
    return entry


def _members(path: Path) -> dict[str, bytes]:
    """All members, as tarfile reads them."""
    with tarfile.open(path) as archive:
        members = archive.getmembers()
        assert len({m.name for m in members}) == len(members)
        return {m.name: _content(archive, m) for m in members}


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None
    return file.read()


def _tar(path: Path, members: Iterable[tuple[str, bytes]], kind: int = tarfile.PAX_FORMAT) -> Path:
    """An archive by tarfile."""
    with tarfile.open(path, "w", format=kind) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mtime = 1.5  # makes a pax header, as webdataset does
            archive.addfile(member, io.BytesIO(content))
    return path


def _scanned(path: Path) -> list[tuple[bytes, bytes]]:
    """Name and image of every sample, as `scan` says where it lies."""
    whole = path.read_bytes()
    return [(e.key, whole[e.offset : e.offset + e.length]) for e in made.scanned(FORMAT, path)]


# Writing


def test_tarfile_reads_what_was_written(tmp_path: Path) -> None:
    records = _records(_SIZES)
    _write(tmp_path / "out.tar", records)
    expected = {}
    for i, record in enumerate(records):
        expected[f"{i:08d}.cls"] = b"%d" % (i % 7)
        expected[f"{i:08d}.jpg"] = record.data
        expected[f"{i:08d}.json"] = b'{"key":"class/%d.jpg"}' % i
    found = _members(tmp_path / "out.tar")
    assert found == expected
    assert list(found) == list(expected)


def test_nothing_in_a_header_tells_who_wrote_it_and_when(tmp_path: Path) -> None:
    _write(tmp_path / "out.tar", _records(_SIZES))
    with tarfile.open(tmp_path / "out.tar") as archive:
        facts = {
            (m.mtime, m.mode, m.uid, m.gid, m.uname, m.gname, m.type, m.linkname, m.devmajor)
            for m in archive
        }
        assert archive.pax_headers == {}
    assert facts == {(0, 0o444, 0, 0, "", "", tarfile.REGTYPE, "", 0)}


def test_the_bytes_are_those_of_gnu_tar(tmp_path: Path) -> None:
    if shutil.which("tar") is None:
        pytest.skip("there is no tar")
    _write(tmp_path / "out.tar", _records([1000, 0, 512, 30_000]))
    members = _members(tmp_path / "out.tar")
    for name, content in members.items():
        (tmp_path / name).write_bytes(content)
    command = [
        "tar", "--create", "--format=ustar", "--mtime=@0", "--owner=0", "--group=0",
        "--numeric-owner", "--mode=0444", "--file", "theirs.tar", *members,
    ]  # fmt: skip
    subprocess.run(command, cwd=tmp_path, check=True, timeout=600)
    assert (tmp_path / "out.tar").read_bytes() == (tmp_path / "theirs.tar").read_bytes()


def test_gnu_tar_finds_members_where_the_index_says(tmp_path: Path) -> None:
    if shutil.which("tar") is None:
        pytest.skip("there is no tar")
    _write(tmp_path / "out.tar", _records(_SIZES, mask=b"mask", mask_encoding="png"))
    command = ["tar", "--list", "--verbose", "--block-number", "--file", str(tmp_path / "out.tar")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert done.stderr == ""
    found = []
    for line in done.stdout.splitlines()[:-1]:  # the last one tells the end of the archive
        _, block, mode, owner, size, *_, name = line.split()
        assert (mode, owner) == ("-r--r--r--", "0/0")
        found.append((int(block.rstrip(":")) * 512 + 512, int(size), name))
    version, *lines = (tmp_path / "out.tar.idx").read_text().splitlines()
    assert version == f"v1.2 {len(_SIZES)}"
    fields = [line.split(" ") for line in lines]
    assert found == [
        (int(line[i + 1]), int(line[i + 2]), line[i + 3])
        for line in fields
        for i in range(0, len(line), 4)
    ]
    assert {tuple(line[::4]) for line in fields} == {("cls", "jpg", "json", "mask.png")}


@pytest.mark.parametrize(("encoding", "suffix"), [*zip(_ENCODINGS, _SUFFIXES, strict=True)])
def test_suffixes_tell_the_encoding(tmp_path: Path, encoding: str, suffix: str) -> None:
    record = made.record(b"image", 3, b"k", encoding, mask=b"mask", mask_encoding=encoding)
    entry = _one(tmp_path / "out.tar", record)
    names = [f"00000000.{s}" for s in sorted(("cls", "json", suffix, f"mask.{suffix}"))]
    assert list(_members(tmp_path / "out.tar")) == names
    assert entry.label == 3
    assert entry.mask is not None
    assert (tmp_path / "out.tar").read_bytes()[entry.mask[1] :].startswith(b"mask\0")


@pytest.mark.parametrize("key", [b"a/b.jpg", b"\xff\xfe\t\n", "é\u2028".encode(), b"", b'"\\'])
def test_a_key_of_any_bytes_comes_back(tmp_path: Path, key: bytes) -> None:
    assert _one(tmp_path / "out.tar", made.record(b"image", 0, key)).key == key


@pytest.mark.parametrize("label", [0, -5, 2**63 - 1, -(2**63)])
def test_a_label_comes_back(tmp_path: Path, label: int) -> None:
    assert _one(tmp_path / "out.tar", made.record(b"image", label, b"k")).label == label
    assert _members(tmp_path / "out.tar")["00000000.cls"] == str(label).encode()


def test_a_vector_is_in_the_description(tmp_path: Path) -> None:
    vector = np.array([0.1, -1e-38, 3], np.float32)
    assert _one(tmp_path / "out.tar", made.record(b"image", vector, b"k")).label == tuple(
        vector.tolist()
    )
    assert list(_members(tmp_path / "out.tar")) == ["00000000.img", "00000000.json"]


def test_no_label_is_no_label(tmp_path: Path) -> None:
    assert _one(tmp_path / "out.tar", made.record(b"image", None, b"k")).label is None
    assert list(_members(tmp_path / "out.tar")) == ["00000000.img", "00000000.json"]


def test_names_are_as_wide_as_the_count_needs(tmp_path: Path) -> None:
    writer = made.writer(FORMAT, tmp_path / "out.tar", count=100_000_001, size=0)
    writer.add(_records([3]))
    assert writer.close().info["keys"] == 9
    assert min(_members(tmp_path / "out.tar")) == "000000000.cls"


def test_a_member_of_8_gib_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packio.formats.tar._MOST_BYTES", 1000)
    writer = made.writer(FORMAT, tmp_path / "out.tar", count=1, size=1)
    with pytest.raises(errors.OutputError, match=r"b'class/0\.jpg' has 1000 bytes"):
        writer.add(_records([1000]))
    writer.abort()


@pytest.mark.parametrize("damage", ["a bit", "cut off", "longer"])
def test_what_reads_back_differently_is_an_error(tmp_path: Path, damage: str) -> None:
    writer = made.writer(FORMAT, tmp_path / "out.tar", count=3, size=3)
    writer.add(_records([2_000_000, 5]))
    whole = bytearray((tmp_path / "out.tar").read_bytes())
    if damage == "a bit":
        whole[1_000_000] ^= 1
    else:
        whole = whole[:-3000] if damage == "cut off" else whole + bytes(100_000)
    (tmp_path / "out.tar").write_bytes(whole)
    with pytest.raises(
        errors.OutputError, match=r"out\.tar: .*(read back differently|more are th)"
    ):
        writer.close()


def test_finishing_a_directory_tells_wids_and_timm_of_its_shards(tmp_path: Path) -> None:
    shards = ["photos-00000.tar", "photos-00001.tar"]
    for count, shard in zip((3, 5), shards, strict=True):
        _write(tmp_path / shard, _records([100] * count))
    paths = {shard: tmp_path / shard for shard in shards}
    assert FORMAT.finish(tmp_path, paths) == ["shardindex.json", "_info.json"]
    wids = json.loads((tmp_path / "shardindex.json").read_text())
    assert wids["__kind__"] == "wids-shard-index-v1"
    assert [(s["url"], s["nsamples"]) for s in wids["shardlist"]] == [
        (shards[0], 3),
        (shards[1], 5),
    ]
    assert [s["filesize"] for s in wids["shardlist"]] == [
        (tmp_path / shard).stat().st_size for shard in shards
    ]
    timm = json.loads((tmp_path / "_info.json").read_text())["splits"]["photos"]
    assert timm["filenames"] == shards
    assert (timm["shard_lengths"], timm["num_samples"], timm["name"]) == ([3, 5], 8, "photos")


# webdataset


def _webdataset() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("webdataset")


@pytest.mark.filterwarnings("ignore")
def test_webdataset_reads_what_was_written(tmp_path: Path) -> None:
    wds = _webdataset()
    records = _records([10, 2000, 30], mask=b"mask", mask_encoding="png")
    _write(tmp_path / "out.tar", records)
    found = list(wds.WebDataset(str(tmp_path / "out.tar"), shardshuffle=False))
    assert [s["__key__"] for s in found] == ["00000000", "00000001", "00000002"]
    expected = [(r.data, str(r.label).encode(), r.mask_data) for r in records]
    assert [(s["jpg"], s["cls"], s["mask.png"]) for s in found] == expected
    assert [json.loads(s["json"])["key"].encode() for s in found] == [r.key for r in records]


@pytest.mark.filterwarnings("ignore")
def test_what_webdataset_writes_is_read(tmp_path: Path) -> None:
    wds = _webdataset()
    with wds.TarWriter(str(tmp_path / "theirs.tar")) as sink:
        for i in range(20):
            name, meta = f"folder/sample{i:06d}" + "x" * 90, {"caption": f"é {i}"}
            sink.write({"__key__": name, "jpg": b"image %d" % i, "cls": i, "json": meta})
    assert b"mtime=" in (tmp_path / "theirs.tar").read_bytes()  # pax headers
    entries = list(made.scanned(FORMAT, tmp_path / "theirs.tar"))
    assert [e.key for e in entries] == [b"folder/sample%06d" % i + b"x" * 90 for i in range(20)]
    assert [e.label for e in entries] == list(range(20))
    assert [json.loads(e.meta or b"")["caption"] for e in entries] == [f"é {i}" for i in range(20)]
    assert [d for _, d in _scanned(tmp_path / "theirs.tar")] == [b"image %d" % i for i in range(20)]


# Scanning what others write

_KINDS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


@pytest.mark.parametrize("kind", _KINDS, ids=["ustar", "gnu", "pax"])
def test_names_of_any_length_are_read(tmp_path: Path, kind: int) -> None:
    names = ["a.jpg", "é/ü.JPEG", "/".join("d" * 30 for _ in range(4)) + "/" + "f" * 90 + ".png"]
    if kind != tarfile.USTAR_FORMAT:
        names += ["n" * 300 + ".jpg", "d/" * 400 + "x.webp"]
    path = _tar(tmp_path / "x.tar", ((name, name.encode()) for name in names), kind)
    expected = [(name.encode(), name.encode()) for name in names]
    assert _scanned(path) == expected
    assert [e.key for e in made.scanned(FORMAT, path)] == [name for name, _ in expected]


def test_gnu_tars_of_folders_are_read(tmp_path: Path) -> None:
    if shutil.which("tar") is None:
        pytest.skip("there is no tar")
    (tmp_path / "images/cat").mkdir(parents=True)
    for i in range(5):
        (tmp_path / f"images/cat/{i}.jpg").write_bytes(b"cat %d" % i)
    (tmp_path / "images/README.txt").write_bytes(b"text")
    (tmp_path / "images/cat/._0.jpg").write_bytes(b"hidden")
    for kind in ("v7", "oldgnu", "gnu", "ustar", "pax"):
        path = tmp_path / f"{kind}.tar"
        command = ["tar", "--create", "--sort=name", f"--format={kind}", "--file", str(path)]
        subprocess.run([*command, "images"], cwd=tmp_path, check=True, timeout=600)
        assert _scanned(path) == [(b"images/cat/%d.jpg" % i, b"cat %d" % i) for i in range(5)]
        assert {e.label for e in made.scanned(FORMAT, path)} == {None}


def test_img2dataset_tars_are_read(tmp_path: Path) -> None:
    meta = [{"url": "u", "key": f"0000{i}", "width": 3, "sha256": None} for i in range(3)]
    members = []
    for i, described in enumerate(meta):
        members += [
            (f"0000{i}.jpg", b"image %d" % i),
            (f"0000{i}.json", json.dumps(described, indent=4).encode()),
            (f"0000{i}.txt", b"caption"),
        ]
    entries = list(made.scanned(FORMAT, _tar(tmp_path / "x.tar", members)))
    assert [e.key for e in entries] == [b"00000", b"00001", b"00002"]
    assert [json.loads(e.meta or b"") for e in entries] == meta


@pytest.mark.parametrize(
    ("names", "samples"),
    [
        (["cat.0.jpg", "cat.1.jpg", "dog.0.jpg"], ["cat.0.jpg", "cat.1.jpg", "dog.0.jpg"]),
        (["1.jpg", "1.seg.png", "2.jpg", "2.seg.png"], ["1", "2"]),
        (["1.jpg", "1.mask.png"], ["1"]),
        (["1.JPG", "1.cls", "2.Png", "2.CLS"], ["1", "2"]),
        (["a/1.jpg", "b/1.jpg"], ["a/1.jpg", "b/1.jpg"]),
        (["a.b/1.jpg", "a.b/1.cls"], ["a.b/1"]),
        (["README", "x.txt", "y.json", ".hidden.jpg", "a/.x.jpg", "__MACOSX.jpg__"], []),
    ],
)
def test_members_are_samples_as_webdataset_has_it(
    tmp_path: Path, names: list[str], samples: list[str]
) -> None:
    path = _tar(tmp_path / "x.tar", [(n, b"{}" if n.endswith("json") else b"1") for n in names])
    assert [name.decode() for name, _ in _scanned(path)] == samples


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["1.left.jpg", "1.right.jpg", "1.cls"], r"b'1\.cls' belongs to no single image"),
        (["a/1.x.jpg", "a/1.y.jpg", "a/1.x.cls", "a/1.mask.png"], r"b'a/1\.mask\.png' belongs"),
    ],
)
def test_samples_without_a_main_image_are_refused(
    tmp_path: Path, names: list[str], problem: str
) -> None:
    path = _tar(tmp_path / "x.tar", [(name, b"1") for name in names])
    with pytest.raises(errors.NotAPackError, match=problem):
        list(made.scanned(FORMAT, path))


@pytest.mark.parametrize(
    ("names", "fields"),
    [
        (["1.jpg", "1.txt"], {"image": "image", "txt": "text"}),
        (["1.npy", "1.png"], {"image": "image", "npy": "array"}),
        (["1.jpg", "1.png", "1.cls"], {"image": "image", "png": "image"}),
        (["1.jpg", "1.seg.png", "1.d.png"], {"image": "image", "seg": "mask", "d": "image"}),
        (["1.left.png", "1.rgb.png", "1.cls"], {"image": "image", "left": "image"}),
        (["1.jpg", "1.a.png", "1.a.gif"], {"image": "image", "a": "image", "a_gif": "image"}),
        (["1.jpg", "1.label.txt", "1.0.npy"], {"image": "image", "_label": "text", "_0": "array"}),
        (["1.jpg", "1.xml", "1.a.b.bin"], {"image": "image", "xml": "bytes", "a_b": "bytes"}),
        (["1.jpg", "1.cls", "1.JPG"], {"image": "image", "jpg": "image"}),
    ],
)  # fmt: skip
def test_members_beside_the_image_are_fields(
    tmp_path: Path, names: list[str], fields: dict[str, str]
) -> None:
    (found,) = made.scanned(FORMAT, _tar(tmp_path / "x.tar", [(n, b"1") for n in names]))
    assert {name: place.kind for name, place in found.fields.items()} == fields


def test_a_description_of_others_is_metadata(tmp_path: Path) -> None:
    text = b'{"key":"k","label":1}'
    path = _tar(tmp_path / "x.tar", [("1.jpg", b"image"), ("1.json", text)])
    (found,) = made.scanned(FORMAT, path)
    assert (found.key, found.label, found.meta) == (b"1", None, text)


@pytest.mark.parametrize("name", ["1.cls", "1.mask.png"])
def test_a_label_or_mask_without_image_is_a_record_without_fields(
    tmp_path: Path, name: str
) -> None:
    path = _tar(tmp_path / "x.tar", [(name, b"1"), ("2.jpg", b"1"), ("2.cls", b"2")])
    records = list(FORMAT.scan(path, Reading()))
    assert [(r.key, bool(r.fields)) for r in records] == [(b"1", False), (b"2", True)]


def test_a_member_that_is_there_twice_is_an_error(tmp_path: Path) -> None:
    path = _tar(tmp_path / "x.tar", [("1.jpg", b"1"), ("1.jpg", b"2")])
    with pytest.raises(errors.IntegrityError, match=r"b'1\.(jpg|JPG)' at \d+ is there twice"):
        list(made.scanned(FORMAT, path))


_BAD_DESCRIPTIONS = [
    b"{", b"\xff", b'{"key":"k","label":[' + b"9" * 5000 + b"]}", b"[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("text", _BAD_DESCRIPTIONS, ids=range(len(_BAD_DESCRIPTIONS)))
def test_a_description_that_does_not_parse_is_an_error(tmp_path: Path, text: bytes) -> None:
    path = _tar(tmp_path / "x.tar", [("1.jpg", b"image"), ("1.json", text)])
    with pytest.raises(errors.IntegrityError, match=r"x\.tar: b'1\.json' at \d+ does not parse"):
        list(made.scanned(FORMAT, path))


@pytest.mark.parametrize("label", [b"\xff", b"9" * 19, b"1" * 5000])
def test_a_label_that_is_no_number_and_no_name_is_an_error(tmp_path: Path, label: bytes) -> None:
    path = _tar(tmp_path / "x.tar", [("1.jpg", b"image"), ("1.cls", label)])
    with pytest.raises(errors.IntegrityError, match=r"the label b'1\.cls' at \d+ is"):
        list(made.scanned(FORMAT, path))


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_a_compressed_archive_is_refused_with_what_to_do(tmp_path: Path, kind: str) -> None:
    mode: Any = f"w:{kind}"
    tarfile.open(tmp_path / "x.tar", mode).close()
    with pytest.raises(
        errors.NotAPackError,
        match=r"compressed as a whole by .*unpack the file first: (gun|bun|un)",
    ):
        list(made.scanned(FORMAT, tmp_path / "x.tar"))


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_hard_links_have_the_content_of_the_member_they_are_of(tmp_path: Path, form: int) -> None:
    long = "n" * (90 if form == tarfile.USTAR_FORMAT else 150) + ".jpg"
    files = {long: b"first", "1.jpg": b"second"}
    links = {"2.jpg": long, "3.jpg": "1.jpg", "4.jpg": "3.jpg"}  # name: what it is a link to
    with tarfile.open(tmp_path / "x.tar", "w", format=form) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for name, target in links.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.LNKTYPE, target
            archive.addfile(member)
    whole = (tmp_path / "x.tar").read_bytes()
    found = made.scanned(FORMAT, tmp_path / "x.tar")
    contents = {f.key: whole[f.offset : f.offset + f.length] for f in found}
    keys = [name.encode() for name in (*files, *links)]
    expected = [b"first", b"second", b"first", b"second", b"second"]
    assert contents == dict(zip(keys, expected, strict=True))


@pytest.mark.parametrize(
    "kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, b"S", b"?"]
)
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        member = tarfile.TarInfo("image.jpg")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(errors.NotAPackError, match=r"b'image\.jpg' .*is (a|of)"):
        list(made.scanned(FORMAT, tmp_path / "x.tar"))


# Damage


def _header(**fields: bytes) -> bytearray:
    header = bytearray(tarfile.TarInfo("image.jpg").tobuf(tarfile.USTAR_FORMAT))
    places = {"name": 0, "size": 124, "kind": 156}
    for field, value in fields.items():
        header[places[field] : places[field] + len(value)] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return header


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (_header(size=b"\x80" + b"\xff" * 11), "cut off"),
        (_header(size=b"\xff" * 12), "has the size"),
        (_header(size=b"77777777777\0"), "cut off"),
        (_header(size=b"-0000000001\0"), "has the size"),
        (_header(size=b"0x"), "has the size"),
        (_header(name=bytes(100)), "has the name b''"),
        (_header(size=b"00077777777\0", kind=b"x") + bytes(1 << 25), "has 16777215 bytes"),
        (_header(size=b"00000000012\0", kind=b"x") + b"9 path=abc".ljust(512, b"\0"), "pax header"),
        (_header(size=b"00000000012\0", kind=b"x") + b"10 path=a\n".ljust(512, b"\0"), "announced"),
        (_header(size=b"00000000012\0", kind=b"g") + b"10 path=a\n".ljust(512, b"\0"), "one name"),
        (_header(size=b"00000000002\0", kind=b"x") + b"0 ".ljust(512, b"\0"), "pax header"),
    ],
)
def test_no_header_is_believed(tmp_path: Path, header: bytes, problem: str) -> None:
    (tmp_path / "x.tar").write_bytes(header + bytes(1024))
    with pytest.raises(errors.IntegrityError, match=problem):
        list(made.scanned(FORMAT, tmp_path / "x.tar"))


def test_a_header_of_zeros_is_not_taken_for_the_end(tmp_path: Path) -> None:
    written = _write(tmp_path / "out.tar", _records([10_000] * 9))
    with (tmp_path / "out.tar").open("r+b") as file:
        file.seek(int(written.places["image"].offset[4]) - 2048)
        file.write(bytes(2048))
    with pytest.raises(errors.IntegrityError, match="something follows the end mark, after"):
        list(made.scanned(FORMAT, tmp_path / "out.tar"))


def test_archives_in_a_row_are_refused(tmp_path: Path) -> None:
    whole = _tar(tmp_path / "x.tar", [("1.jpg", b"image")]).read_bytes()
    (tmp_path / "x.tar").write_bytes(whole + whole)
    with pytest.raises(errors.IntegrityError, match="or several archives in one"):
        list(made.scanned(FORMAT, tmp_path / "x.tar"))


def test_an_archive_without_its_end_mark_is_refused(tmp_path: Path) -> None:
    whole = _tar(tmp_path / "x.tar", [("1.jpg", b"image")]).read_bytes()
    end = -(-len(whole.rstrip(b"\0")) // 512) * 512
    assert made.survives(FORMAT, tmp_path / "x.tar", whole[: end + 512])
    assert made.survives(FORMAT, tmp_path / "x.tar", whole[:end]) is None


@pytest.mark.parametrize("step", long.after(1, (7, 1)))
def test_flipped_bits_in_headers_are_errors(tmp_path: Path, step: int) -> None:
    written = _write(tmp_path / "out.tar", _records([700, 3]))
    whole = (tmp_path / "out.tar").read_bytes()
    # a checksum may be written in many ways
    for bit in (*range(0, 8 * 148, step), *range(8 * 156, 8 * 512, step)):
        damaged = bytearray(whole)
        damaged[int(written.places["image"].offset[1]) - 512 + bit // 8] ^= 1 << bit % 8
        assert made.survives(FORMAT, tmp_path / "x.tar", bytes(damaged)) is None
