"""Finding the samples of a file of ``torch.save``, ours or another's; see `packio.formats.pth`."""

from __future__ import annotations

import os
import pickle
import struct
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from packio.errors import IntegrityError, NotAPackError, ReadError
from packio.formats import Entry
from packio.formats._blob import Columns, check_header, columns_of, entries, one_file

if TYPE_CHECKING:
    import torch

_LOCAL = struct.Struct("<4s22xHH")
_LOCAL_MAGIC = b"PK\x03\x04"
_DATA = ("data", "images", "image", "x", "X")
_OFFSETS = ("offsets", "offset", "indptr")
_LABELS = ("label", "labels", "target", "targets", "y", "Y")
# Whatever zipfile and torch make of what they find wrong in a file.
_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, MemoryError,
    NotImplementedError, OSError, RuntimeError, TypeError, ValueError, pickle.UnpicklingError,
    struct.error, zipfile.BadZipFile, zipfile.LargeZipFile,
)  # fmt: skip


def scan(path: Path) -> Iterator[Entry]:
    """Yield an entry for every sample.

    Of what others write: a dict with a blob of bytes and N + 1 offsets; a list of one-dimensional
    tensors of bytes; a pair of such a list and of labels; or a dict of both, under usual names.
    Only tensors and plain containers are ever unpickled (``weights_only=True``).

    Raises:
        NotAPackError: no file of torch's, one with other things in it than tensors, or one without
            samples that are ranges of bytes.
        IntegrityError: the file is damaged.
        ReadError: the file cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ReadError(f"{path}: cannot be opened: {error.strerror}") from error
    try:
        members(descriptor, path)
        value = _load(descriptor, path)
        found = _found(value, _Place(descriptor, path), path)
    finally:
        os.close(descriptor)
    yield from found


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


class _Place:
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


def _found(value: Any, place: _Place, path: Path) -> Iterator[Entry]:
    if isinstance(value, dict) and "packio" in value:
        return _own(value, place, path)
    images, labels, offsets = value, None, None
    if isinstance(value, dict):
        images, labels, offsets = (_first(value, n) for n in (_DATA, _LABELS, _OFFSETS))
    elif (
        isinstance(value, (list, tuple)) and len(value) == 2 and isinstance(value[0], (list, tuple))
    ):
        images, labels = value
    if offsets is not None:
        return _blob(images, labels, offsets, place, path)
    return _each(images, labels, place, path)


def _first(value: Mapping[Any, Any], names: Sequence[str]) -> Any:
    return next((value[n] for n in names if n in value), None)


def _own(value: Mapping[str, Any], place: _Place, path: Path) -> Iterator[Entry]:
    import torch

    text = value["packio"]
    check_header(text if isinstance(text, str) else "", "pth", path)
    tensors = {n: value[n] for n in (*Columns._fields, "data", "mask_data") if n in value}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise IntegrityError(f"{path}: {name} is no tensor; restore or repack the file")
    blobs = {n: place(tensors.pop(n), n) if n in tensors else (0, 0) for n in ("data", "mask_data")}
    arrays = {n: place.array(tensor, n) for n, tensor in tensors.items()}
    (data, size), (masks, mask_size) = blobs["data"], blobs["mask_data"]
    columns = columns_of(arrays, size, mask_size, path)
    return entries(columns, (path.name,), *one_file(columns, data, masks))


def _blob(images: Any, labels: Any, offsets: Any, place: _Place, path: Path) -> Iterator[Entry]:
    import torch

    if not _is_bytes(images) or not isinstance(offsets, torch.Tensor):
        raise NotAPackError(f"{path}: has offsets, but no blob of bytes; {_expected()}")
    begin, size = place(images, "the blob")
    arrays = {"offsets": _numbers(place.array(offsets, "offsets"), "offsets", path)}
    columns = columns_of(arrays, size, 0, path)
    columns = columns._replace(label=_labels(labels, len(columns.length), place, path))
    return entries(columns, (path.name,), *one_file(columns, begin, 0))


def _each(images: Any, labels: Any, place: _Place, path: Path) -> Iterator[Entry]:
    import torch

    if isinstance(images, torch.Tensor) and images.ndim >= 3:
        raise NotAPackError(
            f"{path}: raw pixel arrays {tuple(images.shape)} are not read; encode the images (as "
            "PNG, without loss) and pack them"
        )
    if not isinstance(images, (list, tuple)):
        raise NotAPackError(f"{path}: holds {type(images).__name__}; {_expected()}")
    label = _labels(labels, len(images), place, path)
    found = []
    for i, image in enumerate(images):
        if not _is_bytes(image):
            what = tuple(image.shape) if isinstance(image, torch.Tensor) else "no tensor"
            raise NotAPackError(
                f"{path}: item {i} is {type(image).__name__} ({what}); {_expected()}"
            )
        offset, size = place(image, f"item {i}")
        entry = Entry(b"%d" % i, path.name, offset, size)
        if label is not None:
            row = label[i].tolist()
            entry = entry._replace(label=tuple(row) if label.ndim == 2 else row)
        found.append(entry)
    return iter(found)


def _expected() -> str:
    return (
        "packio reads a list of 1-D uint8 tensors that are encoded images, with labels if there "
        "are any, or a dict of a blob with offsets; bytes within the pickle are no ranges"
    )


def _is_bytes(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.ndim == 1 and value.dtype == torch.uint8


def _numbers(values: np.ndarray, what: str, path: Path) -> np.ndarray:
    if values.dtype.kind not in "iu":
        raise NotAPackError(f"{path}: {what} is {values.dtype}, integers are expected")
    return values.astype(np.int64)


def _labels(labels: Any, count: int, place: _Place, path: Path) -> np.ndarray | None:
    import torch

    if labels is None:
        return None
    if isinstance(labels, torch.Tensor):
        values = place.array(labels, "label")
        vectors = values.ndim == 2 and values.dtype.kind == "f"
        values = values.astype("f4") if vectors else _numbers(values, "label", path)
    elif isinstance(labels, (list, tuple)) and all(
        type(v) is int and abs(v) < 2**63 for v in labels
    ):
        values = np.array(labels, np.int64)
    else:
        raise NotAPackError(f"{path}: labels are {type(labels).__name__}, not a tensor or ints")
    if len(values.shape) not in (1, 2) or len(values) != count or values.shape[1:] == (0,):
        raise NotAPackError(f"{path}: labels are {values.shape}, of {count} samples")
    return (
        values
        if values.dtype == np.float32 or values.ndim == 1
        else values.reshape(count, -1)[:, 0]
    )
