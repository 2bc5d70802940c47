"""Pascal VOC datasets become boxes; each oddity of such files is taken, or refused by name.

What must come out is computed here with xml.etree and the development kit's rule: pixels count from
1, and xmax is the last pixel of the box.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any
from xml.etree import ElementTree as ET

import made
import pytest
from annotated import HEIGHT, WIDTH, boxes, image, packed, tree, unlisted

import packio
from packio import registry
from packio.errors import BadImagesError, OptionError, SourceError
from packio.packing.sourcing import find_source
from packio.sources import Context, list_samples

listing = made.Asked("voc").listing


def thing(name: str, box: tuple[Any, ...], more: str = "") -> str:
    sides = zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    corners = "".join(f"<{side}>{value}</{side}>" for side, value in sides)
    return f"<object><name>{name}</name>{more}<bndbox>{corners}</bndbox></object>"


def xml(*things: str, size: tuple[int, int] | None = (WIDTH, HEIGHT), more: str = "") -> str:
    said = "" if size is None else (
        f"<size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>"
    )  # fmt: skip
    return f"<annotation>{more}{said}{''.join(things)}</annotation>\n"


def voc(root: pathlib.Path, *things: str, **more: Any) -> pathlib.Path:
    """A dataset of one image with these objects."""
    files = {"JPEGImages/1.jpg": "", "Annotations/1.xml": xml(*things, **more)}
    return tree(root / "VOC2012", files)


def only(path: pathlib.Path, **options: Any) -> packio.Sample:
    (found,) = packed(path, **options).values()
    return found


DOGS = """<annotation>
	<folder>VOC2012</folder>
	<filename>2007_000027.jpg</filename>
	<source><database>The VOC2007 Database</database></source>
	<size><width>40</width><height>30</height><depth>3</depth></size>
	<segmented>0</segmented>
	<object>
		<name>person</name><pose>Left</pose><truncated>1</truncated><difficult>0</difficult>
		<bndbox><xmax>20</xmax><xmin>2.5</xmin><ymax>30</ymax><ymin>1</ymin></bndbox>
		<part><name>head</name><bndbox><xmin>3</xmin><ymin>3</ymin><xmax>9</xmax><ymax>9</ymax>
		</bndbox></part>
		<part><name>hand</name><bndbox><xmin>3</xmin><ymin>9</ymin><xmax>5</xmax><ymax>12</ymax>
		</bndbox></part>
	</object>
	<object>
		<name>dog</name><pose>Unspecified</pose><difficult>1</difficult>
		<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>40</xmax><ymax>30</ymax></bndbox>
	</object>
</annotation>"""


def test_objects_are_read_as_the_development_kit_says(tmp_path: pathlib.Path) -> None:
    root = tree(tmp_path / "d", {"JPEGImages/a.jpg": "", "Annotations/a.xml": DOGS})
    wanted, names = [], []
    for entry in ET.fromstring(DOGS).findall("object"):  # noqa: S314 (own text)
        x0, y0, x1, y1 = (
            float(entry.findtext(f"bndbox/{side}") or "nan")
            for side in ("xmin", "ymin", "xmax", "ymax")
        )
        wanted.append([x0 - 1, y0 - 1, x1, y1])
        names.append(entry.findtext("name"))
    found = only(root)
    assert boxes(found) == wanted == [[1.5, 0, 20, 30], [0, 0, 40, 30]]
    with packio.open(tmp_path / "d.lmdb") as pack:
        assert found.box_labels is not None
        assert [pack.classes[i] for i in found.box_labels.tolist()] == names
        assert pack.classes == ["dog", "person"]
    assert {n: c.tolist() for n, c in found.box_columns.items()} == {
        "difficult": [0, 1], "truncated": [1, 0],
    }  # fmt: skip


def test_all_else_becomes_metadata(tmp_path: pathlib.Path) -> None:
    root = tree(tmp_path / "d", {"JPEGImages/a.jpg": "", "Annotations/a.xml": DOGS})
    meta = only(root).meta
    assert meta is not None
    assert meta["filename"] == "2007_000027.jpg"
    assert meta["source"] == {"database": "The VOC2007 Database"}
    assert [entry["pose"] for entry in meta["object"]] == ["Left", "Unspecified"]
    assert [part["name"] for part in meta["object"][0]["part"]] == ["head", "hand"]


def test_the_file_names_its_image_by_its_own_name(tmp_path: pathlib.Path) -> None:
    wrong = xml(thing("cat", (1, 1, 2, 2)), more="<filename>Unknown</filename><path>C:\\x</path>")
    root = tree(tmp_path / "d", {"JPEGImages/a b.JPG": "", "Annotations/a b.xml": wrong})
    assert listing(root).keys == [b"JPEGImages/a b.JPG"]


@pytest.mark.parametrize(
    "files",
    [
        ("1.jpg", "1.xml"),
        ("1.jpg", "annotations/1.xml"),
        ("images/1.jpg", "annotations/1.xml"),
        ("images/x/1.jpg", "annotations/x/1.xml"),
        ("JPEGImages/1.png", "Annotations/1.xml"),
    ],
)
def test_images_and_xml_files_meet_in_each_usual_layout(
    tmp_path: pathlib.Path, files: tuple[str, str]
) -> None:
    root = tree(tmp_path / "d", {files[0]: "", files[1]: xml(thing("cat", (1, 1, 20, 15)))})
    assert find_source(root).name == "voc"
    assert boxes(packed(root)[files[0]]) == [[0, 0, 20, 15]]


def test_folders_called_train_and_valid_are_splits(tmp_path: pathlib.Path) -> None:
    one = xml(thing("cat", (1, 1, 2, 2)))
    root = tree(tmp_path / "d", {
        "train/a.jpg": "", "train/a.xml": one, "valid/b.jpg": "", "valid/b.xml": one,
        "README.roboflow.txt": "",
    })  # fmt: skip
    found = listing(root)
    assert find_source(root).name == "voc"
    assert [found.split_names[i] for i in found.splits or ()] == ["train", "valid"]


def test_lists_are_splits_and_an_image_is_one_sample(tmp_path: pathlib.Path) -> None:
    files = {f"JPEGImages/{i}.jpg": "" for i in range(6)}
    files |= {f"Annotations/{i}.xml": xml(thing("cat", (1, 1, 2, 2))) for i in range(6)}
    root = tree(tmp_path / "d", files | {
        "ImageSets/Main/train.txt": "0\n1\n", "ImageSets/Main/val.txt": "2\n",
        "ImageSets/Main/trainval.txt": "0\r\n1\r\n2\r\n4\r\n", "ImageSets/Main/test.txt": "3.jpg\n",
        "ImageSets/Main/cat_train.txt": "0  1\n1 -1\n",
    })  # fmt: skip
    found = listing(root)
    splits = [found.split_names[i] for i in found.splits or ()]
    assert dict(zip(found.keys, splits, strict=True)) == {
        b"JPEGImages/0.jpg": "train", b"JPEGImages/1.jpg": "train", b"JPEGImages/2.jpg": "val",
        b"JPEGImages/3.jpg": "test", b"JPEGImages/4.jpg": "trainval",
    }  # fmt: skip
    assert found.dropped == [(b"JPEGImages/5.jpg", "in no list of ImageSets/Main")]
    assert not found.unlisted
    assert len(packed(root)) == 5


def test_lists_that_contradict_are_refused(tmp_path: pathlib.Path) -> None:
    root = voc(tmp_path, thing("cat", (1, 1, 2, 2)))
    tree(root, {"ImageSets/Main/train.txt": "1\n7\n", "ImageSets/Main/val.txt": "1\n"})
    assert unlisted(listing(root)) == [
        "7: train.txt:2 names it, and there is no image with this stem",
        "1: in train.txt and in val.txt; a sample has one split",
    ]


def test_default_lists_of_cvat_are_no_splits(tmp_path: pathlib.Path) -> None:
    root = voc(tmp_path, thing("cat", (1, 1, 2, 2)))
    tree(root, {"ImageSets/Main/default.txt": "1\n", "labelmap.txt": "cat:::\n"})
    assert (listing(root).keys, listing(root).splits) == (
        [b"JPEGImages/1.jpg"],
        None,
    )


def test_an_image_without_file_and_a_file_without_image_are_refused(
    tmp_path: pathlib.Path,
) -> None:
    root = voc(tmp_path, thing("cat", (1, 1, 2, 2)))
    tree(root, {"JPEGImages/2.jpg": "", "Annotations/3.xml": xml(), "Annotations/z.xml": "<x/>"})
    with pytest.raises(BadImagesError, match=r"Annotations/2\.xml: not there; a file without"):
        packio.pack(root, tmp_path / "o.lmdb")
    assert "Annotations/3.xml: annotations of an image that is not there" in unlisted(listing(root))
    assert len(unlisted(listing(root))) == 2
    assert packio.pack(root, tmp_path / "o.lmdb", on_error="skip").packed == 1


def test_a_file_without_objects_is_an_image_without_boxes(tmp_path: pathlib.Path) -> None:
    assert boxes(only(voc(tmp_path))) == []


@pytest.mark.parametrize("size", [(0, 0), (0, 30), None])
def test_a_size_of_0_is_unknown(tmp_path: pathlib.Path, size: tuple[int, int] | None) -> None:
    assert boxes(only(voc(tmp_path, thing("cat", (2, 3, 9, 9)), size=size))) == [[1, 2, 9, 9]]


def test_the_size_of_another_image_is_refused(tmp_path: pathlib.Path) -> None:
    root = voc(tmp_path, thing("cat", (1, 1, 400, 300)), size=(400, 300))
    with pytest.raises(BadImagesError, match="400x300"):
        packio.pack(root, tmp_path / "o.lmdb")
    assert boxes(only(root, rescale_boxes=True)) == [[0, 0, 40, 30]]


@pytest.mark.parametrize(("size", "wanted"), [((30, 40), [21, 0, 28, 11]), ((40, 30), None)])
def test_the_size_says_in_which_frame_boxes_lie(
    tmp_path: pathlib.Path, size: tuple[int, int], wanted: list[float] | None
) -> None:
    root = voc(tmp_path, thing("cat", (22, 1, 28, 11)), size=size)
    (root / "JPEGImages" / "1.jpg").write_bytes(image(turned=6))
    packio.pack(root, tmp_path / "o.lmdb")
    _, found = packio.LmdbDataset(tmp_path / "o.lmdb", fields=("image", "boxes"))[0]
    # stored, the box is x 21..28, y 0..11; orientation 6 turns it clockwise: x' = 30 - y
    assert found.tolist() == [wanted or [19, 21, 30, 28]]


def test_files_that_count_from_0_need_the_users_word(tmp_path: pathlib.Path) -> None:
    root = voc(tmp_path, thing("cat", (0, 3, 20, 20)))
    with pytest.raises(OptionError, match=r"1\.xml: a box begins before 1, .*--first-pixel 0"):
        listing(root)
    assert boxes(only(root, first_pixel="0")) == [[0, 3, 20, 20]]
    assert boxes(only(root, first_pixel=1, overwrite=True)) == [[-1, 2, 20, 20]]
    with pytest.raises(OptionError, match="expected '0' or '1'"):
        listing(root, first_pixel="2")


def test_names_stay_as_they_are(tmp_path: pathlib.Path) -> None:
    names = ["Cat", "cat", "traffic light", "大熊猫", "\n\tdog\n", "R&amp;D"]
    root = voc(tmp_path, *(thing(name, (1, 1, 2, 2)) for name in names))
    assert listing(root).classes == [
        "Cat",
        "R&D",
        "cat",
        "dog",
        "traffic light",
        "大熊猫",
    ]
    with pytest.raises(SourceError, match="does not name"):
        listing(root, classes=["cat"])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (xml(thing("cat", (9, 1, 2, 2))), "object 1, 'cat': .* expected the corners of a box"),
        (xml(thing("cat", ("a", 1, 2, 2))), "expected the corners"),
        (xml(thing("cat", ("nan", 1, 2, 2))), "expected the corners"),
        (xml("<object><name>cat</name><bndbox><xmin>1</xmin></bndbox></object>"), "corners"),
        (xml("<object><name>cat</name><robndbox><cx>1</cx></robndbox></object>"), "robndbox"),
        (xml("<object><name>cat</name><polygon><x1>1</x1></polygon></object>"), "polygon"),
        (xml(thing("", (1, 1, 2, 2))), "object 1 has no name"),
        (xml(thing("cat", (1, 1, 2, 2), "<difficult>7</difficult>")), "difficult to be 0 or 1"),
        ("", "no element found"),
        ("<annotation>", "no XML"),
        ("<annotations><image/></annotations>", "no <annotation> with members"),
        (xml(thing("café", (1, 1, 2, 2))).encode("latin-1"), "Save as UTF-8"),
        ("<?xml version='1.0' encoding='gb2312'?><annotation/>", "Save as UTF-8"),
        ("<!DOCTYPE annotation><annotation/>", "a DOCTYPE"),
        ("<!DOCTYPE a [<!ENTITY x SYSTEM '/etc/passwd'>]><annotation>&x;</annotation>", "DOCTYPE"),
        ("<annotation>&lol;</annotation>", "undefined entity"),
        ("<annotation>" + "<a>" * 50 + "</a>" * 50 + "</annotation>", "20 elements deep"),
    ],
)
def test_a_file_without_sense_is_refused_by_name(
    tmp_path: pathlib.Path, content: str | bytes, told: str
) -> None:
    root = voc(tmp_path, thing("cat", (1, 1, 2, 2)))
    tree(root, {"JPEGImages/2.jpg": "", "Annotations/2.xml": content})
    with pytest.raises(BadImagesError, match=rf"Annotations/2\.xml: .*{told}"):
        packio.pack(root, tmp_path / "o.lmdb")


@pytest.mark.parametrize("before", ["\ufeff", "\n  ", "<?xml version='1.0' encoding='UTF-8'?>\n"])
def test_what_tools_put_before_the_first_element_is_taken(
    tmp_path: pathlib.Path, before: str
) -> None:
    root = voc(tmp_path)
    (root / "Annotations/1.xml").write_text(before + xml(thing("cat", (1, 1, 2, 2))), "utf-8")
    assert boxes(only(root)) == [[0, 0, 2, 2]]


def test_truth_values_of_flags_are_read(tmp_path: pathlib.Path) -> None:
    values = ["1", "0", "Unspecified", "True", ""]
    flags = [f"<occluded>{value}</occluded>" for value in values]
    found = only(voc(tmp_path, *(thing("cat", (1, 1, 2, 2), flag) for flag in flags)))
    assert found.box_columns["occluded"].tolist() == [1, 0, 0, 1, 0]


def test_a_dataset_with_masks_is_of_pairs_and_each_says_how_to_get_the_other(
    tmp_path: pathlib.Path,
) -> None:
    root = voc(tmp_path, thing("cat", (1, 1, 2, 2)))
    tree(root, {"SegmentationClass/1.png": ""})
    assert find_source(root).name == "pairs"
    masks = list_samples(registry.load("sources", "pairs"), root, Context())
    assert any("--source voc" in line for line in masks.warnings)
    assert any("--source pairs" in line for line in listing(root).warnings)
    tree(root, {"ImageSets/Segmentation/train.txt": "1\n"})
    with pytest.raises(SourceError, match="--source voc"):
        list_samples(registry.load("sources", "pairs"), root, Context())


def test_several_years_are_packed_each_by_itself(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "VOCdevkit"
    for year in ("VOC2007", "VOC2012"):
        tree(root / year, {"JPEGImages/1.jpg": "", "Annotations/1.xml": xml()})
    assert find_source(root).name == "voc"
    with pytest.raises(SourceError, match=r"packio pack \S+VOC2007 VOC2007.lmdb; packio pack"):
        listing(root)


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (["images/1.png", "annotations/1.png"], "pairs"),
        (["cats/1.jpg", "cats/1.xml"], "image_folder"),
        (["1.jpg", "settings.xml"], "flat_folder"),
    ],
)
def test_folders_of_other_sources_stay_theirs(
    tmp_path: pathlib.Path, files: list[str], name: str
) -> None:
    root = tree(tmp_path / "d", {n: "<x/>" if "xml" in n else "" for n in files})
    assert find_source(root).name == name


def test_a_voc_pack_is_extracted(tmp_path: pathlib.Path) -> None:
    from packio.inspecting.extracting import extract

    only(voc(tmp_path, thing("cat", (1, 1, 2, 2), "<difficult>1</difficult>")))
    extract(tmp_path / "VOC2012.lmdb", tmp_path / "out", fields=["image", "boxes"])
    line = json.loads((tmp_path / "out" / "packio.jsonl").read_text().splitlines()[0])
    assert (line["boxes"], line["boxes/difficult"]) == ([[0, 0, 2, 2]], [1])
