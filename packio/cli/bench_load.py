"""``packio bench-load``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from packio.cli import _options as option
from packio.cli._output import counted, print_json, say, tell

if TYPE_CHECKING:
    from packio.measuring.bench.load import LoadResult


def run(
    pack: option.Pack,
    size: Annotated[int, typer.Option(min=1, help="Side of the crops, pixels.")] = 224,
    batch_size: Annotated[int, typer.Option(min=1, help="Images in a batch.")] = 64,
    fidelity: Annotated[Literal["exact", "fast"], typer.Option(
        help="'exact' pixels, or 'fast' ones.")] = "exact",
    decoder: Annotated[str, typer.Option(help="Decoder, as for PackDataset.")] = "auto",
    workers: Annotated[list[int] | None, typer.Option("--workers", "--num-workers", min=0,
        help="DataLoader workers to try; repeatable (default: 1, 2, 4, …).")] = None,
    threads: Annotated[list[int] | None, typer.Option(min=1,
        help="Threads to try without workers; repeatable (default: 1, 2, …).")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Times to measure each setting.")] = 3,
    images: Annotated[int, typer.Option(min=1, help="Images to load in each round.")] = 2000,
    seconds: Annotated[float, typer.Option(
        help="Seconds to spend on the settings, roughly; images may be fewer.")] = 120.0,
    as_json: option.Json = False,
    quiet: option.NoProgress = False,
) -> None:  # fmt: skip
    """Load a pack with threads and with DataLoader workers, and say which setting is fastest.

    Each image becomes a random resized crop; half of the crops are mirrored. What one image costs,
    and its stages, is timed on one core, with the images in the page cache: batches are made and
    handed over as in the settings.

    Example: packio bench-load train.lmdb

    Example: packio bench-load train.lmdb --fidelity fast --workers 4 --workers 8
    """
    from packio.images.geometry import RandomResizedCrop
    from packio.measuring.bench import load

    result = load.measure(
        pack, crop=RandomResizedCrop(size), batch_size=batch_size, fidelity=fidelity,
        decoder=decoder, workers=workers, threads=threads, rounds=rounds, images=images,
        seconds=seconds, say=None if quiet else tell,
    )  # fmt: skip
    print_json(result.as_dict()) if as_json else _print(result)


def _print(result: LoadResult) -> None:
    say(
        f"{result.path}: {counted(result.samples, 'sample')} ({result.format}); {result.crop}, "
        f"{result.fidelity}, batches of {result.batch_size}, {counted(result.cpus, 'CPU')}"
    )
    for setting in sorted(result.settings, key=lambda s: -s.images_per_second):
        spread = (setting.fastest - setting.slowest) / setting.images_per_second
        say(f"  {setting!s:<24} {setting.images_per_second:>8,.0f} img/s "
              f"{setting.megabytes_per_second:>8,.1f} MB/s  ± {spread / 2:.0%}")  # fmt: skip
    total = sum(result.stages.values())
    say(f"one image on one core: {total:,.0f} µs, {1e6 / total:,.0f} img/s")
    for name, micros in result.stages.items():
        say(f"  {name:<16} {micros:>7,.0f} µs  {micros / total:>4.0%}")
    share = result.best.images_per_second / result.ceiling
    say(f"{counted(result.cpus, 'CPU')} at this rate: {result.ceiling:,.0f} img/s; the best "
        f"setting reaches {share:.0%} of it")  # fmt: skip
    for gain in result.gains:
        if gain.factor > 1.05:
            say(f"{gain.what} would make it {gain.factor:.1f} times as fast: {gain.command}")
    best = result.best
    say(f"the fewest processes that are as fast as the fastest setting, within the noise of "
          f"± {result.noise:.0%}:")  # fmt: skip
    if best.workers:
        say(f"use: DataLoader(ds, num_workers={best.workers}, collate_fn=packio.collate)")
    else:
        say(f"use: PackDataset(…, threads={best.threads}), "
              "DataLoader(ds, num_workers=0, collate_fn=packio.collate)")  # fmt: skip
