"""The three standard streams, made fit for every command before one runs."""

from __future__ import annotations

import codecs
import io
import os
import sys

from packio.errors import as_bytes

_SHOWN = "packio-shown"  # name of the error handler


def prepare() -> None:
    r"""Put the null device in the place of closed streams, and let all names be printed.

    A file that is opened after ``>&-`` would get the descriptor of standard output, and with it
    whatever a library prints there. A byte that is no text is shown as ``\xff``.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, _nowhere(descriptor))
    codecs.register_error(_SHOWN, _shown)
    if type(sys.stdout) is io.TextIOWrapper and isinstance(sys.stdout.buffer, io.RawIOBase):
        # PYTHONUNBUFFERED: text that a full disk takes in part only would pass for written
        encoding, raw = sys.stdout.encoding, sys.stdout.detach()
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), encoding, line_buffering=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_SHOWN)


def _nowhere(descriptor: int) -> io.TextIOWrapper:
    opened = os.open(os.devnull, os.O_RDWR)  # the lowest that is free, so mostly this one
    if opened == descriptor:
        os.set_inheritable(descriptor, True)
    return open(opened, "r" if descriptor == 0 else "w", closefd=False)


def _shown(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(as_bytes, error.object[error.start : error.end])), error.end
