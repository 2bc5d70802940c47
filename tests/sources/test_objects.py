"""Columns of objects, as Hugging Face's datasets have them, become boxes; so do metadata.jsonl.

What must come out is computed from Hugging Face's guides of object detection and of image folders:
``bbox`` is x, y, width, height in pixels, ``category`` a position in the names of a ClassLabel.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from annotated import image, tree

import packio
from packio import registry
from packio.errors import BadImagesError, OptionError, SourceError
from packio.packing.sourcing import find_source
from packio.sources import Context, Listing, list_samples

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

LABEL = {"names": ["mask", "glove"], "_type": "ClassLabel"}
BOX = {"feature": {"dtype": "float32", "_type": "Value"}, "length": 4, "_type": "Sequence"}


def parquet(
    path: pathlib.Path, objects: list[Any], feature: Any = None, **more: list[Any]
) -> pathlib.Path:
    """A Parquet file as Hugging Face writes it; `feature` describes the column ``objects``."""
    images = [{"bytes": image(), "path": f"{i}.jpg"} for i in range(len(objects))]
    table = pa.table({"image": images, "objects": objects, **more})
    if feature is not None:
        info = {"info": {"features": {"image": {"_type": "Image"}, "objects": feature}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, path)
    return path


def packed(what: Any, out: pathlib.Path, **options: Any) -> list[packio.Sample]:
    packio.pack(what, out, **options)
    with packio.open(out) as pack:
        return list(pack)


def plain(sample: packio.Sample) -> tuple[Any, ...]:
    assert sample.boxes is not None
    labels = None if sample.box_labels is None else sample.box_labels.tolist()
    return sample.boxes.tolist(), labels


TWO: dict[str, Any] = {
    "id": [7, 8], "area": [24.0, 6.0], "bbox": [[1.0, 2.0, 6.0, 4.0], [10.0, 20.0, 3.0, 2.0]],
    "category": [1, 0],
}  # fmt: skip
CORNERS = [[1, 2, 7, 6], [10, 20, 13, 22]]
OLD = {"feature": {"bbox": BOX, "category": LABEL}, "_type": "Sequence"}
NEW = {"bbox": {"feature": BOX, "_type": "List"}, "category": {"feature": LABEL, "_type": "List"}}


@pytest.mark.parametrize("feature", [OLD, NEW, [{"bbox": BOX, "category": LABEL}]])
@pytest.mark.parametrize("as_list", [False, True])
def test_objects_in_parquet_become_boxes(
    tmp_path: pathlib.Path, feature: Any, as_list: bool
) -> None:
    objects: Any = [TWO, {name: [] for name in TWO}]
    if as_list:
        objects = [[{n: TWO[n][i] for n in TWO} for i in range(2)], []]
    found = packed(parquet(tmp_path / "d.parquet", objects, feature), tmp_path / "o.lmdb")
    assert plain(found[0]) == (CORNERS, [1, 0])
    assert found[0].box_columns["area"].tolist() == [24, 6]
    assert found[0].meta == {"objects": {"id": [7, 8]}}
    assert found[1].boxes is None or not len(found[1].boxes)
    with packio.open(tmp_path / "o.lmdb") as pack:
        assert pack.classes == ["mask", "glove"]


def test_names_as_categories_are_classes(tmp_path: pathlib.Path) -> None:
    objects = [{"bbox": [[1, 2, 3, 4]], "category": ["zebra"]},
               {"bbox": [[1, 2, 3, 4]], "category": ["cat"]}]  # fmt: skip
    path = parquet(tmp_path / "d.parquet", objects)
    found = packed(path, tmp_path / "o.lmdb")
    assert [plain(sample)[1] for sample in found] == [[1], [0]]
    with packio.open(tmp_path / "o.lmdb") as pack:
        assert pack.classes == ["cat", "zebra"]
    with pytest.raises(SourceError, match="--classes-from does not name"):
        packio.pack(path, tmp_path / "p.lmdb", classes_from=["cat"])


def test_classes_given_number_the_categories_anew(tmp_path: pathlib.Path) -> None:
    path = parquet(tmp_path / "d.parquet", [TWO], NEW)
    found = packed(path, tmp_path / "o.lmdb", classes_from=["cap", "glove", "mask"])
    assert plain(found[0])[1] == [1, 2]


def test_corners_that_are_taken_for_width_and_height_are_refused(tmp_path: pathlib.Path) -> None:
    objects = [{"bbox": [[20.0, 10.0, 38.0, 29.0]], "category": [0]}]
    path = parquet(tmp_path / "d.parquet", objects, NEW)
    with pytest.raises(BadImagesError, match=r"\[20.0, 10.0, 38.0, 29.0\] in an image of 40x30"):
        packio.pack(path, tmp_path / "o.lmdb")
    assert plain(packed(path, tmp_path / "o.lmdb", box_format="xyxy")[0])[0] == [[20, 10, 38, 29]]
    assert packed(path, tmp_path / "p.lmdb", box_format="none")[0].boxes is None
    with pytest.raises(OptionError, match="expected 'xywh', 'xyxy' or 'none'"):
        packio.pack(path, tmp_path / "q.lmdb", box_format="cxcywh")


def test_fractions_are_refused(tmp_path: pathlib.Path) -> None:
    objects = [{"bbox": [[0.5, 0.5, 0.2, 0.2]], "category": [0]}]
    with pytest.raises(BadImagesError, match="no x, y, width, height in pixels"):
        packio.pack(parquet(tmp_path / "d.parquet", objects, NEW), tmp_path / "o.lmdb")


def test_width_and_height_beside_objects_say_the_size(tmp_path: pathlib.Path) -> None:
    path = parquet(tmp_path / "d.parquet", [TWO], NEW, width=[80], height=[60])
    with pytest.raises(BadImagesError, match="80x60"):
        packio.pack(path, tmp_path / "o.lmdb")
    found = packed(path, tmp_path / "o.lmdb", rescale_boxes=True)
    assert plain(found[0])[0] == [[0.5, 1, 3.5, 3], [5, 10, 6.5, 11]]


@pytest.mark.parametrize(
    ("objects", "told"),
    [
        ({"bbox": [[1, 2, 3]], "category": [0]}, "objects"),
        ({"bbox": [[1, 2, 3, 4]], "category": [0, 1]}, "one class for each box"),
        ({"bbox": [[1, 2, 3, 4]], "category": [2]}, "objects: no class: 2"),
        ({"bbox": [[1, 2, 3, None]], "category": [0]}, "four numbers"),
    ],
)
def test_objects_without_sense_are_bad_samples(
    tmp_path: pathlib.Path, objects: Any, told: str
) -> None:
    path = parquet(tmp_path / "d.parquet", [objects], NEW)
    with pytest.raises(BadImagesError, match=told):
        packio.pack(path, tmp_path / "o.lmdb")


def test_objects_and_labels_of_other_classes_are_refused(tmp_path: pathlib.Path) -> None:
    path = parquet(tmp_path / "d.parquet", [TWO, TWO], NEW, label=["day", "night"])
    with pytest.raises(OptionError, match="--label-col ''"):
        packio.pack(path, tmp_path / "o.lmdb")
    assert plain(packed(path, tmp_path / "o.lmdb", label_col="")[0])[1] == [1, 0]


class _Dataset(list[Any]):
    """A dataset as Hugging Face's: with features."""

    def __init__(self, items: list[Any], features: Any) -> None:
        super().__init__(items)
        self.features = features


def test_objects_of_items_become_boxes(tmp_path: pathlib.Path) -> None:
    items = [{"image": image(), "objects": TWO}, {"image": image(), "objects": {"bbox": []}}]
    dataset = _Dataset(items, {"image": None, "objects": NEW})
    found = packed(dataset, tmp_path / "o.lmdb")
    assert plain(found[0]) == (CORNERS, [1, 0])
    assert found[0].meta == {"objects": {"id": [7, 8]}}
    with packio.open(tmp_path / "o.lmdb") as pack:
        assert pack.classes == ["mask", "glove"]
    listed_ = [{"image": image(), "objects": [{"bbox": [1, 2, 6, 4], "category": 5}]}]
    assert plain(packed(listed_, tmp_path / "p.lmdb")[0]) == ([[1, 2, 7, 6]], [5])
    found = packed(dataset, tmp_path / "q.lmdb", box_format="none")
    assert (found[0].boxes, found[0].meta) == (None, {"objects": TWO})


def listing(path: pathlib.Path, **context: Any) -> Listing:
    source = find_source(path)
    assert source.name == "manifest"
    return list_samples(source, path, Context(**context))


def test_a_folder_with_metadata_is_read_as_hugging_face_reads_it(tmp_path: pathlib.Path) -> None:
    root = tree(tmp_path / "d", {
        "1.jpg": "", "2.jpg": "", "metadata.csv": "file_name,text\n2.jpg,two cats\n1.jpg,a dog\n",
    })  # fmt: skip
    found = packed(root, tmp_path / "o.lmdb", shard_size=1 << 20)
    assert [(s.key, s.meta) for s in found] == [
        ("2.jpg", {"text": "two cats"}), ("1.jpg", {"text": "a dog"}),
    ]  # fmt: skip
    assert packio.append(tmp_path / "o.lmdb", root).known == 2


def test_metadata_of_objects_gives_boxes(tmp_path: pathlib.Path) -> None:
    lines = [
        {"file_name": "images/1.jpg", "objects": {"bbox": [[1, 2, 6, 4]], "categories": ["Pot"]}},
        {"file_name": "images/2.jpg", "objects": {"bbox": [], "categories": []}},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    root = tree(tmp_path / "d", {"images/1.jpg": "", "images/2.jpg": "", "metadata.jsonl": text})
    found = packed(root, tmp_path / "o.lmdb")
    assert plain(found[0]) == ([[1, 2, 7, 6]], [0])
    assert found[1].boxes is None or not len(found[1].boxes)
    with packio.open(tmp_path / "o.lmdb") as pack:
        assert pack.classes == ["Pot"]


def test_an_image_that_metadata_does_not_name_is_refused(tmp_path: pathlib.Path) -> None:
    root = tree(tmp_path / "d", {
        "a/1.jpg": "", "a/2.jpg": "", "masks/1.png": "",
        "metadata.jsonl": '{"file_name": "a/1.jpg", "text": "x"}\n',
    })  # fmt: skip
    assert listing(root).unlisted == [(b"a/2.jpg", "not in metadata.jsonl")]


def test_metadata_of_several_splits_is_refused(tmp_path: pathlib.Path) -> None:
    root = tree(tmp_path / "d", {
        "train/1.jpg": "", "test/2.jpg": "",
        "metadata.csv": "file_name,text\ntrain/1.jpg,x\ntest/2.jpg,y\n",
    })  # fmt: skip
    with pytest.raises(SourceError, match=r"several splits.* --include 'test/\*'"):
        listing(root)
    found = packed(root / "metadata.csv", tmp_path / "o.lmdb", include=["test/*"])
    assert [s.key for s in found] == ["test/2.jpg"]


def test_metadata_in_folders_of_splits_is_read_by_split(tmp_path: pathlib.Path) -> None:
    root = tree(tmp_path / "d", {
        "train/1.jpg": "", "train/metadata.csv": "file_name,text\n1.jpg,x\n",
        "test/2.jpg": "", "test/metadata.csv": "file_name,text\n2.jpg,y\n",
    })  # fmt: skip
    with pytest.raises(SourceError, match="its folders are splits"):
        list_samples(find_source(root), root, Context())
    assert listing(root / "train").keys == [b"1.jpg"]


def test_class_folders_with_metadata_are_told(tmp_path: pathlib.Path) -> None:
    root = tree(tmp_path / "d", {
        "cat/1.jpg": "", "dog/2.jpg": "",
        "metadata.csv": "file_name,text\ncat/1.jpg,x\ndog/2.jpg,y\n",
    })  # fmt: skip
    assert any("--source image_folder" in line for line in listing(root).warnings)
    assert list_samples(registry.load("sources", "image_folder"), root, Context()).labels == [0, 1]


@pytest.mark.parametrize("text", ["id,label\n1,2\n", "file_names,x\n9.jpg,2\n"])
def test_a_csv_that_names_no_files_leaves_the_folder_as_it_is(
    tmp_path: pathlib.Path, text: str
) -> None:
    root = tree(tmp_path / "d", {"1.jpg": "", "metadata.csv": text})
    assert find_source(root).name == "flat_folder"


def boxed(**members: Any) -> list[dict[str, Any]]:
    return [{"image": image(), **members}]


@pytest.mark.parametrize("box", [[20, 20, 10, 10], [1, 2, float("nan"), 4]])
def test_boxes_that_end_before_they_begin_are_refused(
    box: list[float], tmp_path: pathlib.Path
) -> None:
    with pytest.raises(BadImagesError, match="as left, top, right, bottom"):
        packio.pack(boxed(boxes=[box], box_labels=[0]), tmp_path / "o.lmdb")


def test_a_member_bbox_is_refused_unless_the_user_says_its_format(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SourceError, match="--box-format"):
        packio.pack(boxed(bbox=[[2, 3, 10, 20]]), tmp_path / "o.lmdb")


@pytest.mark.parametrize("name", ["bbox", "boxes"])
def test_box_format_holds_for_boxes_of_items(name: str, tmp_path: pathlib.Path) -> None:
    what = boxed(**{name: [[2, 3, 10, 20]]}, category=[5])
    assert plain(packed(what, tmp_path / "o.lmdb", box_format="xywh")[0]) == ([[2, 3, 12, 23]], [5])
    assert plain(packed(what, tmp_path / "p.lmdb", box_format="xyxy")[0]) == ([[2, 3, 10, 20]], [5])
    (none,) = packed(what, tmp_path / "q.lmdb", box_format="none")
    assert none.boxes is None
    assert none.meta == {name: [[2, 3, 10, 20]]}
