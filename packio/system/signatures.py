"""Calls with arguments that a class does not have are refused with the right call."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, cast

P = ParamSpec("P")

BY_POSITION = "*"  # in hints: what to say of more arguments by position than there are


def refuse_others(hints: Mapping[str, str]) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Make an ``__init__`` refuse arguments that it lacks; hints: name → what to write instead."""

    def decorated(init: Callable[P, None]) -> Callable[P, None]:
        parameters = list(inspect.signature(init).parameters.values())[1:]
        names = [parameter.name for parameter in parameters]
        most = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)

        @functools.wraps(init)
        def checked(self: Any, *given: Any, **options: Any) -> None:
            for name in options:
                if name not in names:
                    raise TypeError(_unknown(name, names, hints).format(kind=type(self).__name__))
            if len(given) > most:
                call = f"{{kind}}({', '.join(names[:most])}, {names[most]}=…): expected the others "
                hint = hints.get(BY_POSITION, call + "by name")
                raise TypeError(
                    f"{len(given)} arguments by position; " + hint.format(kind=type(self).__name__)
                )
            cast("Any", init)(self, *given, **options)

        return cast("Callable[P, None]", checked)

    return decorated


def _unknown(name: str, names: list[str], hints: Mapping[str, str]) -> str:
    if name in hints:
        return f"{name}=: {{kind}} has no such argument; {hints[name]}"
    near = difflib.get_close_matches(name, names, 3)
    return f"{name}=: {{kind}} has no such argument; " + (
        f"did you mean {' or '.join(f'{n}=' for n in near)}?" if near
        else f"it has {', '.join(f'{n}=' for n in names)}"
    )  # fmt: skip
