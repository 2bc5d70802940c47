"""File systems of other machines: told by mountinfo; indexes on them are mapped from a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import packio
from packio.index import layout
from packio.storage import remote

if TYPE_CHECKING:
    import pathlib

MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:50 / /home rw,relatime shared:20 master:1 - nfs4 server:/home rw,vers=4.2
41 40 8:2 / /home/me/scratch rw,relatime - xfs /dev/sdb1 rw
42 22 0:51 / /data\040sets rw - lustre 10.0.0.1@tcp:/fs rw
43 22 0:52 / /mnt/sshfs rw - fuse.sshfs host: rw
44 22 0:53 / /mnt/ntfs rw - fuseblk /dev/sdc1 rw
45 22 0:54 / /mnt/merged rw - fuse.mergerfs a:b rw
46 22 0:55 / /mnt/twice rw - ext4 /dev/sdd1 rw
47 46 0:56 / /mnt/twice rw - beegfs beegfs_nodev rw
48 22 0:57 / /gpfs rw - gpfs gpfs rw
a line that is not one
"""


@pytest.mark.parametrize(
    ("path", "kind", "far"),
    [
        ("/", "ext4", False),
        ("/homework/x", "ext4", False),
        ("/home", "nfs4", True),
        ("/home/me/x.lmdb", "nfs4", True),
        ("/home/me/scratch/x.lmdb", "xfs", False),
        ("/data sets/x", "lustre", True),
        ("/mnt/sshfs/x", "fuse.sshfs", True),
        ("/mnt/ntfs/x", "fuseblk", False),
        ("/mnt/merged/x", "fuse.mergerfs", False),
        ("/mnt/twice/x", "beegfs", True),
        ("/gpfs/x", "gpfs", True),
    ],
)
def test_the_innermost_newest_mount_says_the_kind(path: str, kind: str, far: bool) -> None:
    assert remote.file_system(path, MOUNTS) == kind
    assert remote.is_far(path, MOUNTS) is far


def test_nothing_is_known_without_mounts(tmp_path: pathlib.Path) -> None:
    assert remote.file_system(tmp_path, "") == ""
    assert not remote.is_far(tmp_path, "")


def test_this_machines_mounts_are_read(tmp_path: pathlib.Path) -> None:
    assert remote.file_system("/proc/self/status") == "proc"
    assert remote.file_system(tmp_path)


@pytest.fixture
def far(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder that is on NFS, as far as mountinfo says; the cache is not."""
    folder = tmp_path / "far"
    folder.mkdir()
    text = f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:50 / {folder} rw - nfs server:/ rw\n"
    monkeypatch.setattr(remote, "_mounts", lambda: text)
    return folder


def _copies(tmp_path: pathlib.Path) -> list[pathlib.Path]:
    return sorted((tmp_path / "cache").rglob("*.packio"))


def _mapped(path: pathlib.Path) -> bool:
    with open("/proc/self/maps") as maps:
        return any(line.rstrip().endswith(str(path)) for line in maps)


def test_an_index_far_away_is_mapped_from_a_copy(
    far: pathlib.Path, tmp_path: pathlib.Path, image_folder: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(layout, "_MOST_PRIVATE", 0)  # a small index would be read, not mapped
    packio.pack(image_folder, far / "x.tar")
    with packio.open(far / "x.tar") as pack:
        assert len(_copies(tmp_path)) == 1
        assert _mapped(_copies(tmp_path)[0])
        assert not _mapped(far / "x.tar.packio")
        assert pack.index_file.path == far / "x.tar.packio"
        assert [sample.key for sample in pack] == list(pack.keys())
    made = _copies(tmp_path)[0].stat()
    packio.open(far / "x.tar")
    assert _copies(tmp_path)[0].stat().st_ino == made.st_ino  # the same one again


def test_a_changed_index_is_another_copy(
    far: pathlib.Path, tmp_path: pathlib.Path, image_folder: pathlib.Path
) -> None:
    packio.pack(image_folder, far / "x.tar")
    packio.open(far / "x.tar")
    packio.pack(image_folder, far / "x.tar", limit=3, overwrite=True)
    assert len(packio.open(far / "x.tar")) == 3
    assert len(_copies(tmp_path)) == 2


def test_a_damaged_index_is_not_copied(
    far: pathlib.Path, tmp_path: pathlib.Path, image_folder: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(layout, "_MOST_PRIVATE", 0)  # a small index would be read, not mapped
    packio.pack(image_folder, far / "x.tar")
    index = far / "x.tar.packio"
    index.write_bytes(index.read_bytes()[:-1] + b"\xff")
    with packio.open(far / "x.tar") as pack:
        assert _mapped(index)
        assert len(pack) == 25
    assert not _copies(tmp_path)


def test_a_cache_far_away_gets_no_copy(
    far: pathlib.Path, image_folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(far / "cache"))
    packio.pack(image_folder, far / "x.tar")
    assert len(packio.open(far / "x.tar")) == 25
    assert not (far / "cache" / "near").exists()


@pytest.mark.parametrize(("name", "advised"), [("x.lmdb", True), ("x.tar", False)])
def test_packing_lmdb_there_advises_against_it(
    far: pathlib.Path, tmp_path: pathlib.Path, image_folder: pathlib.Path, name: str, advised: bool
) -> None:
    report = packio.pack(image_folder, far / name)
    assert [w for w in report.warnings if "nfs" in w and "TFRecord" in w] == (
        list(report.warnings) if advised else []
    )
    assert not packio.pack(image_folder, tmp_path / name).warnings
