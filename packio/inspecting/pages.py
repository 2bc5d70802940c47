"""HTML pages that need no other file: ``page.html`` with its style, its script and its data.

A Content Security Policy allows the page's own style and script, by their digests, and no request.
Every value is shown as text, never as markup.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import jinja2


def make_page(folder: Path, values: dict[str, Any]) -> str:
    """Make a page of the templates in a folder: page.html, page.css and perhaps page.js.

    Args:
        folder: The folder.
        values: Name → value, for all templates. Numbers, text, lists, and functions.
    """
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=jinja2.select_autoescape(["html"]),
        undefined=jinja2.StrictUndefined, trim_blocks=True,
    )  # fmt: skip
    templates.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    style = templates.get_template("page.css").render(values)
    script = folder / "page.js"
    text = script.read_text(encoding="utf-8") if script.exists() else ""
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src '{_digest(style)}'; script-src '{_digest(text)}'"
    )
    page = templates.get_template("page.html")
    return page.render({**values, "policy": policy, "style": style, "script": text})


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
