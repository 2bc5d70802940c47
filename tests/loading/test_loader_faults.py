"""What a Loader makes of workers that die, full shared memory, and machines without a GPU."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import leftovers
import pytest
import torch

import packio
from packio.errors import OptionError, PackioError

HERE = pathlib.Path(__file__).parents[1]
NO_GPU = not torch.cuda.is_available()


def _dataset(pack: pathlib.Path, **options: Any) -> packio.PackDataset:
    return packio.PackDataset(pack, crop=packio.RandomResizedCrop(64), seed=3, **options)


@pytest.fixture
def nothing_left() -> Any:
    """No thread, no process and no shared memory more than before."""
    kinds = ("threads", "processes", "shared memory")
    before = leftovers.held()
    yield
    after = leftovers.held()
    more = {kind: after[kind] - before[kind] for kind in kinds}
    assert all(count <= 0 for count in more.values()), more  # a thread of before may have ended


def _die(_: Any) -> Any:
    os._exit(7)


@pytest.mark.usefixtures("nothing_left")
def test_a_worker_that_dies_ends_the_epoch_and_is_named(pack: pathlib.Path) -> None:
    loader = packio.Loader(_dataset(pack, transform=_die), 4, num_workers=2)
    with pytest.raises(RuntimeError, match=r"worker .*exited unexpectedly"):
        list(loader)
    del loader


@pytest.mark.parametrize(
    ("kind", "change"), [(packio.Loader, "removed"), (torch.utils.data.DataLoader, "replaced")]
)
def test_a_worker_that_starts_after_the_pack_has_gone_says_so(
    kind: Any, change: str, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = packio.pack(image_folder, tmp_path / "x.lmdb").out
    loader = kind(_dataset(out), 4, num_workers=1, multiprocessing_context="spawn")
    if change == "removed":
        shutil.rmtree(out)
    else:
        packio.pack(image_folder, out, limit=3, overwrite=True)
    expected = {"removed": "does not exist", "replaced": "has changed since"}[change]
    with pytest.raises(PackioError, match=rf"x\.lmdb.*: {expected}"):
        list(loader)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.usefixtures("nothing_left")
def test_a_step_that_raises_leaves_nothing(workers: int, pack: pathlib.Path) -> None:
    def train() -> None:
        for _ in packio.Loader(_dataset(pack), 4, num_workers=workers):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.usefixtures("nothing_left")
def test_what_cannot_be_sent_to_workers_says_so(method: str, pack: pathlib.Path) -> None:
    ds = _dataset(pack, transform=lambda image: image)
    loader = packio.Loader(ds, 4, num_workers=1, multiprocessing_context=method)
    with pytest.raises(OptionError, match=r"PackDataset: cannot be sent .* num_workers=0"):
        next(iter(loader))
    assert len(list(packio.Loader(ds, 5))) == 5


@pytest.mark.skipif(not NO_GPU, reason="there is a GPU, with pinned memory")
def test_without_pinned_memory_batches_come_as_they_are(pack: pathlib.Path) -> None:
    expected = list(packio.Loader(_dataset(pack), 5))
    with pytest.warns(RuntimeWarning, match="stay out of pinned memory"):
        batches = list(packio.Loader(_dataset(pack), 5, pin_memory=True))
    for batch, other in zip(batches, expected, strict=True):
        assert torch.equal(batch[0], other[0])


@pytest.mark.skipif(not NO_GPU, reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_said_at_once(pack: pathlib.Path) -> None:
    with pytest.raises(OptionError, match=r"device=cuda: PyTorch .* finds no GPU"):
        packio.Loader(_dataset(pack), 5, device="cuda")


_SMALL = """
import sys, packio, torch
ds = packio.PackDataset(sys.argv[1], crop=packio.RandomResizedCrop(224), seed=3)
threads, workers = (list(packio.Loader(ds, 13, num_workers=n)) for n in (0, 1))
print([torch.equal(ours[0], others[0]) for ours, others in zip(threads, workers, strict=True)])
"""


@pytest.mark.skipif(os.getuid() != 0, reason="mounting needs root")
def test_batches_of_workers_need_no_room_in_dev_shm(pack: pathlib.Path) -> None:
    mounted = 'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounted, "sh", sys.executable, "-c", _SMALL, pack],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["[True, True]"], done


_HELD = """
import sys, packio, torch
from packio.errors import SharedMemoryError
torch.multiprocessing.set_sharing_strategy(sys.argv[2])
ds = packio.PackDataset(sys.argv[1], crop=packio.RandomResizedCrop(224), seed=3)
try:
    print(len(list(packio.Loader(ds, 2, num_workers=1))))
except SharedMemoryError as error:
    print(error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="mounting needs root")
@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_no_room_for_batches_that_are_held_is_said(strategy: str, pack: pathlib.Path) -> None:
    mounted = 'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"'
    program = [sys.executable, "-c", _HELD, str(pack), strategy]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounted, "sh", *program],
        capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "PACKIO_BUFFER_BYTES": "1"},
    )  # fmt: skip
    assert "no room to share a batch" in done.stdout, done
    assert "--shm-size" in done.stdout


_WAITING = """
import sys, time, packio, torch
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 1000
    def __getitem__(self, index):
        time.sleep(0.05)
        return index
for batch in packio.Loader(Slow(), 4, num_workers=int(sys.argv[1])):
    print("batch", flush=True)
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_interrupt_ends_it_with_all_its_processes(workers: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _WAITING, workers], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "batch\n"
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does
    _, said = child.communicate(timeout=600)
    assert child.returncode == -signal.SIGINT, said
    assert "KeyboardInterrupt" in said
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)


_KILLED = """
import sys, time, packio, torch
class Heavy(torch.utils.data.Dataset):  # its batches fill the pipe, and nobody takes them out
    def __len__(self): return 1000
    def __getitem__(self, index): return "x" * 1_000_000
def main(method, pack):
    how = {"persistent_workers": True, "multiprocessing_context": method}
    ours = packio.Loader(Heavy(), 1, num_workers=2, **how)
    ds = packio.PackDataset(pack, crop=packio.RandomResizedCrop(64))
    theirs = torch.utils.data.DataLoader(ds, 4, num_workers=1, **how)
    running = [iter(ours), iter(theirs)]
    for batches in running: next(batches)
    print("running", flush=True)
    time.sleep(600)
if __name__ == "__main__": main(*sys.argv[1:])
"""


@pytest.mark.parametrize(
    "method", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.long)]
)
def test_a_killed_process_leaves_no_orphans(
    method: str, pack: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    script = tmp_path / "killed.py"
    script.write_text(_KILLED)
    with subprocess.Popen(
        [sys.executable, script, method, pack], stdout=subprocess.PIPE, start_new_session=True,
        text=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline() == "running\n"
        processes = leftovers.of_session(child.pid)
        assert len(processes) >= 4
        memory = leftovers.shared_memory(processes)
        assert memory
        child.kill()
    left = processes
    for _ in range(6000):  # 600 seconds; alone on a machine it takes less than 5
        left = leftovers.of_session(child.pid)
        if not left:
            break
        time.sleep(0.1)
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert left == []
    assert [path for path in memory if os.path.exists(path)] == []
