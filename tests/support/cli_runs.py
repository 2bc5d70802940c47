"""Commands of packio within the process of the test."""

from __future__ import annotations

import logging
import signal
import sys
import warnings
from typing import TYPE_CHECKING, NamedTuple

import pytest

from packio.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable


class Done(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """Run ``packio`` with some words."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def run(*words: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["packio", *map(str, words)])
        level, handler = logging.getLogger("PIL").level, signal.getsignal(signal.SIGINT)
        capsys.readouterr()
        try:
            with warnings.catch_warnings():
                main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        finally:
            logging.getLogger("PIL").setLevel(level)
            signal.signal(signal.SIGINT, handler)
        return Done(code, *capsys.readouterr())

    return run
