"""An index that is far away: blocks of its columns come when somebody first asks for them.

`packio.index.indexfile.Index` has a map of a file that is as long as the index, and has holes. A
column that is about to check a block lets the block come first. Who fetches it, and where the file
lies, is the business of `packio.storage.blocks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from packio.system.lengths import Length


class Span(NamedTuple):
    """A block of a column.

    Attributes:
        number: Of the block among all blocks of the index file, in the order of its checksums.
        start, stop: Bytes of the index file.
    """

    number: int
    start: int
    stop: int


class Far(Protocol):
    """The bytes of an index file that come block by block.

    Attributes:
        content: All bytes of the file: header and checksums are there, a block is after `bring`.
        length: The length that the file behind `content` has to keep.
    """

    content: memoryview
    length: Length

    def bring(self, spans: Sequence[Span], *, anew: bool = False) -> list[Span]:
        """Have blocks come that are not there yet, all at once.

        Args:
            spans: The blocks.
            anew: Have them come even if they are there: their bytes are wrong.

        Returns:
            Those that have not come, as their bytes are wrong at the service, too.
        """


class Place(NamedTuple):
    """Where the blocks of one column are.

    Attributes:
        far: Has the blocks come.
        number: Of the column's first block.
        start: Of the column in the index file, bytes.
    """

    far: Far
    number: int
    start: int
