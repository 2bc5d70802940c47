"""How fast packio and its peers read the same images, side by side, on the same cores.

Each peer runs in its own virtual environment (see install.py), in a process that stays; within a
round every candidate has one turn, whole epochs for half a second or more, and rounds begin with
another one each. First each goes through one epoch, whose batches are looked at: shape, dtype,
and the mean of each channel must be those of the others. Reported are images a second (median
over the rounds, slowest, fastest), processor seconds, and ratios of packio's to each peer's, round
by round. What is written, how, and by which calls, is in ``read_<peer>.py``.

    python benchmarks/peers/install.py VENVS
    python benchmarks/peers/run.py --venvs VENVS [--images FOLDER] [--json FILE]

"wall" is a core that decodes whole JPEGs with simplejpeg and does nothing else, times the cores.
A work that the JSON file has already is measured anew; others are kept in it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import select
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from _contract import WORKS, Job, Work, files
from _sources import source

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))
import _results  # noqa: E402 (it lies beside this folder)

PEERS = sorted(path.stem.removeprefix("read_") for path in HERE.glob("read_*.py"))
OWN = ("packio", "wall")  # both run with packio's packages
PATIENCE = 600  # seconds for an answer
BAND = 12.0  # grey levels that the mean of a channel may be away from the other candidates'
FLOAT_BAND = 0.2  # the same, of normalised floats

Json = dict[str, Any]


class Child:
    """A peer's process."""

    def __init__(self, peer: str, venvs: Path) -> None:
        own = peer in OWN
        python = venvs / ("packio" if own else peer) / "bin" / "python"
        if own and not python.exists():
            python = Path(sys.executable)
        if not python.exists():
            raise FileNotFoundError(python)
        path = {"PYTHONPATH": str(HERE.parents[1])} if own else {}
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | path
        self.peer = peer
        self._process = subprocess.Popen(
            [python, HERE / "_child.py", peer], stdin=-1, stdout=-1, text=True, env=env,
            start_new_session=True,
        )  # fmt: skip
        hello = self.ask(do="hello")
        self.ways: dict[str, list[str]] = hello["ways"]
        self.versions: dict[str, str] = hello["versions"]

    def ask(self, **question: Any) -> Json:
        """Answer of the process.

        Raises:
            RuntimeError: it failed, ended, or took too long.
        """
        to, answers = self._process.stdin, self._process.stdout
        if to is None or answers is None or self._process.poll() is not None:
            raise RuntimeError("its process has ended")
        print(json.dumps(question), file=to, flush=True)
        if not select.select([answers], [], [], PATIENCE)[0]:
            self._process.kill()
            self.end()
            raise RuntimeError(f"no answer for {PATIENCE} seconds")
        line = answers.readline()
        result: Json = json.loads(line) if line else {"error": "its process has ended"}
        if "error" in result:
            raise RuntimeError(result["error"])
        return result

    def end(self) -> None:
        """End the process and all that it started; first ask it to, for what it shares."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Candidate(NamedTuple):
    """One way of one peer, ready."""

    name: str
    child: Child
    way: str
    looks: Json
    turns: list[Json]

    def rates(self, cores: int) -> list[float]:
        """Images a second of each round."""
        times = cores if self.child.peer == "wall" else 1
        return [times * turn["images"] / turn["seconds"] for turn in self.turns]


def measure(work: str, children: list[Child], given: argparse.Namespace) -> Json:
    """All candidates of one work, in turns."""
    folder = source(WORKS[work].source, given.work / "sources", given.images, given.count)
    candidates, failed = opened(work, folder, children, given)
    for number in range(given.rounds):
        start = number * max(1, len(candidates) // given.rounds) % max(1, len(candidates))
        for candidate in candidates[start:] + candidates[:start]:
            try:
                turn = candidate.child.ask(do="turn", name=candidate.name, seconds=given.seconds)
            except RuntimeError as error:
                failed[candidate.name] = str(error)
            else:
                candidate.turns.append(turn)
    candidates = [c for c in candidates if len(c.turns) == given.rounds]
    for candidate in candidates:
        with contextlib.suppress(RuntimeError):
            candidate.child.ask(do="close", name=candidate.name)
    return {
        "says": WORKS[work].says, **described(folder), "batch": WORKS[work].batch,
        "rounds": given.rounds, "load": round(os.getloadavg()[0], 1),
        "candidates": {c.name: reported(c, given.cores) for c in candidates},
        "packio_over": ratios(candidates, given.cores), "failed": failed,
    }  # fmt: skip


def opened(
    work: str, folder: Path, children: list[Child], given: argparse.Namespace
) -> tuple[list[Candidate], dict[str, str]]:
    """Candidates after their first epoch; and why others are none."""
    candidates: list[Candidate] = []
    failed = {}
    for child in children:
        for way in child.ways.get(work, []):
            name = f"{child.peer}, {way}"
            if not re.search(given.ways, name):
                continue
            out = given.work / child.peer / WORKS[work].source
            job = Job(work, way, folder, out, given.cores)._asdict()
            job |= {"source": str(folder), "out": str(out)}
            print(f"{work}: {name}", file=sys.stderr)
            try:
                looks = child.ask(do="open", name=name, job=job)
                if child.peer != "wall":
                    check(looks, WORKS[work], [c for c in candidates if c.child.peer != "wall"])
            except RuntimeError as error:
                print(f"{work}: {name}: {error}", file=sys.stderr)
                failed[name] = str(error)
            else:
                candidates.append(Candidate(name, child, way, looks, []))
    return candidates, failed


def check(looks: Json, work: Work, others: list[Candidate]) -> None:
    """Whether a candidate's batches are like the others'.

    Raises:
        RuntimeError: they are not.
    """
    expected = [work.batch, *work.shape]
    if looks["shape"] != expected or looks["dtype"] != work.dtype:
        raise RuntimeError(
            f"batches are {looks['shape']} {looks['dtype']}, not {expected} {work.dtype}"
        )
    band = BAND if work.dtype == "uint8" else FLOAT_BAND
    for number, mean in enumerate(looks["means"] if others else ()):
        usual = statistics.median(other.looks["means"][number] for other in others)
        if abs(mean - usual) > band:
            raise RuntimeError(f"channel {number} has the mean {mean}; that of others is {usual}")


def reported(candidate: Candidate, cores: int) -> Json:
    """What is kept of a candidate."""
    cpu = [1e3 * turn["cpu_seconds"] / turn["images"] for turn in candidate.turns]
    return {
        "peer": candidate.child.peer, "way": candidate.way,
        "images_per_second": _results.summary(candidate.rates(cores), 1),
        "cpu_ms_per_image": _results.summary(cpu, 4), **candidate.looks,
    }  # fmt: skip


def ratios(candidates: list[Candidate], cores: int) -> Json:
    """Packio's rate over each other's, of each way of packio's, round by round."""
    own = [c for c in candidates if c.child.peer == "packio"]
    others = [c for c in candidates if c.child.peer != "packio"]
    return {
        a.way: {
            b.name: _results.summary(_results.ratios(a.rates(cores), b.rates(cores)), 2)
            for b in others
        }
        for a in own
    }


def described(folder: Path) -> Json:
    """How many images a source has, and their bytes."""
    if (folder / "pixels.npy").exists():
        return {"bytes": (folder / "pixels.npy").stat().st_size}
    sizes = [path.stat().st_size for path, _ in files(folder)]
    return {"images": len(sizes), "kilobytes_per_image": round(sum(sizes) / len(sizes) / 1e3, 1)}


@contextlib.contextmanager
def started(names: list[str], venvs: Path) -> Iterator[list[Child]]:
    """Processes of the peers; one that cannot start is left out, and that is said."""
    children = []
    try:
        for name in names:
            try:
                children.append(Child(name, venvs))
            except (FileNotFoundError, RuntimeError) as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
        yield children
    finally:
        for child in children:
            child.end()


def show(work: str, result: Json) -> None:
    """Print a work's rates, and the best of packio's over each peer's."""
    print(f"\n{work}: {result['says']}; {result.get('kilobytes_per_image', '')} kB an image")
    rows = sorted(
        result["candidates"].items(), key=lambda row: -row[1]["images_per_second"]["median"]
    )
    for name, row in rows:
        rate, form = row["images_per_second"], "" if row["contiguous"] else "  (not contiguous)"
        print(
            f"{rate['median']:12,.0f}  ({rate['min']:,.0f} to {rate['max']:,.0f})  "
            f"{row['cpu_ms_per_image']['median']:.3f} ms CPU  {name}{form}"
        )
    for name, why in result["failed"].items():
        print(f"{'failed':>12}  {name}: {why}")


def main() -> None:
    """Measure, print, and write what is measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--works", default=",".join(WORKS), help="default: %(default)s")
    parser.add_argument("--peers", default=",".join(PEERS), help="default: %(default)s")
    parser.add_argument("--ways", default="", metavar="REGEX", help="of names, as 'ffcv, view'")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn, at least")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--venvs", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--images", type=Path, metavar="FOLDER", help="one folder a class")
    parser.add_argument("--count", type=int, default=1984, help="images of it that are taken")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="kept: sources and formats")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.cores])
    with contextlib.ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory
        given.work = (given.work or Path(stack.enter_context(temporary()))).resolve()
        children = stack.enter_context(started(given.peers.split(","), given.venvs.resolve()))
        for work in given.works.split(","):
            result = measure(work, children, given)
            show(work, result)
            if given.json:
                save(given, children, work, result)


def save(given: argparse.Namespace, children: list[Child], work: str, result: Json) -> None:
    """Put a work's result into the JSON file."""
    kept: Json = json.loads(given.json.read_text()) if given.json.exists() else {}
    versions = kept.get("versions", {}) | {child.peer: child.versions for child in children}
    works = kept.get("works", {}) | {work: result}
    text = json.dumps(
        {"machine": _results.machine(), "versions": versions, "works": works}, indent=1
    )
    given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
