"""Build the site of docs/ into build/site, strictly: a link that leads nowhere fails.

Zensical makes the pages of a copy, in which pictures of benchmarks/results lie beside the pages,
and README.md is the site's first page. Beside the pages this puts their Markdown, and llms.txt
(https://llmstxt.org): the table of contents, with a sentence about each page.

    python tools/make_site.py
"""

from __future__ import annotations

import html.parser
import pathlib
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

import packio

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
DOCS = REPOSITORY / "docs"
COPY = REPOSITORY / "build" / "docs"
SITE = REPOSITORY / "build" / "site"
_ABOUT = "Pack image datasets into standard containers, and read them into PyTorch fast."
_PICTURE = re.compile(r"\]\((?:\.\./)+(benchmarks/results/([\w.-]+\.svg))\)")
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_README = re.compile(r"\]\((?:\.\./)+README\.md(#[\w-]*)?\)")


class Entry(NamedTuple):
    """A line of the table of contents: a page, or the title of a section."""

    level: int
    title: str
    path: str  # empty: a section


def contents(text: str) -> list[Entry]:
    """Parse docs/contents.md."""
    lines = re.findall(r"^( *)\* (?:\[(.+?)\]\((.+?)\)|(.+))$", text, re.MULTILINE)
    return [Entry(len(s) // 4, title or other, path) for s, title, path, other in lines]


def about(page: pathlib.Path) -> str:
    """First sentence of a page, as plain text; nothing, if there is no prose."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    prose = next((block for block in text.split("\n\n")[1:] if re.match(r"[\w`]", block)), "")
    plain = re.sub(r"\[(.+?)\]\(.+?\)", r"\1", " ".join(prose.split()))
    sentence = re.split(r"(?<=\.)\s", plain)[0]
    return sentence.removesuffix(":").removesuffix(".") + "." if sentence else ""


def llms(entries: list[Entry]) -> str:
    """Write the table of contents as llms.txt."""
    lines = ["# packio", "", f"> {_ABOUT}", ""]
    for entry in entries:
        if not entry.path:
            lines += ["", f"{'#' * (entry.level + 2)} {entry.title}", ""]
        else:
            said = about(DOCS / entry.path)
            lines += [f"- [{entry.title}]({entry.path})" + (f": {said}" if said else "")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join([*lines, ""]))


class _Names(html.parser.HTMLParser):
    """Collects what the headings of a page of the reference are called in links."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take the id of a tag."""
        self.found.update(value for name, value in attrs if name == "id" and value)


def documented() -> set[str]:
    """Find the names whose docstrings are on the site, as ``packio.pack``."""
    names = _Names()
    for page in (SITE / "reference" / "python").rglob("*.html"):
        names.feed(page.read_text())
    return names.found


def copied(page: pathlib.Path) -> str:
    """Text of a page whose links to files outside of docs/ lead to their copies."""
    up = "../" * (len(page.relative_to(DOCS).parts) - 1)
    text = _README.sub(f"]({up}index.md)", page.read_text())
    parts = _CODE.split(_PICTURE.sub(rf"]({up}\1)", text))
    parts[::2] = [part.replace("[]", r"\[\]") for part in parts[::2]]  # FLOAT[][] is no link
    return "".join(parts)


def copy() -> None:
    """Copy docs/ to where the site is built from."""
    shutil.rmtree(COPY, ignore_errors=True)
    shutil.copytree(DOCS, COPY)
    for page in DOCS.rglob("*.md"):
        (COPY / page.relative_to(DOCS)).write_text(copied(page))
        for picture, _ in _PICTURE.findall(page.read_text()):
            (COPY / picture).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / picture, COPY / picture)


def main() -> None:
    """Build the site."""
    copy()
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    if subprocess.run(command, cwd=REPOSITORY, check=False).returncode:
        sys.exit("docs/: the site was not built; what is wrong stands above")
    for page in COPY.rglob("*.md"):
        shutil.copy(page, SITE / page.relative_to(COPY))
    (SITE / "llms.txt").write_text(llms(contents((DOCS / "contents.md").read_text())))
    there = documented()
    missing = [
        name
        for name, module in packio._PUBLIC.items()  # noqa: SLF001 (names and where they are)
        if not {f"packio.{name}", f"packio.{module}.{name}"} & there
    ]
    if missing:
        sys.exit(f"build/site: no docstrings of {missing}; run: python tools/make_reference.py")
    print(f"{SITE.relative_to(REPOSITORY)}: {len(list(SITE.rglob('*.html')))} pages")


if __name__ == "__main__":
    main()
