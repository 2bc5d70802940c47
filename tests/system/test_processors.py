"""How many processors and threads are used: limits of the system, scheduler and launcher."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch

from packio.system import processors
from packio.system.threads import Threads, alone, automatic_threads

if TYPE_CHECKING:
    from collections.abc import Iterator

_GROUPS = pathlib.Path("/sys/fs/cgroup")


@pytest.fixture(autouse=True)
def _no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


@pytest.mark.parametrize(("text", "expected"), [("1", 1), ("9999", None), ("", None), ("x", None)])
def test_slurm_limits(text: str, expected: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    free = processors.usable()
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", text)
    assert processors.usable() == (expected or free)


def test_affinity_limits() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert processors.usable() == 1
    finally:
        os.sched_setaffinity(0, before)


def _process(folder: pathlib.Path, groups: str, mounts: str) -> pathlib.Path:
    process = folder / "process"
    process.mkdir()
    (process / "cgroup").write_text(groups)
    (process / "mountinfo").write_text(mounts)
    return process


@pytest.mark.parametrize(
    ("root", "path"),
    [("/", "/job/step"), ("/job", "/job/step"), ("/job", "/job"), ("/elsewhere", "/job/step")],
)
def test_quotas_of_version_2_with_those_above(root: str, path: str, tmp_path: pathlib.Path) -> None:
    mounted = tmp_path / "groups"
    inside = mounted / path.removeprefix(root if root != "/" else "").lstrip("/")
    inside.mkdir(parents=True)
    (inside / "cpu.max").write_text("max 100000\n")
    (mounted / "cpu.max").write_text("150000 100000\n")
    process = _process(
        tmp_path, f"0::{path}\n", f"30 20 0:26 {root} {mounted} rw shared:4 - cgroup2 cgroup2 rw\n"
    )
    assert processors.quotas(process) == [1.5]


def test_quotas_of_version_1(tmp_path: pathlib.Path) -> None:
    mounted = tmp_path / "cpu"
    (mounted / "job").mkdir(parents=True)
    for folder, quota in ((mounted, -1), (mounted / "job", 300000)):
        (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (folder / "cpu.cfs_period_us").write_text("100000\n")
    process = _process(
        tmp_path, "5:memory:/other\n4:cpu,cpuacct:/job\n0::/\n",
        f"31 20 0:27 / {mounted} rw - cgroup cgroup rw,cpu,cpuacct\n",
    )  # fmt: skip
    assert processors.quotas(process) == [3.0]


def test_no_groups_are_no_quotas(tmp_path: pathlib.Path) -> None:
    assert processors.quotas(tmp_path) == []


@pytest.fixture
def group() -> Iterator[pathlib.Path]:
    """A control group of one processor, where this user may make one."""
    version_2 = (_GROUPS / "cgroup.controllers").exists()
    folder = (_GROUPS if version_2 else _GROUPS / "cpu") / f"packio-test-{os.getpid()}"
    try:
        folder.mkdir()
        name, text = ("cpu.max", "100000 100000") if version_2 else ("cpu.cfs_quota_us", "100000")
        (folder / name).write_text(text)
    except OSError as error:
        if folder.exists():
            folder.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    yield folder
    folder.rmdir()


def test_a_real_control_group_limits(group: pathlib.Path) -> None:
    code = (
        f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')\n"
        "from packio.system import processors; print(processors.usable())"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout.split() == ["1"]


class _Asks(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return automatic_threads()


def test_threads_are_divided_by_workers_and_local_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processors, "usable", lambda: 12)
    assert automatic_threads() == 12
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert automatic_threads() == 6
    loader = torch.utils.data.DataLoader(_Asks(), 1, num_workers=2, multiprocessing_context="fork")
    assert [int(count) for count in loader] == [3, 3]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "24")
    assert automatic_threads() == 1


def test_other_libraries_keep_to_our_threads_and_get_their_own_back() -> None:
    cv2 = pytest.importorskip("cv2")
    before, seen = (cv2.getNumThreads(), torch.get_num_threads()), set()
    cv2.setNumThreads(3)
    torch.set_num_threads(3)
    try:
        with alone():
            seen.add((cv2.getNumThreads(), torch.get_num_threads()))
            with alone():  # another batch at the same time
                pass
            Threads(2).run(
                lambda _: seen.add((cv2.getNumThreads(), torch.get_num_threads())), range(4)
            )
        assert seen == {(1, 1)}
        assert (cv2.getNumThreads(), torch.get_num_threads()) == (3, 3)
    finally:
        cv2.setNumThreads(before[0])
        torch.set_num_threads(before[1])
