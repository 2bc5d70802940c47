"""The shape of the library: what imports what, what importing costs, what may not be written."""

from __future__ import annotations

import ast
import functools
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
from packio.inspecting import replaying
from packio.loading.order import Order

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = pathlib.Path(packio.__file__).parent
REPOSITORY = ROOT.parent

# The rooms, from the top of the house to its ground: each may import those that follow it.
ROOMS = (
    "cli", "measuring", "inspecting", "loading", "datasets", "packing", "ops", "batches",
    "sources", "packs", "formats", "storage", "index", "images", "sample", "system", "registry",
    "errors",
)  # fmt: skip
_ANYBODYS = {"packio.__version__"}  # defined by the package itself, and free
_UPWARDS = {  # a sample decodes itself, for users who look at one
    ("packio.sample.packed", "packio.images.dct"),
    ("packio.sample.packed", "packio.images.decoders"),
    ("packio.sample.packed", "packio.images.frames"),
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


@functools.cache
def _nodes(path: pathlib.Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(path.read_bytes()))]


def _imports(path: pathlib.Path, *, in_functions: bool = True) -> Iterator[str]:
    """Yield the modules of packio that a file imports, wherever in it, as dotted names."""
    functions = [n for n in _nodes(path) if isinstance(n, ast.FunctionDef) and not in_functions]
    inner = {id(node) for function in functions for node in ast.walk(function)}
    for node in _nodes(path):
        if id(node) in inner:
            continue
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


def _room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def _is_allowed(importer: str, imported: str) -> bool:
    if imported == "packio":  # its lazy public names: for users
        return _room(importer) in ("cli", "measuring")
    return ROOMS.index(_room(importer)) <= ROOMS.index(_room(imported))


def test_imports_between_rooms_go_downwards_only() -> None:
    wrong = {
        (_module_name(path), imported)
        for path in _SOURCES
        if path.parent != ROOT or path.stem in ROOMS
        for imported in _imports(path)
        if not _is_allowed(_module_name(path), imported)
    }
    assert wrong == _UPWARDS


def test_no_modules_import_each_other() -> None:
    """Nor several in a circle, for types neither; but a function may import its caller's module."""
    left = {
        _module_name(path): set(_imports(path, in_functions=False))
        for path in _SOURCES if path.parent != ROOT
    }  # fmt: skip
    assert len(left) > 200
    left["packio.datasets.dataset"].remove("packio.datasets.pack_dataset")  # what its parts are
    while free := {name for name, imported in left.items() if not imported & left.keys() - {name}}:
        left = {name: imported for name, imported in left.items() if name not in free}
    assert left == {}


def test_there_is_nothing_but_rooms() -> None:
    assert {_room(module) for module in _MODULES} - {"", "__main__"} == set(ROOMS)


# Lines that each room may have: a tenth more than when this was written. Whoever needs more says
# why in the commit.
_BUDGETS = {
    "cli": 2850, "measuring": 3600, "inspecting": 3700, "loading": 3450, "datasets": 3950,
    "packing": 7150, "batches": 2050, "sources": 6700, "packs": 4800, "formats": 8950,
    "storage": 3350, "index": 1750, "images": 4200, "sample": 1400, "system": 2300, "ops": 2400,
}  # fmt: skip


def test_no_room_outgrows_its_budget() -> None:
    lines = dict.fromkeys(_BUDGETS, 0)
    for path in _SOURCES:
        if (room := _room(_module_name(path))) in lines and path.parent != ROOT:
            lines[room] += path.read_bytes().count(b"\n")
    assert min(lines.values()) > 1000
    assert {room: n for room, n in lines.items() if n > _BUDGETS[room]} == {}


# A function is a verb, a class a noun: neither is called by what has been done to a thing, nor by
# where it is.
_BARE = re.compile(
    r"[a-z]{3,}(?<!fe|ee|se)ed|found|left|known|given|seen|told|kept|held|drawn|taken|shown|begun|sent"
    r"|lost|built|made|of|by|at|in|on|from|to|with|without|within|below|above|among|together|apart"
    r"|there|aside", re.IGNORECASE,
)  # fmt: skip


def _public_names(path: pathlib.Path) -> Iterator[str]:
    bodies: list[list[ast.stmt]] = [ast.parse(path.read_bytes()).body]
    for body in bodies:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name
                bodies += [node.body] if isinstance(node, ast.ClassDef) else []


def test_names_say_what_a_function_does_and_what_a_class_is() -> None:
    names = [n for path in _SOURCES for n in _public_names(path) if not n.startswith("_")]
    assert len(names) > 1000
    bare = [name for name in names if _BARE.fullmatch(name)]
    assert len(bare) <= 12, bare  # public properties, as `replaced`, and words of NumPy


def test_replay_knows_every_public_sampler() -> None:
    public = {name for name in packio.__all__ if isinstance(kind := getattr(packio, name), type)
              and issubclass(kind, Order)}  # fmt: skip
    assert public == set(replaying._SAMPLERS)


def test_what_is_public_is_known_to_type_checkers() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_bytes())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert {alias.asname or alias.name for n in imports for alias in n.names} >= {*packio._PUBLIC}


def test_no_plugin_imports_another() -> None:
    plugins = {f"{package}.{name}" for kind, package in registry.PACKAGES.items()
               for name in registry.list_built_in(kind)}  # fmt: skip
    wrong = {
        (_module_name(path), imported)
        for path in _SOURCES
        for plugin in plugins
        if f"{_module_name(path)}.".startswith(f"{plugin}.")
        for imported in _imports(path)
        for other in plugins - {plugin}
        if f"{imported}.".startswith(f"{other}.")
    }
    assert wrong == set()


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
    assert {name for path in examples for name in _imports(path)} <= {
        "packio",
        "packio.datasets.mmengine",
    }
    used = {
        name
        for path in examples
        for name in re.findall(r"\bpackio\.([A-Za-z_]\w*)", path.read_text())
    }
    assert used - {"datasets"} <= set(packio.__all__)


def test_no_module_bears_an_exported_name() -> None:
    top = {_room(module) for module in _MODULES}
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
    names = registry.list_built_in(kind)
    plugins = [registry.load(kind, name) for name in names]
    packages = {getattr(p, "PACKAGE", None) or getattr(p, "package", None) for p in plugins}
    absent = {p.partition(".")[0] for p in packages if p}
    _run(
        _IMPORT_WITHOUT, ",".join(f"{registry.PACKAGES[kind]}.{n}" for n in names), ",".join(absent)
    )


def _calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Yield every call in packio, as where, the function's dotted name, and the call."""
    for path in _SOURCES:
        for node in _nodes(path):
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
        or function == "torch.load"  # weights_only=True is not safe in each version of torch
        or _keyword(call, "allow_pickle") is True
    ]
    wrong += [
        f"{path.relative_to(REPOSITORY)}: from pickle import"
        for path in _SOURCES
        for node in _nodes(path)
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
        if not _SUPPRESSION.search(path.read_text()):
            continue
        for token in tokenize.tokenize(io.BytesIO(path.read_bytes()).readline):
            if token.type != tokenize.COMMENT or not _SUPPRESSION.search(token.string):
                continue
            if not _REASONED.search(token.string):
                wrong.append(f"{path.relative_to(REPOSITORY)}:{token.start[0]}: {token.string}")
    assert wrong == []
