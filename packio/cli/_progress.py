"""Show on stderr how far long work is: a bar on a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from packio.cli._output import tell
from packio.system.progress import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_PLAIN_SECONDS = 5.0  # between two plain lines


class ProgressLine:
    """Shows `Progress` values, unless `quiet`; a context manager that wipes the bar away."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bar = _bar() if not quiet and sys.stderr and sys.stderr.isatty() else None
        self._shown = time.monotonic()

    def __enter__(self) -> ProgressLine:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        """Show how far the work is."""
        if self._bar is not None:
            total = None if progress.stage == "listing" else progress.total
            self._bar.update(
                self._bar.task_ids[0], total=total, completed=progress.done, stage=progress.stage,
                rate=_rate(progress), bad=_bad(progress),
            )  # fmt: skip
        elif not self._quiet and time.monotonic() - self._shown >= _PLAIN_SECONDS:
            self._shown = time.monotonic()
            tell(_line(progress))

    def counting(self, stage: str) -> Callable[[int, int], None]:
        """A callback of (samples done, samples in all) for work that counts nothing else."""
        began = time.monotonic()

        def told(done: int, total: int) -> None:
            self(Progress(done, total, 0, 0, 0, time.monotonic() - began, stage))

        return told


def _bar() -> Bar:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    bar = _bar_of(
        TextColumn("{task.fields[stage]:>10}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"), TimeRemainingColumn(),
        TextColumn("[red]{task.fields[bad]}"),
    )  # fmt: skip
    bar.add_task("", total=None, stage="listing", rate="", bad="")
    return bar


def _bar_of(*columns: Any) -> Bar:
    from rich.console import Console
    from rich.progress import Progress as Bar

    return Bar(*columns, console=Console(stderr=True), transient=True)


@contextlib.contextmanager
def bytes_bar(*, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Give a callback of (bytes done, bytes in all) that draws a bar; None if not on a terminal."""
    if quiet or not sys.stderr or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, TransferSpeedColumn

    with _bar_of(BarColumn(), DownloadColumn(), TransferSpeedColumn()) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _line(progress: Progress) -> str:
    if progress.stage == "listing":
        return f"listing, {progress.done:,} {_rate(progress)}"
    share = progress.done / max(progress.total, 1)
    text = f"{progress.stage} {progress.done:,}/{progress.total:,} ({share:.0%}), {_rate(progress)}"
    return f"{text}, {_bad(progress)}" if progress.bad else text


def _rate(progress: Progress) -> str:
    if progress.stage == "listing":
        return "files so far"
    seconds = max(progress.seconds, 1e-6)
    images, megabytes = progress.done / seconds, progress.done_bytes / seconds / 1e6
    if not progress.total_bytes:  # the work counts no bytes
        return f"{images:,.0f} samples/s"
    return f"{images:,.0f} img/s, {megabytes:,.0f} MB/s"


def _bad(progress: Progress) -> str:
    return f"{progress.bad:,} bad" if progress.bad else ""
