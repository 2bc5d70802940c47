"""Steps of a run: where in an epoch each step begins, and which steps are left out.

A step is one batch of each rank. Steps are counted in each epoch, from 0, also over interruptions.
Batch size and number of ranks may change when a run is resumed, even in the middle of an epoch. The
steps between two such changes are a stretch. A state has the stretches of its whole run, a few
numbers each, so the samples of any earlier step can be computed from the state.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from packio.errors import OptionError

_MOST = 1 << 62  # positions of an epoch; those carried over from another epoch are negative
_MOST_RANKS = 1 << 20


class Stretch(NamedTuple):
    """Steps of one size: from this step on, up to the next stretch, epochs that follow included."""

    epoch: int
    step: int
    position: int  # first position of that step in the order of the epoch
    batch_size: int  # positions of a rank in a step: samples, or 1 if positions are batches
    world_size: int

    @property
    def samples(self) -> int:
        return self.batch_size * self.world_size  # of all ranks together

    def position_of(self, step: int) -> int:
        return self.position + (step - self.step) * self.samples

    def step_at(self, position: int) -> int:
        """The first step that begins at a position, or after it."""
        return self.step - (self.position - position) // self.samples


class Span(NamedTuple):
    """Steps of an epoch that are left out."""

    epoch: int
    first: int
    last: int


Start = Callable[[int, int], int]  # epoch, number of ranks → first position of the epoch


def start_at_zero(epoch: int, world_size: int) -> int:  # noqa: ARG001 (of a `Start`)
    return 0


def find_stretch(
    stretches: Sequence[Stretch],
    epoch: int,
    at: int,
    start: Start = start_at_zero,
    *,
    by: str = "step",
) -> Stretch:
    """Find the stretch of a step, or of a position; before the first stretch, steps have its size.

    ``by`` is "step" or "position": what ``at`` is.
    """
    found = [s for s in stretches if (s.epoch, getattr(s, by)) <= (epoch, at)]
    stretch = found[-1] if found else stretches[0]
    if stretch.epoch == epoch:
        return stretch
    return stretch._replace(epoch=epoch, step=0, position=start(epoch, stretch.world_size))


def add_stretch(
    stretches: Sequence[Stretch], epoch: int, position: int, batch_size: int, world_size: int,
    start: Start = start_at_zero,
) -> tuple[Stretch, ...]:  # fmt: skip
    """Add what begins at a position; steps that were once taken after it are forgotten.

    A position of 0 and less is the first step of an epoch: after that step, it is above 0.
    """
    first = -_MOST if position <= 0 else position
    kept = [s for s in stretches if (s.epoch, s.position) < (epoch, first)]
    whole = Stretch(epoch, 0, start(epoch, world_size), batch_size, world_size)
    before = find_stretch(kept or [whole], epoch, position, start, by="position")
    step = 0 if position <= 0 else before.step_at(position)
    if before[3:] != whole[3:] or before.position_of(step) != position:
        kept.append(whole._replace(step=step, position=position))
    return tuple(kept or [whole])


def read_stretches(values: Iterable[Sequence[int]]) -> tuple[Stretch, ...]:
    found = tuple(Stretch(*_check_numbers(v, 5, "stretches", least=-_MOST)) for v in values)
    sizes = [min(s.epoch, s.step, s.batch_size - 1, s.world_size - 1, _MOST_RANKS - s.world_size,
                 s.position + s.world_size - 1) for s in found]  # fmt: skip
    if min(sizes, default=0) < 0 or list(found) != sorted(found):
        shown = reprlib.repr([list(s) for s in found])
        raise OptionError(f"stretches={shown}: expected ascending steps")
    return found


def read_spans(values: Iterable[Sequence[int]] | None, name: str = "skip") -> tuple[Span, ...]:
    """Read spans of steps; those that touch or overlap become one."""
    found = [Span(*_check_numbers(v, 3, name)) for v in values or ()]
    for span in found:
        if span.first > span.last:
            raise OptionError(f"{name}={tuple(span)}: expected a first step up to the last step")
    merged: list[Span] = []
    for span in sorted(found):
        last = merged[-1] if merged else Span(-1, 0, 0)
        if last.epoch == span.epoch and span.first <= last.last + 1:
            merged[-1] = last._replace(last=max(last.last, span.last))
        else:
            merged.append(span)
    return tuple(merged)


def _check_numbers(value: Any, many: int, name: str, *, least: int = 0) -> tuple[int, ...]:
    try:
        numbers = tuple(value)
    except TypeError:
        numbers = ()
    if len(numbers) != many or any(type(n) is not int or not least <= n <= _MOST for n in numbers):
        expected = "(epoch, first step, last step)" if many == 3 else "a stretch"
        raise OptionError(
            f"{name}: {reprlib.repr(value)}; expected {expected}, integers of at least 0"
        )
    return numbers


def is_left_out(spans: Iterable[Span], epoch: int, step: int) -> bool:
    return any(s.epoch == epoch and s.first <= step <= s.last for s in spans)


def merge_spans(
    asked: Sequence[Span], loaded: Sequence[Span], epoch: int, step: int
) -> tuple[Span, ...]:
    """Put the spans of a loader and of a state that it loads together: both are left out."""
    for span in asked:
        cut = span._replace(last=min(span.last, step - 1)) if span.epoch == epoch else span
        is_past = cut.epoch <= epoch and cut.first <= cut.last
        if is_past and not any(s.epoch == cut.epoch and s.first <= cut.first and cut.last <= s.last
                               for s in loaded):  # fmt: skip
            raise OptionError(
                f"skip={tuple(cut)}: the state goes on at step {step} of epoch {epoch}, and its "
                f"run has trained on these steps; load a state from before step {cut.first} of "
                f"epoch {cut.epoch}, or leave this span out of skip="
            )
    return read_spans([*asked, *loaded])


def check_size(was: Stretch, spans: Sequence[Span], now: Stretch, step: int) -> None:
    """Check that steps which a state leaves out, and which are still to come, keep their size."""
    ahead = [s for s in spans if (s.epoch, s.last) >= (now.epoch, step)]
    if ahead and was.samples != now.samples:
        raise OptionError(
            f"the state leaves out {[tuple(s) for s in ahead]}, steps of {was.samples} samples; "
            f"here steps have {now.samples} (batch size times ranks): keep {was.samples} until "
            "they are passed, or set state['left_out'] = [] and say skip= in steps of this size"
        )
