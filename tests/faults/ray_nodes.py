"""Nodes of a Ray cluster die, and others join, while packio packs: the bytes stay the same.

``python tests/faults/ray_nodes.py`` tries this. Each trial packs a source on a cluster of this
machine's, kills nodes and adds others at random moments, and prints what happened and the digest.
The last trials take away all nodes, and the head. The exit code is 1 if any trial went wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import checker
import ground as grounds
from processes import FaultError

import packio
from packio.packing.run import cluster as clusters

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from packio.system.progress import Progress

SUFFIXES = (".tar", ".lmdb", ".tfrecord", ".h5")
_HEALTH = {"health_check_period_ms": 1000}  # a node that is killed is missed after 5 of them
_FOLDER_VARIABLE = "RAY_TMPDIR"
_REMOVALS = 100
_NODE_SECONDS = 120  # for a node to join, on a busy machine


class Nodes:
    """A Ray cluster on this machine that no other process meets: its head runs no tasks."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        # Ray's sockets lie in it, so its path is short
        self._folder = tempfile.mkdtemp(prefix="packio-ray-", dir="/tmp")
        head = {
            "num_cpus": 0, "temp_dir": self._folder, "include_dashboard": False,
            "_system_config": _HEALTH,
        }  # fmt: skip
        # in it Ray notes which cluster is this machine's; processes with other clusters have others
        (Path(self._folder) / "ray").mkdir()
        self._before = os.environ.get(_FOLDER_VARIABLE)
        os.environ[_FOLDER_VARIABLE] = self._folder
        self._apart: list[subprocess.Popen[bytes]] = []
        self._cluster: Any = None
        try:
            self._cluster = Cluster(initialize_head=True, head_node_args=head)
        except BaseException:
            self.close()
            raise
        self.address: str = self._cluster.address

    def add(self, processors: int = 1) -> Any:
        """Add a node."""
        return self._cluster.add_node(num_cpus=processors)

    def add_apart(self, before: str, processors: int = 1) -> None:
        """Add a node in namespaces of its own, as on another machine.

        Args:
            before: Shell command that is run in the namespaces, as ``mount -t tmpfs none /data``.
            processors: Of the node.
        """
        ray = Path(sys.executable).with_name("ray")
        start = f"{before} && cd / && exec {ray} start --address={self.address} --block"
        command = [*APART, "sh", "-c", f"{start} --num-cpus={processors}"]
        known = len(self._alive())
        environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
        del environment[_FOLDER_VARIABLE]  # another machine's
        self._apart.append(
            subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )  # fmt: skip
        deadline = time.monotonic() + _NODE_SECONDS
        while len(self._alive()) == known:
            if time.monotonic() > deadline or self._apart[-1].poll() is not None:
                raise FaultError(f"no node came of {command}")
            time.sleep(0.2)

    def _alive(self) -> list[Any]:
        table = self._cluster.global_state.node_table()
        return [node for node in table if node["Alive"]]

    def kill(self, node: Any) -> None:
        """Kill all processes of a node."""
        self._cluster.remove_node(node, allow_graceful=False)

    def kill_head(self) -> None:
        """Kill the process that knows the cluster."""
        self._cluster.head_node.kill_gcs_server(check_alive=False)

    def close(self) -> None:
        """End all processes."""
        import ray

        ray.shutdown()
        for process in self._apart:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if self._cluster is not None:
            self._cluster.shutdown()
        if self._before is None:
            os.environ.pop(_FOLDER_VARIABLE, None)
        else:
            os.environ[_FOLDER_VARIABLE] = self._before
        for _ in range(_REMOVALS):  # processes that are ending still write logs
            shutil.rmtree(self._folder, ignore_errors=True)
            if not os.path.lexists(self._folder):
                return
            time.sleep(0.1)


APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def can_be_apart() -> bool:
    """Tell whether this user may have namespaces."""
    return not subprocess.run([*APART, "true"], capture_output=True, check=False).returncode


@contextlib.contextmanager
def cluster(wait: float = 60) -> Iterator[Nodes]:
    """A cluster of one's own; packio waits so many seconds for a node if none is left."""
    before = os.environ.get(clusters.WAIT_VARIABLE)
    os.environ[clusters.WAIT_VARIABLE] = str(wait)
    nodes = Nodes()
    try:
        yield nodes
    finally:
        nodes.close()
        os.environ.pop(clusters.WAIT_VARIABLE)
        if before is not None:
            os.environ[clusters.WAIT_VARIABLE] = before


class Trial:
    """One packing run that loses nodes: each dies when so many samples are done.

    Args:
        nodes: The cluster.
        folder: An empty folder for the pack.
        moments: Numbers of samples, rising.
        spare: Add a node after each that dies.
    """

    def __init__(
        self, nodes: Nodes, folder: Path, moments: list[int], *, spare: bool = True
    ) -> None:
        self._nodes, self._moments, self._spare = nodes, moments, spare
        self._journal = folder
        self._here = [nodes.add()]
        self._attempts: set[str] = set()
        self.killed: list[int] = []

    def __call__(self, progress: Progress) -> None:
        """Kill a node if its moment has come; packio calls this with the progress."""
        for folder in self._journal.glob("*.packio-tmp/shards/*-*"):
            self._attempts.add(folder.name)
        left = self._moments[len(self.killed) :]
        if left and progress.done >= left[0] and progress.stage == "reading":
            self.killed.append(progress.done)
            self._nodes.kill(self._here.pop())
            if self._spare:
                self._here.append(self._nodes.add())

    @property
    def retried(self) -> int:
        """Number of shards that were begun again."""
        numbers = [name[:5] for name in self._attempts if name[:5].isdigit()]
        return len(numbers) - len(set(numbers))

    def end(self) -> None:
        """Take away the nodes that are left."""
        while self._here:
            self._nodes.kill(self._here.pop())


def source_of(folder: Path, images: int) -> Path:
    """Make a source that takes a while to pack."""
    source = folder / "source"
    grounds.make_source(source, images, 4000)
    return source


def run(nodes: Nodes, source: Path, folder: Path, suffix: str, seed: int, shards: int) -> str:
    """Pack locally, then on the cluster with nodes that die; compare every byte.

    Returns:
        A line that says what happened.

    Raises:
        FaultError: bytes differ, or samples are lost, doubled or wrong.
    """
    here, there = folder / "local", folder / "cluster"
    here.mkdir(parents=True)
    there.mkdir()
    count = sum(1 for path in source.rglob("*") if path.is_file())
    draw = random.Random(seed)
    moments = sorted(draw.sample(range(1, count * 3 // 4), 2))
    alone = packio.pack(source, here / f"x{suffix}", shards=shards)
    trial = Trial(nodes, there, moments)
    try:
        report = packio.pack(
            source, there / f"x{suffix}", shards=shards, engine=f"ray:{nodes.address}",
            progress=trial, **_SLOW,
        )  # fmt: skip
    finally:
        trial.end()
    if grounds.tree(there) != grounds.tree(here) or report.digest != alone.digest:
        raise FaultError(f"{grounds.differences(grounds.tree(there), grounds.tree(here))}")
    found = checker.check(there / f"x{suffix}", checker.folder(source))
    if any(found[:3]):
        raise FaultError(f"lost, doubled, wrong: {found[:3]}")
    return (
        f"{suffix} seed {seed}: nodes died after {trial.killed} of {count} samples, "
        f"{trial.retried} shards begun again, digest {report.digest} of both"
    )


_SLOW: Mapping[str, Any] = {"threads": 1}


def without_nodes(nodes: Nodes, source: Path, folder: Path, shards: int) -> str:
    """Take away all nodes: packio ends with one clear error, and a local run goes on.

    Raises:
        FaultError: there is another error, or none, or nothing is taken over.
    """
    here, there = folder / "local", folder / "cluster"
    here.mkdir(parents=True)
    there.mkdir()
    trial = Trial(nodes, there, [100], spare=False)
    try:
        packio.pack(
            source, there / "x.tar", shards=shards, engine=f"ray:{nodes.address}", progress=trial
        )
    except packio.errors.OutputError as error:
        told = str(error)
    else:
        raise FaultError("it packed without a node")
    if "no node" not in told:
        raise FaultError(told)
    resumed = packio.pack(source, there / "x.tar", shards=shards).resumed
    digest = packio.pack(source, here / "x.tar", shards=shards).digest
    if grounds.tree(there) != grounds.tree(here) or not resumed:
        raise FaultError(f"{resumed} shards were taken over")
    return f"no node left: {told!r}; then {resumed} shards taken over, digest {digest} of both"


def without_head(nodes: Nodes, source: Path, folder: Path, shards: int) -> str:
    """Kill the head and the node: the command ends with one line, and a local run goes on.

    Ray ends a process that has lost its head for a minute, so the command has its own.

    Raises:
        FaultError: it ends otherwise, or nothing is taken over.
    """
    here, there = folder / "local", folder / "cluster"
    here.mkdir(parents=True)
    there.mkdir()
    node = nodes.add()
    packing = subprocess.Popen(
        [sys.executable, "-m", "packio", "pack", source, there / "x.tar",
         "--shards", str(shards), "--engine", f"ray:{nodes.address}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while packing.poll() is None and not list(there.glob("*.packio-tmp/shards/*.packio")):
        time.sleep(0.05)
    nodes.kill_head()
    nodes.kill(node)
    told = packing.communicate()[1].strip().splitlines()[-1]
    if packing.returncode != 74 or "its head does not answer" not in told:
        raise FaultError(f"exit code {packing.returncode}: {told}")
    resumed = packio.pack(source, there / "x.tar", shards=shards).resumed
    digest = packio.pack(source, here / "x.tar", shards=shards).digest
    if grounds.tree(there) != grounds.tree(here) or not resumed:
        raise FaultError(f"{resumed} shards were taken over")
    return f"no head: {told!r}; then {resumed} shards taken over, digest {digest} of both"


def main() -> int:
    """Run the trials."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--shards", type=int, default=12)
    options = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        source = source_of(Path(name), options.images)
        with cluster() as nodes:
            for seed in range(options.trials):
                suffix = SUFFIXES[seed % len(SUFFIXES)]
                folder = Path(name) / f"trial-{seed}"
                bad += not _told(run, nodes, source, folder, suffix, seed, options.shards)
                shutil.rmtree(folder)
        with cluster(wait=3) as nodes:
            bad += not _told(without_nodes, nodes, source, Path(name) / "none", options.shards)
        with cluster() as nodes:
            bad += not _told(without_head, nodes, source, Path(name) / "head", options.shards)
    return int(bad > 0)


def _told(trial: Any, *arguments: Any) -> bool:
    try:
        print(trial(*arguments), flush=True)
    except (FaultError, packio.PackioError) as error:
        print(f"WRONG: {type(error).__name__}: {error}", flush=True)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
