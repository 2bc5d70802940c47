"""README.md, EXTENDING.md and the pages in docs/ run as they are printed."""

from __future__ import annotations

import importlib
import pathlib
import re
import shutil
import sys
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import readme_tables

import packio
from packio import registry
from packio.formats import Reading

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = pathlib.Path(__file__).parents[2]
_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PLUGIN = re.compile(
    r"^`packio/(?:images/)?(\w+)/(\w+)\.py`:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


def test_the_python_of_the_readme_runs(
    tmp_path: pathlib.Path, image_folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks, in order, as one program, beside the folders that they name."""
    for split in ("train", "val"):
        shutil.copytree(image_folder, tmp_path / "photos" / split)
    monkeypatch.chdir(tmp_path)
    assert _run_blocks(REPOSITORY / "README.md") >= 4


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset's
@pytest.mark.usefixtures("torchvision")
@pytest.mark.parametrize(
    "page", sorted((REPOSITORY / "docs").glob("from-*.md")), ids=lambda p: p.stem
)
def test_the_python_of_a_page_runs(
    page: pathlib.Path,
    tmp_path: pathlib.Path,
    image_folder: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(image_folder, tmp_path / "photos" / "train")
    shutil.copy(REPOSITORY / "tests/frozen/foreign/photos.beton", tmp_path / "train.beton")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))
    assert _run_blocks(page) >= 1


def _run_blocks(page: pathlib.Path) -> int:
    """Run the Python blocks of a page, in order, as one program; tell how many there are."""
    text = page.read_text()
    blocks = _PYTHON.findall(text)
    program = types.ModuleType("page")
    for block in blocks:
        line = text[: text.index(block)].count("\n")
        exec(compile("\n" * line + block, page.name, "exec"), vars(program))  # noqa: S102 (ours)
    return len(blocks)


def test_links_lead_somewhere() -> None:
    pages = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
    found = [
        (page, link.partition("#")[0])
        for page in pages
        for link in re.findall(r"\]\((?!http)([^)#]+[^)]*)\)", page.read_text())
    ]
    assert len(found) >= 8
    assert [(page, link) for page, link in found if not (page.parent / link).exists()] == []


def test_the_readme_names_every_example() -> None:
    text = (REPOSITORY / "README.md").read_text()
    commands = re.findall(
        r"^\| `(?:python|torchrun [^`]*) (examples/\w+\.py)` \|", text, re.MULTILINE
    )
    examples = sorted((REPOSITORY / "examples").glob("*.py"))
    assert sorted(commands) == [f"examples/{path.name}" for path in examples]


def test_the_readme_names_every_exit_code() -> None:
    text = (REPOSITORY / "README.md").read_text()
    named = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    errors = [getattr(packio.errors, name) for name in vars(packio.errors)]
    codes = {
        e.exit_code for e in errors if isinstance(e, type) and issubclass(e, packio.PackioError)
    }
    assert named == {0, 130} | codes


def test_the_readme_names_every_command() -> None:
    text = (REPOSITORY / "README.md").read_text()
    modules = (REPOSITORY / "packio" / "cli").glob("[a-z]*.py")
    commands = [module.stem.replace("_", "-") for module in modules]
    assert [c for c in commands if f"packio {c}" not in text] == []


def test_the_readme_names_every_decoder() -> None:
    text = (REPOSITORY / "README.md").read_text()
    install = text[text.index("| decoder | install |") :]
    assert [d for d in registry.names("decoders") if d not in install.partition("\n\n")[0]] == []


@pytest.fixture
def extended(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The plugins that EXTENDING.md prints, each put where the registry finds it."""
    found = _PLUGIN.findall((REPOSITORY / "EXTENDING.md").read_text())
    for kind, name, code in found:
        folder = tmp_path / "plugins" / kind
        folder.mkdir(parents=True)
        (folder / f"{name}.py").write_text(code)
        package = importlib.import_module(registry.PACKAGES[kind])
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    registry.names.cache_clear()
    registry.built_in.cache_clear()
    yield [f"{kind}/{name}" for kind, name, _ in found]
    for kind, name, _ in found:
        sys.modules.pop(f"{registry.PACKAGES[kind]}.{name}", None)
    monkeypatch.undo()
    registry.names.cache_clear()
    registry.built_in.cache_clear()


def test_the_example_plugins_are_found(extended: list[str]) -> None:
    assert sorted(extended) == ["decoders/imageio", "formats/blob", "sources/dotted"]
    for example in extended:
        kind, _, name = example.partition("/")
        assert name in registry.names(kind)


@pytest.mark.parametrize("name", ["blob", "dotted"])
def test_the_example_distribution_has_what_is_printed(name: str) -> None:
    printed = {
        one: code for _, one, code in _PLUGIN.findall((REPOSITORY / "EXTENDING.md").read_text())
    }
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


def test_the_tables_of_the_readme_are_those_measured() -> None:
    text = (REPOSITORY / "README.md").read_text()
    assert readme_tables.filled(text) == text


def test_the_architecture_page_names_files_that_exist() -> None:
    text = (REPOSITORY / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", text))
    assert len(named) > 20
    places = [REPOSITORY, REPOSITORY / "packio"]
    assert [name for name in named if not any((place / name).exists() for place in places)] == []
