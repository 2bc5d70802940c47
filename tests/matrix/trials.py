"""One cell of the matrix: a source with annotations, on which a verb is tried."""

from __future__ import annotations

import json
import pathlib
import random
import shlex
import shutil
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import described
import kinds_of_files
import kinds_of_objects
import kinds_of_tables
import looking
from commands import Command, Commands, Ran
from described import Annotations, Sample
from source_kinds import KINDS, Written

if TYPE_CHECKING:
    from collections.abc import Callable

REGISTERED = (kinds_of_files, kinds_of_objects, kinds_of_tables)  # they fill KINDS
FORMATS = (".lmdb", ".h5", ".tfrecord", ".pth", ".rec", ".n5", ".zarr", ".tar")


@dataclass(frozen=True)
class Cell:
    """What is combined."""

    source: str
    annotations: tuple[tuple[str, str], ...]
    verb: str
    format: str
    other: str  # the second format, of verbs that need two
    seed: int = 0

    def __str__(self) -> str:
        told = ",".join(f"{n}={way}" for n, way in self.annotations) or "plain"
        return f"{self.source}-{told}-{self.verb}-{self.format[1:]}-{self.other[1:]}-{self.seed}"


class TrialError(AssertionError):
    """A pack is not what it must be, or a command did not end as it must."""


class Trial:
    """A cell being tried: the verbs are written with its methods.

    Attributes:
        draw: Random numbers of this cell.
        samples: The whole dataset.
    """

    def __init__(self, cell: Cell, folder: pathlib.Path, commands: Commands) -> None:
        self.cell, self.folder, self._commands = cell, folder, commands
        self.draw = random.Random(zlib.crc32(str(cell).encode()))
        self.annotations: Annotations = dict(cell.annotations)
        self.told: list[str] = []  # the commands, for messages
        self.samples = self.dataset()

    def dataset(self, count: int = described.COUNT, *, same_size: bool = False) -> list[Sample]:
        """A dataset of this cell's annotations."""
        return described.dataset(
            self.cell.seed, self.annotations, count=count, same_size=same_size,
            class_folders=KINDS[self.cell.source].class_folders,
        )  # fmt: skip

    @property
    def first(self) -> list[Sample]:
        """The first half of the dataset: other classes than those of the second."""
        return self.samples[: described.HALF]

    @property
    def second(self) -> list[Sample]:
        """The second half of the dataset."""
        return self.samples[described.HALF :]

    def written(self, samples: list[Sample], name: str = "source") -> Written:
        """Write a source anew: another one of the same name is gone."""
        folder = self.folder / name
        if folder.exists():
            shutil.rmtree(folder)
        found = KINDS[self.cell.source].write(samples, folder)
        if found.arguments[0].startswith("given:"):  # a module, found where the command runs
            # a name of its own, because a pack of another folder may be of the same cell
            found.arguments[0] = f"{name}.{found.arguments[0]}"
            (self.folder / name / "__init__.py").touch()
        return found

    def replaced(self, samples: list[Sample], name: str) -> Callable[[], Written]:
        """Write a source beside another one; the function that is returned puts it in its place.

        So the files of the new source are older than what was made of the old one.
        """
        found = self.written(samples, f"{name}_new")
        old, new = self.folder / name, self.folder / f"{name}_new"

        def replace() -> Written:
            shutil.rmtree(old)
            new.rename(old)
            arguments = [word.replace(f"{name}_new", name) for word in found.arguments]
            return found._replace(arguments=arguments)

        return replace

    def out(self, name: str, suffix: str | None = None) -> str:
        """Path of a pack."""
        return str(self.folder / f"{name}{suffix or self.cell.format}")

    def run(self, *arguments: str, code: int | tuple[int, ...] = 0,
            kill_at: int | None = None) -> Ran:  # fmt: skip
        """Run a command of packio, which must end with the code."""
        return self.run_all([Command([*arguments], kill_at)], code)[0]

    def append(
        self, out: str, source: Written, *options: str, code: int | tuple[int, ...] = 0,
        kill_at: int | None = None,
    ) -> Ran:  # fmt: skip
        """Append a source to a pack, mostly in one process: starting others takes long."""
        workers = ["--workers", str(self.draw.choice([1, 1, 1, 1, 1, 2]))]
        arguments = ["append", out, *source.arguments, *workers, *options]
        return self.run(*arguments, code=code, kill_at=kill_at)

    def same_again(self, out: str, source: Written) -> None:
        """Append what a pack was made of, also where the cache knows nothing of its files."""
        for is_known in (True, False):
            if not is_known:
                shutil.rmtree(self.folder / "cache", ignore_errors=True)
            added = json.loads(self.append(out, source, "--json").printed)["added"]
            differ = json.loads(self.append(out, source, "--compare", "--json").printed)["changed"]
            if added or differ:
                self.fail(
                    f"appending the same adds {added}, changed: {differ}, with"
                    f"{'' if is_known else 'out'} a cache"
                )

    def run_all(self, commands: list[Command], code: int | tuple[int, ...] = 0) -> list[Ran]:
        """Run several commands at once."""
        for command in commands:
            told = shlex.join(["packio", *command.arguments]).replace(f"{self.folder}/", "")
            kill = f"  # killed at change {command.kill_at}" if command.kill_at else ""
            stop = f"  # stopped at change {command.stop_at}" if command.stop_at else ""
            self.told.append(told + kill + stop)
        found = self._commands.run(commands, self.folder)
        codes = code if isinstance(code, tuple) else (code,)
        for ran in found:
            if ran.code not in codes:
                said = "\n".join(
                    line for line in (ran.said or ran.printed).splitlines() if line.strip()
                )
                self.fail(f"exit code {ran.code}, expected {codes}: {said[-700:]}")
        return found

    def packed(
        self, samples: list[Sample], name: str = "pack", *options: str
    ) -> tuple[str, Written]:
        """Write a source and pack it; the path of the pack, and the source."""
        source, out = self.written(samples, f"source_{name}"), self.out(name)
        self.run("pack", *source.arguments, out, *options)
        return out, source

    def sharded(
        self, samples: list[Sample], name: str = "pack", *options: str
    ) -> tuple[str, Written]:
        """The same, as a folder of shards of about five images."""
        return self.packed(samples, name, "--shard-size", str(5 * described.SIZE), *options)

    def check(self, out: str, wanted: list[Sample], *, ordered: bool = False) -> None:
        """Compare a pack with what it must hold."""
        try:
            found = looking.difference(wanted, pathlib.Path(out), ordered=ordered)
        except Exception as error:  # noqa: BLE001 (whatever reading raises is the difference)
            found = f"reading fails: {type(error).__name__}: {error}"
        if found:
            self.fail(f"{pathlib.Path(out).name}: {found}")
        left = [p.name for p in self.folder.iterdir() if ".packio-" in p.name]
        if left:
            self.fail(f"left behind: {', '.join(left)}")

    def check_either(self, out: str, before: list[Sample], after: list[Sample]) -> None:
        """Compare a pack with what it must hold if a command has not changed it, or has."""
        number = len(looking.seen(pathlib.Path(out)))
        wanted = after if number == len(after) else before
        if found := looking.difference(wanted, pathlib.Path(out), ordered=False):
            self.fail(f"killed, and neither old nor new: {found}")

    def fail(self, message: str) -> None:
        """Say what went wrong, where, and how to repeat it.

        Raises:
            TrialError: always.
        """
        cell = self.cell
        annotations = ", ".join(f"{n}: {way}" for n, way in cell.annotations) or "none"
        commands = "\n  ".join(self.told)
        raise TrialError(
            f"{message}\nsource: {cell.source}; annotations: {annotations}; verb: {cell.verb}; "
            f"formats: {cell.format} {cell.other}; seed: {cell.seed}; folder: {self.folder}\n"
            f"  {commands}"
        )
