"""A contact sheet: thumbnails of a pack's samples in one HTML file that needs nothing else.

Everything that comes from the pack travels as JSON and is put into the page as text, never as
markup; a Content Security Policy lets no script run but the sheet's own, and nothing be fetched.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import io
import json
import os
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from packio import packs
from packio.decoders import MAX_PIXELS
from packio.errors import OptionError, OutputError, OutputExistsError, PackioError
from packio.packing.report import Progress, ProgressCallback
from packio.selection import selected

if TYPE_CHECKING:
    from PIL import Image

_DENSITY = 2  # pixels of a thumbnail for one of the page: sharp on fine screens, and enlarged
_QUALITY = 80  # of the thumbnails' JPEG
_AHEAD = 32  # thumbnails being made
_START = b"<!doctype html>"  # as _PAGE


@dataclasses.dataclass(frozen=True, slots=True)
class SheetReport:
    """What a contact sheet shows.

    Attributes:
        out: The HTML file.
        shown: Samples in it.
        samples: Samples to choose from: all of the pack, or of the classes asked for.
        broken: Samples shown by their error, as they could not be read or decoded.
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
        limit: Show this many samples, spread evenly.
        size: Longer edge of a thumbnail, pixels on the page.
        progress: Called with a `Progress` about ten times a second, and at the end.

    Raises:
        OptionError: no such class, or a limit or size below 1.
        OutputExistsError: ``out`` is something else than an HTML file.
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
    text = _page(pack, entries, len(indices), size)
    _write(path, text)
    broken = sum(entry["error"] is not None for entry in entries)
    return SheetReport(path, len(entries), len(indices), broken, len(text))


def _check_place(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(len(_START)).lower()
    except FileNotFoundError:
        return
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}; expected a place for an HTML file") from error
    if start and start != _START:
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
    """Make the thumbnails in threads, in order, a few ahead."""
    began, done, read, bad = time.monotonic(), 0, 0, 0
    waiting: deque[Future[dict[str, Any]]] = deque()
    todo = iter(indices.tolist())
    total = int(pack.index_file.column("length").take(indices).sum())
    with (
        warnings.catch_warnings(),
        ThreadPoolExecutor(min(8, os.cpu_count() or 1), "packio-sheet") as pool,
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
            thumbnail = _thumbnail(pack.read(row), size * _DENSITY, row.orientation)
    except PackioError as problem:
        error = str(problem)
    except Exception as problem:  # noqa: BLE001 (Pillow's plugins raise whatever their parsers meet)
        error = f"{type(problem).__name__}: {problem}"
    label = pack.label(index)
    return {
        "index": index,
        "key": _readable(pack.key_bytes(index)),
        "classes": _classes(label),
        "label": label.tolist() if isinstance(label, np.ndarray) else label,
        "width": row.width,
        "height": row.height,
        "bytes": row.length,
        "encoding": row.encoding,
        "orientation": row.orientation,
        "offset": row.offset,
        "thumbnail": None if thumbnail is None else base64.b64encode(thumbnail).decode("ascii"),
        "error": None if error is None else _readable(os.fsencode(error)),
    }


def _readable(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _classes(label: int | np.ndarray | None) -> list[int]:
    if isinstance(label, np.ndarray):
        positive: list[int] = np.flatnonzero(label > 0).tolist()
        return positive
    return [] if label is None else [label]


def _thumbnail(data: bytes, edge: int, orientation: int) -> bytes:
    """Make a JPEG of at most ``edge`` pixels a side, upright."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        small: Image.Image = image
        if image.mode[0] in "IF":
            small = _eight_bits(image)
        elif image.format != "JPEG":  # a JPEG is decoded at a fraction of its size by thumbnail()
            small = image.convert("RGB")
        small.thumbnail((edge, edge))
        small = small.convert("RGB")
    for turn in _TURNS.get(orientation, ()):
        small = small.transpose(Image.Transpose[turn])
    file = io.BytesIO()
    small.save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


# What makes an image upright; Exif 2.32, section 4.6.4, tag 0x0112.
_TURNS = {
    2: ("FLIP_LEFT_RIGHT",),
    3: ("ROTATE_180",),
    4: ("FLIP_TOP_BOTTOM",),
    5: ("TRANSPOSE",),
    6: ("ROTATE_270",),
    7: ("TRANSVERSE",),
    8: ("ROTATE_90",),
}


def _eight_bits(image: Image.Image) -> Image.Image:
    """Stretch pixels of more than 8 bits so that the least is black and the most is white."""
    from PIL import Image

    values = np.nan_to_num(np.asarray(image, np.float64))
    low, high = float(values.min()), float(values.max())
    return Image.fromarray(((values - low) * (255 / ((high - low) or 1))).astype(np.uint8))


def _page(pack: packs.Pack, entries: list[dict[str, Any]], samples: int, size: int) -> bytes:
    name = _readable(os.fsencode(pack.path.resolve().name))
    shown = f"{len(entries):,} of {samples:,} samples"
    if len(entries) == samples:
        shown = f"{samples:,} samples"
    facts = [
        shown + (", spread evenly" if len(entries) < samples else ""),
        f"{len(pack.classes):,} classes",
        str(pack.metadata["format"]),
        f"digest {pack.digest[:12]}",
    ]
    classes = [_readable(os.fsencode(c)) for c in pack.classes]
    data = json.dumps({"classes": classes, "samples": entries}, separators=(",", ":"))
    style = _STYLE.replace("SIZE", str(size))
    values = {
        "POLICY": "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src '{_digest(style)}'; script-src '{_digest(_SCRIPT)}'",
        "TITLE": html.escape(name),
        "FACTS": html.escape(" · ".join(facts)),
        "STYLE": style,
        "SCRIPT": _SCRIPT,
        "DATA": data.replace("<", "\\u003c"),  # no tag and no comment can begin or end in it
    }
    parts = _PAGE.split("%%")
    return "".join(values.get(part, part) for part in parts).encode()


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="%%POLICY%%">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>%%TITLE%%</title>
<style>%%STYLE%%</style>
</head>
<body>
<header>
<div class="title"><h1>%%TITLE%%</h1><p>%%FACTS%%</p></div>
<form class="controls" id="controls">
<select id="class" aria-label="Class"></select>
<input id="query" type="search" placeholder="Filter by key (/)" aria-label="Filter by key">
<span class="pages">
<button type="button" id="previous" aria-label="Previous page" title="Left arrow">&lsaquo;</button>
<output id="position"></output>
<button type="button" id="next" aria-label="Next page" title="Right arrow">&rsaquo;</button>
</span>
</form>
</header>
<main id="grid"></main>
<p id="empty" hidden>No sample matches.</p>
<dialog id="large" aria-label="Sample"></dialog>
<noscript><p>This page needs JavaScript to show its images.</p></noscript>
<script type="application/json" id="data">%%DATA%%</script>
<script>%%SCRIPT%%</script>
</body>
</html>
"""

_STYLE = """
:root {
  --back: #f6f6f4; --front: #1d1d1f; --soft: #6b6b70; --tile: #fff; --line: #dedede;
  --well: #ececea; --accent: #0a66c2; --bad: #b3261e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --back: #141416; --front: #ededee; --soft: #9a9aa0; --tile: #1f1f22; --line: #343438;
    --well: #18181a; --accent: #6cb2ff; --bad: #ff8a80;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--front);
  font: 14px/1.4 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
header { position: sticky; top: 0; z-index: 1; display: flex; flex-wrap: wrap; gap: 8px 24px;
  align-items: center; justify-content: space-between; padding: 10px 20px;
  background: var(--tile); border-bottom: 1px solid var(--line); }
h1 { margin: 0; font-size: 17px; font-weight: 650; overflow-wrap: anywhere; }
header p { margin: 0; color: var(--soft); font-size: 12.5px; }
.controls, .pages { display: flex; flex-wrap: wrap; gap: 8px; align-items: center; }
select, input, button { font: inherit; color: inherit; background: var(--back);
  border: 1px solid var(--line); border-radius: 7px; padding: 5px 9px; }
select { max-width: 240px; }
input { width: 210px; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
.pages button { min-width: 34px; cursor: pointer; }
button:disabled { opacity: .35; cursor: default; }
output { min-width: 118px; text-align: center; font-variant-numeric: tabular-nums; }
main { display: grid; gap: 12px; padding: 20px;
  grid-template-columns: repeat(auto-fill, minmax(max(SIZEpx, 96px), 1fr)); }
.tile { display: flex; flex-direction: column; min-width: 0; padding: 0; overflow: hidden;
  text-align: left; cursor: zoom-in; background: var(--tile); border-radius: 9px; }
.tile:hover { border-color: var(--accent); }
.well { display: grid; place-items: center; width: 100%; height: SIZEpx; min-height: 64px;
  background: var(--well); overflow: hidden; }
.well img { max-width: min(100%, SIZEpx); max-height: SIZEpx; }
.broken .well { overflow-wrap: anywhere; padding: 8px; font-size: 11.5px; line-height: 1.3;
  color: var(--bad); }
.text { width: 100%; padding: 6px 9px 8px; font-size: 12px; }
.key, .class { display: block; overflow: hidden; white-space: nowrap; text-overflow: ellipsis;
  unicode-bidi: isolate; }
.key { font-weight: 550; }
.class { color: var(--accent); }
.size { display: block; color: var(--soft); font-variant-numeric: tabular-nums; }
#empty { text-align: center; color: var(--soft); padding: 60px 20px; }
dialog { max-width: min(94vw, 900px); max-height: 94vh; padding: 0; color: inherit;
  background: var(--tile); border: 1px solid var(--line); border-radius: 12px; }
dialog:focus-visible { outline: none; }
dialog::backdrop { background: rgb(0 0 0 / .6); }
dialog .well { height: auto; min-height: 200px; padding: 16px; cursor: zoom-out; }
dialog .well img { width: auto; height: min(60vh, 640px); max-width: 100%; max-height: none;
  object-fit: contain; }
dialog.broken .well { font-size: 14px; padding: 40px; }
dl { display: grid; grid-template-columns: auto 1fr; gap: 3px 16px; margin: 0; padding: 14px 18px; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; white-space: pre-wrap; unicode-bidi: isolate; }
"""

# The state (class, query, page, sample enlarged) is the page's fragment: it can be linked to.
_SCRIPT = """
"use strict";
const PAGE = 60;
const {classes, samples} = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const chosen = byId("class"), query = byId("query"), large = byId("large");
let matching = [], page = 1, enlarged = null;

function make(tag, name, ...content) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(...content);  // strings become text, never markup
  return element;
}
function bytes(count) {
  if (count < 1000) return count + " B";
  return count < 1e6 ? (count / 1e3).toFixed(1) + " kB" : (count / 1e6).toFixed(1) + " MB";
}
function classText(sample) {
  if (sample.classes.length) return sample.classes.map((c) => classes[c] ?? String(c)).join(", ");
  return sample.label === null ? "" : "\\u2013";
}
function well(sample) {
  if (sample.error !== null) return make("div", "well", sample.error);
  const image = make("img");
  image.alt = sample.key;
  image.src = "data:image/jpeg;base64," + sample.thumbnail;
  return make("div", "well", image);
}
function tile(sample) {
  const facts = `${sample.width}\\u00d7${sample.height} · ${bytes(sample.bytes)}`;
  const text = make("span", "text", make("span", "key", sample.key.split("/").pop()),
    make("span", "class", classText(sample)), make("span", "size", facts));
  const button = make("button", sample.error === null ? "tile" : "tile broken", well(sample), text);
  button.title = sample.key;
  button.dataset.index = sample.index;
  button.addEventListener("click", () => { enlarged = sample; show(); });
  return button;
}
function enlarge(sample) {
  const facts = [["key", sample.key], ["class", classText(sample)], ["index", sample.index],
    ["pixels", `${sample.width}\\u00d7${sample.height}` +
      (sample.orientation > 1 ? `, Exif orientation ${sample.orientation}` : "")],
    ["bytes", `${sample.bytes.toLocaleString("en")} at ${sample.offset.toLocaleString("en")}`],
    ["encoding", sample.encoding]];
  const list = make("dl");
  for (const [name, value] of facts)
    list.append(make("dt", "", name), make("dd", "", String(value)));
  large.className = sample.error === null ? "" : "broken";
  large.replaceChildren(well(sample), list);
  if (!large.open) large.showModal();
}
function filter() {
  const text = query.value.toLowerCase(), one = chosen.value;
  matching = samples.filter((s) => s.key.toLowerCase().includes(text) &&
    (one === "" || (one === "broken" ? s.error !== null : s.classes.includes(Number(one)))));
}
function show() {
  filter();
  const pages = Math.max(1, Math.ceil(matching.length / PAGE));
  page = Math.min(Math.max(page, 1), pages);
  const first = (page - 1) * PAGE, some = matching.slice(first, first + PAGE);
  byId("grid").replaceChildren(...some.map(tile));
  byId("empty").hidden = some.length > 0;
  byId("position").value = some.length
    ? `${first + 1}\\u2013${first + some.length} of ${matching.length}` : "0";
  byId("previous").disabled = page <= 1;
  byId("next").disabled = page >= pages;
  if (enlarged) enlarge(enlarged); else if (large.open) large.close();
  const state = Object.entries({class: chosen.value, q: query.value, page: page > 1 ? page : "",
    sample: enlarged ? enlarged.index : ""}).filter(([, value]) => value !== "");
  history.replaceState(null, "", "#" + new URLSearchParams(state));
}
function turn(step) {
  if (enlarged) {
    const at = matching.indexOf(enlarged) + step;
    if (at < 0 || at >= matching.length) return;
    enlarged = matching[at];
    page = Math.floor(at / PAGE) + 1;
  } else {
    page += step;
    scrollTo(0, 0);
  }
  show();
}
function restore() {
  const state = new URLSearchParams(location.hash.slice(1));
  chosen.value = state.get("class") ?? "";
  if (chosen.selectedIndex < 0) chosen.value = "";
  query.value = state.get("q") ?? "";
  page = parseInt(state.get("page"), 10) || 1;
  enlarged = samples.find((s) => String(s.index) === state.get("sample")) ?? null;
  show();
}
function options() {
  const counts = new Map();
  for (const s of samples) for (const c of s.classes) counts.set(c, (counts.get(c) ?? 0) + 1);
  const broken = samples.filter((s) => s.error !== null).length;
  const entries = [["", `all classes (${samples.length})`]];
  if (broken) entries.push(["broken", `broken (${broken})`]);
  for (const c of [...counts.keys()].sort((a, b) => a - b))
    entries.push([c, `${classes[c] ?? c} (${counts.get(c)})`]);
  for (const [value, text] of entries) chosen.append(new Option(text, value));
}
chosen.addEventListener("change", () => { page = 1; show(); });
query.addEventListener("input", () => { page = 1; show(); });
byId("controls").addEventListener("submit", (event) => event.preventDefault());
byId("previous").addEventListener("click", () => turn(-1));
byId("next").addEventListener("click", () => turn(1));
large.addEventListener("click", (event) => { if (!event.target.closest("dl")) large.close(); });
large.addEventListener("close", () => {
  const last = enlarged;
  enlarged = null;
  show();
  if (last) document.querySelector(`[data-index="${last.index}"]`)?.focus();
});
addEventListener("hashchange", restore);
addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.target === query || event.target === chosen) {
    if (event.key === "Escape") event.target.blur();
  } else if (event.key === "ArrowLeft") turn(-1);
  else if (event.key === "ArrowRight") turn(1);
  else if (event.key === "/" && !enlarged) { event.preventDefault(); query.focus(); }
});
options();
restore();
"""
