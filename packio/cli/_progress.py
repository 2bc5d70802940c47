"""Progress of long work on stderr: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from packio.system.progress import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_PLAIN_SECONDS = 5.0  # between two plain lines


class ProgressLine:
    """Shows `Progress` values; a context manager that cleans up after itself.

    Args:
        quiet: Show nothing.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bar = _bar() if not quiet and sys.stderr.isatty() else None
        self._shown, self._stage = time.monotonic(), ""

    def __enter__(self) -> ProgressLine:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        """Show how far the work is."""
        if self._bar is not None:
            task = self._bar.task_ids[0]
            total = None if progress.stage == "listing" else progress.total
            self._bar.update(
                task, total=total, completed=progress.done, stage=progress.stage,
                rate=_rate(progress), bad=_bad(progress),
            )  # fmt: skip
        elif not self._quiet and (self._is_news(progress.stage) or self._is_time()):
            self._shown, self._stage = time.monotonic(), progress.stage
            print(_line(progress), file=sys.stderr, flush=True)

    def _is_news(self, stage: str) -> bool:
        return stage == "compiling" != self._stage

    def _is_time(self) -> bool:
        return time.monotonic() - self._shown >= _PLAIN_SECONDS


def _bar() -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    bar = Bar(
        TextColumn("{task.fields[stage]:>10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("[red]{task.fields[bad]}"),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task("", total=None, stage="listing", rate="", bad="")
    return bar


def _line(progress: Progress) -> str:
    if progress.stage == "listing":
        return f"listing, {progress.done:,} {_rate(progress)}"
    if progress.stage == "compiling":
        return f"compiling {_rate(progress)}"
    share = progress.done / max(progress.total, 1)
    text = f"{progress.stage} {progress.done:,}/{progress.total:,} ({share:.0%}), {_rate(progress)}"
    return f"{text}, {_bad(progress)}" if progress.bad else text


def _rate(progress: Progress) -> str:
    if progress.stage == "listing":
        return "files so far"
    if progress.stage == "compiling":
        return "the seekable writer, once …"
    seconds = max(progress.seconds, 1e-6)
    images, megabytes = progress.done / seconds, progress.done_bytes / seconds / 1e6
    return f"{images:,.0f} img/s, {megabytes:,.0f} MB/s"


def _bad(progress: Progress) -> str:
    return f"{progress.bad:,} bad" if progress.bad else ""
