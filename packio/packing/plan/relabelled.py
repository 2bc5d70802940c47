"""A listing whose labels are moved to another list of classes, by name."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from packio.sample.record import Field, Record
from packio.sample.relabelling import Relabelling
from packio.sources import Listing


def relabelled(listing: Listing, classes: Sequence[str], where: str) -> Listing:
    """Move the labels and the box labels of a listing."""
    move = Relabelling(listing.classes, list(classes), where)
    if not move.changes:
        return listing
    labels = listing.labels
    if labels is not None:
        found = move.labels(np.asarray(labels))
        labels = found.tolist() if found.ndim == 1 else found
    moved = listing.changed(functools.partial(_moved, move))
    return dataclasses.replace(moved, labels=labels, classes=list(classes))


def _moved(move: Relabelling, record: Record[Field]) -> Record[Field]:
    return move.record(dataclasses.replace(record, label=None))
