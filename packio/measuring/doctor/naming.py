"""Import objects by name: ``module:object``, as the command line takes them."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from packio.errors import OptionError
from packio.measuring.doctor.loops import explained

_is_name = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*").fullmatch


def is_name(text: str | os.PathLike[str]) -> bool:
    """Tell whether a text is ``module:object``, and no file."""
    return bool(_is_name(os.fspath(text))) and not os.path.lexists(text)


def found(name: str, option: str = "") -> Any:
    """Import an object by its name. Modules in the current folder are found, too.

    Args:
        name: "module:object".
        option: What the user said before it, for messages.
    """
    if not is_name(name):
        raise OptionError(
            f"{option}{name}: expected module:object, as train:{'step' if option else 'loader'}"
        )
    module, _, names = name.partition(":")
    try:
        with _current_folder_importable(), explained(name):
            value: Any = importlib.import_module(module)
    except RuntimeError as error:
        if isinstance(error.__cause__, ModuleNotFoundError) and (
            error.__cause__.name in (module, module.partition(".")[0])
        ):
            raise OptionError(f"{name}: there is no module {module}") from error
        raise
    for part in names.split("."):
        if not hasattr(value, part):
            raise OptionError(f"{name}: there is no {part} in it")
        value = getattr(value, part)
    return value


def loader(name: str) -> Any:
    """Import a loader by its name. A function or class is called without arguments."""
    value = found(name)
    if callable(value) and (isinstance(value, type) or not hasattr(value, "__iter__")):
        with _current_folder_importable(), explained(name):
            value = value()
    return value


@contextlib.contextmanager
def _current_folder_importable() -> Iterator[None]:
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)
