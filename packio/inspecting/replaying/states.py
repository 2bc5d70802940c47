"""States of loaders, found in checkpoints and JSON files; and packs, opened as a state says.

Checkpoints are those of ``torch.save``. Nothing is unpickled: `packio.formats.pth.archive` reads
plain values, and refuses others.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import reprlib
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packio.datasets.concat import ConcatPacks
from packio.datasets.options import options_of
from packio.datasets.pack_dataset import PackDataset
from packio.errors import OptionError, PackioError, ReadError, StateError
from packio.formats.pth import archive
from packio.loading import steps
from packio.loading.steps import Span, Stretch

_Path = str | os.PathLike[str]
_ZIP = b"PK\x03\x04"
_SAVE = 'torch.save(loader.state_dict(), "loader.pt"), or json.dump of it'
_DEEPEST = 100  # values within each other
_MOST_STATES = 1_000  # of a checkpoint
_SHOWN = 10  # names in a message
_LONGEST_NAME = 200  # characters
_LARGEST = 1 << 62  # of a count
_KINDS = ({"epoch", "consumed", "order"}, {"epoch", "consumed", "sampler"},
          {"epoch", "skip", "generators"})  # fmt: skip


class State(NamedTuple):
    """What a state of a loader or of a sampler says; None, or nothing in it: it does not."""

    epoch: int | None = None
    order: Mapping[str, Any] | None = None  # of the sampler
    seed: int | None = None  # of the draws of `rank`
    rank: int | None = None  # whose state it is
    stretches: tuple[Stretch, ...] = ()  # of the steps of the run
    left_out: tuple[Span, ...] = ()
    drop_last: bool = False
    sampler_drop_last: bool = False
    dataset: Mapping[str, Any] = {}  # description


def read_state(state: Mapping[str, Any] | _Path | None, name: str | None = None) -> State:
    """Read a state: what `state_dict()` returned, something that holds it, or a file that does.

    The name says where the state is in there, as "loader" or "loops.train"; None: it is alone.
    """
    if state is None:
        return State()
    where = "state" if isinstance(state, Mapping) else os.fspath(state)
    value = state if isinstance(state, Mapping) else _load(Path(state))
    there = dict(itertools.islice(_find_states(value, (), set()), _MOST_STATES))
    found = {path: each for path, each in there.items() if name in (None, path)}
    if not found:
        names = f"; there is {_shown(there)}" if there else ""
        raise StateError(
            f"{where}: no state of a packio Loader or sampler"
            f"{f' under {name!r}' if name is not None else ''}{names}; expected what {_SAVE} wrote"
        )
    if len(found) > 1:
        raise StateError(f"{where}: states under {_shown(found)}; say which: state_name=")
    try:
        with refusing("a state"):
            return _parse(next(iter(found.values())))
    except PackioError as error:
        raise type(error)(f"{where}: {error}") from error


@contextlib.contextmanager
def refusing(what: str) -> Iterator[None]:
    """Raise a StateError where values of a damaged or forged state raise errors of Python's."""
    try:
        yield
    except PackioError:
        raise
    except (
        ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
    ) as error:  # fmt: skip
        raise StateError(f"{what} makes no sense: {error!r}") from error


def _shown(names: Collection[str]) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, itertools.islice(names, _SHOWN))) + more


def _load(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            is_zip = file.read(len(_ZIP)) == _ZIP
        if not is_zip:
            return json.loads(path.read_bytes())
    except (FileNotFoundError, IsADirectoryError) as error:
        raise StateError(f"{path}: {error.strerror}; expected a checkpoint") from error
    except OSError as error:
        raise ReadError(f"{path}: {error.strerror}; expected a checkpoint") from error
    except (ValueError, RecursionError) as error:
        raise StateError(
            f"{path}: neither a file of torch.save (of torch 1.6 or newer) nor JSON; expected what "
            f"{_SAVE} wrote"
        ) from error
    try:
        with archive.open_archive(path) as opened:
            return opened.load()
    except ReadError:
        raise
    except PackioError as error:
        raise StateError(
            f"{error}; save the state alone: {_SAVE}; or load the checkpoint in Python, if you "
            "trust it, and hand the state over"
        ) from error


def _find_states(
    value: Any, names: tuple[Any, ...], seen: set[int]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All states within a value, each once, with the names that lead to it."""
    if not isinstance(value, (Mapping, list, tuple)) or id(value) in seen:
        return
    seen.add(id(value))
    items: Iterable[tuple[Any, Any]] = enumerate(value)
    if isinstance(value, Mapping):
        if any(kind <= value.keys() for kind in _KINDS):
            yield ".".join(str(name)[:_LONGEST_NAME] for name in names), value
            return
        items = value.items()
    if len(names) < _DEEPEST:
        for name, inner in items:
            yield from _find_states(inner, (*names, name), seen)


def _parse(state: Mapping[str, Any]) -> State:
    if "consumed" not in state:
        raise OptionError(
            "the state is of a sampler that is not packio's: its order is not a function of a "
            "seed; take packio.ShuffleSampler, or Loader(shuffle=True)"
        )
    own = ("epoch", "consumed")
    order = state["order"] if "order" in state else {n: state[n] for n in state if n not in own}
    json.dumps(dict(order), allow_nan=False)  # plain values only
    seed, dataset = state.get("seed") if "order" in state else None, state.get("dataset")
    if seed is not None and type(seed) is not int:
        raise ValueError(f"seed={reprlib.repr(seed)}")
    dataset = dataset if isinstance(dataset, Mapping) else {}
    parts = dataset.get("parts", ())
    if not isinstance(parts, (list, tuple)) or not all(isinstance(p, Mapping) for p in parts):
        raise TypeError(f"dataset: parts={reprlib.repr(parts)}")
    return State(
        _count(state["epoch"]), order, seed, _count(state.get("rank")),
        steps.read_stretches(state.get("stretches") or ()),
        steps.read_spans(state.get("left_out") or (), "left_out"),
        state.get("drop_last") is True, state.get("sampler_drop_last") is True, dataset,
    )  # fmt: skip


def _count(value: Any) -> int | None:
    if value is not None and (type(value) is not int or not 0 <= value < _LARGEST):
        raise ValueError(f"{reprlib.repr(value)} where a count is expected")
    return value


def open_packs(paths: Sequence[_Path], options: dict[str, Any], state: State) -> tuple[Any, bool]:
    """Open packs as state and options say: a dataset, and whether its crops are the run's."""
    parts = state.dataset.get("parts", ())
    if state.dataset.get("part") is True:
        raise OptionError(
            "the state is of a part of its packs, made by where, subset or torch's Subset, and "
            "does not say which: hand the dataset over in Python, packio.replay(dataset, …)"
        )
    crops = bool({"crop", "views"} & options.keys())
    if len(paths) > 1:
        options = {"fields": "image", **options}
    other = {"crop": None, "views": None} if crops else {}
    datasets = []
    for path, part in zip(paths, [*parts, *[{}] * len(paths)], strict=False):
        with refusing("the dataset in the state"):
            datasets.append(PackDataset(path, **{**options_of({**part, **other}), **options}))
    own = [part for dataset in datasets for part in dataset.description["parts"]]
    check_parts(own, state, [*options, *other])
    return (datasets[0] if len(datasets) == 1 else ConcatPacks(datasets)), bool(parts) or crops


@refusing("what the state says of the dataset")
def check_parts(
    own: Sequence[Mapping[str, Any]], state: State, given: Collection[str] = ()
) -> None:
    """Compare the parts of a dataset with a state's, but for what arguments give otherwise."""
    told = state.dataset.get("parts") or own
    if len(own) != len(told):
        raise OptionError(f"{len(own)} packs; the state is of {len(told)}: give them in order")
    names = {n for ours, theirs in zip(own, told, strict=True)
             for n in (ours.keys() & theirs.keys()).difference(given)
             if ours[n] != theirs[n]}  # fmt: skip
    said = f"not the dataset of the state: {', '.join(sorted(names))} differ"
    if "samples" in names:
        counts = [" and ".join(f"{p['samples']!s:.20}" for p in each) for each in (own, told)]
        said += f": it has {counts[0]} samples, the state's {counts[1]}"
        raise OptionError(
            f"{said}; give the same packs and split, in order, or hand the dataset over in Python, "
            "if it was a part of a pack"
        )
    if names:
        warnings.warn(
            f"{said}; samples and crops are shown as they are here. If only the digest differs, "
            "they are right if the pack has the same samples in the same order, as after packio "
            "convert",
            stacklevel=4,
        )
