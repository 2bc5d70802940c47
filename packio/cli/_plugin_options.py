"""Options of a command that its plugins declare: each source's and each format's ``OPTIONS``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Annotated, Any

import typer

from packio import registry

_PANELS = {"sources": "Options of sources", "formats": "Options of formats"}
_TYPES = {"int": int, "float": float, "bool": bool}


def with_plugin_options(
    *kinds: str,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of all plugins of some kinds; it gets those used as ``more``.

    Args:
        kinds: "sources", "formats".

    Returns:
        A decorator of a function that takes ``more: dict[str, Any]``, which is no option.
    """
    return functools.partial(_with, _found(kinds))


def _with(
    found: dict[str, tuple[str, type, str]], command: Callable[..., None]
) -> Callable[..., None]:
    own = inspect.signature(command, eval_str=True)
    parameters = [p for p in own.parameters.values() if p.name != "more"]
    added = [_parameter(name, *option) for name, option in sorted(found.items())]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        more = {n: values.pop(n) for n in found}
        command(**values, more={n: v for n, v in more.items() if v is not None})

    run.__signature__ = own.replace(parameters=[*parameters, *added])  # type: ignore[attr-defined]  # what inspect looks for
    run.__annotations__ = {p.name: p.annotation for p in (*parameters, *added)}
    del run.__wrapped__  # whose annotations would count
    return run


def _found(kinds: Sequence[str]) -> dict[str, tuple[str, type, str]]:
    """Name → help, type, panel; an option that several plugins have is described by each."""
    found: dict[str, tuple[str, type, str]] = {}
    for kind in kinds:
        for plugin, module in registry.load_all(kind).items():
            for name, text in getattr(module, "OPTIONS", {}).items():
                line = f"{plugin}: {text}"
                if name in found:
                    line = f"{found[name][0]}; {line}"
                found[name] = (line, _type(module, name), _PANELS[kind])
    return found


def _type(module: ModuleType, name: str) -> type:
    function = getattr(module, "listing", None) or getattr(module, "Writer", None)
    parameter = inspect.signature(function).parameters.get(name) if function else None
    annotation = str(parameter.annotation) if parameter is not None else "str"
    return next((t for n, t in _TYPES.items() if n in annotation.split(" ")), str)


def _parameter(name: str, text: str, kind: type, panel: str) -> inspect.Parameter:
    option = typer.Option(f"--{name.replace('_', '-')}", help=text, rich_help_panel=panel)
    annotation: Any = Annotated[kind | None, option]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )
