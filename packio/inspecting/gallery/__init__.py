"""Contact sheets: the samples of a pack to look through, in one HTML file without any other file.

A tile shows an image with its boxes; enlarged, a sample shows its masks, other fields and metadata.
Everything from the pack is in the page as JSON, and is shown as text, never as markup.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from packio.datasets.selection import selected
from packio.errors import OptionError, PackioError
from packio.images.decoders import MAX_PIXELS
from packio.inspecting.gallery.thumbnails import make_mask_thumbnail, make_thumbnail
from packio.inspecting.pages import check_place, make_page, readable, write_page
from packio.packs import opening
from packio.packs.rows import Row
from packio.sample import levels
from packio.sample.fields import PIXELS, decode
from packio.sample.record import IMAGE
from packio.system import processors
from packio.system.pools import ThreadPool
from packio.system.progress import Progress, ProgressCallback

_DENSITY = 2  # pixels of a thumbnail for one pixel of the page, for fine screens and enlarging
_SHOWN_TEXT = 2000  # characters of a text or of metadata that are shown
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
    pack: opening.Pack | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    classes: Iterable[str] | None = None,
    split: str | None = None,
    limit: int = 500,
    size: int = 128,
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
        progress: Called with a `Progress` about ten times a second, and at the end.

    Raises:
        OptionError: no such class or split, or a limit or size below 1.
        OutputExistsError: ``out`` exists and is no HTML file.
        OutputError: writing fails.
    """
    if isinstance(pack, (str, os.PathLike)):
        with opening.open(pack) as opened:
            return write_contact_sheet(
                opened, out, classes=classes, split=split, limit=limit, size=size,
                progress=progress,
            )  # fmt: skip
    if limit < 1 or size < 1:
        raise OptionError(f"limit={limit}, size={size}: expected at least 1")
    path = Path(out)
    check_place(path)
    chunks = list(selected(pack, classes, split))
    indices = np.concatenate(chunks) if chunks else np.zeros(0, np.int64)
    chosen = indices[np.linspace(0, len(indices) - 1, min(limit, len(indices))).astype(np.int64)]
    entries = list(_entries(pack, chosen, size, progress))
    text = make_page(Path(__file__).parent, _values(pack, entries, len(indices), size)).encode()
    write_page(path, text)
    broken = sum(entry["error"] is not None for entry in entries)
    return SheetReport(path, len(entries), len(indices), broken, len(text))


def _values(
    pack: opening.Pack, entries: list[dict[str, Any]], samples: int, size: int
) -> dict[str, Any]:
    """Values for the templates of the page."""
    few = f"{len(entries):,} of {samples:,} samples, spread evenly"
    facts = [
        few if len(entries) < samples else "1 sample" if samples == 1 else f"{samples:,} samples",
        f"{len(pack.classes):,} class{'es' * (len(pack.classes) != 1)}",
        str(pack.metadata["format"]),
        f"digest {pack.digest[:12]}",
    ]
    return {
        "title": readable(pack.path.resolve().name), "facts": facts, "size": size,
        "data": {"classes": [readable(c) for c in pack.classes], "samples": entries},
    }  # fmt: skip


def _entries(
    pack: opening.Pack, indices: np.ndarray, size: int, progress: ProgressCallback | None
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


def _entry(pack: opening.Pack, index: int, size: int) -> dict[str, Any]:
    (row,) = pack.rows([index])
    boxes, _ = pack.boxes(index)
    thumbnail, error = _tried(
        lambda: make_thumbnail(_image(pack, row), size * _DENSITY, row, boxes)
    )
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
        "thumbnail": _text_of(thumbnail),
        "error": error,
        "more": list(_more(pack, index, size)),
    }


def _image(pack: opening.Pack, row: Row) -> bytes:
    if row.height * row.width > MAX_PIXELS:
        raise PackioError(f"{row.width}x{row.height} pixels: too many to decode")
    return pack.read(row)


def _tried(make: Callable[[], Any]) -> tuple[Any, str | None]:
    """Call a function; return its result and None, or None and the text of the error."""
    try:
        return make(), None
    except PackioError as error:
        told = str(error)
    except Exception as error:  # noqa: BLE001 (Pillow's plugins raise whatever their parsers meet)
        told = f"{type(error).__name__}: {error}"
    return None, readable(told)


def _text_of(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def _more(pack: opening.Pack, index: int, size: int) -> Iterator[dict[str, Any]]:
    """Everything of a sample but its image and label: each with a name, and a picture or a text."""
    if (split := pack.split_of(index)) is not None:
        yield {"name": "split", "text": split}
    boxes, labels = pack.boxes(index)
    if boxes is not None and len(boxes):
        ids = [] if labels is None else labels.tolist()
        names = [pack.classes[i] if 0 <= i < len(pack.classes) else str(i) for i in ids]
        told = ", ".join(readable(name) for name in names)
        yield {"name": "boxes", "text": f"{len(boxes)}: {told}" if told else str(len(boxes))}
    if (meta := pack.meta(index)) is not None:
        yield {"name": "metadata", "text": json.dumps(meta)[:_SHOWN_TEXT]}
    for name in levels.others(pack.fields):
        if name != IMAGE:
            shown, error = _tried(functools.partial(_field, pack, name, index, size * _DENSITY))
            if error is not None or shown is not None:
                yield {"name": readable(name), **(shown or {"text": error})}


def _field(pack: opening.Pack, name: str, index: int, edge: int) -> dict[str, str | None] | None:
    """A field as an image or a text; None if the sample has no such field."""
    field = pack.field(name, index)
    if field is None:
        return None
    if field.kind in PIXELS and field.facts is not None:
        if field.facts.height * field.facts.width > MAX_PIXELS:
            raise PackioError("too many pixels to decode")
        if field.kind == "mask":
            return {"png": _text_of(make_mask_thumbnail(field.data, edge, field.facts))}
        return {"jpeg": _text_of(make_thumbnail(field.data, edge, field.facts))}
    value = decode(field)
    if isinstance(value, str):
        return {"text": value[:_SHOWN_TEXT]}
    if isinstance(value, np.ndarray):
        return {
            "text": f"array of {value.dtype}, {' x '.join(map(str, value.shape)) or 'a number'}"
        }
    return {"text": f"{len(field.data):,} bytes"}


def _classes(label: int | np.ndarray | None) -> list[int]:
    if isinstance(label, np.ndarray):
        positive: list[int] = np.flatnonzero(label > 0).tolist()
        return positive
    return [] if label is None else [label]
