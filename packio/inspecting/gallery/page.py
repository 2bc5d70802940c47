"""The page of a contact sheet: page.html, page.css and page.js beside this file, with the data."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packio.packs.packs import Pack

START = b"<!doctype html>"  # as page.html
_FOLDER = Path(__file__).parent


def readable(name: bytes) -> str:
    """Text of a key or a name; bytes that are not UTF-8 become escapes."""
    return name.decode("utf-8", "backslashreplace")


def make_page(pack: Pack, entries: list[dict[str, Any]], samples: int, size: int) -> bytes:
    """Make the HTML file.

    Args:
        pack: The pack that is shown.
        entries: One record for each sample shown, as JSON can hold it.
        samples: Number of samples that these were chosen from.
        size: Longer edge of a thumbnail, pixels on the page.
    """
    import jinja2

    shown = f"{len(entries):,} of {samples:,} samples, spread evenly"
    facts = [
        f"{samples:,} samples" if len(entries) == samples else shown,
        f"{len(pack.classes):,} classes",
        str(pack.metadata["format"]),
        f"digest {pack.digest[:12]}",
    ]
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER), autoescape=jinja2.select_autoescape(["html"]),
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    templates.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    style = templates.get_template("page.css").render(size=size)
    script = (_FOLDER / "page.js").read_text(encoding="utf-8")
    page = templates.get_template("page.html").render(
        policy="default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src '{_digest(style)}'; script-src '{_digest(script)}'",
        title=readable(os.fsencode(pack.path.resolve().name)),
        facts=facts,
        style=style,
        script=script,
        data={"classes": [readable(os.fsencode(c)) for c in pack.classes], "samples": entries},
    )
    return page.encode()


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
