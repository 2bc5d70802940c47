"""A listing whose labels are moved to another list of classes, by name."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from packio.sample.record import Field, Record
from packio.sample.relabelling import Relabelling
from packio.sources import Listing, ReadRecord


def relabelled(listing: Listing, classes: Sequence[str], where: str) -> Listing:
    """Move the labels and the box labels of a listing.

    Args:
        listing: The samples.
        classes: Class names that the labels shall be positions in.
        where: Begins error messages.

    Raises:
        OptionError: a label has no name.
    """
    move = Relabelling(listing.classes, list(classes), where)
    if not move.changes:
        return listing
    labels = listing.labels
    if labels is not None:
        moved = move.labels(np.asarray(labels))
        labels = moved.tolist() if moved.ndim == 1 else moved
    opener = None if listing.open is None else functools.partial(_opened, listing.open, move)
    return dataclasses.replace(listing, labels=labels, classes=list(classes), open=opener)


@contextlib.contextmanager
def _opened(
    opener: Callable[[Any], AbstractContextManager[ReadRecord]], move: Relabelling, rows: Any
) -> Iterator[ReadRecord]:
    with opener(rows) as read:

        def moved(position: int) -> Record[Field]:
            return move.record(dataclasses.replace(read(position), label=None))

        yield moved
