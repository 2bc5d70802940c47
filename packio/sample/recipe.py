"""How the samples of a pack were chosen and made, as the index records it.

A pack keeps its recipe in the index's metadata under ``"recipe"``. Appending follows the recipe,
converting and merging carry it, and a run that resumes compares it.

Example: ``{"source": "image_folder", "encoding": {"encode": "jpeg", "resize": "short=256"}}``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

NO_ENCODING = {"encode": "keep"}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a pack was made: nothing that changes neither its bytes nor its set of samples."""

    source: str = ""  # the name of a module of `packio.sources`
    # Options of the source, without paths; of `plan.choosing.Choice`; of `images.encode.Encoding`.
    reading: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    choice: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    encoding: Mapping[str, Any] = dataclasses.field(default_factory=lambda: NO_ENCODING)
    check: str = "header"  # or "decode": how each image was checked
    writing: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # options of the writer
    stats: int | None = None  # how many images were measured; 0: all, None: none
    seek_points: bool = True  # the index says where the decoding of a JPEG may begin
    is_mixed: bool = False  # merged of packs of other recipes: how is a new sample to be made?
    levels: Mapping[str, Any] | None = None  # options of `images.levels.Levels`; None: not said

    def as_json(self) -> dict[str, Any]:
        """A JSON object without the values that are the defaults."""
        plain = Recipe()
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {n: _plain(v) for n, v in values.items() if v != getattr(plain, n)}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Recipe:
        """The recipe in an index's metadata, or the source alone of a container of others."""
        found = metadata.get("recipe") or {"source": (metadata.get("source") or {}).get("kind", "")}
        names = {f.name for f in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in found.items() if name in names})

    def combine_with(self, later: Recipe) -> Recipe:
        """The recipe of a pack that was made with ``later`` out of a pack of this recipe."""
        patterns = [*self.choice.get("exclude", ()), *later.choice.get("exclude", ())]
        levels = self.levels if later.levels is None else later.levels
        return dataclasses.replace(
            self,
            choice={**self.choice, **later.choice, **({"exclude": patterns} if patterns else {})},
            encoding=self._encoding(later.encoding),
            check="decode" if "decode" in (self.check, later.check) else "header",
            writing=later.writing, stats=later.stats, seek_points=later.seek_points,
            levels=levels if levels and levels.get("count") else None,  # None: taken away
        )  # fmt: skip

    def _encoding(self, later: Mapping[str, Any]) -> Mapping[str, Any]:
        """Encoding options of both; without those that only the earlier encoder understood."""
        if later == NO_ENCODING:
            return self.encoding
        if later["encode"] in ("keep", self.encoding["encode"]):
            return {**self.encoding, **later, "encode": self.encoding["encode"]}
        kept = ("resize", "enlarge", "interpolation", "orientation", "icc", "alpha", "wide")
        return {**{n: v for n, v in self.encoding.items() if n in kept}, **later}

    @property
    def new_names(self) -> dict[str, str]:
        """The names that fields of packs get: old name → another one."""
        fields = self.reading.get("fields") if self.source == "pack" else None
        return {origin: name for name, (origin, _) in (fields or {}).items() if origin != name}

    def differences(self, other: Recipe) -> list[str]:
        """What differs between two recipes: one line for each name."""
        mine, theirs = self.as_json(), other.as_json()
        return [
            f"{name}: {mine.get(name, 'the default')}, before {theirs.get(name, 'the default')}"
            for name in sorted({*mine, *theirs})
            if mine.get(name) != theirs.get(name)
        ]


def merge_recipes(recipes: Sequence[Recipe]) -> Recipe:
    """The recipe of several packs as one; mixed if they were encoded or chosen in other ways."""
    return functools.reduce(_both, recipes)


def _both(one: Recipe, other: Recipe) -> Recipe:
    if one == other:
        return one
    same_source = (one.source, one.reading) == (other.source, other.reading)
    made = [(r.as_json().get("encoding"), r.check, _plain(r.choice), _plain(r.levels), r.is_mixed)
            for r in (one, other)]  # fmt: skip
    return dataclasses.replace(
        one,
        source=one.source if same_source else "merge",
        reading=one.reading if same_source else {},
        writing=one.writing if one.writing == other.writing else {},
        stats=one.stats if one.stats == other.stats else None,
        levels=one.levels if _plain(one.levels) == _plain(other.levels) else None,
        is_mixed=made[0] != made[1] or one.is_mixed,
    )


def _plain(value: Any) -> Any:
    """Mappings and tuples as JSON has them."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
