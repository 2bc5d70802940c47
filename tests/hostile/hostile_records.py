"""Hostile containers of one record after the other: tar, TFRecord, RecordIO."""

from __future__ import annotations

import io
import pickle
import struct
from pathlib import Path

import numpy as np
from hostile_parts import (
    END,
    PHOTO,
    delimited,
    example,
    framed,
    hostile,
    masked,
    member,
    photo,
    png,
    poison,
    tar,
    varint,
)

# ------------------------------------------------------------------------------------------- tars


@hostile("open", refused=True)
def tar_pax_size_of_8_eib(folder: Path) -> Path:
    return tar(folder, member("h", b"29 size=9223372036854775807\n", kind=b"x"), member("0.jpg"))


@hostile("open", refused=True)
def tar_header_of_4_gib(folder: Path) -> Path:
    return tar(folder, member("h", b"", kind=b"x", size=b"37777777777\0"), member("0.jpg"))


@hostile("open", refused=True)
def tar_long_name_of_4_gib(folder: Path) -> Path:
    return tar(folder, member("h", b"", kind=b"L", size=b"37777777777\0"), member("0.jpg"))


@hostile("open", refused=True)
def tar_negative_size(folder: Path) -> Path:
    return tar(folder, member("0.jpg", size=b"\xff" * 12))


@hostile("open", refused=True)
def tar_size_beyond_the_end(folder: Path) -> Path:
    return tar(folder, member("0.jpg", size=b"00000777777\0"))


@hostile("open", refused=True)
def tar_wrong_checksum(folder: Path) -> Path:
    broken = bytearray(member("0.jpg"))
    broken[150] ^= 1
    return tar(folder, bytes(broken))


@hostile("open", refused=True)
def tar_cut_in_a_header(folder: Path) -> Path:
    return tar(folder, member("0.jpg"), member("1.jpg")[:100], end=b"")


@hostile("open", refused=True)
def tar_of_a_link_to_a_secret(folder: Path) -> Path:
    return tar(folder, member("0.jpg", b"", kind=b"2", link=b"secret"))


@hostile("open", refused=True)
def tar_link_beside_an_image(folder: Path) -> Path:
    return tar(folder, member("0.jpg"), member("passwd", b"", kind=b"2", link=b"/etc/passwd"))


@hostile("open", refused=True)
def tar_device_beside_an_image(folder: Path) -> Path:
    return tar(folder, member("null", b"", kind=b"3"), member("0.jpg"))


@hostile("open", PHOTO, photo(1))
def tar_names_that_climb(folder: Path) -> Path:
    return tar(folder, member("../../0.jpg"), member("/etc/1.jpg", photo(1)))


@hostile("open", refused=True)
def tar_same_key_twice(folder: Path) -> Path:
    return tar(folder, member("0.jpg"), member("0.jpg", photo(1)))


@hostile("open", refused=True)
def tar_json_nested_100_000_deep(folder: Path) -> Path:
    return tar(folder, member("0.jpg"), member("0.json", b"[" * 100_000 + b"]" * 100_000))


@hostile("open", refused=True)
def tar_json_of_a_number_of_a_million_digits(folder: Path) -> Path:
    return tar(folder, member("0.jpg"), member("0.json", b'{"n": ' + b"9" * 1_000_000 + b"}"))


@hostile("open", refused=True)
def tar_label_beyond_64_bits(folder: Path) -> Path:
    return tar(folder, member("0.jpg"), member("0.cls", b"9" * 40))


@hostile("open", refused=True)
def tar_label_of_100_000_digits(folder: Path) -> Path:
    return tar(folder, member("0.jpg"), member("0.cls", b"9" * 100_000))


@hostile("open", refused=True)
def tar_npy_of_python_objects(folder: Path) -> Path:
    held = io.BytesIO()
    np.save(held, np.array([poison(folder)], dtype=object), allow_pickle=True)
    return tar(folder, member("0.jpg"), member("0.depth.npy", held.getvalue()))


@hostile("open", refused=True)
def tar_npy_that_claims_16_tib(folder: Path) -> Path:
    shape = b"{'descr': '<f8', 'fortran_order': False, 'shape': (2199023255552,), }"
    head = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(shape) + 1) + shape + b"\n"
    return tar(folder, member("0.jpg"), member("0.depth.npy", head + bytes(8)))


@hostile("open", refused=True)
def tar_all_zeros(folder: Path) -> Path:
    return tar(folder, end=bytes(1 << 16))


@hostile("open", refused=True)
def tar_of_a_png_of_2_500_megapixels(folder: Path) -> Path:
    return tar(folder, member("0.png", png(50_000, 50_000)))


@hostile("open", refused=True)
def tar_of_a_jpeg_of_65_500_squared(folder: Path) -> Path:
    at = PHOTO.index(b"\xff\xc0")
    claims = struct.pack(">HH", 65_500, 65_500)
    return tar(folder, member("0.jpg", PHOTO[: at + 5] + claims + PHOTO[at + 9 :]))


@hostile("open", refused=True)
def tar_of_a_webp_of_16_383_squared(folder: Path) -> Path:
    bits = 16_382 | 16_382 << 14
    body = b"VP8L" + struct.pack("<I", 6) + b"\x2f" + struct.pack("<I", bits) + b"\0"
    return tar(
        folder, member("0.webp", b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body)
    )


# -------------------------------------------------------------------------------------- TFRecords


def _records(folder: Path, content: bytes) -> Path:
    path = folder / "x.tfrecord"
    path.write_bytes(content)
    return path


@hostile("open", refused=True)
def tfrecord_length_of_2_63(folder: Path) -> Path:
    length = struct.pack("<Q", 1 << 63)
    return _records(folder, length + masked(length) + bytes(64))


@hostile("open", refused=True)
def tfrecord_wrong_sum_of_content(folder: Path) -> Path:
    return _records(folder, framed(example())[:-1] + b"\0")


@hostile("open", refused=True)
def tfrecord_cut_in_a_record(folder: Path) -> Path:
    return _records(folder, framed(example()) + framed(example())[:-100])


@hostile("open", refused=True)
def tfrecord_field_longer_than_its_record(folder: Path) -> Path:
    return _records(folder, framed(delimited(1, b"abc", length=1 << 40)))


@hostile("open", refused=True)
def tfrecord_length_of_11_bytes(folder: Path) -> Path:
    return _records(folder, framed(b"\x0a" + b"\xff" * 11 + b"\x01"))


@hostile("open", refused=True)
def tfrecord_without_images(folder: Path) -> Path:
    feature = delimited(1, b"text") + delimited(2, delimited(1, delimited(1, b"no image")))
    return _records(folder, framed(delimited(1, delimited(1, feature))))


@hostile("open", refused=True)
def tfrecord_nested_10_000_deep(folder: Path) -> Path:
    held = b""
    for _ in range(10_000):
        held = delimited(1, held)
    return _records(folder, framed(held))


@hostile("open", refused=True)
def tfrecord_of_a_damaged_example_behind_a_good_one(folder: Path) -> Path:
    return _records(folder, framed(example()) + framed(varint(1 << 3 | 7) * 9))


# --------------------------------------------------------------------------------------- RecordIO


def _rec(folder: Path, content: bytes, index: str = "") -> Path:
    path = folder / "x.rec"
    path.write_bytes(content)
    if index:
        (folder / "x.idx").write_text(index)
    return path


def _recorded(image: bytes = PHOTO, *, length: int | None = None, flag: int = 0,
              label: float = 1.0) -> bytes:  # fmt: skip
    head = struct.pack("<IfQQ", flag, label, 0, 0)
    content = head + image
    mark = struct.pack("<II", 0xCED7230A, len(content) if length is None else length)
    return mark + content + bytes(-len(content) % 4)


@hostile("open", refused=True)
def recordio_wrong_magic_in_the_middle(folder: Path) -> Path:
    return _rec(folder, _recorded() + b"\0\0\0\0" + _recorded()[4:])


@hostile("open", refused=True)
def recordio_longer_than_the_file(folder: Path) -> Path:
    return _rec(folder, _recorded(length=0x1FFFFFFF))


@hostile("open", refused=True)
def recordio_of_4_gib_of_labels(folder: Path) -> Path:
    return _rec(folder, _recorded(flag=0x3FFFFFFF))


@hostile("open", refused=True)
def recordio_first_part_without_a_last(folder: Path) -> Path:
    mark = struct.pack("<II", 0xCED7230A, 1 << 29 | 64)
    return _rec(folder, mark + bytes(64))


# ------------------------------------------------------------------------- something else entirely


@hostile("open", refused=True)
def pickle_named_lmdb(folder: Path) -> Path:
    (folder / "x.lmdb").write_bytes(pickle.dumps({"a": 1}))
    return folder / "x.lmdb"


@hostile("open", refused=True)
def empty_file(folder: Path) -> Path:
    (folder / "x.tar").write_bytes(b"")
    return folder / "x.tar"


@hostile("open", PHOTO)
def tar_as_it_should_be(folder: Path) -> Path:
    return tar(folder, member("0.jpg"), end=END)
