"""Contact sheets: the samples of a pack to look through, in one HTML file without any other file.

A tile shows an image with its boxes; enlarged, a sample shows its masks, other fields and metadata.
Everything from the pack is in the page as JSON, and is shown as text, never as markup.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from packio.datasets.selection import selected
from packio.errors import OptionError
from packio.inspecting.gallery.entries import make_entry, make_values
from packio.inspecting.pages import check_place, make_entries, make_page, write_page
from packio.packs import opening
from packio.system.progress import ProgressCallback

ORIGINALS = 20_000_000  # bytes of images, as they are, in a page


@dataclasses.dataclass(frozen=True, slots=True)
class SheetReport:
    """What a contact sheet shows.

    Attributes:
        out: The HTML file.
        shown: Number of samples in the sheet.
        samples: Number of samples to choose from: of the pack, or of the classes asked for.
        broken: Number of samples that could not be read or decoded; the sheet shows their errors.
        bytes: Of the HTML file.
    """

    out: Path
    shown: int
    samples: int
    broken: int
    bytes: int


def write_contact_sheet(
    pack: opening.Pack | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    classes: Iterable[str] | None = None,
    split: str | None = None,
    limit: int = 500,
    size: int = 128,
    originals: int = ORIGINALS,
    progress: ProgressCallback | None = None,
) -> SheetReport:
    """Write a contact sheet of a pack.

    Args:
        pack: An open pack, or the path of one.
        out: The HTML file; an earlier one is replaced.
        classes: Names of classes to show; None shows all.
        split: Name of the split to show; None shows all.
        limit: Most samples to show; they are spread evenly over the pack.
        size: Longer edge of a thumbnail, pixels on the page.
        originals: Bytes of images that the page has as they are, the smallest first: enlarged, such
            an image has its own pixels. All others have those of a thumbnail.
        progress: Called with a `Progress` about ten times a second, and at the end.
    """
    if isinstance(pack, (str, os.PathLike)):
        with opening.open(pack) as opened:
            return write_contact_sheet(
                opened, out, classes=classes, split=split, limit=limit, size=size,
                originals=originals, progress=progress,
            )  # fmt: skip
    if limit < 1 or size < 1:
        raise OptionError(f"limit={limit}, size={size}: expected at least 1")
    path = Path(out)
    check_place(path)
    chunks = list(selected(pack, classes, split))
    indices = np.concatenate(chunks) if chunks else np.zeros(0, np.int64)
    chosen = indices[np.linspace(0, len(indices) - 1, min(limit, len(indices))).astype(np.int64)]
    lengths = pack.index_file.column("image/length").take(chosen)
    smallest = np.argsort(lengths, kind="stable")
    fits = np.cumsum(lengths[smallest], dtype=np.int64) <= originals
    whole = set(chosen[smallest[fits]].tolist())
    entries = make_entries(
        lambda index: make_entry(pack, index, size, original=index in whole),
        chosen.tolist(), progress, int(lengths.sum()),
    )  # fmt: skip
    said = "1 sample" if len(indices) == 1 else f"{len(indices):,} samples"
    if len(entries) < len(indices):
        said = f"{len(entries):,} of {said}, spread evenly"
    values = make_values(pack, said, size, samples=entries)
    written = write_page(path, make_page(Path(__file__).parent, values))
    broken = sum(entry["error"] is not None for entry in entries)
    return SheetReport(path, len(entries), len(indices), broken, written)
