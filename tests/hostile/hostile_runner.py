"""Tries hostile files, each in a process of its own with limits on memory and processor time.

A line of JSON comes in: verb and path. A line goes out: what happened, and what it cost. As a
program it is started once, imports packio once, and forks a child for each file.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

MEMORY = 3 << 30  # bytes of address space beyond what the imports have taken
SECONDS = 40  # of processor time; a hang that sleeps is ended after four times as long


def _images(path: Path, verb: str) -> list[str]:
    """Digests of the encoded images that packio hands out."""
    import packio

    if verb == "pack":
        packio.pack(path, path.parent / "packed.lmdb", on_error="skip", num_workers=1)
        path = path.parent / "packed.lmdb"
    with packio.open(path) as pack:
        digests = [hashlib.sha256(sample.data).hexdigest() for sample in pack]
        fields = tuple(pack.fields)
    dataset = packio.PackDataset(path, crop=packio.ResizeCenterCrop(32), fields=fields)
    for number in range(len(dataset)):
        _ = dataset[number]
    return digests


def _limit() -> None:
    taken = int(Path("/proc/self/statm").read_text("utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(4 * SECONDS)


def _outcome(path: Path, verb: str) -> dict[str, Any]:
    from packio.errors import PackioError

    try:
        return {"images": sorted(_images(path, verb))}
    except PackioError as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    except BaseException as error:  # noqa: BLE001 (anything else is what the test looks for)
        return {"raised": f"{type(error).__name__}: {error}"[:500]}


def _peak() -> int:
    """The most memory that this process and its own children had, in bytes."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return max(part.ru_maxrss for part in used) << 10


def _attempt(path: Path, verb: str) -> dict[str, Any]:
    """What happens in a forked child that tries a file."""
    reading, writing = os.pipe()
    begun = time.monotonic()
    child = os.fork()
    if not child:
        os.close(reading)
        _limit()
        before = _peak()
        outcome = _outcome(path, verb)
        outcome["peak"] = _peak() - before
        outcome["processor"] = sum(os.times()[:4])
        with os.fdopen(writing, "w") as out:
            json.dump(outcome, out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as source:
        said = source.read()
    status = os.waitpid(child, 0)[1]
    outcome = json.loads(said) if said else {"raised": f"ended with wait status {status}"}
    outcome["seconds"] = time.monotonic() - begun
    return outcome


def main() -> None:
    """Answer every line of the standard input."""
    import lmdb  # noqa: F401 (imported before the fork: not part of what a file costs)

    import packio.loading.loader  # noqa: F401 (as above)

    for line in sys.stdin:
        asked = json.loads(line)
        outcome = _attempt(Path(asked["path"]), asked["verb"])
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
