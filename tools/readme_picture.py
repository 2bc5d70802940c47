"""Draw README's picture: a bar for each library, from benchmarks/results/peers_100kb.json.

Groups of bars show batches of bytes, normalised floats, and bytes with RandAugment. Each peer is
shown by its fastest way, packio by its Loader with exact pixels in LMDB, of JPEGs as they are and
with open coefficients. Whiskers go from the slowest to the fastest round.

    python tools/readme_picture.py            # write docs/images/peers-light.svg and -dark.svg
    python tools/readme_picture.py --check    # exit with 1 where a picture is stale
"""

from __future__ import annotations

import argparse
import html
import json
import pathlib
import sys
from typing import Any, NamedTuple

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "benchmarks" / "results" / "peers_100kb.json"
IMAGES = REPOSITORY / "docs" / "images"

Json = dict[str, Any]
_OWN = {  # candidates of benchmarks/peers/run.py → how the picture calls them
    "packio, Loader kept exact lmdb": "packio, JPEGs as they are",
    "packio, Loader kept exact core lmdb": "packio, JPEGs as they are",
    "packio, Loader dct exact lmdb": "packio, --encode dct",
}
_PEERS = {
    "torchvision": "torchvision", "ffcv": "FFCV", "dali": "DALI on the processor",
    "webdataset": "WebDataset", "litdata": "LitData", "streaming": "MosaicML Streaming",
    "spdl": "SPDL", "turboloader": "TurboLoader",
}  # fmt: skip
_GROUPS = {
    "rrc224": "RandomResizedCrop(224) and flip of JPEGs of {size:.0f} kB: images per second",
    "rrc224_float": "the same, as normalised float32",
    "randaugment": "the same as bytes, with timm's RandAugment",
}
_THEMES = {  # text, packio's bars, other bars, whiskers
    "light": ("#1f2328", "#c2410c", "#94a3b8", "#334155"),
    "dark": ("#e6edf3", "#fb923c", "#64748b", "#cbd5e1"),
}
_WIDTH, _LEFT, _RIGHT, _BAR, _TOP, _BETWEEN = 790, 300, 715, 26, 52, 30  # pixels


class Bar(NamedTuple):
    """One bar: images per second."""

    name: str
    is_own: bool
    median: float
    lowest: float
    highest: float


def bars(result: Json, work: str) -> list[Bar]:
    """Choose the bars of a group, the fastest first."""
    rows: Json = result["works"][work]["candidates"]
    chosen = {name: title for name, title in _OWN.items() if name in rows}
    for peer, title in _PEERS.items():
        theirs = {name: row for name, row in rows.items() if row["peer"] == peer}
        if not theirs:
            continue
        name = max(theirs, key=lambda n: float(theirs[n]["images_per_second"]["median"]))
        chosen[name] = title + ("" if theirs[name]["contiguous"] else ", strided batches")
    found = []
    for name, title in chosen.items():
        rate = rows[name]["images_per_second"]
        shown = title
        if " dct " in name:
            given = result["works"][work]
            held = rows[name]["bytes_stored"] / given["images"] / given["kilobytes_per_image"] / 1e3
            shown = f"{title}, {held:.1f} x bytes"
        found.append(Bar(shown, name in _OWN, rate["median"], rate["min"], rate["max"]))
    return sorted(found, key=lambda bar: -bar.median)


def drawn(result: Json, theme: str) -> str:
    """Draw the groups of bars as SVG."""
    text, own, other, whisker = _THEMES[theme]
    machine = result["machine"]
    groups = {work: bars(result, work) for work in _GROUPS}
    size = result["works"]["rrc224"]["kilobytes_per_image"]
    titles = [html.escape(title.format(size=size)) for title in _GROUPS.values()]
    height = _TOP + sum(_BAR * len(group) + _BETWEEN for group in groups.values()) - _BETWEEN + 10
    scale = (_RIGHT - _LEFT) / max(bar.highest for group in groups.values() for bar in group)
    where = f"{machine['cpu']}, {machine['cores']} cores, files in the page cache"
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    look = f'font-family="sans-serif" font-size="14" fill="{text}"'
    small = f'<text x="8" y="37" font-size="12">{html.escape(where)}; lines: slowest to fastest'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {look} role="img">',
        f"<title>{titles[0]}</title>",
        f'<text x="8" y="18" font-weight="bold">{titles[0]}</text>',
        f"{small} round</text>",
    ]
    top = _TOP
    for title, group in zip(titles, groups.values(), strict=True):
        if title != titles[0]:
            lines += [f'<text x="8" y="{top - 10}" font-weight="bold">{title}</text>']
        for i, bar in enumerate(group):
            colour = own if bar.is_own else other
            lines += _draw_bar(bar, top + _BAR * i, scale, colour, whisker)
        top += _BAR * len(group) + _BETWEEN
    return "\n".join([*lines, "</svg>", ""])


def _draw_bar(bar: Bar, y: int, scale: float, colour: str, whisker: str) -> list[str]:
    middle, length, thick = y + _BAR // 2 - 2, bar.median * scale, _BAR - 6
    low, high = _LEFT + bar.lowest * scale, _LEFT + bar.highest * scale
    at = f'y="{middle + 5}"' + (' font-weight="bold"' if bar.is_own else "")
    box = f'x="{_LEFT}" y="{y}" width="{length:.1f}" height="{thick}" rx="2"'
    return [
        f'<text x="{_LEFT - 8}" {at} text-anchor="end">{html.escape(bar.name)}</text>',
        f'<rect {box} fill="{colour}"/>',
        f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="{whisker}" stroke-width="2"/>',
        f'<text x="{_RIGHT + 12}" {at}>{bar.median:,.0f}</text>',
    ]


def main() -> None:
    """Write the pictures, or check them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only tell whether they are stale")
    check = parser.parse_args().check
    result = json.loads(RESULTS.read_text())
    for theme in _THEMES:
        path, new = IMAGES / f"peers-{theme}.svg", drawn(result, theme)
        if check and (not path.exists() or path.read_text() != new):
            sys.exit(f"{path.name} is stale; run: python tools/readme_picture.py")
        if not check:
            path.write_text(new)


if __name__ == "__main__":
    main()
