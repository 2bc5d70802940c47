"""The journal of a field that is added: what the values are of that a run has made and left.

The file ``plan`` in it is JSON: ``{"plan", "name", "origin", "is_function"}``. The first is a
digest of all that the values depend on: another run goes on with them if its own is the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from packio.errors import OutputExistsError
from packio.packing.fields import parts
from packio.storage.workshop import Workshop
from packio.system.files import remove

SUFFIX = ".packio-add"  # of the workshop: it does not bar readers
_PLAN = "plan"


class Plan(NamedTuple):
    """What the values of a run are of.

    Attributes:
        plan: Digest.
        name: Of the field.
        origin: Where the values come from, for people.
        is_function: Whether a function makes them, which may take hours.
    """

    plan: str
    name: str
    origin: str
    is_function: bool


def begin(shop: Workshop, plan: Plan, *, resume: bool) -> None:
    """Keep the parts of an earlier run with the same plan; remove those of another plan."""
    before = read(shop.shards)
    if resume and before == plan:
        return
    rows = _rows(shop.shards)
    if resume and rows and before is not None:
        fits = (before.name, before.origin) == (plan.name, plan.origin)
        why = "end that one first, as this command would discard them"
        if fits:
            why = "its kind, or samples or other fields of the pack have changed since"
        if before.is_function or before.name != plan.name:
            raise OutputExistsError(
                f"{shop.out}: {_left(before, rows)}; {why}; to discard them: --no-resume"
            )
    remove(shop.shards)
    remove(shop.built)
    shop.shards.mkdir()
    shop.built.mkdir()
    parts.write_whole(shop.shards / _PLAN, json.dumps(plan._asdict()).encode())


def check_none_left(out: Path, what: str) -> None:
    """Refuse to change a pack if values that a function made would fit it no more."""
    shop = Workshop.of(out, SUFFIX)
    before = read(shop.shards)
    if before is not None and before.is_function and (rows := _rows(shop.shards)):
        raise OutputExistsError(
            f"{out}: {_left(before, rows)}; {what} would make them useless: end that command "
            f"first, or discard the values: remove {shop.folder}"
        )


def _left(plan: Plan, rows: int) -> str:
    return (
        f"packio add of {plan.name!r} from {plan.origin} was cut short, with {rows:,} values made"
    )


def read(folder: Path) -> Plan | None:
    """The plan of an earlier run; None if there is none, or one of an older packio."""
    try:
        return Plan(**json.loads((folder / _PLAN).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _rows(folder: Path) -> int:
    return sum(stop - first for first, stop, _ in parts.there(folder)) if folder.is_dir() else 0
