"""HTML pages that need no other file: ``page.html`` with its style, its script and its data.

Each ``page.html`` fills the blocks of ``base.html`` in this folder, which also has ``colours.css``
of all pages, ``tiles.css`` and ``tiles.js`` of pages that show samples as tiles, which enlarge, and
``charts.html`` with ``charts.css``, which draw a list of `Bar`: lengths are percents there, so that
text keeps its size at any width.

A Content Security Policy allows the page's own style and script, by their digests, and no request.
Every value is shown as text, never as markup.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jinja2
import numpy as np

from packio.errors import CannotCreateError, OutputError, OutputExistsError
from packio.system import files, processors
from packio.system.pools import ThreadPool
from packio.system.progress import Meter, ProgressCallback

_SHARED = Path(__file__).parent
_START = b"<!doctype html>"  # as base.html
_T = TypeVar("_T")
_BINS = 12  # of a histogram, at most


def make_page(folder: Path, values: dict[str, Any], *, served: bool = False) -> str:
    """Make a page of the templates in a folder: page.html, page.css and perhaps page.js.

    A page that is served may ask the server that it came from.
    """
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, _SHARED]),
        autoescape=jinja2.select_autoescape(["html"]), undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )  # fmt: skip
    templates.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    style = templates.get_template("page.css").render(values)
    has_script = (folder / "page.js").exists()
    text = templates.get_template("page.js").render(values) if has_script else ""
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"{'connect-src self; img-src self' if served else 'img-src'} data:; "
        f"style-src '{_digest(style)}'; script-src '{_digest(text)}'"
    ).replace(" self", " 'self'")
    icon = as_base64((_SHARED / "icon.svg").read_bytes())
    page = templates.get_template("page.html")
    return page.render({**values, "policy": policy, "style": style, "script": text, "icon": icon})


def make_entries(
    make: Callable[[_T], dict[str, Any]], items: Sequence[_T],
    progress: ProgressCallback | None, total_bytes: int = 0,
) -> list[dict[str, Any]]:  # fmt: skip
    """Make an entry of each item, in threads; an entry has "bytes", and "error", perhaps None."""
    meter, bad = Meter(progress), 0
    meter.begin("decoding", len(items), total_bytes)
    entries = list[dict[str, Any]]()
    with warnings.catch_warnings(), ThreadPool(min(8, processors.usable()), "packio-page") as pool:
        warnings.simplefilter("ignore")  # Pillow's, of large images and odd metadata
        for entry in pool.map(make, items):
            entries.append(entry)
            bad += bool(entry["error"])
            meter.step(1, entry["bytes"], bad)
    return entries


def check_place(path: Path) -> None:
    """Check that a page may be written to a place."""
    try:
        with path.open("rb") as file:
            start = file.read(len(_START)).lower()
    except FileNotFoundError:
        files.check_folder_of(path)
        return
    except IsADirectoryError:
        raise CannotCreateError(f"{path}: a folder; expected the name of an HTML file") from None
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}; expected a place for an HTML file") from error
    if start and start != _START:
        raise OutputExistsError(f"{path}: is there, and no HTML page; choose another name")


def write_page(path: Path, text: str) -> int:
    """Write a page, which appears when it is complete; return its bytes."""
    data = text.encode()
    try:
        with files.replacing(path) as file:
            file.write(data)
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from error
    return len(data)


def readable(name: bytes | str) -> str:
    """Text of bytes or surrogate-escaped text; what is not UTF-8 becomes escapes, in any locale."""
    if isinstance(name, bytes):
        return name.decode("utf-8", "backslashreplace")
    try:
        data = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # other surrogates, as in JSON
        data = name.encode("utf-8", "backslashreplace")
    return data.decode("utf-8", "backslashreplace")


def as_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _digest(text: str) -> str:
    return "sha256-" + as_base64(hashlib.sha256(text.encode()).digest())


class Bar(NamedTuple):
    """A bar: what it is of, its length in percent of the chart, its value in words, its class."""

    name: str
    length: float
    text: str
    colour: str = "plain"


def make_histogram(
    values: np.ndarray, say: Callable[[float], str], *, are_ratios: bool = False
) -> tuple[str, list[Bar]]:
    """Count values that are whole numbers from 1 on, or ratios, in bins of a logarithmic axis.

    Returns the values in words, and a bar for each bin. `say` gives the text of a value.
    """
    low, middle, high = (float(v) for v in (values.min(), np.median(values), values.max()))
    edges = np.geomspace(low, high * 1.001 if are_ratios else high + 1, _BINS + 1)
    if not are_ratios:
        edges = np.unique(np.ceil(edges - 1e-6))
    counts, _ = np.histogram(values, edges)
    bars = []
    pairs = itertools.pairwise(edges.tolist())
    for (first, end), count in zip(pairs, counts.tolist(), strict=True):
        last = end if are_ratios else end - 1  # whole numbers end before an edge
        said = say(first) if last <= first else f"{say(first)} to {say(last)}"
        bars.append(Bar(said, round(100 * count / int(counts.max()), 3), f"{count:,}"))
    said = f"{say(low)} to {say(high)}, median {say(middle)}"
    return said if low < high else f"all {say(low)}", bars
