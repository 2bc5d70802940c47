"""Plugins of other distributions: found by entry points, used, and refused if they are broken."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap
from typing import Any, cast

import pytest

EXAMPLE = pathlib.Path(__file__).parent / "plugins/packio_example"


def _install(
    target: pathlib.Path, name: str, entry_points: str, modules: dict[str, str] | None = None
) -> None:
    """Lay out a distribution as pip does, without a network: its modules and its dist-info."""
    info = target / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(textwrap.dedent(entry_points))
    for module, text in (modules or {}).items():
        (target / f"{module}.py").write_text(text)


@pytest.fixture
def site(tmp_path: pathlib.Path) -> pathlib.Path:
    """Make a folder in which the example distribution is installed."""
    text = (EXAMPLE / "pyproject.toml").read_text()
    points = text[text.index("[project.entry-points.") :]
    points = points.replace("[project.entry-points.", "[").replace('"', "")
    _install(tmp_path, "packio_example", points)
    shutil.copytree(EXAMPLE / "packio_example", tmp_path / "packio_example")
    return tmp_path


def _run(site: pathlib.Path, code: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(site), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def _printed(site: pathlib.Path, code: str) -> object:
    done = _run(site, f"import json\n{textwrap.dedent(code)}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_format_of_another_distribution_packs_and_is_indexed(
    site: pathlib.Path, image_folder: pathlib.Path
) -> None:
    code = f"""
    import packio
    packio.pack({str(image_folder)!r}, {str(site / "out.blob")!r})
    with packio.open({str(site / "out.blob")!r}) as pack:
        packed = [len(sample.data) for sample in pack]
    packio.reindex({str(site / "out.blob")!r})
    with packio.open({str(site / "out.blob")!r}) as pack:
        found = [len(sample.data) for sample in pack]
    print(json.dumps([packed == found, len(found), pack.metadata["format"]]))
    """
    assert _printed(site, code) == [True, 25, "blob"]


def test_a_decoder_of_another_distribution_decodes(site: pathlib.Path) -> None:
    code = """
    from packio import registry
    from packio.images.decoders import Decoder
    from packio.sample.record import Facts
    pixels = Decoder("example")(b"P6 2 1 255\\n\\1\\2\\3\\4\\5\\6", Facts("pnm", 1, 2, 3, "uint8"))
    print(json.dumps(["example" in registry.names("decoders"), pixels.tolist()]))
    """
    assert _printed(site, code) == [True, [[[1, 2, 3], [4, 5, 6]]]]


def test_a_source_a_format_and_a_decoder_of_another_distribution_go_together(
    site: pathlib.Path,
) -> None:
    folder = site / "images"
    folder.mkdir()
    for i in range(4):
        (folder / f"{'cat' if i % 2 else 'dog'}.{i}.ppm").write_bytes(
            b"P6 2 1 255\n" + bytes(range(i, i + 6))
        )
    code = f"""
    import packio
    report = packio.pack({str(folder)!r}, {str(site / "out.blob")!r})
    ds = packio.PackDataset({str(site / "out.blob")!r}, decoder="example")
    batch = [[image.tolist(), label] for image, label in (ds[i] for i in range(4))]
    print(json.dumps([report.format, ds.pack.metadata["source"]["kind"], ds.classes, batch]))
    """
    planes = [[[[i + c, i + c + 3]] for c in range(3)] for i in (1, 3, 0, 2)]
    labels = [0, 0, 1, 1]
    expected = [list(pair) for pair in zip(planes, labels, strict=True)]
    assert _printed(site, code) == ["blob", "dotted", ["cat", "dog"], expected]


def test_a_name_of_packios_own_means_packios_own(site: pathlib.Path) -> None:
    points = "[packio.decoders]\npillow = packio_example.decoder\n"
    _install(site, "thief", points)
    code = """
    from packio import registry
    print(json.dumps(registry.load("decoders", "pillow").__name__))
    """
    assert _printed(site, code) == "packio.images.decoders.pillow"


BROKEN = {
    "raises": ("module_raises", "1 / 0", "does not load (ZeroDivisionError: division by zero)"),
    "absent": ("no_such_module", None, "does not load (ModuleNotFoundError"),
    "incomplete": ("module_incomplete", "PACKAGE = 'numpy'", "has no ENCODINGS, EXACT"),
    "value": ("module_value:X", "X = 3", "is a int, expected a module"),
}


def test_a_broken_plugin_names_its_distribution_and_breaks_no_other(site: pathlib.Path) -> None:
    for name, (value, text, _) in BROKEN.items():
        modules = {} if text is None else {f"module_{name}": text}
        _install(site, f"broken_{name}", f"[packio.decoders]\n{name} = {value}\n", modules)
    code = f"""
    import warnings
    from packio import registry
    from packio.errors import PluginError
    told = []
    for name in {[*BROKEN]}:
        try:
            registry.load("decoders", name)
        except PluginError as error:
            told.append(str(error))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = [*registry.load_all("decoders")]
    print(json.dumps([told, loaded, len(caught)]))
    """
    told, loaded, warned = cast("list[Any]", _printed(site, code))
    for said, (name, (_, _, says)) in zip(told, BROKEN.items(), strict=True):
        assert f"decoder '{name}' of the distribution broken_{name} 1.0" in said
        assert says in said
    assert {"example", "pillow"} <= {*loaded}
    assert not {*loaded} & {*BROKEN}
    assert warned == len(BROKEN)


def test_a_broken_format_does_not_keep_others_from_packing(
    site: pathlib.Path, image_folder: pathlib.Path
) -> None:
    _install(site, "broken", "[packio.formats]\nbad = nowhere\n[packio.sources]\nbad = nowhere\n")
    done = _run(site, f"""
    import packio
    packio.pack({str(image_folder)!r}, {str(site / "x.tar")!r})
    """)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "going on without it" in done.stderr


def test_the_example_installs_with_pip(tmp_path: pathlib.Path) -> None:
    installed = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    if "pip" not in installed or int(installed.get("setuptools", "0").split(".")[0]) < 77:
        pytest.skip("needs pip and setuptools>=77")
    source = shutil.copytree(EXAMPLE, tmp_path / "source")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
               "--no-build-isolation", "--target", str(tmp_path / "site"), str(source)]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    code = 'from packio import registry\nprint(json.dumps(registry.names("decoders")))'
    printed = _printed(tmp_path / "site", code)
    assert isinstance(printed, list)
    assert "example" in printed
