"""Options that plugins declare: each source and each format has a dict ``OPTIONS``, name → help."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from packio import registry

_PANELS = {"sources": "Options of sources", "formats": "Options of formats"}
_Command = Callable[..., None]


def with_plugin_options(*kinds: str) -> Callable[[_Command], _Command]:
    """Give a command the options of all plugins of some kinds.

    Args:
        kinds: "sources", "formats".

    Returns:
        A decorator for a function that takes ``more: dict[str, Any]``: the options that were used.
    """
    return functools.partial(_with, _declared(kinds))


def _with(declared: dict[str, tuple[str, type, str]], command: _Command) -> _Command:
    own = inspect.signature(command, eval_str=True)
    parameters = [p for p in own.parameters.values() if p.name != "more"]
    parameters += [_parameter(name, *option) for name, option in sorted(declared.items())]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        more = {name: values.pop(name) for name in declared}
        command(**values, more={n: v for n, v in more.items() if v is not None})

    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # what inspect looks for
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    del run.__wrapped__  # typer would read its annotations instead
    return run


def _declared(kinds: tuple[str, ...]) -> dict[str, tuple[str, type, str]]:
    """Name → help, type, panel. The help of an option of several plugins is that of each."""
    found: dict[str, tuple[str, type, str]] = {}
    for kind in kinds:
        for plugin, plugin_ in registry.load_all(kind).items():
            options = plugin_.caps.options if kind == "formats" else plugin_.options
            for name, text in options.items():
                before = f"{found[name][0]}; " if name in found else ""
                found[name] = (f"{before}{plugin}: {text}", str, _PANELS[kind])
    return found


def _parameter(name: str, text: str, kind: type, panel: str) -> inspect.Parameter:
    option = typer.Option(f"--{name.replace('_', '-')}", help=text, rich_help_panel=panel)
    annotation: Any = Annotated[kind | None, option]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )
