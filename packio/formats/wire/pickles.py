"""Pickles, read opcode by opcode with `pickletools`: nothing in a pickle runs or is imported.

A pickle is a program for a stack machine: one byte of opcode, then its argument, then the next
opcode. This module carries out the opcodes that make None, bool, int, float, str, bytes, tuple,
list and dict, in the protocols 2 to 5, and the opcodes that store a value and fetch it again.
A pickle that names a class or a function is refused, unless the caller gives a meaning to that
name. PyTorch files need this; see `packio.formats.pth.archive`.

Bytes are not copied: the result has their range (`ByteSpan`) in the pickle. The number of opcodes
is limited, and each opcode makes at most one value, so a small pickle cannot fill the memory.
Nothing here is recursive, so a deeply nested pickle cannot exhaust the stack.

Source: ``Lib/pickletools.py`` of CPython, which documents each opcode and splits a pickle into
opcodes without executing it.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any, NamedTuple

from packio.errors import NotAPackError
from packio.formats.wire import ByteSpan, MalformedError

_MOST_STEPS = 10_000  # opcodes; a sample takes about 20
_LONGEST_KEY = 4096  # bytes of a key of a dict
_LONGEST_INT = 64  # bytes

# Opcode → bytes of the length that precedes the content.
_BYTES = {
    "SHORT_BINBYTES": 1, "BINBYTES": 4, "BINBYTES8": 8, "BYTEARRAY8": 8, "SHORT_BINSTRING": 1,
    "BINSTRING": 4,
}  # fmt: skip
_VALUES = {  # opcodes whose argument is the value
    "BININT", "BININT1", "BININT2", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
}  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}  # opcode → items of the tuple
_PLAIN_KEYS = (str, int, float, bytes, type(None))


class RefusedError(NotAPackError):
    """The pickle does more than make plain data."""


class Name(NamedTuple):
    """A class or function that a pickle names, and the meaning that the caller gives to it."""

    name: str  # as "torch._utils._rebuild_tensor_v2"
    call: Callable[..., Any]  # makes the value that a call of the name stands for


class Names(NamedTuple):
    """The names that a pickle may use."""

    find: Callable[[str], Callable[..., Any] | None]  # name → its `Name.call`; None: refused
    persistent: Callable[[Any], Any]  # persistent id → value
    build: Callable[[Any], bool]  # whether the state of a value may be ignored


_NO_NAMES = Names(find=lambda _: None, persistent=lambda _: None, build=lambda _: False)
_MARK = object()  # where a tuple, or the items to add, begin on the stack


def is_likely(data: bytes) -> bool:
    """Whether bytes begin and end as a pickle of protocol 2 to 5 does."""
    return data[:1] == b"\x80" and data[1:2] in (b"\2", b"\3", b"\4", b"\5") and data[-1:] == b"."


def read_pickle(data: bytes, *, most_steps: int = _MOST_STEPS, names: Names | None = None) -> Any:
    """Read a pickle of plain data and calls of `names`; bytes come as a `ByteSpan` of `data`."""
    machine = _Machine(data, names)
    try:
        for step, (opcode, argument, at) in enumerate(pickletools.genops(data)):
            if step >= most_steps:
                raise MalformedError(f"a pickle of more than {most_steps} steps, expected fewer")
            if opcode.name == "STOP":
                return machine.result()
            machine.step(opcode.name, argument, at or 0)  # None: of streams alone
    except (MalformedError, RefusedError):
        raise
    except (ValueError, LookupError, TypeError, OverflowError) as error:
        raise MalformedError(
            f"a pickle that makes no sense: {type(error).__name__}: {error}"
        ) from error
    raise MalformedError("a pickle without an end")


class _Machine:
    def __init__(self, data: bytes, names: Names | None) -> None:
        self._data, self.names = data, names or _NO_NAMES
        self.actions = _PLAIN if names is None else _NAMING
        self.at = 0  # of the opcode that is carried out
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def result(self) -> Any:
        value = self.pop()
        if self.stack:
            raise MalformedError("a pickle that leaves values over")
        return value

    def step(self, name: str, argument: Any, at: int) -> None:
        self.at = at
        if name in self.actions:
            self.actions[name](self, argument)
        elif name in _BYTES:
            start = at + 1 + _BYTES[name]
            self.stack.append(ByteSpan(start, start + len(argument)))
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            self.stack.append(tuple([self.pop() for _ in range(_TUPLES[name])][::-1]))
        else:
            raise RefusedError(
                f"a pickle with {name} at byte {at}: it makes more than plain bytes, text, "
                "numbers, tuples, lists and dicts, which packio does not load"
            )

    def long(self, number: int) -> None:
        if (size := number.bit_length() // 8 + 1) > _LONGEST_INT:
            raise MalformedError(
                f"a pickle with an int of {size} bytes, expected at most {_LONGEST_INT}"
            )
        self.stack.append(number)

    def top(self) -> Any:
        if self.stack[-1] is _MARK:
            raise MalformedError(f"a pickle that takes a mark for a value, at byte {self.at}")
        return self.stack[-1]

    def pop(self) -> Any:
        value = self.top()
        self.stack.pop()
        return value

    def items(self) -> list[Any]:
        """Take the values above the last mark from the stack, and the mark."""
        start = len(self.stack) - 1
        while self.stack[start] is not _MARK:
            start -= 1
            if start < 0:
                raise MalformedError(f"a pickle without a mark, at byte {self.at}")
        items = self.stack[start + 1 :]
        del self.stack[start:]
        return items

    def extend(self, items: list[Any]) -> None:
        into = self.top()
        if type(into) is not list:
            raise MalformedError(f"a pickle that appends to no list, at byte {self.at}")
        into.extend(items)

    def update(self, items: list[Any]) -> None:
        into = self.top()
        if type(into) is not dict or len(items) % 2:
            raise MalformedError(f"a pickle that sets the items of no dict, at byte {self.at}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not _is_hashable(key):
                raise MalformedError(
                    f"a pickle with a key of type {type(key).__name__}, at byte {self.at}"
                )
            is_bytes = isinstance(key, ByteSpan)
            into[self._data[key.start : key.stop] if is_bytes else key] = value

    def name(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            raise MalformedError(f"a pickle with a name that is no text, at byte {self.at}")
        full = f"{'builtins' if module == '__builtin__' else module}.{name}"
        call = self.names.find(full)
        if call is None:
            raise RefusedError(
                f"a pickle that names {full[:300]} at byte {self.at}, which packio does not load"
            )
        self.stack.append(Name(full, call))

    def call(self, arguments: Any, name: Any) -> None:
        if type(name) is not Name or type(arguments) is not tuple:
            raise MalformedError(f"a pickle that calls no function, at byte {self.at}")
        self.stack.append(name.call(*arguments))

    def build(self) -> None:
        self.pop()
        if not self.names.build(self.top()):
            raise RefusedError(
                f"a pickle with BUILD at byte {self.at}: it sets attributes of a "
                f"{type(self.top()).__name__}, which packio does not load"
            )


def _is_hashable(key: Any) -> bool:
    if isinstance(key, ByteSpan):
        return key.stop - key.start <= _LONGEST_KEY
    # The items of a tuple are plain: a hash of tuples in tuples would exhaust the stack.
    return all(isinstance(part, _PLAIN_KEYS) for part in (key if type(key) is tuple else [key]))


_Action = Callable[[Any, Any], object]  # is given a machine, and the argument of the opcode
_PLAIN: dict[str, _Action] = {
    **dict.fromkeys(_VALUES, lambda m, value: m.stack.append(value)),
    **dict.fromkeys(("PROTO", "FRAME"), lambda _, __: None),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), lambda m, place: m.memo.update({place: m.top()})),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda m, place: m.stack.append(m.memo[place])),
    **dict.fromkeys(("LONG1", "LONG4"), lambda m, number: m.long(number)),
    "MARK": lambda m, _: m.stack.append(_MARK),
    "EMPTY_LIST": lambda m, _: m.stack.append([]),
    "EMPTY_DICT": lambda m, _: m.stack.append({}),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.items())),
    "APPEND": lambda m, _: m.extend([m.pop()]),
    "APPENDS": lambda m, _: m.extend(m.items()),
    "SETITEM": lambda m, _: m.update([m.pop(), m.pop()][::-1]),
    "SETITEMS": lambda m, _: m.update(m.items()),
    "MEMOIZE": lambda m, _: m.memo.update({len(m.memo): m.top()}),
    "POP": lambda m, _: m.stack.pop(),
    "DUP": lambda m, _: m.stack.append(m.top()),
    "POP_MARK": lambda m, _: m.items(),
}
_NAMING: dict[str, _Action] = {
    **_PLAIN,
    "GLOBAL": lambda m, name: m.name(*name.split(" ", 1)),
    "STACK_GLOBAL": lambda m, _: m.name(*[m.pop(), m.pop()][::-1]),
    "REDUCE": lambda m, _: m.call(m.pop(), m.pop()),
    "NEWOBJ": lambda m, _: m.call(m.pop(), m.pop()),  # a class with arguments; the same here
    "BUILD": lambda m, _: m.build(),
    "BINPERSID": lambda m, _: m.stack.append(m.names.persistent(m.pop())),
}
