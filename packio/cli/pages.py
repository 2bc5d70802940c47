"""``packio view`` and ``packio replay``."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from packio.cli import _options as option
from packio.cli._output import ProgressLine, escape, print_json, say
from packio.errors import OptionError
from packio.system.quantities import pluralize

if TYPE_CHECKING:
    from packio.images.frames import Placement
    from packio.inspecting.replaying.replayed import ReplayedBatch


def view(
    pack: option.Pack,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE",
        callback=option.on_disk, help="The page (default: PACK.html here).")] = None,
    classes: option.Classes = None,
    split: option.Split = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N",
        help="Show N samples, spread evenly over the pack.")] = 500,
    size: Annotated[int, typer.Option(min=16, max=1024, metavar="PIXELS",
        help="Longer side of a thumbnail.")] = 128,
    originals: Annotated[Any, typer.Option(parser=option.byte_count, metavar="SIZE",
        help="Images that the page has as they are, the smallest first, as 20MB in all: enlarged, "
        "they show their own pixels.")] = "20MB",
    serve: Annotated[bool, typer.Option("--serve", help="Write no page: show all samples, in a "
        "pack of any size, by a server on this machine, until Ctrl-C.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535,
        help="Port of --serve; 0: one that is free.")] = 0,
    index: option.Index = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the web browser.")] = False,
    quiet: option.Quiet = False,
) -> None:  # fmt: skip
    """Make a contact sheet of a pack: thumbnails with keys, classes and sizes, to look through.

    The sheet is one HTML file that needs no other file: open it anywhere, send it to anyone. On the
    page you filter by class and key, turn pages (arrow keys) and enlarge. An image that cannot be
    decoded is shown as its error.

    Example: packio view photos.lmdb -o photos.html --open

    Enlarged, an image has a mask over it, with a slider, and its boxes with their classes.

    Example: packio view photos.lmdb -o cats.html --class cats --limit 2000 --size 64

    Example: packio view imagenet.lmdb --serve --open
    """
    import webbrowser

    import packio
    from packio.inspecting.gallery import serving, write_contact_sheet

    if serve:
        if out is not None:
            raise OptionError("--serve writes no page: leave --out away")
        with (
            packio.open(pack, index=index) as opened,
            serving.GalleryServer(
                opened, classes=classes or None, split=split, size=size, port=port
            ) as server,
        ):
            say(server.url, "Ctrl-C ends the server.")
            sys.stdout.flush()
            if open_it:
                webbrowser.open(server.url)
            with contextlib.suppress(KeyboardInterrupt):
                server.serve()
        return
    path = out if out is not None else Path(pack.resolve().name + ".html")
    with ProgressLine(quiet=quiet) as progress, packio.open(pack, index=index) as opened:
        report = write_contact_sheet(
            opened, path, classes=classes or None, split=split, limit=limit, size=size,
            originals=originals, progress=progress,
        )  # fmt: skip
    if not quiet:
        broken = f", {report.broken:,} of them broken" if report.broken else ""
        say(f"{escape(str(path))}: {report.shown:,} of {pluralize(report.samples, 'sample')}"
              f"{broken}, {report.bytes / 1e6:,.1f} MB")  # fmt: skip
    if open_it:
        webbrowser.open(path.resolve().as_uri())


def _span(text: str) -> tuple[int, int]:
    """Turn "1200" or "1200-1210" into the first step and the last one."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
    if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
        raise typer.BadParameter(f"{text!r}: expected a step or first-last, as 1200-1210")
    return int(match[1]), int(match[2] or match[1])


def _crop(text: str) -> Any:
    """Turn "224", "CenterCrop:224x192" or "none" into a crop."""
    from packio.images import geometry

    if text.lower() == "none":
        return (None,)
    match = re.fullmatch(r"(?:(\w+):)?(\d+)(?:x(\d+))?", text.strip())
    kind = getattr(geometry, match[1] or "RandomResizedCrop", None) if match else None
    if match is None or not isinstance(kind, type) or not hasattr(kind, "draws"):
        raise typer.BadParameter(
            f"{text!r}: expected 224, 224x192 (height x width), CenterCrop:224, none, …; other "
            "options of crops are known to states of packio.Loader, and in Python"
        )
    size = int(match[2])
    return (kind(size if match[3] is None else (size, int(match[3]))),)


def replay(
    packs: Annotated[list[Path], typer.Argument(metavar="PACK…",
        help="The pack; several, in order, of a ConcatPacks.")],
    steps: Annotated[Any, typer.Option(parser=_span, metavar="A-B",
        help="Steps A to B, or one step; counted from 0 in each epoch.")],
    state: Annotated[Path | None, typer.Option(metavar="FILE",
        help="Checkpoint with the loader's state: torch.save, JSON.")] = None,
    state_name: Annotated[str | None, typer.Option(metavar="NAME",
        help="Which state, if FILE has several, as loaders.train.")] = None,
    epoch: Annotated[int | None, typer.Option(min=0, metavar="N",
        help="Epoch (default: that of the state).")] = None,
    rank: Annotated[int | None, typer.Option(min=0, metavar="N",
        help="Batches of one rank (default: of all).")] = None,
    world_size: Annotated[int | None, typer.Option(min=1, metavar="N",
        help="Number of ranks, if no state says it.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, metavar="N",
        help="Samples of a rank's batch, if no state says it.")] = None,
    drop_last: Annotated[bool | None, typer.Option("--drop-last/--keep-last",
        help="Whether a smaller last batch was left out.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N",
        help="Seed of crops and flips: of the dataset.")] = None,
    order_seed: Annotated[int | None, typer.Option(metavar="N",
        help="Seed of the order (default: --seed; 0 of several ranks).")] = None,
    in_order: Annotated[bool, typer.Option("--in-order",
        help="Without a state: nothing was shuffled.")] = False,
    window: Annotated[int | None, typer.Option(min=1, metavar="N",
        help="Without a state: window= of the Loader.")] = None,
    crop: Annotated[Any, typer.Option(parser=_crop, metavar="SIZE",
        help="Crop, if no state says it: 224 (RandomResizedCrop), CenterCrop:224, …")] = None,
    hflip: Annotated[float | None, typer.Option(metavar="P",
        help="Probability of mirroring left-right.")] = None,
    vflip: Annotated[float | None, typer.Option(metavar="P",
        help="Probability of mirroring top-bottom.")] = None,
    split: option.Split = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", callback=option.on_disk,
        help="Write a page of the very crops.")] = None,
    size: Annotated[int, typer.Option(min=16, max=1024, metavar="PIXELS",
        help="Longer side on the page.")] = 128,
    as_json: option.Json = False,
    quiet: option.Quiet = False,
) -> None:  # fmt: skip
    """Show which samples were in some steps of a training run, with which crops and flips.

    No log is needed: order, crops and flips follow from seeds, epoch and position. The checkpoint
    is what you saved with torch.save around loader.state_dict(), alone or beside the model; packio
    reads tensors and plain values, and unpickles nothing. A state of packio.Loader says everything.
    A state of a sampler says the order; then give --batch-size, --seed and --crop. To leave bad
    steps out: packio.Loader(…, skip=[(epoch, first, last)]).

    Example: packio replay train.lmdb --state checkpoint.pt --steps 1200-1210 --html spike.html

    Example: packio replay train.lmdb --state checkpoint.pt --epoch 3 --steps 17 --rank 5

    Example: packio replay train.lmdb --seed 7 --epoch 3 --batch-size 256 --world-size 8
    --steps 1200-1210 --crop 224 --hflip 0.5 --json
    """
    from packio.inspecting import replaying

    given = {"hflip": hflip, "vflip": vflip, "split": split}
    options = {name: value for name, value in given.items() if value is not None}
    if crop is not None:
        options["crop"] = crop[0]
    found = replaying.replay(
        packs, steps, state=state, state_name=state_name, epoch=epoch, rank=rank,
        world_size=world_size, batch_size=batch_size, drop_last=drop_last, seed=seed,
        order_seed=order_seed, shuffle=not in_order, window=window, **options,
    )  # fmt: skip
    if html is not None:
        with ProgressLine(quiet=quiet) as progress:
            written = found.write_page(html, size=size, progress=progress)
    if as_json:
        print_json(found.as_dict())
    elif html is not None and not quiet:
        count = sum(len(batch.samples) for batch in found.batches)
        say(f"{escape(str(html))}: {pluralize(count, 'sample')} in "
              f"{pluralize(len(found.batches), 'batch')}, {written / 1e6:,.2f} MB")  # fmt: skip
    elif html is None:
        for batch in found.batches:
            _print_batch(batch, "--crop" if found.seed is not None else "--crop and --seed")


def _print_batch(batch: ReplayedBatch, lacking: str) -> None:
    left_out = ", left out by skip=" if batch.left_out else ""
    crops = "" if batch.crops_known else f"; crops are not known: say {lacking}"
    say(f"epoch {batch.epoch}, step {batch.step}, rank {batch.rank}: "
          f"{pluralize(len(batch.samples), 'sample')}{left_out}{crops}")  # fmt: skip
    for sample in batch.samples:
        shown = "  ".join(map(_crop_text, sample.placements or ())) or "-"
        name = "-" if sample.class_name is None else escape(sample.class_name)
        key = "-" if sample.key is None else escape(sample.key)
        say(f"{sample.slot:>5}  {sample.position:>9}  {sample.index:>9}  {shown}  {name}  {key}")


def _crop_text(placement: Placement) -> str:
    """A crop as WxH+LEFT+TOP, then the size of the output, then its flips."""
    f = placement.frame
    at = f"{f.width}x{f.height}+{f.left}+{f.top}"
    to = f">{f.to_width}x{f.to_height}" if f.resizes else ""
    shown = (f.out_top, f.out_left, f.out_height, f.out_width) == (0, 0, f.to_height, f.to_width)
    out = "" if shown else f"@{f.out_width}x{f.out_height}{f.out_left:+}{f.out_top:+}"
    flips = "h" * bool(placement.hflip) + "v" * bool(placement.vflip)
    return f"{at}{to}{out}" + (f" {flips}" if flips else "")
