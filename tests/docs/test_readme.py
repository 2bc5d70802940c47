"""README.md and the pages in docs/ run as they are printed, and name all there is."""

from __future__ import annotations

import importlib
import json
import pathlib
import re
import shutil
import sys
from typing import TYPE_CHECKING, Any

import make_reference
import make_site
import numpy as np
import printed
import pytest
import readme_picture
import readme_tables

import packio
from packio import registry
from packio.formats import Reading
from packio.inspecting import info

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = pathlib.Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
_HERE = pathlib.Path(__file__).parent
PAGES = sorted(DOCS.rglob("*.md"))


def _name(page: pathlib.Path) -> str:
    return page.stem


def _word(page: pathlib.Path) -> str:
    return page.stem.replace("-", "_")


# Pages that need more beside them have a test of their own, as test_cluster_page.py.
_TOP = [p for p in PAGES if p.parent == DOCS and not (_HERE / f"test_{_word(p)}_page.py").exists()]
_LANGUAGE = re.compile(r"^```(\w*)\n.*?^```$", re.MULTILINE | re.DOTALL)
_GUIDES = [p for p in PAGES if p.parent.name in {"guides", "concepts", "reference"}]
_PLUGIN = re.compile(
    r"^`packio/(?:images/)?(\w+)/(\w+)\.py`:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


def test_the_readme_fits_on_a_page_or_two() -> None:
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 150


@pytest.fixture
def beside(
    tmp_path: pathlib.Path, image_folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> pathlib.Path:
    """The folder in which a page's code runs: photographs, and a container of somebody else's."""
    for split in ("train", "val"):
        shutil.copytree(image_folder, tmp_path / "photos" / split)
    for path in [p for p in (tmp_path / "photos" / "val").rglob("*.*") if p.is_file()]:
        path.rename(path.with_name(f"val-{path.name}"))  # keys of their own
    shutil.copy(REPOSITORY / "tests/frozen/foreign/photos.beton", tmp_path / "train.beton")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("block", ["console\n$ true\n$ false | cat", "python\nassert 1 == 2"])
def test_code_that_fails_is_noticed(block: str, tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n```{block}\n```\n")
    with pytest.raises(AssertionError):
        printed.run(page, tmp_path)


def test_the_code_of_the_readme_runs(beside: pathlib.Path) -> None:
    assert printed.run(REPOSITORY / "README.md", beside) >= 2


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset's
@pytest.mark.usefixtures("torchvision")
@pytest.mark.parametrize("page", _TOP, ids=_name)
def test_the_code_of_a_page_runs(page: pathlib.Path, beside: pathlib.Path) -> None:
    printed.run(page, beside)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.usefixtures("torchvision")
@pytest.mark.parametrize("page", _GUIDES, ids=_name)
def test_the_code_of_a_guide_runs(page: pathlib.Path, beside: pathlib.Path) -> None:
    """Guides find what the start page makes."""
    packio.pack("photos/train", "train.lmdb")
    packio.pack("photos/val", "val.lmdb", classes_from="train.lmdb")
    printed.run(page, beside)


def test_code_that_cannot_run_is_marked_as_text() -> None:
    languages = {
        language
        for page in [REPOSITORY / "README.md", *PAGES]
        for language in _LANGUAGE.findall(page.read_text())
    }
    assert languages <= {"python", "console", "text", "diff", "bash"}


def test_no_page_sends_pip_to_another_index() -> None:
    """PyTorch's own page says where its builds are."""
    pages = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *PAGES]
    assert [page for page in pages if re.search(r"index-url|find-links", page.read_text())] == []


def test_links_lead_somewhere() -> None:
    found = [
        (page, link.partition("#")[0])
        for page in [REPOSITORY / "README.md", *PAGES]
        for link in re.findall(r"\]\((?!http)([^)#]+[^)]*)\)", page.read_text())
    ]
    assert len(found) >= 8
    assert [(page, link) for page, link in found if not (page.parent / link).exists()] == []


def test_links_of_pages_stay_within_the_site() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\((?!http)([^)#]+)", make_site.copied(page)):
            target = (page.parent / link).resolve()
            is_picture = target.is_relative_to(DOCS / "benchmarks" / "results")  # copied there
            assert is_picture or target.exists(), (page, link)
            assert target.is_relative_to(DOCS), (page, link)


def test_the_guide_names_every_example() -> None:
    text = (DOCS / "guides" / "examples.md").read_text()
    commands = re.findall(
        r"^\| `(?:python|torchrun [^`]*) (examples/\w+\.py)` \|", text, re.MULTILINE
    )
    examples = sorted((REPOSITORY / "examples").glob("*.py"))
    assert sorted(commands) == [f"examples/{path.name}" for path in examples]


def test_the_guide_names_every_key_of_info(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    packio.pack(image_folder, tmp_path / "a.tar")
    with packio.open(tmp_path / "a.tar") as pack:
        described = info.describe(pack)
    text = (DOCS / "guides" / "look.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    assert sorted(named) == sorted(
        [*described, *(f"labels.{name}" for name in described["labels"])]
    )


def test_the_reference_names_every_exit_code() -> None:
    text = (DOCS / "reference" / "exit-codes.md").read_text()
    named = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    errors = [getattr(packio.errors, name) for name in vars(packio.errors)]
    codes = {
        e.exit_code for e in errors if isinstance(e, type) and issubclass(e, packio.PackioError)
    }
    assert named == {0, 130} | codes


def test_the_reference_names_every_environment_variable() -> None:
    sources = (REPOSITORY / "packio").rglob("*.py")
    named = {name for p in sources for name in re.findall(r'"(PACKIO_[A-Z_]+)"', p.read_text())}
    text = (DOCS / "reference" / "environment.md").read_text()
    assert set(re.findall(r"^\| `(PACKIO_[A-Z_]+)` \|", text, re.MULTILINE)) == named


@pytest.mark.parametrize("path", sorted(make_reference.pages()), ids=_name)
def test_the_generated_reference_is_not_stale(path: pathlib.Path) -> None:
    made = make_reference.pages()[path]
    assert path.read_text() == made, "run: python tools/make_reference.py"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_picture_of_the_readme_is_what_was_measured(theme: str) -> None:
    result = json.loads(readme_picture.RESULTS.read_text())
    picture = readme_picture.IMAGES / f"peers-{theme}.svg"
    assert picture.read_text() == readme_picture.drawn(result, theme)


def test_the_reference_names_every_decoder() -> None:
    text = (DOCS / "reference" / "decoders.md").read_text()
    install = text[text.index("| decoder | install |") :]
    assert [d for d in registry.names("decoders") if d not in install.partition("\n\n")[0]] == []


@pytest.fixture
def extended(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The plugins that extending.md prints, each put where the registry finds it."""
    found = _PLUGIN.findall((DOCS / "extending.md").read_text())
    for kind, name, code in found:
        folder = tmp_path / "plugins" / kind
        folder.mkdir(parents=True)
        (folder / f"{name}.py").write_text(code)
        package = importlib.import_module(registry.PACKAGES[kind])
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    registry.names.cache_clear()
    registry.list_built_in.cache_clear()
    yield [f"{kind}/{name}" for kind, name, _ in found]
    for kind, name, _ in found:
        sys.modules.pop(f"{registry.PACKAGES[kind]}.{name}", None)
    monkeypatch.undo()
    registry.names.cache_clear()
    registry.list_built_in.cache_clear()


def test_the_example_plugins_are_found(extended: list[str]) -> None:
    assert sorted(extended) == ["decoders/imageio", "formats/blob", "sources/dotted"]
    for example in extended:
        kind, _, name = example.partition("/")
        assert name in registry.names(kind)


@pytest.mark.parametrize("name", ["blob", "dotted"])
def test_the_example_distribution_has_what_is_printed(name: str) -> None:
    printed = {one: code for _, one, code in _PLUGIN.findall((DOCS / "extending.md").read_text())}
    file = REPOSITORY / f"tests/plugins/packio_example/packio_example/{name}.py"
    assert file.read_text() == printed[name]


@pytest.mark.usefixtures("extended")
def test_the_example_decoder_decodes(image_folder: pathlib.Path) -> None:
    pytest.importorskip("imageio")
    from packio.images.decoders import pillow

    decoder: Any = registry.load("decoders", "imageio")
    data = (image_folder / "machines" / "progressive.jpg").read_bytes()
    pixels = decoder.decode(data)
    assert np.abs(pixels.astype(int) - pillow.decode(data)).max() <= 2
    with pytest.raises(packio.DecodeError):
        decoder.decode(b"no image")


@pytest.mark.usefixtures("extended")
def test_the_example_format_packs_and_the_example_source_lists(
    tmp_path: pathlib.Path, image_folder: pathlib.Path
) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    files = sorted(p for p in image_folder.rglob("*.*"))
    for i, path in enumerate(files):
        shutil.copy(path, flat / f"{path.parent.name}.{i}{path.suffix}")
    packio.pack(flat, tmp_path / "out.blob")
    with packio.open(tmp_path / "out.blob") as pack:
        assert pack.classes == ["machines", "nature", "people"]
        assert [s.data for s in pack] == [p.read_bytes() for p in sorted(flat.iterdir())]
        labels: Any = pack.labels
        assert [pack.classes[label] for label in labels] == [s.key.split(".")[0] for s in pack]
        records = list(registry.load("formats", "blob").scan(tmp_path / "out.blob", Reading()))
        assert [r.image.length for r in records] == [len(s.data) for s in pack]


def test_the_rates_of_alternatives_are_those_measured() -> None:
    result = json.loads(readme_picture.RESULTS.read_text())
    rows = [row for work in ("rrc224", "rrc224_float")
            for row in result["works"][work]["candidates"].values()]  # fmt: skip
    measured = {round(row["images_per_second"]["median"]) for row in rows}
    text = (DOCS / "alternatives.md").read_text()
    said = re.findall(r"([\d,]+) (?:images a second|contiguous|with Pillow|from JPEGs)", text)
    assert len(said) >= 7
    assert {int(rate.replace(",", "")) for rate in said} <= measured


@pytest.mark.parametrize("name", readme_tables.TABLES)
def test_a_table_has_what_was_measured(name: str) -> None:
    page = readme_tables.page_of(name)
    text = page.read_text()
    assert readme_tables.filled(text, name) == text, "run: python tools/readme_tables.py"


def test_the_architecture_page_names_files_that_exist() -> None:
    text = (DOCS / "architecture.md").read_text()
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", text))
    assert len(named) > 20
    places = [REPOSITORY, REPOSITORY / "packio"]
    assert [name for name in named if not any((place / name).exists() for place in places)] == []
