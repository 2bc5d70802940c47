"""``packio bench-memory-format``: what transposed batches and memory formats cost here."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from packio.cli._output import print_table, write_results

if TYPE_CHECKING:
    from packio.measuring.bench.memory_format import Result, Row

_COLUMNS = ("part", "stage", "dtype", "images", "model", "ms", "spread", "of contiguous")


def run(
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda. Default: the GPU if there is one.")
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            metavar="float32|bfloat16|float16",
            help="Of the networks; repeatable. Default: float32, bfloat16 where it is fast.",
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Images a batch. Default: 8; on a GPU 128.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Of the images, pixels. Default: 112; on a GPU 224.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Times that each is measured; in turns.")] = 7,
    as_json: Annotated[
        str | None,
        typer.Option(
            "--json", metavar="FILE", help="Write everything as JSON; - is standard output."
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw it into this .png or .svg (packio\\[bench]).")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
) -> None:
    """Measure what a transposed batch, or a mix of memory formats, costs a model here.

    Two small convolutional networks run forward, and forward and backward ("step"), on the same
    images in different layouts; "data" is what a batch meets before. Figures are medians, the
    spread is that of the rounds. A batch of (N, H, W, C) that was permuted is channels_last.

    Example: packio bench-memory-format

    Example: packio bench-memory-format --device cuda --dtype bfloat16 --plot formats.svg
    """
    from packio import registry
    from packio.cli._progress import ProgressLine
    from packio.measuring.bench import memory_format
    from packio.measuring.bench._plots import plot_memory_formats

    if plot is not None:
        registry.require("matplotlib", "bench")  # before minutes of measuring
    with ProgressLine(quiet=quiet) as progress:
        result = memory_format.measure(
            device=device, dtypes=dtype or None, batch_size=batch_size, size=size, rounds=rounds,
            progress=progress,
        )  # fmt: skip
    if as_json != "-":
        _print(result)
    draw = functools.partial(plot_memory_formats, result, plot) if plot is not None else None
    write_results(result.as_dict(), as_json, draw)


def _print(result: Result) -> None:
    machine = result.machine
    on = machine["cpu"] if machine["device"] == "cpu" else machine["device"]
    print(
        f"batches of {result.batch_size} images of {result.size}x{result.size}; {on}, "
        f"{machine['threads']} threads, torch {machine['torch']}; {result.rounds} rounds"
    )
    print_table(_COLUMNS, [_cells(row) for row in result.rows], left=_COLUMNS[:5])


def _cells(row: Row) -> tuple[str, ...]:
    return (
        *row[:5],
        f"{row.milliseconds:,.3f}",
        f"{(row.slowest - row.fastest) / row.milliseconds:.0%}",
        f"{row.ratio:.2f} ({row.lowest:.2f} to {row.highest:.2f})",
    )
