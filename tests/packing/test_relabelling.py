"""Labels go by class name: ints, many-hot vectors and boxes, in every verb that joins packs."""

from __future__ import annotations

import json
import pathlib

import made
import numpy as np
import pytest

import packio
from packio.errors import OptionError
from packio.sample.packed import Sample
from packio.sample.relabelling import Relabelling, check_named


def _coco(folder: pathlib.Path, names: list[str]) -> pathlib.Path:
    """A COCO file of one image with one box a class; the box's height says which class."""
    images = folder / "images"
    images.mkdir(parents=True)
    (images / f"{folder.name}.png").write_bytes(made.png(50, 40))
    height = {"bird": 5, "cat": 10, "dog": 20}
    path = folder / "instances.json"
    path.write_text(json.dumps({
        "images": [{"id": 1, "file_name": f"{folder.name}.png", "width": 50, "height": 40}],
        "categories": [{"id": i, "name": name} for i, name in enumerate(names, 1)],
        "annotations": [
            {"id": i, "image_id": 1, "category_id": i, "bbox": [1, 1, 4, height[name]]}
            for i, name in enumerate(names, 1)
        ],
    }))  # fmt: skip
    return path


def _named_boxes(pack: packio.Pack) -> set[tuple[str, str, int]]:
    return {
        (sample.key, pack.classes[label], int(box[3] - box[1]))
        for sample in pack
        for box, label in zip(sample.boxes, sample.box_labels, strict=True)  # type: ignore[arg-type]  # all have boxes
    }


@pytest.fixture
def coco(tmp_path: pathlib.Path) -> list[pathlib.Path]:
    """Packs of COCO files with the classes [cat, dog] and [bird, cat]."""
    outs = []
    for name, names in (("one", ["cat", "dog"]), ("two", ["bird", "cat"])):
        root = tmp_path / name / "images"
        source = _coco(tmp_path / name, names)
        outs.append(tmp_path / f"{name}.tar")
        packio.pack(source, outs[-1], shards=1, shard_size=1 << 20, root=str(root))
    return outs


_EXPECTED = {("cat", 10), ("dog", 20)}, {("bird", 5), ("cat", 10)}


def _check_coco(path: pathlib.Path) -> None:
    boxes = _named_boxes(packio.open(path))
    found = {(name, height) for key, name, height in boxes if "one" in key}
    assert (found, {(n, h) for key, n, h in boxes if "two" in key}) == _EXPECTED


def test_merging_keeps_the_names_of_boxes(coco: list[pathlib.Path], tmp_path: pathlib.Path) -> None:
    packio.merge(tmp_path / "all.tar", coco)
    assert packio.open(tmp_path / "all.tar").classes == ["cat", "dog", "bird"]
    _check_coco(tmp_path / "all.tar")


def test_appending_keeps_the_names_of_boxes(coco: list[pathlib.Path]) -> None:
    report = packio.append(coco[0], coco[1])
    assert (report.added, report.new_classes) == (1, ("bird",))
    _check_coco(coco[0])


def test_converting_to_other_classes_keeps_the_names_of_boxes(
    coco: list[pathlib.Path], tmp_path: pathlib.Path
) -> None:
    packio.convert(coco[0], tmp_path / "x.tar", classes_from=["bird", "dog", "cat"])
    pack = packio.open(tmp_path / "x.tar")
    assert pack.classes == ["bird", "dog", "cat"]
    assert {(name, height) for _, name, height in _named_boxes(pack)} == _EXPECTED[0]


def test_joined_datasets_keep_the_names_of_boxes(coco: list[pathlib.Path]) -> None:
    parts = [packio.TarDataset(path, fields=("image", "box_labels")) for path in coco]
    joined = packio.ConcatPacks(parts, labels="by_name")
    names = [{joined.classes[i] for i in joined[at][1].tolist()} for at in range(2)]
    assert names == [{"cat", "dog"}, {"bird", "cat"}]
    with pytest.raises(OptionError, match="classes differ"):
        packio.ConcatPacks(parts)


def _hot(numbers: range, vectors: list[list[float]]) -> list[Sample]:
    return [
        Sample(i, f"{i}.png", made.png(4 + i, 3), "png", np.array(v, np.float32), 3, 4 + i)
        for i, v in zip(numbers, vectors, strict=True)
    ]


def _names(path: pathlib.Path) -> list[set[str]]:
    pack = packio.open(path)
    return [{pack.classes[i] for i in np.flatnonzero(v)} for v in pack.labels]  # type: ignore[union-attr]  # it has labels


def test_vectors_go_by_name(tmp_path: pathlib.Path) -> None:
    one, two = tmp_path / "one.tar", tmp_path / "two.tar"
    packio.pack(_hot(range(2), [[1, 0], [1, 1]]), one, shard_size=9, classes_from=["cat", "dog"])
    packio.pack(_hot(range(2, 4), [[1, 0, 1], [0, 1, 0]]), two, shard_size=9,
                classes_from=["red", "zebra", "cat"])  # fmt: skip
    expected = [{"cat"}, {"cat", "dog"}, {"red", "cat"}, {"zebra"}]
    packio.merge(tmp_path / "all.tar", [one, two])
    assert _names(tmp_path / "all.tar") == expected
    packio.append(one, two)
    assert _names(one) == expected
    packio.convert(two, tmp_path / "x.tar", classes_from=["cat", "zebra", "dog", "red"])
    assert _names(tmp_path / "x.tar") == expected[2:]


def test_a_number_without_a_name_is_refused(
    tmp_path: pathlib.Path, image_folder: pathlib.Path
) -> None:
    out = tmp_path / "x.tar"
    packio.pack(image_folder, out, shards=2)
    sample = Sample(0, "new.png", made.png(5, 4), "png", 7, 4, 5)
    with pytest.raises(OptionError, match="numbers without class names"):
        packio.append(out, [sample])
    with pytest.raises(OptionError, match="label 7 has no name"):
        packio.pack([sample], tmp_path / "y.tar", classes_from=["a", "b"])
    with pytest.raises(OptionError, match="label 7 has no name"):
        Relabelling(["a", "b"], ["b", "a"]).positions(np.array([0, 7]))
    assert len(packio.open(out)) == 25


def test_no_class_stays_no_class() -> None:
    moved = Relabelling(["a", "b"], ["c", "b", "a"]).positions(np.array([0, -1, 1]))
    assert moved.tolist() == [2, -1, 1]
    check_named(np.array([-1, 1]), ["a", "b"], "here")


def test_a_class_that_the_new_ones_lack_is_refused() -> None:
    with pytest.raises(OptionError, match="do not name: b"):
        Relabelling(["a", "b"], ["a"])
