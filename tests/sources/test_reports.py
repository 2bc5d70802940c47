"""Annotations as people report them to trackers of other tools: taken as meant, or refused by name.

What must come out follows from how the other tool reads the same files.
"""

from __future__ import annotations

import io
import pathlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from annotated import HEIGHT, WIDTH, image, tree
from PIL import Image

import packio
from packio.errors import BadImagesError, OptionError, PackioError, SourceError


def pack(source: pathlib.Path, **options: Any) -> tuple[packio.Pack, tuple[str, ...]]:
    """The pack, and what was said."""
    out = source.parent / f"{source.stem}-out.tar"
    report = packio.pack(source, out, **options)
    return packio.open(out), report.warnings


def coco(count: int = 2, **members: Any) -> dict[str, Any]:
    """A file of images a.jpg, b.jpg, …, with a box on the first."""
    return {
        "images": [
            {"id": i, "file_name": f"{chr(96 + i)}.jpg", "width": WIDTH, "height": HEIGHT}
            for i in range(1, count + 1)
        ],
        "annotations": [annotation(1)],
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
        **members,
    }


def annotation(image: Any, **members: Any) -> dict[str, Any]:
    return {"image_id": image, "category_id": 1, "bbox": [1, 2, 10, 10], **members}


def written(root: pathlib.Path, content: Any) -> pathlib.Path:
    """The file x.json beside the images a.jpg and b.jpg."""
    return tree(root, {"a.jpg": "", "b.jpg": "", "x.json": content}) / "x.json"


def listed(root: pathlib.Path, text: str) -> pathlib.Path:
    """The list x.csv beside the images a.jpg, b.jpg and c.jpg."""
    return tree(root, {"a.jpg": "", "b.jpg": "", "c.jpg": "", "x.csv": text}) / "x.csv"


def boxes(found: packio.Pack) -> list[list[list[float]]]:
    return [sample.boxes.tolist() for sample in found if sample.boxes is not None]


def labels(found: packio.Pack) -> np.ndarray:
    return np.array([sample.label for sample in found], np.float32)


# COCO files as exporters write them


@pytest.mark.parametrize(
    "files",
    [
        {"d/a.jpg": "", "d/b.jpg": "", "d/_annotations.coco.json": coco()},  # Roboflow
        {"d/data/a.jpg": "", "d/data/b.jpg": "", "d/labels.json": coco()},  # FiftyOne
        {"d/images/a.jpg": "", "d/images/b.jpg": "",  # CVAT
         "d/annotations/instances_default.json": coco()},
    ],
)  # fmt: skip
def test_a_folder_with_a_coco_file_has_its_boxes(
    tmp_path: pathlib.Path, files: dict[str, Any]
) -> None:
    found, _ = pack(tree(tmp_path, files) / "d")
    assert found.classes == ["cat", "dog"]
    assert boxes(found) == [[[1, 2, 11, 12]], []]


def test_a_folder_with_several_coco_files_names_a_command_for_each(tmp_path: pathlib.Path) -> None:
    names = ("annotations/instances_train2017.json", "annotations/instances_val2017.json")
    files = {"d/train2017/a.jpg": "", "d/val2017/a.jpg": "", **{f"d/{n}": coco(1) for n in names}}
    folder = tree(tmp_path, files) / "d"
    with pytest.raises(SourceError, match=f"packio pack {folder}/{names[1]} instances_val2017"):
        pack(folder)
    assert boxes(pack(folder / names[1])[0]) == [[[1, 2, 11, 12]]]


def test_files_of_labelme_beside_images_are_refused(tmp_path: pathlib.Path) -> None:
    shapes = {"shapes": [{"label": "cat", "points": [[1, 2], [3, 4]]}], "imagePath": "a.jpg"}
    folder = tree(tmp_path, {"d/a.jpg": "", "d/a.json": shapes}) / "d"
    with pytest.raises(SourceError, match="LabelMe"):
        pack(folder)
    assert len(pack(folder, source_kind="flat_folder")[0]) == 1


def test_metadata_of_another_kind_beside_images_is_no_annotation(tmp_path: pathlib.Path) -> None:
    found, _ = pack(tree(tmp_path, {"d/a.jpg": "", "d/a.json": {"key": "a", "url": "u"}}) / "d")
    assert len(found) == 1


def test_categories_without_boxes_are_labels_of_images(tmp_path: pathlib.Path) -> None:
    pairs = [{"image_id": 1, "category_id": 2}, {"image_id": 2, "category_id": 1}]  # iNaturalist
    found, _ = pack(written(tmp_path, coco(annotations=pairs)))
    assert ([sample.label for sample in found], found.classes) == ([1, 0], ["cat", "dog"])


_SIZED = [{"id": 1, "file_name": "a.jpg", "width": "400", "height": "300"}]


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({"annotations": [{"image_id": 1, "category_id": 2}]}, r"b\.jpg: no label: 0 categories"),
        (
            {"annotations": [{"image_id": 1, "category_id": n} for n in (2, 1)]},
            r"a\.jpg: no label: 2 categories",
        ),
        ({"annotations": [annotation(1, bbox=[0.1, 0.2, 0.3, 0.3])]}, "fractions, no pixels"),
        ({"images": _SIZED}, "boxes are for 400x300 pixels"),  # sizes may be text
    ],
)
def test_annotations_that_cannot_be_meant_are_bad(
    tmp_path: pathlib.Path, members: dict[str, Any], told: str
) -> None:
    with pytest.raises(BadImagesError, match=told):
        pack(written(tmp_path, coco(**members)))


def test_masks_without_boxes_are_told(tmp_path: pathlib.Path) -> None:
    mask = {"size": [HEIGHT, WIDTH], "counts": [0, 10, 1190]}
    data = coco(annotations=[{"image_id": 1, "category_id": 1, "segmentation": mask}])
    found, warnings = pack(written(tmp_path, data))
    assert found[0].boxes is None
    assert any("no annotation has a bbox" in line for line in warnings)


def test_boxes_that_may_be_corners_are_told(tmp_path: pathlib.Path) -> None:
    data = coco(annotations=[annotation(1, bbox=[20, 10, 38, 28])])
    found, warnings = pack(written(tmp_path, data))
    assert boxes(found) == [[[20, 10, 58, 38]], []]
    assert any("corners in place of width and height" in line for line in warnings)


def test_back_slashes_of_windows_are_slashes(tmp_path: pathlib.Path) -> None:
    data = coco(images=[{"id": 1, "file_name": "images\\1\\a.jpg"}])  # Label Studio on Windows
    found, warnings = pack(tree(tmp_path, {"images/1/a.jpg": "", "x.json": data}) / "x.json")
    assert [sample.key for sample in found] == ["images/1/a.jpg"]
    assert any("back-slashes" in line for line in warnings)


def test_absolute_paths_need_their_folder(tmp_path: pathlib.Path) -> None:
    data = coco(images=[{"id": 1, "file_name": f"{tmp_path}/p/a.jpg"}])
    path = tree(tmp_path, {"p/a.jpg": "", "x.json": data}) / "x.json"
    with pytest.raises(OptionError, match="name their folder by --root"):
        pack(path)
    assert [sample.key for sample in pack(path, root=tmp_path / "p")[0]] == ["a.jpg"]


def test_paths_that_all_lead_out_are_told(tmp_path: pathlib.Path) -> None:
    data = coco(images=[{"id": 1, "file_name": "../../media/upload/1/a.jpg"}])
    with pytest.raises(OptionError, match=r"as '\.\./\.\./media/upload/1/a\.jpg'"):
        pack(written(tmp_path, data))


def test_boxes_without_width_are_counted_for_every_source(tmp_path: pathlib.Path) -> None:
    files = {"images/a.jpg": "", "labels/a.txt": "0 .5 .5 0 .2\n", "classes.txt": "cat\n"}
    _, warnings = pack(tree(tmp_path / "d", files))
    assert any("1 boxes have no width or no height" in line for line in warnings)


# Lists beside images, and labels in cells


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("_classes.csv", "filename, Black, White\na.jpg, 1, 0\n"),
        ("_annotations.csv", 'filename,width,class,xmin\n"a.jpg",40,cat,1\n'),
    ],
)
def test_a_list_in_a_folder_of_its_images_is_named(
    tmp_path: pathlib.Path, name: str, text: str
) -> None:
    folder = tree(tmp_path, {"train/a.jpg": "", f"train/{name}": text}) / "train"
    with pytest.raises(SourceError, match=f"packio pack {folder}/{name} "):
        pack(folder)
    assert len(pack(folder, source_kind="flat_folder")[0]) == 1


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["\"['cat', 'dog']\"", "\"['dog']\"", '"[]"'], [[1, 1], [0, 1], [0, 0]]),
        (['"[""cat"", ""dog""]"', '"[""dog""]"', '"[]"'], [[1, 1], [0, 1], [0, 0]]),
        (['"[0, 1]"', '"[1]"', '"[0]"'], [[1, 1], [0, 1], [1, 0]]),
    ],
)
@pytest.mark.parametrize("options", [{}, {"label_sep": ","}])
def test_a_list_that_is_written_as_text_is_a_list(
    tmp_path: pathlib.Path, cells: list[str], expected: Any, options: dict[str, str]
) -> None:
    rows = "".join(f"{n}.jpg,{cell}\n" for n, cell in zip("abc", cells, strict=True))
    found, _ = pack(listed(tmp_path, f"image,labels\n{rows}"), **options)
    assert np.array_equal(labels(found), expected)


def test_a_list_that_is_written_as_text_is_a_list_in_parquet(tmp_path: pathlib.Path) -> None:
    images = [{"bytes": image(), "path": name} for name in "ab"]
    table = pa.table({"image": images, "label": ["['cat']", "['cat', 'dog']"]})
    pq.write_table(table, tmp_path / "t.parquet")
    found, _ = pack(tmp_path / "t.parquet")
    assert np.array_equal(labels(found), [[1, 0], [1, 1]])


@pytest.mark.parametrize(
    ("cell", "told"),
    [("[1 0 0]", "seems to be a list"), ('"0,5"', "comma"), ('"1,000"', "comma")],
)
def test_a_cell_that_is_a_list_or_number_of_another_kind_is_refused(
    tmp_path: pathlib.Path, cell: str, told: str
) -> None:
    path = listed(tmp_path, f"image,label\na.jpg,{cell}\n")
    with pytest.raises(SourceError, match=rf"x\.csv:2: .*{told}.*--classes-from"):
        pack(path)
    name = cell.strip('"')
    found, _ = pack(path, classes_from=[name, "b"])
    assert (found[0].label, found.classes) == (0, [name, "b"])


@pytest.mark.parametrize("separator", ["|", ";", " "])
def test_names_with_other_names_in_them_get_a_hint_that_works(
    tmp_path: pathlib.Path, separator: str
) -> None:
    path = listed(tmp_path, f"image,label\na.jpg,cat{separator}dog\nb.jpg,cat\nc.jpg,dog\n")
    _, warnings = pack(path)
    assert any(f"--label-sep {separator!r}" in line for line in warnings)
    found, warnings = pack(path, label_sep=separator, overwrite=True)
    assert np.array_equal(labels(found), [[1, 1], [1, 0], [0, 1]])
    assert not any("--label-sep" in line for line in warnings)


def test_rows_that_repeat_an_image_get_a_way_out(tmp_path: pathlib.Path) -> None:
    text = 'image_id,bbox\na,"[1.0, 2.0, 3.0, 4.0]"\na,"[5.0, 2.0, 3.0, 4.0]"\n'
    with pytest.raises(SourceError, match="several boxes in a COCO file"):
        pack(listed(tmp_path, text))


def test_boxes_in_a_column_of_their_own_need_the_users_word(tmp_path: pathlib.Path) -> None:
    row = {"file_name": "a.jpg", "bboxes": [[1, 1, 5, 5]], "labels": [0]}
    path = tree(tmp_path, {"a.jpg": "", "x.jsonl": row}) / "x.jsonl"
    with pytest.raises(PackioError, match=r"'bboxes' has boxes outside .*--box-format none"):
        pack(path)
    assert pack(path, box_format="none")[0].meta(0) == {"bboxes": [[1, 1, 5, 5]]}


def test_boxes_in_a_column_of_parquet_need_the_users_word(tmp_path: pathlib.Path) -> None:
    images = [{"bytes": image(), "path": name} for name in "ab"]
    table = pa.table({"image": images, "bbox": [[[1, 2, 3, 4]], []], "category": [[0], []]})
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(OptionError, match="'bbox' has boxes outside"):
        pack(tmp_path / "t.parquet")


def test_a_label_in_the_json_of_a_foreign_tar_is_named(tmp_path: pathlib.Path) -> None:
    wds = pytest.importorskip("webdataset")
    with wds.TarWriter(str(tmp_path / "s.tar")) as tar:
        tar.write({"__key__": "a", "jpg": image(), "json": {"label": "cat"}})
    _, warnings = pack(tmp_path / "s.tar")
    assert any("--label-col label" in line for line in warnings)


# YOLO, and masks


def test_a_label_file_with_a_large_ending_is_refused(tmp_path: pathlib.Path) -> None:
    files = {"images/a.jpg": "", "labels/a.TXT": "0 .5 .5 .1 .1", "classes.txt": "cat",
             "images/b.jpg": "", "labels/b.txt": "0 .5 .5 .1 .1"}  # fmt: skip
    with pytest.raises(BadImagesError, match=r"labels/a\.TXT"):
        pack(tree(tmp_path / "d", files))


def test_darknet_files_of_cvat_have_boxes(tmp_path: pathlib.Path) -> None:
    files = {
        "obj.data": "classes = 2\nnames = data/obj.names\n", "obj.names": "cat\ndog\n",
        "train.txt": "data/obj_train_data/a.jpg\n", "obj_train_data/a.jpg": "",
        "obj_train_data/a.txt": "1 .5 .5 .5 .2\n",
    }  # fmt: skip
    found, _ = pack(tree(tmp_path / "d", files))
    assert (found.classes, boxes(found)) == (["cat", "dog"], [[[10, 12, 30, 18]]])


def test_the_commands_for_splits_of_pairs_work(tmp_path: pathlib.Path) -> None:
    mask = io.BytesIO()
    Image.new("L", (WIDTH, HEIGHT)).save(mask, "PNG")
    for split in ("train", "val"):
        tree(tmp_path / split, {"images/a.jpg": "", "masks/a.png": mask.getvalue()})
    first, _ = pack(tmp_path / "train")
    assert len(pack(tmp_path / "val", classes_from=first.path)[0]) == 1


def test_folders_beside_splits_are_named(tmp_path: pathlib.Path) -> None:
    names = ("train/a.jpg", "trainannot/a.jpg", "val/b.jpg", "valannot/b.jpg")  # CamVid
    with pytest.raises(SourceError, match=r"'trainannot', 'valannot'.*--masks trainannot"):
        pack(tree(tmp_path / "d", {n: image(mode="L") if "annot" in n else "" for n in names}))
    found, _ = pack(
        tmp_path / "d", source_kind="pairs", images="train", masks="trainannot", overwrite=True
    )
    assert found[0].mask is not None
