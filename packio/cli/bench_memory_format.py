"""``packio bench-memory-format``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from packio.cli import _options as option
from packio.cli._output import counted, print_json, print_table, say
from packio.cli._progress import ProgressLine

if TYPE_CHECKING:
    from packio.measuring.bench.memory_format import MemoryFormatResult, MemoryFormatRow

_DTYPES = ("float32", "bfloat16", "float16")
_COLUMNS = ("part", "stage", "dtype", "images", "model", "ms", "spread", "of contiguous")


def run(
    device: Annotated[str | None, typer.Option(
        help="cpu or cuda (default: the GPU if there is one).")] = None,
    dtype: Annotated[list[str] | None, typer.Option(metavar="|".join(_DTYPES),
        autocompletion=lambda: list(_DTYPES), help="Data type of the networks; repeatable "
        "(default: float32, and bfloat16 if the device computes in it).")] = None,
    batch_size: Annotated[int | None, typer.Option(
        help="Images in a batch (default: 8; on a GPU 128).")] = None,
    size: Annotated[int | None, typer.Option(
        help="Side of the images, pixels (default: 112; on a GPU 224).")] = None,
    rounds: Annotated[int, typer.Option(help="Times to measure everything, in turns.")] = 7,
    as_json: option.Json = False,
    quiet: option.NoProgress = False,
) -> None:  # fmt: skip
    """Measure what a transposed batch, or a mix of memory formats, costs a model here.

    Two small convolutional networks run forward ("forward"), and forward and backward ("step"), on
    the same images in different layouts. "data" is the work on a batch before a network. Times are
    medians; the spread is that of the rounds. A permuted (N, H, W, C) batch is channels_last.

    Example: packio bench-memory-format

    Example: packio bench-memory-format --device cuda --dtype bfloat16
    """
    from packio.measuring.bench import memory_format

    with ProgressLine(quiet=quiet) as progress:
        result = memory_format.measure(
            device=device, dtypes=dtype or None, batch_size=batch_size, size=size, rounds=rounds,
            progress=progress,
        )  # fmt: skip
    print_json(result.as_dict()) if as_json else _print(result)


def _print(result: MemoryFormatResult) -> None:
    machine = result.machine
    device = machine["cpu" if machine["device"] == "cpu" else "device"]
    say(
        f"batches of {counted(result.batch_size, 'image')} of {result.size}x{result.size}; "
        f"{device}, {counted(machine['threads'], 'thread')}, "
        f"torch {machine['torch']}; {counted(result.rounds, 'round')}"
    )
    print_table(_COLUMNS, [_cells(row) for row in result.rows], left=_COLUMNS[:5])
    say(*result.conclusions())


def _cells(row: MemoryFormatRow) -> tuple[str, ...]:
    return (
        *row[:5],
        f"{row.milliseconds:,.3f}",
        f"{(row.slowest - row.fastest) / row.milliseconds:.0%}",
        f"{row.ratio:.2f} ({row.lowest:.2f} to {row.highest:.2f})",
    )
