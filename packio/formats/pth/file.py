"""A file of ``torch.save``: what it holds, and where the bytes of that lie.

It is a zip archive of stored members: a pickle, and one member a storage of tensors. Only tensors
and plain containers are ever unpickled (``weights_only=True``).

Source: https://docs.pytorch.org/docs/stable/notes/serialization.html
"""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packio.errors import IntegrityError, NotAPackError, ReadError

if TYPE_CHECKING:
    import numpy as np
    import torch

_LOCAL = struct.Struct("<4s22xHH")
_LOCAL_MAGIC = b"PK\x03\x04"
# Whatever zipfile and torch make of what they find wrong in a file.
_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, MemoryError,
    NotImplementedError, OSError, RuntimeError, TypeError, ValueError, pickle.UnpicklingError,
    struct.error, zipfile.BadZipFile, zipfile.LargeZipFile,
)  # fmt: skip


@contextlib.contextmanager
def loaded(path: Path) -> Iterator[tuple[Any, Place]]:
    """What a file holds, and where its tensors lie; it may be used until the end.

    Raises:
        NotAPackError: no file of torch's, or one with other things in it than tensors.
        IntegrityError: it is damaged.
        ReadError: it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ReadError(f"{path}: cannot be opened: {error.strerror}") from error
    try:
        members(descriptor, path)
        yield _load(descriptor, path), Place(descriptor, path)
    finally:
        os.close(descriptor)


def members(descriptor: int, path: Path) -> dict[str, tuple[int, int]]:
    """Find where the archive's members lie: name without the archive's → offset, size in bytes.

    Raises:
        NotAPackError: no zip archive.
        IntegrityError: it is damaged, or compressed.
    """
    try:
        with open(descriptor, "rb", closefd=False) as file, zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
    except _ERRORS as error:
        raise NotAPackError(
            f"{path}: not a zip archive as torch.save writes it ({error}); if torch loads it, save "
            "it again"
        ) from error
    found = {}
    size = os.fstat(descriptor).st_size
    for info in infos:
        local = b""
        if 0 <= info.header_offset < size:  # zipfile gives negative ones, too
            local = os.pread(descriptor, _LOCAL.size, info.header_offset)
        magic, name, extra = _LOCAL.unpack(local) if len(local) == _LOCAL.size else (b"", 0, 0)
        begin = info.header_offset + _LOCAL.size + name + extra
        if (
            magic != _LOCAL_MAGIC
            or info.compress_type != zipfile.ZIP_STORED
            or info.flag_bits & 1  # encrypted
            or info.compress_size != info.file_size
            or begin + info.file_size > size
        ):
            raise IntegrityError(
                f"{path}: {info.filename!r} is not a stored member of the archive; restore or "
                "repack the file"
            )
        found[info.filename.partition("/")[2]] = (begin, info.file_size)
    return found


def _load(descriptor: int, path: Path) -> Any:
    import torch

    name = f"/proc/self/fd/{descriptor}"  # torch wants a path to map, and only UTF-8
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickle protocols that a damaged file names
            return torch.load(name, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        # torch wraps its reason in advice to load the file unsafely, which is none of ours.
        reason = str(error.__context__ or error).partition(" Please use ")[0][:300]
        raise NotAPackError(
            f"{path}: has more in it than tensors, or is damaged; torch refuses to load it safely: "
            f"{reason}"
        ) from error
    except _ERRORS as error:
        reason = (str(error).splitlines() or [""])[0][:300]
        raise IntegrityError(
            f"{path}: torch does not load it: {type(error).__name__}: {reason}; restore or repack "
            "the file"
        ) from error


class Place:
    """Where the bytes of tensors lie in the file that torch has mapped."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._path = path
        status = os.fstat(descriptor)
        self._size = status.st_size
        self._maps = []  # first address, last, offset in the file
        with open("/proc/self/maps", "rb") as file:
            for line in file:
                span, _, offset, _, inode, *_ = line.split()
                if int(inode) == status.st_ino:
                    first, end = (int(part, 16) for part in span.split(b"-"))
                    self._maps.append((first, end, int(offset, 16)))

    def __call__(self, tensor: torch.Tensor, what: str) -> tuple[int, int]:
        """Offset and size in bytes, checked."""
        if not _is_plain(tensor):
            raise NotAPackError(f"{self._path}: {what} is not a plain, contiguous tensor")
        size = tensor.numel() * tensor.element_size()
        if size == 0:
            return 0, 0
        address = tensor.data_ptr()
        for first, end, offset in self._maps:
            begin = address - first + offset
            if first <= address and address + size <= end and begin + size <= self._size:
                return begin, size
        raise IntegrityError(
            f"{self._path}: {what} ({size} bytes) is not within the file; restore or repack it"
        )

    def array(self, tensor: torch.Tensor, what: str) -> np.ndarray:
        """Copy the values of a tensor, after a check that they are in the file."""
        self(tensor, what)
        try:
            values: np.ndarray = tensor.numpy().copy()
        except (RuntimeError, TypeError) as error:  # bfloat16
            raise NotAPackError(f"{self._path}: {what} is {tensor.dtype}") from error
        return values


def _is_plain(tensor: torch.Tensor) -> bool:
    import torch

    plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
    flags = tensor.is_quantized or tensor.requires_grad or tensor.is_conj() or tensor.is_neg()
    return plain and not flags and type(tensor) is torch.Tensor and tensor.is_contiguous()
