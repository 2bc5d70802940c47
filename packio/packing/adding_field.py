"""`add_field` and `drop_field`: a named field joins a pack, or leaves it; other files stay.

The values are made in parts, which lie in the workshop ``PACK.packio-add`` and outlive a run that
is cut short. Then they are written into containers of the pack's own format, one for each shard,
beside the shards. At last a new index takes the place of the old index in one step. Until then
nothing changes for readers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from pathlib import Path
from typing import Any

from packio.errors import (
    CannotCreateError,
    OptionError,
    SourceError,
    UnfinishedPackError,
)
from packio.formats import added_shard
from packio.packing import sourcing
from packio.packing.fields import containers, parts, values
from packio.packing.plan import existing
from packio.packing.publish import fields as publishing
from packio.packing.run import executors
from packio.packs import opening
from packio.sample import fields, levels
from packio.sample.record import IMAGE
from packio.storage import urls, workshop
from packio.storage.workshop import Workshop
from packio.system import interrupts
from packio.system.files import absolute, remove
from packio.system.pools import ThreadPool
from packio.system.progress import PROGRESS_SECONDS, Progress, ProgressCallback

SUFFIX = ".packio-add"  # of the workshop: it does not bar readers
_PLAN = "plan"
_THREADS = 4  # that read files in this process


@dataclasses.dataclass(frozen=True, slots=True)
class AddReport:
    """What adding a field did.

    Attributes:
        out: The pack.
        name: Of the field.
        kind: Of the field.
        samples: Samples that have a value.
        missing: Samples that have none.
        skipped: Key and reason of each bad value that was left out.
        unused: Files or keys of the source that no sample has.
        bytes: Bytes of the values.
        resumed: Samples whose values an earlier run had made.
        digest: Hexadecimal SHA-256 of the new index.
        seconds: Duration of the whole run.
    """

    out: Path
    name: str
    kind: str
    samples: int
    missing: int
    skipped: tuple[tuple[str, str], ...]
    unused: tuple[str, ...]
    bytes: int
    resumed: int
    digest: str
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class DropReport:
    """What dropping a field did.

    Attributes:
        out: The pack.
        name: Of the field.
        removed: Files that held nothing else, and are gone.
        freed: Bytes of these files.
        remaining: Bytes of values that stay in files that hold other fields, too.
        digest: Hexadecimal SHA-256 of the new index.
    """

    out: Path
    name: str
    removed: tuple[str, ...]
    freed: int
    remaining: int
    digest: str


def add_field(
    path: str | os.PathLike[str],
    name: str,
    values: str | os.PathLike[str] | Mapping[Any, Any] | Callable[[Any], Any],
    *,
    kind: str | None = None,
    workers: int = 0,
    missing: bool = False,
    overwrite: bool = False,
    resume: bool = True,
    on_error: str = "raise",
    progress: ProgressCallback | None = None,
) -> AddReport:
    """Add a named field to all samples of a pack, as captions or cached latents.

    The files of the pack stay as they are. The values go into new files of the pack's format, beside
    each shard, which other programs read as they read the shards. The pack's readers see the field
    when all is there. A run that is cut short leaves ``path.packio-add``; the next run with the same
    values takes over what is in it.

    Args:
        path: A pack on a disk of this machine that packio made, or that has been reindexed.
        name: Of the field.
        values: Where its values come from:

            * a folder with files named by the key of the sample, with another ending or one more:
              the latent of ``cats/7.jpg`` is ``cats/7.npy`` or ``cats/7.jpg.npy``;
            * a mapping from keys to arrays, text or bytes;
            * a table (.csv, .tsv, .jsonl, .parquet) with a column ``key`` and one called ``name``;
            * a callable that takes a `Sample`, whose image is decoded when it is asked for, and
              returns an array, a tensor, text, bytes, or None for no value.
        kind: "image", "mask", "array", "text" or "bytes"; None: by the values, or the endings of
            files.
        workers: Processes that call the callable, which is then sent by its name; 0: it is called
            in this process, by one thread, as a model on a GPU wants.
        missing: Allow samples without a value.
        overwrite: Replace a field of this name. It leaves the pack once all new values are made,
            then the new field joins the pack.
        resume: Take over what an earlier run with the same values has made. Of a callable only the
            name is compared, not what it does; False begins anew.
        on_error: "raise": stop at the first bad value. "skip": its sample has no value, which needs
            ``missing``.
        progress: Called with a `Progress` about ten times a second, and at the end.

    Raises:
        OptionError: the name is taken or reserved, the pack is remote, a selection, or in a
            container that packio does not write; a callable that has no name is to go to workers.
        SourceError: some samples have no value, and ``missing`` is not set.
        BadImagesError: a value is bad, or the callable fails; the message names the sample.
        CannotCreateError, OutputError, OutputExistsError: the pack cannot be written to.
        LockedError: another process changes the pack.
    """
    began = time.monotonic()
    if on_error not in ("raise", "skip"):
        raise OptionError(f"on_error={on_error!r}: expected 'raise' or 'skip'")
    if kind is not None:
        fields.check_kind(kind)
    if name == IMAGE:
        raise OptionError("'image' cannot be added: every sample has its image; choose another name")
    fields.check_name(name)
    sourcing.check_positive(workers=workers or None)
    _check_can_be_sent(values, workers)
    with _changing(path) as (shop, pack):
        job = _Job(shop, pack, name, kind, on_error == "skip", missing, workers, progress, began)
        if name in pack.fields and not overwrite:
            shop.keep = False
            raise OptionError(
                f"{pack.path}: has a field {name!r} already; choose another name, say --overwrite, "
                f"or drop it first: packio drop-field {pack.path} {name}"
            )
        return job.run(values, resume=resume)


def drop_field(path: str | os.PathLike[str], name: str) -> DropReport:
    """Take a named field out of a pack. Files that hold nothing else are removed.

    The index without the field takes the place of the old index in one step; then the files are
    removed. Values that lie among those of other fields stay there, unseen.

    Args:
        path: The pack.
        name: Of the field; the image, and levels of it, cannot be dropped.

    Raises:
        OptionError: there is no such field, or it cannot be dropped; or as of `add_field`.
        CannotCreateError, OutputError: the pack cannot be written to.
        LockedError: another process changes the pack.
    """
    with _changing(path) as (shop, pack):
        shop.keep = False
        _check_droppable(pack, name)
        sizes = {file: size for file, size, _ in pack.index_file.files()}
        digest, removed, remaining = publishing.drop(pack, name, shop)
        freed = sum(sizes[file] for file in removed)
        return DropReport(pack.path, name, tuple(removed), freed, remaining, digest)


def _check_droppable(pack: opening.Pack, name: str) -> None:
    if name == IMAGE or levels.divisor_of(name):
        raise OptionError(
            f"{name!r} cannot be dropped: it is the image, or a level that is made of it; pack "
            "again for other images, or convert with --levels 0"
        )
    if name not in pack.fields:
        others = ", ".join(n for n in pack.fields if n != IMAGE) or "none besides the image"
        raise OptionError(f"{pack.path}: has no field {name!r}; it has {others}")


def _check_can_be_sent(given: Any, workers: int) -> None:
    """Refuse a callable that workers cannot import."""
    if not callable(given) or workers < 1:
        return
    name = getattr(given, "__qualname__", "<")
    if "<" in name or getattr(given, "__module__", "__main__") == "__main__":
        raise OptionError(
            f"{getattr(given, '__qualname__', given)}: workers import a function by its name; "
            "define it at the top of a module that can be imported, or say workers=0"
        )


@contextlib.contextmanager
def _changing(path: str | os.PathLike[str]) -> Iterator[tuple[Workshop, opening.Pack]]:
    """Open a pack that is about to be changed, locked.

    Errors leave the journal, so that the next run goes on.
    """
    if isinstance(url := urls.place(path), urls.Url):
        raise OptionError(
            f"{url}: a pack at a URL is not changed; copy it to a disk (packio convert {url} "
            "here.tar), change it there, and upload it"
        )
    out = absolute(path)
    failure: Exception | None = None
    with _opened(out) as pack:  # say what is wrong before a workshop is made
        _check_changeable(pack)
        root = pack.index_file.path
    with workshop.opened(out, suffix=SUFFIX) as shop:
        shop.built.mkdir(exist_ok=True)  # without it the workshop counts as published
        with existing.locked(root), _opened(out) as pack:
            publishing.undo_killed(pack, shop)
            try:
                yield shop, pack
                shop.keep = False
            except Exception as error:  # the journal stays, whatever the user's function raises
                if isinstance(error, OSError) and not isinstance(error, SourceError):
                    raise
                failure = error
    if failure is not None:
        raise failure


def _opened(out: Path) -> opening.Pack:
    try:
        return opening.open(out)
    except UnfinishedPackError:
        workshop.check_idle(out)
        raise


def _check_changeable(pack: opening.Pack) -> None:
    if chosen := pack.metadata.get("selection"):
        raise OptionError(f"{pack.path}: a selection; change its pack, {chosen['pack']}")
    caps, root = pack.format.caps, pack.index_file.path.parent
    names = [name for name, _, _ in pack.index_file.files()]
    if caps.whole_files or not caps.writes:
        raise OptionError(
            f"{pack.path}: packio does not write containers of this format; make a pack of it "
            f"first: packio convert {pack.path} NEW.tar"
        )
    if not names or not os.path.lexists(root / names[0]):
        raise OptionError(
            f"{pack.path}: has no index beside it, which would tell of the field; make one first: "
            f"packio reindex {pack.path}"
        )
    if pack.index_file.metadata.get("access", "range") != "range":
        raise OptionError(
            f"{pack.path}: its samples are no ranges of bytes; make a pack of it first: packio "
            f"convert {pack.path} NEW{pack.path.suffix}"
        )
    for place in (root, pack.index_file.path):
        if not os.access(place, os.W_OK):
            raise CannotCreateError(
                f"{place}: may not be written to by this user; ask for the right, or change a copy"
            )


class _Job:
    """One field that is added.

    Args:
        shop: The workshop.
        pack: The pack, locked.
        name, kind: Of the field; None: by the values.
        skip: Leave bad values out.
        missing: Allow samples without a value.
        workers: Processes, 0 for this one.
        progress: Callback, or None.
        began: Time when the run began, by `time.monotonic`.
    """

    def __init__(
        self, shop: Workshop, pack: opening.Pack, name: str, kind: str | None, skip: bool,
        missing: bool, workers: int, progress: ProgressCallback | None, began: float,
    ) -> None:  # fmt: skip
        self.shop, self.pack, self.name, self.kind = shop, pack, name, kind
        self._skip, self._missing, self._workers = skip, missing, workers
        self._progress, self._began, self._called = progress, began, -math.inf

    def run(self, given: Any, *, resume: bool) -> AddReport:
        """Make the values, write the containers, publish the index."""
        keys = [self.pack.key_bytes(row) for row in range(len(self.pack))]
        found = values.of(given, self.name, keys, self.kind)
        if found.function is None and not self._missing:
            self._refuse([k for k in keys if found.known.get(k) is None], found.unused)
        self._begin(found, keys, resume=resume)
        resumed = self._make(found, keys)
        kind, absent, skipped, size = self._taken_stock(found, keys)
        if self.name in self.pack.fields:
            publishing.drop(self.pack, self.name, self.shop)
            with _opened(self.pack.path) as pack, existing.locked(pack.index_file.path):
                self.pack = pack
                digest = self._publish(kind, keys)
        else:
            digest = self._publish(kind, keys)
        return AddReport(
            self.pack.path, self.name, kind, len(keys) - absent, absent, tuple(skipped),
            tuple(found.unused), size, resumed, digest, time.monotonic() - self._began,
        )  # fmt: skip

    def _begin(self, found: values.Values, keys: Sequence[bytes], *, resume: bool) -> None:
        """Keep the parts of the same values; remove others."""
        shards = containers.rows_of_shards(self.pack)
        digest = hashlib.sha256(f"{self.name} {self.kind} {found.digest} {shards}".encode())
        for key in keys:
            digest.update(b"%d %s" % (len(key), key))
        digest.update(self.pack.index_file.column("image/crc32c").array().tobytes())
        plan, folder = self.shop.shards / _PLAN, self.shop.shards
        now = digest.hexdigest()
        if not resume or not plan.exists() or plan.read_text() != now:
            remove(folder)
            remove(self.shop.built)
            folder.mkdir()
            self.shop.built.mkdir()
            parts.write_whole(plan, now.encode())

    def _make(self, found: values.Values, keys: Sequence[bytes]) -> int:
        """Make the values that are not there yet; return how many samples need none."""
        folder = self.shop.shards
        for first, stop, path in parts.there(folder):
            part = parts.read(path)
            bad = part is None or (part.problems and not self._skip)
            lacks = part is not None and not part.present.all() and not self._missing
            if bad or lacks or stop > len(keys) or first >= stop:
                path.unlink()
                for note in folder.glob("container-*.packio"):
                    note.unlink()
        there = parts.there(folder)
        ranges = list(parts.lacking(there, len(keys)))
        resumed = len(keys) - sum(stop - first for first, stop in ranges)
        if not ranges:
            return resumed
        tasks = [
            parts.Task(
                folder, self.pack.path.absolute(), self.pack.digest, first, stop, self.name,
                self.kind, found.function,
                [found.known.get(k) for k in keys[first:stop]] if found.function is None else (),
                self._skip,
            )
            for first, stop in ranges
        ]  # fmt: skip
        threads = 1 if found.function is not None else _THREADS
        workers = min(self._workers, len(tasks))
        with self._engine(workers, threads) as engine:
            self._carry_out(engine, parts.make, tasks, resumed, len(keys), "reading")
        return resumed

    @contextlib.contextmanager
    def _engine(self, workers: int, threads: int) -> Iterator[Executor]:
        if workers > 1:
            with executors.started("local", workers) as engine:
                yield engine
        else:
            with ThreadPool(threads, "packio-field") as pool:
                yield pool

    def _carry_out(
        self, engine: Executor, function: Callable[[Any], int], tasks: Sequence[Any], done: int,
        total: int, stage: str,
    ) -> None:  # fmt: skip
        """Run tasks, and report the progress meanwhile. The first error ends all."""
        waiting = list(reversed(tasks))
        running: set[Future[int]] = set()
        try:
            while waiting or running:
                while waiting and len(running) < 2 * max(self._workers, _THREADS):
                    running.add(engine.submit(function, waiting.pop()))
                with interrupts.deferred():
                    ended, running = wait(running, PROGRESS_SECONDS, FIRST_COMPLETED)
                done += sum(future.result() for future in ended)
                self._tell(done, total, stage)
        except BaseException:
            for future in running:
                future.cancel()
            raise

    def _tell(self, done: int, total: int, stage: str) -> None:
        now = time.monotonic()
        if self._progress is None or (done < total and now - self._called < PROGRESS_SECONDS):
            return
        self._called = now
        self._progress(Progress(done, total, 0, 0, 0, now - self._began, stage))

    def _taken_stock(
        self, found: values.Values, keys: Sequence[bytes]
    ) -> tuple[str, int, list[tuple[str, str]], int]:
        """Kind of the field, samples without a value, bad values, and bytes of all."""
        kinds: dict[str, int] = {}
        skipped, size = list[tuple[str, str]](), 0
        absent = list[bytes]()
        for first, _, path in parts.there(self.shop.shards):
            part = parts.read(path)
            if part is None:
                raise OSError(f"{path}: is damaged; run the command again")
            if part.kind is not None:
                kinds.setdefault(part.kind, first)
            bad = {row for row, _, _ in part.problems}
            skipped += [(key, why) for _, key, why in part.problems]
            size += len(part.data)
            rows = [first + i for i in (~part.present).nonzero()[0].tolist()]
            absent += [keys[row] for row in rows if row not in bad or not self._missing]
        if len(kinds) > 1:
            rows = [f"{kind} ({os.fsdecode(keys[row])!r})" for kind, row in kinds.items()]
            raise SourceError(
                f"{self.pack.path}: values of {self.name} are of several kinds: {', '.join(rows)}; "
                "say which: kind=…"
            )
        if not self._missing:
            self._refuse(absent, found.unused)
        if not kinds:
            raise SourceError(f"{self.pack.path}: no sample has a value of {self.name}")
        return next(iter(kinds)), len(absent) + (len(skipped) if self._missing else 0), skipped, size

    def _refuse(self, absent: Sequence[bytes], unused: Sequence[str]) -> None:
        """Refuse samples without a value."""
        if not absent:
            return
        more = f"; {len(unused):,} values are of no sample: {values.shown(unused)}" if unused else ""
        raise SourceError(
            f"{self.pack.path}: {len(absent):,} of {len(self.pack):,} samples have no value of "
            f"{self.name}: {values.shown([os.fsdecode(key) for key in absent])}{more}; give them "
            "one, or allow it with --missing"
        )

    def _publish(self, kind: str, keys: Sequence[bytes]) -> str:
        """Write the containers that are not written yet, and put the index in place."""
        folder, built = self.shop.shards, self.shop.built
        tasks = []
        for number, (shard, first, stop) in enumerate(containers.rows_of_shards(self.pack)):
            path = added_shard(self.pack.format, shard, self.name, kind)
            publishing.check_free(self.pack, [path])
            done = containers.finished(folder, number)
            if done is None or not containers.is_whole(done, built):
                tasks.append(
                    containers.Task(
                        number, path, self.pack.metadata["format"], self.name, kind, first, stop,
                        list(keys[first:stop]), folder, built,
                    )  # fmt: skip
                )
        total = sum(task.stop - task.first for task in tasks)
        with self._engine(self._workers, 1) as engine:
            self._carry_out(engine, containers.write, tasks, 0, total, "publishing")
        count = len(containers.rows_of_shards(self.pack))
        found = [containers.finished(folder, number) for number in range(count)]
        whole = [one for one in found if one is not None]
        if len(whole) < count:
            raise OSError(f"{folder}: a container is gone; run the command again")
        return publishing.add(self.pack, self.name, kind, whole, self.shop)
