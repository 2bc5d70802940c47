"""``packio doctor``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from packio.cli import _options as option
from packio.cli._output import print_json, tell
from packio.errors import OptionError, printable

if TYPE_CHECKING:
    from packio.measuring.doctor import Diagnosis


def run(
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
    html: Annotated[Path | None, typer.Option(metavar="FILE",
        help="Write a page with plots into FILE.")] = None,
    profile: Annotated[Path | None, typer.Option(metavar="FILE",
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
    from packio.measuring.doctor import doctor, setups

    if html is not None:
        check_place(html)  # before minutes of measuring
    found: Any = setups.make_loader(loader) if setups.is_name(loader) else _of_pack(
        loader, size, batch_size, workers, index)  # fmt: skip
    diagnosis = doctor(
        found, setups.find_object(step, "--step ") if step is not None else None, seconds=seconds,
        profile=profile, say=None if quiet else tell,
    )  # fmt: skip
    if html is not None:
        write_page(html, diagnosis.html(shlex.join(["packio", *sys.argv[1:]])))
    if as_json:
        print_json(diagnosis.as_dict())
    else:
        _print(diagnosis)


def _of_pack(path: str, size: int, batch_size: int, workers: int | None, index: Path | None) -> Any:
    from torch.utils.data import DataLoader

    import packio
    from packio.system import processors

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


def _print(diagnosis: Diagnosis) -> None:
    from rich.console import Console

    from packio.measuring.doctor.report import TIMES

    console = Console(highlight=False)
    first, *others = printable(str(diagnosis)).splitlines()
    console.print(first, style="bold", markup=False, soft_wrap=True)
    for line in others:
        style = "green" if line.startswith(f"  {TIMES}") else None
        console.print(line, style=style, markup=False, soft_wrap=True)
