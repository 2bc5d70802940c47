"""States of loaders, found in checkpoints of ``torch.save`` and in JSON files.

Nothing is unpickled: `packio.formats.pth.archive` reads the values of a checkpoint, and no tensor.
A value of another class is passed over.
"""

from __future__ import annotations

import itertools
import json
import os
import reprlib
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packio.errors import OptionError, PackioError, ReadError, StateError
from packio.formats.pth import archive
from packio.loading import steps
from packio.loading.steps import Span, Stretch

_ZIP = b"PK\x03\x04"
_HEAD = 64  # bytes of a file that tell what it is
_SAVE = 'torch.save(loader.state_dict(), "loader.pt"), or json.dump of it'
_MOST = 1_000_000  # values of a checkpoint that are looked at
_DEEPEST = 100  # values within each other
_MOST_STATES = 1_000  # of a checkpoint
_SHOWN = 10  # names in a message
_LONGEST_NAME = 200  # characters
_LARGEST = 1 << 62  # of a number but a seed, which has 64 bits


class State(NamedTuple):
    """What a state of a loader or of a sampler says.

    Attributes:
        epoch, step: Where the loader stands; step None: not said.
        order: Of the sampler.
        seed: Of the draws of `rank`; None: not said.
        rank: Whose state it is; None: not said.
        stretches, left_out: Of the steps of the run.
        drop_last, sampler_drop_last: Whether last samples are left out.
        dataset: Description of the dataset; None: not said.
    """

    epoch: int
    step: int | None
    order: Mapping[str, Any]
    seed: int | None
    rank: int | None
    stretches: tuple[Stretch, ...]
    left_out: tuple[Span, ...]
    drop_last: bool
    sampler_drop_last: bool
    dataset: Mapping[str, Any] | None


def read(state: Mapping[str, Any] | str | os.PathLike[str], name: str | None = None) -> State:
    """Read a state.

    Args:
        state: What ``state_dict()`` of a loader or sampler returned, something that holds it, or a
            file: of ``torch.save``, or JSON.
        name: Where the state is in there, as "loader" or "loops.train"; None: there is only one.
    """
    where = "state" if isinstance(state, Mapping) else os.fspath(state)
    value = state if isinstance(state, Mapping) else _loaded(Path(state))
    there = dict(itertools.islice(_states(value), _MOST_STATES))
    found = {path: each for path, each in there.items() if name in (None, path)}
    if not found:
        names = f"; there is {_named(there)}" if there else ""
        raise StateError(
            f"{where}: no state of a packio Loader or sampler"
            f"{f' under {name!r}' if name is not None else ''}{names}; expected what {_SAVE} wrote"
        )
    distinct = list({id(each): path for path, each in found.items()}.values())
    if len(distinct) > 1:
        raise StateError(f"{where}: states under {_named(distinct)}; say which: state_name=")
    try:
        return _read(found[distinct[0]])
    except OptionError as error:
        raise type(error)(f"{where}: {error}") from error
    except (TypeError, ValueError, KeyError) as error:
        raise StateError(f"{where}: a state that makes no sense: {error!r}") from error


def _named(names: Collection[str]) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, itertools.islice(names, _SHOWN))) + more


def _loaded(path: Path) -> Any:
    """The value that a file holds."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise StateError(f"{path}: {error.strerror}; expected a checkpoint") from error
    except OSError as error:
        raise ReadError(f"{path}: {error.strerror}; expected a checkpoint") from error
    if head.startswith(_ZIP):
        try:
            with archive.opened(path) as opened:
                return opened.load(lenient=True)
        except ReadError:
            raise
        except PackioError as error:
            raise StateError(f"{error}; a file of the state alone can be read: {_SAVE}") from error
    try:
        if not any(mark in head for mark in (b"{", b"[")):
            raise ValueError("no object of JSON")
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise StateError(
            f"{path}: neither a file of torch.save (of torch 1.6 or newer) nor JSON; expected what "
            f"{_SAVE} wrote"
        ) from error


class _Trail(NamedTuple):
    """The names that lead to a value: joined only for a state, for they may be long and many."""

    names: tuple[Any, ...] = ()

    @property
    def path(self) -> str:
        return ".".join(str(name)[:_LONGEST_NAME] for name in self.names)


def _states(value: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All states within a value, each with the names that lead to it."""
    waiting: deque[tuple[_Trail, Any]] = deque([(_Trail(), value)])
    seen: set[int] = set()
    while waiting and len(seen) < _MOST:
        trail, each = waiting.popleft()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, Mapping):
            if _is_state(each):
                yield trail.path, each
                continue
            items: Iterable[tuple[Any, Any]] = each.items()
        else:
            items = enumerate(each) if isinstance(each, (list, tuple)) else ()
        if len(trail.names) < _DEEPEST:
            waiting.extend((_Trail((*trail.names, name)), inner) for name, inner in items
                           if isinstance(inner, (Mapping, list, tuple)))  # fmt: skip


def _is_state(value: Mapping[Any, Any]) -> bool:
    kinds = ({"epoch", "consumed", "order"}, {"epoch", "consumed", "sampler"},
             {"epoch", "skip", "generators"})  # fmt: skip
    return any(kind <= value.keys() for kind in kinds)


def _read(state: Mapping[str, Any]) -> State:
    if "consumed" not in state:
        raise OptionError(
            "the state is of a sampler that is not packio's: its order is not a function of a "
            "seed; take packio.ShuffleSampler, or Loader(shuffle=True)"
        )
    own = ("epoch", "consumed")
    order = state["order"] if "order" in state else {n: state[n] for n in state if n not in own}
    _check_order(order)
    told = state.get("dataset")
    return State(
        _count(state["epoch"]), _count_or_none(state.get("step")), order,
        _seed(state.get("seed")) if "order" in state else None,
        _count_or_none(state.get("rank")),
        steps.read_stretches(_lists(state.get("stretches"))),
        steps.read_spans(_lists(state.get("left_out")), "left_out"),
        state.get("drop_last") is True, state.get("sampler_drop_last") is True,
        _checked_dataset(told) if isinstance(told, Mapping) else None,
    )  # fmt: skip


def _check_order(order: Any) -> None:
    """Check that an order is plain numbers and text, in lists at most."""
    if not isinstance(order, Mapping):
        raise TypeError(f"order={reprlib.repr(order)}")
    for name, value in order.items():
        if name == "seed":
            if type(value) is not int or not -_LARGEST << 2 < value < _LARGEST << 2:
                raise ValueError(f"order: seed={reprlib.repr(value)}")
            continue
        rows = value if isinstance(value, (list, tuple)) else [value]
        for row in rows:
            for one in row if isinstance(row, (list, tuple)) else [row]:
                if not isinstance(one, (str, int, float, type(None))) or (
                    isinstance(one, (int, float)) and not 0 <= one < _LARGEST
                ):
                    raise ValueError(f"order: {name}={reprlib.repr(value)}")


def _checked_dataset(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a state says of its dataset."""
    parts = told.get("parts", ())
    if not isinstance(parts, (list, tuple)) or not all(isinstance(p, Mapping) for p in parts):
        raise TypeError(f"dataset: parts={reprlib.repr(parts)}")
    for part in parts:
        _count_or_none(part.get("samples"))
    return told


def _lists(value: Any) -> Sequence[Sequence[int]]:
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise TypeError(reprlib.repr(value))
    return value


def _seed(value: Any) -> int | None:
    """A seed; only its lower 64 bits count."""
    if value is not None and type(value) is not int:
        raise ValueError(f"seed={reprlib.repr(value)}")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _LARGEST:
        raise ValueError(f"{reprlib.repr(value)} where a count is expected")
    return value


def _count_or_none(value: Any) -> int | None:
    return None if value is None else _count(value)
