"""One peer's process: does what it reads as lines of JSON, and answers with lines of JSON.

    python _child.py PEER

"open" makes a candidate, after preparing its files, and goes through one epoch, whose pixels it
looks at; "turn" goes through whole epochs until some seconds are over; "close" forgets it. Before
an answer the processes of this tree have come to rest, so that nothing runs in another's turn.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import _contract

TICKS = os.sysconf("SC_CLK_TCK")
Epochs = Callable[[], Iterable[tuple[Any, ...]]]


def cpu_seconds() -> float:
    """Processor time of this process and of all it started, those that ended included."""
    parents, ticks = {}, {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended
            continue
        parents[int(entry)] = int(fields[1])
        ticks[int(entry)] = sum(map(int, fields[11:15]))
    tree, new = set(), {os.getpid()}
    while new:
        tree |= new
        new = {pid for pid, parent in parents.items() if parent in tree} - tree
    return sum(ticks[pid] for pid in tree) / TICKS


def rest(limit: float = 3.0) -> None:
    """Wait until this tree uses no processor time, for some seconds at most."""
    end, used = time.monotonic() + limit, -1.0
    while (now := cpu_seconds()) > used + 0.005 and time.monotonic() < end:
        used = now
        time.sleep(0.05)


def look(epochs: Epochs) -> dict[str, Any]:
    """Go through an epoch: what batches are like, and the mean of each channel."""
    import numpy as np

    count, first, sums = 0, None, np.zeros(3)
    for images, *_ in epochs():
        array = np.asarray(images)
        first = first or {
            "shape": list(array.shape), "dtype": str(array.dtype),
            "contiguous": bool(array.flags.c_contiguous), "type": type(images).__module__,
        }  # fmt: skip
        count += len(images)
        sums += array.mean((0, 2, 3)) * len(images)
    return {**(first or {}), "images": count, "means": (sums / count).round(3).tolist()}


def turn(epochs: Epochs, seconds: float) -> dict[str, Any]:
    """Go through epochs until some seconds are over, touching nothing."""
    images, used, began = 0, cpu_seconds(), time.perf_counter()
    while (over := time.perf_counter() - began) < seconds:
        for batch in epochs():
            images += len(batch[0])
        over = time.perf_counter() - began
    return {"images": images, "seconds": over, "cpu_seconds": cpu_seconds() - used}


def answer(peer: Any, made: dict[str, Epochs], asked: dict[str, Any]) -> dict[str, Any]:
    """Do one thing that is asked."""
    name = asked.pop("name", "")
    if asked["do"] == "hello":
        return {"ways": peer.WAYS, "versions": peer.versions()}
    if asked["do"] == "open":
        job = asked["job"]
        job = _contract.Job(**{**job, "source": Path(job["source"]), "out": Path(job["out"])})
        job.out.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        peer.prepare(job)
        prepared = time.perf_counter() - began
        made[name] = peer.epochs(job)
        found = {**look(made[name]), "prepare_seconds": round(prepared, 1)}
        if hasattr(peer, "stored"):
            found["bytes_stored"] = peer.stored(job)
        return found
    if asked["do"] == "turn":
        return turn(made[name], asked["seconds"])
    made.pop(name, None)
    gc.collect()
    return {}


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # peers print, and draw progress
    peer = importlib.import_module(f"read_{sys.argv[1]}")
    made: dict[str, Epochs] = {}
    while line := sys.stdin.readline():
        try:
            result = answer(peer, made, json.loads(line))
        except Exception as error:  # noqa: BLE001 (a peer may raise anything; the run goes on)
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[-1:]}"}
        rest()
        print(json.dumps(result), file=answers, flush=True)
    made.clear()


if __name__ == "__main__":
    main()
