"""``packio doctor``, ``bench-decode``, ``bench-load`` and ``bench-memory-format``."""

from __future__ import annotations

import os
import pkgutil
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from packio import registry
from packio.cli import _options as option
from packio.cli._output import ProgressLine, print_json, print_table, say, say_title, tell
from packio.errors import OptionError
from packio.system import processors
from packio.system.quantities import pluralize

if TYPE_CHECKING:
    from packio.measuring.bench import fidelity
    from packio.measuring.bench.decode import DecodeResult, DecodeRow
    from packio.measuring.bench.load import LoadResult
    from packio.measuring.bench.memory_format import MemoryFormatResult


def doctor(
    loader: Annotated[str, typer.Argument(metavar="PACK|MODULE:LOADER",
        help="A pack; or a loader in a Python module, or a function there that makes one.")],
    step: Annotated[str | None, typer.Option(metavar="MODULE:STEP",
        help="Function to call with each batch; it trains.")] = None,
    size: Annotated[int, typer.Option(min=1, help="Side of the crops of a pack, pixels.")] = 224,
    batch_size: Annotated[int, typer.Option(min=1, help="Batch size for a pack.")] = 64,
    workers: Annotated[int | None, typer.Option("--workers", "--num-workers", min=0,
        help="Workers for a pack (default: one a CPU).")] = None,
    index: option.Index = None,
    seconds: Annotated[float, typer.Option(help="Seconds to spend, roughly.")] = 25.0,
    as_json: option.Json = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", callback=option.on_disk,
        help="Write a page with plots into FILE.")] = None,
    profile: Annotated[Path | None, typer.Option(metavar="FILE", callback=option.on_disk,
        help="Profile the main process with cProfile.")] = None,
    quiet: option.NoProgress = False,
) -> None:  # fmt: skip
    """Find what bounds a training loop, and measure how much each remedy helps.

    The loop runs for short times, unchanged and with one thing changed, in turns. Samples, batches
    and steps are also timed by themselves. Only changes that are clearly faster are recommended. A
    pack is loaded as random resized crops. MODULE may lie in the current folder.

    Example: packio doctor train.lmdb

    Example: packio doctor train:make_loader --step train:step --html doctor.html
    """
    from packio.inspecting.pages import check_place, write_page
    from packio.measuring import doctor as diagnosing

    if html is not None:
        check_place(html)  # before minutes of measuring
    is_place = ":" not in loader or "/" in loader or os.path.lexists(loader)
    made = _open_loader(loader, size, batch_size, workers, index) if is_place else None
    diagnosis = diagnosing.doctor(
        find_object(loader) if made is None else made,
        find_object(step, "--step ") if step is not None else None, seconds=seconds,
        profile=profile, say=None if quiet else tell,
    )  # fmt: skip
    if html is not None:
        write_page(html, diagnosis.html(shlex.join(["packio", *sys.argv[1:]])))
    if as_json:
        print_json(diagnosis.as_dict())
    else:
        verdict, _, others = str(diagnosis).partition("\n")
        say_title(verdict)
        say(others)


def find_object(name: str, option: str = "") -> Any:
    """Import an object, perhaps of the current folder; `option`: said before it, for messages."""
    from packio.measuring.doctor.setups import explain_errors
    from packio.sources.torch_dataset import SOURCE, current_folder_importable

    if not SOURCE.recognise(Path(name)):
        raise OptionError(
            f"{option}{name}: expected module:object, as train:{'step' if option else 'loader'}"
        )
    module, _, names = name.partition(":")
    with current_folder_importable(), explain_errors(name):
        try:
            found = pkgutil.resolve_name(name)
        except ModuleNotFoundError as error:
            if not f"{module}.".startswith(f"{error.name}."):  # one that the module imports
                raise
            hint = f"; write {module[:-3]}:{names}" if module.endswith(".py") else ""
            raise OptionError(f"{name}: {error}{hint}") from error
        except AttributeError as error:
            raise OptionError(f"{name}: {error}") from error
        is_loader = hasattr(found, "__iter__") and not isinstance(found, type)
        if not option and callable(found) and not is_loader:
            found = found()
    return found


def _open_loader(
    path: str, size: int, batch_size: int, workers: int | None, index: Path | None
) -> Any:
    from torch.utils.data import DataLoader

    import packio

    file = Path(path)
    if file.suffix == ".py" and file.is_file():
        folder = "" if file.parent == Path() else f"cd {shlex.quote(str(file.parent))} && "
        raise OptionError(
            f"{path}: a Python file; say what in it makes the loader: {folder}packio doctor "
            f"{file.stem}:LOADER"
        )
    dataset = packio.PackDataset(path, index=index, crop=packio.RandomResizedCrop(size), hflip=0.5)
    return DataLoader(
        dataset, batch_size=batch_size, shuffle=True, collate_fn=packio.collate,
        num_workers=processors.usable() if workers is None else workers,
        persistent_workers=workers != 0,
    )  # fmt: skip


_PARITY_COLUMNS = (
    "decoder", "fidelity", "max", "mean", "PSNR mean", "min", "off by > 1", "max to Pillow",
)  # fmt: skip
_COLUMNS = ("decoder", "on", "img/s", "spread", "Mpx/s", "ms p50", "ms p99", "refused", "pixels")


def bench_decode(
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
        print_json(parities) if as_json else _print_parity(parities)
        return
    from packio.measuring.bench import decode

    with ProgressLine(quiet=quiet) as progress:
        result = decode.measure(
            path, decoders=decoder or None, threads=threads or None,
            workers=[n for n in workers or [processors.usable()] if n],
            rounds=rounds, limit=limit, progress=progress,
        )  # fmt: skip
    print_json(result) if as_json else _print_decode(result)


def _print_decode(result: DecodeResult) -> None:
    say(
        f"{pluralize(result.images, 'image')} from {result.origin}: "
        f"{result.pixels / 1e6:,.1f} megapixels, {result.bytes / 1e6:,.1f} MB; "
        f"{result.cpu}, {pluralize(result.cpus, 'CPU')}; {pluralize(result.rounds, 'round')}"
    )
    if result.unreadable:
        say(f"{pluralize(result.unreadable, 'file')} left out: not 8-bit RGB to Pillow")
    several = len({row.encoding for row in result.rows}) > 1
    ordered = sorted(
        result.rows,
        key=lambda r: (r.encoding, r.stage == "open", r.workers, r.threads, -r.images_per_second),
    )
    header = ("encoding", *_COLUMNS) if several else _COLUMNS
    cells = [((row.encoding,) if several else ()) + _decode_cells(row, result) for row in ordered]
    print_table(header, cells)
    for name, reason in result.missing.items():
        say(f"{name}: not measured; {reason}")


def _decode_cells(row: DecodeRow, result: DecodeResult) -> tuple[str, ...]:
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
    say(f"{pluralize(result.rows[0].crops, 'crop')} of {pluralize(result.images, 'JPEG')} from "
        f"{result.origin}, to {result.size}x{result.size}, {result.interpolation}; against "
        f"{result.reference}")  # fmt: skip
    cells = [
        (f"{row.decoder} {result.versions[row.decoder]}", row.fidelity, str(found.maximum),
         f"{found.mean:.3f}", f"{found.psnr:.1f}", f"{found.lowest_psnr:.1f}", f"{found.off:.2%}",
         str(row.pillow.maximum)) for row in result.rows for found in [row.torchvision]
    ]  # fmt: skip
    print_table(_PARITY_COLUMNS, cells)


def bench_load(
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
    print_json(result.as_dict()) if as_json else _print_load(result)


def _print_load(result: LoadResult) -> None:
    say(
        f"{result.path}: {pluralize(result.samples, 'sample')} ({result.format}); {result.crop}, "
        f"{result.fidelity}, batches of {result.batch_size}, {pluralize(result.cpus, 'CPU')}"
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
    say(f"{pluralize(result.cpus, 'CPU')} at this rate: {result.ceiling:,.0f} img/s; the best "
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


_DTYPES = ("float32", "bfloat16", "float16")
_LAYOUT_COLUMNS = ("part", "stage", "dtype", "images", "model", "ms", "spread", "of contiguous")


def bench_memory_format(
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
    print_json(result.as_dict()) if as_json else _print_memory_format(result)


def _print_memory_format(result: MemoryFormatResult) -> None:
    machine = result.machine
    device = machine["cpu" if machine["device"] == "cpu" else "device"]
    say(f"batches of {pluralize(result.batch_size, 'image')} of {result.size}x{result.size}; "
        f"{device}, {pluralize(machine['threads'], 'thread')}, "
        f"torch {machine['torch']}; {pluralize(result.rounds, 'round')}")  # fmt: skip
    cells = [
        (*row[:5], f"{row.milliseconds:,.3f}",
         f"{(row.slowest - row.fastest) / row.milliseconds:.0%}",
         f"{row.ratio:.2f} ({row.lowest:.2f} to {row.highest:.2f})") for row in result.rows
    ]  # fmt: skip
    print_table(_LAYOUT_COLUMNS, cells)
    say(*result.conclusions())
