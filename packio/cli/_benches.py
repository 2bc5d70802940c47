"""What all benchmarks on the command line do: measure, print, write JSON, draw a plot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
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
    plot: Path | None = None,
    draw: Callable[[Found, Path], None] | None = None,
) -> Found:
    """Run a benchmark and report what it found.

    Args:
        measure: Measures, and tells how far it is.
        show: Prints a result for people.
        as_json: Print JSON, in place of what `show` prints.
        quiet: Show no progress.
        plot, draw: File of the plot, and the function that draws the plot.

    Raises:
        OptionError, MissingPackageError: no such plot can be drawn.
        CannotCreateError: a file cannot be written.
    """
    if plot is not None:
        from packio.measuring.bench.plots import check_plot

        check_plot(plot)  # before minutes of measuring
    with ProgressLine(quiet=quiet) as progress:
        result = measure(progress)
    if as_json:
        print_json(result.as_dict())
    else:
        show(result)
    if plot is not None and draw is not None:
        draw(result, plot)
    return result
