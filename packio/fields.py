"""Fields: which values make up a sample, and in which shape they are handed out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packio.errors import OptionError

NAMES = ("image", "label", "key", "index")

Spec = str | Sequence[str] | Mapping[str, str]


class Fields:
    """What a sample consists of.

    Args:
        spec: A field's name (the bare value), a sequence of names (a tuple), or a mapping of
            output names to fields (a dict).

    Attributes:
        names: The fields, in order.

    Raises:
        OptionError: an unknown field, or none.
    """

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        if isinstance(spec, str):
            self.names: tuple[str, ...] = (spec,)
        else:
            self.names = tuple(spec.values() if isinstance(spec, Mapping) else spec)
        unknown = [n for n in self.names if n not in NAMES]
        if unknown or not self.names:
            raise OptionError(f"fields={spec!r}: expected names out of {', '.join(NAMES)}")

    def assemble(self, values: Mapping[str, Any]) -> Any:
        """Put one value of each field into the shape asked for."""
        if isinstance(self._spec, str):
            return values[self._spec]
        if isinstance(self._spec, Mapping):
            return {out: values[name] for out, name in self._spec.items()}
        return tuple([values[name] for name in self.names])

    def take_apart(self, sample: Any) -> dict[str, Any]:
        """The opposite of `assemble`."""
        if isinstance(self._spec, str):
            return {self._spec: sample}
        if isinstance(self._spec, Mapping):
            return {name: sample[out] for out, name in self._spec.items()}
        return dict(zip(self.names, sample, strict=True))

    def batch(self, values: Mapping[str, Any]) -> Any:
        """Put one batched value of each field into the shape that default_collate gives."""
        if isinstance(self._spec, (str, Mapping)):
            return self.assemble(values)
        return [tuple(values[n]) if n == "key" else values[n] for n in self.names]

    def samples(self, columns: Mapping[str, Sequence[Any]]) -> list[Any]:
        """Turn columns of N values each into N samples of the shape asked for."""
        if isinstance(self._spec, str):
            return list(columns[self._spec])
        rows = zip(*(columns[name] for name in self.names), strict=True)
        if isinstance(self._spec, Mapping):
            outs = tuple(self._spec)
            return [dict(zip(outs, row, strict=True)) for row in rows]
        return list(rows)
