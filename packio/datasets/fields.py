"""Fields: which values make up a sample, and in which shape they are handed out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from packio.errors import OptionError
from packio.packs.packs import Pack

NAMES = ("image", "mask", "label", "boxes", "box_labels", "key", "index")

Spec = str | Sequence[str] | Mapping[str, str]


class Fields:
    """What a sample consists of.

    Args:
        spec: A field's name (the bare value), a sequence of names (a tuple), or a mapping of
            output names to fields (a dict).

    Attributes:
        names: The fields, in order.
        meta: Those of them that are keys of the samples' metadata.

    Raises:
        OptionError: no field.
    """

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        if isinstance(spec, str):
            self.names: tuple[str, ...] = (spec,)
        else:
            self.names = tuple(spec.values() if isinstance(spec, Mapping) else spec)
        self.meta = tuple(name for name in self.names if name not in NAMES)
        if not self.names:
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


def of_pack(spec: Spec | None, pack: Pack) -> Fields:
    """The fields asked for, or those that every user of a pack expects.

    Args:
        spec: As `Fields` takes it; None: image, mask and label as far as there are any, or the bare
            image.
        pack: That has to have them.

    Raises:
        OptionError: the pack does not have one of them.
    """
    there = [name for name in NAMES if _has(pack, name)]
    if spec is None:
        usual = tuple(name for name in ("image", "mask", "label") if name in there)
        return Fields(usual if len(usual) > 1 else "image")
    fields = Fields(spec)
    meta = (pack.meta(0) if len(pack) else None) or {}
    for name in fields.names:
        if name not in there and (name in NAMES or not (name in meta or _in_meta(pack, name))):
            raise OptionError(
                f"fields={spec!r}: {pack.path} has no {name!r}; it has {', '.join(there)}"
                + "".join(f", {key}" for key in meta if key not in NAMES)
            )
    return fields


def _has(pack: Pack, name: str) -> bool:
    column = {"mask": "mask_offset", "label": "label", "boxes": "boxes", "box_labels": "box_labels"}
    return name not in column or column[name] in pack.index_file


def _in_meta(pack: Pack, name: str) -> bool:
    """Whether a name is anywhere in the metadata; the text is searched, not parsed."""
    if "meta_data" not in pack.index_file:
        return False
    text = pack.index_file.column("meta_data").array()
    forms = {json.dumps(name, ensure_ascii=escape).encode("utf-8", "surrogatepass")
             for escape in (True, False)}  # fmt: skip
    return any(re.search(re.escape(form), text.data) for form in forms)
