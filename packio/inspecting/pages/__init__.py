"""HTML pages that need no other file: ``page.html`` with its style, its script and its data.

This folder has what pages share, for ``{% include %}``: ``head.html`` (title: ``heading``) and
``colours.css`` of all pages; ``foot.html``, ``tiles.css`` and ``tiles.js`` of pages that show
samples as tiles, which enlarge.

A Content Security Policy allows the page's own style and script, by their digests, and no request.
Every value is shown as text, never as markup.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import jinja2

from packio.errors import CannotCreateError, OutputError, OutputExistsError
from packio.system import files

_SHARED = Path(__file__).parent
_START = b"<!doctype html>"  # as page.html


def make_page(folder: Path, values: dict[str, Any], *, served: bool = False) -> str:
    """Make a page of the templates in a folder: page.html, page.css and perhaps page.js.

    Args:
        folder: The folder.
        values: Name → value, for all templates. Numbers, text, lists, and functions.
        served: The page may ask the server that it came from.
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
    icon = base64.b64encode((_SHARED / "icon.svg").read_bytes()).decode()
    page = templates.get_template("page.html")
    return page.render({**values, "policy": policy, "style": style, "script": text, "icon": icon})


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


def write_page(path: Path, text: bytes) -> None:
    """Write a page; it appears when it is complete."""
    try:
        with files.replacing(path) as file:
            file.write(text)
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from error


def readable(name: bytes | str) -> str:
    """Text of a key or a name; bytes that are not UTF-8 become escapes, in any locale.

    Args:
        name: Bytes, or surrogate-escaped text.
    """
    if isinstance(name, bytes):
        return name.decode("utf-8", "backslashreplace")
    try:
        data = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # other surrogates, as in JSON
        data = name.encode("utf-8", "backslashreplace")
    return data.decode("utf-8", "backslashreplace")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
