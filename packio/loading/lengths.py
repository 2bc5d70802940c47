"""Whether a sampler is of the dataset whose samples it numbers."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from packio.errors import OptionError


def check(dataset: Any, sampler: Any) -> None:
    """Refuse a sampler that was made for another dataset, as far as the lengths tell.

    Samplers of packio's know how many samples their dataset has. Of torch's, only those are refused
    that number more samples than there are: a shorter one may be meant.
    """
    if sampler is None or not isinstance(dataset, Sized):
        return
    inner = getattr(sampler, "sampler", sampler)  # of torch's BatchSampler
    own: int | None = getattr(inner, "data_length", None)
    size = len(dataset)
    sources = (getattr(inner, name, None) for name in ("data_source", "dataset", "weights"))
    of_torch = (len(source) for source in sources if isinstance(source, Sized))
    there = next(of_torch, 0) if own is None else own
    if there > size or (own is not None and own != size):
        raise OptionError(
            f"the {type(inner).__name__} was made for {there} samples, the dataset has {size}; "
            "make the sampler of this dataset"
        )
