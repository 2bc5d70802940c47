"""A file that is read by range: what every format opens that reads containers without a library."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from packio.errors import IntegrityError, NotAPackError, ReadError
from packio.formats import damage_error
from packio.storage.stores import OpenUrl, StreamedObject
from packio.system.files import read_at

_ZLIB = (
    "python3 -c 'import sys, zlib;"
    " sys.stdout.buffer.write(zlib.decompress(sys.stdin.buffer.read()))'"
)
COMPRESSIONS = (  # name, first bytes, suffix, command that reads standard input
    ("gzip", b"\x1f\x8b", ".gz", "gunzip"),
    ("bzip2", b"BZh", ".bz2", "bunzip2"),
    ("xz", b"\xfd7zXZ\0", ".xz", "unxz"),
    ("zstd", b"\x28\xb5\x2f\xfd", ".zstd", "unzstd"),
    ("zstd", b"\x28\xb5\x2f\xfd", ".zst", "unzstd"),
    ("brotli", None, ".br", "brotli -d"),
    ("snappy", None, ".snappy", "python3 -m snappy -d"),
    ("zlib", None, ".zlib", _ZLIB),
)


_FOLDERS = (  # containers that packio does not read: files by which they are told, what, dataset
    (("dataset_info.json", "state.json"), "a dataset that Hugging Face's save_to_disk wrote",
     "datasets.load_from_disk"),
    (("index.json", "chunk-0-0.bin"), "a dataset of LitData", "litdata.StreamingDataset"),
)  # fmt: skip


class Input:
    """An open file, read by range. Small reads close to each other share one system call."""

    def __init__(
        self, descriptor: int, path: Path, window: int, base: int = 0, size: int | None = None,
        content: bytes = b"",
    ) -> None:  # fmt: skip
        """Read a file, or of an inner archive the `size` bytes from `base` on.

        `content` is the beginning, if it has been read.
        """
        self.path, self.descriptor, self._base = path, descriptor, base
        self.size: int = os.fstat(descriptor).st_size if size is None else size
        self._least = window
        self._window = content
        self._start = 0  # of the window

    def read(self, length: int, offset: int) -> bytes:
        if offset + length > self.size:
            raise damage_error(self.path, f"cut off: {length} bytes at {offset} of {self.size}")
        begin = offset - self._start
        if begin < 0 or begin + length > len(self._window):
            if length >= self._least:
                return self._exactly(length, length, offset)
            self._window = self._exactly(length, self._least, offset)
            self._start = offset
            begin = 0
        return self._window[begin : begin + length]

    def _exactly(self, least: int, most: int, offset: int) -> bytes:
        try:
            found = read_at(self.descriptor, most, self._base + offset)
        except OSError as error:
            raise ReadError(f"{self.path}: cannot be read at {offset}: {error}") from error
        if len(found) < least:
            raise IntegrityError(f"{self.path}: became shorter while it was read")
        return found


class _RemoteInput(Input):
    """An object at a URL, read by range. Whoever opened the object shares its small reads."""

    def __init__(self, found: StreamedObject) -> None:
        super().__init__(-1, found.url, 0, size=found.size)
        self._found = found

    def _exactly(self, least: int, most: int, offset: int) -> bytes:
        return self._found.read(most, offset)


@contextlib.contextmanager
def open_input(path: Path, window: int = 1 << 15) -> Iterator[Input]:
    """Open a file for reading, or an object at a URL that is open.

    A small read takes `window` bytes at once; 0: each read takes its own bytes alone.
    """
    if isinstance(path, OpenUrl):
        yield _RemoteInput(path.opened)
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO would wait
    except OSError as error:
        raise ReadError(f"{path}: cannot be opened: {error.strerror}") from error
    try:
        yield Input(descriptor, path, window)
    finally:
        os.close(descriptor)


def refuse_unread(path: Path) -> None:
    """Refuse a file or a folder that no format recognises, if its names tell what it is."""
    if path.is_file():
        refuse_compressed(path)
    for names, what, dataset in _FOLDERS:
        if all((path / name).is_file() for name in names):
            way = f"packio.pack({dataset}({str(path)!r}), 'out.lmdb')"
            raise NotAPackError(f"{path}: {what}; pack it from Python: {way}")


def refuse_compressed(path: Path, start: bytes = b"") -> None:
    """Refuse a file that is compressed as a whole, as its first bytes or its suffix tell.

    Call it for a file that is not of the expected format: an uncompressed file may begin alike.
    """
    is_zlib = (
        len(start) > 1 and start[0] & 0x8F == 0x08 and not int.from_bytes(start[:2], "big") % 31
    )
    for kind, magic, suffix, command in COMPRESSIONS:
        begins = is_zlib if kind == "zlib" else magic is not None and start.startswith(magic)
        if begins or path.suffix.lower() == suffix:
            stem = path.with_suffix("") if path.suffix.lower() == suffix else path
            unpacked = path.with_name(f"unpacked{path.suffix}") if stem == path else stem
            source, target = (shlex.quote(os.fspath(p)) for p in (path, unpacked))
            raise NotAPackError(
                f"{path}: compressed as a whole by {kind}, so packio cannot read one sample "
                f"alone; unpack the file first: {command} < {source} > {target}"
            )
