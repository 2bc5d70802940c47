"""Whether `packio.doctor` names what bounds a loop: bottlenecks of random size, planted.

Small packs are made of photographs (tools/make_sample_images.py). A loop over one of them gets one
bottleneck, or two, or none, each drawn by seed; steps sleep, as for a GPU, in proportion to the
batch, but for those of the memory format, which are convolutions. Loops with 64 workers are
simulated: the doctor gets their numbers, and its trials run on their clock. Right is

* with one: it is among the first two findings (``first``: it is the first one);
* with two: both are among the first three;
* with none: nothing but "step", "none" or "unexplained" is found. Its loader is 2 to 6 times as
  fast as its step.

Silent is a loop with a bottleneck of which nothing but these is found; all else is wrong.

    python benchmarks/doctor.py [--cases 30] [--seed 1] [--seconds 12] [--only KIND] [--json FILE]
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import _results
import torch
from _plants import DOUBLE, SINGLE, Parts, none, two
from _simulated import KINDS, Simulated

import packio
from packio.measuring.doctor import Cause, Diagnosis

TOOL = Path(__file__).parent.parent / "tools" / "make_sample_images.py"
QUIET = (Cause.STEP, Cause.NONE, Cause.UNEXPLAINED)
Row = dict[str, Any]


class Case(NamedTuple):
    """What is planted, and how that was judged."""

    name: str
    parts: Parts


def cases(count: int, seed: int, packs: dict[str, Path]) -> list[Case]:
    """Draw the cases: of ten, six with one bottleneck, two with two, and two with none."""
    made, singles, doubles = list[Case](), 0, 0
    for number in range(count):
        parts = Parts(random.Random(f"{seed} {number}"), packs)
        if number % 5 == 3:
            none(parts)
            name = "none"
        elif number % 5 == 4:
            pair = DOUBLE[doubles % len(DOUBLE)]
            two(parts, pair)
            name, doubles = " + ".join(plant.__name__ for plant in pair), doubles + 1
        else:
            plant = SINGLE[singles % len(SINGLE)]
            plant(parts)
            name, singles = plant.__name__, singles + 1
        made.append(Case(name, parts))
    return made


def verdict(diagnosis: Diagnosis, expected: Sequence[Cause], proposed: str = "") -> str:
    """Judge a diagnosis: right, wrong or silent."""
    kinds = diagnosis.kinds
    if not expected:
        return "right" if set(kinds) <= set(QUIET) else "wrong"
    is_right = set(expected) <= set(kinds[: 1 + len(expected)])
    is_proposed = any(trial.code.startswith(proposed) for trial in diagnosis.remedies)
    if is_right and (is_proposed or not proposed):
        return "right"
    return "silent" if set(kinds) <= set(QUIET) else "wrong"


def told(diagnosis: Diagnosis, case: str, expected: Sequence[Cause], proposed: str = "") -> Row:
    """Say what was planted, what was found, and how that is judged."""
    return {
        "case": case, "expected": [kind.value for kind in expected],
        "verdict": verdict(diagnosis, expected, proposed),
        "first": bool(expected) and diagnosis.kinds[0] in expected,
        "found": {f.kind.value: round(f.share, 3) for f in diagnosis.findings},
        "waiting": round(diagnosis.measured.waiting.median, 3),
        "remedies": [f"{t.change} x{t.factor.median:.2f}{' estimated' * bool(t.assumption)}"
                     for t in diagnosis.remedies],
    }  # fmt: skip


def judged(case: Case, seconds: float) -> Row:
    """Have the doctor look at a case."""
    began, parts = time.perf_counter(), case.parts
    found = packio.doctor(parts.loader(), parts.steps(), seconds=seconds)
    return told(found, case.name, parts.expected, parts.proposed) | {
        "planted": parts.sizes, "workers": parts.workers, "batch_size": parts.batch_size,
        "seconds": round(time.perf_counter() - began, 1), "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def judged_simulation(name: str, number: int, seed: int) -> Row:
    """Have the doctor look at the numbers of a simulated loop of 64 workers."""
    loop = Simulated(random.Random(f"{seed} {name} {number}"), name)
    return told(loop.diagnosis(), f"64 workers: {name}", loop.expected) | {"planted": loop.sizes}


def make_packs(folder: Path) -> dict[str, Path]:
    """Pack photographs: 200 of 160 pixels, and 24 of 2,000."""
    packs = {}
    for name, count, size in (("small", 200, 160), ("large", 24, 2000)):
        command = [sys.executable, str(TOOL), str(folder / name), "--n", str(count),
                   "--size", str(size)]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        packs[name] = packio.pack(folder / name, folder / f"{name}.lmdb").out
    return packs


def summed_up(rows: list[Row]) -> dict[str, dict[str, int]]:
    """Count what is right, wrong and silent: with one bottleneck, with two, with none, by case."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        group = ("none", "one", "two")[len(row["expected"])]
        is_simulated = row["case"].startswith("64 workers")
        for name in {f"64 workers, {group}" if is_simulated else group, f"  {row['case']}"}:
            counts = found.setdefault(name, dict.fromkeys(("right", "wrong", "silent"), 0))
            counts[row["verdict"]] += 1
    return dict(sorted(found.items(), key=lambda item: item[0].startswith(" ")))


def table(summary: dict[str, dict[str, int]]) -> str:
    """Print the counts as Markdown."""
    lines = ["| planted | right | wrong | silent |", "|---|---:|---:|---:|"]
    lines += [f"| {name.strip()} | {' | '.join(map(str, counts.values()))} |"
              for name, counts in summary.items()]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    """Run the campaign."""
    parser = _results.parser(__doc__)
    parser.add_argument("--cases", type=int, default=30)
    parser.add_argument("--simulated", type=int, default=10, help="loops of 64 workers, a kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each diagnosis")
    parser.add_argument("--only", help="cases whose names have this in it")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(options.cases, options.seed, make_packs(Path(folder))):
            if options.only and options.only not in case.name:
                continue
            rows.append(judged(case, options.seconds))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    for name in KINDS:
        if not options.only or options.only in name:
            rows += [judged_simulation(name, n, options.seed) for n in range(options.simulated)]
    result = {
        "machine": _results.machine("torch", "pillow", "simplejpeg"), "seed": options.seed,
        "seconds": options.seconds, "summary": summed_up(rows), "cases": rows,
    }  # fmt: skip
    print(table(summed_up(rows)))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.save:
        _results.save("doctor", result)


if __name__ == "__main__":
    main()
