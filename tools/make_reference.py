"""Write the pages of docs/reference that are made of packio itself: commands and Python names.

docs/reference/commands.md has every command with its help. docs/reference/python/ has a page for
each room of public names, which mkdocstrings fills with their docstrings when the site is built.

    python tools/make_reference.py            # write the pages
    python tools/make_reference.py --check    # exit with 1 where a page is stale
"""

from __future__ import annotations

import argparse
import inspect
import pathlib
import re
import sys
import typing
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from typer.models import ArgumentInfo

import packio
from packio import cli, ops

if TYPE_CHECKING:
    from collections.abc import Callable

REFERENCE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "reference"
_MADE = "<!-- Made by tools/make_reference.py: change the help texts and docstrings instead. -->"
_ROOMS = {
    "packing": "Make packs, and make packs of packs.",
    "packs": "Open packs, and index containers that others wrote.",
    "datasets": "Read packs in PyTorch. All datasets take the arguments of `PackDataset`.",
    "loading": "Load batches: loaders, samplers, prefetching.",
    "ops": "Change images: random transforms for `transform=`, and `packio.ops`, the functions.",
    "batches": "Make one batch of samples.",
    "images": "Crops, floats, and the memory layout of batches.",
    "sample": "One sample of an open pack.",
    "inspecting": "Check packs.",
    "measuring": "Measure training loops.",
    "errors": "Every error of packio is a `packio.PackioError`.",
}


def pages() -> dict[pathlib.Path, str]:
    """Make the text of each page."""
    made = {REFERENCE / "commands.md": _commands()}
    rooms: dict[str, list[str]] = {room: [] for room in _ROOMS}
    for name, module in packio._PUBLIC.items():  # noqa: SLF001 (which room a name is in)
        rooms.setdefault(module.partition(".")[0], []).append(name)
    for room, names in rooms.items():
        made[REFERENCE / "python" / f"{room}.md"] = _room(room, sorted(names, key=str.lower))
    return made


def _room(room: str, names: list[str]) -> str:
    lines = [f"# {room.capitalize()}", "", _MADE, "", _ROOMS.get(room, ""), ""]
    lines += [f"- `{name}`: {_first_line(getattr(packio, name))}" for name in names] + [""]
    if room == "errors":
        return "\n".join([*lines, "::: packio.errors", ""])
    for name in names:
        lines += [f"::: packio.{name}"]
        if _shows_inherited(getattr(packio, name)):
            lines += ["    options:", "      inherited_members: true"]
        lines += [""]
    if room == "ops":
        lines += ["## Functions", "", "Of `packio.ops`:", ""]
        functions = [name for name in ops.__all__ if name != "Transform"]
        lines += [f"- `{name}`: {_first_line(getattr(ops, name))}" for name in functions]
        lines += ["", "::: packio.ops", "    options:", "      members: true", ""]
    return "\n".join(lines)


def _first_line(value: Any) -> str:
    return _escaped((inspect.getdoc(value) or "").partition("\n")[0])


def _shows_inherited(value: Any) -> bool:
    """Tell whether a class's page has its inherited methods: no public class's page has them."""
    public = {getattr(packio, name) for name in packio._PUBLIC}  # noqa: SLF001 (as above)
    return inspect.isclass(value) and not public.intersection(value.__mro__[1:])


def _commands() -> str:
    lines = ["# Commands", "", _MADE, "", "`packio COMMAND --help` prints the same texts.", ""]
    for name in sorted(cli.COMMANDS):
        command = name.replace("_", "-")
        lines += [f"## packio {command}", "", *_command(command, cli.find_command(name))]
    return "\n".join(lines)


def _command(name: str, run: Callable[..., None]) -> list[str]:
    parameters = _parameters(run)
    arguments = [p for p in parameters if isinstance(p.info, ArgumentInfo)]
    paragraphs = [" ".join(p.split()) for p in inspect.cleandoc(run.__doc__ or "").split("\n\n")]
    lines = ["```text", " ".join(["packio", name, "[OPTIONS]", *map(_argument, arguments)])]
    lines += [f"$ {p.removeprefix('Example: ')}" for p in paragraphs if p.startswith("Example: ")]
    lines += ["```", ""]
    for paragraph in paragraphs:
        lines += [] if paragraph.startswith("Example: ") else [_escaped(paragraph), ""]
    lines += [f"- `{_argument(a)}`: {_escaped(a.info.help or '')}" for a in arguments]
    panels: dict[str, list[str]] = {}
    for parameter in parameters:
        if parameter not in arguments and not parameter.info.hidden:
            panel = parameter.info.rich_help_panel or "Options"
            panels.setdefault(str(panel), []).append(_option(parameter))
    for panel, options in panels.items():
        lines += ["", f"**{panel}**", "", *options]
    return [*lines, ""]


class _Parameter(NamedTuple):
    """An argument or option of a command, as its function declares it."""

    name: str
    type: Any
    info: Any
    default: Any


def _parameters(run: Callable[..., None]) -> list[_Parameter]:
    hints = typing.get_type_hints(run, include_extras=True)
    found = []
    for name, parameter in inspect.signature(run).parameters.items():
        hint, info = typing.get_args(hints[name])[:2]
        kind = next((k for k in typing.get_args(hint) if k is not type(None)), hint)
        is_choice = typing.get_origin(hint) is Literal
        found.append(_Parameter(name, hint if is_choice else kind, info, parameter.default))
    return found


def _argument(argument: _Parameter) -> str:
    name = (argument.info.metavar or argument.name).strip("{}[]").upper()
    name += "..." if typing.get_origin(argument.type) is list else ""
    return name if argument.default is inspect.Parameter.empty else f"[{name}]"


def _option(option: _Parameter) -> str:
    default = option.default
    declared = [option.info.default, *option.info.param_decls]  # in Annotated, all are names
    names = [name for name in declared if isinstance(name, str) and name.startswith("-")]
    words = ", ".join(names or [f"--{option.name.replace('_', '-')}"])
    if typing.get_origin(option.type) is Literal:
        words += " " + "|".join(map(str, typing.get_args(option.type)))
    elif isinstance(default, bool) or option.type is bool:
        words += f" / --no-{option.name.replace('_', '-')}" if default and "/" not in words else ""
    else:
        words += " " + (option.info.metavar or option.name.upper())
    shown = default not in (None, False, True, (), [], "", ..., inspect.Parameter.empty)
    tail = f" Default: `{default}`." if shown else " Must be given." if default is ... else ""
    return f"- `{words}`: {_escaped(option.info.help or '')}{tail}"


def _escaped(text: str) -> str:
    """Text as Markdown: nothing in it is markup."""
    return re.sub(r"([\\`*_<>\[\]|{}])", r"\\\1", " ".join(text.split()))


def main() -> None:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only tell what is stale")
    made = pages()
    if parser.parse_args().check:
        stale = [p.name for p, text in made.items() if not p.exists() or p.read_text() != text]
        sys.exit(f"stale: {stale}; run: python tools/make_reference.py" if stale else 0)
    for path, text in made.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
