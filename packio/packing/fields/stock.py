"""What the parts of a field hold, and what is refused: samples without a value, and bad values."""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from packio.errors import BadImagesError, SourceError
from packio.packing.fields import parts, values
from packio.packing.fields.making import Problem

_SHOWN = 100  # bad values in a message


@dataclasses.dataclass(frozen=True, slots=True)
class Stock:
    """What is made.

    Attributes:
        kind: Of the values; None: there are none.
        absent: Rows that have no value, those of bad values left out.
        problems: Of bad values.
        bytes: Of all values.
        shapes: Shape and dtype of arrays → how many there are.
    """

    kind: str | None
    absent: list[int]
    problems: list[Problem]
    bytes: int
    shapes: dict[str, int]


def taken(folder: Path, where: str, keys: Sequence[bytes]) -> Stock:
    """Look through the parts."""
    kinds: dict[str, int] = {}
    problems, absent = list[Problem](), list[int]()
    size, shapes = 0, collections.Counter[str]()
    for first, _, path in parts.there(folder):
        part = parts.read(path)
        if part is None:
            raise OSError(f"{path}: is damaged; run the command again")
        if part.kind is not None:
            kinds.setdefault(part.kind, first)
        bad = {row for row, _, _ in part.problems}
        problems += [Problem(*problem) for problem in part.problems]
        size += len(part.data)
        shapes.update(part.shapes)
        rows = (first + i for i in (~part.present).nonzero()[0].tolist())
        absent += [row for row in rows if row not in bad]
    if len(kinds) > 1:
        shown = [f"{kind} ({os.fsdecode(keys[row])!r})" for kind, row in kinds.items()]
        raise SourceError(
            f"{where}: values are of several kinds: {', '.join(shown)}; say which: kind=…"
        )
    return Stock(next(iter(kinds), None), absent, problems, size, dict(shapes.most_common()))


def none_fits(path: Path, name: str, lacking: Sequence[bytes], given: Sequence[str]) -> SourceError:
    """The error for values of which none has the key of a sample that lacks one."""
    told = f"values have {values.shown(given)}" if given else "there are no values"
    samples = values.shown([os.fsdecode(key) for key in lacking])
    return SourceError(
        f"{path}: no value of {name} has the key of a sample that needs one: {told}; samples have "
        f"{samples}; name the values by these keys (packio ls {path})"
    )


def lacking(
    path: Path, name: str, absent: Sequence[bytes], count: int, unused: Sequence[str]
) -> SourceError:
    """The error for samples without a value."""
    more = (
        f"; {len(unused):,} of the values belong to no sample: {values.shown(unused)}"
        if unused
        else ""
    )
    return SourceError(
        f"{path}: {len(absent):,} of {count:,} samples have no value of {name}: "
        f"{values.shown([os.fsdecode(key) for key in absent])}{more}; give them one, or allow it "
        "with --missing"
    )


def bad(
    path: Path, name: str, problems: Iterable[Problem], limit: int | None
) -> BadImagesError:  # fmt: skip
    """The error for bad values, with all of them."""
    listed = sorted(problems)
    lines = "".join(f"\n  {ascii(one.key)[1:-1]}: {one.reason}" for one in listed[:_SHOWN])
    more = f"\n  and {len(listed) - _SHOWN:,} more" if len(listed) > _SHOWN else ""
    stopped = "" if limit is None else f"stopped, as more than {limit:,} are bad (--max-errors); "
    error = BadImagesError(
        f"{path}: {name} is not added; bad values: {len(listed):,}; {stopped}mend them, or leave "
        f"them out with --on-error skip:{lines}{more}"
    )
    error.skipped = tuple((one.key, one.reason) for one in listed)
    return error
