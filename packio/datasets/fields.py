"""Fields: the values that make up a sample, and the shape of a sample: bare, tuple or dict."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from packio.batches.boxes import LABELS
from packio.batches.samples import BOXES
from packio.errors import OptionError
from packio.packs.opening import Pack
from packio.sample import levels
from packio.sample.record import IMAGE

NAMES = ("image", "mask", "label", "boxes", "box_labels", "key", "index", "split")
_NEVER_META = NAMES[:-1]  # packs had metadata of the name "split" before they had splits

Spec = str | Sequence[str | Mapping[str, str]] | Mapping[str, str]


class Fields:
    """What a sample consists of.

    Args:
        spec: A field's name (the bare value), a sequence of names (a tuple), or a mapping of
            output names to fields (a dict). A sequence may have such mappings in it.
        described: Names of what the index says of each sample, as "key".
    """

    def __init__(self, spec: Spec, kinds: Mapping[str, str], described: Sequence[str]) -> None:
        if not isinstance(spec, (str, Mapping, Sequence)):  # a set has no order of its own
            raise OptionError(
                f'fields={spec!r}: expected a name, a tuple, as ("image", "label"), or '
                "{name: field}"
            )
        self._is_bare = isinstance(spec, str)
        self._outs: tuple[str, ...] | None = None  # the keys of a dict
        if isinstance(spec, Mapping):
            self._outs, spec = tuple(spec), tuple(spec.values())
        self._parts = (spec,) if isinstance(spec, str) else tuple(spec)  # a name, or a dict
        inner = [name for part in self._parts if isinstance(part, Mapping)
                 for name in part.values()]  # fmt: skip
        names = [name for part in self._parts
                 for name in (part.values() if isinstance(part, Mapping) else [part])]  # fmt: skip
        if not all(isinstance(name, str) for name in names) or IMAGE in inner:
            raise OptionError(
                f"fields={spec!r}: expected names of fields, or dicts of them without the image, "
                'as ("image", {"boxes": "boxes", "labels": "box_labels"})'
            )
        self.names: tuple[str, ...] = tuple(names)
        self._nests = bool(inner)
        self.kinds: dict[str, str] = {name: kinds[name] for name in self.names if name in kinds}
        known = {*self.kinds, *described}
        self.meta: tuple[str, ...] = tuple(name for name in self.names if name not in known)
        if not self.names:
            raise OptionError(f"fields={spec!r}: expected names out of {', '.join(NAMES)}")

    @property
    def image_places(self) -> tuple[int | str, ...] | None:
        """Where the image is in a batch: positions of a tuple, or keys of a dict.

        None: the batch is the image alone.
        """
        if self._is_bare:
            return None
        outs: Sequence[int | str] = range(len(self.names)) if self._outs is None else self._outs
        return tuple(o for o, part in zip(outs, self._parts, strict=True) if part == IMAGE)

    def assemble(self, values: Mapping[str, Any]) -> Any:
        """Put one value of each field into the shape asked for."""
        if self._is_bare:
            return values[self.names[0]]
        each = [self._of_part(part, values) for part in self._parts]
        return tuple(each) if self._outs is None else dict(zip(self._outs, each, strict=True))

    def take_apart(self, sample: Any) -> dict[str, Any]:
        """The opposite of `assemble`."""
        if self._is_bare:
            return {self.names[0]: sample}
        each = sample if self._outs is None else sample.values()
        found: dict[str, Any] = {}
        for part, value in zip(self._parts, each, strict=True):
            found |= (
                {part: value} if isinstance(part, str)
                else {name: value[out] for out, name in part.items()}
            )  # fmt: skip
        return found

    def _of_part(self, part: str | Mapping[str, str], values: Mapping[str, Any]) -> Any:
        if isinstance(part, str):
            return values[part]
        return {out: values[name] for out, name in part.items()}

    def batch(self, values: Mapping[str, Any]) -> Any:
        """Put one batched value of each field into the shape that default_collate gives."""
        if self._is_bare or self._outs is not None:
            return self.assemble(values)
        return [tuple(values[part]) if part == "key" else self._of_part(part, values)
                for part in self._parts]  # fmt: skip

    def samples(self, columns: Mapping[str, Sequence[Any]]) -> list[Any]:
        """Turn columns of N values each into N samples of the shape asked for."""
        if self._is_bare:
            return list(columns[self.names[0]])
        if self._nests:
            rows = zip(*(columns[name] for name in self.names), strict=True)
            return [self.assemble(dict(zip(self.names, row, strict=True))) for row in rows]
        rows = zip(*(columns[name] for name in self.names), strict=True)
        if self._outs is None:
            return list(rows)
        return [dict(zip(self._outs, row, strict=True)) for row in rows]


def of_pack(spec: Spec | None, pack: Pack) -> Fields:
    """The fields asked for, or the usual fields of a pack.

    Args:
        spec: As `Fields` takes it; None: image, mask and label as far as the pack has them. That is
            a tuple of the image alone where there is nothing else, so that a loop over images and
            labels fails, and does not take a batch of two images for both.
    """
    kinds = _kinds(pack)
    there = [name for name in NAMES if name in kinds or name in _described(pack)]
    there += [name for name in levels.others(kinds) if name not in there]
    if spec is None:
        usual = tuple(name for name in ("image", "mask", "label") if name in there)
        return Fields(usual, kinds, _described(pack))
    fields = Fields(spec, kinds, _described(pack))
    meta = (pack.meta(0) if len(pack) else None) or {}
    for name in fields.meta:
        if name in _NEVER_META or not (name in meta or _in_meta(pack, name)):
            raise OptionError(
                f"fields={spec!r}: {pack.path} has no {name!r}; it has {', '.join(there)}"
                + "".join(f", {key}" for key in meta if key not in there)
            )
    return fields


def _kinds(pack: Pack) -> dict[str, str]:
    """Name → kind of all that can be made of a pack's samples."""
    kinds = dict.fromkeys(pack.box_columns, BOXES)
    if "boxes" in pack.index_file:
        kinds["boxes"] = BOXES
    if kinds.pop("labels", None):
        kinds[LABELS] = BOXES
    return kinds | pack.fields


def _described(pack: Pack) -> tuple[str, ...]:
    """Names of what the index says of each sample."""
    label = ("label",) if "label" in pack.index_file else ()
    split = ("split",) if "split" in pack.index_file else ()
    return (*label, "key", "index", *split)


def _in_meta(pack: Pack, name: str) -> bool:
    """Whether a name is a key anywhere in the metadata; the text is searched, not parsed."""
    if "meta_data" not in pack.index_file:
        return False
    text = pack.index_file.column("meta_data").array()
    forms = {json.dumps(name, ensure_ascii=escape).encode("utf-8", "surrogatepass")
             for escape in (True, False)}  # fmt: skip
    return any(re.search(re.escape(form) + rb"\s*:", text.data) for form in forms)
