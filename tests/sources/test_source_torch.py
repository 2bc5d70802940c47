"""Datasets of Python's are read once, in order, and nothing of their images is lost."""

from __future__ import annotations

import collections
import io
import json
import os
import pathlib
import pickle
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import made
import numpy as np
import pytest
import torch
from PIL import Image

from packio.errors import OutputError, ReadError, SourceError
from packio.images import encodings
from packio.sample.record import Field
from packio.sources._rows import ListedFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType


from packio.sources import Listing

torch_dataset = made.Asked("torch_dataset")


def _pixels(seed: int, *shape: int, dtype: str = "uint8") -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(dtype)


def _jpeg(seed: int) -> bytes:
    return made.saved(_pixels(seed, 9, 8, 3), "JPEG")


def _image(item: made.Made) -> np.ndarray:
    """(H, W, C) pixels of a sample."""
    facts = item.image.facts
    if facts is None:
        array = np.asarray(Image.open(io.BytesIO(item.data)))
        return array if array.ndim == 3 else array[..., None]
    planes = np.frombuffer(item.data, facts.dtype)
    planes = planes.reshape(facts.channels, facts.height, facts.width)
    return np.asarray(planes.transpose(1, 2, 0))


def _metas(listing: Listing) -> list[Any]:
    return [item.meta and json.loads(item.meta) for item in made.read(listing)]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_pixels_of_one_size_are_stored_raw(kind: str, channels: int, dtype: str) -> None:
    images = [_pixels(i, 5, 7, channels, dtype=dtype) for i in range(3)]
    given: list[Any] = images
    if kind == "tensor":
        given = [torch.from_numpy(image).permute(2, 0, 1) for image in images]
    listing = torch_dataset.listing(list(zip(given, [4, 2, 4], strict=True)))
    assert (listing.labels, listing.classes) == ([4, 2, 4], [])
    assert listing.keys == [b"00000000", b"00000001", b"00000002"]
    for item, image in zip(made.read(listing), images, strict=True):
        assert item.facts == encodings.raw_facts(5, 7, channels, dtype)
        assert np.array_equal(_image(item), image)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_pixels_of_several_sizes_are_stored_as_png(channels: int) -> None:
    images = [_pixels(i, 5 + i, 7, channels) for i in range(3)]
    listing = torch_dataset.listing(images)
    assert listing.labels is None
    assert "3 items are pixels, stored as PNG" in listing.warnings[0]
    for item, image in zip(made.read(listing), images, strict=True):
        assert item.image.facts is None
        assert item.data.startswith(b"\x89PNG")
        assert np.array_equal(_image(item), image)


def test_what_png_cannot_hold_is_stored_raw() -> None:
    images = [
        _pixels(0, 5, 7, 3, dtype="float32"), _pixels(1, 6, 7, 3, dtype="uint16"),
        _pixels(2, 6, 7, dtype="uint16"), _pixels(3, 5, 7),
    ]  # fmt: skip
    items = made.read(torch_dataset.listing(images))
    assert [item.image.facts is not None for item in items] == [True, True, False, False]
    for item, image in zip(items, images, strict=True):
        assert np.array_equal(_image(item).squeeze(), image)
        assert _image(item).dtype == image.dtype


@pytest.mark.parametrize(
    ("mode", "stored"),
    [("RGB", "RGB"), ("L", "L"), ("RGBA", "RGBA"), ("LA", "LA"), ("1", "L"), ("P", "RGB"),
     ("CMYK", "RGB"), ("YCbCr", "RGB"), ("I;16", "I;16"), ("I", "I;16"), ("F", "F")],
)  # fmt: skip
def test_pillow_images_keep_their_pixels(mode: str, stored: str) -> None:
    image = Image.fromarray(_pixels(0, 6, 5, 3))
    image = image.convert("I").convert(mode) if mode == "I;16" else image.convert(mode)
    (item,) = made.read(torch_dataset.listing([image]))
    expected = np.asarray(image if mode in ("I", "I;16") else image.convert(stored))
    assert np.array_equal(_image(item).squeeze(), expected)


def test_files_stay_what_they_are(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    files = [tmp_path / name for name in ("a.jpg", "sub/b.jpg", "c.jpg")]
    (tmp_path / "sub").mkdir()
    for i, path in enumerate(files):
        path.write_bytes(_jpeg(i))
    expected = [_jpeg(i) for i in range(3)]
    monkeypatch.chdir(tmp_path)
    forms: list[list[Any]] = [
        files, ["a.jpg", "sub/b.jpg", "c.jpg"], [{"path": str(path)} for path in files],
        [{"bytes": path.read_bytes(), "path": path.name} for path in files],
    ]  # fmt: skip
    for form in forms:
        listing = torch_dataset.listing(form)
        assert [item.data for item in made.read(listing)] == expected
        assert listing.keys[0] == b"a.jpg"
        assert listing.warnings == []
    listing = torch_dataset.listing([(path.read_bytes(), "x") for path in files])
    assert [item.data for item in made.read(listing)] == expected
    assert listing.keys == [b"%08d" % i for i in range(3)]
    assert (listing.labels, listing.classes) == ([0, 0, 0], ["x"])


def test_files_and_pixels_go_together() -> None:
    pixels = _pixels(0, 9, 8, 3)
    listing = torch_dataset.listing([_jpeg(1), pixels, pixels])
    first, second, _ = made.read(listing)
    assert first.data == _jpeg(1)
    assert second.image.facts is None
    assert np.array_equal(_image(second), pixels)


def test_mappings_have_all_fields() -> None:
    ids = _pixels(1, 4, 6) % 9
    samples = [
        {
            "img": _pixels(i, 4, 6, 3),
            "Class": torch.tensor(i),
            "mask": torch.from_numpy(ids)[None],
            "boxes": [[0, 1, 2, 3], [1, 1, 2, 2.5]],
            "box_labels": torch.tensor([3, 4]),
            "__key__": f"part/{i}",
            "__url__": "somewhere",
            "score": np.float32(0.5),
            "meta": {"when": [1, None]},
            "nothing": None,
        }
        for i in range(2)
    ]
    listing = torch_dataset.listing(samples)
    assert listing.keys == [b"part/0", b"part/1"]
    assert listing.labels == [0, 1]
    for i, item in enumerate(made.read(listing)):
        assert np.array_equal(_image(item), samples[i]["img"])
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(item.mask_data or b""))), ids)
        assert item.boxes is not None
        assert item.boxes.tolist() == [[0, 1, 2, 3], [1, 1, 2, 2.5]]
        assert item.box_labels is not None
        assert item.box_labels.tolist() == [3, 4]
        assert json.loads(item.meta or b"") == {"score": 0.5, "when": [1, None]}


def test_a_mapping_in_a_tuple_is_detection() -> None:
    targets = [
        {"boxes": torch.zeros(2, 4), "labels": torch.tensor([1, 2]), "image_id": 7},
        {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64), "image_id": 8},
    ]
    listing = torch_dataset.listing([(_pixels(0, 4, 4, 3), target) for target in targets])
    assert listing.labels is None
    items = made.read(listing)
    assert [len(item.boxes if item.boxes is not None else "?") for item in items] == [2, 0]
    assert [item.box_labels.tolist() for item in items if item.box_labels is not None] == [
        [1, 2],
        [],
    ]
    assert _metas(listing) == [{"image_id": 7}, {"image_id": 8}]


@pytest.mark.parametrize("kind", ["palette", "array", "tensor", "bytes"])
def test_a_picture_in_second_place_is_a_mask(kind: str) -> None:
    ids = (_pixels(1, 4, 6) % 4).astype(np.uint8)
    ids[0, 0] = 255
    palette = Image.fromarray(ids).convert("P")
    palette.putdata(ids.reshape(-1).tolist())
    file = io.BytesIO()
    palette.save(file, "PNG")
    masks = {"palette": palette, "array": ids.astype(np.int64), "tensor": torch.from_numpy(ids),
             "bytes": file.getvalue()}  # fmt: skip
    (item,) = made.read(torch_dataset.listing([(_pixels(0, 4, 6, 3), masks[kind])]))
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(item.mask_data or b""))), ids)


def test_wide_masks_have_16_bits() -> None:
    ids = np.array([[0, 300], [65535, 1]])
    (item,) = made.read(torch_dataset.listing([(_pixels(0, 2, 2, 3), ids)]))
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(item.mask_data or b""))), ids)


def test_further_members_of_a_tuple_are_meta() -> None:
    samples = [(_pixels(0, 2, 2, 3), 1, "text", [2, 3]), (_pixels(1, 2, 2, 3), 2)]
    listing = torch_dataset.listing(samples)
    assert _metas(listing) == [{"2": "text", "3": [2, 3]}, {}]


@pytest.mark.parametrize(
    ("captions", "kind"),
    [((None, " ", "a cat", "see b.png"), "text"), (("see b.png", "see c.png"), "image")],
)
def test_the_first_text_tells_for_all_whether_texts_are_paths(
    captions: tuple[str | None, ...], kind: str, tmp_path: pathlib.Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("see b.png", "see c.png"):
        pathlib.Path(name).write_bytes(f"file {name}".encode())
    items = [{"image": _jpeg(0), "caption": text} for text in captions]
    listing = torch_dataset.listing(items, fields={"caption": ("caption", None)})
    values = [text and Field(kind, (("file " if kind == "image" else "") + text).encode())
              for text in captions]  # fmt: skip
    assert [item.fields.get("caption") for item in made.read(listing)] == values


def test_what_makes_no_sense_is_listed_with_its_reason() -> None:
    good = _pixels(0, 4, 4, 3)
    bad: list[tuple[Any, str]] = [
        ((), "an empty tuple"),
        ((3, 4), "a int as image"),
        ({"label": 1}, "no image among 'label'"),
        (_pixels(0, 3, 32, 32), r"shape (3, 32, 32); expected (H, W, C) of an array"),
        (torch.zeros(8, 3, 4, 4, dtype=torch.uint8), "a batch? Give the dataset, not its loader"),
        (torch.zeros(3, 4, 4, dtype=torch.int64), "pixels are int64"),
        (np.zeros((0, 4, 3), np.uint8), "shape (0, 4, 3)"),
        (Image.fromarray(np.full((2, 2), 70000, np.int32)), "pixels are 32-bit integers"),
        ("nowhere.jpg", "No such file"),
        ({"bytes": None}, "neither bytes nor a path"),
        ((good, object()), "a object as label"),
        ({"image": good, "boxes": [1, 2, 3]}, "boxes have the shape (3,)"),
        (
            {"image": good, "boxes": [[1, 2, 3, 4]], "box_labels": ["red"]},
            "'box_labels', the labels of boxes, are names; expected 1 integers: positions in",
        ),
        ({"image": good, "boxes": [[1, 2, 3, 4]], "labels": [1, 2]}, "expected 1 integers"),
        ({"image": good, "mask": b"no image"}, "no image that Pillow can identify"),
        ({"image": good, "mask": np.full((4, 4), -1)}, "a mask with ids -1..-1"),
        ({"image": good, "mask": np.zeros((4, 4), np.float32)}, "a mask of float32 (4, 4)"),
        ({"image": good, "key": ""}, "'' as key"),
        ({"image": good, "extra": {1, 2}}, "set {1, 2}; JSON cannot hold it"),
    ]
    listing = torch_dataset.listing([good, *(sample for sample, _ in bad), good])
    assert listing.keys == [b"00000000", b"%08d" % (len(bad) + 1)]
    assert [key for key, _ in listing.unlisted] == [b"%08d" % i for i in range(1, len(bad) + 1)]
    for (_, reason), (_, expected) in zip(listing.unlisted, bad, strict=True):
        assert expected in reason
    with pytest.raises(SourceError, match="list: none of 1 items can be packed; the first: an emp"):
        torch_dataset.listing([()])
    with pytest.raises(SourceError, match="list: none of 0 items can be packed"):
        torch_dataset.listing([])


class _Dataset(torch.utils.data.Dataset[Any]):
    """Counts what is asked of it; some items fail."""

    def __init__(self, count: int, fails: tuple[int, ...] = ()) -> None:
        self.count, self.fails, self.asked = count, fails, list[int]()
        self.classes = ["p", "q"]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        self.asked.append(i)
        if i in self.fails:
            raise RuntimeError(f"no {i} here")
        return torch.from_numpy(_pixels(i, 3, 4, 4)), i % 2


def test_every_item_is_asked_for_once_in_order() -> None:
    dataset = _Dataset(20, fails=(3, 7))
    listing = torch_dataset.listing(dataset)
    assert dataset.asked == list(range(20))
    assert listing.unlisted == [
        (b"00000003", "RuntimeError: no 3 here"), (b"00000007", "RuntimeError: no 7 here"),
    ]  # fmt: skip
    assert listing.classes == ["p", "q"]
    positions = [i for i in range(20) if i not in (3, 7)]
    assert listing.labels == [i % 2 for i in positions]
    for i, item in zip(positions, made.read(listing), strict=True):
        assert np.array_equal(_image(item).transpose(2, 0, 1), _pixels(i, 3, 4, 4))


def test_names_of_classes_go_with_the_labels() -> None:
    subset = torch.utils.data.Subset(_Dataset(8), [1, 3, 4])
    listing = torch_dataset.listing(subset)
    assert (listing.labels, listing.classes) == ([1, 1, 0], ["p", "q"])
    assert torch_dataset.listing(subset, classes=["q", "x", "p"]).labels == [0, 0, 2]
    with pytest.raises(SourceError, match=r"Subset: 1 class\(es\) that --classes-from .*: p"):
        torch_dataset.listing(subset, classes=["q"])
    other = _Dataset(4)
    other.classes = ["only"]
    listing = torch_dataset.listing(other)
    assert (listing.labels, listing.classes) == ([0, 1, 0, 1], [])
    assert "labels do not fit the 1 classes of the dataset" in listing.warnings[0]


class _Listed(list[Any]):
    """A dataset with names of classes."""

    features: Any = None

    def __init__(self, labels: Iterable[Any], classes: list[str]) -> None:
        super().__init__({"image": _pixels(0, 2, 2, 3), **_labelled(label)} for label in labels)
        self.classes = classes


def _labelled(label: Any) -> dict[str, Any]:
    return label if isinstance(label, dict) else {"label": label}


def _boxed(*labels: int) -> dict[str, Any]:
    return {"boxes": [[0, 0, 1, 1]] * len(labels), "box_labels": list(labels)}


def _box_labels(listing: Listing) -> list[list[int]]:
    return [item.box_columns["labels"].tolist() for item in made.read(listing)]


def test_names_of_classes_go_with_the_labels_of_boxes() -> None:
    listing = torch_dataset.listing(_Listed([_boxed(1), _boxed(0, 1), _boxed()], ["p", "q"]))
    assert (listing.labels, listing.classes, listing.warnings[1:]) == (None, ["p", "q"], [])
    assert _box_labels(listing) == [[1], [0, 1], []]
    for labels, expected in (
        ([_boxed(1), _boxed(0)], None),
        ([_boxed(1) | {"label": 1}, _boxed(0) | {"label": 0}], [0, 2]),
    ):
        listing = torch_dataset.listing(_Listed(labels, ["p", "q"]), classes=["q", "x", "p"])
        assert (listing.labels, listing.classes) == (expected, ["q", "x", "p"])
        assert _box_labels(listing) == [[0], [2]]  # fmt: skip
    listing = torch_dataset.listing(_Listed([_boxed(2)], ["p", "q"]))
    assert (listing.classes, _box_labels(listing)) == ([], [[2]])
    assert "labels do not fit the 2 classes of the dataset" in listing.warnings[0]


@pytest.mark.parametrize("number", [int, bool, float, np.float32, np.uint8])
def test_a_number_for_each_class_is_many_hot(number: Any) -> None:
    rows = [[0, 1, 0], [1, 0, 1], [0, 0, 0]]
    labels = [[number(n) for n in row] for row in rows]
    for given in (labels, [np.array(row) for row in labels]):
        listing = torch_dataset.listing(_Listed(given, ["p", "q", "r"]))
        assert (np.asarray(listing.labels).tolist(), listing.classes) == (rows, ["p", "q", "r"])
    listing = torch_dataset.listing(_Listed(labels, ["p", "q", "r"]), classes=["q", "x", "r", "p"])
    assert np.asarray(listing.labels).tolist() == [[1, 0, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]]


def test_lists_of_other_numbers_are_positions_of_classes() -> None:
    listing = torch_dataset.listing(_Listed([[0, 1], [2], []], ["p", "q", "r"]))
    assert np.asarray(listing.labels).tolist() == [[1, 1, 0], [0, 0, 1], [0, 0, 0]]


@pytest.mark.parametrize("label", [[0, 2, 0], [0, 1], [3], [0.5, 0.5], [0, 1, 0, 1], []])
def test_lists_that_are_neither_are_refused(label: list[float]) -> None:
    with pytest.raises(SourceError, match=r"item 0: the label is \[0, 1, 0\]; there are 3 classes"):
        torch_dataset.listing(_Listed([[0, 1, 0], label], ["p", "q", "r"]))


def test_hugging_faces_lists_of_numbers_are_positions() -> None:
    dataset = _Listed([[0, 1], [1], []], ["not", "these"])
    for feature in ([_ClassLabel()], SimpleNamespace(feature=_ClassLabel())):
        dataset.features = {"image": None, "label": feature}
        listing = torch_dataset.listing(dataset)
        assert np.asarray(listing.labels).tolist() == [[1, 1], [0, 1], [0, 0]]
        assert listing.classes == ["cat", "dog"]


def test_the_same_dataset_has_the_same_version() -> None:
    images = [_pixels(i, 4, 4, 3) for i in range(3)]
    version = torch_dataset.listing(images).version
    assert torch_dataset.listing(iter(images)).version == version
    images[1][0, 0, 0] ^= 1
    assert torch_dataset.listing(images).version != version


class _Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for i in range(5):
            yield {"image": _pixels(i, 4, 4, 3), "label": i}

    def __len__(self) -> int:
        return 5


def test_what_can_only_be_iterated_over_is_a_dataset() -> None:
    def generator(stop: int) -> Iterator[Any]:
        for i in range(stop):
            yield _pixels(i, 4, 4, 3)
        if stop == 3:
            raise OSError("the line is dead")

    assert torch_dataset.listing(_Stream()).labels == [0, 1, 2, 3, 4]
    listing = torch_dataset.listing(generator(6))
    assert [_image(item).tolist() for item in made.read(listing)] == [
        _pixels(i, 4, 4, 3).tolist() for i in range(6)
    ]
    with pytest.raises(SourceError, match="generator: OSError after item 2: the line is dead"):
        torch_dataset.listing(generator(3))


def test_arrays_and_tensor_datasets_are_datasets() -> None:
    images = _pixels(0, 5, 6, 7, 3)
    listing = torch_dataset.listing(images)
    assert np.array_equal([_image(item) for item in made.read(listing)], images)
    tensors = torch.utils.data.TensorDataset(
        torch.from_numpy(images).permute(0, 3, 1, 2), torch.arange(5)
    )
    assert made.read(torch_dataset.listing(tensors)) == made.read(listing)
    with pytest.raises(SourceError, match="Give the dataset, not its loader"):
        torch_dataset.listing(torch.utils.data.DataLoader(tensors, batch_size=2))


def test_torchvisions_datasets(torchvision: ModuleType, image_folder: pathlib.Path) -> None:
    dataset = torchvision.datasets.ImageFolder(image_folder)
    listing = torch_dataset.listing(dataset)
    assert listing.classes == dataset.classes
    assert listing.labels == dataset.targets
    for item, key, (path, _) in zip(made.read(listing), listing.keys, dataset.samples, strict=True):
        assert item.data == pathlib.Path(path).read_bytes()
        assert key == os.fsencode(os.path.relpath(path, image_folder))
    part = torch_dataset.listing(torch.utils.data.Subset(dataset, [5, 2]))
    assert part.keys == [listing.keys[5], listing.keys[2]]
    grey = torchvision.transforms.v2.Grayscale()
    changed = torchvision.datasets.ImageFolder(image_folder, transform=grey)
    assert "are pixels" in torch_dataset.listing(changed).warnings[0]
    fake = torchvision.datasets.FakeData(
        4, (3, 8, 9), 3, transform=torchvision.transforms.v2.ToImage()
    )
    listing = torch_dataset.listing(fake)
    assert [item.image.facts is not None for item in made.read(listing)] == [True] * 4
    boxes = torchvision.tv_tensors.BoundingBoxes([[1, 1, 2, 2]], format="XYWH", canvas_size=(8, 9))
    listing = torch_dataset.listing([fake[0][0], {"image": fake[0][0], "boxes": boxes}])
    assert "boxes are BoundingBoxFormat.XYWH; expected XYXY" in listing.unlisted[0][1]


class _ClassLabel:
    names = ("cat", "dog")


class _ImageFeature:
    """As ``datasets.Image``."""

    def __init__(self, *, decode: bool) -> None:
        self.decode = decode


_ImageFeature.__name__ = "Image"


class _HuggingFace:
    """What packio uses of ``datasets.Dataset``, which is not installed for tests."""

    format: dict[str, Any] = {"type": None}  # noqa: RUF012 (as it is there)

    def __init__(self, *, decode: bool) -> None:
        self._decode = decode
        self.features = {"image": _ImageFeature(decode=decode), "label": _ClassLabel()}

    def cast_column(self, name: str, feature: Any) -> _HuggingFace:
        assert name == "image"
        return _HuggingFace(decode=feature.decode)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> Any:
        image: Any = {"bytes": _jpeg(i), "path": None}
        if self._decode:
            image = Image.open(io.BytesIO(_jpeg(i)))
        return {"image": image, "label": i % 2}


def test_hugging_faces_images_are_not_decoded() -> None:
    listing = torch_dataset.listing(_HuggingFace(decode=True))
    assert [item.data for item in made.read(listing)] == [_jpeg(i) for i in range(3)]
    assert (listing.labels, listing.classes) == ([0, 1, 0], ["cat", "dog"])


def test_keys_that_repeat_are_refused() -> None:
    samples = [{"image": _pixels(i, 2, 2, 3), "key": key} for i, key in enumerate("aba")]
    with pytest.raises(SourceError, match="list: item 2 has the key 'a', as item 0 has"):
        torch_dataset.listing(samples)


def test_keys_are_text_or_bytes() -> None:
    named: list[tuple[str, Any]] = [("key", "a/1"), ("key", b"a/2"), ("__key__", b"\xff.png")]
    listing = torch_dataset.listing([{"image": _pixels(1, 2, 2, 3), n: key} for n, key in named])
    assert listing.keys == [b"a/1", b"a/2", b"\xff.png"]
    assert all(list(item.fields) == ["image"] for item in made.read(listing))


@pytest.mark.parametrize("key", ["", b"", "a\0b", b"a\0b"])
def test_keys_that_are_none_are_refused(key: str | bytes) -> None:
    with pytest.raises(SourceError, match="as key; expected text"):
        torch_dataset.listing([{"image": _pixels(1, 2, 2, 3), "key": key}])


def test_several_splits_are_refused() -> None:
    with pytest.raises(SourceError, match="a mapping with 'train', 'test'; expected one dataset"):
        torch_dataset.listing({"train": [], "test": []})


@pytest.mark.parametrize(
    ("source", "accepted"),
    [
        ([1], True), (np.zeros((2, 2)), True), (iter([]), True), (_Dataset(1), True), ({}, True),
        (collections.deque(), True), ("text", False), (b"x", False), (3, False), (None, False),
        (_Dataset, False), (len, False),
    ],
)  # fmt: skip
def test_only_datasets_are_accepted(source: Any, accepted: bool) -> None:
    assert torch_dataset.accepts(source) is accepted


_MODULE = """
import pathlib
import numpy as np
images = [np.full((2, 3, 3), i, np.uint8) for i in range(4)]
class Data:
    def __len__(self): return 4
    def __getitem__(self, i): import helper_of_mine; return images[i], helper_of_mine.label(i)
def make(): return Data()
def fails(): raise ValueError("not today")
number = 3
class deep: data = images
"""


def test_a_module_and_an_object_are_a_source(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    (tmp_path / "data_of_mine.py").write_text(_MODULE)
    (tmp_path / "helper_of_mine.py").write_text("def label(i): return i + 5\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    for name in ("Data", "make"):
        assert torch_dataset.recognise(f"data_of_mine:{name}")
        assert torch_dataset.listing(f"data_of_mine:{name}").labels == [5, 6, 7, 8]
    for name in ("images", "deep.data"):
        assert len(torch_dataset.listing(f"data_of_mine:{name}").keys) == 4
    for name, message in (
        ("data_of_mine:fails", "ValueError: not today"),
        ("data_of_mine:nothing", "AttributeError: .* has no attribute 'nothing'"),
        ("data_of_mine:number", "a int; expected a dataset"),
        ("nobodys_module:x", "ModuleNotFoundError: No module named 'nobodys_module'"),
    ):
        with pytest.raises(SourceError, match=f"{name}: {message}"):
            torch_dataset.listing(name)
    assert sys.path == before


@pytest.mark.parametrize(
    "text", ["folder", "a/b:c", "a:b/c", "http://x", "a:", ":b", "a:1", "a b:c"]
)
def test_other_texts_are_no_objects(text: str) -> None:
    assert not torch_dataset.recognise(text)


def test_a_file_is_no_object(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert torch_dataset.recognise("a:b")
    (tmp_path / "a:b").touch()
    assert not torch_dataset.recognise("a:b")


_OTHER_PROCESS = """
import pickle, sys
rows, opened = pickle.load(sys.stdin.buffer)
with opened(rows) as read:
    print(*(read(i).image.data.hex() for i in range(len(rows))))
"""


def test_another_process_reads_the_same() -> None:
    listing = torch_dataset.listing([_jpeg(i) for i in range(6)])
    part = listing.part(range(2, 5))
    assert part.rows is not None
    command = [sys.executable, "-c", _OTHER_PROCESS]
    sent = pickle.dumps((part.rows, part.open))
    done = subprocess.run(command, input=sent, capture_output=True, check=True)
    assert done.stdout.split() == [_jpeg(i).hex().encode() for i in (2, 3, 4)]
    del listing, part
    with pytest.raises(ReadError, match="the process that listed the samples has to live"):
        ListedFile(f"/proc/{os.getpid()}/fd/99999", 0, 0).open().__enter__()


def test_nothing_is_left_in_the_folder(tmp_path: pathlib.Path) -> None:
    listing = torch_dataset.listing([_jpeg(0)], scratch=tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert made.read(listing)[0].data == _jpeg(0)
    with pytest.raises(OutputError, match=r"No such file .* TMPDIR"):
        torch_dataset.listing([_jpeg(0)], scratch=tmp_path / "nowhere")


_FULL = """
import resource, signal, numpy as np
from packio.sources import Context
from packio.sources.torch_dataset import SOURCE
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    SOURCE.listing(np.zeros((60, 32, 32, 3), np.uint8), Context())
except Exception as error:
    print(type(error).__name__, error)
import sys
print("torch" in sys.modules)
"""


def test_a_full_disk_is_an_error_and_torch_is_not_imported() -> None:
    error, imported = made.in_a_process(_FULL).splitlines()
    assert error.startswith("OutputError")
    assert "File too large while samples were put aside" in error
    assert imported == "False"
