"""YOLO datasets become boxes in pixels; each oddity of such files is taken, or refused by name.

What must come out is computed here from ultralytics' documentation of its formats: a line is
``class cx cy w h`` in fractions of the upright image, or a class and a polygon.
"""

from __future__ import annotations

import json
import pathlib

import made
import pytest
from annotated import boxes, image, packed, tree, unlisted

import packio
from packio.errors import BadImagesError, MissingPackageError, SourceError
from packio.packing.sourcing import find_source

pytest.importorskip("yaml")

listing = made.Asked("yolo").listing
YAML = "train: images/train\nval: images/val\nnames:\n  0: cat\n  1: dog\n"


def one(
    root: pathlib.Path, text: str | bytes, yaml: str = "train: images\nnames: [cat, dog]\n"
) -> pathlib.Path:
    """A dataset of one image, with these labels."""
    return tree(root / "d", {"data.yaml": yaml, "images/1.jpg": "", "labels/1.txt": text})


def test_boxes_are_fractions_of_the_image(tmp_path: pathlib.Path) -> None:
    found = packed(one(tmp_path, "1 0.5 0.5 0.25 0.2\n0 0.1 0.9 0.2 0.2\n"))["images/1.jpg"]
    # (0.5 - 0.125) * 40 = 15, (0.5 - 0.1) * 30 = 12
    assert boxes(found) == [[15, 12, 25, 18], [0, 24, 8, 30]]
    assert found.box_labels is not None
    assert found.box_labels.tolist() == [1, 0]


def test_boxes_lie_in_the_upright_image(tmp_path: pathlib.Path) -> None:
    root = one(tmp_path, "0 0.5 0.25 0.2 0.1\n")
    (root / "images" / "1.jpg").write_bytes(image(turned=6))
    out = tmp_path / "o.lmdb"
    packio.pack(root, out)
    # upright the image is 30 wide and 40 high: x 12..18, y 8..12
    ((_, found),) = [packio.LmdbDataset(out, fields=("image", "boxes"))[i] for i in range(1)]
    assert found.round(decimals=3).tolist() == [[12, 8, 18, 12]]


def test_splits_and_names_come_from_data_yaml(tmp_path: pathlib.Path) -> None:
    root = tree(tmp_path / "d", {
        "data.yaml": YAML, "images/train/a.jpg": "", "labels/train/a.txt": "0 .5 .5 .5 .5",
        "images/val/b.jpg": "", "labels/val/b.txt": "1 .5 .5 .5 .5",
    })  # fmt: skip
    for path in (root, root / "data.yaml"):
        found = listing(path)
        assert found.keys == [b"images/train/a.jpg", b"images/val/b.jpg"]
        assert found.classes == ["cat", "dog"]
        assert [found.split_names[i] for i in found.splits or ()] == ["train", "val"]


@pytest.mark.parametrize("names", ["[no, '007', 大熊猫]", "{0: no, 1: '007', 2: 大熊猫}"])
def test_names_stay_as_they_are_written(tmp_path: pathlib.Path, names: str) -> None:
    root = one(tmp_path, "0 .5 .5 .1 .1", f"train: images\nval: images\nnames: {names}\nnc: 3\n")
    assert listing(root / "data.yaml").classes == ["no", "007", "大熊猫"]


@pytest.mark.parametrize(
    ("yaml", "told"),
    [
        ("train: images\nnames: [a, b]\nnc: 3\n", "2 names, 2 different ones, and nc: 3"),
        ("train: images\nnames: [a, a]\n", "2 names, 1 different ones"),
        ("train: images\nnames: {0: a, 2: b}\n", "the numbers 0, 1, 2"),
        ("train: other\nnames: [a]\n", "no 'other' in"),
        ("train: images\nnames: [a\n", "no YAML"),
        ("train: images\nnames: [a]\nkpt_shape: [x]\n", "kpt_shape"),
    ],
)
def test_a_data_yaml_without_sense_is_refused(tmp_path: pathlib.Path, yaml: str, told: str) -> None:
    with pytest.raises(SourceError, match=told):
        listing(one(tmp_path, "0 .5 .5 .1 .1", yaml))


def test_numbers_of_classes_without_names_are_named_as_by_ultralytics(
    tmp_path: pathlib.Path,
) -> None:
    assert listing(one(tmp_path, "0 .5 .5 .1 .1", "train: images\nnc: 2")).classes == [
        "class_0", "class_1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "yaml",
    [
        "train: ../train/images\nval: ../valid/images\ntest: ../test/images\n",  # Roboflow's
        "path: /content/drive/MyDrive/d\ntrain: train/images\nval: valid/images\n",  # of a notebook
        "path: .\ntrain: [train/images]\nval: valid\\images\n",  # of Windows
        "path: ../d\ntrain: ./train/\nval: valid/images/\n",
    ],
)
def test_paths_in_data_yaml_are_found(tmp_path: pathlib.Path, yaml: str) -> None:
    root = tree(tmp_path / "d", {
        "data.yaml": yaml + "nc: 1\nnames: [cat]\n", "README.roboflow.txt": "made by hand",
        "train/images/a.jpg": "", "train/labels/a.txt": "0 .5 .5 .5 .5",
        "valid/images/b.jpg": "", "valid/labels/b.txt": "",
    })  # fmt: skip
    found = listing(root)
    assert found.keys == [b"train/images/a.jpg", b"valid/images/b.jpg"]
    assert found.split_names == ["train", "val"]
    assert not found.unlisted


def test_a_list_of_images_is_a_split(tmp_path: pathlib.Path) -> None:
    root = tree(tmp_path / "d", {
        "data.yaml": "train: train.txt\nval: val.txt\nnames: [cat]\n",
        "train.txt": "./images/a.jpg\r\n\r\n", "val.txt": "images\\b.jpg\n",
        "images/a.jpg": "", "labels/a.txt": "0 .5 .5 .5 .5", "images/b.jpg": "",
        "images/left.jpg": "", "labels/left.txt": "0 .5 .5 .5 .5",
    })  # fmt: skip
    found = listing(root)
    assert found.keys == [b"images/a.jpg", b"images/b.jpg"]
    assert not found.unlisted
    assert "1 images have no label file" in found.warnings[0]


def test_an_image_in_two_splits_is_refused(tmp_path: pathlib.Path) -> None:
    root = one(tmp_path, "0 .5 .5 .1 .1", "train: images\nval: images\nnames: [cat]\n")
    assert unlisted(listing(root)) == ["images/1.jpg: in train and in val; a sample has one split"]


@pytest.mark.parametrize(
    "files",
    [
        ["images/train/1.jpg", "labels/train/1.txt", "images/val/2.jpg", "labels/val/2.txt"],
        ["train/images/1.jpg", "train/labels/1.txt", "val/images/2.jpg", "val/labels/2.txt"],
    ],
)
def test_a_folder_without_data_yaml_has_splits_by_its_folders(
    tmp_path: pathlib.Path, files: list[str]
) -> None:
    root = tree(tmp_path / "d", {n: "1 .5 .5 .1 .1" if "txt" in n else "" for n in files})
    found = listing(root)
    assert find_source(root).name == "yolo"
    assert [found.split_names[i] for i in found.splits or ()] == ["train", "val"]
    assert found.classes == ["0", "1"]
    assert "called by numbers" in found.warnings[-1]
    assert listing(root, classes=["cat", "dog"]).classes == ["cat", "dog"]


def test_what_labelimg_writes_is_read(tmp_path: pathlib.Path) -> None:
    root = tree(tmp_path / "d", {
        "classes.txt": "cat\ntraffic light\n", "1.jpg": "", "1.txt": "1 .5 .5 .5 .5\n", "2.jpg": "",
    })  # fmt: skip
    assert find_source(root).name == "yolo"
    found = listing(root)
    assert (found.keys, found.classes) == ([b"1.jpg", b"2.jpg"], ["cat", "traffic light"])


def test_the_last_images_of_a_path_becomes_labels(tmp_path: pathlib.Path) -> None:
    root = tree(tmp_path / "images" / "d", {
        "images/images/1.jpg": "", "images/labels/1.txt": "0 .5 .5 .5 .5",
        "labels/images/1.txt": "0 .1 .1 .1 .1", "classes.txt": "cat",
    })  # fmt: skip
    assert boxes(packed(root, source_kind="yolo")["images/images/1.jpg"]) == [[10, 7.5, 30, 22.5]]


def test_missing_and_empty_label_files_are_images_without_boxes(tmp_path: pathlib.Path) -> None:
    root = one(tmp_path, "0 .5 .5 .1 .1")
    tree(root, {"images/2.jpg": "", "images/3.jpg": "", "labels/3.txt": " \n"})
    found = listing(root)
    told = "1 images have no label file: taken as images without objects (images/2.jpg)"
    assert told in found.warnings
    samples = packed(root)
    assert boxes(samples["images/2.jpg"]) == boxes(samples["images/3.jpg"]) == []


def test_a_dataset_whose_labels_lie_elsewhere_is_refused(tmp_path: pathlib.Path) -> None:
    root = tree(tmp_path / "d", {"data.yaml": "train: images\nnames: [a]", "images/1.jpg": ""})
    with pytest.raises(SourceError, match=r"none of 1 images has a label file; .*labels/1\.txt"):
        listing(root)


def test_labels_of_no_image_are_refused(tmp_path: pathlib.Path) -> None:
    root = one(tmp_path, "0 .5 .5 .1 .1")
    tree(root, {"labels/gone.txt": "0 .5 .5 .1 .1", "labels/classes.txt": "cat\ndog"})
    tree(root, {"labels/notes.txt": "ask Ann", "labels/train.cache": b"\x80\x04"})
    assert unlisted(listing(root)) == ["labels/gone.txt: annotations of an image that is not there"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("2 .5 .5 .1 .1", "class 2; expected a whole number below 2"),
        ("-1 .5 .5 .1 .1", "class -1"),
        ("0.5 .5 .5 .1 .1", "class 0.5"),
        ("0 1.5 .5 .1 .1", "1.5; expected fractions of the image, from 0 to 1"),
        ("0 320 240 100 50", "320; expected fractions"),
        ("0 -.2 .5 .1 .1", "-0.2; expected fractions"),
        ("0 nan .5 .1 .1", "nan; expected fractions"),
        ("cat .5 .5 .1 .1", "could not convert string to float: 'cat'"),
        ("0,.5,.5,.1,.1", "could not convert"),
        ("0 .5 .5 .1", "4 numbers"),
        ("0 .5 .5 .1 .1 .87", r"6 numbers \(the last one a confidence\?\); expected 5"),
        ("0 .1 .1 .2 .2 .3 .3 .9", r"8 numbers"),
    ],
)
def test_a_line_without_sense_is_refused_by_file_and_line(
    tmp_path: pathlib.Path, line: str, told: str
) -> None:
    root = one(tmp_path, f"0 .5 .5 .1 .1\n{line}\n")
    tree(root, {"images/2.jpg": "", "labels/2.txt": "1 .5 .5 .1 .1"})
    with pytest.raises(BadImagesError, match=rf"labels/1\.txt:2: .*{told}"):
        packio.pack(root, tmp_path / "o.lmdb")
    report = packio.pack(root, tmp_path / "o.lmdb", on_error="skip")
    assert (report.packed, len(report.skipped)) == (1, 1)


def test_a_dataset_without_a_good_image_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(BadImagesError, match=r"labels/1\.txt:1: "):
        packio.pack(one(tmp_path, "cat"), tmp_path / "o.lmdb")


def test_rounding_and_whole_floats_are_taken(tmp_path: pathlib.Path) -> None:
    text = "\ufeff1.0\t1.00001 0.5  0.2 1.00002\r\n\r\n0.000000e+00 0.5 0.5 1 1\r\n"
    found = packed(one(tmp_path, text))["images/1.jpg"]
    assert found.box_labels is not None
    assert found.box_labels.tolist() == [1, 0]
    assert boxes(found)[1] == [0, 0, 40, 30]


def test_lines_that_repeat_are_left_out_and_counted(tmp_path: pathlib.Path) -> None:
    root = one(tmp_path, "0 .5 .5 .1 .1\n1 .5 .5 .1 .1\n0 .5 .5 .1 .1\n0 0.5 0.50 .1 .1\n")
    told = "2 lines repeat a line of their file: left out (images/1.jpg)"
    assert told in listing(root).warnings
    assert len(boxes(packed(root)["images/1.jpg"])) == 2


def test_a_polygon_is_its_bounds_and_is_kept(tmp_path: pathlib.Path) -> None:
    found = packed(one(tmp_path, "0 .1 .2 .5 .9 .3 .1\n1 .25 .5 .75 .5 .75 .8 .25 .8\n"))
    sample = found["images/1.jpg"]
    assert boxes(sample) == [[4, 3, 20, 27], [10, 15, 30, 24]]
    assert sample.meta == {
        "segments": [[0.1, 0.2, 0.5, 0.9, 0.3, 0.1], [0.25, 0.5, 0.75, 0.5, 0.75, 0.8, 0.25, 0.8]]
    }


def test_boxes_beside_polygons_are_boxes_and_are_told(tmp_path: pathlib.Path) -> None:
    root = one(tmp_path, "0 .1 .2 .5 .9 .3 .1\n1 .5 .5 .5 .5\n")
    sample = packed(root)["images/1.jpg"]
    assert boxes(sample) == [[4, 3, 20, 27], [10, 7.5, 30, 22.5]]
    assert sample.meta == {"segments": [[0.1, 0.2, 0.5, 0.9, 0.3, 0.1], None]}
    assert any(w.startswith("1 label files have lines of 5") for w in listing(root).warnings)


def test_keypoints_are_kept(tmp_path: pathlib.Path) -> None:
    yaml = "train: images\nnames: [cat, dog]\nkpt_shape: [2, 3]\n"
    root = one(tmp_path, "1 .5 .5 .5 .5 .1 .2 2 0 0 0\n", yaml)
    sample = packed(root)["images/1.jpg"]
    assert boxes(sample) == [[10, 7.5, 30, 22.5]]
    assert sample.meta == {"keypoints": [[0.1, 0.2, 2, 0, 0, 0]]}
    tree(root, {"labels/1.txt": "1 .5 .5 .5 .5 .1 .2 2\n"})
    assert "8 numbers" in unlisted(listing(root))[0]


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (["images/1.jpg", "images/2.jpg", "labels/1.jpg", "labels/2.jpg"], "pairs"),
        (["images/a/1.jpg", "labels/b/2.jpg"], "pairs"),
        (["cats/1.jpg", "labels/2.jpg"], "image_folder"),
        (["1.jpg", "1.txt"], "flat_folder"),
    ],
)
def test_folders_of_other_sources_stay_theirs(
    tmp_path: pathlib.Path, files: list[str], name: str
) -> None:
    root = tree(tmp_path / "d", {n: "a cat" if "txt" in n else "" for n in files})
    assert find_source(root).name == name


def test_captions_in_a_folder_called_labels_are_no_boxes(tmp_path: pathlib.Path) -> None:
    root = tree(tmp_path / "d", {"images/1.jpg": "", "labels/1.txt": "3 cats on 2 mats"})
    assert find_source(root).name != "yolo"


def test_two_yaml_files_are_refused(tmp_path: pathlib.Path) -> None:
    root = one(tmp_path, "0 .5 .5 .1 .1")
    tree(root, {"other.yaml": YAML, "notes.yaml": "author: me\n"})
    with pytest.raises(SourceError, match=r"2 files say .* packio pack .*data\.yaml … or"):
        listing(root)


def test_pyyaml_is_asked_for_by_name(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = one(tmp_path, "0 .5 .5 .1 .1")
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'packio\[yolo\]'"):
        listing(root)


def test_a_yolo_pack_is_extracted(tmp_path: pathlib.Path) -> None:
    from packio.inspecting.extracting import extract

    packed(one(tmp_path, "1 0.5 0.5 0.25 0.2\n"))
    extract(tmp_path / "d.lmdb", tmp_path / "out", fields=["image", "boxes"])
    line = json.loads((tmp_path / "out" / "packio.jsonl").read_text().splitlines()[0])
    assert line["boxes"] == [[15, 12, 25, 18]]
