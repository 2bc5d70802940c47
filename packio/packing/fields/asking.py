"""What is asked of a run that adds a field, and what it reports."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NamedTuple

from packio.system.progress import ProgressCallback

_MOST_ERRORS = 100  # a function that fails that often fails for all


@dataclasses.dataclass(frozen=True, slots=True)
class AddReport:
    """What adding a field did.

    Attributes:
        out: The pack.
        name: Of the field.
        kind: Of the field.
        samples: Samples that got a value.
        missing: Samples that were to get one, and have none.
        kept: Samples that had a value before; with ``only_new``.
        unfilled: Samples without a value that lie among those of ``kept``, and stay without.
        skipped: Key and reason of each bad value that was left out.
        unused: Files or keys of the source that no sample has.
        bytes: Bytes of the values.
        shapes: Shape and dtype of arrays → how many there are, as {"(4, 64, 64) float16": 2000}.
        remaining: Bytes of replaced values that lie in files with other fields, and stay there.
        resumed: Samples whose values an earlier run had made.
        digest: Hexadecimal SHA-256 of the new index.
        seconds: Duration of the whole run.
    """

    out: Path
    name: str
    kind: str
    samples: int
    missing: int
    kept: int
    unfilled: int
    skipped: tuple[tuple[str, str], ...]
    unused: tuple[str, ...]
    bytes: int
    shapes: dict[str, int]
    remaining: int
    resumed: int
    digest: str
    seconds: float


class Asked(NamedTuple):
    """What is asked for, beside the values.

    Attributes:
        name, kind: Of the field; None: by the values.
        skip: Leave bad values out.
        missing: Allow samples without a value.
        only_new: Leave shards alone in which a sample has a value.
        workers: Processes, 0 for this one.
        batch_size: Samples that the function takes at once; None: one.
        max_errors: Stop if more values than this are bad; None: `_MOST_ERRORS`, or never if bad
            values are left out.
        progress: Callback, or None.
        began: Time when the run began, by `time.monotonic`.
    """

    name: str
    kind: str | None
    skip: bool
    missing: bool
    only_new: bool
    workers: int
    batch_size: int | None
    max_errors: int | None
    progress: ProgressCallback | None
    began: float

    @property
    def limit(self) -> int | None:
        """How many values may be bad before the run stops."""
        return _MOST_ERRORS if self.max_errors is None and not self.skip else self.max_errors
