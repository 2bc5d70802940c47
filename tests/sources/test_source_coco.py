"""A COCO file gives its images with boxes, labels and all else; what is wrong in it is told."""

from __future__ import annotations

import json
import os
import pathlib
from typing import TYPE_CHECKING, Any

import made
import numpy as np
import pytest

import packio
from packio.errors import BadImagesError, OptionError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable

coco = made.Asked("coco")


def _annotation(number: int, image: int, category: int, box: list[float]) -> dict[str, Any]:
    x, y, w, h = box
    return {
        "id": number, "image_id": image, "category_id": category, "bbox": box, "area": w * h,
        "iscrowd": number % 2, "segmentation": [[x, y, x + w, y, x + w, y + h]],
    }  # fmt: skip


def _dataset() -> dict[str, Any]:
    """As COCO's: ids in no order, gaps in the categories, and an image without annotations."""
    return {
        "info": {"year": 2017},
        "licenses": [{"id": 3, "name": "CC"}],
        "images": [
            {"id": 139, "file_name": "b.jpg", "width": 64, "height": 48, "license": 3},
            {"id": 9, "file_name": "a.jpg", "width": 64, "height": 48, "coco_url": "http://x/é"},
            {"id": 25, "file_name": "sub/c.jpg", "width": 64, "height": 48},
        ],
        "annotations": [
            _annotation(900, 139, 90, [1.5, 2.25, 10.1, 20.0]),
            _annotation(2, 9, 1, [0, 0, 64, 48]),
            _annotation(1, 139, 3, [0.1, 0.2, 0.3, 0.4]),
        ],
        "categories": [
            {"id": 90, "name": "toothbrush", "supercategory": "indoor"},
            {"id": 1, "name": "person", "supercategory": "person"},
            {"id": 3, "name": "car", "supercategory": "vehicle"},
        ],
    }


def _written(
    root: pathlib.Path, data: dict[str, Any], name: str = "annotations/instances_val2017.json"
) -> pathlib.Path:
    """The annotations, and an image for each entry beside them, in ``val2017``."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))
    for entry in data["images"]:
        image = root / "val2017" / entry["file_name"]
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(b"%d" % entry["id"])
    return path


def _metas(items: Iterable[made.Made]) -> list[dict[str, Any]]:
    return [json.loads(item.meta or b"") for item in items]


def test_boxes_labels_and_meta_are_those_of_the_file(tmp_path: pathlib.Path) -> None:
    data = _dataset()
    path = _written(tmp_path, data)
    assert coco.recognise(path)
    assert coco.recognise(path)
    found = coco.listing(path)
    assert found.keys == [b"a.jpg", b"sub/c.jpg", b"b.jpg"]  # by id: 9, 25, 139
    assert found.classes == ["person", "car", "toothbrush"]
    assert (found.labels, found.sizes, found.warnings) == (None, [1, 2, 3], [])
    items = made.read(found)
    assert [item.data for item in items] == [b"9", b"25", b"139"]
    for item, meta in zip(items, _metas(items), strict=True):
        image = dict(next(i for i in data["images"] if i["id"] == meta["image_id"]))
        entries = [a for a in data["annotations"] if a["image_id"] == meta["image_id"]]
        assert item.boxes is not None
        assert item.box_labels is not None
        assert [item.boxes.dtype.name, item.box_labels.dtype.name] == ["float32", "int64"]
        assert item.boxes.shape == (len(entries), 4)
        wanted = [(x, y, x + w, y + h) for x, y, w, h in (a["bbox"] for a in entries)]
        assert np.array_equal(item.boxes, np.array(wanted, np.float32).reshape(-1, 4))
        names = {c["id"]: c["name"] for c in data["categories"]}
        assert [found.classes[i] for i in item.box_labels] == [
            names[a["category_id"]] for a in entries
        ]
        assert meta.pop("annotation_id") == [a["id"] for a in entries]
        for field in ("category_id", "bbox", "area", "iscrowd", "segmentation"):
            assert meta.pop(field) == [a[field] for a in entries]
        assert meta.pop("image_id") == image.pop("id")
        assert meta == image


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("annotations/instances_train2017.json", "train2017"),
        ("annotations/instances_train2017.json", "images/train2017"),
        ("annotations/instances_train2017.json", "images"),
        ("instances_train2017.json", "train2017"),
        ("annotations/person_keypoints.json", "keypoints"),
        ("train/_annotations.coco.json", "train"),
        ("annotations/train.json", "train"),
        ("annotations/train.json", ""),
        ("labels.json", "data/images"),
    ],
)
def test_the_images_are_found_beside_the_file(
    tmp_path: pathlib.Path, name: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _written(tmp_path / "s", _dataset(), name)
    (tmp_path / "s" / folder).parent.mkdir(exist_ok=True)
    for file in ("a.jpg", "b.jpg", "sub/c.jpg"):
        target = tmp_path / "s" / folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "s/val2017" / file).rename(target)
    if folder == "data/images":
        with pytest.raises(OptionError, match="name their folder by --root"):
            coco.listing(path)
        with pytest.raises(OptionError, match="name their folder by --root"):
            coco.listing(path, root=tmp_path)
        return
    assert len(made.read(coco.listing(path))) == 3
    monkeypatch.chdir(path.parent)
    assert len(made.read(coco.listing(path.name))) == 3


def test_classes_can_be_given(tmp_path: pathlib.Path) -> None:
    path = _written(tmp_path, _dataset())
    given = ["toothbrush", "other", "person", "car"]
    found = coco.listing(path, classes=given)
    assert found.classes == given
    labels = [item.box_labels for item in made.read(found)]
    assert [[] if x is None else x.tolist() for x in labels] == [[2], [], [0, 3]]
    with pytest.raises(SourceError, match="--classes-from does not name: person, toothbrush"):
        coco.listing(path, classes=["car"])


def test_what_is_wrong_is_counted(tmp_path: pathlib.Path) -> None:
    data = _dataset()
    data["categories"] += [{"id": 4, "name": "car"}]
    data["annotations"] += [
        _annotation(3, 77, 1, [0, 0, 1, 1]),
        _annotation(4, 9, 77, [0, 0, 1, 1]),
        _annotation(5, 9, 1, [0, 0, 0, 1]),
        _annotation(6, 9, 1, [5, 5, -1, 1]),
        _annotation(5, 9, 1, [0, 0, 7, 7]),
        _annotation(7, 9, 1, [0, 0, 1, 1]) | {"bbox": [1, 2, 3]},
        _annotation(8, 9, 1, [0, 0, 1, 1]) | {"bbox": [1, 2, 3, "4"]},
        _annotation(8, 9, 1, [0, 0, 1, 1]) | {"bbox": [1, 2, 3, float("nan")]},
        _annotation(8, 9, 1, [0, 0, 1, 1]) | {"bbox": [1, 2, 3, 10**400]},
        *(
            _annotation(8, 9, 1, [0, 0, 1, 1]) | {"bbox": bad}
            for bad in (["1", "2", "10", "10"], "[1, 2, 10, 10]", [], None)
        ),
        {"id": 9, "image_id": 9, "category_id": 1},
        {"id": 10, "image_id": [9], "category_id": {}},
    ]
    found = coco.listing(_written(tmp_path, data))
    assert found.warnings == []
    more = "10 annotations of this image are bad"
    assert [(key.decode(), reason) for key, reason in found.unlisted] == [
        ("image_id 77", "annotation 3 is of an image that is not in the file"),
        ("a.jpg", f"annotation 4 has the category_id 77, which no category has; {more}"),
        ("image_id '[9]'", "annotation 10 is of an image that is not in the file"),
    ]
    assert found.classes == ["person", "car (3)", "car (4)", "toothbrush"]
    assert [os.fsdecode(key) for key in found.keys] == ["sub/c.jpg", "b.jpg"]


def test_two_of_one_id_are_refused(tmp_path: pathlib.Path) -> None:
    for what, entry in (("images", {"id": 9, "file_name": "b"}), ("categories", {"id": "1"})):
        data = _dataset()
        data[what].append(entry)
        with pytest.raises(SourceError, match=rf"{what}: .* have the same id, {entry['id']}; "):
            coco.listing(_written(tmp_path / what, data))


def test_bad_annotations_are_refused_unless_skipping(
    image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    names = sorted(os.path.relpath(p, image_folder) for p in image_folder.rglob("*.jpg"))[:3]
    images = [{"id": i, "file_name": name} for i, name in enumerate(names)]
    annotations = [
        _annotation(1, 0, 1, [0, 0, 1, 1]), _annotation(2, 1, 77, [0, 0, 1, 1]),
        _annotation(3, 88, 1, [0, 0, 1, 1]),
    ]  # fmt: skip
    path = tmp_path / "x.json"
    path.write_text(json.dumps(_dataset() | {"images": images, "annotations": annotations}))
    with pytest.raises(BadImagesError) as error:
        packio.pack(path, tmp_path / "x.lmdb", root=image_folder)
    assert [key for key, _ in error.value.skipped] == [names[1], "image_id 88"]
    report = packio.pack(path, tmp_path / "x.lmdb", root=image_folder, on_error="skip")
    assert (report.packed, len(report.skipped), report.found) == (2, 2, 4)


def test_a_refusal_at_listing_says_that_no_image_has_been_checked(tmp_path: pathlib.Path) -> None:
    data = _dataset()
    data["annotations"][0]["category_id"] = 77
    path = _written(tmp_path, data)
    with pytest.raises(BadImagesError, match="bad samples: 1 so far, as no image has been checked"):
        packio.pack(path, tmp_path / "x.lmdb")
    data["annotations"] = []
    path.write_text(json.dumps(data))
    with pytest.raises(BadImagesError, match=r"bad samples: 3 \(all listed in"):
        packio.pack(path, tmp_path / "x.lmdb")


def test_paths_that_lead_out_or_are_there_twice_are_told(tmp_path: pathlib.Path) -> None:
    data = _dataset()
    path = _written(tmp_path, data)
    names = ["../annotations/instances_val2017.json", "/etc/passwd", "..", "", "a/../../x.jpg",
             "nul\0.jpg", "./a.jpg", "sub//c.jpg", "high\ud800.jpg"]  # fmt: skip
    data["images"] += [{"id": 200 + i, "file_name": name} for i, name in enumerate(names)]
    path.write_text(json.dumps(data))
    found = coco.listing(path)
    assert found.keys == [b"a.jpg", b"sub/c.jpg", b"b.jpg", b"high\xed\xa0\x80.jpg"]
    assert [reason.split()[0] for _, reason in found.unlisted] == ["leads"] * 6 + ["there"] * 2
    with found.open_records() as read, pytest.raises(FileNotFoundError):
        read(3)
    assert found.sizes[3] == -1


def test_odd_names_are_kept_byte_for_byte(tmp_path: pathlib.Path) -> None:
    keys = [b"x" + bytes([byte]) + b".png" for byte in range(1, 256) if byte != ord("/")]
    keys += [b"\xc3\xa9.png", b"e\xcc\x81.png", b"caf\xe9/\xff\n.png", b"\xf0\x9f\x90\x88.png"]
    for key in keys:
        path = pathlib.Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), key)))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(key)
    images = [{"id": i, "file_name": os.fsdecode(key)} for i, key in enumerate(keys)]
    for name, is_ascii in (("ascii.json", True), ("utf8.json", False)):
        text = json.dumps({"images": images, "annotations": []}, ensure_ascii=is_ascii)
        (tmp_path / name).write_bytes(text.encode("utf-8", "surrogatepass"))
        found = coco.listing(tmp_path / name)
        assert len(keys) > 211
        assert (found.keys, found.unlisted) == (keys, [])
        items = made.read(found)
        assert [item.data for item in items] == keys
        assert [meta["file_name"] for meta in _metas(items)] == [os.fsdecode(key) for key in keys]


def test_fields_that_some_lack_are_null_and_clashes_get_a_prefix(tmp_path: pathlib.Path) -> None:
    data = _dataset()
    data["annotations"][0] |= {"keypoints": [1, 2, 2], "score": float("inf"), "license": 8}
    data["images"][0] |= {"image_id": "mine"}
    metas = {m["image_id"]: m for m in _metas(made.read(coco.listing(_written(tmp_path, data))))}
    assert metas[139]["keypoints"] == [[1, 2, 2], None]
    assert (metas[139]["license"], metas[139]["image_license"]) == ([8, None], 3)
    assert metas[139]["image_image_id"] == "mine"
    assert metas[139]["score"] == [None, None]
    assert metas[25]["keypoints"] == []


def test_captions_have_no_boxes(tmp_path: pathlib.Path) -> None:
    data = _dataset()
    del data["categories"]
    data["annotations"] = [{"id": 1, "image_id": 9, "caption": "Zwei Häuser\n"}]
    found = coco.listing(_written(tmp_path, data, "annotations/captions_val2017.json"))
    items = made.read(found)
    assert all(item.boxes is None and item.box_labels is None for item in items)
    assert [meta["caption"] for meta in _metas(items)] == [["Zwei Häuser\n"], [], []]
    assert (found.classes, found.warnings) == ([], [])


def test_boxes_without_categories_have_no_labels(tmp_path: pathlib.Path) -> None:
    data = _dataset()
    data["categories"] = []
    found = coco.listing(_written(tmp_path, data))
    assert found.warnings == ["the file names no categories: boxes have no labels"]
    (item,) = made.read(found)[:1]
    assert item.boxes is not None
    assert item.boxes.shape == (1, 4)
    assert item.box_labels is None


def test_ids_may_be_text(tmp_path: pathlib.Path) -> None:
    images = [{"id": i, "file_name": f"{i}.jpg"} for i in ("b", "a", 2, 10)]
    annotations = [{"id": "x", "image_id": "a", "category_id": "c", "bbox": [1, 2, 3, 4]}]
    path = tmp_path / "x.json"
    categories = [{"id": "c"}]
    path.write_text(
        json.dumps({"images": images, "annotations": annotations, "categories": categories})
    )
    (tmp_path / "2.jpg").touch()
    found = coco.listing(path)
    assert found.keys == [b"2.jpg", b"10.jpg", b"a.jpg", b"b.jpg"]
    assert found.classes == ["c"]


def test_the_version_is_that_of_what_is_said(tmp_path: pathlib.Path) -> None:
    data = _dataset()
    path = _written(tmp_path, data)
    version = coco.listing(path).version
    path.write_text(json.dumps(data, indent=2, sort_keys=True))
    assert coco.listing(path).version == version
    data["annotations"][0]["bbox"][0] += 0.5
    path.write_text(json.dumps(data))
    assert coco.listing(path).version != version


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "{}", '{"images": [], "annotations": []}',
        '{"images": [1], "annotations": []}',
        '{"images": {}, "annotations": []}', '{"images": [{"id": 1}], "annotations": []}',
        '{"images": [{"id": null, "file_name": "x"}], "annotations": []}', "[" * 100_000,
        '{"images": [{"id": 1, "file_name": 2}], "annotations": []}', "\xff",
        '{"images": [{"id": 1, "file_name": "x"}]}', "1" * 5000,
        '{"images": [{"id": 1, "file_name": "x"}], "annotations": [], "categories": {}}',
    ],
)  # fmt: skip
def test_what_is_no_coco_file_is_refused(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "x.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(SourceError, match="expected"):
        coco.listing(tmp_path / "x.json")


def test_only_json_with_both_keys_is_recognised(tmp_path: pathlib.Path) -> None:
    long = json.dumps({"info": "x" * (17 << 20), "images": [], "annotations": []})
    texts = {
        "good.json": '{"annotations" :\n [], "images": []}', "long.JSON": long,
        "split.json": " " * ((1 << 24) - 5) + '{"images": [], "annotations": []}',
        "dict.json": '{"annotations": {}, "images": []}', "one.json": '{"images": []}',
        "good.txt": '{"annotations": [], "images": []}', "other.json": "[1, 2]", "empty.json": "",
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "folder.json").mkdir()
    recognised = {p.name for p in tmp_path.iterdir() if coco.recognise(p)}
    assert recognised == {"good.json", "long.JSON", "split.json"}
    assert not coco.recognise(tmp_path / "missing.json")
    with pytest.raises(SourceError, match="No such file"):
        coco.listing(tmp_path / "missing.json")


def test_boxes_of_crowds_can_be_left_out(tmp_path: pathlib.Path) -> None:
    data = _dataset()
    path = _written(tmp_path, data)
    found = coco.listing(path, crowd="drop")
    assert "1 annotations of crowds are left out" in found.warnings[0]
    crowds = {a["id"] for a in data["annotations"] if a["iscrowd"]}
    kept = [i for meta in _metas(made.read(found)) for i in meta["annotation_id"]]
    assert sorted(kept) == sorted({a["id"] for a in data["annotations"]} - crowds)
    assert [c for item in made.read(found) for c in item.box_columns["crowd"].tolist()] == [0, 0]
    with pytest.raises(OptionError, match="expected 'keep' or 'drop'"):
        coco.listing(path, crowd="no")
