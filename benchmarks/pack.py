"""How fast `packio.pack` is beside other writers, all until what they wrote is on the disk.

Two comparisons, each within one run:

* ``pass``: JPEGs into a container, bytes as they are. packio to LMDB and to tar; ``cp -r``;
  ``tar cf``; webdataset's ShardWriter; MosaicML's MDSWriter with a column of bytes; LitData's
  optimize and FFCV's DatasetWriter with a BytesField, two processes each; and FFCV's RGBImageField,
  which is its documented way and encodes all images anew. packio reads every header, computes
  CRC32C and SHA-256, and reads back what it wrote; the others, as configured, do none of it.
* ``resize``: to a short side of 256 pixels and JPEG 90. packio to LMDB, with its defaults; FFCV,
  two processes: it limits the long side, here to what gives images of as many pixels on average;
  a loop over Pillow that writes files, in one process and in two.

Candidates take turns, in another order each round, after one round of warm-up: the images are in
the page cache, and the disk is in the same mood for all. Each turn is a process of its own, timed
from the end of its imports (`writers/_turn.py`) to the end of ``sync``; its processor time is that
of all its processes, until they are gone. What it wrote is then removed, and that is synced.

Ratios are packio's images a second over another's, round by round.

    python benchmarks/pack.py [FOLDER] [--only pass|resize] [--rounds 5] [--venvs FOLDER]
        [--work FOLDER] [--save]

FOLDER is an image folder, one folder a class; without it 5,000 photographs are made. A peer runs
by VENVS/PEER/bin/python if that is there, else by this Python if it has the peer, else not at all.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import _results
from PIL import Image

MADE = 5000  # photographs, where no folder is given
SHORT = 256  # pixels
WRITERS = Path(__file__).with_name("writers")
COPIES = ("keep", "cp", "tar")  # modes whose output holds all bytes


class Candidate(NamedTuple):
    """A way to write the images."""

    name: str
    peer: str  # its script is writers/PEER_writer.py, its package has this name
    mode: str
    out: str = "out"


class Turn(NamedTuple):
    """What one turn took."""

    seconds: float
    cpu: float
    size: int  # bytes written
    versions: dict[str, str]


CANDIDATES = {
    "pass": (
        Candidate("packio lmdb", "packio", "keep", "out.lmdb"),
        Candidate("packio tar", "packio", "keep", "out.tar"),
        Candidate("cp -r", "shell", "cp"),
        Candidate("tar cf", "shell", "tar"),
        Candidate("webdataset", "webdataset", "keep"),
        Candidate("MDS", "streaming", "keep"),
        Candidate("LitData", "litdata", "keep"),
        Candidate("FFCV bytes", "ffcv", "keep"),
        Candidate("FFCV jpg", "ffcv", "jpg"),
    ),
    "resize": (
        Candidate("packio lmdb", "packio", "resize", "out.lmdb"),
        Candidate("FFCV jpg", "ffcv", "jpg"),
        Candidate("Pillow", "pillow", "loop"),
        Candidate("Pillow, 2 processes", "pillow", "pool"),
    ),
}
OURS = ("packio", "shell", "pillow")  # run by this Python


def python_of(peer: str, venvs: Path | None) -> Path | None:
    """The Python that has a peer; None if there is none."""
    if peer in OURS:
        return Path(sys.executable)
    if venvs is not None and (python := venvs / peer / "bin" / "python").exists():
        return python
    return Path(sys.executable) if importlib.util.find_spec(peer) is not None else None


def take(candidate: Candidate, python: Path, source: Path, work: Path, side: int | None) -> Turn:
    """Have a candidate write all images once, and remove what it wrote."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    os.sync()
    script = WRITERS / f"{candidate.peer}_writer.py"
    command = [python, script, source.absolute(), work / candidate.out, candidate.mode]
    command += [] if side is None else ["--side", str(side)]
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(
            command, stdin=-1, stdout=-1, stderr=said, text=True, cwd=work,
            env={**os.environ, "TMPDIR": str(work)},
        )  # fmt: skip
        ready = json.loads(child.stdout.readline() or "{}")
        began = time.perf_counter()
        child.stdin.write("\n" if ready else "")
        child.stdin.flush()
        answer = child.stdout.readline()
        seconds = time.perf_counter() - began
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if not answer or status:
            said.seek(0)
            sys.exit(f"{candidate.name}: exit code {child.returncode}\n{said.read()[-3000:]}")
    paths = [Path(folder, name) for folder, _, names in os.walk(work) for name in names]
    size = sum(path.stat().st_size for path in paths)
    cpu = usage.ru_utime + usage.ru_stime - ready["cpu"]
    return Turn(seconds, cpu, size, ready["versions"])


def measure(kind: str, source: Path, work: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Let all candidates of a comparison take turns; seconds, rates and ratios."""
    images = [path for path in source.glob("*/*") if path.is_file()]
    size, about = sum(path.stat().st_size for path in images), sizes_of(images, kind)
    found = {c: python_of(c.peer, given.venvs) for c in CANDIDATES[kind]}
    pythons = {c: python for c, python in found.items() if python is not None}
    for candidate in found.keys() - pythons.keys():
        print(f"{candidate.name}: left out, {candidate.peer} is not there", file=sys.stderr)
    turns: dict[Candidate, list[Turn]] = {candidate: [] for candidate in pythons}
    order = list(pythons)
    for number in range(given.rounds + 1):
        for candidate in order[number % len(order) :] + order[: number % len(order)]:
            side = about.get("ffcv_long" if candidate.peer == "ffcv" else "short")
            turn = take(candidate, pythons[candidate], source, work / "turn", side)
            if candidate.mode in COPIES and turn.size < size:
                sys.exit(f"{candidate.name} wrote {turn.size} bytes of {size}")
            print(f"{number} {candidate.name:20} {turn.seconds:7.2f} s", file=sys.stderr)
            if number:
                turns[candidate].append(turn)
    shutil.rmtree(work / "turn")
    all_versions = {n: v for taken in turns.values() for n, v in taken[0].versions.items()}
    return {
        "machine": _results.machine("numpy", "google-crc32c", file_system=file_system(work))
        | all_versions,
        "images": len(images),
        "megabytes": round(size / 1e6, 1),
        **about,
        "rounds": given.rounds,
        "candidates": {c.name: described(taken, len(images)) for c, taken in turns.items()},
        "ratios": compared(turns),
    }


def described(taken: list[Turn], images: int) -> dict[str, Any]:
    """What a candidate took."""
    return {
        "images_per_second": _results.summary([images / turn.seconds for turn in taken], 0),
        "seconds": _results.summary([turn.seconds for turn in taken], 2),
        "cpu_seconds": _results.summary([turn.cpu for turn in taken], 2),
        "megabytes": round(taken[0].size / 1e6, 1),
    }


def compared(turns: dict[Candidate, list[Turn]]) -> dict[str, dict[str, dict[str, float]]]:
    """Packio's rate over that of each other candidate."""
    seconds = {c: [turn.seconds for turn in taken] for c, taken in turns.items()}
    return {
        ours.name: {
            other.name: _results.summary(_results.ratios(seconds[other], seconds[ours]), 2)
            for other in turns
            if other.peer != "packio"
        }
        for ours in turns
        if ours.peer == "packio"
    }


def sizes_of(images: list[Path], kind: str) -> dict[str, int]:
    """What images are resized to: the short side, and FFCV's long side of as many pixels."""
    if kind != "resize":
        return {}
    sizes = []
    for path in images:
        with Image.open(path) as image:
            sizes.append(image.size)

    def pixels(sides: list[int], limit: int) -> float:
        ratios = [min(1, limit / side) for side in sides]
        return statistics.mean(
            int(r * width) * int(r * height)
            for r, (width, height) in zip(ratios, sizes, strict=True)
        )

    wanted = pixels([min(size) for size in sizes], SHORT)
    longs = [max(size) for size in sizes]
    long = min(range(SHORT, 4 * SHORT), key=lambda limit: abs(pixels(longs, limit) - wanted))
    return {
        "short": SHORT,
        "ffcv_long": long,
        "mean_pixels": round(wanted),
        "ffcv_mean_pixels": round(pixels(longs, long)),
    }


def file_system(work: Path) -> str:
    """Type of the file system that a folder is on."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    inside = [m for m in mounts if os.path.commonpath((m[1], work.resolve())) == m[1]]
    return max(inside, key=lambda m: len(m[1]))[2] if inside else "unknown"


def make_images(folder: Path) -> Path:
    """An image folder of photographs, made by tools/make_sample_images.py."""
    script = Path(__file__).parents[1] / "tools" / "make_sample_images.py"
    subprocess.run([sys.executable, script, folder / "images", "--n", str(MADE)], check=True)
    return folder / "images"


def main() -> None:
    """Measure and print; with --save into benchmarks/results/pack.json, what is there updated."""
    parser = _results.parser(__doc__, rounds=5)
    parser.add_argument("source", type=Path, nargs="?", metavar="FOLDER")
    parser.add_argument("--only", choices=CANDIDATES, help="one of the comparisons; default: both")
    parser.add_argument("--venvs", type=Path, metavar="FOLDER", help="of environments of peers")
    parser.add_argument("--work", type=Path, help="folder to write in; default: the temporary one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.work) as name:
        work = Path(name)
        source = given.source or make_images(work)
        kinds = [given.only] if given.only else list(CANDIDATES)
        result = {kind: measure(kind, source, work, given) for kind in kinds}
    before = _results.load("pack")
    kept = {kind: before[kind] for kind in CANDIDATES if kind in before}
    _results.finish("pack", kept | result, keep=given.save)


if __name__ == "__main__":
    main()
