"""The kinds of faults: each makes trials, which disturb packing and look at what is left."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import ground as grounds
import processes
import syscalls
from ground import Ground, Way
from processes import FaultError, children, ended, in_child

import packio
from packio.index import indexfile
from packio.index.indexfile import UNFINISHED_SUFFIX
from packio.packing.appending import append

_CLONE_NEWNS = 0x00020000  # unshare(2)
_EXT4_SHUTDOWN = 0x8004587D  # ioctl EXT4_IOC_SHUTDOWN, linux/ext4.h
_NO_LOG_FLUSH = 2  # its argument: what is not on the disk is gone
_PATIENCE = 200  # seconds from Ctrl-C to the end, on a busy machine
_DISK = 24 << 20  # bytes of an ext4 image


class Trials(NamedTuple):
    """One kind of fault: how many trials the short and the long form have, and what they are."""

    short: int
    long: int
    make: Callable[[Ground, int, random.Random], Iterator[Callable[[], None]]]
    mounts: bool = False  # it needs to mount
    images: int = 60
    most: int = 16_000


def kills(ground: Ground, count: int, draw: random.Random) -> Iterator[Callable[[], None]]:
    """SIGKILL at a random moment: of the process, of one that it started, or of all."""
    for _ in range(count):
        way = Way(
            *draw.choice(((1, 1), (1, 1), (4, 1), (4, 1), (4, 1), (4, 2))), draw.random() < 0.3
        )
        target = draw.choice(
            ("main", "worker", "group") if way.num_workers > 1 else ("main", "group")
        )
        yield partial(_kill, ground, way, target, draw)


def _kill(ground: Ground, way: Way, target: str, draw: random.Random) -> None:
    out = ground.prepare(way)
    again = target != "worker" and draw.random() < 0.2
    for _ in range(1 + again):
        seconds = _seconds(ground, way)
        pid = ground.start(ground.packing(way, out))
        time.sleep(draw.random() * seconds)
        if target == "group":
            os.killpg(pid, signal.SIGKILL)
        elif target == "main":
            os.kill(pid, signal.SIGKILL)
        else:
            _kill_one_of(children(pid), draw)
        code = ended(pid)
        if target == "worker":
            ground.check_exit(code, (0,))
        ground.examine(way, out, code=None if code < 0 else code)
    ground.complete(way, out)


def interrupts(ground: Ground, count: int, draw: random.Random) -> Iterator[Callable[[], None]]:
    """Ctrl-C at a random moment, once or twice: of the process, or of all that it started."""
    for _ in range(count):
        way = Way(*draw.choice(((1, 1), (4, 1), (4, 1), (4, 2))), draw.random() < 0.3)
        yield partial(_interrupt, ground, way, draw)


def _interrupt(ground: Ground, way: Way, draw: random.Random) -> None:
    seconds = _seconds(ground, way)
    out = ground.prepare(way)
    pid = ground.start(ground.packing(way, out))
    time.sleep(draw.random() * seconds)
    for _ in range(draw.choice((1, 2))):
        draw.choice((os.kill, os.killpg))(pid, signal.SIGINT)
        time.sleep(draw.random() * 0.02)
    began = time.monotonic()
    code = ended(pid)
    if code not in (0, 130):
        raise FaultError(f"exit code {code}: {ground.log.read_text()[-1500:]}")
    if time.monotonic() - began > _PATIENCE:
        raise FaultError(f"exit code {code} only after {time.monotonic() - began:.1f} s")
    ground.examine(way, out, code=code)
    ground.complete(way, out)


def _kill_one_of(processes: list[int], draw: random.Random) -> None:
    if processes:
        with suppress(ProcessLookupError):
            os.kill(draw.choice(processes), signal.SIGKILL)


_durations: dict[tuple[str, Way], float] = {}


def _seconds(ground: Ground, way: Way) -> float:
    """How long an undisturbed run takes here."""
    key = (str(ground.base), way)
    if key not in _durations:
        out = ground.prepare(way)
        began = time.monotonic()
        ground.check_exit(ended(ground.start(ground.packing(way, out))), (0,))
        _durations[key] = time.monotonic() - began
        ground.prepare(way)
    return _durations[key]


def calls(ground: Ground, count: int, draw: random.Random) -> Iterator[Callable[[], None]]:
    """Each system call on the output fails in turn; and all is killed just before each."""
    ways = Way(shards=2), Way(overwrite=True)
    points = []
    for number, way in enumerate(ways):
        out = ground.prepare(way)
        traced = syscalls.run(ground.packing(way, out), str(out.parent))
        if traced.status:
            raise FaultError(f"it does not pack while traced: {traced.status}")
        points += [
            (number, when, error)
            for when, call in enumerate(traced.calls)
            for error in (call.errors[when % len(call.errors)], syscalls.KILL)
        ]
    for number, when, error in sorted(draw.sample(points, min(count, len(points)))):
        yield partial(_fail_call, ground, ways[number], when, error)


def _fail_call(ground: Ground, way: Way, when: int, error: int) -> None:
    out = ground.prepare(way)
    pack = ground.packing(way, out)

    def logged() -> int:
        processes.redirect(ground.log)
        return pack()

    traced = syscalls.run(logged, str(out.parent), when, error)
    code = os.waitstatus_to_exitcode(traced.status)
    told = f"call {when}, {traced.calls[-1]}, {errno.errorcode.get(error, 'SIGKILL')}"
    try:
        if error != syscalls.KILL:
            ground.check_exit(code)
        late = traced.calls[-1].name in ("fsync", "rmdir", "unlink", "openat")
        published = late and grounds.tree(out.parent) == ground.undisturbed(way.shards)
        ground.examine(way, out, code=None if code < 0 or published else code)
        ground.complete(way, out)
    except FaultError as failed:
        raise FaultError(f"{told}: {failed}") from failed


def cuts(ground: Ground, count: int, draw: random.Random) -> Iterator[Callable[[], None]]:
    """The power goes at a random moment: ext4 is shut down, and what was not flushed is gone."""
    blank = ground.base / "blank"
    with blank.open("wb") as file:
        file.truncate(_DISK)
    run("mkfs.ext4", "-qF", blank)
    for _ in range(count):
        way = Way(*draw.choice(((1, 1), (4, 1))), draw.random() < 0.3)
        yield partial(cut, ground, way, 1.1 * draw.random())


def cut(ground: Ground, way: Way, moment: float, *, sync: bool = True) -> None:
    """Cut the power once.

    Args:
        ground: The format's.
        way: How it packs.
        moment: Share of the time that packing takes; from 1 on: after its end.
        sync: Whether fsync works; a test of the trial itself.
    """
    image, disk = ground.base / "image", ground.base / "disk"
    disk.mkdir(exist_ok=True)
    run("cp", "--sparse=always", ground.base / "blank", image)
    out = disk / "out" / ground.out.name
    with mounted(disk, "-o", "loop", image):
        ground.prepare(way, out)
        run("sync", "-f", disk)
        seconds = _seconds_on(ground, way, disk)
        pid = ground.start(_packing(ground, way, out, sync=sync))
        time.sleep(min(1, moment) * seconds)
        done = os.waitpid(pid, 0 if moment >= 1 else os.WNOHANG)[0] == pid
        if done and not grounds.tree(out.parent) == ground.undisturbed(way.shards):
            raise FaultError("it failed before the power went: " + ground.log.read_text())
        folder = os.open(disk, os.O_RDONLY)
        fcntl.ioctl(folder, _EXT4_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        os.close(folder)
        if not done:
            os.killpg(pid, signal.SIGKILL)
            done = ended(pid) == 0
    with mounted(disk, "-o", "loop", image):
        ground.examine(way, out, code=0 if done else None)
        ground.complete(way, out)


def _packing(ground: Ground, way: Way, out: Path, *, sync: bool) -> Callable[[], int]:
    def without() -> int:
        os.fsync = lambda _: None  # type: ignore[assignment]  # on purpose
        return pack()

    pack = ground.packing(way, out)
    return pack if sync else without


def _seconds_on(ground: Ground, way: Way, disk: Path) -> float:
    """How long an undisturbed run takes on a disk, where syncing takes its time."""
    key = (str(disk), way)
    if key not in _durations:
        out = disk / "first" / ground.out.name
        ground.prepare(way, out)
        began = time.monotonic()
        ended(ground.start(ground.packing(way, out)))
        _durations[key] = 1.1 * (time.monotonic() - began)
        shutil.rmtree(out.parent)
    return _durations[key]


def full(ground: Ground, count: int, draw: random.Random) -> Iterator[Callable[[], None]]:
    """The disk has room for a part of the pack, or names for a part of its files."""
    for i in range(count):
        way = Way(*((1, 1), (4, 1))[i % 2], i % 3 == 2)
        size = sum(map(len, filter(None, ground.undisturbed(way.shards).values())))
        share = 0.03 + 2.4 * (i + draw.random()) / count
        yield partial(_fill, ground, way, f"size={4096 + int(share * size)}")
    for i in range(count):
        way = Way(*((1, 1), (4, 1))[i % 2], i % 3 == 2)
        names = len(ground.undisturbed(way.shards)) * 3 + 12
        inodes = 2 + int(names * (i + draw.random()) / count)
        yield partial(_fill, ground, way, f"size=64m,nr_inodes={inodes}")


def _fill(ground: Ground, way: Way, options: str) -> None:
    disk = ground.base / "disk"
    disk.mkdir(exist_ok=True)
    with mounted(disk, "-t", "tmpfs", "-o", options, "tmpfs"):
        out = disk / ground.out.name
        try:
            ground.prepare(way, out)
        except OSError:  # no room even for the old pack
            return
        code = ended(ground.start(ground.packing(way, out)))
        ground.check_exit(code)
        ground.examine(way, out, code=code)
        run("mount", "-o", "remount,size=64m,nr_inodes=10000", disk)
        ground.complete(way, out, flying=1)


def memory(ground: Ground, count: int, draw: random.Random) -> Iterator[Callable[[], None]]:
    """There is no memory: for the process, or for one that it started; or files may not grow."""
    for i in range(count):
        yield partial(_starve, ground, i % 3, draw)


def _starve(ground: Ground, kind: int, draw: random.Random) -> None:
    way = Way(4, 1 if kind else 2)
    out = ground.prepare(way)
    pack = ground.packing(way, out)

    def limited() -> int:
        if kind == 1:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            limit = used + draw.randrange(64 << 20)
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        elif kind == 2:
            limit = draw.randrange(1 << 18)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return pack()

    seconds = _seconds(ground, way)
    ground.prepare(way)
    pid = ground.start(limited)
    if kind == 0:
        time.sleep(draw.random() * seconds)
        for worker in children(pid):
            with suppress(OSError):
                resource.prlimit(worker, resource.RLIMIT_AS, (1 << 20, 1 << 20))
    code = ended(pid)
    if kind == 2 or not (code < 0 or code == processes.INTERNAL):  # libraries die without memory
        ground.check_exit(code, (0, 65, 73, 74), alone=kind != 0)
    ground.examine(way, out, code=None if code < 0 else code)
    ground.complete(way, out)


def changes(ground: Ground, count: int, draw: random.Random) -> Iterator[Callable[[], None]]:
    """Source files vanish, grow, shrink and are replaced while they are packed."""
    for _ in range(count):
        yield partial(_change, ground, draw)
    ground.restore()


def _change(ground: Ground, draw: random.Random) -> None:
    ground.restore()
    way = Way(draw.choice((1, 4)))
    out = ground.prepare(way)
    before = {s.key: s for s in ground.expected}
    versions: dict[bytes, list[bytes]] = {}
    pid = ground.start(ground.packing(way, out, on_error="skip"))
    top, gone = os.fsencode(ground.source), set()
    journal = out.with_name(out.name + UNFINISHED_SUFFIX) / "shards"
    while not os.waitpid(pid, os.WNOHANG)[0]:
        if not journal.exists():  # files that vanish before they are listed are nobody's business
            continue
        key = draw.choice(list(before))
        path = os.path.join(top, key)
        now = before[key].data + draw.randbytes(draw.randrange(9000))
        if draw.random() < 0.2:
            now = before[key].data[: 75 + draw.randrange(9)]
        if draw.random() < 0.1:
            gone.add(key)
            with suppress(FileNotFoundError):
                os.unlink(path)
            continue
        versions.setdefault(key, []).append(now)
        with open(path + b".new", "wb") as file:
            file.write(now)
        os.replace(path + b".new", path)
        if draw.random() < 0.3:  # grow in place
            versions[key].append(now + b"more")
            with open(path, "ab") as file:
                file.write(b"more")
        time.sleep(0.0005)
    left_out = _skipped(out)
    for key in left_out:
        if not (key in versions or key in gone):
            raise FaultError(f"{key!r} was left out, but did not change")
    ground.expected = [s for s in ground.expected if s.key not in left_out]
    try:
        ground.judge(out, versions)
    finally:
        ground.restore()


def _skipped(out: Path) -> set[bytes]:
    path = out.with_name(f"{out.name}.skipped.jsonl")
    lines = path.read_text().splitlines() if path.exists() else []
    return {os.fsencode(json.loads(line)["key"]) for line in lines}


def rivals(ground: Ground, count: int, draw: random.Random) -> Iterator[Callable[[], None]]:
    """Several pack into one place at once; one may be killed."""
    for i in range(count):
        yield partial(_race, ground, (2, 4, 8)[i % 3], draw)


def _race(ground: Ground, many: int, draw: random.Random) -> None:
    way = Way(draw.choice((1, 4)))
    out = ground.prepare(way)
    seconds = _seconds(ground, way)
    ground.prepare(way)
    pids = [ground.start(ground.packing(way, out)) for _ in range(many)]
    killed = draw.random() < 0.5
    if killed:
        time.sleep(draw.random() * seconds)
        os.killpg(pids[0], signal.SIGKILL)
    codes = [ended(pid) for pid in pids]
    if any(code not in (0, 73, 75) for code in codes[killed:]):
        raise FaultError(f"exit codes {codes}: {ground.log.read_text()[-500:]}")
    if not killed and 0 not in codes:
        raise FaultError(f"exit codes {codes}: nobody packed it")
    ground.examine(way, out, code=0 if 0 in codes else None)
    ground.complete(way, out)


def appends(ground: Ground, count: int, draw: random.Random) -> Iterator[Callable[[], None]]:
    """SIGKILL while appending: the pack can be opened all the time, and is the old or the new."""
    folder = ground.base / "appended"
    before, after = (folder / name / ground.out.name for name in ("before", "after"))
    for out in (before, after):
        grounds.empty(out.parent)
        in_child(lambda: packio.pack(ground.before, out, shards=2).digest)  # noqa: B023 (it is called now)
    began = time.monotonic()
    in_child(lambda: append(after, ground.source, shard_size=100_000, num_workers=1).digest)
    seconds = time.monotonic() - began
    states = {indexfile.Index(p / "index.packio").digest: p for p in (before, after)}
    for _ in range(count):
        yield partial(_kill_append, ground, before, after, list(states), seconds, draw)


def _kill_append(
    ground: Ground, before: Path, after: Path, digests: list[str], seconds: float,
    draw: random.Random,
) -> None:  # fmt: skip
    out = ground.out
    grounds.empty(out.parent)
    shutil.copytree(before, out)

    def appending() -> int:
        return processes.coded(
            lambda: append(out, ground.source, shard_size=100_000, num_workers=1)
        )

    pid = ground.start(appending)
    time.sleep(draw.random() * seconds)
    os.killpg(pid, signal.SIGKILL)
    ended(pid)
    digest = in_child(lambda: packio.open(out).digest)
    if digest not in digests:
        raise FaultError("neither the old pack nor the new")
    if not in_child(lambda: packio.verify(out).ok):
        raise FaultError("the pack does not verify")
    in_child(lambda: append(out, ground.source, shard_size=100_000, num_workers=1).digest)
    if grounds.tree(out.parent) != grounds.tree(after.parent):
        raise FaultError(grounds.differences(grounds.tree(out.parent), grounds.tree(after.parent)))


KINDS = {
    "kills": Trials(4, 200, kills),
    "interrupts": Trials(1, 40, interrupts),
    "calls": Trials(5, 1000, calls, images=20, most=1500),
    "power cuts": Trials(2, 50, cuts, mounts=True),
    "full disks": Trials(1, 16, full, mounts=True),  # of each: too few bytes, too few inodes
    "no memory": Trials(1, 24, memory),
    "changing sources": Trials(1, 20, changes),
    "rivals": Trials(1, 24, rivals),
    "killed appends": Trials(1, 24, appends),
}


def can_mount() -> bool:
    """Whether this process can mount in a namespace of its own; from here on it has one."""
    if os.geteuid() or ctypes.CDLL(None).unshare(_CLONE_NEWNS):
        return False
    return not subprocess.run(["mount", "--make-rprivate", "/"], check=False).returncode


@contextmanager
def mounted(disk: Path, *options: str | Path) -> Iterator[None]:
    """Have a file system mounted."""
    run("mount", *options, disk)
    try:
        yield
    finally:
        run("umount", disk)


def run(*command: str | Path) -> None:
    """Run a command that has to succeed."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
