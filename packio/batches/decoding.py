"""Images of datasets of one's own: encoded bytes in, tensors out, as from packio's datasets."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import torch

from packio.batches import images, slices
from packio.batches.columns import make_each, share, stack
from packio.batches.framing import Draw, Framing, Settings
from packio.errors import Naming, OptionError
from packio.images import encodings, floats, native, regions, tensors
from packio.images.decoders import Decoder
from packio.images.geometry import Resize, Size, accept_crop, check_probability
from packio.index.indexfile import crc32c
from packio.packs.table import Row, RowList
from packio.system.threads import Threads, automatic_threads, check_threads

# The bytes of an image file: of Python's, an array or a tensor (length,) uint8; or a path
Encoded: TypeAlias = (
    bytes | bytearray | memoryview | np.ndarray | torch.Tensor | str | os.PathLike[str]
)


def decode(
    data: Encoded | Sequence[Encoded],
    crop: Any = None,
    hflip: float = 0.0,
    *,
    vflip: float = 0.0,
    size: Size | None = None,
    dtype: torch.dtype = torch.uint8,
    normalize: floats.Means | None = None,
    mode: str = "RGB",
    fidelity: str = "exact",
    decoder: str = "auto",
    exif_orientation: bool = True,
    threads: int | str = "auto",
    seek_points: bytes | Sequence[bytes | None] | None = None,
    generator: torch.Generator | None = None,
) -> Any:
    """Decode an image, or a list of images: cropped, resized, mirrored, as floats if asked for.

    The pixels are those of a dataset with the same options. A crop decodes what it needs alone.
    In a DataLoader, `torch.utils.data.Dataset.__getitems__` is the place to decode a batch.

    Args:
        data: The bytes of an image file, or its path; a list of them gives a batch.
        crop: As of a dataset: `packio.RandomResizedCrop` and its kin, or torchvision's.
        hflip, vflip: Probability to mirror an image left-right, top-bottom.
        size: Without a crop, pixels: the whole image becomes (height, width), or its short side an
            int, as by `packio.Resize`.
        dtype: torch.uint8, or a float type, scaled to 0..1.
        normalize: (mean, std) of each channel, or `packio.Normalize`; then ``dtype`` is float32
            unless it is another float type.
        mode: "RGB", "GRAY", "RGB_ALPHA" or "UNCHANGED".
        fidelity, decoder, exif_orientation: As of a dataset.
        threads: That decode a list. "auto": the processors, shared by the workers of a DataLoader.
        seek_points: What `packio.seek_points` gave for each image, or None, so that crops decode
            less. They have a checksum of their image and of themselves.
        generator: Draws the crops and flips, by one number a call; None: torch's own, which
            ``torch.manual_seed`` seeds.

    Returns:
        (C, H, W), contiguous. Of a list (N, C, H, W), or a list of (C, H, W) where sizes differ.

    Raises:
        DecodeError: bytes are no image that can be decoded; the message names the position of one
            in the list, and the path.
        OptionError: an argument makes no sense.
        OSError: a path cannot be read.
    """
    is_list = isinstance(data, (list, tuple))
    given: list[Any] = list(cast("Any", data)) if is_list else [data]
    if not isinstance(generator, (torch.Generator, type(None))):
        raise OptionError(f"generator={generator!r}: expected a torch.Generator")
    if dtype not in (torch.uint8, *floats.DTYPES):
        raise OptionError(f"dtype={dtype}: expected torch.uint8 or one of {floats.DTYPES}")
    normalize = floats.as_normalize(normalize)
    if normalize is not None and dtype == torch.uint8:
        dtype = torch.float32
    check_probability("hflip", hflip)
    check_probability("vflip", vflip)
    if not dataclasses.is_dataclass(crop):  # of torchvision: it may change between two calls
        crop = accept_crop(crop)
    how: Any = crop, hflip, vflip, size, mode, fidelity, decoder, exif_orientation
    try:
        settings = _settings(*how)
    except TypeError:  # a crop that cannot be hashed
        settings = _settings.__wrapped__(*how)
    if dtype != torch.uint8 or not is_list:
        settings = settings.for_floats  # what comes out is not sent as it is
    names = [_name(image, slot if is_list else None) for slot, image in enumerate(given)]
    datas = list(map(_read, given, names))
    rows = RowList(map(_find_row, datas, range(len(datas)), names))
    chosen = _choose_threads(threads, rows)
    key = 0
    if settings.is_random:
        key = int(torch.randint(1 << 62, (), generator=generator, device="cpu"))
    framing = Framing.draw(settings, rows, Draw(key, np.arange(len(rows))))
    points = _check_points(seek_points, datas)
    made = _make(framing, datas, points, names, chosen)
    if dtype == torch.uint8:
        pass
    elif isinstance(made, list):
        made = share([floats.to_floats(image, dtype, normalize) for image in made])
    else:
        out = tensors.new_batch(tuple(made.shape), dtype) if is_list else None
        made = floats.to_floats(made, dtype, normalize, out, chosen)
    return made if is_list else made[0]


def seek_points(data: Encoded) -> bytes:
    """Find where decoding of a JPEG may begin in its middle, for crops of it: see `decode`.

    It takes as long as decoding.

    Args:
        data: The bytes of an image file, or its path.

    Returns:
        Bytes to keep beside the image, 0.3 % of its size, for ``decode(seek_points=)``. Empty where
        they would not help: a small JPEG, one with restart markers, another format, no image. The
        first four are a checksum: the CRC32C of the JPEG XOR that of the points.
    """
    encoded = _read(data, "data")
    points = native.seek_points(encoded)
    return _checksum(encoded, points) + points if points else b""


def _checksum(data: bytes, points: bytes) -> bytes:
    return (crc32c(data) ^ crc32c(points)).to_bytes(4, "little")


def _check_points(given: Any, datas: Sequence[bytes]) -> list[bytes]:
    """The points of each image as the core takes them, which have to be the image's own."""
    if given is None:
        return [b""] * len(datas)
    if not isinstance(given, (bytes, list, tuple)):
        raise OptionError(f"seek_points=: {type(given).__name__}; expected bytes, or a list")
    each = [given] if isinstance(given, bytes) else list(given)
    if len(each) != len(datas):
        raise OptionError(f"seek_points=: {len(each)} for {len(datas)} images")
    for slot, (own, data) in enumerate(zip(each, datas, strict=True)):
        if not isinstance(own, (bytes, type(None))):
            raise OptionError(f"seek_points[{slot}]: {type(own).__name__}; expected bytes, or None")
        if own and own[:4] != _checksum(data, own[4:]):
            raise OptionError(f"seek_points[{slot}]: of another image, or damaged; find them anew")
    return [own[4:] if own else b"" for own in each]


@functools.lru_cache(64)
def _settings(
    crop: Any, hflip: float, vflip: float, size: Size | None, mode: str, fidelity: str,
    decoder: str, exif_orientation: bool,
) -> Settings:  # fmt: skip
    """The settings of a dataset with one view, checked; kept, as a decoder takes 0.1 ms."""
    if size is not None and crop is not None:
        raise OptionError(f"size={size!r} is of a whole image; a crop= has a size of its own")
    if fidelity not in regions.FIDELITIES:
        raise OptionError(f"fidelity={fidelity!r}: expected one of {regions.FIDELITIES}")
    if not isinstance(exif_orientation, bool):
        raise OptionError(f"exif_orientation={exif_orientation!r}: expected True or False")
    view = accept_crop(crop) if size is None else Resize(size)
    return Settings(
        (view,), hflip, vflip, Decoder(decoder, mode), exif_orientation, fidelity == "fast"
    )


def _read(image: Any, name: str) -> bytes:
    if isinstance(image, bytes):
        return image
    if isinstance(image, (str, os.PathLike)):
        with open(image, "rb") as file:
            return file.read()
    data = None
    with contextlib.suppress(TypeError, ValueError, RuntimeError):  # of tensors that are no bytes
        array: Any = image.numpy() if isinstance(image, torch.Tensor) else image
        data = memoryview(array)
    if data is None or data.ndim != 1 or data.itemsize != 1:
        shape = getattr(image, "shape", None)
        what = type(image).__name__ + (f" {tuple(shape)}" if shape is not None else "")
        raise OptionError(f"{name}: {what}; expected the bytes of an image file, or its path")
    return data.tobytes()


def _name(image: Any, slot: int | None) -> str:
    """How errors name an image."""
    path = os.fsdecode(image) if isinstance(image, (str, os.PathLike)) else None
    if slot is None:
        return path or "data"
    return f"data[{slot}]" + (f" ({path})" if path else "")


def _find_row(data: bytes, slot: int, name: str) -> Row:
    with Naming(lambda: name):
        facts = encodings.read_facts(data)
    pixels = facts.height, facts.width, facts.channels, facts.orientation
    return Row(slot, 0, 0, len(data), 0, *pixels, 0, facts.encoding, facts.dtype)


def _choose_threads(wanted: int | str, rows: RowList) -> Threads | None:
    """As a dataset: none for one image, nor for little ones."""
    check_threads(wanted)
    pixels = [row.height * row.width for row in rows]
    if len(rows) < 2 or (wanted == "auto" and np.median(pixels) < images.LITTLE):
        return None
    count = automatic_threads() if wanted == "auto" else int(wanted)
    return _threads(count) if count > 1 else None


@functools.cache  # they are made anew in each process
def _threads(count: int) -> Threads:
    return Threads(count)


def _make(
    framing: Framing, datas: list[bytes], points: Sequence[bytes], names: Sequence[str],
    threads: Threads | None,
) -> torch.Tensor | list[torch.Tensor]:  # fmt: skip
    """Make the images: a tensor (N, C, H, W), or a list where they differ in size or type."""
    rows, decoder = framing.rows, framing.settings.decoder
    batch = images.new_batch(framing, 0, None, are_alike=decoder.mode in images.CHANNELS)
    made: list[np.ndarray | None] = [None] * len(rows) if batch is None else [*batch.numpy()]

    def work(slot: int) -> None:
        needs, out, own = framing.each_needs[slot], made[slot], points[slot]
        with Naming(lambda: names[slot]):
            (made[slot],) = regions.make(decoder, datas[slot], rows[slot], needs, [out], own)

    if batch is not None and framing.columns:
        errors = slices.make(datas, framing, threads, [batch], points, (), work)
    else:
        errors = make_each(rows, work, threads)
    for slot in sorted(errors)[:1]:
        raise errors[slot]
    if batch is not None:
        return batch
    return stack([torch.from_numpy(image) for image in made])
