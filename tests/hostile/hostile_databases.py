"""Hostile containers that have an index of their own: .pth, HDF5, LMDB, MDS, beton."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import h5py
import lmdb
import msgpack
import numpy as np
from hostile_parts import (
    PHOTO,
    SECRET,
    hostile,
    photo,
    poison,
    zipped,
)

# -------------------------------------------------------------------------------------------- pth


def _pth(
    folder: Path, pickled: bytes, more: dict[str, bytes] | None = None, *, stored: bool = True
) -> Path:
    parts = {"data.pkl": pickled, "version": b"3\n", **(more or {})}
    members = {f"x/{name}": content for name, content in parts.items()}
    return zipped(folder / "x.pth", members, stored=stored)


@hostile("open", refused=True)
def pth_of_a_payload(folder: Path) -> Path:
    return _pth(folder, poison(folder))


@hostile("open", refused=True)
def pth_bare_pickle_of_a_payload(folder: Path) -> Path:
    path = folder / "x.pth"
    path.write_bytes(poison(folder))
    return path


@hostile("open", refused=True)
def pth_of_a_gigabyte_of_zeros(folder: Path) -> Path:
    return _pth(folder, bytes(1 << 28), stored=False)


@hostile("open", refused=True)
def pth_pickle_that_never_ends(folder: Path) -> Path:
    return _pth(folder, b"\x80\x02" + b"]" * 1_000_000)


@hostile("open", refused=True)
def pth_pickle_nested_without_end(folder: Path) -> Path:
    return _pth(folder, b"\x80\x02" + b"(" * 500_000 + b"t" * 500_000 + b".")


@hostile("open", refused=True)
def pth_list_that_holds_itself(folder: Path) -> Path:
    return _pth(folder, b"\x80\x02]q\x00h\x00a.")


@hostile("open", refused=True)
def pth_not_a_zip(folder: Path) -> Path:
    path = folder / "x.pth"
    path.write_bytes(b"PK\x03\x04" + bytes(4096))
    return path


@hostile("open", refused=True)
def pth_string_of_2_gib(folder: Path) -> Path:
    return _pth(folder, b"\x80\x02T" + struct.pack("<i", (1 << 31) - 1) + b"abc.")


@hostile("open", refused=True)
def pth_tensor_beyond_its_storage(folder: Path) -> Path:
    storage = (
        b"(X\x07\x00\x00\x00storagectorch\nByteStorage\nX\x01\x00\x00\x000"
        b"X\x03\x00\x00\x00cpuK\x08tQ"
    )
    tensor = (
        b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00"
        b"(J\xff\xff\xff\x7ft(K\x01t\x89ccollections\nOrderedDict\n)RtR"
    )
    return _pth(folder, b"\x80\x02" + tensor + b".", {"data/0": bytes(8)})


# ------------------------------------------------------------------------------------------- HDF5


@hostile("open", refused=True)
def hdf5_signature_alone(folder: Path) -> Path:
    (folder / "x.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    return folder / "x.h5"


@hostile("open", refused=True)
def hdf5_superblock_of_noise(folder: Path) -> Path:
    noise = np.random.default_rng(0).bytes(4096)
    (folder / "x.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + noise)
    return folder / "x.h5"


@hostile("open", refused=True)
def hdf5_a_gigabyte_of_compressed_zeros(folder: Path) -> Path:
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset(
            "images", (4096, 512, 512, 3), "u1", chunks=(256, 512, 512, 3), compression="gzip"
        )
        file["images"][:256] = 0
    return folder / "x.h5"


@hostile("open", refused=True)
def hdf5_external_link_to_another_file(folder: Path) -> Path:
    with h5py.File(folder / "other.h5", "w") as file:
        file["images"] = np.frombuffer(SECRET, "u1").reshape(1, 1, -1, 1).repeat(3, 3)
    with h5py.File(folder / "x.h5", "w") as file:
        file["images"] = h5py.ExternalLink("other.h5", "images")
    return folder / "x.h5"


@hostile("open", refused=True)
def hdf5_pixels_that_lie_in_another_file(folder: Path) -> Path:
    size = len(SECRET)
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset(
            "images", (1, 1, size // 3, 3), "u1", external=[(str(folder / "secret"), 0, size)]
        )
    return folder / "x.h5"


@hostile("open", refused=True)
def hdf5_virtual_dataset_of_another_file(folder: Path) -> Path:
    size = 3 * (len(SECRET) // 3)
    with h5py.File(folder / "other.h5", "w") as file:
        file["images"] = np.frombuffer(SECRET[:size], "u1").reshape(1, 1, -1, 3)
    layout = h5py.VirtualLayout((1, 1, size // 3, 3), "u1")
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "images", (1, 1, size // 3, 3))
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_virtual_dataset("images", layout)
    return folder / "x.h5"


@hostile("open", refused=True)
def hdf5_groups_in_a_circle(folder: Path) -> Path:
    with h5py.File(folder / "x.h5", "w") as file:
        inner = file.create_group("a")
        inner["back"] = file["/"]
        inner["soft"] = h5py.SoftLink("/a/soft")
    return folder / "x.h5"


@hostile("open", refused=True)
def hdf5_an_exabyte_without_content(folder: Path) -> Path:
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("images", (1 << 40, 1024, 1024, 1), "u1", chunks=(1, 1024, 1024, 1))
    return folder / "x.h5"


# ------------------------------------------------------------------------------------------- LMDB


def _lmdb(folder: Path, values: dict[bytes, bytes]) -> Path:
    path = folder / "x.lmdb"
    with lmdb.open(str(path), map_size=1 << 26) as env, env.begin(write=True) as txn:
        for key, value in values.items():
            txn.put(key, value)
    return path


def _edited(path: Path, edit: dict[int, bytes]) -> Path:
    """Overwrite some bytes of an LMDB's data file."""
    with (path / "data.mdb").open("r+b") as file:
        for offset, content in edit.items():
            file.seek(offset)
            file.write(content)
    return path


@hostile("open", refused=True)
def lmdb_file_of_zeros(folder: Path) -> Path:
    (folder / "x.lmdb").mkdir()
    (folder / "x.lmdb/data.mdb").write_bytes(bytes(1 << 15))
    return folder / "x.lmdb"


@hostile("open", refused=True)
def lmdb_cut_to_one_page(folder: Path) -> Path:
    path = _lmdb(folder, {b"%d" % n: PHOTO for n in range(5)})
    data = (path / "data.mdb").read_bytes()
    (path / "data.mdb").write_bytes(data[:4096])
    return path


@hostile("open", refused=True)
def lmdb_root_beyond_the_end(folder: Path) -> Path:
    path = _lmdb(folder, {b"%d" % n: PHOTO for n in range(5)})
    root = 16 + 24 + 48 + 40  # page header, meta to its databases, the free one, to md_root
    claims = struct.pack("<Q", 1 << 50)
    return _edited(path, {root: claims, 4096 + root: claims})


@hostile("open", refused=True)
def lmdb_page_that_is_its_own_child(folder: Path) -> Path:
    path = _lmdb(folder, {b"%04d" % n: bytes(900) for n in range(100)})
    data = (path / "data.mdb").read_bytes()
    edits = {}
    for page in range(2, len(data) // 4096):
        head = data[4096 * page : 4096 * page + 4096]
        if struct.unpack_from("<H", head, 10)[0] == 1:  # a branch
            for entry in range((struct.unpack_from("<H", head, 12)[0] - 16) // 2):
                node = struct.unpack_from("<H", head, 16 + 2 * entry)[0]
                edits[4096 * page + node] = struct.pack("<IH", page, 0)
    assert edits
    return _edited(path, edits)


@hostile("open", refused=True)
def lmdb_value_of_4_gib(folder: Path) -> Path:
    path = _lmdb(folder, {b"0": bytes(9000)})
    data = (path / "data.mdb").read_bytes()
    at = data.index(struct.pack("<HHHH", 9000, 0, 1, 1) + b"0")
    return _edited(path, {at: struct.pack("<HH", 0xFFFF, 0xFFFF)})


@hostile("open", refused=True)
def lmdb_of_payloads(folder: Path) -> Path:
    return _lmdb(folder, {b"%d" % n: poison(folder) for n in range(3)})


@hostile("open", refused=True)
def lmdb_list_of_keys_is_a_payload(folder: Path) -> Path:
    return _lmdb(
        folder, {b"__len__": poison(folder), b"__keys__": poison(folder), b"0": b"no image"}
    )


@hostile("open", refused=True)
def lmdb_msgpack_nested_100_000_deep(folder: Path) -> Path:
    return _lmdb(folder, {b"0": b"\x91" * 100_000 + b"\xc0"})


@hostile("open", refused=True)
def lmdb_msgpack_bytes_of_4_gib(folder: Path) -> Path:
    return _lmdb(folder, {b"0": b"\x92\xc6\xff\xff\xff\xff" + PHOTO + b"\x01"})


@hostile("open", refused=True)
def lmdb_several_numbers_may_be_the_label(folder: Path) -> Path:
    values = {b"%d" % n: msgpack.packb([photo(n), 40, 30, n]) for n in range(4)}
    return _lmdb(folder, values)


@hostile("open", refused=True)
def lmdb_pickle_of_memo_bombs(folder: Path) -> Path:
    bomb = b"\x80\x02]q\x00" + b"".join(b"](h%ch%ch%ceq%c" % (n, n, n, n + 1) for n in range(60))
    return _lmdb(folder, {b"0": bomb + b"."})


# ------------------------------------------------------------------------------------ MDS, beton


_MDS = {
    "column_encodings": ["jpeg"], "column_names": ["image"], "column_sizes": [None],
    "compression": None, "format": "mds", "hashes": [], "size_limit": 1 << 26, "version": 2,
}  # fmt: skip


def _mds(folder: Path, shard: dict[str, object], content: bytes = PHOTO) -> Path:
    path = folder / "mds"
    path.mkdir()
    config = json.dumps(_MDS).encode()
    begin = 12 + len(config)
    head = struct.pack("<III", 1, begin, begin + 4 + len(content))
    data = head + config + struct.pack("<I", len(content)) + content
    (path / "shard.00000.mds").write_bytes(data)
    written = {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}}
    claims = _MDS | {"samples": 1, "zip_data": None, "raw_data": written} | shard
    (path / "index.json").write_text(json.dumps({"shards": [claims], "version": 2}))
    return path


@hostile("open", PHOTO)
def mds_as_it_should_be(folder: Path) -> Path:
    return _mds(folder, {})


@hostile("open", refused=True)
def mds_shard_outside_its_folder(folder: Path) -> Path:
    path = _mds(folder, {"raw_data": {"basename": "../outside.mds", "bytes": 9, "hashes": {}}})
    (path / "shard.00000.mds").rename(folder / "outside.mds")
    return path


@hostile("open", PHOTO)
def mds_index_of_four_billion_samples(folder: Path) -> Path:
    return _mds(folder, {"samples": 0xFFFFFFFF})  # packio believes the shard alone


@hostile("open", refused=True)
def mds_shard_of_four_billion_samples(folder: Path) -> Path:
    path = _mds(folder, {})
    with (path / "shard.00000.mds").open("r+b") as file:
        file.write(b"\xff" * 4)
    return path


@hostile("open", refused=True)
def mds_offsets_that_fall(folder: Path) -> Path:
    path = _mds(folder, {})
    with (path / "shard.00000.mds").open("r+b") as file:
        file.seek(8)
        file.write(bytes(4))
    return path


@hostile("open", PHOTO)
def mds_index_of_wrong_types(folder: Path) -> Path:
    return _mds(folder, {"column_names": 7, "samples": "one", "raw_data": []})


@hostile("open", refused=True)
def beton_of_noise(folder: Path) -> Path:
    noise = np.random.default_rng(1).bytes(8192)
    head = struct.pack("<IHHQQ", 2, 1 << 15, 1 << 15, 1 << 60, 1 << 60)
    (folder / "x.beton").write_bytes(head + noise)
    return folder / "x.beton"
