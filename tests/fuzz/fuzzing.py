"""Mutates good inputs and gives them to the parsers of `fuzz_targets`: ``python fuzzing.py -h``.

Each target runs in a process of its own with little memory; a run that takes longer than its time
is ended and counted. What fails is written to a folder; ``--replay FILE TARGET`` repeats it.
The mutations follow from the seed, so that a campaign can be repeated.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import random
import resource
import signal
import struct
import sys
import time
import traceback
import warnings
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import fuzz_targets

MEMORY = 2 << 30  # bytes of address space beyond what the imports have taken
SECONDS = 20  # for one input; far more than any needs, on a busy machine too
_ODD = (0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 129, 255, 256, 4095, 4096, 65_535,
        65_536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63,
        (1 << 64) - 1)  # fmt: skip


class HungError(Exception):
    """An input took too long."""


class Found(NamedTuple):
    """An input that a parser did not take as it should."""

    data: bytes
    what: str


def mutated(draw: random.Random, seeds: list[bytes]) -> bytes:
    """One good input with one to four changes."""
    data = bytearray(draw.choice(seeds))
    for _ in range(draw.choice((1, 1, 1, 2, 2, 4))):
        _CHANGES[draw.randrange(len(_CHANGES))](draw, data, seeds)
        if not data:
            data = bytearray(b"\0")
    return bytes(data)


def _place(draw: random.Random, data: bytearray) -> int:
    """A position; the beginning, where headers are, is drawn as often as all the rest."""
    most = len(data) if draw.random() < 0.5 else min(len(data), 512)
    return draw.randrange(most)


def _flip(draw: random.Random, data: bytearray, _: list[bytes]) -> None:
    data[_place(draw, data)] ^= 1 << draw.randrange(8)


def _byte(draw: random.Random, data: bytearray, _: list[bytes]) -> None:
    data[_place(draw, data)] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))


def _number(draw: random.Random, data: bytearray, _: list[bytes]) -> None:
    size, order = draw.choice((1, 2, 4, 8)), draw.choice(("little", "big"))
    value = draw.choice(_ODD) & (1 << 8 * size) - 1
    at = _place(draw, data)
    data[at : at + size] = value.to_bytes(size, "little" if order == "little" else "big")


def _digits(draw: random.Random, data: bytearray, _: list[bytes]) -> None:
    """Replace a decimal number in a text, as in JSON."""
    digits = [i for i, byte in enumerate(data) if 48 <= byte < 58]
    if digits:
        at = draw.choice(digits)
        data[at : at + 1] = str(draw.choice((-1, 0, 10, *_ODD))).encode()


def _cut(draw: random.Random, data: bytearray, _: list[bytes]) -> None:
    del data[_place(draw, data) :]


def _remove(draw: random.Random, data: bytearray, _: list[bytes]) -> None:
    at = _place(draw, data)
    del data[at : at + draw.choice((1, 2, 4, 8, 16, 512))]


def _repeat(draw: random.Random, data: bytearray, _: list[bytes]) -> None:
    at, size = _place(draw, data), draw.choice((1, 4, 8, 16, 64, 512))
    data[at:at] = data[at : at + size]


def _splice(draw: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    other = draw.choice(seeds)
    at, size = draw.randrange(len(other)), draw.choice((4, 16, 64, 512))
    to = _place(draw, data)
    data[to : to + size] = other[at : at + size]


_CHANGES = (_flip, _flip, _byte, _number, _number, _digits, _cut, _remove, _repeat, _splice)


def limited() -> None:
    """Limit the memory of this process, and prepare to be told of hangs."""
    taken = int(Path("/proc/self/statm").read_text("utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, _hung)
    faulthandler.enable()
    warnings.simplefilter("ignore")


def _hung(_: int, __: FrameType | None) -> None:
    raise HungError


def tried(target: fuzz_targets.Target, data: bytes) -> str:
    """Give one input to a parser; say what is wrong with the outcome, or ""."""
    signal.alarm(SECONDS)
    try:
        target.run(data)
    except target.errors:
        return ""
    except HungError:
        return "hangs"
    except BaseException as error:  # noqa: BLE001 (what is looked for)
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
    finally:
        signal.alarm(0)
    return ""


def campaign(name: str, runs: int, seed: int, *, stop: int = 20) -> tuple[int, list[Found]]:
    """Try mutated inputs.

    Returns:
        How many were tried, and those that were not taken as they should, of each kind one.
    """
    target, draw = fuzz_targets.TARGETS[name], random.Random(f"{name} {seed}")
    seeds, found, kinds = target.seeds(), [], set()
    for seeded in seeds:
        assert not (problem := tried(target, seeded)), f"{name}: a good input: {problem}"
    for number in range(runs):
        data = mutated(draw, seeds)
        if draw.random() < 0.7:
            try:
                data = target.sealed(data)
            except struct.error:
                continue
        problem = tried(target, data)
        if (
            problem
            and (kind := problem.partition(":")[0] + problem.rpartition("(")[2]) not in kinds
        ):
            kinds.add(kind)
            found.append(Found(data, problem))
            if len(found) == stop:
                return number + 1, found
    return runs, found


def main() -> None:
    """Run campaigns from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help="names [default: all]")
    parser.add_argument("--runs", type=int, default=10_000, help="of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("fuzz-found"), help="folder of inputs")
    parser.add_argument("--replay", type=Path, help="try one file with one target")
    options = parser.parse_args()
    limited()
    if options.replay:
        print(tried(fuzz_targets.TARGETS[options.targets[0]], options.replay.read_bytes()) or "ok")
        return
    failed = False
    for name in options.targets or sorted(fuzz_targets.TARGETS):
        begun = time.monotonic()
        runs, found = campaign(name, options.runs, options.seed)
        took = time.monotonic() - begun
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        print(f"{name}: {runs:,} runs in {took:.0f} s, at most {most} MiB, {len(found)} defects")
        for data, what in found:
            failed = True
            options.out.mkdir(exist_ok=True)
            digest = hashlib.sha256(data).hexdigest()[:10]
            path = options.out / f"{name.replace(' ', '-')}-{digest}"
            path.write_bytes(data)
            print(f"  {path}: {what}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
