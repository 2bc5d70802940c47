"""Plugins: a folder is a registry, a file is a plugin, its name is the file's name.

``packio/images/decoders/opencv.py`` is the decoder ``"opencv"``; nothing else has to be edited to
add one. Loading a plugin module costs nothing and needs no package beyond packio's core: what it
can do is written in constants at its top, and its package comes in by `require` when the plugin is
used.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
from types import ModuleType
from typing import Any

from packio.errors import MissingPackageError, OptionError

# Kind of plugins → the package in which they lie.
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


@functools.cache  # module names on disk: the same in every process
def names(kind: str) -> tuple[str, ...]:
    """List the plugins of a kind ("decoders", "formats" or "sources") in alphabetical order."""
    package = importlib.import_module(PACKAGES[kind])
    found = {m.name for m in pkgutil.iter_modules(package.__path__)}
    return tuple(sorted(n for n in found - _SHARED if not n.startswith("_")))


def load(kind: str, name: str) -> Any:
    """Load one plugin: what its module calls FORMAT, SOURCE or DECODER, else the module itself.

    Raises:
        OptionError: there is no plugin of this name; the message lists those there are.
    """
    if name not in names(kind):
        known = ", ".join(names(kind))
        raise OptionError(f"no {kind[:-1]} named {name!r}; there are: {known}")
    module = importlib.import_module(f"{PACKAGES[kind]}.{name}")
    return getattr(module, kind[:-1].upper(), module)


def installed(package: str) -> bool:
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
