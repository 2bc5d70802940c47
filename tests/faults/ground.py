"""Where faults are tried: a source, what packing it gives undisturbed, what a fault may leave."""

from __future__ import annotations

import functools
import os
import random
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import checker
from processes import FaultError, coded, in_child, started

import packio
from packio.errors import PackioError
from packio.index.indexfile import UNFINISHED_SUFFIX

Tree = dict[str, bytes | None]  # relative path: contents; None: a folder

_NAMES = (b"\xff\xfe.png", b"new\nline.png", "\u00e9\t\\.png".encode(), "e\u0301.png".encode(),
          b"-rf  .png", b"a.b.c.png")  # fmt: skip


class Way(NamedTuple):
    """How a trial packs."""

    shards: int = 1
    num_workers: int = 1
    overwrite: bool = False  # another pack is at OUT before


class Ground:
    """One format's source and outputs.

    Args:
        base: An empty folder.
        suffix: Of the format.
        images: How many.
        most: Bytes of the largest of them, about.
    """

    def __init__(self, base: Path, suffix: str, images: int, most: int) -> None:
        self.base, self.suffix, self._images, self._most = base, suffix, images, most
        self.source, self.log = base / "source", base / "log"
        self.out = base / "out" / f"x{suffix}"
        self.verdicts: list[checker.Verdict] = []
        self.worst_redo = 0
        self.restore()
        self.before = base / "before"  # another source, of the pack that is replaced
        shutil.copytree(self.source, self.before)
        next(self.before.rglob("1.png")).unlink()

    def restore(self) -> None:
        """Make the source anew, if it was changed."""
        shutil.rmtree(self.source, ignore_errors=True)
        make_source(self.source, self._images, self._most)
        self.expected = checker.folder(self.source)

    @functools.cached_property
    def _cache(self) -> dict[tuple[Path, int], Tree]:
        return {}

    def undisturbed(self, shards: int, *, old: bool = False) -> Tree:
        """What packing gives where nothing goes wrong; of the other source if ``old``."""
        source = self.before if old else self.source
        if (source, shards) not in self._cache:
            out = self.base / "undisturbed" / self.out.name
            empty(out.parent)
            in_child(lambda: packio.pack(source, out, shards=shards).digest)
            verdict = _verdict(out, checker.folder(source))
            if not verdict.good:
                raise FaultError(f"{out}: {verdict}, and nothing was disturbed")
            self._cache[source, shards] = tree(out.parent)
            shutil.rmtree(out.parent)
        return self._cache[source, shards]

    def prepare(self, way: Way, out: Path | None = None) -> Path:
        """Empty the folder of an output, or put the old pack there."""
        out = out or self.out
        empty(out.parent)
        if way.overwrite:
            for name, data in self.undisturbed(way.shards, old=True).items():
                path = out.parent / os.fsdecode(name)
                if data is None:
                    path.mkdir(parents=True, exist_ok=True)
                else:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(data)
        return out

    def packing(self, way: Way, out: Path, **more: Any) -> Callable[[], int]:
        """What a child does to pack; the exit code is the command line's."""
        return lambda: coded(lambda: packio.pack(self.source, out, **way._asdict(), **more))

    def start(self, action: Callable[[], int]) -> int:
        """Run a function in a child of its own process group; stderr goes to the log."""
        return started(action, self.log)

    def check_exit(
        self, code: int, allowed: tuple[int, ...] = (0, 73, 74), *, alone: bool = True
    ) -> None:
        """A run ends well or with one line, below what processes that it began have to say."""
        said = self.log.read_text(errors="replace").strip()
        if code not in allowed:
            raise FaultError(f"exit code {code}: {said[-1500:]}")
        *others, last = said.splitlines() or [""]
        extra = [line for line in others if alone or line.startswith("packio: ")]
        if code and (extra or not last.startswith("packio: ")):
            raise FaultError(f"exit code {code}, in more than a line: {said[-1500:]}")

    def examine(self, way: Way, out: Path, *, code: int | None = None) -> None:
        """After a fault: OUT is absent, or the old pack, or complete, or not to be opened.

        Args:
            way: How it was packed.
            out: The output.
            code: Exit code, where the run was not killed.
        """
        found, new = tree(out.parent), self.undisturbed(way.shards)
        old = self.undisturbed(way.shards, old=True) if way.overwrite else {}
        opened = in_child(lambda: _opened(out))
        if code == 0 and found != new:
            raise FaultError(f"it ended well, but {differences(found, new)}")
        tmp = out.name + UNFINISHED_SUFFIX
        if tmp not in found:
            if found not in (old, new):
                raise FaultError(f"neither old nor new: {differences(found, new)}")
            if (opened == "good") != bool(found):
                raise FaultError(f"opening says {opened}")
        elif opened != "UnfinishedPackError":
            raise FaultError(f"{tmp} is there, but opening says {opened}")
        elif any(name.startswith(f"{out.name}/") for name in (*new, *old)):  # it is a folder
            here = _within(found, "")
            if {k: v for k, v in here.items() if not k.startswith(tmp)} not in ({}, old, new):
                raise FaultError(f"OUT is neither old nor new: {differences(found, new)}")
            if way.overwrite and out.name not in found:
                replaced = _within(found, f"{tmp}/replaced/")
                if replaced != _within(old, f"{out.name}/"):
                    raise FaultError("the old pack is neither at OUT nor put aside whole")

    def complete(self, way: Way, out: Path, *, flying: int | None = None) -> None:
        """Run it again; all is there, what was finished was not done again, nothing else is left.

        Args:
            way: How it was packed.
            out: The output.
            flying: Most shards that may be done again; None: one a process.
        """
        new = self.undisturbed(way.shards)
        tmp = out.name + UNFINISHED_SUFFIX
        published = {k: v for k, v in tree(out.parent).items() if not k.startswith(tmp)} == new
        begun, noted = (set(), set()) if published else _shards_of(out)
        resumed = in_child(lambda: packio.pack(self.source, out, **way._asdict()).resumed)
        found = tree(out.parent)
        if found != new:
            raise FaultError(f"after a rerun, {differences(found, new)}")
        self.judge(out)
        if resumed < len(noted):
            raise FaultError(f"{len(noted)} shards were finished, {resumed} were taken over")
        redone = max(0, len(begun) - resumed)
        if redone > (way.num_workers if flying is None else flying):
            raise FaultError(f"{redone} shards were done again")
        self.worst_redo = max(self.worst_redo, redone)

    def judge(self, out: Path, versions: dict[bytes, list[bytes]] | None = None) -> None:
        """Have the checker look at a pack."""
        verdict = _verdict(out, self.expected, versions)
        self.verdicts.append(verdict)
        if not verdict.good:
            raise FaultError(str(verdict))


def _verdict(
    out: Path, expected: list[checker.Sample], versions: dict[bytes, list[bytes]] | None = None
) -> checker.Verdict:
    lost, duplicated, wrong, found = in_child(lambda: checker.check(out, expected, versions))
    return checker.Verdict(lost, duplicated, wrong, tuple(found))


def _shards_of(out: Path) -> tuple[set[int], set[int]]:
    """Numbers of shards that were begun, and of those that are noted as finished."""
    folder = out.with_name(out.name + UNFINISHED_SUFFIX) / "shards"
    names = os.listdir(folder) if folder.is_dir() else []
    numbered = [name for name in names if name[:5].isdigit()]
    return ({int(n[:5]) for n in numbered},
            {int(n[:5]) for n in numbered if n[5:] == ".packio"})  # fmt: skip


def _within(found: Tree, prefix: str) -> Tree:
    return {k[len(prefix) :]: v for k, v in found.items() if k.startswith(prefix)}


def differences(found: Tree, wanted: Tree) -> str:
    """How what is there differs from what should be."""
    more, less = sorted(found.keys() - wanted.keys()), sorted(wanted.keys() - found.keys())
    other = [name for name in found.keys() & wanted.keys() if found[name] != wanted[name]]
    return f"{more[:6]} too many, {less[:6]} missing, {other[:6]} other than undisturbed"


def _opened(out: Path) -> str:
    try:
        with packio.open(out) as pack:
            pack[len(pack) - 1]
    except PackioError as error:
        return type(error).__name__
    return "good"


def tree(folder: Path) -> Tree:
    """All files and folders in a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if path.name != "lost+found"
    }


def empty(folder: Path) -> None:
    """Have an empty folder there."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def make_source(root: Path, images: int, most: int) -> None:
    """An image folder of PNGs in 4 classes, some with names that need care, each time the same."""
    draw = random.Random(images)
    for i in range(images):
        folder = root / f"class {i % 4}"
        folder.mkdir(parents=True, exist_ok=True)
        name = _NAMES[i] if i < len(_NAMES) else b"%d.png" % i
        data = _png(1 + i % 9, 1 + i % 5) + draw.randbytes(draw.randrange(most))
        with open(os.path.join(os.fsencode(folder), name), "wb") as file:
            file.write(data)
    (root / "class 0" / "1.png").write_bytes(_png(3, 3))


def _png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        whole = kind + body
        return struct.pack(">I", len(body)) + whole + struct.pack(">I", zlib.crc32(whole))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes((width + 1) * height))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    )
