"""Hostile folders: N5, Zarr, what there is to pack, and the tables and archives of images."""

from __future__ import annotations

import csv
import gzip
import json
import os
import socket
import stat
import struct
import zipfile
from pathlib import Path

import pytest
from hostile_parts import PHOTO, hostile, member, photo, png, tar, tarred, zipped

# -------------------------------------------------------------------------------------- N5 and Zarr

_N5 = {
    "dimensions": [3, 8, 8, 2], "blockSize": [3, 8, 8, 1], "dataType": "uint8",
    "compression": {"type": "raw"},
}  # fmt: skip


def _n5(folder: Path, attributes: object, block: bytes = b"") -> Path:
    path = folder / "x.n5"
    (path / "images/0/0/0").mkdir(parents=True)
    (path / "attributes.json").write_text('{"n5": "2.0.0"}')
    text = attributes if isinstance(attributes, str) else json.dumps(attributes)
    (path / "images/attributes.json").write_text(text)
    for number in range(2):
        (path / f"images/0/0/0/{number}").write_bytes(block)
    return path


def _block(sizes: tuple[int, ...] = (3, 8, 8, 1), content: bytes = bytes(192)) -> bytes:
    return struct.pack(f">HH{len(sizes)}I", 0, len(sizes), *sizes) + content


@hostile("open", refused=True)
def n5_attributes_nested_100_000_deep(folder: Path) -> Path:
    return _n5(folder, "[" * 100_000, _block())


@hostile("open", refused=True)
def n5_blocks_of_size_0(folder: Path) -> Path:
    return _n5(folder, _N5 | {"blockSize": [0, 0, 0, 0]}, _block())


@hostile("open", refused=True)
def n5_negative_dimensions(folder: Path) -> Path:
    return _n5(folder, _N5 | {"dimensions": [3, -8, 8, 2]}, _block())


@hostile("open", refused=True)
def n5_dimensions_of_2_60(folder: Path) -> Path:
    return _n5(folder, _N5 | {"dimensions": [3, 8, 8, 1 << 60]}, _block())


@hostile("open", refused=True)
def n5_block_that_claims_other_sizes(folder: Path) -> Path:
    return _n5(folder, _N5, _block((3, 8, 8, 1 << 30)))


@hostile("open", refused=True)
def n5_block_that_is_a_gzip_bomb(folder: Path) -> Path:
    bomb = gzip.compress(bytes(1 << 28), 9)
    return _n5(folder, _N5 | {"compression": {"type": "gzip"}}, _block(content=bomb))


@hostile("open", refused=True)
def n5_types_that_make_no_sense(folder: Path) -> Path:
    return _n5(folder, _N5 | {"dimensions": "eight", "dataType": [], "compression": 3}, _block())


def _zarr(folder: Path, **edit: object) -> Path:
    zarr = pytest.importorskip("zarr")  # wants Python 3.11
    path = folder / "x.zarr"
    root = zarr.open_group(path, mode="w", zarr_format=3)
    root.create_array("images", shape=(2, 8, 8, 3), chunks=(1, 8, 8, 3), dtype="u1")[:] = 7
    file = path / "images/zarr.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | edit))
    return path


def _grid(*sizes: int) -> dict[str, object]:
    return {"name": "regular", "configuration": {"chunk_shape": list(sizes)}}


@hostile("open", refused=True)
def zarr_shape_of_2_60(folder: Path) -> Path:
    return _zarr(folder, shape=[1 << 60, 8, 8, 3])


@hostile("open", refused=True)
def zarr_chunks_of_size_0(folder: Path) -> Path:
    return _zarr(folder, chunk_grid=_grid(0, 0, 0, 0))


@hostile("open", refused=True)
def zarr_chunk_of_an_exabyte(folder: Path) -> Path:
    return _zarr(folder, chunk_grid=_grid(1 << 40, 1 << 10, 1 << 10, 3))


@hostile("open", refused=True)
def zarr_codec_that_nobody_knows(folder: Path) -> Path:
    return _zarr(folder, codecs=[{"name": "rot13", "configuration": {}}])


@hostile("open", refused=True)
def zarr_types_that_make_no_sense(folder: Path) -> Path:
    return _zarr(folder, shape="many", data_type={"a": 1}, codecs=7, fill_value=[])


@hostile("open", refused=True)
def zarr_metadata_cut(folder: Path) -> Path:
    path = _zarr(folder)
    file = path / "images/zarr.json"
    file.write_text(file.read_text()[:100])
    return path


# --------------------------------------------------------------------------------- folders to pack


def _photos(folder: Path, count: int = 2) -> Path:
    path = folder / "photos"
    (path / "cat").mkdir(parents=True)
    for number in range(count):
        (path / f"cat/{number}.jpg").write_bytes(photo(number))
    return path


@hostile("pack", photo(0), photo(1))
def folder_with_a_link_to_itself(folder: Path) -> Path:
    path = _photos(folder)
    (path / "cat/again").symlink_to(path, target_is_directory=True)
    return path


@hostile("pack", photo(0), photo(1))
def folder_with_a_pipe_named_jpg(folder: Path) -> Path:
    path = _photos(folder)
    os.mkfifo(path / "cat/pipe.jpg")
    assert stat.S_ISFIFO((path / "cat/pipe.jpg").stat().st_mode)
    return path


@hostile("pack", photo(0), photo(1))
def folder_with_a_socket_named_jpg(folder: Path) -> Path:
    path = _photos(folder)
    held = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(path / "cat")  # the name of a socket has 107 bytes at most
    try:
        held.bind("s.jpg")
    finally:
        os.chdir(here)
        held.close()
    return path


@hostile("pack", photo(0), photo(1))
def folder_with_a_folder_named_jpg(folder: Path) -> Path:
    path = _photos(folder)
    (path / "cat/folder.jpg").mkdir()
    return path


@hostile("pack", photo(0), photo(1))
def folder_with_an_empty_image(folder: Path) -> Path:
    path = _photos(folder)
    (path / "cat/empty.jpg").write_bytes(b"")
    return path


@hostile("pack", photo(0), photo(1))
def folder_with_a_payload_named_jpg(folder: Path) -> Path:
    path = _photos(folder)
    (path / "cat/p.jpg").write_bytes(b"\x80\x04cos\nsystem\n(X\x04\0\0\0true" + b"tR.")
    return path


@hostile("pack", photo(0), photo(1))
def folder_with_a_png_that_claims_too_much(folder: Path) -> Path:
    path = _photos(folder)
    (path / "cat/bomb.png").write_bytes(png(50_000, 50_000, bytes(1 << 20)))
    return path


@hostile("pack", photo(0), photo(1))
def folder_with_half_an_image(folder: Path) -> Path:
    path = _photos(folder)
    (path / "cat/half.jpg").write_bytes(photo(2)[:90])
    return path


@hostile("pack", photo(0))
def folder_with_a_name_that_is_no_utf8(folder: Path) -> Path:
    path = _photos(folder, 1)
    (path / os.fsdecode(b"cat/\xff\xfe.txt")).write_bytes(b"no image")
    return path


# -------------------------------------------------------------------------------- archives to pack


@hostile("pack", refused=True)
def zip_with_names_that_climb(folder: Path) -> Path:
    return zipped(
        folder / "x.zip", {"../../cat/0.jpg": photo(0), "/cat/1.jpg": photo(1), "cat/2.txt": b""}
    )


@hostile("pack", photo(0), photo(1))
def zip_with_a_bomb(folder: Path) -> Path:
    members = {"cat/0.jpg": photo(0), "cat/1.jpg": photo(1), "cat/bomb.jpg": bytes(1 << 28)}
    return zipped(folder / "x.zip", members, stored=False)


@hostile("pack", refused=True)
def zip_cut(folder: Path) -> Path:
    path = zipped(folder / "x.zip", {"cat/0.jpg": photo(0), "cat/1.jpg": photo(1)})
    path.write_bytes(path.read_bytes()[:-60])
    return path


@hostile("pack", photo(0))
def zip_member_with_a_wrong_sum(folder: Path) -> Path:
    path = zipped(folder / "x.zip", {"cat/0.jpg": photo(0), "cat/1.jpg": photo(1)})
    data = bytearray(path.read_bytes())
    data[data.index(photo(1)) + len(photo(1)) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    return path


@hostile("pack", photo(0))
def zip_with_a_locked_member(folder: Path) -> Path:
    path = zipped(folder / "x.zip", {"cat/0.jpg": photo(0), "cat/1.jpg": photo(1)})
    data = bytearray(path.read_bytes())
    for magic, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.rindex(magic)
        data[at + flags] |= 1  # encrypted
    path.write_bytes(bytes(data))
    return path


@hostile("pack", photo(0))
def tar_with_links_out_of_it(folder: Path) -> Path:
    path = folder / "x.tar"
    made = tar(
        folder, member("cat/0.jpg", photo(0)),
        member("cat/1.jpg", b"", kind=b"2", link=b"../secret"),
        member("cat/2.jpg", b"", kind=b"1", link=b"/etc/passwd"),
    )  # fmt: skip
    assert made == path
    return path


@hostile("pack", refused=True)
def tar_gz_cut(folder: Path) -> Path:
    plain = tarred(folder / "plain.tar", {"cat/0.jpg": photo(0), "cat/1.jpg": photo(1)})
    path = folder / "x.tar.gz"
    path.write_bytes(gzip.compress(plain.read_bytes())[:-900])
    return path


@hostile("pack", refused=True)
def zip_directory_that_lies(folder: Path) -> Path:
    path = folder / "x.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("cat/0.jpg", photo(0))
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x05\x06")
    data[at + 16 : at + 20] = b"\xf0\xff\xff\xff"  # where the directory begins
    path.write_bytes(bytes(data))
    return path


# ---------------------------------------------------------------------------------- tables to pack


@hostile("pack", photo(0), photo(1))
def csv_with_paths_that_climb(folder: Path) -> Path:
    """A CSV may name any file that its user can read; what is no image is left out."""
    path = _photos(folder)
    with (path / "list.csv").open("w", newline="") as file:
        rows = [["path", "label"], ["cat/0.jpg", "a"], ["cat/1.jpg", "b"], ["../secret", "c"]]
        csv.writer(file).writerows(rows)
    return path / "list.csv"


@hostile("pack", refused=True)
def csv_of_zeros(folder: Path) -> Path:
    (folder / "list.csv").write_bytes(bytes(4096))
    return folder / "list.csv"


@hostile("pack", refused=True)
def jsonl_nested_100_000_deep(folder: Path) -> Path:
    (folder / "list.jsonl").write_text('{"path": ' + "[" * 100_000 + "\n")
    return folder / "list.jsonl"


@hostile("pack", refused=True)
def coco_of_wrong_types(folder: Path) -> Path:
    path = _photos(folder)
    wrong = {"images": [{"id": [], "file_name": 7}], "annotations": {"a": 1}, "categories": "x"}
    (path / "instances.json").write_text(json.dumps(wrong))
    return path / "instances.json"


@hostile("pack", refused=True)
def coco_nested_100_000_deep(folder: Path) -> Path:
    path = _photos(folder)
    (path / "instances.json").write_text('{"images": ' + "[" * 100_000)
    return path / "instances.json"


@hostile("pack", refused=True)
def parquet_of_noise(folder: Path) -> Path:
    (folder / "x.parquet").write_bytes(b"PAR1" + bytes(range(256)) * 8 + b"\xff\x00\x00\x00PAR1")
    return folder / "x.parquet"


@hostile("pack", refused=True)
def voc_with_a_billion_laughs(folder: Path) -> Path:
    path = folder / "voc"
    (path / "JPEGImages").mkdir(parents=True)
    (path / "Annotations").mkdir()
    (path / "JPEGImages/0.jpg").write_bytes(PHOTO)
    entities = '<!ENTITY a0 "ha">' + "".join(
        f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12)
    )
    laughs = "<annotation><object><name>&a11;</name></object></annotation>"
    text = f"<!DOCTYPE annotation [{entities}]>{laughs}"
    (path / "Annotations/0.xml").write_text(text)
    return path
