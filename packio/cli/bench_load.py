"""``packio bench-load``: how fast a pack loads here, and what would help."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from packio.measuring.bench.load import Result


def run(
    pack: Annotated[Path, typer.Argument(metavar="PACK", help="The pack to load.")],
    size: Annotated[int, typer.Option(help="Of the crops, pixels.")] = 224,
    batch_size: Annotated[int, typer.Option(help="Images a batch.")] = 64,
    fidelity: Annotated[str, typer.Option(metavar="exact|fast", help="Of the pixels.")] = "exact",
    decoder: Annotated[str, typer.Option(help="The decoder.")] = "auto",
    workers: Annotated[
        list[int] | None, typer.Option(help="DataLoader workers to try; repeatable.")
    ] = None,
    threads: Annotated[
        list[int] | None, typer.Option(help="Threads without workers to try; repeatable.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Times that each setting is measured.")] = 3,
    images: Annotated[int, typer.Option(help="Images a setting and round.")] = 2000,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw it into this .png or .svg (packio\\[bench]).")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
) -> None:
    """Load a pack with threads and with DataLoader workers, and say which setting is fastest.

    Every image becomes a random resized crop, mirrored in half of the cases. The stages are timed
    one by one, on one core, with the images in the page cache. "Decode wall" is what decoding whole
    images on all processors, and nothing else, would reach: seekable JPEGs can beat it.

    Example: packio bench-load train.lmdb

    Example: packio bench-load train.lmdb --fidelity fast --workers 4 --workers 8 --plot load.png
    """
    from packio import registry
    from packio.images.geometry import RandomResizedCrop
    from packio.measuring.bench import load

    if plot is not None:
        registry.require("matplotlib", "bench")  # before minutes of measuring
    result = load.measure(
        pack, crop=RandomResizedCrop(size), batch_size=batch_size, fidelity=fidelity,
        decoder=decoder, workers=workers, threads=threads, rounds=rounds, images=images,
        say=None if quiet else lambda text: print(text, file=sys.stderr, flush=True),
    )  # fmt: skip
    if plot is not None:
        from packio.measuring.bench._plots import plot_load

        plot_load(result, plot)
    if as_json:
        print(json.dumps(result.as_dict(), indent=2))
    else:
        _print(result)


def _print(result: Result) -> None:
    print(
        f"{result.path}: {result.samples:,} samples ({result.format}), {result.seekable:.0%} "
        f"seekable; {result.crop}, {result.fidelity}, batches of {result.batch_size}, "
        f"{result.cpus} CPUs"
    )
    for s in sorted(result.settings, key=lambda s: -s.images_per_second):
        spread = (s.fastest - s.slowest) / s.images_per_second
        print(f"  {_name(s.workers, s.threads):<24} {s.images_per_second:>8,.0f} img/s "
              f"{s.megabytes_per_second:>8,.1f} MB/s  ± {spread / 2:.0%}")  # fmt: skip
    total = sum(result.stages.values())
    print(f"one image on one core: {total:,.0f} µs")
    for name, micros in result.stages.items():
        print(f"  {name:<8} {micros:>7,.0f} µs  {micros / total:>4.0%}")
    print(f"decode wall: {result.wall:,.0f} img/s; the best setting reaches "
          f"{result.share_of_wall:.0%} of it")  # fmt: skip
    for gain in result.gains:
        if gain.factor > 1.05:
            print(f"{gain.what} would make it {gain.factor:.1f} times as fast: {gain.command}")
    best = result.best
    if best.workers:
        print(f"use: DataLoader(ds, num_workers={best.workers}, collate_fn=packio.collate)")
    else:
        print(f"use: PackDataset(…, threads={best.threads}), "
              "DataLoader(ds, num_workers=0, collate_fn=packio.collate)")  # fmt: skip


def _name(workers: int, threads: int) -> str:
    if workers:
        return f"{workers} worker{'s' * (workers > 1)}"
    return f"{threads} thread{'s' * (threads > 1)}, no workers"
