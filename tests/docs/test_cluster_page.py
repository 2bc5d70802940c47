"""The script that docs/cluster.md prints for Slurm packs as one run does."""

from __future__ import annotations

import itertools
import os
import pathlib
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import ground as grounds
import pytest

import packio

if TYPE_CHECKING:
    from collections.abc import Callable

_PAGE = pathlib.Path(__file__).parents[2] / "docs" / "cluster.md"
_BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PARTS = 8
Job = subprocess.Popen[str]


@pytest.fixture
def job(tmp_path: pathlib.Path, image_folder: pathlib.Path) -> Callable[..., Job]:
    """Starts the script, as Slurm does; without a number as a job of its own."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "train").symlink_to(image_folder)
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "packio").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m packio "$@"\n')
    (commands / "packio").chmod(0o755)
    (commands / "activate").touch()  # tmp_path is the virtual environment
    (commands / "sbatch").write_text('#!/bin/sh\necho "$@" >>submitted\necho 4711\n')
    (commands / "sbatch").chmod(0o755)
    (text,) = _BLOCK.findall(_PAGE.read_text())
    numbers = itertools.count()

    def start(number: int | None = None, *, submitted: bool = True, **changes: str) -> Job:
        changed = text
        for old, new in changes.items():
            assert old in changed
            changed = changed.replace(old, new)
        script = tmp_path / f"pack-{next(numbers)}.sbatch"  # bash reads it while it runs
        script.write_text(changed)
        environment = {n: v for n, v in os.environ.items() if not n.startswith("SLURM_")}
        environment |= {"PATH": f"{commands}:{os.environ['PATH']}", "VENV": str(tmp_path)}
        if submitted:
            environment |= {"SLURM_CPUS_PER_TASK": "1", "SLURM_JOB_ID": "4711"}
        if number is not None:
            environment |= {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_TASK_COUNT": "1"}
        return subprocess.Popen(
            ["bash", script], cwd=tmp_path, env=environment, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    return start


def _end(job: Job) -> tuple[int, str]:
    told = job.communicate()[1]
    return job.returncode, told


def test_the_script_submits_itself_as_an_array_and_its_end(
    job: Callable[..., Job], tmp_path: pathlib.Path
) -> None:
    code, told = _end(job(submitted=False))
    assert (code, told) == (0, "")
    script = tmp_path / "pack-0.sbatch"
    assert (tmp_path / "submitted").read_text().splitlines() == [
        f"--parsable --array=1-{_PARTS} {script}", f"--dependency=afterok:4711 {script}",
    ]  # fmt: skip
    assert not (tmp_path / "train.tar.packio-tmp").exists()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_array_and_its_end_make_what_one_run_makes(
    job: Callable[..., Job], tmp_path: pathlib.Path
) -> None:
    assert [_end(j)[0] for j in [job(i) for i in (1, 2)]] == [0, 0]  # at the same time
    code, told = _end(job())
    assert (code, "shards are not written yet" in told) == (74, True)
    assert "--part 3/8" in told
    assert "sbatch --array=3,4,5,6,7,8" in told
    killed = job(3)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert [_end(job(i))[0] for i in range(3, _PARTS + 1)] == [0] * (_PARTS - 2)
    for old, new in (("=256", "=128"), ("jpeg", "webp"), ("--shards 64", "--shards 8")):
        code, told = _end(job(**{old: new}))
        assert (code, "what differs" in told) == (73, True), told
    assert _end(job())[0] == 0
    (tmp_path / "alone").mkdir()
    packio.pack(
        tmp_path / "photos" / "train", tmp_path / "alone" / "train.tar", shards=64,
        resize="short=256", encode="jpeg", on_error="skip",
    )  # fmt: skip
    found = grounds.tree(tmp_path)
    made = {name: data for name, data in found.items() if name.startswith("train.tar")}
    assert len(made) > 25
    assert made == grounds.tree(tmp_path / "alone")
