"""Pickles of plain data, read without `pickle`: nothing in them can run, import or grow.

A pickle is a program of a stack machine: one byte of opcode, an argument, the next opcode. Read
here are the opcodes that make None, bool, int, float, str, bytes, tuple, list and dict, of
protocols 2 to 5, and those that remember values and take them up again. Whatever names a class or
function, calls one, or makes a value of another type is refused by its name.

Of bytes only the range is kept. A stream makes at most so many values as is said here, so a small
one cannot fill the memory; there is no recursion, so a deep one cannot exhaust the stack.

Source: ``Lib/pickletools.py`` of CPython, the documentation of each opcode.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from packio.errors import NotAPackError
from packio.formats.wire import Malformed, Span

_MOST_STEPS = 10_000  # opcodes; a sample takes about 20
_LONGEST_KEY = 4096  # bytes of a key of a dict

# Opcodes that are refused, to be told by name.
_NAMES = {
    "c": "GLOBAL", "\x93": "STACK_GLOBAL", "R": "REDUCE", "b": "BUILD", "i": "INST", "o": "OBJ",
    "\x81": "NEWOBJ", "\x92": "NEWOBJ_EX", "P": "PERSID", "Q": "BINPERSID", "\x82": "EXT1",
    "\x83": "EXT2", "\x84": "EXT4", "\x8f": "EMPTY_SET", "\x90": "ADDITEMS", "\x91": "FROZENSET",
    "\x97": "NEXT_BUFFER", "\x98": "READONLY_BUFFER", "I": "INT", "L": "LONG", "S": "STRING",
    "V": "UNICODE", "F": "FLOAT", "p": "PUT", "g": "GET", "d": "DICT", "l": "LIST",
}  # fmt: skip


class RefusedError(NotAPackError):
    """The pickle does more than make plain data."""


class _Mark:
    """Where a tuple, or the items to add, begin on the stack."""


_MARK = _Mark()

# Opcode → format of a number that is the value.
_NUMBERS = {b"J": "<i", b"K": "<B", b"M": "<H", b"G": ">d"}
_CONSTANTS = {b"N": None, b"\x88": True, b"\x89": False}
# Opcode → format of the length before the content.
_BYTES = {b"C": "<B", b"B": "<I", b"\x8e": "<Q", b"\x96": "<Q", b"U": "<B", b"T": "<I"}
_TEXTS = {b"\x8c": "<B", b"X": "<I", b"\x8d": "<Q"}
_LONGS = {b"\x8a": "<B", b"\x8b": "<I"}
_PUTS, _GETS = {b"q": "<B", b"r": "<I"}, {b"h": "<B", b"j": "<I"}
_LAST = {b"\x85": 1, b"\x86": 2, b"\x87": 3}  # opcode → items of the tuple


def is_likely(data: bytes) -> bool:
    """Whether bytes begin and end as a pickle of protocol 2 to 5 does."""
    return data[:1] == b"\x80" and data[1:2] in (b"\2", b"\3", b"\4", b"\5") and data[-1:] == b"."


def read(data: bytes, *, most_steps: int = _MOST_STEPS) -> Any:
    """Read a pickle of plain data; bytes come as a `Span` of ``data``.

    Args:
        data: The pickle.
        most_steps: Opcodes that it may have, each of which makes one value at most.

    Raises:
        RefusedError: it makes something else than plain data; the message names the opcode.
        Malformed: it is cut off, too long, or makes no sense.
    """
    try:
        return _Machine(data).run(most_steps)
    except (struct.error, IndexError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise Malformed(f"a pickle that makes no sense: {type(error).__name__}: {error}") from error


class _Machine:
    """The stack and the memory of one pickle."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._plain: dict[bytes, Callable[[], None]] = {
            b"(": lambda: self._stack.append(_MARK),
            b")": lambda: self._stack.append(()),
            b"]": lambda: self._stack.append([]),
            b"}": lambda: self._stack.append({}),
            b"t": lambda: self._stack.append(tuple(self._items())),
            b"a": lambda: self._extend([self._pop()]),
            b"e": lambda: self._extend(self._items()),
            b"s": lambda: self._update([self._pop(), self._pop()][::-1]),
            b"u": lambda: self._update(self._items()),
            b"\x94": lambda: self._memorize(len(self._memo)),
            b"0": self._drop,
            b"2": lambda: self._stack.append(self._top()),
            b"1": lambda: self._items().clear(),
        }

    def run(self, most_steps: int) -> Any:
        for _ in range(most_steps):
            opcode = self._take(1)
            if opcode == b".":
                value = self._pop()
                if self._stack:
                    raise Malformed("a pickle that leaves values over")
                return value
            self._step(opcode)
        raise Malformed(f"a pickle of more than {most_steps} steps, which no sample takes")

    def _step(self, opcode: bytes) -> None:
        if opcode in self._plain:
            self._plain[opcode]()
        elif opcode in _CONSTANTS:
            self._stack.append(_CONSTANTS[opcode])
        elif opcode in _NUMBERS:
            self._stack.append(self._number(_NUMBERS[opcode]))
        elif opcode in _BYTES:
            self._stack.append(self._span(_BYTES[opcode]))
        elif opcode in _TEXTS or opcode in _LONGS:
            self._stack.append(self._text_or_long(opcode))
        elif opcode in _LAST:
            items = [self._pop() for _ in range(_LAST[opcode])]
            self._stack.append(tuple(items[::-1]))
        elif opcode in _PUTS:
            self._memorize(self._number(_PUTS[opcode]))
        elif opcode in _GETS:
            self._stack.append(self._memo[self._number(_GETS[opcode])])
        elif opcode in (b"\x80", b"\x95"):  # PROTO and FRAME: nothing to do
            self._take(1 if opcode == b"\x80" else 8)
        else:
            name = _NAMES.get(opcode.decode("latin-1"), "an unknown opcode")
            raise RefusedError(
                f"a pickle with {name} ({opcode.hex()}) at byte {self._at - 1}: it makes more than "
                "plain bytes, text, numbers, tuples, lists and dicts, which packio does not load"
            )

    def _take(self, count: int) -> bytes:
        start, self._at = self._at, self._at + count
        if self._at > len(self._data):
            raise Malformed(f"a pickle that ends at {self._at}, beyond its {len(self._data)} bytes")
        return self._data[start : self._at]

    def _number(self, kind: str) -> Any:
        return struct.unpack(kind, self._take(struct.calcsize(kind)))[0]

    def _span(self, kind: str) -> Span:
        count = self._number(kind)
        if count > len(self._data) - self._at:
            raise Malformed(f"a pickle with {count} bytes at {self._at}, beyond its end")
        self._at += count
        return Span(self._at - count, self._at)

    def _text_or_long(self, opcode: bytes) -> str | int:
        span = self._span((_TEXTS | _LONGS)[opcode])
        if opcode in _TEXTS:
            return self._data[span.start : span.stop].decode("utf-8", "surrogatepass")
        if span.stop - span.start > 8:
            raise Malformed(f"a pickle with an int of {span.stop - span.start} bytes, expected 8")
        return int.from_bytes(self._data[span.start : span.stop], "little", signed=True)

    def _top(self) -> Any:
        if self._stack[-1] is _MARK:
            raise Malformed(f"a pickle that takes a mark for a value, at byte {self._at}")
        return self._stack[-1]

    def _pop(self) -> Any:
        value = self._top()
        self._stack.pop()
        return value

    def _drop(self) -> None:
        self._stack.pop()

    def _items(self) -> list[Any]:
        """Take what lies on the stack above the last mark, and the mark."""
        start = len(self._stack) - 1
        while self._stack[start] is not _MARK:
            start -= 1
            if start < 0:
                raise Malformed(f"a pickle without a mark, at byte {self._at}")
        items = self._stack[start + 1 :]
        del self._stack[start:]
        return items

    def _memorize(self, place: int) -> None:
        self._memo[place] = self._top()

    def _extend(self, items: list[Any]) -> None:
        into = self._top()
        if type(into) is not list:
            raise Malformed(f"a pickle that appends to no list, at byte {self._at}")
        into.extend(items)

    def _update(self, items: list[Any]) -> None:
        into = self._top()
        if type(into) is not dict or len(items) % 2:
            raise Malformed(f"a pickle that sets the items of no dict, at byte {self._at}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            into[self._hashable(key)] = value

    def _hashable(self, key: Any) -> str | int | bytes | None:
        if isinstance(key, Span) and key.stop - key.start <= _LONGEST_KEY:
            return self._data[key.start : key.stop]
        if key is None or isinstance(key, (str, int)):
            return key
        raise Malformed(f"a pickle with a key of type {type(key).__name__}, at byte {self._at}")
