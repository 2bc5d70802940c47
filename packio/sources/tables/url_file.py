"""An object at a URL as a file of Python's, for libraries that read such files."""

from __future__ import annotations

import io
import os

from packio.errors import ReadError
from packio.storage import urls
from packio.storage.urls import Url


class UrlFile(io.RawIOBase):
    """An object at a URL; each read is a request, tried several times.

    Args:
        url: Of the object.
        size: Bytes of the object.
    """

    def __init__(self, url: Url, size: int) -> None:
        self._url, self._size, self._at = url, size, 0

    def readable(self) -> bool:
        """Say yes."""
        return True

    def seekable(self) -> bool:
        """Say yes."""
        return True

    def tell(self) -> int:
        """Position of the next read, bytes."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position of the next read; return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Read some bytes, fewer at the end of the object."""
        left = max(0, self._size - self._at)
        length = left if size is None or size < 0 else min(size, left)
        try:
            with urls.errors_as(ReadError, f"{self._url}, byte {self._at}"):
                data = urls.read(*urls.filesystem(self._url), self._at, length)
        except ReadError as error:
            raise ReadError(f"{error}; run it again to go on") from error
        self._at += length
        return data
