"""The datasets that a replay is of: packs, opened as a state says, or what was handed over."""

from __future__ import annotations

import os
import reprlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from packio.datasets.concat import ConcatPacks
from packio.datasets.describing import options_of
from packio.datasets.pack_dataset import PackDataset
from packio.errors import OptionError, PackioError, StateError
from packio.inspecting.replaying.states import State

Path = str | os.PathLike[str]


def opened(paths: Sequence[Path], options: dict[str, Any], state: State | None) -> tuple[Any, bool]:
    """Open packs with the options that the state says, and with those given.

    Returns:
        The dataset, and whether its crops are those of the run.
    """
    parts = _parts(state)
    if state is not None and state.dataset is not None and state.dataset.get("part") is True:
        raise OptionError(
            "the state is of a part of its packs, made by where, subset or torch's Subset, and "
            "does not say which: hand the dataset over in Python, packio.replay(dataset, …)"
        )
    if parts and len(parts) != len(paths):
        raise OptionError(f"{len(paths)} packs; the state is of {len(parts)}: give them in order")
    known, each = bool(parts) or not {"crop", "views"}.isdisjoint(options), []
    for path, part in zip(paths, parts or [{}] * len(paths), strict=True):
        crops = {"crop", "views"} & options.keys()
        together = {} if len(paths) == 1 else {"fields": "image"}
        told = {**part, "crop": None, "views": None} if crops else part
        each.append(_dataset(path, told, {**together, **options}))
    _check_packs(each, parts)
    return (each[0] if len(each) == 1 else ConcatPacks(each)), known


def _dataset(path: Path, part: Mapping[str, Any], options: Mapping[str, Any]) -> PackDataset:
    """Open a pack as a state says."""
    try:
        told = options_of(part)
        return PackDataset(path, **{**told, **options})
    except PackioError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        told_of = {name: value for name, value in part.items() if name != "digest"}
        raise StateError(
            f"dataset: {reprlib.repr(told_of)} in the state makes no sense: {error!r}"
        ) from error


def _parts(state: State | None) -> Sequence[Mapping[str, Any]]:
    """What a state says of each of its packs; nothing if it says nothing."""
    return () if state is None or state.dataset is None else state.dataset.get("parts", ())


def warn_of_others(own: Sequence[Mapping[str, Any]], state: State | None) -> None:
    """Warn where a dataset that was handed over, of these parts, is not as a state says."""
    if not (told := _parts(state)):
        return
    names = {n for ours, theirs in zip(own, told, strict=False)
             for n in ours.keys() & theirs.keys() if ours[n] != theirs[n]}  # fmt: skip
    names |= {"number of packs"} if len(own) != len(told) else set()
    if names:
        warnings.warn(
            f"the dataset that was handed over is not that of the state: {', '.join(sorted(names))}"
            " differ; the samples and crops of the dataset are shown",
            stacklevel=4,
        )


def _check_packs(datasets: Sequence[PackDataset], parts: Sequence[Mapping[str, Any]]) -> None:
    """Check that packs are those of the state, as far as the state says; warn of other digests."""
    for dataset, part in zip(datasets, parts, strict=False):
        if part.get("samples") not in (None, len(dataset)):
            raise OptionError(
                f"{dataset.pack.path}: {len(dataset):,} samples; the state is of a dataset of "
                f"{part['samples']:,}: give the same pack and split, or hand the dataset over in "
                "Python, if it was a part of a pack"
            )
        if part.get("digest", dataset.pack.digest) != dataset.pack.digest:
            warnings.warn(
                f"{dataset.pack.path}: not the pack of the state, whose digest is "
                f"{str(part['digest'])[:12]}; keys and crops are right if it holds the same "
                "samples in the same order, as after packio convert",
                stacklevel=4,
            )
