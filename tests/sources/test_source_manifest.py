"""Manifests are listed as they are written, whatever wrote them, and what is wrong is named."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import made
import numpy as np
import pytest
from named import npy

import packio
from packio.errors import OptionError, SourceError

if TYPE_CHECKING:
    import pathlib

    from packio.sources import Listing

manifest = made.Asked("manifest")


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder of files a.jpg … e.jpg, and one in a folder."""
    root = tmp_path / "data"
    (root / "deep").mkdir(parents=True)
    for name in ("a.jpg", "b.jpg", "c.jpg", "d.jpg", "e.jpg", "deep/f.jpg"):
        (root / name).write_bytes(b"image " + name.encode())
    return root


def _list(
    folder: pathlib.Path, text: str | bytes, name: str = "list.csv", **options: Any
) -> Listing:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    assert manifest.recognise(path)
    return manifest.listing(path, **options)


def _labels(listing: Listing) -> Any:
    return listing.labels.tolist() if isinstance(listing.labels, np.ndarray) else listing.labels


def _metas(listing: Listing) -> list[Any]:
    """Read all samples back; what is meta in them."""
    metas = []
    with listing.open_records() as read:
        for i, key in enumerate(listing.keys):
            item = read(i)
            assert item.image.data == b"image " + key
            assert listing.sizes[i] == len(item.image.data)
            metas.append(None if item.meta is None else json.loads(item.meta))
    return metas


def test_names_become_sorted_classes_and_the_order_stays(folder: pathlib.Path) -> None:
    listing = _list(folder, "path,label\nb.jpg,dog\ndeep/f.jpg,cat\na.jpg,dog\n")
    assert listing.keys == [b"b.jpg", b"deep/f.jpg", b"a.jpg"]
    assert (listing.labels, listing.classes) == ([1, 0, 1], ["cat", "dog"])
    assert _metas(listing) == [None] * 3
    told = "list.csv: took column 'path' as path, 'label' as label (2 classes); "
    assert listing.warnings == [told + "--path-col and --label-col say otherwise"]


@pytest.mark.parametrize(
    ("columns", "names"), [("x_b,x_a", ["x_b", "x_a"]), ("x_*", ["x_a", "x_b"]), ("x_b", [])]
)
def test_several_columns_make_a_vector(
    columns: str, names: list[str], folder: pathlib.Path
) -> None:
    text = "path,x_a,x_b\na.jpg,1,-1\nb.jpg,True,0.5\n"
    listing = _list(folder, text, label_col=columns)
    table = {"x_a": [1, 1], "x_b": [-1, 0.5]}
    expected = np.array([table[n] for n in names or ["x_b"]], np.float32).T
    assert np.array_equal(listing.labels, expected, equal_nan=True)  # type: ignore[arg-type]  # not None
    assert listing.classes == names


def test_vector_columns_come_in_the_order_of_the_classes_given(folder: pathlib.Path) -> None:
    text = "path,p,q\na.jpg,1,2\n"
    listing = _list(folder, text, label_col="p,q", classes=["q", "p"])
    assert _labels(listing) == [[2.0, 1.0]]
    with pytest.raises(SourceError, match=r"label columns 'p', 'q'; --classes-from says 'p'"):
        _list(folder, text, label_col="p,q", classes=["p"])


def test_several_labels_in_a_cell(folder: pathlib.Path) -> None:
    text = "path,tags\na.jpg,sea|sun\nb.jpg,\nc.jpg, sun | \n"
    listing = _list(folder, text, label_col="tags", label_sep="|")
    assert listing.classes == ["sea", "sun"]
    assert _labels(listing) == [[1, 1], [0, 0], [0, 1]]
    wider = _list(folder, text, label_col="tags", label_sep="|", classes=["sun", "x", "sea"])
    assert _labels(wider) == [[1, 0, 1], [0, 0, 0], [1, 0, 0]]


def test_classes_given_decide_the_labels(folder: pathlib.Path) -> None:
    text = "path,label\na.jpg,dog\nb.jpg,cat\n"
    assert _list(folder, text, classes=["dog", "emu", "cat"]).labels == [0, 2]
    with pytest.raises(SourceError, match=r"list.csv: 1 class\(es\) that --classes-from .*: cat"):
        _list(folder, text, classes=["dog"])
    numbers = "path,label\na.jpg,0\nb.jpg,2\n"
    assert _list(folder, numbers, classes=["x", "y", "z"]).labels == [0, 2]
    assert _list(folder, numbers, classes=["2", "1", "0"]).labels == [2, 0]
    with pytest.raises(SourceError, match=r"list.csv:3: the label is 2; expected 0..1"):
        _list(folder, numbers, classes=["x", "y"])


def test_further_columns_are_meta(folder: pathlib.Path) -> None:
    text = (
        "path,age,zip,note,,label\n"
        'a.jpg,3,007,"two\nlines, ""quoted""",x,0\n'
        "b.jpg,,010,,y,1\n"
        "c.jpg,-2.5e3,1,ä,z,0\n"
    )
    metas = _metas(_list(folder, text))
    assert metas == [
        {"age": 3, "zip": "007", "note": 'two\nlines, "quoted"', "column_5": "x"},
        {"age": None, "zip": "010", "note": "", "column_5": "y"},
        {"age": -2500.0, "zip": "1", "note": "ä", "column_5": "z"},
    ]


def test_json_lines(folder: pathlib.Path) -> None:
    objects = [
        {"file_name": "a.jpg", "label": ["x", "y"], "n": float("nan"), "q": {"z": [1, "ä"]}},
        {"label": [], "file_name": "b.jpg"},
        {"file_name": "c.jpg", "label": ["y"], "more": None, "big": 1 << 70},
    ]
    text = "\ufeff" + "\n\n".join(map(json.dumps, objects))
    listing = _list(folder, text, "list.jsonl")
    assert listing.classes == ["x", "y"]
    assert _labels(listing) == [[1, 1], [0, 0], [0, 1]]
    assert _metas(listing) == [
        {"n": None, "q": {"z": [1, "ä"]}}, {}, {"more": None, "big": 1 << 70}
    ]  # fmt: skip


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_every_dialect_is_found_out(
    delimiter: str, mark: str, ending: str, folder: pathlib.Path
) -> None:
    rows = ["path,note,label", '"a.jpg","x, y; z",1', "", "b.jpg, w,2", ",,"]
    text = mark + ending.join(rows).replace(",", delimiter)
    listing = _list(folder, text)
    assert (listing.keys, listing.labels) == ([b"a.jpg", b"b.jpg"], [1, 2])
    notes = [meta["note"] for meta in _metas(listing)]
    assert notes == [rows[1].split('"')[3].replace(",", delimiter), " w"]


@pytest.mark.parametrize(
    ("name", "text", "labels"),
    [
        ("list.txt", "a.jpg 3\ndeep/f.jpg  7\n", [3, 7]),  # Caffe's
        ("list.csv", "a.jpg,x\ndeep/f.jpg,y\n", [0, 1]),
        ("list.tsv", "x\ta.jpg\ny\tdeep/f.jpg\n", [0, 1]),
        ("list.txt", "a.jpg\ndeep/f.jpg\n", None),
        ("list.csv", "a.jpg,1,2\ndeep/f.jpg,3,4\n", None),
    ],
)
def test_a_header_is_not_needed(name: str, text: str, labels: Any, folder: pathlib.Path) -> None:
    listing = _list(folder, text, name)
    assert (listing.keys, listing.labels) == ([b"a.jpg", b"deep/f.jpg"], labels)


def test_columns_without_names_have_numbers(folder: pathlib.Path) -> None:
    listing = _list(folder, "a.jpg 1 2\nb.jpg 3 4\n", "l.txt", label_col="1,2")
    assert _labels(listing) == [[1, 2], [3, 4]]


def test_other_columns_can_be_named(folder: pathlib.Path) -> None:
    text = "path,file2,label,kind\nx,a.jpg,1,p\nx,b.jpg,1,q\n"
    listing = _list(folder, text, path_col="file2", label_col="kind")
    assert (listing.keys, listing.labels, listing.warnings) == ([b"a.jpg", b"b.jpg"], [0, 1], [])
    assert _metas(listing)[0] == {"path": "x", "label": 1}
    assert _list(folder, text, path_col="file2", label_col="").labels is None


def test_endings_are_appended_where_they_are_missing(folder: pathlib.Path) -> None:
    (folder / "v1.2.jpg").write_bytes(b"image v1.2.jpg")
    for ext in ("jpg", ".jpg"):
        listing = _list(folder, "id,label\na,1\nb.JPG,2\nv1.2,1\n", ext=ext)
        assert listing.keys == [b"a.jpg", b"b.JPG", b"v1.2.jpg"]


def test_bytes_that_are_no_utf8_reach_the_file_by_json(folder: pathlib.Path) -> None:
    (folder / os.fsdecode(b"caf\xe9.jpg")).write_bytes(b"image caf\xe9.jpg")
    row = json.dumps({"path": os.fsdecode(b"caf\xe9.jpg"), "label": "a", "x": 1})
    listing = _list(folder, row.encode(), name="list.jsonl")
    assert (listing.keys, listing.classes) == ([b"caf\xe9.jpg"], ["a"])
    assert _metas(listing) == [{"x": 1}]


@pytest.mark.parametrize("column", ["label", "note", "caption"])
def test_text_in_another_charset_is_refused_or_named(column: str, folder: pathlib.Path) -> None:
    names = {"label": "x", "note": "x", "caption": "x", column: "é"}
    row = "a.jpg,{label},{note},{caption}\n".format(**names)
    text = "path,label,note,caption\n" + row
    fields = {"caption": ("caption", "text")}
    with pytest.raises(SourceError, match=r"csv:2: b'.xe9.*' is not utf-8; .* --charset"):
        _list(folder, text.encode("latin-1"), fields=fields)
    listing = _list(folder, text.encode("latin-1"), fields=fields, charset="latin-1")
    assert listing.classes == [names["label"]]
    with listing.open_records() as read:
        record = read(0)
    assert json.loads(record.meta or b"") == {"note": names["note"]}
    assert record.fields["caption"].data == names["caption"].encode()
    for charset in ("utf-99", "utf-16"):
        with pytest.raises(OptionError, match=charset):
            _list(folder, text, charset=charset)


def test_empty_text_is_a_text_and_an_empty_path_is_none(folder: pathlib.Path) -> None:
    (folder / "d.npy").write_bytes(npy(np.zeros(2)))
    csv = "path,caption,depth\na.jpg,,\nb.jpg,  two,d.npy\nc.jpg, ,\n"
    objects = [
        {"path": "a.jpg", "caption": "", "depth": ""}, {"path": "d.jpg", "depth": None},
        {"path": "b.jpg", "caption": "  two", "depth": "d.npy"}, {"path": "c.jpg", "caption": " "},
    ]  # fmt: skip
    json_lines = "".join(json.dumps(line) + "\n" for line in objects)
    for kinds in ({"caption": "text", "depth": "array"}, {"caption": None, "depth": None}):
        fields = {name: (name, kind) for name, kind in kinds.items()}
        for name, text in (("list.csv", csv), ("list.jsonl", json_lines)):
            listing = _list(folder, text, name, fields=fields)
            with listing.open_records() as read:
                found = {key: read(i).fields for i, key in enumerate(listing.keys)}
            captions = {k: f["caption"].data for k, f in found.items() if "caption" in f}
            assert captions == {b"a.jpg": b"", b"b.jpg": b"  two", b"c.jpg": b" "}
            assert [k for k, f in found.items() if "depth" in f] == [b"b.jpg"]


def test_blanks_after_each_delimiter_are_no_part_of_a_cell(folder: pathlib.Path) -> None:
    listing = _list(folder, 'path, label, note\na.jpg, cat, "one, two"\nb.jpg, dog,  three\n')
    assert listing.classes == ["cat", "dog"]
    assert _metas(listing) == [{"note": "one, two"}, {"note": "three"}]
    listing = _list(folder, "path,label,note\na.jpg, cat, 1\nb.jpg,dog,2\n")
    assert listing.classes == ["cat", "dog"]
    assert _metas(listing) == [{"note": " 1"}, {"note": "2"}]


@pytest.mark.parametrize("form", ["{root}/{name}", "./{name}", "deep/../{name}", ".//{name}"])
def test_paths_below_the_root_make_plain_keys(form: str, folder: pathlib.Path) -> None:
    paths = [form.format(root=folder, name=name) for name in ("a.jpg", "deep/f.jpg")]
    listing = _list(folder, f"path,label\n{paths[0]},1\n{paths[1]},2\n")
    assert listing.keys == [b"a.jpg", b"deep/f.jpg"]
    _metas(listing)


def test_paths_that_leave_the_root_share_a_folder(folder: pathlib.Path) -> None:
    lists = folder.parent / "lists"
    lists.mkdir()
    for path in ("../data/a.jpg", f"{folder}/a.jpg"):
        listing = _list(lists, f"path,label,x\n{path},1,2\n")
        assert listing.keys == [b"data/a.jpg"]
        assert "paths lead out of" in listing.warnings[1]
        with listing.open_records() as read:
            assert read(0).image.data == b"image a.jpg"
    below = _list(lists, "path,label\na.jpg,1\n", root=str(folder))
    assert below.keys == [b"a.jpg"]
    assert _list(lists, f"path,label\n{folder}/a.jpg,1\n", root=folder).keys == [b"a.jpg"]


def test_missing_files_are_bad_images(folder: pathlib.Path) -> None:
    os.mkdir(folder / "g.jpg")
    listing = _list(folder, f"path,label\na.jpg,1\nnone.jpg,1\ng.jpg,2\n{'x' * 300},3\n")
    assert listing.sizes[1] == listing.sizes[3] == -1
    with listing.open_records() as read:
        for i in (1, 2, 3):
            with pytest.raises((OSError, packio.DecodeError)):
                read(i)
        assert read(0).image.data == b"image a.jpg"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "nothing in it"),
        ("\n\n", "nothing in it"),
        ("path,label\n", "no line below"),
        ("path,path\n", "list.csv:1: two columns are called 'path'"),
        ("path,label\na.jpg,1\nb.jpg,2,3\n", "list.csv:3: 3 cells; expected 2"),
        ("path,label\na.jpg,1\n\n\nb.jpg\n", "list.csv:5: 1 cells; expected 2"),
        ('path,label\na.jpg,1\nb.jpg,"2\n', "list.csv:3: unexpected end of data"),
        ('path,label\na.jpg,"1"x\nb.jpg,2\n', "list.csv:2: ',' expected after '\"'"),
        ("path,label\na.jpg,1\n,2\n", "list.csv:3: '' in column 'path'"),
        ("path,label\nx.jpg,1\n", "none of its 1 images exists; the first would be .*/x.jpg"),
        ("path,label\na.jpg,1\nb.jpg,1\na.jpg,1\n", "list.csv:4: 'a.jpg' again, as in .*csv:2"),
        (
            "path,label\na.jpg,1\nb.jpg,1\nb.jpg,1\n./a.jpg,2\n",
            r"list.csv:5: 'a.jpg' again with different labels \(1, 2\), as in .*csv:2; 2 lines",
        ),
        ("path,label\na.jpg,1\n".encode("utf-16"), "no UTF-8 text, it begins ff fe"),
        (b"\x89PNG\r\n\x1a\n\0\0", "no UTF-8 text"),
        (f"path,label\na.jpg,{'9' * 200_000}\n", "list.csv:2: field larger than field limit"),
        (b"path,label\n" + b" " * 1100 + b"\na\0.jpg,1\n", r"'a\\x00.jpg' in column 'path'|NUL"),
    ],
)
def test_what_makes_no_sense_is_named_with_its_line(
    text: str | bytes, message: str, folder: pathlib.Path
) -> None:
    with pytest.raises(SourceError, match=message):
        _list(folder, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"path": "a.jpg"}\n[1]\n', "list.jsonl:2: no JSON object"),
        ('{"path": "a.jpg"}\n{"path":\n', "list.jsonl:2: no JSON object: Expecting value"),
        ('{"path": "a.jpg"},{"path": "b.jpg"}\n', "list.jsonl:1: no JSON object: Extra data"),
        ('{"path": "a.jpg"}\n{"label": 1}\n', "list.jsonl:2: None in column 'path'"),
        ('{"path": "a.jpg"}\n{"path": 7}\n', "list.jsonl:2: 7 in column 'path'"),
        ('{"path": "a.jpg", "label": {"x": 1}}\n', "labels: JSONObject .* at .*list.jsonl:1"),
        ('{"path": "a.jpg", "label": 1}\n{"path": "b.jpg", "label": "x"}', "int 1 .* str 'x'"),
        (
            '{"path": "a.jpg", "label": [1]}\n{"path": "b.jpg", "label": [1.5, 2]}',
            "jsonl:2: 2 numb",
        ),
        ("[" * 100_000, "list.jsonl:1: no JSON object: maximum recursion depth"),
        ('{"path": "a.jpg", "x": ' + "9" * 5000 + "}", "list.jsonl:1: no JSON object"),
    ],
)
def test_json_that_makes_no_sense_is_named_with_its_line(
    text: str, message: str, folder: pathlib.Path
) -> None:
    with pytest.raises(SourceError, match=message):
        _list(folder, text, "list.jsonl")


def test_options_that_make_no_sense_are_refused(folder: pathlib.Path) -> None:
    text = "what,label\na.jpg,1\n"
    for options in ({"path_col": "x"}, {"label_col": "x"}, {"label_col": "y_*"}):
        with pytest.raises(OptionError, match=r"expected (path|label)_col to be ('0', )?'1'"):
            _list(folder, text[11:], **options)
    with pytest.raises(OptionError, match="which column has the paths"):
        _list(folder, "what,label\na,1\n")
    with pytest.raises(OptionError, match="delimiter='ab': expected one character"):
        _list(folder, text, delimiter="ab")
    with pytest.raises(SourceError, match=r"nowhere: No such file .* relative to"):
        _list(folder, text[11:], root=folder / "nowhere")


def test_a_manifest_that_changes_is_not_believed(folder: pathlib.Path) -> None:
    listing = _list(folder, "path,label,x\na.jpg,1,2\n")
    time.sleep(0.01)
    again = _list(folder, "path,label,x\na.jpg,1,3\n")
    assert listing.version != again.version
    with pytest.raises(SourceError, match="changed after it was listed"), listing.open_records():
        pass


def test_records_go_on_over_blocks(folder: pathlib.Path) -> None:
    """A block is 1 MiB; quoted line ends, also at its end, are part of a cell."""
    note = "line\n" * 20_000
    rows = [f'{n}.jpg,"{note}{n}"\n' for n in "abcde"] * 5
    names = [f"{i}.jpg" for i in range(len(rows))]
    for i, name in enumerate(names):
        (folder / name).write_bytes(b"image " + name.encode())
        rows[i] = f'{name},"{note}{i}"\n'
    listing = _list(folder, "path,note\n" + "".join(rows))
    assert listing.keys == [name.encode() for name in names]
    assert [meta["note"] for meta in _metas(listing)] == [f"{note}{i}" for i in range(len(rows))]


_MANY = """
import pathlib, resource, sys
from packio.sources import Context
from packio.sources.manifest import SOURCE
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
listing = SOURCE.listing(pathlib.Path(sys.argv[1]), Context())
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(len(listing.keys), after - before)
"""


def test_a_long_list_takes_little_memory(folder: pathlib.Path) -> None:
    count = 100_000
    lines = (f"{i % 100}/{i:08d}.jpg,class{i % 1000},{i},some more text" for i in range(count))
    (folder / "list.csv").write_text("path,label,n,note\na.jpg,class0,0,x\n" + "\n".join(lines))
    found, kilobytes = map(int, made.in_a_process(_MANY, folder / "list.csv").split())
    assert found == count + 1
    assert kilobytes * 1024 < 500 * count  # keys alone are 60 bytes each
