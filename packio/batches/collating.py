"""Batches as DataLoader passes them on: a list of samples that remembers its tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from packio.errors import OptionError


class Batch(list[Any]):
    """The samples of a batch, with the tensors they are views of."""

    def __init__(self, samples: Sequence[Any], columns: Callable[[], Any]) -> None:
        super().__init__(samples)
        self.columns: Callable[[], Any] = columns  # makes what `collate` returns
        self._samples = list(map(_copied, samples))

    def __reduce__(self) -> tuple[object, ...]:
        if not self.is_whole:
            return list, (list(self),)
        return _restored, (list(self), self.columns())

    @property
    def is_whole(self) -> bool:
        """Whether the list, and the values in its samples, are still the objects they were."""
        return len(self) == len(self._samples) and all(map(_is_same, self, self._samples))


def _copied(sample: Any) -> Any:
    """A sample whose dicts are copies: dicts may be edited."""
    if type(sample) is tuple and any(type(part) is dict for part in sample):
        return tuple(map(_copied, sample))
    return dict(sample) if type(sample) is dict else sample


class BatchedFields(list[Any]):
    """Fields that are batched already, as a dataset gives them for a list of indices."""


def _is_same(now: Any, then: Any) -> bool:
    if type(then) is dict:
        are_alike = type(now) is dict and list(now) == list(then)
        return are_alike and all(map(operator.is_, now.values(), then.values()))
    if type(then) is tuple and now is not then:
        return type(now) is tuple and len(now) == len(then) and all(map(_is_same, now, then))
    return now is then


def _restored(samples: list[Any], columns: Any) -> Batch:
    return Batch(samples, lambda: columns)


def collate(samples: list[Any]) -> Any:
    """Hand over a batch of packio's without copying it; collate anything else as torch does.

    For ``DataLoader(ds, collate_fn=packio.collate)``. Samples that were edited since are collated
    anew.

    Args:
        samples: What a dataset's ``__getitems__`` returned, or a plain list of samples.

    Returns:
        As `torch.utils.data.default_collate`: images (N, C, H, W), labels (N,) int64, …. Images,
        masks and arrays that differ in shape, or that a sample lacks, are lists; boxes, text,
        bytes, keys and metadata always are.

    Raises:
        OptionError: tensors of plain samples differ in shape.
    """
    if isinstance(samples, Batch) and samples.is_whole:
        return samples.columns()
    if isinstance(samples, (BatchedFields, Mapping, torch.Tensor)):  # of ``ds[[3, 5]]``
        return samples
    try:
        return torch.utils.data.default_collate(list(samples))
    except RuntimeError as error:
        for values in _columns(samples):
            shapes = list(dict.fromkeys(tuple(getattr(value, "shape", ())) for value in values))
            if len(shapes) > 1:
                raise OptionError(
                    f"a batch of tensors of several sizes, {shapes[0]} and {shapes[1]}: give the "
                    "dataset a crop that makes one size, as crop=packio.RandomResizedCrop(224), or "
                    "packio.ResizeCenterCrop(224) in evaluation"
                ) from error
        raise


def _columns(samples: Sequence[Any]) -> Iterator[Sequence[Any]]:
    if all(isinstance(sample, Mapping) for sample in samples):
        yield from zip(*(sample.values() for sample in samples), strict=False)
    elif all(isinstance(sample, (tuple, list)) for sample in samples):
        for values in zip(*samples, strict=False):
            yield from _columns(values)
    else:
        yield samples
