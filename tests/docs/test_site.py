"""The table of contents of the site has all pages, and llms.txt is made of it."""

from __future__ import annotations

import pathlib

import make_site
import pytest

PAGES = sorted(make_site.DOCS.rglob("*.md"))


@pytest.fixture
def docs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder of two pages in the place of docs/."""
    monkeypatch.setattr(make_site, "DOCS", tmp_path)
    (tmp_path / "guides").mkdir()
    (tmp_path / "start.md").write_text(
        "# Begin\n\n```text\nno prose\n```\n\nFirst [steps](a.md). More.\n"
    )
    (tmp_path / "guides" / "new.md").write_text("# A new guide\n\nIt says how:\n")
    return tmp_path


@pytest.mark.usefixtures("docs")
def test_llms_txt_says_a_sentence_of_each_page() -> None:
    entries = make_site.contents(
        "* [Start](start.md)\n* Guides\n    * [A new guide](guides/new.md)\n"
    )
    assert make_site.llms(entries).splitlines()[3:] == [
        "", "- [Start](start.md): First steps.", "", "## Guides", "",
        "- [A new guide](guides/new.md): It says how.",
    ]  # fmt: skip


def test_the_copy_leads_to_copies(docs: pathlib.Path) -> None:
    page = docs / "guides" / "new.md"
    page.write_text(
        "![A](../../benchmarks/results/a.svg) [B](../../README.md#b) [C](../c.md#d)\n[][] `[]`"
    )
    expected = (
        "![A](../benchmarks/results/a.svg) [B](../index.md) [C](../c.md#d)\n\\[\\]\\[\\] `[]`"
    )
    assert make_site.copied(page) == expected


def test_every_page_is_in_the_table_of_contents() -> None:
    text = (make_site.DOCS / "contents.md").read_text()
    there = [entry.path for entry in make_site.contents(text) if entry.path]
    assert len(there) == len(set(there))
    pages = {str(page.relative_to(make_site.DOCS)) for page in PAGES}
    assert set(there) == pages - {"contents.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_a_page_begins_with_its_title_and_says_what_it_is_about(page: pathlib.Path) -> None:
    text = page.read_text()
    assert text.startswith("# ")
    assert text.count("\n# ") == 0 or "```" in text
    if page.name != "contents.md":
        assert make_site.about(page)
