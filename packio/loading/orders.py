"""Samplers made from what a state says of their order, and what `packio.replay` asks of them."""

from __future__ import annotations

import importlib
import pkgutil
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from packio import loading
from packio.batches.draws import Drawn
from packio.errors import OptionError


@runtime_checkable
class Replayable(Protocol):
    """A sampler, or a batch sampler, that computes the batches of any step of any epoch."""

    @property
    def order(self) -> dict[str, Any]:
        """Everything but the epoch that the order depends on; "sampler" is the class."""
        ...

    def start_of(self, epoch: int, world_size: int) -> int:
        """First position of an epoch, for so many ranks."""
        ...

    def end_of(self, epoch: int) -> int:
        """Position where an epoch ends."""
        ...

    def batches_from(
        self, epoch: int, position: int, batch_size: int, *, rank: int, world_size: int,
        drop_last: bool = False,
    ) -> Iterator[list[Drawn]]:  # fmt: skip
        """Yield the batches that a rank gets from a step of an epoch on."""
        ...


def sampler_of(order: Mapping[str, Any], data: Any, *, drop_last: bool = False) -> Replayable:
    """Make the sampler of an order: the class that it names, of a module of this folder."""
    name = str(order.get("sampler"))
    for module in pkgutil.iter_modules(loading.__path__):
        found = importlib.import_module(f"{loading.__name__}.{module.name}")
        kind = vars(found).get(name)
        if isinstance(kind, type) and hasattr(kind, "of_order"):
            try:
                made: Replayable = kind.of_order(order, data, drop_last=drop_last)
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                if isinstance(error, OptionError):
                    raise
                raise OptionError(
                    f"order={reprlib.repr(dict(order))}: no order of a {name}: {error!r}"
                ) from error
            return made
    raise OptionError(
        f"sampler={name!r}: not a sampler of packio's; in Python hand over the loader or the "
        "sampler: packio.replay(loader, …)"
    )
