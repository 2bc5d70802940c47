"""``packio.coco.json``: the boxes of a pack as a COCO file, which `extract` writes.

Sizes and boxes are those of the upright images. Ids of images, annotations and categories are the
original ones where the pack knows them and each is there once; else they count from 1. What the
metadata says of each box, as ``segmentation``, becomes a member of its annotation again, if the
metadata has the same box.

Source: COCO, "Data format", https://cocodataset.org/#format-data.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from packio.packing.images import resizing
from packio.packs.opening import Pack

NAME = "packio.coco.json"
_IN_PIXELS = {"area", "keypoints", "segmentation"}  # members of an annotation
_CLOSE = 0.01  # pixels: float32 against the text of the file


class _Upright(NamedTuple):
    position: int
    size: tuple[int, int]  # width, height
    meta: dict[str, Any]
    boxes: list[list[float]]  # x, y, width, height


def pieces(pack: Pack, chosen: Callable[[], Iterator[np.ndarray]]) -> Iterator[bytes]:
    """The bytes of the file.

    Args:
        pack: Its boxes have labels with names.
        chosen: Gives the indices of the samples, in chunks.
    """
    images, boxes, of_image = list[Any](), list[Any](), set[str]()
    for sample in _samples(pack, chosen):
        count = len(sample.boxes)
        lists = {n for n, v in sample.meta.items() if isinstance(v, list) and len(v) == count}
        of_image |= sample.meta.keys() - lists
        images.append(sample.meta.get("image_id"))
        boxes += sample.meta["annotation_id"] if "annotation_id" in lists else [None] * count
    ids, numbers, categories = _each_once(images), iter(_each_once(boxes)), _categories(pack)

    def image_entries() -> Iterator[dict[str, Any]]:
        for number, (position, size, meta, _) in zip(ids, _samples(pack, chosen), strict=True):
            own = {"id": number, "file_name": pack.key(position), "width": size[0]}
            others = {n: v for n, v in meta.items() if n in of_image and n != "image_id"}
            yield {**others, **own, "height": size[1]}

    def annotations() -> Iterator[dict[str, Any]]:
        for number, (position, _, meta, found) in zip(ids, _samples(pack, chosen), strict=True):
            more, labels = pack.more_of_boxes(position), pack.boxes(position)[1]
            lists = {n: v for n, v in meta.items() if n not in of_image and n != "annotation_id"}
            for i, box in enumerate(found):
                told = {n: v[i] for n, v in lists.items() if v[i] is not None}
                if not _is_near(told.get("bbox"), box):  # of another image or frame
                    told = {n: v for n, v in told.items() if n not in _IN_PIXELS} | {"bbox": box}
                told.setdefault(
                    "area", float(more["area"][i]) if "area" in more else box[2] * box[3]
                )
                told.setdefault("iscrowd", int(more["crowd"][i]) if "crowd" in more else 0)
                told |= {"id": next(numbers), "image_id": number}
                yield {**told, "category_id": categories[np.asarray(labels)[i]]}

    told = [{"id": i, "name": name} for i, name in zip(categories, pack.classes, strict=True)]
    yield f'{{"categories": {json.dumps(told)},\n"images": [\n'.encode()
    yield from _joined(image_entries())
    yield b'\n],\n"annotations": [\n'
    yield from _joined(annotations())
    yield b"\n]}\n"


def _samples(pack: Pack, chosen: Callable[[], Iterator[np.ndarray]]) -> Iterator[_Upright]:
    for position in (row for rows in chosen() for row in rows.tolist()):
        row, meta = pack.row(position), pack.meta(position) or {}
        stored, turn, found = (row.width, row.height), row.orientation, pack.boxes(position)[0]
        boxes = np.zeros((0, 4)) if found is None else found
        boxes = resizing.moved_boxes(boxes, stored, stored, turn)
        boxes[:, 2:] -= boxes[:, :2]
        yield _Upright(position, stored[::-1] if turn >= 5 else stored, meta, boxes.tolist())


def _is_near(written: Any, box: list[float]) -> bool:
    """Whether a box of the metadata is the pack's, but for the rounding of float32."""
    try:
        return len(written) == 4 and np.allclose(written, box, rtol=0, atol=_CLOSE)
    except (TypeError, ValueError):  # no numbers
        return False


def _each_once(ids: list[Any]) -> list[Any]:
    is_good = None not in ids and len({repr(number) for number in ids}) == len(ids)
    return ids if is_good else [*range(1, len(ids) + 1)]


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
