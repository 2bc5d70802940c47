"""Plugins: a folder is a registry, a file in it is a plugin, the file's name is the plugin's name.

``packio/images/decoders/opencv.py`` is the decoder ``"opencv"``; no list has to be edited to add a
plugin. Another distribution adds one by an entry point, whose value is a module::

    [project.entry-points."packio.decoders"]
    example = "example_package.decoder"

The groups are ``packio.decoders``, ``packio.formats`` and ``packio.sources``. If two plugins have
the same name, packio's own wins.

Loading a plugin module is cheap and needs no package beyond packio's core: the module describes
itself by constants, and calls `require` for its package when the plugin is first used.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import warnings
from types import ModuleType
from typing import Any

from packio.errors import MissingPackageError, OptionError, PluginError

# Kind of plugins → the package in which they lie. Its CONTRACT is the Protocol of its plugins.
PACKAGES = {
    "decoders": "packio.images.decoders",
    "formats": "packio.formats",
    "sources": "packio.sources",
}
KINDS = tuple(PACKAGES)
_SHARED = {"blobs", "chunks", "wire", "tables"}  # packages beside plugins that several of them use

NO_MEMORY = "failed to map segment"  # what the loader of glibc says, in an ImportError

# What pip cannot install, by the importable name of the package that needs it.
_SYSTEM_LIBRARIES = {
    "jpeg4py": "apt install libturbojpeg0",
    "turbojpeg": "apt install libturbojpeg0",
}


@functools.cache
def names(kind: str) -> tuple[str, ...]:
    """List all plugins of a kind ("decoders", "formats" or "sources") in alphabetical order."""
    return tuple(sorted({*list_built_in(kind), *_entry_points(kind)}))


@functools.cache  # module names on disk: the same in every process
def list_built_in(kind: str) -> tuple[str, ...]:
    """List packio's own plugins of a kind in alphabetical order."""
    package = importlib.import_module(PACKAGES[kind])
    found = {m.name for m in pkgutil.iter_modules(package.__path__)}
    return tuple(sorted(n for n in found - _SHARED if not n.startswith("_")))


@functools.cache  # what is installed: the same in every process; 20 ms with 200 distributions
def _entry_points(kind: str) -> dict[str, importlib.metadata.EntryPoint]:
    found = importlib.metadata.entry_points(group=f"packio.{kind}")
    return {point.name: point for point in found if point.name not in list_built_in(kind)}


def load(kind: str, name: str) -> Any:
    """Load one plugin: what its module calls FORMAT, SOURCE or DECODER, else the module itself.

    Raises:
        OptionError: there is no plugin of this name; the message lists all names.
        PluginError: another distribution's plugin fails when it is imported, or lacks a part of
            the contract; the message names the distribution.
    """
    if name in list_built_in(kind):
        module = importlib.import_module(f"{PACKAGES[kind]}.{name}")
        return vars(module).get(kind[:-1].upper(), module)
    if name in _entry_points(kind):
        return _load_entry_point(kind, name)
    raise OptionError(f"no {kind[:-1]} named {name!r}; there are: {', '.join(names(kind))}")


def load_all(kind: str) -> dict[str, Any]:
    """Load all plugins of a kind, by name; warn of those of other distributions that fail."""
    modules = {}
    for name in names(kind):
        try:
            modules[name] = load(kind, name)
        except PluginError as error:
            warnings.warn(f"{error}; going on without it", stacklevel=2)
    return modules


@functools.cache  # as Python's own cache of modules
def _load_entry_point(kind: str, name: str) -> Any:
    point = _entry_points(kind)[name]
    owner = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "unknown"
    where = f"{kind[:-1]} {name!r} of the distribution {owner}"
    try:
        module = point.load()
    except Exception as error:  # whatever a stranger's module raises
        reason = f"{type(error).__name__}: {error}"
        raise PluginError(
            f"{where} does not load ({reason}); update or uninstall that distribution"
        ) from error
    if not isinstance(module, ModuleType):
        raise PluginError(f"{where}: {point.value} is a {type(module).__name__}, expected a module")
    if kind[:-1].upper() in vars(module):
        return vars(module)[kind[:-1].upper()]
    contract = vars(importlib.import_module(PACKAGES[kind])).get("CONTRACT")
    members = [n for n in vars(contract) if not n.startswith("_")] if contract else []
    if missing := sorted(set(members) - set(vars(module))):
        raise PluginError(f"{where}: {point.value} has no {', '.join(missing)}")
    return module


def is_installed(package: str) -> bool:
    """Tell whether a package could be imported, without importing it."""
    return importlib.util.find_spec(package) is not None


def require(package: str, extra: str | None = None) -> ModuleType:
    """Import a package that a plugin needs.

    Args:
        package: The importable name, as "cv2".
        extra: The extra of packio's that installs it, as "opencv"; None for a core dependency.

    Raises:
        MissingPackageError: it is not installed, or does not load; the message has the commands.
        MemoryError: there is no memory to load it.
    """
    try:
        return importlib.import_module(package)
    except (ImportError, OSError, RuntimeError) as error:  # OSError: its shared library is missing
        if NO_MEMORY in str(error):
            raise MemoryError(f"{package}: {error}") from error
        target = f"packio[{extra}]" if extra else package
        commands = f"pip install '{target}'"
        if package in _SYSTEM_LIBRARIES:
            commands += f" and {_SYSTEM_LIBRARIES[package]}"
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise MissingPackageError(f"{package} does not load ({reason}); try: {commands}") from error
