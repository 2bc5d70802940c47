"""The verbs: what a user does with packs. The modules ``verbs_of_…`` have them.

A verb is a function that is given a trial, runs commands, and compares each pack with the described
samples. A new verb is one such function.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from trials import Cell, Trial

if TYPE_CHECKING:
    from described import Sample

Try = Callable[[Trial], None]
LOCKED, EXISTS, USAGE = 75, 73, 2  # exit codes


class Verb(NamedTuple):
    """A verb."""

    run: Try
    without: tuple[str, ...]  # sources and annotations that make no sense with the verb
    only: tuple[str, ...]  # if there are any: the verb needs one of these

    def fits(self, cell: Cell) -> bool:
        """Tell whether the verb can be tried in a cell."""
        has = {cell.source, *(f"{n}={way}" for n, way in cell.annotations)}
        has |= {name for name, _ in cell.annotations}
        return not has & {*self.without} and (not self.only or bool(has & {*self.only}))


VERBS: dict[str, Verb] = {}


def verb(*without: str, only: tuple[str, ...] = ()) -> Callable[[Try], Try]:
    """Register a verb.

    Args:
        without: What the verb cannot be tried with: a source, an annotation, or a way of an
            annotation, as ``label=vector``.
        only: The verb needs one of these.
    """

    def register(run: Try) -> Try:
        VERBS[run.__name__] = Verb(run, without, only)
        return run

    return register


# Fields and boxes are resized, too; tests/packing tells how.
RESIZED = (
    "boxes",
    "mask",
    "fields",
    "coco",
    "voc",
    "voc_masks",
    "yolo",
    "objects",
    "suffixes",
    "generator",
)


def twin(sample: Sample) -> Sample:
    """A sample with the same image and another key, which comes last."""
    found = copy.deepcopy(sample)
    folder, _, name = sample["key"].rpartition("/")
    found["key"] = f"{folder}/89.{name.rpartition('.')[2]}".lstrip("/")
    return found


def resized(sample: Sample) -> Sample:
    """A sample after ``--resize exact=8x8``."""
    return {**sample, "size": (8, 8), "unknown": ("image", "pixels")}
