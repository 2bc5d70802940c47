"""Disturb packing in every way that can be had here, and see that no image is lost or doubled.

    python tests/faults/campaign.py --json card.json            # the short form, of tests
    python tests/faults/campaign.py --long --format lmdb --json benchmarks/results/faults.json

Each trial packs a small folder, is disturbed at a random moment or at a system call, looks at what
is left, packs again, and compares with what an undisturbed run writes and with the source. Results
are added to the card, a format and a kind of fault at a time, beside which a table is written.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import random
import shutil
import sys
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import checker
import processes
import syscalls
from faults import KINDS, can_mount, mounted
from ground import Ground

import packio
from packio import registry
from packio.packing import sourcing

_SHOWN = 5  # failures that the card lists


def try_out(suffix: str, kind: str, base: Path, *, long: bool, seed: int, share: float) -> Any:
    """All trials of a kind of fault, of a format; what came of them.

    Args:
        suffix: Of the format.
        kind: Of the faults.
        base: A folder that is not there yet.
        long: The long form.
        seed: Of all random numbers.
        share: Of the trials; fewer, where time is short.
    """
    trials, draw = KINDS[kind], random.Random(f"{seed} {suffix} {kind}")
    base.mkdir()
    ground = Ground(base, suffix, trials.images, trials.most)
    count = max(1, round(share * (trials.long if long else trials.short)))
    failures, done, began = [], 0, time.monotonic()
    for trial in trials.make(ground, count, draw):
        done += 1
        try:
            trial()
        except processes.FaultError as failed:
            failures.append(f"trial {done}: {failed}")
    verdicts = ground.verdicts
    shutil.rmtree(base)
    return {
        "trials": done, "passed": done - len(failures),
        "lost": sum(v.lost for v in verdicts), "duplicated": sum(v.duplicated for v in verdicts),
        "wrong": sum(v.wrong for v in verdicts), "worst_redo": ground.worst_redo, "seeds": [seed],
        "seconds": round(time.monotonic() - began, 1), "failures": failures[:_SHOWN],
    }  # fmt: skip


def _in_memory(folder: str, mounts: bool) -> AbstractContextManager[None]:
    return mounted(Path(folder), "-t", "tmpfs", "tmpfs") if mounts else nullcontext()


def markdown(card: dict[str, Any]) -> str:
    """The card as a table: a row a format, a column a kind of fault."""
    kinds = [kind for kind in KINDS if any(kind in row for row in card["formats"].values())]
    lines = [f"| | {' | '.join(kinds)} | lost, doubled, wrong | worst redo |",
             "|---|" + "---:|" * (len(kinds) + 2)]  # fmt: skip
    for suffix, row in card["formats"].items():
        cells = [f"{row[k]['passed']:,}/{row[k]['trials']:,}" if k in row else "" for k in kinds]
        sums = [sum(r[n] for r in row.values()) for n in ("lost", "duplicated", "wrong")]
        redo = max(r["worst_redo"] for r in row.values())
        lines.append(
            f"| {suffix} | {' | '.join(cells)} | {sums[0]}, {sums[1]}, {sums[2]} | {redo} |"
        )
    return "\n".join(lines) + "\n"


def _add(path: Path, suffix: str, kind: str, result: dict[str, Any]) -> None:
    """Add a result to the card; to that of the same trials with other seeds, if it is there."""
    card: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"formats": {}}
    card["versions"] = {"packio": packio.__version__, "python": platform.python_version(),
                        "linux": platform.release()}  # fmt: skip
    row = card["formats"].setdefault(suffix, {})
    before = row.get(kind, result)
    if not set(before["seeds"]) & set(result["seeds"]):
        worst = max(before["worst_redo"], result["worst_redo"])
        result = {name: before[name] + result[name] for name in result} | {"worst_redo": worst}
    row[kind] = result
    path.write_text(json.dumps(card, indent=1) + "\n")
    path.with_suffix(".md").write_text(markdown(card))


def _preload(suffix: str) -> None:
    """Import what children need, once; nothing of it starts a thread."""
    for name in ("safetensors", "gzip", "tarfile", *_LIBRARIES.get(suffix, ())):
        importlib.import_module(name)
    for name in registry.names("sources"):
        registry.load("sources", name)
    sourcing.find_format(Path(f"x{suffix}"), None)


_LIBRARIES = {
    ".lmdb": ("lmdb",), ".h5": ("h5py",), ".pth": ("torch",), ".zarr": ("zarr",), ".n5": ("z5py",),
    ".tfrecord": ("tfrecord.example_pb2",),
}  # fmt: skip


def main() -> None:
    """Run what is asked for; end with 1 where a trial failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--long", action="store_true", help="many trials")
    parser.add_argument("--share", type=float, default=1.0, help="of the trials")
    parser.add_argument("--format", action="append", help="suffix without its dot; repeatable")
    parser.add_argument("--kind", action="append", choices=KINDS, help="of fault; repeatable")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="card to add to")
    arguments = parser.parse_args()
    processes.adopt()
    mounts, good = can_mount(), True
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, _in_memory(folder, mounts):
        for suffix in [f".{f}" for f in arguments.format or ()] or checker.SUFFIXES:
            _preload(suffix)
            for kind in arguments.kind or KINDS:
                if (KINDS[kind].mounts and not mounts) or (
                    kind == "calls" and not syscalls.available()
                ):
                    print(f"{suffix} {kind}: cannot be tried here")
                    continue
                result = try_out(suffix, kind, Path(folder) / "trial", long=arguments.long,
                                 seed=arguments.seed, share=arguments.share)  # fmt: skip
                good = good and not result["failures"]
                print(suffix, kind, json.dumps(result), flush=True)
                if arguments.json:
                    _add(arguments.json, suffix, kind, result)
    sys.exit(not good)


if __name__ == "__main__":
    main()
