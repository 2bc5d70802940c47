"""Commands in any order, some of them killed and repeated, against a model in memory.

The model is a list of described samples for each pack. PACKIO_MATRIX=whole tries longer sequences.
"""

from __future__ import annotations

import os
import pathlib
import tempfile
from typing import Any

import described
import hypothesis.strategies as st
import pytest
from commands import KILLED, Commands
from described import Sample
from hypothesis import HealthCheck, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from trials import FORMATS, Cell, Trial

_IS_WHOLE = os.environ.get("PACKIO_MATRIX") == "whole"
_SETTINGS = settings(
    max_examples=200 if _IS_WHOLE else 6, stateful_step_count=20 if _IS_WHOLE else 7,
    deadline=None, derandomize=not _IS_WHOLE, database=None, report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
_COUNT = 16
_USAGE = 2  # exit code

_parts = st.sets(st.integers(0, _COUNT - 1), min_size=1)
_formats = st.sampled_from(FORMATS)
# Most commands are left alone; the others are killed before one of their first changes on disk.
_kills = st.one_of(st.none(), st.integers(1, 60))


class Packs(RuleBasedStateMachine):
    """Packs that commands make of each other. All are folders of shards, so that they can grow."""

    packs: Bundle[str] = Bundle("packs")
    commands: Commands

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self._held: dict[str, list[Sample]] = {}  # path of a pack → what it must hold
        self._number = 0

    @initialize(label=st.sampled_from(["class", "many"]), way=st.sampled_from(["all", "some"]))
    def begin(self, label: str, way: str) -> None:
        """Choose the annotations of all samples."""
        names = ("mask", "boxes", "meta", "fields")
        annotations = {"label": label, "split": "all", "turned": "all", **dict.fromkeys(names, way)}
        cell = Cell("extracted", tuple(annotations.items()), "sequence", ".tar", ".h5")
        self._trial = Trial(cell, pathlib.Path(self._folder.name), self.commands)
        self._pool = self._trial.dataset(_COUNT)

    @rule(target=packs, part=_parts, suffix=_formats, kill=_kills)
    def pack(self, part: set[int], suffix: str, kill: int | None) -> str:
        """Pack some samples."""
        return self._made("pack", [*self._source(part)], suffix, self._some(part), kill)

    @rule(pack=packs, part=_parts, kill=_kills)
    def append(self, pack: str, part: set[int], kill: int | None) -> None:
        """Append some samples; those that are there stay."""
        before = self._held[pack]
        keys = {s["key"] for s in before}
        after = [*before, *(s for s in self._some(part) if s["key"] not in keys)]
        told = ["append", pack, *self._source(part), "--workers", "1"]
        if kill is not None:
            self._trial.run(*told, code=(0, KILLED), kill_at=kill)
            self._trial.check_either(pack, before, after)
        self._trial.run(*told)
        self._holds(pack, after)

    @rule(target=packs, one=packs, two=packs, suffix=_formats, kill=_kills)
    def merge(self, one: str, two: str, suffix: str, kill: int | None) -> str:
        """Merge two packs; a key that both have is refused."""
        told = [one, two, *self._shards()]
        keys = [{s["key"] for s in self._held[pack]} for pack in (one, two)]
        if keys[0] & keys[1]:
            self._trial.run("merge", *told, "-o", self._new(suffix), code=_USAGE)
            return one
        return self._made("merge", told, suffix, [*self._held[one], *self._held[two]], kill)

    @rule(target=packs, pack=packs, suffix=_formats, kill=_kills)
    def convert(self, pack: str, suffix: str, kill: int | None) -> str:
        """Convert a pack."""
        return self._made("convert", [pack], suffix, self._held[pack], kill)

    @rule(target=packs, pack=packs, suffix=_formats, kill=_kills)
    def extract(self, pack: str, suffix: str, kill: int | None) -> str:
        """Extract a pack, and pack the folder."""
        folder = self._new("")
        self._trial.run("extract", pack, folder)
        return self._made("pack", [folder], suffix, self._held[pack], kill)

    def teardown(self) -> None:
        """Delete all packs."""
        self._folder.cleanup()

    def _some(self, part: set[int]) -> list[Sample]:
        return [self._pool[i] for i in sorted(part)]

    def _source(self, part: set[int]) -> list[str]:
        name = f"source{self._number}"
        self._number += 1
        return self._trial.written(self._some(part), name).arguments

    def _shards(self) -> list[str]:
        return ["--shard-size", str(4 * described.SIZE)]

    def _new(self, suffix: str) -> str:
        self._number += 1
        return self._trial.out(f"p{self._number}", suffix or "_")

    def _made(
        self, verb: str, told: list[str], suffix: str, samples: list[Sample], kill: int | None
    ) -> str:
        """Make a pack by a command that is perhaps killed first; return the path of the pack."""
        out = self._new(suffix)
        shards = [] if verb == "merge" else self._shards()
        words = [verb, *told, *(["-o"] if verb == "merge" else []), out, *shards]
        if kill is not None:
            self._trial.run(*words, code=(0, KILLED), kill_at=kill)
        self._trial.run(*words)
        self._holds(out, samples)
        return out

    def _holds(self, out: str, samples: list[Sample]) -> None:
        self._trial.check(out, samples)
        self._held[out] = samples


@pytest.mark.timeout(3600)
def test_any_sequence_of_commands_loses_and_doubles_nothing(commands: Commands) -> None:
    class Machine(Packs):
        """The packs, with a process that runs commands."""

    Machine.commands = commands
    machine: Any = Machine
    run_machine(machine, settings=_SETTINGS)
