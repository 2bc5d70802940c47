"""What the hostile files are made of: good photos, and containers written by hand, byte by byte.

Nothing here imports packio: a container that packio's own writers make would share their blind
spots.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import crc32c
import numpy as np
from PIL import Image
from skimage import data

SECRET = b"the secret of another user"  # lies in a file beside the hostile one; must never be read


@functools.cache
def _astronaut() -> np.ndarray:
    pixels: np.ndarray = data.astronaut()  # type: ignore[no-untyped-call]  # scikit-image's
    return pixels


def photo(number: int = 0, size: int = 48) -> bytes:
    """A good JPEG, cut from a photograph; another one for each number."""
    part = _astronaut()[8 * number : 8 * number + size, :size]
    held = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(part)).save(held, "JPEG", quality=85)
    return held.getvalue()


PHOTO = photo()


@dataclasses.dataclass(frozen=True)
class Hostile:
    """One hostile file or folder, and the only right answer to it.

    Attributes:
        make: Writes it into an empty folder and returns its path.
        verb: "open" (open it as a pack and read every sample) or "pack" (pack it).
        images: The encoded images that must come out, in any order; None: packio refuses the whole
            with one of its own errors.
    """

    name: str
    make: Callable[[Path], Path]
    verb: str
    images: tuple[bytes, ...] | None


CORPUS: dict[str, Hostile] = {}


def hostile(
    verb: str, *images: bytes, refused: bool = False
) -> Callable[[Callable[[Path], Path]], Callable[[Path], Path]]:
    """Add a hostile file to the corpus: either it is refused, or exactly these images come out."""

    def add(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
        name = make.__name__
        there = CORPUS.get(name)  # pytest imports a module a second time, to look for doctests
        assert there is None or there.make.__code__.co_filename == make.__code__.co_filename, name
        assert refused is not bool(images), name
        CORPUS[name] = Hostile(name, make, verb, None if refused else images)
        return make

    return add


class Payload:
    """A pickle that leaves a trace when somebody loads it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return open, (str(self.folder / "RAN"), "w")


def poison(folder: Path) -> bytes:
    """The pickle of a `Payload`: loading it makes the file ``RAN``."""
    return pickle.dumps({"image": PHOTO, "label": Payload(folder)})


# ------------------------------------------------------------------------------------------- tars


def member(name: str, content: bytes = PHOTO, *, kind: bytes = b"0", size: bytes = b"",
           link: bytes = b"") -> bytes:  # fmt: skip
    """One member of a tar: a ustar header with a right checksum, and its padded content.

    Args:
        size: The field of 12 bytes as it shall be in the header, if not the length of ``content``.
    """
    length = size or b"%011o\0" % len(content)
    head = struct.pack(
        "100s8s8s8s12s12s8sc100s8s32s32s8s8s155s12x", name.encode("utf-8", "surrogateescape"),
        b"0000644\0", b"0000000\0", b"0000000\0", length, b"00000000000\0", b" " * 8, kind, link,
        b"ustar\x0000", b"", b"", b"", b"", b"",
    )  # fmt: skip
    head = head[:148] + b"%06o\0 " % sum(head) + head[156:]
    return head + content + bytes(-len(content) % 512)


END = bytes(1024)  # of a tar


def tar(folder: Path, *members: bytes, end: bytes = END) -> Path:
    path = folder / "x.tar"
    path.write_bytes(b"".join(members) + end)
    return path


# -------------------------------------------------------------------------------------- TFRecords


def masked(content: bytes) -> bytes:
    value = crc32c.crc32c(content)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def framed(content: bytes) -> bytes:
    """One record of a TFRecord file."""
    length = struct.pack("<Q", len(content))
    return length + masked(length) + content + masked(content)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])


def delimited(number: int, content: bytes, *, length: int | None = None) -> bytes:
    """A protobuf field of bytes, which may lie about its length."""
    return varint(number << 3 | 2) + varint(len(content) if length is None else length) + content


def example(label: bytes = b"\x1a\x03\x0a\x01\x03", image: bytes = PHOTO) -> bytes:
    """A tf.train.Example of ``image/encoded`` and ``image/class/label``."""
    encoded = delimited(1, delimited(1, image))
    features = b"".join(
        delimited(1, delimited(1, name) + delimited(2, value))
        for name, value in ((b"image/encoded", encoded), (b"image/class/label", label))
    )
    return delimited(1, features)


# ----------------------------------------------------------------------------------- other makers


def png(width: int, height: int, rows: bytes = b"") -> bytes:
    """A PNG of RGB that claims a size and brings as many bytes of pixels as are given."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        tail = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + tail

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def zipped(path: Path, members: dict[str, bytes], *, stored: bool = True) -> Path:
    kind = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def tarred(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return path
