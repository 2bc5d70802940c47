"""Contact sheets: thumbnails of a pack's samples in one HTML file without any other file.

Everything from the pack is in the page as JSON, and is shown as text, never as markup. A Content
Security Policy allows the sheet's own script only, and no requests.
"""

from __future__ import annotations

import base64
import dataclasses
import os
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from packio.datasets.selection import selected
from packio.errors import OptionError, OutputError, OutputExistsError, PackioError
from packio.images.decoders import MAX_PIXELS
from packio.inspecting.gallery.page import START, make_page, readable
from packio.inspecting.gallery.thumbnails import make_thumbnail
from packio.packs import packs
from packio.system import processors
from packio.system.pools import ThreadPool
from packio.system.progress import Progress, ProgressCallback

_DENSITY = 2  # pixels of a thumbnail for one pixel of the page, for fine screens and enlarging
_AHEAD = 32  # thumbnails that are made at a time


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
    pack: packs.Pack | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    classes: Iterable[str] | None = None,
    limit: int = 500,
    size: int = 128,
    progress: ProgressCallback | None = None,
) -> SheetReport:
    """Write a contact sheet of a pack.

    Args:
        pack: An open pack, or the path of one.
        out: The HTML file; an earlier one is replaced.
        classes: Names of classes to show; None shows all.
        limit: Most samples to show; they are spread evenly over the pack.
        size: Longer edge of a thumbnail, pixels on the page.
        progress: Called with a `Progress` about ten times a second, and at the end.

    Raises:
        OptionError: no such class, or a limit or size below 1.
        OutputExistsError: ``out`` exists and is no HTML file.
        OutputError: writing fails.
    """
    if isinstance(pack, (str, os.PathLike)):
        with packs.open(pack) as opened:
            return write_contact_sheet(
                opened, out, classes=classes, limit=limit, size=size, progress=progress
            )
    if limit < 1 or size < 1:
        raise OptionError(f"limit={limit}, size={size}: expected at least 1")
    path = Path(out)
    _check_place(path)
    chunks = list(selected(pack, classes))
    indices = np.concatenate(chunks) if chunks else np.zeros(0, np.int64)
    chosen = indices[np.linspace(0, len(indices) - 1, min(limit, len(indices))).astype(np.int64)]
    entries = list(_entries(pack, chosen, size, progress))
    text = make_page(pack, entries, len(indices), size)
    _write(path, text)
    broken = sum(entry["error"] is not None for entry in entries)
    return SheetReport(path, len(entries), len(indices), broken, len(text))


def _check_place(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(len(START)).lower()
    except FileNotFoundError:
        return
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}; expected a place for an HTML file") from error
    if start and start != START:
        raise OutputExistsError(f"{path}: is there, and no HTML page; choose another name")


def _write(path: Path, text: bytes) -> None:
    temporary = path.with_name(f".packio-sheet-{os.getpid()}.tmp")
    try:
        temporary.write_bytes(text)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(f"{path}: {error.strerror}") from error


def _entries(
    pack: packs.Pack, indices: np.ndarray, size: int, progress: ProgressCallback | None
) -> Iterator[dict[str, Any]]:
    """Make the entries of the sheet in order; threads make some thumbnails ahead."""
    began, done, read, bad = time.monotonic(), 0, 0, 0
    waiting: deque[Future[dict[str, Any]]] = deque()
    todo = iter(indices.tolist())
    total = int(pack.index_file.column("image/length").take(indices).sum())
    with (
        warnings.catch_warnings(),
        ThreadPool(min(8, processors.usable()), "packio-sheet") as pool,
    ):
        warnings.simplefilter("ignore")  # Pillow's, of large images and odd metadata
        while True:
            for index in todo:
                waiting.append(pool.submit(_entry, pack, index, size))
                if len(waiting) >= _AHEAD:
                    break
            if not waiting:
                return
            entry = waiting.popleft().result()
            done, read, bad = done + 1, read + entry["bytes"], bad + (entry["error"] is not None)
            if progress is not None and (done % 16 == 0 or done == len(indices)):
                seconds = time.monotonic() - began
                progress(Progress(done, len(indices), read, total, bad, seconds, "decoding"))
            yield entry


def _entry(pack: packs.Pack, index: int, size: int) -> dict[str, Any]:
    (row,) = pack.rows([index])
    thumbnail, error = None, None
    try:
        if row.height * row.width > MAX_PIXELS:
            error = f"{row.width}x{row.height} pixels: too many to decode"
        else:
            thumbnail = make_thumbnail(pack.read(row), size * _DENSITY, row)
    except PackioError as problem:
        error = str(problem)
    except Exception as problem:  # noqa: BLE001 (Pillow's plugins raise whatever their parsers meet)
        error = f"{type(problem).__name__}: {problem}"
    label = pack.label(index)
    return {
        "index": index,
        "key": readable(pack.key_bytes(index)),
        "classes": _classes(label),
        "label": label.tolist() if isinstance(label, np.ndarray) else label,
        "width": row.width,
        "height": row.height,
        "bytes": row.length,
        "encoding": row.encoding,
        "orientation": row.orientation,
        "offset": row.offset,
        "thumbnail": None if thumbnail is None else base64.b64encode(thumbnail).decode("ascii"),
        "error": None if error is None else readable(os.fsencode(error)),
    }


def _classes(label: int | np.ndarray | None) -> list[int]:
    if isinstance(label, np.ndarray):
        positive: list[int] = np.flatnonzero(label > 0).tolist()
        return positive
    return [] if label is None else [label]
