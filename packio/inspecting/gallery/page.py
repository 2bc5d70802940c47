"""The page of a contact sheet: its HTML, style and script, with the data put in."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packio.packs.packs import Pack

START = b"<!doctype html>"  # as _PAGE


def readable(name: bytes) -> str:
    """A key or a name for people: bytes that are not UTF-8 as escapes."""
    return name.decode("utf-8", "backslashreplace")


def make_page(pack: Pack, entries: list[dict[str, Any]], samples: int, size: int) -> bytes:
    """Make the HTML file.

    Args:
        pack: What is shown.
        entries: One for each sample shown, as JSON can hold it.
        samples: How many there are to choose from.
        size: Longer edge of a thumbnail, pixels on the page.
    """
    name = readable(os.fsencode(pack.path.resolve().name))
    shown = f"{len(entries):,} of {samples:,} samples"
    if len(entries) == samples:
        shown = f"{samples:,} samples"
    facts = [
        shown + (", spread evenly" if len(entries) < samples else ""),
        f"{len(pack.classes):,} classes",
        str(pack.metadata["format"]),
        f"digest {pack.digest[:12]}",
    ]
    classes = [readable(os.fsencode(c)) for c in pack.classes]
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
