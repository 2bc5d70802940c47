"""Indexing a bucket elsewhere: on a Ray cluster, in processes, and by an executor of the user's."""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import made
import numpy as np
import pytest
from object_store import _servers, s3

import packio
from packio.errors import IntegrityError, OptionError, ReadError, WorkerDiedError

if TYPE_CHECKING:
    from object_store import Proxy

pytestmark = pytest.mark.usefixtures("own_cache")

__all__ = ["_servers", "s3"]


def _tar(first: int, count: int) -> bytes:
    """A tar as WebDataset has it."""
    members = []
    for i in range(first, first + count):
        pixels = np.random.default_rng(i).integers(0, 256, (32 + i % 5, 40, 3), np.uint8)
        members += [
            (f"{i:06d}.cls", b"%d" % (i % 3)), (f"{i:06d}.jpg", made.saved(pixels, "JPEG")),
            (f"{i:06d}.json", json.dumps({"number": i}).encode()),
        ]  # fmt: skip
    return made.tar_bytes(members)


def _put(s3: Proxy, count: int = 5, each: int = 6) -> str:
    fs = fsspec.filesystem("s3")
    for k in range(count):
        fs.pipe_file(f"{s3.bucket}/train/t-{k:03d}.tar", _tar(k * each, each))
    return f"s3://{s3.bucket}/train/t-{{000..{count - 1:03d}}}.tar"


class _Mortal(Executor):
    """Runs tasks at once; the first tasks of each object die with their worker.

    Args:
        deaths: Name of an object → how many of its tasks die.
    """

    def __init__(self, deaths: dict[str, int]) -> None:
        self._deaths, self.tasks = deaths, 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        self.tasks += 1
        name = args[-1].rpartition("/")[2]
        if self._deaths.get(name, 0):
            self._deaths[name] -= 1
            done.set_exception(WorkerDiedError("a worker died"))
            return done
        try:
            done.set_result(fn(*args, **kwargs))
        except packio.PackioError as error:
            done.set_exception(error)
        return done


@pytest.mark.parametrize("options", [{}, {"seek_points": True}])
def test_the_index_of_processes_is_that_of_threads(
    options: dict[str, Any], s3: Proxy, tmp_path: Path
) -> None:
    url = _put(s3)
    here, there = tmp_path / "here.packio", tmp_path / "there.packio"
    packio.reindex(url, index=here, **options)
    told: list[tuple[int, int]] = []
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as engine:
        packio.reindex(
            url, index=there, engine=engine, progress=lambda *done: told.append(done), **options
        )
    assert there.read_bytes() == here.read_bytes()
    assert len(told) == 5
    assert told[-1][0] == told[-1][1] == sum(len(_tar(k * 6, 6)) for k in range(5))
    with packio.open(url, index=there) as pack:
        assert [pack.meta(i) for i in range(30)] == [{"number": i} for i in range(30)]


def test_an_object_whose_worker_dies_is_read_again(s3: Proxy, tmp_path: Path) -> None:
    url = _put(s3)
    engine = _Mortal({"t-001.tar": 2, "t-004.tar": 1})
    packio.reindex(url, index=tmp_path / "x.packio", engine=engine)
    assert engine.tasks == 5 + 3
    packio.reindex(url, index=tmp_path / "y.packio")
    assert (tmp_path / "x.packio").read_bytes() == (tmp_path / "y.packio").read_bytes()


def test_what_was_found_stays_if_workers_die_again_and_again(s3: Proxy, tmp_path: Path) -> None:
    url, index = _put(s3), tmp_path / "x.packio"
    with pytest.raises(WorkerDiedError):
        packio.reindex(url, index=index, engine=_Mortal({"t-002.tar": 3}))
    assert not index.exists()
    s3.reset()
    told: list[tuple[int, int]] = []
    packio.reindex(url, index=index, progress=lambda *done: told.append(done))
    assert told == [(told[0][1],) * 2]
    packio.reindex(url, index=tmp_path / "y.packio")
    assert index.read_bytes() == (tmp_path / "y.packio").read_bytes()


def test_a_damaged_object_ends_the_run_with_its_name(s3: Proxy, tmp_path: Path) -> None:
    url = _put(s3)
    fs = fsspec.filesystem("s3")
    fs.pipe_file(f"{s3.bucket}/train/t-003.tar", _tar(18, 6)[:4000])
    with (
        ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as engine,
        pytest.raises(IntegrityError, match=r"t-003\.tar"),
    ):
        packio.reindex(url, index=tmp_path / "x.packio", engine=engine)


def test_files_and_unknown_engines_are_refused(
    s3: Proxy, tmp_path: Path, image_folder: Path
) -> None:
    packio.pack(image_folder, tmp_path / "x.tar")
    with pytest.raises(OptionError, match="engine="):
        packio.reindex(tmp_path / "x.tar", engine="ray")
    with pytest.raises(OptionError, match="engine='dask'"):
        packio.reindex(_put(s3, 1), index=tmp_path / "y.packio", engine="dask")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_node_that_is_killed_changes_nothing(s3: Proxy, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray has no wheel for this Python")
    import ray_nodes

    url, index = _put(s3, 9, 40), tmp_path / "x.packio"
    with ray_nodes.cluster() as nodes:
        first = nodes.add()
        told: list[int] = []

        def progress(done: int, _: int) -> None:
            if not told:
                nodes.kill(first)
                nodes.add()
            told.append(done)

        packio.reindex(url, index=index, engine=f"ray:{nodes.address}", progress=progress)
    assert len(told) == 9
    packio.reindex(url, index=tmp_path / "y.packio")
    assert index.read_bytes() == (tmp_path / "y.packio").read_bytes()


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_node_that_does_not_reach_the_bucket_is_named(s3: Proxy, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray has no wheel for this Python")
    import ray_nodes

    if not ray_nodes.can_be_apart():
        pytest.skip("this user may have no namespaces")
    url = _put(s3, 2)
    with ray_nodes.cluster() as nodes:
        nodes.add_apart("export FSSPEC_S3='{}' AWS_ENDPOINT_URL=http://127.0.0.1:9")
        with pytest.raises(ReadError, match=r"a node of the Ray cluster(.|\n)*t-000\.tar"):
            packio.reindex(url, index=tmp_path / "x.packio", engine=f"ray:{nodes.address}")
    assert not (tmp_path / "x.packio").exists()
