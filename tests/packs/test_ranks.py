"""Ranks of one machine that open a container at the same time: one of them makes the index."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

import ground as grounds
import pytest
import user_space

if TYPE_CHECKING:
    from collections.abc import Iterator

_RANKS = 4
_RANK = """
import errno, fcntl, os, sys
import packio
from packio.packs import indexing

container, scans, cache, locks = sys.argv[1:]
make, flock = indexing.make, fcntl.flock

def counted(*arguments, **options):
    with open(scans, "a") as file:
        file.write("one\\n")
    make(*arguments, **options)

def refused(file, operation):
    number = file if isinstance(file, int) else file.fileno()
    if os.readlink(f"/proc/self/fd/{number}").startswith(cache):
        raise OSError(errno.ENOSYS, "no locks, as on Lustre")
    flock(file, operation)

indexing.make = counted
if locks == "no locks":
    fcntl.flock = refused
print("ready", flush=True)
sys.stdin.readline()
with packio.open(container) as pack:
    print(len(pack))
"""


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A folder on this machine's disk, or on a file system in user space, as networks' may be."""
    if request.param != "fuse":
        yield tmp_path
        return
    with user_space.mounted(tmp_path) as (_, folder):
        yield folder


@pytest.mark.parametrize("folder", ["disk", "no locks", "fuse"], indirect=True)
def test_one_rank_of_a_machine_makes_the_index(
    folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    kind = request.node.callspec.params["folder"]
    cache, scans = folder / "cache", tmp_path / "scans"
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(cache))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    grounds.make_source(tmp_path / "source", 200, 500)
    with tarfile.open(folder / "theirs.tar", "w") as archive:
        for i, path in enumerate(sorted((tmp_path / "source").rglob("*.png"))):
            archive.add(path, f"{i:05d}.png")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _RANK, folder / "theirs.tar", scans, cache, kind],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(_RANKS)
    ]  # fmt: skip
    assert [rank.stdout.readline() for rank in ranks if rank.stdout] == ["ready\n"] * _RANKS
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("go\n")
        rank.stdin.flush()
    assert [rank.communicate()[0] for rank in ranks] == ["201\n"] * _RANKS
    assert scans.read_text() == "one\n"
