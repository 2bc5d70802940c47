"""Samples collected by the heads of their images alone: for objects of which little is to be read.

The index then knows no checksum: its rows have the flag `UNCHECKED`. Pixels, sizes and labels are
the same as if all had been read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from packio.errors import DecodeError
from packio.formats import Reader
from packio.images import encodings
from packio.index.indexfile import UNCHECKED
from packio.packs.collecting import Collected
from packio.sample.facts import Facts
from packio.sample.fields import PIXELS
from packio.sample.record import IMAGE, Place

if TYPE_CHECKING:
    import numpy as np

_HEAD = 8 << 10  # bytes that most headers fit in; eight times as many are tried next
_TAIL = 64 << 10  # bytes at the end of a PNG, where chunks that tell facts may be
_LATE = (b"eXIf", b"iTXt", b"tEXt", b"zTXt")  # such chunks


class CollectedHeads(Collected):
    """Collects the samples of a container whose images nobody reads to their ends."""

    def _value(
        self, name: str, place: Place, file: int, reader: Reader | None, number: int
    ) -> tuple[bytes, Facts | None]:
        if place.offset < 0 or place.split or place.facts is not None:
            return super()._value(name, place, file, reader, number)
        if place.kind not in PIXELS:
            return b"", None
        try:
            return self._head(place, file)
        except DecodeError:
            if name == IMAGE:
                raise
            return b"", None  # as if all of it had been read: facts that are not known

    def _head(self, place: Place, file: int) -> tuple[bytes, Facts]:
        """As many bytes of an image as tell its facts, and the facts."""
        length = min(_HEAD, place.length)
        while True:
            data = self._storage.read(file, place.offset, length)
            is_whole = length == place.length
            try:
                facts = encodings.read_facts(data)
            except DecodeError:
                if is_whole:
                    raise
                length = min(8 * length, place.length)
                continue
            if is_whole or not self._tells_more(place, file, length, facts):
                return data, facts
            length = place.length

    def _tells_more(self, place: Place, file: int, length: int, facts: Facts) -> bool:
        """Whether what comes behind the head of an image may change the facts."""
        if facts.encoding != "png":
            return False
        tail = min(_TAIL, place.length - length)
        end = self._storage.read(file, place.offset + place.length - tail, tail)
        return any(chunk in end for chunk in _LATE)

    def columns(self, files: dict[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """The columns of the index, without checksums."""
        columns = super().columns(files)
        for name in self.fields:
            there = columns[f"{name}/offset"] >= 0
            columns[f"{name}/flags"][there] |= UNCHECKED
            columns[f"{name}/crc32c"][:] = 0
        return columns
