"""Packing on a Ray cluster: the same bytes, also where a worker is killed midway."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

import packio

ray = pytest.importorskip("ray", reason="Ray has no wheel for this Python")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packio.system.progress import Progress


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray of two processors on this machine, which no other process meets."""
    folder = tempfile.mkdtemp(prefix="packio-ray-", dir="/tmp")  # short, as of sockets
    ray.init(
        address="local", num_cpus=2, log_to_driver=False, include_dashboard=False,
        logging_level="ERROR", _temp_dir=folder,
    )  # fmt: skip
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def photos_2000(
    tmp_path_factory: pytest.TempPathFactory, image_folder: pathlib.Path
) -> pathlib.Path:
    """2,000 images: the folder's 25, under 80 names each."""
    root = tmp_path_factory.mktemp("ray") / "source"
    for path in sorted(p for p in image_folder.rglob("*") if p.is_file()):
        folder = root / path.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(80):
            os.link(path, folder / f"{i:02d}-{path.name}")
    return root


def _task_workers() -> list[int]:
    """Processes of Ray's that run our task now."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if entry.name.isdigit() and b"ray::_outcome" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")  # Ray's own
@pytest.mark.usefixtures("cluster")
def test_ray_packs_the_same_with_a_worker_killed(
    photos_2000: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    options: dict[str, Any] = {"shards": 6, "resize": "short=64", "encode": "jpeg"}
    (tmp_path / "local").mkdir()
    local = packio.pack(photos_2000, tmp_path / "local" / "x.tar", **options)
    killed: list[int] = []

    def kill(progress: Progress) -> None:
        if not killed and progress.done >= 100 and (workers := _task_workers()):
            killed.append(workers[0])
            os.kill(workers[0], signal.SIGKILL)

    report = packio.pack(photos_2000, tmp_path / "x.tar", engine="ray", progress=kill, **options)
    assert killed
    assert (report.packed, report.digest) == (2000, local.digest)
    assert packio.verify(tmp_path / "x.tar").ok
    assert sorted(os.listdir(tmp_path)) == ["local", "x.tar"]
