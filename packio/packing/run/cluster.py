"""A Ray cluster as an engine: tasks go to its nodes, which may die, and may be added meanwhile.

A node that does not see the source would call each image unreadable. With ``on_error="skip"`` its
images would be left out without a word. So this process reads a few samples, and each process on a
node must read the same bytes, with the same packio, before its first task. A node may also lose the
source while it packs, and then calls images unreadable; so a process that leaves samples out shows
it once more.

Ray tries a task again if its worker or its node dies. If no node is left, Ray would wait for ever;
packio waits for `WAIT_VARIABLE` seconds, because a cloud may be starting nodes.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from packio import __version__, registry
from packio.errors import OptionError, OutputError, PackioError, ReadError, WorkerDiedError
from packio.images import native
from packio.index.indexfile import crc32c
from packio.packing.images import encode
from packio.packing.planning import Plan
from packio.packing.run.reading import read_one
from packio.sample.recipe import Recipe
from packio.sources import Listing
from packio.storage import stores
from packio.storage.journal import Journal
from packio.storage.store import Facts
from packio.storage.urls import Url
from packio.system import memory

WAIT_VARIABLE = "PACKIO_RAY_WAIT"  # seconds that packio waits for a node if none is left
_WAIT = 300.0
_RETRIES = 3  # by Ray, of a task whose worker dies
_HEAD_SECONDS = 30.0  # Ray ends this process without a word after 60 s without the head
_WATCH_SECONDS = 1.0
_END_SECONDS = 10.0  # to end tasks that are cancelled
_SAMPLES = 4  # that each node reads for a comparison
_seen: set[str] = set()  # references to what this process, on a node, has shown that it sees


# Tells what the process that calls it cannot see, of what this one sees; "" if it sees the same. It
# pickles.
NodeCheck = Callable[[], str]


def _find_trouble(recipe: Recipe, versions: Mapping[str, str], look: Callable[[], str]) -> str:
    mine = _versions(recipe)
    for name, version in versions.items():  # of all that decides the bytes
        if mine.get(name) != version:
            return f"{name} is {mine.get(name, 'missing')} there, {version} here"
    try:
        return look()
    except Exception as error:  # noqa: BLE001 (whatever the source's library raises)
        return str(error) or type(error).__name__


def _versions(recipe: Recipe) -> dict[str, str]:
    told = {"packio": __version__, **encode.versions(recipe)}
    if recipe.seek_points:  # which only the core finds
        told["the native core"] = "missing" if native.why_not() else "compiled"
    return told


def check_run(plan: Plan, journal: Journal, quarantine: Path | None) -> NodeCheck:
    """Look at the source and the journal of a packing run."""
    if quarantine is not None:  # nodes must find it: each would make a folder of its own
        quarantine.mkdir(parents=True, exist_ok=True)
    listing, count = plan.listing, len(plan.listing.keys)
    steps = max(1, min(count, _SAMPLES) - 1)
    positions = {i * (count - 1) // steps for i in range(steps + 1)} if count else ()
    few = listing.take(sorted(positions)).part(range(len(positions)))
    found = {i: crc for i, crc in enumerate(_read(few)) if isinstance(crc, int)}
    look = functools.partial(
        _look_at_run, few.take(list(found)), tuple(found.values()), journal.plan_file,
        journal.digest, quarantine,
    )  # fmt: skip
    return functools.partial(_find_trouble, plan.own, _versions(plan.own), look)


def _look_at_run(
    samples: Listing, checksums: tuple[int, ...], plan: Path, digest: str, quarantine: Path | None
) -> str:
    try:
        if not plan.read_text().startswith(digest):
            return f"{plan} belongs to another run there"
        with tempfile.TemporaryFile(dir=plan.parent):
            pass
    except OSError as error:
        return f"{plan.parent}: {error.strerror}"
    if quarantine is not None and not quarantine.is_dir():
        return f"{quarantine}: no such folder there"
    try:
        found = _read(samples)
    except PackioError:
        raise
    except OSError as error:
        return f"{error.filename or samples.root}: {error.strerror}"
    for key, wanted, seen in zip(samples.keys, checksums, found, strict=True):
        if seen != wanted:
            what = seen if isinstance(seen, str) else "has other bytes there"
            return f"{os.path.join(samples.root or '', os.fsdecode(key))}: {what}"
    return ""


def _read(samples: Listing) -> list[int | str]:
    """CRC32C of the image of each sample, or the reason why the sample is bad."""
    with samples.open_records() as read:
        reads = [read_one(samples, read, i) for i in range(len(samples.keys))]
    return [r.problem or crc32c(r.record.image.data) for r in reads]


def check_object(url: Url, facts: Facts, *, seek_points: bool) -> NodeCheck:
    """What this process sees of a container at URLs: what the service says of an object."""
    recipe = Recipe(seek_points=seek_points)
    look = functools.partial(_look_at_object, url, facts)
    return functools.partial(_find_trouble, recipe, _versions(recipe), look)


def _look_at_object(url: Url, facts: Facts) -> str:
    now = stores.file_facts(url)
    return "" if now[:2] == facts[:2] else f"{url}: another object"


@contextlib.contextmanager
def connect(address: str | None) -> Iterator[Cluster]:
    """Connect to a cluster, unless this process is connected; disconnect at the end."""
    ray = registry.require("ray", "ray")
    ours = not ray.is_initialized()
    if ours:
        try:
            ray.init(
                address=address, log_to_driver=False, include_dashboard=False,
                logging_level=logging.WARNING,
            )  # fmt: skip
        except (ConnectionError, TimeoutError, RuntimeError, ValueError) as error:
            raise OptionError(f"engine='ray:{address or ''}': {_line(error)}") from error
    cluster = Cluster(ray)
    try:
        yield cluster
    finally:
        cluster.shutdown(cancel_futures=True)
        if ours and not cluster.headless:
            ray.shutdown()


class Cluster(Executor):
    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._remote = ray.remote(max_retries=_RETRIES)(_outcome)
        self._running: dict[Future[Any], Any] = {}  # of tasks, and Ray's references to them
        self._check: list[Any] = []  # a reference, within a list so that Ray does not fetch it
        self._closed = threading.Event()
        self.headless = False  # the head of the cluster is gone: Ray must not be asked any more
        text = os.environ.get(WAIT_VARIABLE, "")
        try:
            self._wait = float(text) if text else _WAIT
        except ValueError:
            raise OptionError(f"{WAIT_VARIABLE}={text!r}: expected seconds") from None
        memory.require_thread()
        threading.Thread(target=self._watch, name="packio-cluster", daemon=True).start()

    @property
    def slots(self) -> int:
        """Number of tasks that the nodes which are alive can run at a time."""
        return int(self._ray.cluster_resources().get("CPU", 0))

    def show(self, check: NodeCheck) -> None:
        """Have each process on a node compare what it sees before its first task."""
        self._check = [self._put(check)]

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        reference = self._remote.remote(self._check, [self._put((fn, args, kwargs))])
        done = Future[Any]()
        done.set_running_or_notify_cancel()
        self._running[done] = reference
        reference.future().add_done_callback(lambda future: self._settle(future, done))
        return done

    def _put(self, value: Any) -> Any:
        try:
            return self._ray.put(value)
        except Exception as error:  # whatever the user's objects do
            raise OptionError(
                f"engine='ray': the source cannot be sent to other machines ({_line(error)}); "
                "pack it with engine='local'"
            ) from error

    def _settle(self, future: Future[Any], done: Future[Any]) -> None:
        error = future.exception()
        if isinstance(error, self._ray.exceptions.RayTaskError):
            _fail(done, ReadError(f"a node of the cluster cannot run packio: {_last(error)}"))
        elif error is not None:
            _fail(done, WorkerDiedError(f"a Ray worker died: {_line(error)}"))
        else:
            good, value = future.result()
            with contextlib.suppress(Exception):  # no node was left for long; one came back
                done.set_result(value) if good else done.set_exception(value)
        self._running.pop(done, None)

    def _watch(self) -> None:
        """Let the tasks fail if no node, or no head, is there for long."""
        last = [time.monotonic()] * 2  # when the head answered, when there was a node
        memory.require_thread()
        threading.Thread(target=self._look, args=(last,), daemon=True).start()
        while not self._closed.wait(_WATCH_SECONDS):
            now, why = time.monotonic(), ""
            if now - last[0] > _HEAD_SECONDS:
                self.headless = True
                why = "its head does not answer"
            elif now - last[1] > self._wait:
                why = f"it has had no node with a processor for {self._wait:g} s ({WAIT_VARIABLE})"
            if why:
                for done in list(self._running):
                    _fail(done, OutputError(
                        f"the Ray cluster cannot go on: {why}; finished shards stay, run it again"
                    ))  # fmt: skip

    def _look(self, last: list[float]) -> None:
        """Note when the head answered, and when there was a node. Without a head, Ray blocks."""
        while not self._closed.wait(_WATCH_SECONDS):
            with contextlib.suppress(Exception):  # counts as no answer
                slots = self.slots
                last[0] = time.monotonic()
                if slots:
                    last[1] = last[0]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel the tasks that are not done, if futures are cancelled, and wait for their end."""
        self._closed.set()
        references = list(self._running.values())
        if self.headless or not cancel_futures or not references:
            return
        for reference in references:
            self._ray.cancel(reference, force=True)
        if wait:
            self._ray.wait(references, num_returns=len(references), timeout=_END_SECONDS)


def _fail(done: Future[Any], error: Exception) -> None:
    with contextlib.suppress(Exception):  # settled meanwhile
        done.set_exception(error)


def _line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _last(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _outcome(checks: Sequence[Any], tasks: Sequence[Any]) -> tuple[bool, Any]:
    """Run a task on a node; return whether it succeeded, and its result or its exception."""
    import ray

    from packio.packing.run.executors import outcome

    if checks and (error := _blind(checks, again=False)):
        return False, error
    function, args, kwargs = ray.get(tasks[0])
    good, value = outcome(function, args, kwargs)
    doubtful = not good or getattr(value, "skipped", None)
    if checks and doubtful and (error := _blind(checks, again=True)):
        return False, error
    return good, value


def _blind(checks: Sequence[Any], *, again: bool) -> ReadError | None:
    """The error of a node that does not see all; None if it does."""
    import ray

    if not again and checks[0].hex() in _seen:
        return None
    try:
        check: NodeCheck = ray.get(checks[0])
        trouble = check()
    except Exception as error:  # noqa: BLE001 (as of a pack that is opened)
        trouble = _line(error).removeprefix("System error: ")
    if not trouble:
        _seen.add(checks[0].hex())
        return None
    return ReadError(
        "a node of the Ray cluster does not see what this machine sees; every node needs the same "
        "packio, and the same files or objects under the same names:\n  "
        f"{socket.gethostname()}: {trouble}"
    )
