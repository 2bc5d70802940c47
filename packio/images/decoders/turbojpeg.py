"""PyTurboJPEG: the system's libjpeg-turbo through ctypes; 2.x needs libjpeg-turbo 3."""

from __future__ import annotations

import functools
import importlib.metadata
from typing import TYPE_CHECKING, Any

from packio import registry
from packio.errors import DecodeError, MissingPackageError
from packio.images.decoders._plain import plain_jpeg

if TYPE_CHECKING:
    from types import ModuleType

    import numpy as np

PACKAGE = "turbojpeg"
EXTRA = "turbojpeg"
ENCODINGS = frozenset({"jpeg"})
MODES = frozenset({"RGB", "GRAY"})
EXACT = True
decode_batch = size = None

_REPORT = "_TurboJPEG__report_error"  # called for every status that is not 0
# a module: the same in every process
_library = functools.cache(functools.partial(registry.require, PACKAGE, EXTRA))


@functools.cache  # function pointers only, no handle: fork and threads share it safely
def _decoder() -> Any:
    library = _library()
    try:
        return _strict(library)()
    except (OSError, RuntimeError, AttributeError) as error:
        raise MissingPackageError(_remedy(error)) from error


def _strict(library: ModuleType) -> type:
    """Make a TurboJPEG that raises on warnings: 1.x warns, and gives pixels that are half gray."""

    def report(*_: object) -> None:
        raise OSError("damaged: libjpeg-turbo reports an error or a warning")

    if not hasattr(library.TurboJPEG, _REPORT):
        raise MissingPackageError(
            f"PyTurboJPEG {importlib.metadata.version('PyTurboJPEG')} is not known to packio; "
            "try: pip install 'PyTurboJPEG<2'"
        )
    return type("StrictTurboJPEG", (library.TurboJPEG,), {_REPORT: report})


def _remedy(error: Exception) -> str:
    installed = importlib.metadata.version("PyTurboJPEG")
    if "libjpeg-turbo 3" in str(error):
        return (
            f"PyTurboJPEG {installed} needs libjpeg-turbo 3, the system has an older one; "
            "try: pip install 'PyTurboJPEG<2'"
        )
    reason = str(error).strip().splitlines()[0]
    return (
        f"PyTurboJPEG {installed} finds no libturbojpeg.so.0 ({reason}); "
        "try: apt install libturbojpeg0"
    )


def version() -> str:
    _decoder()
    return importlib.metadata.version("PyTurboJPEG")


def decode_fast(data: bytes, mode: str, scale: int) -> np.ndarray:
    options: dict[str, Any] = {"flags": _library().TJFLAG_FASTUPSAMPLE}
    if scale > 1:
        options["scaling_factor"] = (1, scale)
    return decode(data, mode, **options)


def decode(data: bytes, mode: str = "RGB", **options: Any) -> np.ndarray:
    """Decode a plain JPEG with PyTurboJPEG; see `DecoderPlugin.decode`.

    A warning of libjpeg-turbo is an error.
    """
    plain_jpeg(data, mode)
    library = _library()
    pixel_format = library.TJPF_GRAY if mode == "GRAY" else library.TJPF_RGB
    try:
        pixels: np.ndarray = _decoder().decode(data, pixel_format=pixel_format, **options)
    except OSError as error:
        raise DecodeError(f"turbojpeg: {error}") from error
    return pixels
