"""A file of ``torch.save``, read without torch: the value it holds, and where its tensors lie.

The file is a zip archive of stored members. The member ``data.pkl`` is a pickle, in which a tensor
is a call::

    torch._utils._rebuild_tensor_v2(storage, offset, shape, stride, requires_grad, hooks)

offset and stride count elements. The storage is a persistent id, the tuple ``("storage",
torch.ByteStorage, key, location, number of elements)``; the member ``data/KEY`` has its bytes.
``_rebuild_tensor_v3`` has a further argument, the dtype; its storages are untyped. The member
``byteorder`` is "little" or "big"; without this member the values are little-endian.

`packio.formats.wire.pickles` reads the pickle opcode by opcode. Only the names in this module have
a meaning; none is imported, and a pickle with other names is refused. So neither `pickle` nor
``torch.load`` ever sees a file that a user gives.

Sources: ``torch/serialization.py`` and ``torch/_utils.py`` of PyTorch 2.13;
https://docs.pytorch.org/docs/stable/notes/serialization.html
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shlex
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.errors import NotAPackError
from packio.formats import damage_error
from packio.formats.blobs import ranges
from packio.formats.blobs.pixels import is_as_stored
from packio.formats.wire import ByteSpan, MalformedError, pickles

_LOCAL = struct.Struct("<4s22xHH")  # of a member: magic, then length of the name and of the extra
_LOCAL_MAGIC = b"PK\x03\x04"
_MOST_AXES = 64  # as in torch
# What zipfile raises for a damaged archive.
_ERRORS = (
    ArithmeticError, EOFError, LookupError, NotImplementedError, OSError, RuntimeError, TypeError,
    ValueError, struct.error, zipfile.BadZipFile, zipfile.LargeZipFile,
)  # fmt: skip

_NUMPY = {  # the dtypes of torch that numpy has
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16",
    "float32", "float64", "complex64", "complex128",
}  # fmt: skip
_STORAGES = {  # storages of torch → dtype
    "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64",
    "Half": "float16", "Float": "float32", "Double": "float64", "Bool": "bool",
    "BFloat16": "bfloat16", "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip
_OPAQUE_MODULES = {  # a name in them may be in a file; packio reads nothing of it
    "torch", "torch._utils", "torch._tensor", "torch.storage", "torch.nn.parameter",
    "torch.serialization",
}  # fmt: skip
_OPAQUE = {"builtins.set", "builtins.complex", "builtins.bytearray"}


@dataclasses.dataclass(frozen=True)
class Opaque:
    """A value that packio does not read; its class or function."""

    name: str


class _Storage(NamedTuple):
    key: str
    dtype: str


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor of a file: which part of a storage it is."""

    key: str  # of its storage
    dtype: str  # as torch names it
    offset: int  # elements
    shape: tuple[int, ...]
    stride: tuple[int, ...]  # elements
    plain: bool = True  # the values are those of the storage, and no gradient is wanted

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Whether the values lie end to end, in the order of the axes."""
        step = 1
        for size, stride in zip(self.shape[::-1], self.stride[::-1], strict=True):
            if size > 1 and stride != step:
                return 0 in self.shape
            step *= size
        return True

    def permute(self, *axes: int) -> Tensor:
        shape, stride = (tuple(values[i] for i in axes) for values in (self.shape, self.stride))
        return dataclasses.replace(self, shape=shape, stride=stride)


@contextlib.contextmanager
def open_archive(path: Path) -> Iterator[TorchFile]:
    with ranges.open_input(path) as file:
        yield TorchFile(file)


def members(descriptor: int, path: Path) -> dict[str, tuple[int, int]]:
    """Find where the archive's members lie: name without the archive's → offset, size in bytes."""
    try:
        with open(descriptor, "rb", closefd=False) as file, zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
    except _ERRORS as error:
        raise NotAPackError(
            f"{path}: not a zip archive as torch.save writes it ({error}); if torch loads it, save "
            "it again"
        ) from error
    names = {info.filename.rpartition("/")[2] for info in infos}
    if "data.pkl" not in names:
        raise NotAPackError(f"{path}: not a file of torch.save, but {_other(names, path)}")
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
            raise damage_error(path, f"{info.filename!r} is not a stored member of the archive")
        found[info.filename.partition("/")[2]] = (begin, info.file_size)
    return found


def _other(names: set[str], path: Path) -> str:
    """What a zip archive is that torch did not write, and what the user can do."""
    if any(name.endswith(".npy") for name in names):
        return "an .npz archive of NumPy; save its arrays as HDF5 or Zarr, or by torch.save"
    if not names.isdisjoint(("zarr.json", ".zgroup", ".zarray")):
        return f"Zarr in a zip archive; unpack it: unzip {path.name} -d unpacked.zarr"
    return (
        "another zip archive; if it holds images, pack them: "
        f"packio pack {shlex.quote(str(path))} {shlex.quote(path.stem)}.lmdb "
        "--source archive"
    )


class TorchFile:
    def __init__(self, file: ranges.Input) -> None:
        self._file, self._path = file, file.path
        self._members = members(file.descriptor, file.path)
        self._big_endian = "byteorder" in self._members and self._member("byteorder") == b"big"

    def load(self) -> Any:
        """Read what was saved: plain values, bytes or a `ByteSpan`, `Tensor` and `Opaque`."""
        data = self._member("data.pkl")
        try:
            return pickles.read_pickle(data, most_steps=len(data), names=_NAMES)
        except pickles.RefusedError as error:
            raise NotAPackError(
                f"{self._path}: packio refuses all but tensors and plain values: {error}"
            ) from error
        except MalformedError as error:
            raise damage_error(self._path, str(error)) from error

    def range_of(self, value: Tensor | ByteSpan, what: str) -> tuple[int, int]:
        """Offset and size of a tensor, or of bytes, in the file; in bytes, checked."""
        if isinstance(value, ByteSpan):
            return self._members["data.pkl"][0] + value.start, value.stop - value.start
        dtype = self.dtype(value, what)
        if not value.plain or not value.is_contiguous:
            raise NotAPackError(f"{self._path}: {what} is not a plain, contiguous tensor")
        size, offset = math.prod(value.shape) * dtype.itemsize, value.offset * dtype.itemsize
        begin, stored = self._members.get(f"data/{value.key}", (0, 0))
        if size == 0:
            return begin, 0
        if offset + size > stored:
            raise damage_error(self._path, f"{what} ({size} bytes) is not within the file")
        return begin + offset, size

    def dtype(self, tensor: Tensor, what: str) -> np.dtype:
        """The dtype of a tensor, in the file's byte order."""
        if tensor.dtype not in _NUMPY:
            raise NotAPackError(f"{self._path}: {what} is a tensor of {tensor.dtype}, not numbers")
        dtype: np.dtype = np.dtype(tensor.dtype).newbyteorder(">" if self._big_endian else "<")
        return dtype

    def pixels(self, tensor: Tensor, what: str) -> np.dtype:
        dtype = self.dtype(tensor, what)
        if not is_as_stored(dtype):
            raise NotAPackError(
                f"{self._path}: {what} was saved on a big-endian machine; packio reads pixels of "
                "several bytes little-endian: save the file again"
            )
        return dtype

    def array(self, tensor: Tensor, what: str) -> np.ndarray:
        """Read the values of a tensor; raises as `range_of` does."""
        begin, size = self.range_of(tensor, what)
        values = np.frombuffer(self._file.read(size, begin), self.dtype(tensor, what))
        native: np.ndarray = values.astype(values.dtype.newbyteorder("=")).reshape(tensor.shape)
        return native

    def _member(self, name: str) -> bytes:
        begin, size = self._members[name]
        return self._file.read(size, begin)


# The meaning of the names in a pickle


def _tensor(
    storage: Any, offset: Any, shape: Any, stride: Any, requires_grad: Any = False,
    _hooks: Any = None, metadata: Any = None,
) -> Tensor | Opaque:  # fmt: skip
    if type(storage) is not _Storage:
        return Opaque("torch.Tensor")
    if type(shape) is not tuple or type(stride) is not tuple or len(shape) != len(stride):
        raise MalformedError("a tensor without a shape and a stride")
    if len(shape) > _MOST_AXES:
        raise MalformedError(f"a tensor of {len(shape)} axes, expected at most {_MOST_AXES}")
    if any(type(number) is not int or number < 0 for number in (offset, *shape, *stride)):
        raise MalformedError("a tensor whose shape, stride or offset is not a count")
    flags = metadata.values() if isinstance(metadata, dict) else ()  # "conj" and "neg"
    plain = not requires_grad and not any(flag is not False for flag in flags)
    return Tensor(storage.key, storage.dtype, offset, shape, stride, plain)


def _tensor_v3(*arguments: Any) -> Tensor | Opaque:
    """A tensor with a seventh argument, its dtype; the storage is untyped."""
    storage, dtype = arguments[0], arguments[6]
    if type(storage) is _Storage and isinstance(dtype, pickles.Name):
        storage = storage._replace(dtype=dtype.name.removeprefix("torch."))
    return _tensor(storage, *arguments[1:6], *arguments[7:])


def _parameter(tensor: Any, *_: Any) -> Any:
    return dataclasses.replace(tensor, plain=False) if isinstance(tensor, Tensor) else tensor


def _of_type(function: Any, kind: Any, arguments: Any, _: Any) -> Any:
    """A tensor with attributes, or of a subclass."""
    tensor = function.call(*arguments) if isinstance(function, pickles.Name) else None
    is_tensor = isinstance(kind, pickles.Name) and kind.name == "torch.Tensor"
    return tensor if is_tensor else _parameter(tensor)


def _encoded(text: Any, encoding: Any) -> bytes:
    """Bytes, as protocol 2 writes them: as text."""
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        raise MalformedError("bytes that are no text in latin1")
    return text.encode("latin-1")


def _bytes(*arguments: Any) -> bytes:
    if arguments:
        raise MalformedError("bytes that are made of other values")
    return b""


def _dict(items: Any = ()) -> dict[Any, Any]:
    pairs: Sequence[Any] = list(items.items()) if isinstance(items, dict) else items
    if not all(isinstance(key, (str, int)) for key, _ in pairs):
        raise MalformedError("a dict with keys that are neither text nor numbers")
    return dict(pairs)


_CALLS: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._tensor._rebuild_from_type_v2": _of_type,
    "torch.Size": lambda lengths=(): tuple(lengths),
    "_codecs.encode": _encoded,
    "builtins.bytes": _bytes,
    "collections.OrderedDict": _dict,
    "collections.Counter": _dict,
}


def _find(name: str) -> Callable[..., Any] | None:
    if name in _CALLS:
        return _CALLS[name]
    if name in _OPAQUE or name.rpartition(".")[0] in _OPAQUE_MODULES:
        return lambda *_: Opaque(name)
    return None


def _persistent(value: Any) -> _Storage:
    kind, storage, key, *_ = value
    if kind != "storage" or not isinstance(storage, pickles.Name) or type(key) is not str:
        raise MalformedError("a persistent id that is no storage")
    name = storage.name.rpartition(".")[2].removesuffix("Storage")
    return _Storage(key, _STORAGES.get(name, name))


_NAMES = pickles.Names(
    _find, _persistent, build=lambda value: isinstance(value, (dict, Opaque, Tensor))
)
