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


def find(name: str, option: str = "") -> Any:
    """Import an object by its name; modules in the current folder are found, too.

    `option`: what the user said before it, for messages.
    """
    if not is_name(name):
        raise OptionError(
            f"{option}{name}: expected module:object, as train:{'step' if option else 'loader'}"
        )
    module, _, names = name.partition(":")
    with _current_folder_importable(), explained(name):
        try:
            value: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name not in (module, module.partition(".")[0]):
                raise
            raise OptionError(f"{name}: there is no module {module}") from error
    for part in names.split("."):
        if not hasattr(value, part):
            raise OptionError(f"{name}: there is no {part} in it")
        value = getattr(value, part)
    return value


def make_loader(name: str) -> Any:
    """Import a loader by its name. A function or class is called without arguments."""
    value = find(name)
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
