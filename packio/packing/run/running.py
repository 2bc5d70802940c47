"""One packing run: the shards of a plan are written, indexed as one pack, and published."""

from __future__ import annotations

import glob
import json
import math
import os
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path

from packio import registry
from packio.errors import (
    BadImagesError,
    OutputError,
    OutputExistsError,
    PackioError,
    SourceError,
    WorkerDiedError,
)
from packio.index.indexfile import INDEX_SUFFIX, Index
from packio.packing import assembly
from packio.packing.planning import SKIPPED_SUFFIX, PackReport, Plan, Skip, check_space
from packio.packing.run import cluster, executors, sameness, shards
from packio.packing.run.shards import RunOptions, Tally
from packio.sample.recipe import Recipe
from packio.sources._rows import scratch_files
from packio.storage import journal as journals
from packio.storage.journal import Journal
from packio.storage.workshop import Workshop
from packio.system import files
from packio.system.pools import ATTEMPTS, run_tasks
from packio.system.progress import Progress

_SHOWN = 10  # bad images that an error message lists
_PART = f"{journals.PART}{{}}-of-{{}}"  # a note in the journal: this part was begun


class Run:
    """One packing run, in a workshop; `first` is the number of its first shard."""

    def __init__(
        self, plan: Plan, out: Path, options: RunOptions, shop: Workshop, *, first: int = 0
    ) -> None:
        self.plan, self.out, self.options, self.shop, self.first = plan, out, options, shop, first
        self._journal = Journal(shop.shards, plan.digest, len(plan.shards))
        self._container = registry.load("formats", plan.format)
        self._before = self._before_bytes = self._resumed = 0  # done by an earlier run
        numbers = range(len(plan.shards))
        if options.part is not None:
            numbers = numbers[options.part[0] - 1 :: options.part[1]]
        self._mine = numbers  # of the shards of this run's part
        self._total = sum(len(plan.shards[number]) for number in numbers)

    def make(self, *, overwrite: bool) -> PackReport:
        """Build the pack and publish it; or write one part of its shards."""
        finished = self.write()
        if self.options.part is None:
            return self._publish(finished, overwrite=overwrite)
        skipped = assembly.list_skipped(finished)
        size = sum(size for shard in finished for _, size, _ in shard.files())
        nothing = assembly.PackFiles([], "", size, [], None)
        return self._report(finished, skipped, self._list_skipped(skipped), nothing)

    def write(self) -> list[Index]:
        """Write the shards that are missing, into `built`, or the journal's folder if a part."""
        options, journal = self.options, self._journal
        self._begin()
        if not options.skip and self.plan.listing.unlisted:  # told before images are read for hours
            unlisted = [Skip(*pair) for pair in self.plan.listing.unlisted]
            raise self._bad_images(unlisted, "so far, as no image has been checked yet ")
        missing = self._missing()
        check_space(self.plan, self.out, missing)
        bad = self._write_shards(missing)
        if not options.skip and bad:
            raise self._bad_images(bad)
        finished = []
        for number in self._mine:
            shard = journal.find(number)
            if shard is None and options.engine != "local" and number in missing:
                shard = journal.wait_for(number)
            if shard is None or not (options.part or journal.settle(shard, self.shop.built)):
                raise OutputError(f"{self.out}: shard {number} is gone from {self.shop.folder}")
            finished.append(shard)
        if options.part is None:
            # other files in the built pack are of a run that was killed, as half an index
            kept = {name.partition("/")[0] for shard in finished for name, _, _ in shard.files()}
            for path in list(self.shop.built.iterdir()):
                if path.name not in kept:
                    files.remove(path)
        return finished

    def check_journal(self) -> None:
        """Refuse shards of another plan, or to finish shards that lack bad samples."""
        journal, options = self._journal, self.options
        if not journal.is_of_this_plan:
            theirs = Recipe.from_metadata({"recipe": journal.read_plan()[1]})
            differs = "; ".join(self.plan.own.differences(theirs)) or "files, format or shards"
            raise OutputExistsError(
                f"{self.out}: parts of another pack are in {self.shop.folder}; what differs: "
                f"{differs}; give the options that the parts were written with, or delete that "
                "folder to begin anew"
            )
        for number in range(journal.tasks if options.finish and not options.skip else 0):
            finished = journal.find(number)
            if finished is not None and (skipped := finished.metadata["skipped"]):
                raise OutputExistsError(
                    f"{self.out}: shard {number} was written without {len(skipped)} bad samples, "
                    f"as {ascii(skipped[0][0])[1:-1]} ({skipped[0][1]}); what differs: on_error; "
                    "give the --on-error that the parts were written with"
                )

    def _begin(self) -> None:
        """Keep the finished shards of the same plan in the journal; those of another plan go."""
        journal, part = self._journal, self.options.part
        if part is None and not journal.is_of_this_plan:
            journal.discard()
        self.check_journal()
        journal.begin(self.plan.own.as_json())
        if part is not None:  # for the run that finishes
            journal.folder.joinpath(_PART.format(*part)).touch()
        else:
            journal.sweep()
        self.shop.built.mkdir(exist_ok=True)

    def _missing(self) -> list[int]:
        """Numbers of the shards that are still to be written."""
        missing, journal = [], self._journal
        for number in self._mine:
            finished = journal.find(number)
            if finished is None or not self._is_reusable(finished, number):
                journal.forget(number)
                missing.append(number)
                continue
            self._resumed += 1
            self._before += len(self.plan.shards[number])
            self._before_bytes += finished.metadata["source_bytes"]
        if missing and self.options.finish:
            raise OutputError(
                f"{self.out}: {len(missing)} of {len(self._mine)} shards are not written yet "
                f"(number {missing[0]} first); {_advice(journal, missing)}"
            )
        return missing

    def _is_reusable(self, finished: Index, number: int) -> bool:
        """Tell whether a finished shard can be taken over: files and source are unchanged."""
        options, folder = self.options, self.options.quarantine
        is_quarantined = (
            folder is None
            or options.finish
            or (finished.metadata["quarantine"] == str(folder) and folder.is_dir())
        )
        if finished.metadata["skipped"] and not (options.skip and is_quarantined):
            return False
        if options.part is not None:
            return True  # the run that finishes will compare the contents
        part = self.plan.listing.part(self.plan.shards[number])
        known = finished.column(sameness.COLUMN).array()
        return self._journal.settle(finished, self.shop.built) and sameness.is_same(
            part, finished, known, self.plan.treatment
        )

    def _write_shards(self, missing: Sequence[int]) -> list[Skip]:
        """Write shards; return the bad samples of shards that are not finished because of them."""
        plan, options, journal = self.plan, self.options, self._journal
        name = "tally" if options.part is None else f"tally-{options.part[0]}"
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

        workers = min(options.workers, len(missing))
        with executors.start_engine(options.engine, workers) as engine, ExitStack() as stack:
            if isinstance(engine, cluster.Cluster):
                workers = min(max(1, engine.slots), len(missing))
                for file in scratch_files(plan.listing.open):  # where other machines see them
                    path = journal.folder / f"scratch-{secrets.token_hex(4)}"
                    stack.enter_context(file.copy_to(path))
                engine.show(cluster.check_run(plan, journal, options.quarantine))
            each = options._replace(
                engine="local", progress=None,  # which might not be sent to another process
                threads=options.threads or max(2, math.ceil(plan.treatment.threads / workers)),
                memory=None if options.memory is None else options.memory // workers,
            )  # fmt: skip
            tasks = [
                shards.Task(
                    number, self.name(number), plan.format, dict(plan.own.writing), journal, tally,
                    plan.listing.part(plan.shards[number]), plan.treatment, each,
                )
                for number in missing
            ]  # fmt: skip
            self._report_progress(tally)
            run_tasks(
                engine, shards.write, ((task,) for task in tasks), took, stop=tally.stop,
                step=lambda: self._report_progress(tally),
            )  # fmt: skip
        outcomes.sort()
        limit, bad = options.max_errors, sum(len(o.skipped) for o in outcomes)
        if limit is not None and max(bad, tally.total().bad) > limit:
            raise self._bad_images([s for o in outcomes for s in o.skipped], limit=limit)
        return [skip for o in outcomes if not o.finished for skip in o.skipped]

    def name(self, number: int) -> str:
        """Name of a shard, relative to the pack; "." if the pack is the shard."""
        if self.plan.is_sharded:
            suffix = self.out.suffix or self._container.caps.suffixes[0]
            return f"{self.out.stem}-{self.first + number:05d}{suffix}"
        return "." if self._container.caps.is_directory else self.out.name

    def _report_progress(self, tally: Tally) -> None:
        options, done = self.options, tally.total()
        if options.progress is None:
            return
        samples = self._before + done.samples
        complete, bad = samples >= self._total, len(self.plan.listing.unlisted) + done.bad
        stage = "publishing" if complete else "checking" if bad and not options.skip else "reading"
        options.progress(
            Progress(
                samples, self._total, self._before_bytes + done.size, self.plan.total_bytes, bad,
                time.monotonic() - options.began, stage,
            )
        )  # fmt: skip

    def _publish(self, finished: Sequence[Index], *, overwrite: bool) -> PackReport:
        plan, shop = self.plan, self.shop
        skipped = [Skip(*pair) for pair in (*plan.listing.unlisted, *plan.listing.dropped)]
        skipped += assembly.list_skipped(finished)
        listed = self._list_skipped(skipped)
        parts = f"{glob.escape(self.out.name)}.part-*{SKIPPED_SUFFIX}"
        for path in list(self.out.parent.glob(parts)):  # the new list has their lines
            path.unlink(missing_ok=True)
        if not any(shard.metadata["samples"] for shard in finished):
            raise SourceError(
                f"{plan.listing.root or 'the source'}: none of {len(skipped)} images can be "
                f"packed; the reasons are in {listed}"
            )
        shards = [self.name(number) for number in self._mine]
        assembled = assembly.write_index(
            plan, shards, finished, self._container, shop.built, self.out
        )
        names = None if assembly.is_folder(plan, self._container) else assembled.files
        shop.publish(names, self._old_files(), overwrite=overwrite)
        sameness.save(assembled.digest, assembled.identities)
        return self._report(finished, skipped, listed, assembled)

    def _old_files(self) -> list[str]:
        """Names of the files of the pack that is replaced, if that pack is a file."""
        index = self.out.name + INDEX_SUFFIX
        with suppress(PackioError):
            old = Index(self.out.with_name(index)).files()
            return [*(name for name, _, _ in old if "/" not in name), index]
        return []

    def _list_skipped(self, skipped: Sequence[Skip]) -> Path | None:
        """Write the list of skipped samples, if any, beside the pack; a part's has its number."""
        part = "" if self.options.part is None else f".part-{self.options.part[0]}"
        path = self.out.with_name(f"{self.out.name}{part}{SKIPPED_SUFFIX}")
        if not skipped:
            path.unlink(missing_ok=True)  # of an earlier run
            return None
        temporary = self.shop.folder / f"skipped{part}"
        temporary.write_text("".join(json.dumps(s.as_json()) + "\n" for s in skipped))
        temporary.replace(path)
        return path

    def _report(
        self, finished: Sequence[Index], skipped: Sequence[Skip], listed: Path | None,
        assembled: assembly.PackFiles,
    ) -> PackReport:  # fmt: skip
        listing = self.plan.listing
        packed = sum(shard.metadata["samples"] for shard in finished)
        return PackReport(
            out=self.out, format=self.plan.format, found=packed + len(skipped), packed=packed,
            skipped=tuple(skipped), classes=len(listing.classes),
            source_bytes=sum(shard.metadata["source_bytes"] for shard in finished),
            out_bytes=assembled.size, seconds=time.monotonic() - self.options.began,
            digest=assembled.digest, warnings=(*listing.warnings, *assembled.warnings),
            skipped_file=listed, part=self.options.part, resumed=self._resumed,
            quarantined=sum(shard.metadata["copied"] for shard in finished),
        )  # fmt: skip

    def _bad_images(
        self, skipped: Sequence[Skip], stage: str = "", *, limit: int | None = None
    ) -> BadImagesError:
        """List bad samples beside the pack; return the error. Or that of more than `limit`."""
        shown = [(os.fsdecode(s.key), s.reason) for s in skipped[:_SHOWN]]
        lines = "".join(f"\n  {ascii(key)[1:-1]}: {reason}" for key, reason in shown)
        more = f"\n  and {len(skipped) - _SHOWN} more" if len(skipped) > _SHOWN else ""
        if limit is not None:
            what = f"stopped, as more than {limit} images are bad"
        else:
            listed = self._list_skipped(skipped)
            what = (
                f"bad samples: {len(skipped)} {stage}(all listed in {listed}); "
                "mend them, or leave them out with --on-error skip"
            )
        error = BadImagesError(f"{self.out}: not packed, {what}:{lines}{more}")
        error.skipped = tuple(shown)
        return error


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
    return (
        f"run the same command with {shown}{more} instead of --finish (Slurm: sbatch "
        f"--array={','.join(map(str, parts))}), then --finish again"
    )
