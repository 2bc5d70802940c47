"""The native core: a JPEG's bytes, or raw ones, to the planes of outputs in one call, written in C.

It decodes only what an output needs, resizes, turns and mirrors it: about three times as fast as
a library's decoder and PyTorch's resizing, with the same pixels bit for bit. It is compiled when
packio is installed, where there is a C compiler. ``core.h`` leads through the C files.
"""

from __future__ import annotations

import ctypes
import functools
import pathlib
import struct
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from packio.errors import MissingPackageError

if TYPE_CHECKING:
    from packio.images.frames import Box, Frame

_VERSION = 14  # of the functions below
_MADE = 0
KIND, OUTPUT, LEVEL = 1, 4, 6
# Why an image was declined, by status; the last one is no status of the core.
REASONS = ("made", "kind of JPEG", "damaged or doubtful", "not the size in the index",
           "kind of output", "memory", "bad level")  # fmt: skip
_METHODS = {"bilinear": 0, "bicubic": 1, "nearest": 3, "area": 4}
_UNRESIZED = 2
_REQUEST = struct.Struct("@Qdd18i")  # as Request in core.h
# An output and a sample of slices, as Request and Sample in core.h.
OF_FRAME = ("to_height", "to_width", "out_top", "out_left", "out_height", "out_width")
REQUEST = np.dtype([
    ("out", "u8"), ("ratio", "f8", 2),
    *((name, "i4") for name in ("height", "width", "top", "left", "box_height", "box_width",
                                "orientation", "flips", *OF_FRAME, "channels", "method", "scale",
                                "level")),
])  # fmt: skip
SAMPLE = np.dtype([
    ("offset", "i8"), ("length", "i8"), ("points", "i8"), ("points_size", "i4"), ("file", "i4"),
    ("crc32c", "u4"), ("path", "i4"), ("layout", "i4"), ("is_checked", "i2"), ("is_once", "i2"),
])  # fmt: skip
IN_MEMORY = -2  # as the file of a sample: ``offset`` is the address of its bytes
LAYOUTS = {
    "jpeg": 0,
    "raw": 1,
    "raw_hwc": 2,
    "raw_bgr": 5,
    "raw_hwc_bgr": 6,
    "dct": 8,
}  # of encodings
_BYTE = ctypes.c_char
_PATH = pathlib.Path(__file__).with_name("_core.so")


class _Batch(ctypes.Structure):
    """What slices are made of: as Batch in slice.c."""

    _fields_ = (
        ("samples", ctypes.c_void_p), ("requests", ctypes.c_void_p), ("points", ctypes.c_char_p),
        ("paths", ctypes.c_char_p), ("numbers", ctypes.c_void_p), ("outputs", ctypes.c_int),
        ("count", ctypes.c_int), ("taken", ctypes.c_int),
    )  # fmt: skip


class _Images(ctypes.Structure):
    """Images to change: as Images in operate.c."""

    _fields_ = (
        ("images", ctypes.c_void_p), ("operations", ctypes.c_char_p), ("channels", ctypes.c_int),
        ("height", ctypes.c_int), ("width", ctypes.c_int), ("each", ctypes.c_int),
        ("count", ctypes.c_int), ("taken", ctypes.c_int),
    )  # fmt: skip


@functools.cache  # a library: the same in every process
def _library() -> ctypes.CDLL | str:
    """The compiled core, or why there is none."""
    try:
        library = ctypes.CDLL(str(_PATH))
        found = library.packio_version()
    except (OSError, AttributeError):
        is_there = _PATH.exists()
        return "it does not load" if is_there else "it was not compiled when packio was installed"
    if found != _VERSION:
        return "it was compiled for another version of packio"
    library.packio_new_scratch.restype = ctypes.c_void_p
    library.packio_free_scratch.argtypes = [ctypes.c_void_p]
    library.packio_make.argtypes = [
        ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_int64,
        ctypes.c_char_p, ctypes.c_int64, ctypes.c_int,
    ]  # fmt: skip
    library.packio_find_points.argtypes = [
        ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64,
    ]  # fmt: skip
    library.packio_find_points.restype = ctypes.c_int64
    library.packio_make_slice.argtypes = [
        ctypes.c_void_p, ctypes.POINTER(_Batch), ctypes.c_int, ctypes.c_void_p,
    ]  # fmt: skip
    library.packio_unfilter.argtypes = [
        ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int32,
        ctypes.c_void_p, ctypes.c_int64,
    ]  # fmt: skip
    library.packio_look_up.argtypes = [
        ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_int64, ctypes.c_void_p,
        ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p,
    ]  # fmt: skip
    library.packio_operate.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Images), ctypes.c_int]
    for write in (library.packio_write_open, library.packio_write_jpeg):
        write.argtypes = [
            ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p),
        ]  # fmt: skip
        write.restype = ctypes.c_int64
    library.packio_choose(1)
    return library


def why_not() -> str | None:
    """Say why there is no core; None if there is one."""
    library = _library()
    return library if isinstance(library, str) else None


def require(what: str) -> None:
    """Check that the core is there, which an option or a function needs."""
    if reason := why_not():
        raise MissingPackageError(
            f"{what}: packio's native core is not here: {reason}; "
            "try: apt install gcc, then pip install --force-reinstall packio"
        )


def kernels() -> str:
    """The kernels that this processor runs: "AVX2" or "portable"."""
    library = _library()
    return "AVX2" if not isinstance(library, str) and library.packio_choose(1) else "portable"


class _Memory:
    """Memory of a thread, which the core keeps from image to image."""

    def __init__(self) -> None:
        library = _library()
        if isinstance(library, str):
            raise RuntimeError(library)  # noqa: TRY004 (it is not the caller's mistake)
        self.make, self.find_points = library.packio_make, library.packio_find_points
        self.make_slice = library.packio_make_slice
        self.operate = library.packio_operate
        self.write_open, self.write_jpeg = library.packio_write_open, library.packio_write_jpeg
        self._free = library.packio_free_scratch
        self.pointer = library.packio_new_scratch()
        if not self.pointer:
            raise MemoryError

    def __del__(self) -> None:
        if getattr(self, "pointer", None):
            self._free(self.pointer)


class _Memories(threading.local):
    def __init__(self) -> None:
        self.own = _Memory()  # of this thread


@functools.cache  # holds no state but that of its threads
def _memories() -> _Memories:
    return _Memories()


def request(
    height: int, width: int, box: Box, frame: Frame, out: np.ndarray, orientation: int = 1,
    hflip: bool = False, vflip: bool = False, how: str = "nearest", scale: int = 1, level: int = 1,
) -> bytes:  # fmt: skip
    """An output to make of a JPEG: see Request in core.h.

    Sizes and boxes are those of the stored image, also if the JPEG is its level of divisor
    ``level``. ``out`` is (C, out_height, out_width) uint8, contiguous, C 1 or 3; a gray image fills
    three planes alike. ``scale`` 2, 4 or 8 decodes at 1/scale, less exactly, for bilinear and
    bicubic.
    """
    # 0.4 µs; out.ctypes.data takes 1.4
    place = ctypes.addressof(_BYTE.from_buffer(out))  # type: ignore[arg-type]  # arrays are buffers
    return _REQUEST.pack(
        place, *frame[10:], height, width, *box, orientation,
        (1 if hflip else 0) + (2 if vflip else 0), *frame[4:10], len(out),
        method(how), scale, level,
    )  # fmt: skip


def make(data: bytes, requests: bytes, count: int = 1, points: bytes = b"", layout: int = 0) -> int:
    """Make outputs of an image, one of `LAYOUTS`; a JPEG is decoded once, as far as needed.

    ``requests`` are 1 to 16 of `request`, of one size, scale and level. Returns 0, or an index of
    `REASONS`: the image was declined.
    """
    memory = _memories().own
    status: int = memory.make(
        memory.pointer, requests, count, data, len(data), points, len(points), layout
    )
    return status


def method(how: Any) -> Any:
    """The core's number of an interpolation, or of N."""
    if isinstance(how, np.ndarray):
        return np.where(how == "bicubic", _METHODS["bicubic"], _METHODS["bilinear"])
    return _METHODS.get(how, _UNRESIZED)


class Slices:
    """Samples of a batch that threads share out: each call reads, checks and makes some.

    All arrays are contiguous: ``samples`` (N,) of `SAMPLE`; ``requests`` (N, outputs) of `REQUEST`;
    ``numbers`` (K,) int32, which samples to make, in this order. ``paths``: of files of one sample
    each, each with a NUL behind.
    """

    _MOST = 16  # samples of a call, which takes 20 ms or little more: then Python heeds Ctrl-C

    def __init__(
        self, samples: np.ndarray, requests: np.ndarray, numbers: np.ndarray, points: bytes,
        paths: bytes,
    ) -> None:  # fmt: skip
        self.count = len(numbers)
        self._arrays = samples, requests, numbers  # the core reads them
        self._batch = _Batch(
            samples.ctypes.data, requests.ctypes.data, points, paths, numbers.ctypes.data,
            requests.shape[1], self.count, 0,
        )  # fmt: skip

    def is_done(self) -> bool:
        """Tell whether threads have taken all samples."""
        return int(self._batch.taken) >= self.count

    def make(self) -> list[int]:
        """Make samples that no thread has taken; returns numbers whose outputs mean nothing."""
        if self.is_done():
            return []
        memory, declined = _memories().own, (ctypes.c_int32 * self._MOST)()
        lost: int = memory.make_slice(
            memory.pointer, ctypes.byref(self._batch), self._MOST, declined
        )
        return declined[:lost]


class Operations:
    """Images of a batch that threads share out: each call changes some, in place.

    ``place`` is the address of (N, C, H, W) bytes, C 1 or 3; ``operations`` are ``each`` for every
    image, done one after the other: see Operation in core.h.
    """

    _MOST = 8  # images of a call, which takes some milliseconds: then Python heeds Ctrl-C

    def __init__(self, place: int, shape: tuple[int, ...], operations: bytes, each: int) -> None:
        count, channels, height, width = shape
        self._images = _Images(place, operations, channels, height, width, each, count, 0)
        self.turns = -(-count // self._MOST)

    def apply(self) -> None:
        """Change images that no thread has taken."""
        memory = _memories().own
        status: int = memory.operate(memory.pointer, ctypes.byref(self._images), self._MOST)
        if status == 5:
            raise MemoryError
        if status:
            raise ValueError("an operation that the core does not know")


def seek_points(data: bytes) -> bytes:
    """Find points of a JPEG at which decoding may begin, one in about 3,300 bytes (see ``core.h``).

    All of the JPEG is decoded for that once, but for its pixels. Empty if the JPEG has restart
    markers, is small, or is none that the core decodes; or if there is no core.
    """
    if why_not():
        return b""
    memory = _memories().own
    room = ctypes.create_string_buffer(len(data) // 64 + 4096)
    found: int = memory.find_points(memory.pointer, data, len(data), room, len(room))
    return room.raw[:found] if found > 0 else b""


def open_jpeg(jpeg: bytes) -> bytes | None:
    """A JPEG with open coefficients (see ``open.c``); None if the core does not decode it."""
    memory = _memories().own
    return _written(memory, memory.write_open, jpeg)


def close_jpeg(data: bytes) -> bytes | None:
    """The JPEG of open coefficients; None if they are damaged."""
    memory = _memories().own
    return _written(memory, memory.write_jpeg, data)


def _written(memory: _Memory, write: Any, data: bytes) -> bytes | None:
    made = ctypes.c_void_p()  # in the memory, which the caller holds
    size = write(memory.pointer, data, len(data), ctypes.byref(made))
    return ctypes.string_at(made.value, size) if size > 0 and made.value else None


def unfilter(rows: bytes, shape: tuple[int, int, int]) -> np.ndarray | None:
    """Undo the row filters of a PNG; None: unknown filter, no core, or rows of another shape."""
    library = _library()
    if isinstance(library, str) or len(rows) != shape[0] * (shape[1] * shape[2] + 1):
        return None
    out = np.empty(shape, np.uint8)
    place = ctypes.addressof(_BYTE.from_buffer(out))  # type: ignore[arg-type]  # arrays are buffers
    status: int = library.packio_unfilter(
        rows, len(rows), shape[0], shape[1] * shape[2], shape[2], place, out.nbytes
    )
    return out if status == _MADE else None


def look_up(
    planes: int, images: int, channels: int, size: int, tables: int, constants: int, out: int,
    item: int, *, is_last: bool,
) -> None:  # fmt: skip
    """Look bytes of images up in a table of 256 values for each channel.

    ``planes``, ``tables``, ``constants`` and ``out`` are addresses: of (N, C, …) bytes, ``size`` of
    them an image; of (C, 256) values of ``item`` bytes, 2 or 4; of (C, 2) float32, mean and std;
    and of as many values as there are bytes, the channels last if ``is_last``.
    """
    library: ctypes.CDLL = _library()  # type: ignore[assignment]  # the caller has asked why_not()
    library.packio_look_up(
        planes, images, channels, size // channels, tables, constants, item, is_last, out
    )
