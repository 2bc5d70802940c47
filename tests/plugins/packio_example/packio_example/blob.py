"""The values of each field in one file, end to end, and their lengths in another.

A container is a directory. For the field NAME of the kind KIND, ``NAME.KIND`` holds the values, one
after the other, and ``NAME.KIND.lengths`` one little-endian int64 a sample: bytes, or -1 where a
sample has no such field. Offsets are the running sum of the lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from packio.errors import IntegrityError
from packio.formats import Caps, Format, Places, Reading, Written, check_reading
from packio.sample.record import Field, Place, Record


class BlobWriter:
    """Write a container; see the module for its layout."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self._path, self._count = path, 0
        self._files: dict[str, IO[bytes]] = {}
        self._places: dict[str, Places] = {}

    def add(self, records: Sequence[Record[Field]]) -> None:
        """Append records."""
        for record in records:
            for name, field in record.fields.items():
                if name not in self._files:
                    self._places[name] = Places(len(self._files))
                    self._files[name] = (self._path / f"{name}.{field.kind}").open("xb")
                file = self._files[name]
                self._places[name].add(self._count, file.tell(), len(field.data))
                file.write(field.data)
            self._count += 1

    def close(self) -> Written:
        """Finish all files."""
        places = {name: found.ranges(self._count) for name, found in self._places.items()}
        names = [Path(file.name).name for file in self._files.values()]
        for name, (_, offset, length, _) in zip(names, places.values(), strict=True):
            lengths = np.where(offset < 0, -1, length)
            (self._path / f"{name}.lengths").write_bytes(lengths.astype("<i8").tobytes())
        self.abort()
        sidecars = tuple(f"{name}.lengths" for name in names)
        return Written(files=tuple(names), places=places, sidecars=sidecars, info={})

    def abort(self) -> None:
        """Let go of the files."""
        for file in self._files.values():
            file.close()


class Blob(Format):
    """Files of values end to end."""

    caps = Caps(suffixes=(".blob",), is_directory=True)

    def recognise(self, head: bytes, name: str) -> bool:
        """Tell by a file that each container has."""
        return b"image.image.lengths" in head.split(b"\n") or super().recognise(head, name)

    def scan(self, path: Path, reading: Reading) -> Iterator[Record[Place]]:
        """Yield every record, in order."""
        check_reading(path, reading)  # nothing can be named
        found = {}
        for file in sorted(path.glob("*.*.lengths")):
            name, kind = file.stem.split(".")
            length = np.fromfile(file, "<i8")
            offset = np.cumsum(length.clip(0)) - length.clip(0)
            if int(length.clip(0).sum()) > file.with_suffix("").stat().st_size:
                raise IntegrityError(f"{file.with_suffix('')}: cut off; restore the file")
            found[name] = kind, offset.tolist(), length.tolist()
        for i in range(len(found["image"][1])):
            yield Record(b"%d" % i, {
                name: Place(kind, f"{name}.{kind}", offset[i], length[i])
                for name, (kind, offset, length) in found.items() if length[i] >= 0
            })  # fmt: skip

    def writer(
        self, path: Path, *, count: int, size: int, classes: Sequence[str], **options: Any
    ) -> BlobWriter:
        """Begin a container."""
        return BlobWriter(path)


FORMAT = Blob()
