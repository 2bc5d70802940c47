"""Print results on stdout, each name exactly, on one line; and on stderr how far long work is.

All that commands print goes through `printable`: nothing that a file holds reaches a terminal as it
is.
"""

from __future__ import annotations

import ast
import codecs
import contextlib
import dataclasses
import io
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from packio.errors import as_bytes, printable, without_credentials
from packio.system.progress import Progress
from packio.system.quantities import pluralize

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from packio.packing.planning import PackReport

_SHOWN = 10  # lines of a list
_PLAIN_SECONDS = 5.0  # between two plain lines of progress
_HANDLER = "packio-shown"  # name of the error handler of the streams
_NAMED_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_ARGUMENT = re.compile(  # or a call in Python, which stays as it is
    r"\b\w[\w.]*\((?:'[^']*'|\"[^\"]*\"|[^()'\"])*\)|"
    r"\b([a-z]\w*)=('[^']*'|\"[^\"]*\"|\([^()]*\)|\{[^{}]*\}|\[[^][]*\]|[^\s,:;()]+)"
)
_NAME = re.compile(r"\b([a-z]\w*)=(?=[\s,;:.)]|$)")  # of an argument, without a value
_BYTES = re.compile(r"(?<![\w'\"])b(?=['\"])")


def open_streams() -> None:
    r"""Put the null device in the place of closed streams, and let all names be printed.

    A file that is opened after ``>&-`` would get the descriptor of standard output, and with it
    whatever a library prints there. A byte that is no text is shown as ``\xff``.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest that is free, so mostly this one
            if opened == descriptor:
                os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(opened, "w" if descriptor else "r", closefd=False))
    codecs.register_error(_HANDLER, _escape_error)
    if type(sys.stdout) is io.TextIOWrapper and isinstance(sys.stdout.buffer, io.RawIOBase):
        # PYTHONUNBUFFERED: text that a full disk takes in part only would pass for written
        encoding, raw = sys.stdout.encoding, sys.stdout.detach()
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), encoding, line_buffering=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


def _escape_error(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(as_bytes, error.object[error.start : error.end])), error.end


def say(*lines: str, end: str = "\n") -> None:
    """Print lines on stdout."""
    sys.stdout.write(printable("\n".join(lines)) + end)


def say_title(line: str) -> None:
    """Print a line on stdout, bold on a terminal."""
    bold = typer.style(printable(line), bold=True)
    sys.stdout.write(f"{bold if sys.stdout.isatty() else printable(line)}\n")


def tell(line: str) -> None:
    """Print a line on stderr. If nobody reads stderr any more, the work goes on without it."""
    try:
        print(printable(line), file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def warn(warnings: Iterable[str]) -> None:
    """Print warnings on stderr, one a line."""
    for warning in warnings:
        tell(f"packio: warning: {as_typed(without_credentials(warning))}")


def discard(stream: TextIO) -> None:
    """Send a stream whose reader has left to nowhere, so that flushing it at exit succeeds."""
    with contextlib.suppress(OSError):  # of a stream without a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def until_reader_leaves() -> Iterator[None]:
    """Write all of stdout, or stop in silence when its reader has left (``| head``)."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)


def as_typed(message: str, options: Mapping[str, str] | None = None) -> str:
    """Put a message of the library into words of the command line.

    `options`: name of each argument → the option that sets it.

    >>> as_typed("num_workers=0: expected at least 1", {"num_workers": "--num-workers"})
    '--num-workers 0: expected at least 1'
    >>> as_typed("no sample b'a.png'")
    "no sample 'a.png'"
    """
    known = options or {}

    def typed(match: re.Match[str]) -> str:
        argument, value = match[1] or "", match[2]
        name = known.get(argument) or known.get(argument.removesuffix("s"))
        if name is None:
            return match[0]
        if value in ("None", "False", "[]", "{}"):
            return f"no {name}"
        return name if value == "True" else f"{name} {_value_as_typed(value)}"

    def named(match: re.Match[str]) -> str:
        return known.get(match[1]) or match[0]

    return _BYTES.sub("", _NAME.sub(named, _ARGUMENT.sub(typed, message)))


def _value_as_typed(text: str) -> str:
    """Put the text of a Python value into words of the command line: a=1,b=2 for a dict.

    >>> _value_as_typed("{'train': 0.9, 'val': 0.1}"), _value_as_typed("['a', 'b']")
    ('train=0.9,val=0.1', 'a,b')
    """
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):  # it is no Python, as a path
        return text.strip("'\"")
    if isinstance(value, dict):
        return ",".join(f"{name}={each}" for name, each in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def escape(name: bytes | str, encoding: str | None = None) -> str:
    r"""Show a key or the name of a class (bytes, or text with surrogate escapes) on one line.

    Backslashes, unprintable characters, those that the encoding (None: stdout's) lacks, and bytes
    that are not UTF-8 are written ``\\``, ``\n``, ``\t``, ``\r`` or ``\xNN``, one for each byte.
    """
    text = name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    encoding = encoding or sys.stdout.encoding or "utf-8"
    return "".join(_escaped_character(c, encoding) for c in text)


def _escaped_character(character: str, encoding: str) -> str:
    if character in _NAMED_ESCAPES:
        return _NAMED_ESCAPES[character]
    if character.isprintable():
        with contextlib.suppress(UnicodeEncodeError):
            character.encode(encoding)
            return character
    return as_bytes(character)


def print_table(header: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Print a table; no cell is cut off, however narrow the terminal is."""
    widths = [max(len(line[i]) for line in (header, *cells)) for i in range(len(header))]
    for line in (header, *cells):
        padded = (text.ljust(width) for text, width in zip(line, widths, strict=True))
        say("  ".join(padded).rstrip())


def print_json(values: Any) -> None:
    """Print a report (a dataclass), or what JSON takes, as JSON. Paths become text."""
    if dataclasses.is_dataclass(values) and not isinstance(values, type):
        values = dataclasses.asdict(values)
    say(json.dumps(values, default=str))


def print_some(lines: Sequence[str], remark: str = "") -> None:
    """Print the first 10 of some lines, and how many more there are."""
    shown = [f"  {line}" for line in lines[:_SHOWN]]
    if len(lines) > _SHOWN:
        shown.append(f"  and {len(lines) - _SHOWN:,} more {remark}".rstrip())
    say(*shown)


OPEN = "packio alone reads open coefficients; packio convert --encode file gives the JPEGs back"


def print_packed(
    report: PackReport, out: Path, *, as_json: bool, quiet: bool, encode: object = None
) -> None:
    """Print what a packing run did; its warnings go to stderr."""
    warn(report.warnings)
    if as_json:
        values = dataclasses.asdict(report)
        values["skipped"] = [skip.as_json() for skip in report.skipped]
        print_json(values)
    elif not quiet:
        _print_summary(report, out)
        if encode == "dct":
            say(OPEN)


def _print_summary(report: PackReport, out: Path) -> None:
    out = report.out if "://" in str(report.out) else out
    images = pluralize(report.packed, "image")
    if report.up_to_date:
        say(f"{out}: up to date ({images})")
        return
    if report.part is not None:
        say(f"{out}: part {report.part[0]} of {report.part[1]}: {images}. "
              "When all parts are written, run the same command with --finish")  # fmt: skip
        return
    if report.resumed:
        say(f"{out}: went on from {pluralize(report.resumed, 'finished shard')}")
    seconds = max(report.seconds, 1e-6)
    say(f"{out}: {images} in {pluralize(report.classes, 'class')}, "
        f"{report.source_bytes / 1e6:,.1f} MB of images in {report.out_bytes / 1e6:,.1f} MB, "
        f"{seconds:.1f} s ({report.packed / seconds:,.0f} img/s, "
        f"{report.source_bytes / seconds / 1e6:,.0f} MB/s)")  # fmt: skip
    if report.skipped:
        copied = f"; {report.quarantined:,} copied" if report.quarantined else ""
        say(f"{len(report.skipped):,} of {report.found:,} skipped, listed in "
              f"{report.skipped_file}{copied}")  # fmt: skip
    say(f"digest {report.digest}")


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
