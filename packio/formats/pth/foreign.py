"""What others save by ``torch.save`` as a dataset, and where the samples lie in it.

* a tensor of pixels (`packio.formats.blobs.pixels`); a tensor in channels-last memory format is
  (N, H, W, C);
* a list of images: encoded images, as bytes or one-dimensional tensors of uint8, or tensors of
  pixels, (C, H, W), (H, W, C) or (H, W), of any sizes;
* a blob: a one-dimensional tensor of uint8, and N + 1 offsets;
* a pair of images (as above) and labels, as torchvision saves MNIST; a list of pairs of image and
  label; or a dict of images and labels under usual names.

Labels are a tensor, or a list of numbers.

Protocol 2, torch's default, writes bytes as text, so images that are bytes have no range in the
file. Each process that reads such images holds all of them in memory; convert the file. With
``pickle_protocol=3`` or newer, bytes lie in the file as they are, and have a range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from packio.errors import NotAPackError, OptionError
from packio.formats import Reading, unknown_error
from packio.formats.blobs import pixels
from packio.formats.blobs.by_library import FoundSamples
from packio.formats.pth.archive import Opaque, Tensor, TorchFile
from packio.formats.wire import ByteSpan
from packio.sample.record import Place, Record
from packio.system import files


class _Parts(NamedTuple):
    images: Any
    labels: Any = None
    offsets: Any = None


def find_samples(
    value: Any, archive: TorchFile, path: Path, reading: Reading
) -> Iterator[Record[Place]]:
    parts, label = _chosen(value, reading.image, path), reading.label
    order = pixels.order_of(reading.layout)
    if isinstance(value, dict):
        pixels.refuse_others(value, "", reading.image, path)
    if label is None and isinstance(value, dict):
        pixels.label_beside(value, "", None, path)
    elif label is not None:
        parts = parts._replace(labels=_named(value, label, "label", path)[1] if label else None)
    if parts.offsets is not None:
        samples = _blob(parts.images, parts.offsets, archive, path)
    elif _is_tensor(parts.images) and parts.images.ndim >= 3:
        samples = _array(parts.images, archive, order, path)
    else:
        samples = _each(parts.images, archive, order, path)
    if parts.labels is None:
        return iter(samples)
    return pixels.attach_labels(samples, _labels(parts.labels, len(samples), archive, path))


def load_images(value: Any, archive: TorchFile, path: Path, image: str | None) -> FoundSamples:
    """Keep the images of a list in memory, for images that are bytes."""
    images = _chosen(value, image, path).images
    if not _is_row(images):
        raise OptionError(f"{path}: holds no list of images; read it with access='range'")

    def one(number: int) -> bytes:
        value = images[number]
        if isinstance(value, bytes):
            return value
        begin, size = archive.range_of(value, f"item {number}")
        with files.open_file(path) as file:
            file.seek(begin)
            return file.read(size)

    return FoundSamples(len(images), iter(()), one)


def _chosen(value: Any, image: str | None, path: Path) -> _Parts:
    if image is None:
        return _parts(value)
    around, images = _named(value, image, "image", path)
    return _Parts(images, _first(around, pixels.LABELS))


def _parts(value: Any) -> _Parts:
    if isinstance(value, dict):
        usual = (pixels.IMAGES, pixels.LABELS, pixels.OFFSETS)
        return _Parts(*(_first(value, names) for names in usual))
    if _is_row(value) and value:
        if all(map(_is_pair, value)):
            return _Parts(*zip(*value, strict=True))
        images, last = value[0], value[-1]
        are_labels = _is_row(last) or (_is_tensor(last) and last.ndim in (1, 2))
        are_many = _is_tensor(images) and images.ndim >= 3 and are_labels
        if len(value) == 2 and (_is_row(images) or are_many):
            return _Parts(*value)
    return _Parts(value)


def _first(value: Any, names: Sequence[str]) -> Any:
    return next((value[n] for n in names if n in value), None) if isinstance(value, dict) else None


def _is_pair(value: Any) -> bool:
    if not _is_row(value) or len(value) != 2:
        return False
    image, label = value
    is_bytes = isinstance(image, (bytes, ByteSpan))
    axes = 3 if is_bytes else image.ndim if _is_tensor(image) else 0
    if _is_tensor(label):
        return bool(label.ndim < min(axes, 2))
    return axes > 0 and isinstance(label, (int, float))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _named(value: Any, name: str, option: str, path: Path) -> tuple[Any, Any]:
    """The value that holds the item at a path in the saved value, and the item."""
    if isinstance(value, dict) and name in value:
        return value, value[name]
    around = None
    for step in name.strip("/").split("/"):
        around, there = value, dict(enumerate(value)) if _is_row(value) else value
        key = int(step) if _is_row(value) and step.isdecimal() else step
        if not isinstance(there, dict) or key not in there:
            items = there.items() if isinstance(there, dict) else [(".", there)]
            names = (f"{n} ({_described(v)})" for n, v in items)
            raise unknown_error(option, name, names, path)
        value = there[key]
    return around, value


def _is_row(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _described(value: Any) -> str:
    if _is_tensor(value):
        return f"{value.shape} torch.{value.dtype}"
    return f"{_kind(value)} of {len(value)}" if _is_row(value) else _kind(value)


def _kind(value: Any) -> str:
    return value.name if isinstance(value, Opaque) else type(value).__name__


def _blob(images: Any, offsets: Any, archive: TorchFile, path: Path) -> list[Record[Place]]:
    if not _is_encoded(images) or not _is_tensor(offsets):
        raise NotAPackError(f"{path}: has offsets, but no blob of bytes; {_EXPECTED}")
    begin, size = archive.range_of(images, "the blob")
    return list(pixels.blob_of(archive.array(offsets, "offsets"), begin, size, path, "offsets")[1])


def _is_encoded(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 1 and value.dtype == "uint8"


def _array(
    images: Tensor, archive: TorchFile, order: pixels.Order, path: Path
) -> list[Record[Place]]:
    what = "the tensor of images"
    last = images.permute(0, 2, 3, 1) if images.ndim == 4 else images
    if last.is_contiguous and not images.is_contiguous:  # channels-last memory format
        images, order = last, order._replace(planes=False)
    dtype = archive.pixels(images, what)
    if not pixels.holds_many(images.shape, dtype):
        raise NotAPackError(f"{path}: holds a tensor of {_described(images)}; {_EXPECTED}")
    facts = pixels.facts_of(images.shape[1:], dtype, order, str(path))
    begin, size = archive.range_of(images, what)[0], pixels.size_of(facts)
    return [
        pixels.image_at(b"%08d" % i, path.name, begin + i * size, size, facts)
        for i in range(images.shape[0])
    ]


def _each(images: Any, archive: TorchFile, order: pixels.Order, path: Path) -> list[Record[Place]]:
    if not _is_row(images):
        raise NotAPackError(f"{path}: holds {_kind(images)}; {_EXPECTED}")
    samples = []
    for i, image in enumerate(images):
        what, facts = f"item {i}", None
        if isinstance(image, bytes):
            offset, size = -1, len(image)
        elif isinstance(image, ByteSpan) or _is_encoded(image):
            offset, size = archive.range_of(image, what)
        elif _is_tensor(image) and image.ndim in (2, 3):
            facts = pixels.facts_of(
                image.shape, archive.pixels(image, what), order, f"{path}: {what}"
            )
            offset, size = archive.range_of(image, what)
        else:
            raise NotAPackError(
                f"{path}: {what} is {_kind(image)} ({_described(image)}); {_EXPECTED}"
            )
        samples.append(pixels.image_at(b"%d" % i, path.name, offset, size, facts))
    return samples


def _labels(labels: Any, count: int, archive: TorchFile, path: Path) -> list[pixels.Label]:
    where = f"{path}: label"
    values = archive.array(labels, "label") if _is_tensor(labels) else _array_of(labels, archive)
    if values is None:
        raise NotAPackError(f"{path}: labels are {_kind(labels)}, not a tensor or numbers alike")
    pixels.check_labels(values.shape, values.dtype, count, where)
    return pixels.labels_of(values, where)


def _array_of(labels: Any, archive: TorchFile) -> np.ndarray | None:
    """A list of numbers, or of lists of them, as an array; None if they are not alike."""
    if not _is_row(labels):
        return None
    try:
        each = [archive.array(v, "label").tolist() if _is_tensor(v) else v for v in labels]
        array = np.array(each)
    except (ValueError, OverflowError):
        return None
    return array if array.dtype.kind in "biuf" and array.ndim in (1, 2) else None


_EXPECTED = (
    "packio reads a tensor of pixels, a list of images (encoded, as bytes or 1-D tensors of uint8, "
    "or tensors of pixels), each with labels if there are any, or a dict of them under usual "
    "names; name them with image=… and label=…"
)
