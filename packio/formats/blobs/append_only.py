"""Files of records: `Writer` appends records to new files. Used by tar, TFRecord and RecordIO."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from packio.errors import CannotCreateError, OutputError
from packio.formats import Places, Written
from packio.index.indexfile import crc32c, crc32c_of
from packio.sample.record import IMAGE
from packio.system.files import read_at, room_beside

# Bytes put together, written and read back at once: 5,000 photos of 504 MB take 0.42 s by 256 KiB,
# 0.38 s by 1 MiB and by 8 MiB, 1.10 s by 64 MiB (the best of 7 runs each), which leaves the cache.
_BLOCK = 1 << 20
_AT_ONCE = 1000  # pieces that are written by one call; Linux takes 1,024


class Writer:
    """What the writers of tar, TFRecord and RecordIO share: files, places, reading back.

    A subclass has ``add``. It appends the bytes of each record to an `Output`, notes by `_note`
    where the values of the record lie, and raises `_count`. The first new file is the shard.
    """

    def __init__(self, *paths: Path) -> None:
        self._path = paths[0]
        self._count = 0  # of the records added
        self._places: dict[str, Places] = {}
        self._outputs: list[Output] = []
        for path in paths:
            self._open(path)

    def _open(self, path: Path) -> Output:
        try:
            self._outputs.append(Output(path))
        except CannotCreateError:
            self.abort()
            raise
        return self._outputs[-1]

    def _note(
        self, field: str, offset: int, length: int, *, file: int = 0, split: bool = False
    ) -> None:
        """Note where a value of the record that is being added lies; ``file`` counts the files."""
        places = self._places.setdefault(field, Places(file))
        places.add(self._count, offset, length, split=split)

    def _close(self, files: Sequence[str], sidecars: Sequence[str], **info: Any) -> Written:
        """Write what is left, and read all files back."""
        try:
            for output in self._outputs:
                output.close()
        finally:
            self.abort()
        places = self._places or {IMAGE: Places()}
        ranges = {name: found.ranges(self._count) for name, found in places.items()}
        return Written(tuple(files), ranges, tuple(sidecars), info)

    def abort(self) -> None:
        """Close the files without the bytes that are not written yet; the files stay."""
        for output in self._outputs:
            output.abort()


class Output:
    """A new file that bytes are appended to, and read back before the file is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._pieces: list[bytes] = []
        self._held = 0  # bytes in the pieces
        self._blocks: list[tuple[int, int]] = []  # length and CRC32C of each block on disk
        self._descriptor = -1
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._descriptor = os.open(path, flags, 0o666)
        except OSError as error:
            raise CannotCreateError(f"{path}: cannot be created: {error.strerror}") from error

    def append(self, *pieces: bytes) -> None:
        """Append bytes. They are written to the file a mebibyte at a time."""
        length = _length(pieces)
        self._pieces += pieces
        self._held += length
        self.size += length
        if self._held >= _BLOCK:
            self._flush()

    def _flush(self) -> None:
        pieces, length = self._pieces, self._held
        self._pieces, self._held = [], 0
        self._blocks.append((length, crc32c_of(pieces)))
        with output_errors(self.path):
            for start in range(0, len(pieces), _AT_ONCE):
                some = pieces[start : start + _AT_ONCE]
                written = os.writev(self._descriptor, some)  # not joined: a copy less
                left = memoryview(b"".join(some))[written:] if written < _length(some) else b""
                while left:
                    left = left[os.write(self._descriptor, left) :]

    def close(self) -> None:
        """Write what is left, and read everything back."""
        try:
            self._flush()
            with output_errors(self.path):
                self._read_back()
        finally:
            self.abort()

    def _read_back(self) -> None:
        position = 0
        for length, crc in self._blocks:
            if crc32c(read_at(self._descriptor, length, position)) != crc:
                raise OutputError(
                    f"{self.path}: bytes {position}..{position + length} read back differently; "
                    "the disk or its driver is at fault"
                )
            position += length
        if os.fstat(self._descriptor).st_size != position:
            raise OutputError(f"{self.path}: {position} bytes were written, and more are there")

    def abort(self) -> None:
        self._pieces, self._held = [], 0
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _length(pieces: Sequence[bytes]) -> int:
    return sum(map(len, pieces))


@contextlib.contextmanager
def output_errors(path: Path) -> Iterator[None]:
    """Raise an OutputError that tells the space left for an OSError while ``path`` is written."""
    try:
        yield
    except OutputError:
        raise
    except (OSError, ValueError) as error:  # ValueError: the file is closed
        raise OutputError(f"{path}: cannot be written: {error}: {room_beside(path)}") from error


def write_whole(path: Path, content: bytes) -> None:
    with output_errors(path), path.open("xb") as file:
        file.write(content)
