"""What of a pack is in the page cache, and bringing it there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cli_runs import run

import packio
from packio.errors import OptionError
from packio.packs import page_cache
from packio.storage import remote
from packio.system import memory

if TYPE_CHECKING:
    import pathlib


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A tar of 24 MB, in pieces of 8 MiB three and a bit."""
    folder = tmp_path_factory.mktemp("packs")
    if remote.file_system(folder) in ("tmpfs", "ramfs"):
        pytest.skip("the folder for tests is in memory itself")
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (24, 512, 683, 3), np.uint8)
    packio.pack([{"image": image} for image in pixels], folder / "x.tar", encode="bmp")
    return folder / "x.tar"


@pytest.fixture
def cold(pack: pathlib.Path) -> pathlib.Path:
    """The pack, out of the page cache."""
    for path in pack.parent.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    return pack


_MOST = 0.9  # of what was brought there: the kernel may drop some pages at any moment


def _of(report: Any, path: pathlib.Path) -> Any:
    (found,) = [file for file in report.files if file.path == path]
    return found


def _share(report: page_cache.WarmReport) -> float:
    return (report.after or 0) / report.bytes


def test_warming_reads_what_is_not_in_memory(cold: pathlib.Path) -> None:
    told: list[tuple[int, int]] = []
    report = packio.warm(cold, progress=lambda done, total: told.append((done, total)))
    file = _of(report, cold)
    assert file.before < file.bytes // 2
    assert file.bytes == cold.stat().st_size
    assert _share(report) >= _MOST
    assert report.fits
    assert 0 < report.read <= report.bytes  # the kernel reads ahead, so not every piece is left
    assert told[-1] == (report.bytes, report.bytes)
    again = packio.warm(cold)
    assert (again.before or 0) >= _MOST * again.bytes
    assert again.read < report.read


def test_checking_reads_nothing(cold: pathlib.Path) -> None:
    report = packio.warm(cold, check=True)
    assert report.read == 0
    assert _of(report, cold).before == _of(report, cold).after
    assert _of(report, cold).after < _of(report, cold).bytes // 2


def test_a_kernel_that_does_not_tell_is_no_obstacle(
    cold: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "_CACHESTAT", 0x7FFF)  # no such system call
    report = packio.warm(cold)
    assert (report.before, report.after, report.read) == (None, None, report.bytes)


def test_no_more_is_read_than_memory_takes(
    cold: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available", lambda: 9 << 20)
    report = packio.warm(cold)
    assert not report.fits
    assert report.read <= 9 << 20
    assert _of(report, cold).after < _of(report, cold).bytes


def test_another_users_file_is_not_told_of(cold: pathlib.Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    code = (
        "import os, sys; from packio.packs import page_cache\n"
        "file = os.open(sys.argv[1], os.O_RDONLY)\n"
        "os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
        "print(page_cache._resident(file, 0, 4096))"
    )
    cold.chmod(0o644)
    done = subprocess.run(
        [sys.executable, "-c", code, str(cold)], check=True, capture_output=True, text=True
    )
    assert done.stdout == "None\n"


def test_what_is_at_no_disk_is_refused(image_folder: pathlib.Path) -> None:
    packio.pack(image_folder, "memory://x.tar")
    with pytest.raises(OptionError, match="local_copy"):
        packio.warm("memory://x.tar")


def test_the_command_shows_shares_before_and_after(cold: pathlib.Path) -> None:
    done = run("warm", cold, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "% of 25.3 MB in memory" in done.stdout
    done = run("warm", cold)
    assert re.search(r"in memory, now (100|9\d)%; [1-9]", done.stdout)
    assert f"{cold}\t{cold.stat().st_size:,} bytes\t" in done.stdout
    summary = json.loads(run("warm", cold, "--json").stdout)
    assert summary["bytes"] >= summary["after"] >= _MOST * summary["bytes"]
    assert [file["path"] for file in summary["files"]] == [f"{cold}.packio", str(cold)]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"memory.max": "max", "memory.current": "5"}, 4 << 20),
        ({"memory.max": "3000000", "memory.current": "1000000"}, 2_000_300),
        ({"memory.max": "3000000", "memory.current": "4000000"}, 0),
        ({}, 4 << 20),
    ],
)
def test_available_memory_is_the_control_groups(
    tmp_path: pathlib.Path, files: dict[str, str], expected: int
) -> None:
    group, process = tmp_path / "groups" / "job", tmp_path / "process"
    for folder in (group, process):
        folder.mkdir(parents=True)
    for name, text in files.items():
        (group / name).write_text(f"{text}\n")
    (group / "memory.stat").write_text("anon 7\ninactive_file 100\nactive_file 200\n")
    (process / "cgroup").write_text("0::/job\n")
    (process / "mountinfo").write_text(f"30 20 0:26 / {group.parent} rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:   4096 kB\n")
    assert memory.available(process, tmp_path / "meminfo") == expected


def test_a_batch_is_announced_before_it_is_read(
    cold: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    advise = os.posix_fadvise

    def listen(file: int, offset: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        told.append((offset, length))
        advise(file, offset, length, advice)

    monkeypatch.setattr(os, "posix_fadvise", listen)
    ds = packio.TarDataset(
        cold, crop=packio.CenterCrop(8), cache="ram", cache_bytes=3 << 20,
        threads=1,  # several that keep at the same moment can exceed the limit
    )  # fmt: skip
    ds.__getitems__([9, 2, 5, 7])
    rows = ds.pack.rows([2, 5, 7, 9])
    assert told == [(row.offset, row.length) for row in rows]
    told.clear()
    ds.__getitems__([9, 2, 5, 7])  # two of them are kept
    assert len(told) == 2
