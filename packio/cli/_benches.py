"""What all benchmarks on the command line do: measure, print, write JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from packio.cli._output import print_json
from packio.cli._progress import ProgressLine
from packio.system.progress import ProgressCallback

Found = TypeVar("Found", bound=Any)  # has as_dict()


def run_bench(
    measure: Callable[[ProgressCallback], Found],
    show: Callable[[Found], None],
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run a benchmark, and print what it found, for people by `show`, or as JSON."""
    with ProgressLine(quiet=quiet) as progress:
        result = measure(progress)
    if as_json:
        print_json(result.as_dict())
    else:
        show(result)
