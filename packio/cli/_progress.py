"""Progress of long work on stderr: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from packio.packing.report import Progress

_PLAIN_SECONDS = 5.0  # between two plain lines


class ProgressLine:
    """Shows `Progress` values; a context manager that cleans up after itself.

    Args:
        quiet: Show nothing.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._live = not quiet and sys.stderr.isatty()
        self._shown = time.monotonic()
        self._width = 0

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live and self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()

    def __call__(self, progress: Progress) -> None:
        """Show how far the work is."""
        if self._live:
            text = _bar(progress)
            padding = " " * max(0, self._width - len(text))
            sys.stderr.write(f"\r{text}{padding}")
            sys.stderr.flush()
            self._width = len(text)
        elif not self._quiet and time.monotonic() - self._shown >= _PLAIN_SECONDS:
            self._shown = time.monotonic()
            print(_line(progress), file=sys.stderr, flush=True)


def _bar(progress: Progress, width: int = 24) -> str:
    filled = round(width * progress.done / max(progress.total, 1))
    return f"[{'#' * filled}{'.' * (width - filled)}] {_line(progress)}"


def _line(progress: Progress) -> str:
    seconds = max(progress.seconds, 1e-6)
    share = progress.done / max(progress.total, 1)
    text = (
        f"{progress.stage} {progress.done:,}/{progress.total:,} ({share:.0%})  "
        f"{progress.done / seconds:,.0f} img/s  {progress.done_bytes / seconds / 1e6:,.0f} MB/s"
    )
    if 0 < share < 1:
        text += f"  ETA {_duration(seconds / share - seconds)}"
    return text + (f"  bad {progress.bad:,}" if progress.bad else "")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
