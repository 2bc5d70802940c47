"""The fastest exact decoder of each encoding on this machine, as `bench-decode --save` measured.

The file is JSON in the user's cache: ``{"version": 1, "machines": [{"cpu", "packages",
"measured": [{"encoding", "decoder", "images_per_second", "exact"}]}]}``. Each CPU model and set of
package versions has an entry, so several machines can share a home directory.
"""

from __future__ import annotations

import functools
import glob
import importlib.metadata
import json
import os
import pathlib
import platform
from typing import TYPE_CHECKING, Any, NamedTuple

from packio import registry
from packio.errors import MissingPackageError, OutputError
from packio.system import cache, files

if TYPE_CHECKING:
    from collections.abc import Iterable

_VERSION = 1
# Names of distributions that differ from the importable name.
_DISTRIBUTIONS = {
    "PIL": ("pillow",),
    "cv2": (
        "opencv-python",
        "opencv-python-headless",
        "opencv-contrib-python",
        "opencv-contrib-python-headless",
    ),
    "turbojpeg": ("PyTurboJPEG",),
}
_SYSTEM_LIBRARIES = ("/usr/lib/*/libturbojpeg.so.0", "/usr/lib*/libturbojpeg.so.0")


class Measured(NamedTuple):
    """Measurement of one decoder with one encoding."""

    encoding: str
    decoder: str
    images_per_second: float
    exact: bool  # bit-identical to Pillow on every image that it decoded


def path() -> pathlib.Path:
    """Say where the calibration is kept."""
    return cache.folder() / "decoders.json"


@functools.cache  # read once: the decoder never changes within a run
def fastest(encoding: str) -> str | None:
    """Name the fastest exact decoder of an encoding; None if none was measured.

    Measurements of another CPU model or of other package versions are ignored.
    """
    here = _machine()
    entries = [m for m in _read() if m.get("cpu") == here["cpu"]]
    measured = [
        found
        for entry in entries
        if entry.get("packages") == here["packages"]
        for found in _measured(entry)
        if found.encoding == encoding and found.exact
    ]
    ranked = sorted(measured, key=lambda m: m.images_per_second, reverse=True)
    return next((m.decoder for m in ranked if _usable(m.decoder, encoding)), None)


def save(results: Iterable[Measured]) -> pathlib.Path:
    """Save measurements of this machine; they replace earlier ones of the same encodings.

    Returns:
        The file written.
    """
    new, here, target = list(results), _machine(), path()
    mine = [m for m in _read() if {k: m.get(k) for k in here} == here]
    others = [m for m in _read() if m not in mine]
    encodings = {m.encoding for m in new}
    kept = [m for entry in mine for m in _measured(entry) if m.encoding not in encodings]
    entry = {**here, "measured": [m._asdict() for m in (*kept, *new)]}
    text = json.dumps({"version": _VERSION, "machines": [*others, entry]}, indent=1)
    try:
        _replace(target, text)
    except OSError as error:
        raise OutputError(
            f"{target}: {error.strerror}; set PACKIO_CACHE_DIR to a folder that can be written"
        ) from error
    fastest.cache_clear()
    return target


def _replace(target: pathlib.Path, text: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(target) as file:
        file.write(text.encode())


def _read() -> list[dict[str, Any]]:
    try:
        content = json.loads(path().read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no file, or not JSON: as if nothing was measured
        return []
    if not isinstance(content, dict) or content.get("version") != _VERSION:
        return []
    machines = content.get("machines")
    return [m for m in machines if isinstance(m, dict)] if isinstance(machines, list) else []


def _measured(entry: dict[str, Any]) -> list[Measured]:
    try:
        found = [Measured(**m) for m in entry["measured"]]
        return [m for m in found if m.images_per_second > 0 and m.exact in (True, False)]
    except (KeyError, TypeError):  # edited by hand
        return []


def _usable(decoder: str, encoding: str) -> bool:
    if decoder not in registry.names("decoders"):
        return False
    plugin = registry.load("decoders", decoder)
    if not plugin.EXACT or encoding not in plugin.ENCODINGS:
        return False
    try:
        plugin.version()
    except MissingPackageError:
        return False
    return True


def _machine() -> dict[str, Any]:
    """Say what a measurement depends on: the CPU, and the version of each decoder's package."""
    plugins = [registry.load("decoders", name) for name in registry.names("decoders")]
    distributions = {d for p in plugins for d in _DISTRIBUTIONS.get(p.PACKAGE, (p.PACKAGE,))}
    versions = {name: _version(name) for name in sorted(distributions)}
    packages = {name: version for name, version in versions.items() if version}
    libraries = [os.path.realpath(p) for pattern in _SYSTEM_LIBRARIES for p in glob.glob(pattern)]
    return {"cpu": _cpu(), "packages": {**packages, "system": sorted(set(libraries))}}


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line for line in file if line.startswith("model name")]
        return lines[0].partition(":")[2].strip()
    except (OSError, IndexError):  # not Linux, or a processor that does not say
        return platform.processor() or platform.machine()
