"""The diagnosis as one HTML page: words, tables, and plots drawn as SVG, without any other file."""

from __future__ import annotations

import base64
import hashlib
import html

from packio.measuring.doctor import findings, wording
from packio.measuring.doctor.findings import Finding
from packio.measuring.doctor.measured import Kind, Measured, Trial

_WIDTH = 760  # of the plots, in their own units
_ROW = 30
_NAMES = 190  # width of the names on the left
_COLOURS = {Kind.STEP: "step", Kind.MEMORY_FORMAT: "layout", Kind.COPY: "copy"}


def make_page(measured: Measured, found: list[Finding], remedies: list[Trial]) -> str:
    """Make the page."""
    tried = sorted(measured.trials, key=lambda t: t.factor.median, reverse=True)
    values = {
        "POLICY": f"default-src 'none'; base-uri 'none'; style-src '{_digest(_STYLE)}'",
        "STYLE": _STYLE,
        "VERDICT": html.escape(wording.verdict(measured, found)),
        "LOADER": html.escape(measured.loader),
        "SHARES": _shares(measured),
        "EVIDENCE": _table(wording.evidence(measured)),
        "REMEDIES": _remedies(remedies),
        "TRIALS": _trials(tried),
    }
    parts = _PAGE.split("%%")
    return "".join(values.get(part, part) for part in parts)


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _shares(measured: Measured) -> str:
    """Bars: the loop's time, shared out."""
    shares = [(k, v) for k, v in findings.shares(measured).items() if v >= 0.005]
    shares.sort(key=lambda part: -part[1])
    width = _WIDTH - _NAMES - 60
    rows = []
    for number, (kind, share) in enumerate(shares):
        y, length = number * _ROW, max(1.0, share * width)
        colour = _COLOURS.get(kind, "data")
        rows.append(
            f'<text class="name" x="{_NAMES - 12}" y="{y + 19}">{kind.value}</text>'
            f'<rect class="{colour}" x="{_NAMES}" y="{y + 5}" width="{length:.1f}" height="18" '
            f'rx="3"/><text x="{_NAMES + length + 8:.1f}" y="{y + 19}">{share:.0%}</text>'
        )
    return _svg("Shares of the loop's time", len(shares) * _ROW, rows)


def _trials(trials: list[Trial]) -> str:
    """Points with whiskers: gains over the loop as it is."""
    if not trials:
        return "<p>Nothing was tried.</p>"
    most = max(1.2, *(t.factor.high for t in trials)) * 1.02
    width = _WIDTH - _NAMES - 70

    def at(factor: float) -> float:
        return _NAMES + min(factor, most) / most * width

    height = len(trials) * _ROW
    rows = [f'<line class="unit" x1="{at(1):.1f}" x2="{at(1):.1f}" y1="0" y2="{height}"/>']
    for number, trial in enumerate(trials):
        y, factor = number * _ROW + 14, trial.factor
        colour = "gain" if trial.is_gain else "none"
        rows.append(
            f'<text class="name" x="{_NAMES - 12}" y="{y + 5}">{html.escape(trial.change)}</text>'
            f'<line class="{colour}" x1="{at(factor.low):.1f}" x2="{at(factor.high):.1f}" '
            f'y1="{y}" y2="{y}"/><circle class="{colour}" cx="{at(factor.median):.1f}" cy="{y}" '
            f'r="5"/><text x="{at(factor.high) + 12:.1f}" y="{y + 5}">'
            f"{wording.TIMES}{factor.median:.2f}"
            f"{'' if trial.pairs else ' at first look'}</text>"
        )
    return _svg("Gains of what was tried", height, rows)


def _svg(title: str, height: int, rows: list[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img"><title>{html.escape(title)}</title>'
        f"{''.join(rows)}</svg>"
    )


def _table(rows: list[tuple[str, str]]) -> str:
    cells = (f"<tr><th>{html.escape(n)}</th><td>{html.escape(v)}</td></tr>" for n, v in rows)
    return f"<table>{''.join(cells)}</table>"


def _remedies(remedies: list[Trial]) -> str:
    if not remedies:
        return "<p>Nothing that was tried is clearly faster.</p>"
    items = []
    for trial in remedies:
        note = f"<small>{html.escape(trial.note)}</small>" if trial.note else ""
        items.append(
            f"<li><b>{html.escape(wording.gain(trial))}</b> {html.escape(trial.change)}"
            f"<code>{html.escape(trial.code)}</code>{note}</li>"
        )
    return f"<ol>{''.join(items)}</ol>"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="%%POLICY%%">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>packio doctor</title>
<style>%%STYLE%%</style>
</head>
<body>
<main>
<p class="kicker">packio doctor · %%LOADER%%</p>
<h1>%%VERDICT%%</h1>
<section><h2>Where the loop's time goes</h2>%%SHARES%%</section>
<section><h2>What helps</h2>%%REMEDIES%%</section>
<section><h2>What was tried, in turns with the loop as it is</h2>%%TRIALS%%</section>
<section><h2>What was measured</h2>%%EVIDENCE%%</section>
</main>
</body>
</html>
"""

_STYLE = """
:root { --back: #f6f6f4; --front: #1d1d1f; --soft: #6b6b70; --tile: #fff; --line: #dedede;
  --data: #c2571a; --step: #2f7d4f; --layout: #a3388c; --copy: #3c66b0; --accent: #0a66c2; }
@media (prefers-color-scheme: dark) {
  :root { --back: #141416; --front: #ededee; --soft: #9a9aa0; --tile: #1f1f22; --line: #343438;
    --data: #f0935a; --step: #6cc792; --layout: #e283cf; --copy: #86aef2; --accent: #6cb2ff; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--front);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 860px; margin: 0 auto; padding: 32px 20px; }
.kicker { margin: 0; color: var(--soft); font-size: 13px; }
h1 { margin: 4px 0 24px; font-size: 25px; line-height: 1.3; font-weight: 650; }
h2 { margin: 0 0 12px; font-size: 15px; font-weight: 650; }
section { margin: 0 0 16px; padding: 18px 20px; background: var(--tile);
  border: 1px solid var(--line); border-radius: 10px; }
svg { display: block; width: 100%; height: auto; }
text { fill: var(--front); font-size: 14px; font-variant-numeric: tabular-nums; }
text.name { text-anchor: end; }
rect.data { fill: var(--data); } rect.step { fill: var(--step); }
rect.layout { fill: var(--layout); } rect.copy { fill: var(--copy); }
line { stroke-width: 3; stroke-linecap: round; }
line.unit { stroke: var(--line); stroke-width: 2; }
line.gain { stroke: var(--step); } circle.gain { fill: var(--step); }
line.none { stroke: var(--soft); } circle.none { fill: var(--soft); }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { padding: 4px 12px 4px 0; text-align: left; vertical-align: top; }
th { color: var(--soft); font-weight: 500; white-space: nowrap; }
td { width: 100%; font-variant-numeric: tabular-nums; }
ol { margin: 0; padding-left: 22px; } li { margin: 0 0 10px; }
code { display: block; width: fit-content; max-width: 100%; margin: 3px 0; padding: 3px 8px;
  overflow-x: auto; background: var(--back); border-radius: 6px; font-size: 13px; }
small { color: var(--soft); }
"""
