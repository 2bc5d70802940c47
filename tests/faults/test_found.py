"""What the campaign has found, each by itself."""

from __future__ import annotations

import errno
import os
import pathlib
import re
import subprocess
import sys
import textwrap
from typing import Any

import ground as grounds
import pytest

import packio
from packio.errors import OutputError, WorkerDiedError
from packio.packing.appending import append
from packio.packing.run import executors
from packio.storage import workshop
from packio.system import files, isolation

SHARDS = 4


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """24 small images."""
    root = tmp_path_factory.mktemp("found") / "source"
    grounds.make_source(root, 24, 900)
    return root


def _in_parts(source: pathlib.Path, out: pathlib.Path) -> None:
    for part in (1, 2):
        packio.pack(source, out, shards=SHARDS, part=(part, 2))


def test_half_an_index_of_a_killed_run_is_not_published(
    source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.tar"
    _in_parts(source, out)
    (tmp_path / "x.tar.packio-tmp/pack/index.packio.tmp-123").write_bytes(b"half")
    assert packio.pack(source, out, shards=SHARDS).resumed == SHARDS
    assert not [name for name in os.listdir(out) if "tmp" in name]


def test_the_plan_is_on_the_disk_before_it_gets_its_name(
    source: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, fsync = [], os.fsync

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    packio.pack(source, tmp_path / "x.tar", shards=SHARDS)
    assert re.search(r"/shards/\.packio-[0-9a-f]+\.tmp$", synced[0])


def test_a_shard_that_is_noted_keeps_its_files_whatever_fails_then(
    source: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, sync = tmp_path / "x.tar", files.sync

    def fail(path: pathlib.Path) -> None:
        if path.name == workshop.SHARDS:
            raise OSError(errno.EIO, "Input/output error", str(path))
        sync(path)

    monkeypatch.setattr(files, "sync", fail)
    with pytest.raises(OutputError, match="Input/output error"):
        packio.pack(source, out, shards=SHARDS, num_workers=1)
    monkeypatch.undo()
    assert packio.pack(source, out, shards=SHARDS).resumed >= 1
    assert packio.verify(out).ok


def test_it_does_not_end_well_where_the_pack_cannot_be_opened(
    source: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: pathlib.Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(pathlib.Path, "rmdir", fail)
    with pytest.raises(OutputError, match="Input/output error"):
        packio.pack(source, tmp_path / "x.tar")
    monkeypatch.undo()
    assert packio.pack(source, tmp_path / "x.tar").up_to_date
    assert sorted(os.listdir(tmp_path)) == ["x.tar", "x.tar.idx", "x.tar.packio"]


def _dies(reason: str) -> None:
    """Start a process of those that write shards: it dies for that reason."""
    pool = executors.Processes(1)
    with pytest.raises(WorkerDiedError, match=reason):
        pool.submit(abs, -1).result()
    pool.shutdown()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_without_memory_it_ends_in_a_line_and_goes_on_later(
    error: Exception, source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.tar"
    _in_parts(source, out)
    (tmp_path / "x.tar.packio-tmp/shards/00001.packio").unlink()  # so there is something to do

    def fail(_: object) -> None:
        raise error

    with pytest.raises(OutputError, match="memory ran out"):
        packio.pack(source, out, shards=SHARDS, num_workers=1, progress=fail)
    assert packio.pack(source, out, shards=SHARDS).resumed >= 2


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_a_process_without_memory_is_tried_again_as_one_that_died(error: Exception) -> None:
    pool = executors.Processes(1)
    with pytest.raises(WorkerDiedError, match="for lack of memory"):
        pool.submit(_raise, error).result()
    pool.shutdown()


_WITHOUT_MEMORY = """
import os, resource, threading
from packio.loading.prefetching import prefetch
from packio.system import interrupts, memory
from packio.system.pools import DaemonPool, ThreadPool
pools = (ThreadPool(1), DaemonPool(1, "some"))
thread = threading.Thread(target=int)  # its stack is kept: only what Python allots is missing
thread.start()
thread.join()
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE"),) * 2)
try:
    {}
except MemoryError:
    print("told")
"""


@pytest.mark.parametrize(
    "start",
    [
        "pools[0].submit(abs, -1).result()", "pools[1].submit(abs, -1).result()",
        "next(prefetch([1]))", "interrupts.run_aside(int, int)",
    ],
)  # fmt: skip
def test_who_starts_a_thread_without_memory_is_told_so(start: str) -> None:
    command = [sys.executable, "-c", _WITHOUT_MEMORY.format(start)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == "told\n"


def test_a_worker_whose_memory_is_gone_before_it_begins_ends() -> None:
    command = [sys.executable, "-c", _WITHOUT_MEMORY.format("memory.watch()")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 71, done.stderr


def test_a_process_that_dies_before_it_hears_anything_is_one_that_died(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executors, "_COMMAND", "import os; %r; os.close(%d), %d; os._exit(9)")
    popen = subprocess.Popen

    def waited(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        process = popen(*args, **kwargs)
        process.wait()
        return process

    monkeypatch.setattr(subprocess, "Popen", waited)
    _dies("exit code 9")


def test_appending_again_clears_what_was_left_after_the_last_step(
    source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.tar"
    packio.pack(source, out, shards=2)
    left = tmp_path / "x.tar.packio-append" / "pack"
    left.mkdir(parents=True)
    (left / "index.packio").write_bytes(b"old")
    (left.parent / workshop.MARKER).touch()
    assert append(out, source).added == 0
    assert os.listdir(tmp_path) == ["x.tar"]


_WATCH = "    memory.watch()\n"
_WAIT = "    import _thread; lock = _thread.allocate_lock(); lock.acquire(); lock.acquire()\n"


def test_a_worker_that_waits_for_ever_while_it_begins_is_ended(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    begins = executors._COMMAND.replace(str(isolation.START_SECONDS), "1")
    monkeypatch.setattr(executors, "_COMMAND", begins.replace(_WATCH, _WATCH + _WAIT))
    _dies("exit code 1")
    assert "Timeout" in capfd.readouterr().err  # and where it waited


def test_a_worker_that_waits_for_ever_without_memory_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = "    import resource; resource.setrlimit(resource.RLIMIT_AS, (1, 1))\n"
    begins = executors._COMMAND.replace(_WATCH, _WATCH + limit + _WAIT)
    monkeypatch.setattr(executors, "_COMMAND", begins)
    _dies("for lack of memory")


def test_an_interpreter_that_waits_for_ever_while_it_imports_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(isolation, "START_SECONDS", 1)
    command = isolation.command(textwrap.dedent(_WAIT))
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1
    assert "Timeout" in done.stderr  # and where it waited


def test_a_worker_that_closes_its_pipe_and_does_not_end_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closes = "import os, time; %r; os.close(%d), %d; time.sleep(100_000)"
    monkeypatch.setattr(executors, "_COMMAND", closes)
    monkeypatch.setattr(executors, "_END_SECONDS", 0.1)
    _dies("did not end by itself")


@pytest.mark.parametrize("closed", ["2>&-", "<&- 2>&-", "<&- >&- 2>&-"])
def test_workers_begin_where_the_program_has_no_stderr(
    closed: str, source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    code = "import packio, sys; packio.pack(*sys.argv[1:], shards=3, num_workers=2)"
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", code]
    assert subprocess.run([*command, source, tmp_path / "x.tar"], check=False).returncode == 0
    assert packio.verify(tmp_path / "x.tar").ok
