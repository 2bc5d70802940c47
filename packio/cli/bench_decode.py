"""``packio bench-decode``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from packio import registry
from packio.cli import _options as option
from packio.cli._output import counted, print_json, print_table, say
from packio.cli._progress import ProgressLine
from packio.system import processors

if TYPE_CHECKING:
    from packio.measuring.bench import fidelity
    from packio.measuring.bench.decode import DecodeResult, DecodeRow

_PARITY_COLUMNS = (
    "decoder", "fidelity", "max", "mean", "PSNR mean", "min", "off by > 1", "max to Pillow",
)  # fmt: skip
_LEFT = ("encoding", "decoder", "on", "pixels", "fidelity")
_COLUMNS = ("decoder", "on", "img/s", "spread", "Mpx/s", "ms p50", "ms p99", "refused", "pixels")


def run(
    path: Annotated[Path | None, typer.Argument(metavar="[PATH]",
        help="A folder of images, or a pack; without it, sample photographs.")] = None,
    decoder: Annotated[list[str] | None, typer.Option("--decoder", "-d",
        autocompletion=lambda: list(registry.names("decoders")),
        help="A decoder; repeatable (default: all installed).")] = None,
    threads: Annotated[list[int] | None, typer.Option("--threads", "-t", min=1,
        help="Threads to measure with; repeatable (default: 1 and all CPUs).")] = None,
    workers: Annotated[list[int] | None, typer.Option("--workers", "--num-workers", "-w", min=0,
        help="DataLoader workers to measure with; repeatable (default: all CPUs). 0: "
        "none.")] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N",
        help="Take N images, spread over those there are.")] = 500,
    rounds: Annotated[int, typer.Option(min=1,
        help="Passes of each decoder over the images, in turns.")] = 5,
    as_json: option.Json = False,
    parity: Annotated[bool, typer.Option("--parity",
        help="Compare crops with torchvision's and Pillow's; no speed.")] = False,
    quiet: option.NoProgress = False,
) -> None:  # fmt: skip
    """Measure every installed decoder on your images, and compare its pixels to Pillow's.

    Images are decoded in full, from memory, to RGB. Some decoders refuse an image (damage, CMYK):
    Pillow then decodes it, and that time counts. "open only" is Pillow's lazy Image.open, which
    decodes nothing.

    Example: packio bench-decode

    Example: packio bench-decode ~/imagenet/train --limit 1000 --threads 1 --threads 8 --workers 8

    With --parity, crops (RandomResizedCrop to 224) of JPEGs are compared, at each fidelity, with
    torchvision v2's on tensors and with Pillow's.

    Example: packio bench-decode photos.lmdb --parity --limit 200
    """
    if parity:
        from packio.measuring.bench import fidelity

        with ProgressLine(quiet=quiet) as progress:
            parities = fidelity.measure(
                path, decoders=decoder or None, limit=limit, progress=progress
            )
        print_json(parities.as_dict()) if as_json else _print_parity(parities)
        return
    from packio.measuring.bench import decode

    with ProgressLine(quiet=quiet) as progress:
        result = decode.measure(
            path, decoders=decoder or None, threads=threads or None,
            workers=[n for n in workers or [processors.usable()] if n],
            rounds=rounds, limit=limit, progress=progress,
        )  # fmt: skip
    print_json(result.as_dict()) if as_json else _print(result)


def _print(result: DecodeResult) -> None:
    say(
        f"{counted(result.images, 'image')} from {result.origin}: "
        f"{result.pixels / 1e6:,.1f} megapixels, {result.bytes / 1e6:,.1f} MB; "
        f"{result.cpu}, {counted(result.cpus, 'CPU')}; {counted(result.rounds, 'round')}"
    )
    if result.unreadable:
        say(f"{counted(result.unreadable, 'file')} left out: not 8-bit RGB to Pillow")
    several = len({row.encoding for row in result.rows}) > 1
    ordered = sorted(
        result.rows,
        key=lambda r: (r.encoding, r.stage == "open", r.workers, r.threads, -r.images_per_second),
    )
    header = ("encoding", *_COLUMNS) if several else _COLUMNS
    cells = [((row.encoding,) if several else ()) + _cells(row, result) for row in ordered]
    print_table(header, cells, left=_LEFT)
    for name, reason in result.missing.items():
        say(f"{name}: not measured; {reason}")


def _cells(row: DecodeRow, result: DecodeResult) -> tuple[str, ...]:
    spread = (row.fastest - row.slowest) / row.images_per_second
    version = "(open only)" if row.stage == "open" else result.versions[row.decoder]
    return (
        f"{row.decoder} {version}", row.on, f"{row.images_per_second:,.0f}", f"{spread:.0%}",
        f"{row.megapixels_per_second:,.1f}", f"{row.ms_p50:.2f}", f"{row.ms_p99:.2f}",
        f"{row.refused:,}" if row.stage == "decode" else "", _pixels(row),
    )  # fmt: skip


def _pixels(row: DecodeRow) -> str:
    """Say how far the pixels are from Pillow's."""
    if row.stage == "open":
        return "none decoded"
    found = row.difference
    if found is None:
        return "all refused"
    if found.maximum == 0:
        return "identical"
    return f"max {found.maximum}, mean {found.mean:.2g}, {found.share:.2%} differ"


def _print_parity(result: fidelity.FidelityResult) -> None:
    say(
        f"{counted(result.rows[0].crops, 'crop')} of {counted(result.images, 'JPEG')} from "
        f"{result.origin}, to {result.size}x{result.size}, {result.interpolation}; against "
        f"{result.reference}"
    )
    cells = [_parity_cells(row, result) for row in result.rows]
    print_table(_PARITY_COLUMNS, cells, left=_LEFT)


def _parity_cells(row: fidelity.FidelityRow, result: fidelity.FidelityResult) -> tuple[str, ...]:
    found = row.torchvision
    return (
        f"{row.decoder} {result.versions[row.decoder]}", row.fidelity, str(found.maximum),
        f"{found.mean:.3f}", f"{found.psnr:.1f}", f"{found.lowest_psnr:.1f}", f"{found.off:.2%}",
        str(row.pillow.maximum),
    )  # fmt: skip
