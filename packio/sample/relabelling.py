"""Labels moved from one list of class names to another: the only place that renumbers labels.

A label is a position in its pack's list of class names: an int, a many-hot vector, or the label of
a box. In a pack with another list its name stays. The label -1 means "no class" and stays.

Example: `Relabelling(["cat", "dog"], ["bird", "cat", "dog"])` moves label 0 (cat) to 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from packio.errors import OptionError
from packio.sample.record import Field, Place, Record
from packio.system.locks import cached_property

NO_CLASS = -1
_SHOWN = 5  # names in an error message

Value = TypeVar("Value", Field, Place)


def all_classes(lists: Iterable[Sequence[str]]) -> list[str]:
    """Join lists of class names: those of the first list, then each name that is new."""
    return list(dict.fromkeys(name for names in lists for name in names))


@dataclasses.dataclass(frozen=True)
class Relabelling:
    """Moves labels from one list of class names to another."""

    old: Sequence[str]  # empty if the labels are plain numbers
    new: Sequence[str]
    where: str = "labels"  # begins error messages: the pack or source that the labels come from

    def __post_init__(self) -> None:
        known = set(self.new)
        missing = [name for name in self.old if name not in known]
        if missing:
            shown = ", ".join(ascii(name)[1:-1] for name in missing[:_SHOWN])
            raise OptionError(
                f"{self.where}: {len(missing)} class(es) that the given classes do not name: "
                f"{shown}; add these names"
            )

    @property
    def changes(self) -> bool:
        return list(self.old) != list(self.new)

    @cached_property
    def table(self) -> np.ndarray:  # (len(old),) int64: positions in the new list
        places = {name: i for i, name in enumerate(self.new)}
        return np.array([places[name] for name in self.old], np.int64)

    def labels(self, labels: np.ndarray) -> np.ndarray:
        """Move the labels of samples: (n,) int64, or (n, classes) float32 with 0 for new ones."""
        if not self.changes or not len(labels):
            return labels
        self._check_named()
        if labels.ndim == 1:
            return self.positions(labels)
        if labels.shape[1] != len(self.old):
            raise OptionError(
                f"{self.where}: vectors of {labels.shape[1]} numbers and {len(self.old)} class "
                "names; expected one number for each class"
            )
        moved = np.zeros((len(labels), len(self.new)), labels.dtype)
        moved[:, self.table] = labels
        return moved

    def positions(self, labels: np.ndarray) -> np.ndarray:
        """Move labels that are positions: of samples, or of boxes; (n,) int64."""
        if not self.changes or not len(labels):
            return labels
        self._check_named()
        wrong = (labels < NO_CLASS) | (labels >= len(self.old))
        if wrong.any():
            raise OptionError(
                f"{self.where}: label {labels[wrong][0]} has no name; there are {len(self.old)} "
                "classes; repair the labels"
            )
        moved: np.ndarray = np.append(self.table, NO_CLASS)[labels]
        return moved

    def record(self, record: Record[Value]) -> Record[Value]:
        """Move the label and the labels of the boxes of one sample."""
        if not self.changes:
            return record
        label, columns = record.label, record.box_columns
        if isinstance(label, np.ndarray):
            label = self.labels(label[None])[0]
        elif label is not None:
            label = int(self.positions(np.array([label], np.int64))[0])
        if "labels" in columns:
            columns = {**columns, "labels": self.positions(columns["labels"])}
        return dataclasses.replace(record, label=label, box_columns=columns)

    def columns(self, table: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Move the labels in the columns of an index: ``label`` and ``boxes/labels``."""
        moved = dict(table)
        if "label" in table:
            moved["label"] = self.labels(table["label"])
        if "boxes/labels" in table:
            moved["boxes/labels"] = self.positions(table["boxes/labels"])
        return moved

    def _check_named(self) -> None:
        if not self.old:
            raise OptionError(
                f"{self.where}: its labels are numbers without class names, which may mean other "
                "classes; name them first: pack it with --classes-from"
            )


def check_named(labels: np.ndarray, classes: Sequence[str], where: str) -> None:
    """Refuse labels, (n,) int64 or (n, k) float32, that class names of the user do not name."""
    if labels.ndim == 2:
        if labels.shape[1] != len(classes):
            raise OptionError(
                f"{where}: vectors of {labels.shape[1]} numbers, {len(classes)} class names"
            )
        return
    wrong = (labels < NO_CLASS) | (labels >= len(classes))
    if wrong.any():
        raise OptionError(
            f"{where}: label {labels[wrong][0]} has no name; {len(classes)} classes are given"
        )
