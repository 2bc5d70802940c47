"""States of loaders, found in checkpoints of ``torch.save`` and in JSON files.

Nothing is unpickled: `packio.formats.pth.archive` reads the values of a checkpoint, and no tensor.
A value of another class is passed over.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packio.errors import OptionError, PackioError, ReadError, StateError
from packio.formats.pth import archive
from packio.loading import steps
from packio.loading.steps import Span, Stretch

_ZIP = b"PK\x03\x04"
_SAVE = 'torch.save(loader.state_dict(), "loader.pt"), or json.dump of it'
_MOST = 1_000_000  # values of a checkpoint that are looked at


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

    Raises:
        StateError: there is no such state, or there are several.
        ReadError: the file cannot be read.
        OptionError: the state is of a sampler that is not packio's.
    """
    where = "state" if isinstance(state, Mapping) else os.fspath(state)
    value = state if isinstance(state, Mapping) else _loaded(Path(state))
    found = {path: each for path, each in _states(value) if name in (None, path)}
    if not found:
        there = [path for path, _ in _states(value)]
        names = f"; there is {', '.join(map(repr, there))}" if there else ""
        raise StateError(
            f"{where}: no state of a packio Loader or sampler"
            f"{f' under {name!r}' if name is not None else ''}{names}; expected what {_SAVE} wrote"
        )
    distinct = list({id(each): path for path, each in found.items()}.values())
    if len(distinct) > 1:
        raise StateError(
            f"{where}: states under {', '.join(map(repr, distinct))}; say which: state_name="
        )
    try:
        return _read(found[distinct[0]])
    except OptionError as error:
        raise type(error)(f"{where}: {error}") from error
    except (TypeError, ValueError, KeyError) as error:
        raise StateError(f"{where}: a state that makes no sense: {error!r}") from error


def _loaded(path: Path) -> Any:
    """The value that a file holds."""
    try:
        with path.open("rb") as file:
            head = file.read(len(_ZIP))
    except OSError as error:
        raise ReadError(f"{path}: {error.strerror}; expected a checkpoint") from error
    if head == _ZIP:
        try:
            with archive.opened(path) as opened:
                return opened.load(lenient=True)
        except ReadError:
            raise
        except PackioError as error:
            raise StateError(f"{error}; a file of the state alone can be read: {_SAVE}") from error
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise StateError(
            f"{path}: neither a file of torch.save (of torch 1.6 or newer) nor JSON; expected what "
            f"{_SAVE} wrote"
        ) from error


def _states(value: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All states within a value, each with the names that lead to it."""
    waiting: deque[tuple[str, Any]] = deque([("", value)])
    seen: set[int] = set()
    while waiting and len(seen) < _MOST:
        path, each = waiting.popleft()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, Mapping):
            if _is_state(each):
                yield path, each
                continue
            items: list[tuple[Any, Any]] = list(each.items())
        else:
            items = list(enumerate(each)) if isinstance(each, (list, tuple)) else []
        waiting.extend(
            (f"{path}.{name}" if path else str(name), inner)
            for name, inner in items if isinstance(inner, (Mapping, list, tuple))
        )  # fmt: skip


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
    if not isinstance(order, Mapping):
        raise TypeError(f"order={order!r}")
    told = state.get("dataset")
    return State(
        _count(state["epoch"]), _count_or_none(state.get("step")), order,
        _count_or_none(state.get("seed")) if "order" in state else None,
        _count_or_none(state.get("rank")),
        steps.read_stretches(_lists(state.get("stretches"))),
        steps.read_spans(_lists(state.get("left_out")), "left_out"),
        state.get("drop_last") is True, state.get("sampler_drop_last") is True,
        told if isinstance(told, Mapping) else None,
    )  # fmt: skip


def _lists(value: Any) -> Sequence[Sequence[int]]:
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{value!r}")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} where a count is expected")
    return value


def _count_or_none(value: Any) -> int | None:
    return None if value is None else _count(value)
