"""One packing run: the shards of a plan are written, indexed as one pack, and published."""

from __future__ import annotations

import glob
import json
import math
import os
import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from packio import registry
from packio.errors import (
    BadImagesError,
    OutputError,
    OutputExistsError,
    PackioError,
    SourceError,
    WorkerDiedError,
)
from packio.index import indexfile
from packio.packing.plan.planning import Plan, check_space
from packio.packing.publish import assembly
from packio.packing.report import SKIPPED_SUFFIX, PackReport, Skip
from packio.packing.run import cluster, executors, node_check, sameness, shards, stat_cache
from packio.packing.run.tally import Done, Tally
from packio.sample.recipe import Recipe
from packio.storage import journal as journals
from packio.storage import workshop
from packio.storage.journal import Journal
from packio.system import files
from packio.system.pools import ATTEMPTS, run_tasks
from packio.system.progress import PROGRESS_SECONDS, Progress, ProgressCallback

_SHOWN = 10  # bad images that an error message lists
_PART = f"{journals.PART}{{}}-of-{{}}"  # a note in the journal: this part was begun


class Means(NamedTuple):
    """How a run is carried out. It does not change the bytes of the pack."""

    engine: str | Executor = "local"  # as `executors.started` takes
    workers: int = 1  # processes of the engine "local"
    threads: int | None = None  # of each process; None: as many as keep it busy
    memory: int | None = None  # bytes of source files in memory, in all processes; approximate
    max_errors: int | None = None  # stop when more samples than this are bad
    part: tuple[int, int] | None = None  # (i, n): only every n-th shard, from the i-th on
    finish: bool = False  # write no shards; make a pack of those that earlier runs wrote
    quarantine: Path | None = None  # a folder for copies of bad samples, which all nodes see
    progress: ProgressCallback | None = None


class Run:
    """One packing run."""

    def __init__(
        self, plan: Plan, out: Path, means: Means, began: float, *, skip: bool, first: int = 0
    ) -> None:
        self.plan: Plan = plan
        self.out: Path = out
        self.means: Means = means
        self.first = first  # number of the first shard
        self._began, self._called, self._skip = began, -math.inf, skip
        self._container = registry.load("formats", plan.format)
        self._before = self._before_bytes = self._resumed = 0  # done by an earlier run
        self._total = len(plan.listing.keys)

    def into(self, shop: workshop.Workshop) -> PackReport:
        """Build the pack in a workshop and publish it; or write one part of its shards."""
        finished = self.write(shop)
        if self.means.part is None:
            return self._put_together(shop, finished)
        skipped = assembly.skipped(finished)
        size = sum(size for shard in finished for _, size, _ in shard.files())
        nothing = assembly.Assembled([], "", size, [], None)
        return self._report(finished, skipped, self._list_skipped(shop, skipped), nothing)

    def write(self, shop: workshop.Workshop) -> list[indexfile.Index]:
        """Write the shards that no earlier run has finished; return the indexes of all shards.

        The shards' files are then in the workshop's folder `built`; those of a part of the shards
        stay in the journal's folder.
        """
        journal = self._begun(shop)
        mine = self._mine()
        if not self._skip and self.plan.listing.unlisted:  # told before images are read for hours
            unlisted = [Skip(key, reason) for key, reason in self.plan.listing.unlisted]
            listed = self._list_skipped(shop, unlisted)
            raise _bad_images(
                self.out, unlisted, listed, stage="so far, as no image has been checked yet "
            )
        missing = self._missing(mine, shop, journal)
        check_space(self.plan, self.out, missing)
        bad = self._write_shards(journal, missing)
        if not self._skip and bad:
            raise _bad_images(self.out, bad, self._list_skipped(shop, bad))
        finished = []
        for number in mine:
            shard = journal.find(number)
            if shard is None and self.means.engine != "local" and number in missing:
                shard = journal.awaited(number)
            if shard is None or not (self.means.part or journal.settle(shard, shop.built)):
                raise OutputError(f"{self.out}: shard {number} is gone from {shop.folder}")
            finished.append(shard)
        if self.means.part is None:
            # other files in the built pack are of a run that was killed, as half an index
            kept = {name.partition("/")[0] for shard in finished for name, _, _ in shard.files()}
            for path in list(shop.built.iterdir()):
                if path.name not in kept:
                    files.remove(path)
        return finished

    def _begun(self, shop: workshop.Workshop) -> Journal:
        """The journal, with the finished shards of the same plan; those of another go."""
        journal = journal_of(self.plan, shop.shards)
        alone = self.means.part is None
        if alone and not journal.is_of_this_plan:
            journal.discard()
        check_journal(self.plan, self.out, journal)
        journal.begin(self.plan.own.as_json())
        if self.means.part is not None:  # for the run that finishes
            journal.folder.joinpath(_PART.format(*self.means.part)).touch()
        else:
            journal.sweep()
        shop.built.mkdir(exist_ok=True)
        return journal

    def _mine(self) -> Sequence[int]:
        """Numbers of the shards of this run's part."""
        numbers = range(len(self.plan.shards))
        if self.means.part is None:
            return numbers
        i, n = self.means.part
        self._total = sum(len(self.plan.shards[number]) for number in numbers[i - 1 :: n])
        return numbers[i - 1 :: n]

    def _missing(self, mine: Sequence[int], shop: workshop.Workshop, journal: Journal) -> list[int]:
        """Numbers of the shards that are still to be written."""
        missing = []
        for number in mine:
            finished = journal.find(number)
            if finished is not None and self._still_good(finished, number, shop, journal):
                self._resumed += 1
                self._before += len(self.plan.shards[number])
                self._before_bytes += finished.metadata["source_bytes"]
                continue
            if finished is not None:
                journal.forget(number)
            missing.append(number)
        if missing and self.means.finish:
            raise OutputError(
                f"{self.out}: {len(missing)} of {len(mine)} shards are not written yet "
                f"(number {missing[0]} first); {_advice(journal, missing)}"
            )
        return missing

    def _still_good(
        self, finished: indexfile.Index, number: int, shop: workshop.Workshop, journal: Journal
    ) -> bool:
        """Tell whether a finished shard can be taken over: files and source are unchanged."""
        if finished.metadata["skipped"] and not (self._skip and self._is_quarantined(finished)):
            return False
        if self.means.part is not None:
            return True  # the run that finishes will compare the contents
        part = self.plan.listing.part(self.plan.shards[number])
        known = finished.column(stat_cache.COLUMN).array()
        return journal.settle(finished, shop.built) and sameness.is_same(
            part, finished, known, self.plan.treatment
        )

    def _is_quarantined(self, finished: indexfile.Index) -> bool:
        """Tell whether the bad samples of a shard need not be copied."""
        folder = self.means.quarantine
        return folder is None or self.means.finish or finished.metadata["quarantine"] == str(folder)

    def _write_shards(self, journal: Journal, missing: Sequence[int]) -> list[Skip]:
        """Write shards; return the bad samples of shards that are not finished because of them."""
        name = "tally" if self.means.part is None else f"tally-{self.means.part[0]}"
        tally = Tally(journal.folder / name, journal.tasks)
        tally.clear()
        if not missing:
            return []
        outcomes = list[shards.Outcome]()

        def took(task: tuple[shards.Task], future: Future[shards.Outcome]) -> None:
            try:
                outcomes.append(future.result())
            except WorkerDiedError as error:
                raise WorkerDiedError(
                    f"{self.out}: shard {task[0].number} failed {ATTEMPTS} times: {error}; "
                    "run it again with fewer --workers or less --memory"
                ) from error

        workers = min(self.means.workers, len(missing))
        with executors.started(self.means.engine, workers) as engine, ExitStack() as stack:
            if isinstance(engine, cluster.Cluster):
                workers = min(engine.slots, len(missing))
                stack.enter_context(node_check.scratch_in(journal.folder, self.plan.listing))
                engine.show(node_check.of_run(self.plan, journal, self.means.quarantine))
            tasks = [(self._task(number, journal, tally, workers),) for number in missing]
            self._report_progress(tally.total())
            run_tasks(
                engine, shards.write, tasks, took, stop=tally.stop,
                step=lambda: self._report_progress(tally.total()),
            )  # fmt: skip
        outcomes.sort()
        limit, bad = self.means.max_errors, sum(len(o.skipped) for o in outcomes)
        if limit is not None and max(bad, tally.total().bad) > limit:
            raise _bad_images(self.out, [s for o in outcomes for s in o.skipped], None, limit=limit)
        return [skip for o in outcomes if not o.finished for skip in o.skipped]

    def _task(self, number: int, journal: Journal, tally: Tally, workers: int) -> shards.Task:
        plan, means = self.plan, self.means
        return shards.Task(
            number, self.name(number), plan.format, dict(plan.own.writing), journal, tally,
            self._skip, means.max_errors, means.quarantine,
            plan.listing.part(plan.shards[number]), plan.treatment,
            threads=means.threads or max(2, math.ceil(plan.treatment.threads / workers)),
            memory=None if means.memory is None else means.memory // workers,
        )  # fmt: skip

    def name(self, number: int) -> str:
        """Name of a shard, relative to the pack; "." if the pack is the shard."""
        if self.plan.is_sharded:
            suffix = self.out.suffix or self._container.caps.suffixes[0]
            return f"{self.out.stem}-{self.first + number:05d}{suffix}"
        return "." if self._container.caps.is_directory else self.out.name

    def _report_progress(self, done: Done) -> None:
        now, samples = time.monotonic(), self._before + done.samples
        complete = samples >= self._total
        if self.means.progress is None or not (complete or now - self._called >= PROGRESS_SECONDS):
            return
        self._called = now
        bad = len(self.plan.listing.unlisted) + done.bad
        stage = "publishing" if complete else "checking" if bad and not self._skip else "reading"
        self.means.progress(
            Progress(
                samples, self._total, self._before_bytes + done.size, self.plan.total_bytes, bad,
                now - self._began, stage,
            )
        )  # fmt: skip

    def _put_together(
        self, shop: workshop.Workshop, finished: Sequence[indexfile.Index]
    ) -> PackReport:
        plan, built = self.plan, shop.built
        beside = [*plan.listing.unlisted, *plan.listing.dropped]
        skipped = [Skip(key, reason) for key, reason in beside] + assembly.skipped(finished)
        listed = self._list_skipped(shop, skipped)
        parts = f"{glob.escape(self.out.name)}.part-*{SKIPPED_SUFFIX}"
        for path in list(self.out.parent.glob(parts)):  # the new list has their lines
            path.unlink(missing_ok=True)
        if not any(shard.metadata["samples"] for shard in finished):
            raise SourceError(
                f"{plan.listing.root or 'the source'}: none of {len(skipped)} images can be "
                f"packed; the reasons are in {listed}"
            )
        names = [self.name(number) for number in range(len(plan.shards))]
        assembled = assembly.write_index(plan, names, finished, self._container, built, self.out)
        if assembly.is_folder(plan, self._container):
            shop.publish()
        else:
            shop.publish(assembled.files, self._old_files())
        stat_cache.save(assembled.digest, assembled.identities)
        return self._report(finished, skipped, listed, assembled)

    def _old_files(self) -> list[str]:
        """Names of the files of the pack that is replaced, if that pack is a file."""
        index = self.out.name + indexfile.INDEX_SUFFIX
        try:
            old = indexfile.Index(self.out.with_name(index))
            return [*(name for name, _, _ in old.files() if "/" not in name), index]
        except PackioError:
            return []

    def _list_skipped(self, shop: workshop.Workshop, skipped: Sequence[Skip]) -> Path | None:
        """Write the list of skipped samples, if any, beside the pack; a part's has its number."""
        part = "" if self.means.part is None else f".part-{self.means.part[0]}"
        path = self.out.with_name(f"{self.out.name}{part}{SKIPPED_SUFFIX}")
        if not skipped:
            path.unlink(missing_ok=True)  # of an earlier run
            return None
        temporary = shop.folder / f"skipped{part}"
        temporary.write_text("".join(json.dumps(s.as_json()) + "\n" for s in skipped))
        temporary.replace(path)
        return path

    def _report(
        self, finished: Sequence[indexfile.Index], skipped: Sequence[Skip], listed: Path | None,
        assembled: assembly.Assembled,
    ) -> PackReport:  # fmt: skip
        listing = self.plan.listing
        packed = sum(shard.metadata["samples"] for shard in finished)
        return PackReport(
            out=self.out,
            format=self.plan.format,
            found=packed + len(skipped),
            packed=packed,
            skipped=tuple(skipped),
            classes=len(listing.classes),
            source_bytes=sum(shard.metadata["source_bytes"] for shard in finished),
            out_bytes=assembled.size,
            seconds=time.monotonic() - self._began,
            digest=assembled.digest,
            warnings=(*listing.warnings, *assembled.warnings),
            skipped_file=listed,
            part=self.means.part,
            resumed=self._resumed,
            quarantined=sum(shard.metadata["copied"] for shard in finished),
        )


def _bad_images(
    out: Path, skipped: Sequence[Skip], listed: Path | None, *, stage: str = "",
    limit: int | None = None,
) -> BadImagesError:  # fmt: skip
    shown = [(os.fsdecode(s.key), s.reason) for s in skipped[:_SHOWN]]
    lines = "".join(f"\n  {ascii(key)[1:-1]}: {reason}" for key, reason in shown)
    more = f"\n  and {len(skipped) - _SHOWN} more" if len(skipped) > _SHOWN else ""
    if limit is not None:
        what = f"stopped, as more than {limit} images are bad"
    else:
        what = (
            f"bad samples: {len(skipped)} {stage}(all listed in {listed}); "
            "mend them, or leave them out with --on-error skip"
        )
    error = BadImagesError(f"{out}: not packed, {what}:{lines}{more}")
    error.skipped = tuple(shown)
    return error


def journal_of(plan: Plan, folder: Path) -> Journal:
    """The journal of a plan's shards."""
    return Journal(folder, plan.digest, len(plan.shards))


def check_journal(plan: Plan, out: Path, journal: Journal, *, skip: bool = True) -> None:
    """Refuse shards of another plan, or without the samples that are bad; delete nothing."""
    if not journal.is_of_this_plan:
        theirs = Recipe.of({"recipe": journal.noted()[1]})
        differs = "; ".join(plan.own.differences(theirs)) or "files, format or shards"
        raise OutputExistsError(
            f"{out}: parts of another pack are in {journal.folder.parent}; what differs: "
            f"{differs}; give the options that the parts were written with, or delete that folder "
            "to begin anew"
        )
    for number in () if skip else range(journal.tasks):
        finished = journal.find(number)
        skipped = finished.metadata["skipped"] if finished is not None else ()
        if skipped:
            raise OutputExistsError(
                f"{out}: shard {number} was written without {len(skipped)} bad samples, "
                f"as {ascii(skipped[0][0])[1:-1]} ({skipped[0][1]}); what differs: on_error; "
                "give the --on-error that the parts were written with"
            )


def _advice(journal: Journal, missing: Sequence[int]) -> str:
    """How to write the shards that are missing."""
    notes = journal.folder.glob(_PART.format("*", "*"))
    counts = {int(path.name.rpartition("-")[2]) for path in notes}
    if len(counts) != 1:  # none, or several divisions
        return "run the parts that are missing with --part i/n, and the same options"
    (count,) = counts
    parts = sorted({number % count + 1 for number in missing})
    shown = ", ".join(f"--part {i}/{count}" for i in parts[:_SHOWN])
    more = f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    numbers = ",".join(map(str, parts))
    return (
        f"run the same command with {shown}{more} instead of --finish (Slurm: sbatch "
        f"--array={numbers}), then --finish again"
    )
