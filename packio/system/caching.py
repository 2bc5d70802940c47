"""Attributes that are computed once."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

__all__ = ["cached_property"]

if TYPE_CHECKING:
    from functools import cached_property  # noqa: TID251 (what type checkers know)
else:

    class cached_property(functools.cached_property):  # noqa: N801, TID251 (as its base)
        """`functools.cached_property` without the lock that it has before Python 3.12.

        All objects of a class share that lock. A thread that holds it when another one forks leaves
        it locked in the child for ever. Without the lock two threads may compute the value twice.
        """

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            """Compute the value and keep it in the object."""
            if instance is None:
                return self
            value = vars(instance)[self.attrname] = self.func(instance)
            return value
