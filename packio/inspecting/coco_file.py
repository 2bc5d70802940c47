"""``coco.json``: the boxes of a pack as a COCO file, which `extract` writes beside the images.

Sizes and boxes are those of the upright images. Ids of images, annotations and categories are the
original ones where the pack knows them and each is there once; else they count from 1. What the
metadata says of each box, as ``segmentation``, becomes a member of its annotation again.

Source: COCO, "Data format", https://cocodataset.org/#format-data.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from packio.packing.images import coco_entries, resizing
from packio.packs.opening import Pack

NAME = "coco.json"
_CLOSE = 0.01  # pixels: float32 against the text of the file


class CocoFile:
    """The COCO file of some samples, in pieces.

    Args:
        pack: Its boxes have labels with names.
        chosen: Gives the indices of the samples, in chunks.
    """

    def __init__(self, pack: Pack, chosen: Callable[[], Iterator[np.ndarray]]) -> None:
        self._pack, self._chosen = pack, chosen
        self._categories = _categories(pack)
        images, boxes, names = list[Any](), list[Any](), list[set[str]]()
        for meta, corners in self._samples():
            lists = {n: v for n, v in meta.items() if _is_list(v, len(corners))}
            names.append(set(meta) - set(lists))
            images.append(meta.get("image_id"))
            boxes += lists.get("annotation_id", [None] * len(corners))
        self._of_images = set[str]().union(*names)  # members that are not one value a box
        self._images, self._boxes = _each_once(images), _each_once(boxes)

    def _rows(self) -> Iterator[int]:
        return (row for rows in self._chosen() for row in rows.tolist())

    def _samples(self) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
        """Metadata and boxes, (k, 4) XYXY, of each sample, both upright."""
        for position in self._rows():
            row, meta = self._pack.row(position), self._pack.meta(position) or {}
            stored, boxes = (row.width, row.height), self._pack.boxes(position)[0]
            if row.orientation >= 5 and meta:  # older packs have entries of the stored image
                text = json.dumps(meta).encode()
                meta = json.loads(coco_entries.moved(text, stored, stored, row.orientation))
            corners = np.zeros((0, 4)) if boxes is None else boxes
            yield meta, resizing.moved_boxes(corners, stored, stored, row.orientation)

    def pieces(self) -> Iterator[bytes]:
        """The bytes of the file."""
        named = zip(self._categories, self._pack.classes, strict=True)
        told = json.dumps([{"id": number, "name": name} for number, name in named])
        yield f'{{"categories": {told},\n"images": [\n'.encode()
        yield from _joined(self._image_entries())
        yield b'\n],\n"annotations": [\n'
        yield from _joined(self._annotations())
        yield b"\n]}\n"

    def _image_entries(self) -> Iterator[dict[str, Any]]:
        numbers = iter(self._images)
        for position, (meta, _) in zip(self._rows(), self._samples(), strict=True):
            row = self._pack.row(position)
            size = (row.width, row.height)[:: -1 if row.orientation >= 5 else 1]
            yield {n: v for n, v in meta.items() if n in self._of_images and n != "image_id"} | {
                "id": next(numbers), "file_name": self._pack.key(position),
                "width": size[0], "height": size[1],
            }  # fmt: skip

    def _annotations(self) -> Iterator[dict[str, Any]]:
        images, numbers = iter(self._images), iter(self._boxes)
        for position, (meta, corners) in zip(self._rows(), self._samples(), strict=True):
            image, (_, found) = next(images), self._pack.boxes(position)
            labels = [] if found is None else found.tolist()
            more = self._pack.more_of_boxes(position)
            boxes = np.hstack([corners[:, :2], corners[:, 2:] - corners[:, :2]])
            lists = {n: v for n, v in meta.items() if n not in self._of_images}
            written = lists.pop("bbox", None)
            lists.pop("annotation_id", None)
            for i, box in enumerate(boxes.tolist()):
                yield {
                    "area": more["area"][i].item() if "area" in more else box[2] * box[3],
                    "iscrowd": int(more["crowd"][i]) if "crowd" in more else 0,
                    **{n: v[i] for n, v in lists.items() if v[i] is not None},
                    "id": next(numbers), "image_id": image,
                    "bbox": written[i] if written and _is_near(written[i], box) else box,
                    "category_id": self._categories[labels[i]],
                }  # fmt: skip


def _is_list(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length


def _is_near(written: Any, box: list[float]) -> bool:
    """Whether a box of the metadata is the pack's, but for the rounding of float32."""
    try:
        return np.allclose(written, box, rtol=0, atol=_CLOSE)
    except (TypeError, ValueError):  # no numbers
        return False


def _each_once(numbers: list[Any]) -> list[Any]:
    if None in numbers or len({repr(number) for number in numbers}) < len(numbers):
        return [*range(1, len(numbers) + 1)]
    return numbers


def _categories(pack: Pack) -> list[int]:
    """Id of each class."""
    index, known = pack.index_file, dict[int, int]()
    if "boxes/category_id" in index:
        columns = (index.column(f"boxes/{n}").array().tolist() for n in ("labels", "category_id"))
        known = dict(zip(*columns, strict=True))
    if len({*known.values()}) < len(known):  # of several files, which gave one id to two classes
        known = {}
    others = itertools.count(max(known.values(), default=0) + 1)
    return [known[i] if i in known else next(others) for i in range(len(pack.classes))]


def _joined(entries: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    before = b""
    for entry in entries:
        yield before + json.dumps(entry).encode("ascii")
        before = b",\n"
