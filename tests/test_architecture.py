"""The shape of the library: what imports what, what importing costs, what may not be written."""

from __future__ import annotations

import ast
import inspect
import io
import json
import pathlib
import re
import subprocess
import sys
import tokenize
from typing import TYPE_CHECKING

import pytest

import packio
from packio import registry

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = pathlib.Path(packio.__file__).parent
REPOSITORY = ROOT.parent

# Part of packio → the parts that it may import, from the bottom up. A part is a module or a folder.
# Its own modules each part may import; plugins have rules of their own below.
_FOUNDATION = {"errors", "registry", "encodings", "jpeg", "processors", "memory", "pools"}
_PIXELS = {"draws", "shared_memory", "tensors", "frames", "pixels", "geometry", "decoders"}
_BYTES = {"storage", "indexfile", "formats", "columns", "cache", "raw_blocks"}
LAYERS = {
    "errors": set(),
    "registry": {"errors"},
    "jpeg": {"errors", "registry"},
    "processors": set(),
    "memory": {"processors"},
    "pools": {"memory"},
    "threads": {"processors", "pools"},
    "encodings": {"errors", "jpeg"},
    "draws": {"errors"},
    "shared_memory": {"errors"},
    "tensors": {"errors", "shared_memory"},
    "timing": {"errors", "clocks", "durations"},
    "frames": set(),
    "pixels": {"tensors", "frames"},
    "geometry": {"errors", "frames"},
    "storage": {"errors", "registry", "cache", "indexfile"},
    "braces": {"errors"},
    "cache": set(),
    "clocks": set(),
    "columns": {"pools"},
    "durations": set(),
    "raw_blocks": {"encodings", "indexfile"},
    "raw": _FOUNDATION | _PIXELS | _BYTES,
    "decoders": _FOUNDATION | {"sample", "cache"},
    "formats": _FOUNDATION | {"sample", "indexfile", "columns"},
    "isolation": {"errors"},
    "collecting": _FOUNDATION | _BYTES,
    "indexing": _FOUNDATION | _BYTES | {"braces", "collecting", "isolation"},
    "sources": _FOUNDATION  # a pack is a source, too
    | {"sample", "indexfile", "locating", "packs", "storage"},
    "sample": _FOUNDATION | _PIXELS,
    "indexfile": _FOUNDATION,
    "filesystems": {"errors", "cache", "indexfile"},
    "ram": {"errors", "indexfile", "memory", "processors"},
    "lookup": {"errors", "indexfile"},
    "locating": {"errors", "braces", "indexfile", "indexing", "storage"},
    "packs": _FOUNDATION
    | _BYTES
    | {"sample", "indexing", "locating", "lookup", "raw", "ram", "filesystems"},
    "local_copy": {"errors", "indexfile", "pools", "storage", "packs"},
    "residency": {"errors", "memory", "pools", "storage", "packs"},
    "regions": _FOUNDATION | _PIXELS,
    "workers": set(),
    "plans": {"draws", "frames", "geometry", "decoders", "packs"},
    "batches": _FOUNDATION
    | _PIXELS
    | _BYTES
    | {"sample", "packs", "plans", "raw", "regions", "threads"},
    "masks": {"errors", "tensors", "pixels", "geometry", "packs", "plans", "batches", "threads"},
    "boxes": {"tensors", "packs", "plans"},
    "planes": {"frames", "pixels"},
    "device_batches": {"errors", "geometry", "decoders", "packs", "plans", "regions", "threads"}
    | {"batches", "planes"},
    "annotated": {"packs", "plans", "batches", "device_batches", "masks", "boxes", "threads"},
    "fields": {"errors", "packs"},
    "options": {"errors", "draws", "regions"},
    "outputs": {"batches", "annotated", "fields", "options"},
    "transforms": {"errors", "tensors"},
    "sampling": {"errors", "draws"},
    "positions": {"errors"},
    "datasets": _FOUNDATION
    | _PIXELS
    | _BYTES
    | {"packs", "plans", "batches", "annotated", "fields", "options", "outputs"}
    | {"positions", "sampling", "selection", "transforms", "folders", "threads"}
    | {"local_copy", "ram", "workers"},
    "classnames": {"errors", "packs", "selection"},
    "concat": {"errors", "packs", "plans", "batches", "annotated", "outputs", "classnames"}
    | {"positions", "sampling", "selection", "threads", "datasets", "workers"},
    "mixing": {"errors", "draws", "sampling"},
    "prefetching": {"errors"},
    "devices": {"errors", "tensors"},
    "epochs": {"errors", "sampling"},
    "loader": {"errors", "tensors", "batches", "sampling", "prefetching", "devices", "epochs"}
    | {"decoders", "workers"},
    "dali": _FOUNDATION
    | _PIXELS
    | _BYTES
    | {"packs", "plans", "regions", "sampling", "threads"}
    | {"prefetching", "devices", "epochs"},
    "pixel_statistics": _FOUNDATION | {"decoders", "packs"},
    "watching": set(),
    "packing": _FOUNDATION
    | _BYTES
    | {"decoders", "sample", "packs", "sources", "pixel_statistics", "filesystems"},
    "folders": _FOUNDATION | _BYTES | {"sources", "packing"},
    "mmengine": {"errors", "registry", "packs"},
    "selection": {"errors", "packs"},
    "verifying": _FOUNDATION
    | _BYTES
    | {"decoders", "sample", "packs", "packing", "indexing", "isolation", "locating"},
    "extracting": _FOUNDATION | {"indexfile", "sample", "packs", "packing", "selection"},
    "contact_sheet": _FOUNDATION | _PIXELS | {"sample", "packs", "packing", "selection"},
}
_EVERYTHING = set(LAYERS)
LAYERS["bench"] = _EVERYTHING
LAYERS["diagnosis"] = _EVERYTHING | {"bench"}
LAYERS["cli"] = _EVERYTHING | {"bench", "diagnosis"}
_ANYBODYS = {"packio.__version__"}  # defined by the package itself, and free
_KNOWN_PLUGINS = {  # Pillow is the decoder of last resort, and what all others are compared with
    ("packio.decoders", "packio.decoders.pillow"),
    ("packio.decoders._raw", "packio.decoders.pillow"),
    ("packio.bench.decode", "packio.decoders.pillow"),
}

_SOURCES = sorted(p for p in ROOT.rglob("*.py"))
_ALL_SOURCES = sorted(
    p
    for folder in ("packio", "tests", "tools", "benchmarks", "examples")
    for p in (REPOSITORY / folder).rglob("*.py")
)


def _module_name(path: pathlib.Path) -> str:
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


_MODULES = {_module_name(path) for path in _SOURCES}


def _imports(path: pathlib.Path) -> Iterator[str]:
    """Yield the modules of packio that a file imports, wherever in it, as dotted names."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [
                name if name in _MODULES else str(node.module)
                for name in whole
                if name not in _ANYBODYS
            ]
        else:
            continue
        yield from (name for name in found if name.partition(".")[0] == "packio")


def _part(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def _is_plugin(module: str) -> bool:
    parts = module.split(".")
    return len(parts) > 2 and parts[1] in registry.KINDS and not parts[2].startswith("_")


def _is_allowed(importer: str, imported: str) -> bool:
    if imported == "packio":  # its lazy public names: for users
        return _part(importer) in ("cli", "bench")
    if _is_plugin(imported) and importer != imported:
        return (importer, imported) in _KNOWN_PLUGINS
    if _part(importer) == _part(imported):
        return True
    return _part(imported) in LAYERS.get(_part(importer), set())


def test_imports_go_downwards_only() -> None:
    wrong = [
        f"{_module_name(path)} imports {imported}"
        for path in _SOURCES
        if path != ROOT / "__init__.py"  # resolves its names lazily
        for imported in _imports(path)
        if not _is_allowed(_module_name(path), imported)
    ]
    assert wrong == []


def test_every_part_has_its_layer() -> None:
    assert {_part(module) for module in _MODULES} - {""} <= set(LAYERS)


def _run(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_packio_imports_nothing_heavy() -> None:
    loaded = json.loads(_run("import json, sys, packio; print(json.dumps(list(sys.modules)))"))
    heavy = {"numpy", "torch", "cv2", "h5py", "lmdb", "PIL", "safetensors", "typer", "rich"}
    assert heavy & set(loaded) == set()


def test_examples_use_public_names_only() -> None:
    examples = sorted((REPOSITORY / "examples").glob("*.py"))
    assert {name for path in examples for name in _imports(path)} <= {"packio", "packio.mmengine"}
    used = {
        name
        for path in examples
        for name in re.findall(r"\bpackio\.([A-Za-z_]\w*)", path.read_text())
    }
    assert used - {"mmengine"} <= set(packio.__all__)


def test_no_module_bears_an_exported_name() -> None:
    top = {_part(module) for module in _MODULES}
    assert top & set(packio.__all__) == set()


@pytest.mark.parametrize("name", [n for n in packio.__all__ if n != "__version__"])
def test_public_name_resolves_and_is_documented(name: str) -> None:
    public = getattr(packio, name)
    assert (inspect.getdoc(public) or "").strip()
    if inspect.isclass(public):
        assert public.__doc__ is not None
        own = [member for member in vars(public) if not member.startswith("_")]
        assert [m for m in own if callable(getattr(public, m)) and not _doc(public, m)] == []


def _doc(public: type, member: str) -> str | None:
    return inspect.getdoc(inspect.getattr_static(public, member))


_IMPORT_WITHOUT = """
import importlib, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
for name in sys.argv[1].split(","):
    importlib.import_module(name)
"""


@pytest.mark.parametrize("kind", registry.KINDS)
def test_plugins_import_without_their_packages(kind: str) -> None:
    names = registry.names(kind)
    packages = {getattr(registry.load(kind, name), "PACKAGE", None) for name in names}
    absent = {p.partition(".")[0] for p in packages if p}
    _run(_IMPORT_WITHOUT, ",".join(f"packio.{kind}.{n}" for n in names), ",".join(absent))


def _calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Yield every call in packio, as where, the function's dotted name, and the call."""
    for path in _SOURCES:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Call):
                where = f"{path.relative_to(REPOSITORY)}:{node.lineno}"
                yield where, ast.unparse(node.func), node


def _keyword(call: ast.Call, name: str) -> object:
    values = [k.value for k in call.keywords if k.arg == name]
    return values[0].value if values and isinstance(values[0], ast.Constant) else None


def test_no_pickle_is_ever_loaded() -> None:
    unpickling = {"load", "loads", "Unpickler"}
    wrong = [
        where
        for where, function, call in _calls()
        if function in {f"{p}.{f}" for p in ("pickle", "cloudpickle", "dill") for f in unpickling}
        or (function == "torch.load" and _keyword(call, "weights_only") is not True)
        or _keyword(call, "allow_pickle") is True
    ]
    wrong += [
        f"{path.relative_to(REPOSITORY)}: from pickle import"
        for path in _SOURCES
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.ImportFrom) and node.module == "pickle"
    ]
    assert wrong == []


def test_only_the_command_line_prints() -> None:
    wrong = [where for where, function, _ in _calls() if function == "print"]
    assert [where for where in wrong if not where.startswith("packio/cli/")] == []


# A code and a reason: "type: ignore[code]  # reason", "noqa: CODE (reason)" or "noqa: CODE  # …".
_SUPPRESSION = re.compile(r"#\s*(type:\s*ignore|noqa)")
_REASONED = re.compile(
    r"#\s*(type: ignore\[[a-z, -]+\]|noqa: [A-Z]+\d+(, ?[A-Z]+\d+)*)\s+(\(|#\s*)\w.*"
)


def test_every_suppression_names_its_code_and_reason() -> None:
    wrong = []
    for path in _ALL_SOURCES:
        for token in tokenize.tokenize(io.BytesIO(path.read_bytes()).readline):
            if token.type != tokenize.COMMENT or not _SUPPRESSION.search(token.string):
                continue
            if not _REASONED.search(token.string):
                wrong.append(f"{path.relative_to(REPOSITORY)}:{token.start[0]}: {token.string}")
    assert wrong == []
