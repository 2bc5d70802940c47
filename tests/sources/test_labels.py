"""What becomes a label, and what is missing: the same rules for every source."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import made
import numpy as np
import pytest
import torch

import packio
from packio import registry
from packio.errors import BadImagesError, OptionError, OutputError, SourceError
from packio.inspecting.extracting import extract

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Sequence

_NAMES = ("a.png", "b.png", "c.png")


def _images(folder: pathlib.Path, names: Sequence[str] = _NAMES) -> pathlib.Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_bytes(made.png())
    return folder


def _csv(folder: pathlib.Path, *labels: str, header: str = "path,label") -> pathlib.Path:
    table = _images(folder) / "list.csv"
    rows = [f"{name},{label}" for name, label in zip(_NAMES, labels, strict=False)]
    table.write_text("\n".join([header, *rows]))
    return table


def _jsonl(folder: pathlib.Path, *labels: Any) -> pathlib.Path:
    table = _images(folder) / "list.jsonl"
    pairs = zip(_NAMES, labels, strict=False)
    table.write_text("\n".join(json.dumps({"path": n, "label": x}) for n, x in pairs))
    return table


def _parquet(folder: pathlib.Path, *labels: Any) -> pathlib.Path:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder.mkdir(exist_ok=True)
    table = {"image": [{"bytes": made.png(), "path": None}] * len(labels), "label": list(labels)}
    parquet.write_table(arrow.table(table), folder / "t.parquet")
    return folder / "t.parquet"


def _items(_: pathlib.Path, *labels: Any) -> list[dict[str, Any]]:
    return [{"image": made.png(), "label": label} for label in labels]


def _pack(source: Any, folder: pathlib.Path, **options: Any) -> tuple[Any, packio.Pack]:
    report = packio.pack(source, folder / "out.tar", overwrite=True, **options)
    return report, packio.open(folder / "out.tar")


@pytest.mark.parametrize("text", [
    "", "nan", "NaN", "na", "NA", "N/A", "null", "None", "none", "<NA>", "#N/A", "#NA",
])  # fmt: skip
@pytest.mark.parametrize("others", [("cat", "dog"), ("0", "1"), ("0.5", "1.5")])
def test_a_missing_label_in_a_list_is_refused_with_its_line(
    text: str, others: tuple[str, str], tmp_path: pathlib.Path
) -> None:
    table = _csv(tmp_path, others[0], text, others[1])
    with pytest.raises(BadImagesError, match=r"list\.csv:3: no label"):
        packio.pack(table, tmp_path / "out.tar")
    report, pack = _pack(table, tmp_path, on_error="skip")
    assert (report.packed, len(report.skipped)) == (2, 1)
    assert [sample.key for sample in pack] == ["a.png", "c.png"]
    assert pack.classes == (["cat", "dog"] if others[0] == "cat" else [])


@pytest.mark.parametrize("make", [_jsonl, _parquet, _items])
@pytest.mark.parametrize(
    ("labels", "missing"),
    [
        ((0, 1), None), ((0.5, 1.5), float("nan")), (("cat", "dog"), None),
        (("cat", "dog"), "nan"), (("cat", "dog"), "None"), (("cat", "dog"), ""),
        (([0.5, 1], [2, 3]), None), (([0.5, 1], [2, 3]), [0.5, float("nan")]),
    ],
)  # fmt: skip
def test_a_missing_label_is_a_bad_sample(
    make: Any, labels: Any, missing: Any, tmp_path: pathlib.Path
) -> None:
    source = make(tmp_path, labels[0], missing, labels[1])
    with pytest.raises(BadImagesError, match="no label"):
        packio.pack(source, tmp_path / "out.tar")
    report, pack = _pack(source, tmp_path, on_error="skip")
    assert (report.packed, len(report.skipped)) == (2, 1)
    assert pack.labels is not None
    assert np.isfinite(pack.labels).all()


@pytest.mark.parametrize("label", ["", "nan", "None"])
def test_without_any_label_the_pack_has_none_and_this_is_said(
    label: str, tmp_path: pathlib.Path
) -> None:
    report, pack = _pack(_csv(tmp_path, label, label), tmp_path, label_col="label")
    assert pack.labels is None
    assert any("no sample has a label" in line for line in report.warnings)


_INTS, _MANY = [7, -1, 7], [[1, 0], [0, 0], [1, 1]]
_TYPED = [_jsonl, _parquet, _items]  # makers of sources that know more types than text
_KEPT: list[tuple[Any, Any, Any]] = [  # makers, labels, and those of the pack
    (_csv, ("+1", "-1", str((1 << 63) - 1)), [1, -1, (1 << 63) - 1]),
    (_csv, ("True", "FALSE", "true"), [1, 0, 1]), (_csv, ("true", "0", "1"), [1, 0, 1]),
    (_csv, ("0.0", "1.0", "3"), [0, 1, 3]), (_jsonl, ("True", "false", "TRUE"), [1, 0, 1]),
    (_TYPED, (7, -1, 7), _INTS), (_TYPED, (True, False, True), [1, 0, 1]),
    (_TYPED, (0.0, 1.0, 3.0), [0, 1, 3]), (_jsonl, (1, True, -3), [1, 1, -3]),
    (_TYPED, ([1, 16777217], [(1 << 62) + 1, -3]), [[1, 16777217], [(1 << 62) + 1, -3]]),
    (_items, (True, np.bool_(False), True), [1, 0, 1]), (_items, (b"7", b"9\n"), [7, 9]),
    (_items, (np.float32(0), 1.0, 3), [0, 1, 3]), (_items, ([16777217], [5]), [16777217, 5]),
    (_items, (np.array([16777217]), np.array([5])), [16777217, 5]),
    (_items, (torch.tensor([16777217]), torch.tensor(3)), [16777217, 3]),
    (_items, (torch.tensor([1, 0]), np.array([0, 0]), [1, 1]), _MANY),
]  # fmt: skip
_FLOATS: list[tuple[Any, Any, Any]] = [
    (_TYPED, (0.5, 2, -1), [[0.5], [2], [-1]]),
    (_TYPED, ([1.0, 2], [3, 4.5]), [[1, 2], [3, 4.5]]),
    (_TYPED, ([0, 2], [1], []), [[1, 0, 1], [0, 1, 0], [0, 0, 0]]),  # positions of classes
    (_TYPED, (["x"], [], ["x", "y"]), _MANY),
    (_items, (0.5, np.float32(1), torch.tensor(-1.0)), [[0.5], [1], [-1]]),
]
_CASES = [
    (make, labels, expected, dtype)
    for table, dtype in ((_KEPT, np.int64), (_FLOATS, np.float32))
    for makers, labels, expected in table
    for make in (makers if isinstance(makers, list) else [makers])
]


@pytest.mark.parametrize(("make", "labels", "expected", "dtype"), _CASES)
def test_labels_keep_their_numbers(
    make: Any, labels: Any, expected: Any, dtype: Any, tmp_path: pathlib.Path
) -> None:
    report, pack = _pack(make(tmp_path, *labels), tmp_path)
    assert pack.labels is not None
    assert (pack.labels.tolist(), pack.labels.dtype) == (expected, dtype)
    assert pack.classes == (["x", "y"] if labels[0] == ["x"] else [])
    positions = any("positions of classes" in line for line in report.warnings)
    assert positions == (expected == [[1, 0, 1], [0, 1, 0], [0, 0, 0]])


@pytest.mark.parametrize("make", [_csv, *_TYPED])
def test_names_are_numbered_in_their_order(make: Any, tmp_path: pathlib.Path) -> None:
    _, pack = _pack(make(tmp_path, "b", "a", "b"), tmp_path)
    assert (made.labels(pack), pack.classes) == ([1, 0, 1], ["a", "b"])


@pytest.mark.parametrize(
    ("make", "labels", "classes", "expected"),
    [
        (_csv, ("cat", "none", "NA"), ["cat", "none", "NA"], [0, 1, 2]),
        (_jsonl, ([0, 2], [1], []), ["p", "q", "r", "s"], [[1, 0, 1, 0], [0, 1, 0, 0], [0] * 4]),
        (_jsonl, ([0, 1], [1, 1]), ["a", "b"], [[0, 1], [1, 1]]),  # a number for each class
        *((make, ([0, 2], [1, 0]), ["a", "b", "c"], [[1, 0, 1], [1, 1, 0]]) for make in _TYPED),
    ],
)
def test_classes_that_are_named_decide_what_labels_mean(
    make: Any, labels: Any, classes: list[str], expected: Any, tmp_path: pathlib.Path
) -> None:
    _, pack = _pack(make(tmp_path, *labels), tmp_path, classes_from=classes)
    assert (made.labels(pack), pack.classes) == (expected, classes)


@pytest.mark.parametrize(
    ("make", "labels"), [(_csv, ("0.5", "1", "2")), (_parquet, (0.5, 1.0, 2.0)),
                         (_items, (0.5, 1.0, 2.0))],
)  # fmt: skip
def test_regression_is_said(make: Any, labels: Any, tmp_path: pathlib.Path) -> None:
    report, pack = _pack(make(tmp_path, *labels), tmp_path)
    assert made.labels(pack) == [[0.5], [1.0], [2.0]]
    assert any("as numbers (regression)" in line for line in report.warnings)


@pytest.mark.parametrize(
    ("make", "labels", "options"),
    [
        (_csv, ("0.5", "16777217"), {}), (_jsonl, (0.5, 16777217), {}),
        (_parquet, (0.5, 16777217.0), {}), (_items, (0.5, 16777217), {}),
        (_jsonl, ([0.5, 1], [16777217, 2]), {}), (_items, (0.5, 1e39), {}),
        (_items, (0.5, float("inf")), {}), (_csv, ("1,0.5", "16777217,2"), {"label_col": "x,y"}),
    ],
)  # fmt: skip
def test_what_float32_cannot_hold_is_refused(
    make: Any, labels: Any, options: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    source = make(tmp_path, *labels, **({"header": "path,x,y"} if options else {}))
    with pytest.raises(SourceError, match=r"float32 cannot hold (16777217|1e\+39|inf)"):
        packio.pack(source, tmp_path / "out.tar", **options)


@pytest.mark.parametrize("labels", [([0, 1 << 40], [1]), ([0, 0], [1]), ([0, -1], [1])])
def test_lists_that_are_no_positions_are_refused(labels: Any, tmp_path: pathlib.Path) -> None:
    with pytest.raises(SourceError, match="different positions of classes"):
        packio.pack(_jsonl(tmp_path, *labels), tmp_path / "out.tar")


_DOGS = ("beagle_1.png", "beagle_12.png", "boxer_3.png", "boxer_40.png")
_REGEX = r"([a-z]+)_\d+"


def _zipped(folder: pathlib.Path) -> pathlib.Path:
    return made.zipped(folder / "dogs.zip", dict.fromkeys(_DOGS, made.png()))


def _flat(folder: pathlib.Path) -> pathlib.Path:
    return _images(folder / "dogs", _DOGS)


def _listed(folder: pathlib.Path) -> pathlib.Path:
    (_images(folder, _DOGS) / "list.csv").write_text(
        "\n".join(["path,x", *(f"{n},1" for n in _DOGS)])
    )
    return folder / "list.csv"


def _folders(folder: pathlib.Path) -> pathlib.Path:
    _images(folder / "dogs", ())
    _images(folder / "dogs" / "left", _DOGS[::2])
    _images(folder / "dogs" / "right", _DOGS[1::2])
    return folder / "dogs"


@pytest.mark.parametrize("make", [_flat, _zipped, _listed, _folders])
def test_labels_come_from_the_names_of_files(make: Any, tmp_path: pathlib.Path) -> None:
    _, pack = _pack(make(tmp_path), tmp_path, label_regex=_REGEX)
    assert pack.classes == ["beagle", "boxer"]
    assert [(s.key.rpartition("/")[2][:5], s.label) for s in pack] == [
        (s.key.rpartition("/")[2][:5], ["beagl", "boxer"].index(s.key.rpartition("/")[2][:5]))
        for s in pack
    ]


def test_classes_may_be_given_beside_a_regex(tmp_path: pathlib.Path) -> None:
    _, pack = _pack(
        _folders(tmp_path), tmp_path, label_regex=_REGEX, classes_from=["boxer", "beagle"]
    )
    assert [pack.classes[int(label)] for label in (pack.labels if pack.labels is not None else [])
            ] == ["beagle", "boxer", "beagle", "boxer"]  # fmt: skip


def test_numbers_in_names_are_class_numbers(tmp_path: pathlib.Path) -> None:
    folder = _images(tmp_path / "digits", ("x_c10.png", "y_c2.png"))
    _, pack = _pack(folder, tmp_path, label_regex=r"_c(?P<label>\d+)")
    assert (made.labels(pack), pack.classes) == ([10, 2], [])


def test_a_name_that_a_regex_does_not_match_is_a_bad_sample(tmp_path: pathlib.Path) -> None:
    folder = _images(_flat(tmp_path), ("README.png",))
    with pytest.raises(BadImagesError, match=r"README\.png.*no label"):
        packio.pack(folder, tmp_path / "out.tar", label_regex=_REGEX)
    report, _ = _pack(folder, tmp_path, label_regex=_REGEX, on_error="skip")
    assert (report.packed, len(report.skipped)) == (4, 1)


@pytest.mark.parametrize(
    ("regex", "message"),
    [("(", "label_regex='\\('"), ("(a)(b)", "2 groups"), ("(\\d{9})", "matches none of 4 paths")],
)
def test_a_regex_that_makes_no_sense_is_refused(
    regex: str, message: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(OptionError, match=message):
        packio.pack(_flat(tmp_path), tmp_path / "out.tar", label_regex=regex)


@pytest.mark.parametrize("make", [_flat, _zipped])
def test_names_that_look_like_classes_get_a_hint_that_works(
    make: Any, tmp_path: pathlib.Path
) -> None:
    import shlex

    report, pack = _pack(make(tmp_path), tmp_path)
    assert pack.labels is None
    hint = next(line for line in report.warnings if "--label-regex" in line)
    *_, option, regex = shlex.split(hint.rpartition(": ")[2])
    assert option == "--label-regex"
    _, pack = _pack(make(tmp_path), tmp_path, label_regex=regex)
    assert pack.classes == ["beagle", "boxer"]


def test_names_of_cameras_get_no_hint(tmp_path: pathlib.Path) -> None:
    folder = _images(tmp_path / "photos", ("IMG_0001.png", "IMG_0002.png", "IMG_0003.png"))
    report, _ = _pack(folder, tmp_path)
    assert not any("--label-regex" in line for line in report.warnings)


def _writable() -> list[str]:
    return [name for name, form in registry.load_all("formats").items() if form.caps.writes]


@pytest.mark.parametrize("form", _writable())
def test_whole_vectors_are_the_same_in_every_format(form: str, tmp_path: pathlib.Path) -> None:
    caps = registry.load("formats", form).caps
    pytest.importorskip(caps.package or "numpy")
    labels = [[1, 16777216], [-3, 7], [0, 0]]
    path = tmp_path / f"out{caps.suffixes[0]}"
    packio.pack(_items(tmp_path, *labels), path, format=form)
    found = packio.open(path).labels
    assert found is not None
    assert found.dtype == np.int64
    assert found.tolist() == labels
    (path / "index.packio" if path.is_dir() else path.with_name(f"{path.name}.packio")).unlink()
    again = packio.open(path).labels  # from what the container itself holds
    assert again is not None
    assert again.tolist() == labels
    if form != "recordio":  # which holds float32
        assert again.dtype == np.int64


def test_a_dataset_gives_whole_vectors_as_they_are(tmp_path: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    packio.pack(_items(tmp_path, [1, 16777217], [3, 4]), tmp_path / "out.tar")
    _, label = packio.TarDataset(tmp_path / "out.tar", output="tensor")[0]
    assert label.dtype == torch.int64
    assert label.tolist() == [1, 16777217]


def test_recordio_refuses_whole_vectors_that_it_cannot_hold(tmp_path: pathlib.Path) -> None:
    with pytest.raises(OutputError, match="RecordIO holds labels as float32"):
        packio.pack(_items(tmp_path, [1, 16777217], [3, 4]), tmp_path / "out.rec")


def test_whole_vectors_survive_extract(tmp_path: pathlib.Path) -> None:
    labels = [[1, 16777217], [3, 4]]
    packio.pack(_items(tmp_path, *labels), tmp_path / "a.tar")
    extract(tmp_path / "a.tar", tmp_path / "files")
    packio.pack(tmp_path / "files", tmp_path / "b.tar")
    found = packio.open(tmp_path / "b.tar").labels
    assert found is not None
    assert found.dtype == np.int64
    assert found.tolist() == labels


@pytest.mark.parametrize("odd", ["?", "inf", '"0,5"'])
def test_one_odd_cell_does_not_make_classes_of_a_regression(
    odd: str, tmp_path: pathlib.Path
) -> None:
    names = tuple(f"{i}.png" for i in range(5))
    lines = [
        f"{name},{cell}" for name, cell in zip(names, ["0.1", "0.2", odd, "3", "0.4"], strict=True)
    ]
    table = _images(tmp_path, names) / "list.csv"
    table.write_text("\n".join(["path,label", *lines]))
    with pytest.raises(SourceError, match=r"list\.csv:4: .*4 of 5 different labels are numbers"):
        _pack(table, tmp_path)


@pytest.mark.parametrize("source", [_items, _jsonl, _parquet])
def test_texts_of_numbers_that_are_not_their_labels_are_told(
    source: Any, tmp_path: pathlib.Path
) -> None:
    report, pack = _pack(source(tmp_path / "in", "0", "10", "2"), tmp_path)
    assert pack.classes == ["0", "10", "2"]
    assert any("class '10' has the label 1" in line for line in report.warnings)


def _list_of_labels(folder: pathlib.Path, names: Sequence[str], *lines: str) -> dict[str, Any]:
    (folder / "labels.txt").write_text("\n".join(lines))
    source = _images(folder / "in", names)
    return {"source": source, "folder": folder, "labels": str(folder / "labels.txt")}


def test_labels_in_order_are_refused_where_names_have_two_orders(tmp_path: pathlib.Path) -> None:
    names = ("im_1.png", "im_2.png", "im_10.png")
    with pytest.raises(SourceError, match=r"line 2 may be of 'im_10.png' or of 'im_2.png'"):
        _pack(**_list_of_labels(tmp_path, names, "5", "6", "7"))


def test_labels_in_order_are_taken_where_numbers_have_zeros(tmp_path: pathlib.Path) -> None:
    names = ("im_01.png", "im_02.png", "im_10.png")
    _, pack = _pack(**_list_of_labels(tmp_path, names, "5", "6", "7"))
    assert made.labels(pack) == [5, 6, 7]


@pytest.mark.parametrize("texts", [("1", "2", "?"), ("1", "-", "?"), ("1_0", "2"), ("1", "--", "-"),
                                   ("cat", "dog", "?"), ("3", '"0,5"', '"1,5"')])  # fmt: skip
def test_text_without_letters_beside_other_labels_of_a_table_is_refused(
    texts: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    table = _csv(tmp_path, *texts)
    with pytest.raises(SourceError, match=r"list\.csv:\d: the label '.*--classes-from"):
        _pack(table, tmp_path)
    _, pack = _pack(table, tmp_path, classes_from=[text.strip('"') for text in texts])
    assert made.labels(pack) == [*range(len(texts))]


@pytest.mark.parametrize(
    "texts",
    [
        ("+", "-"),
        ("1", "cat"),
        ("<5", "5-10", ">10"),
        ("é", "日本"),
        ("007", "010"),
        ("1_0", "2_0"),
    ],
)
def test_other_names_of_a_table_are_classes(texts: tuple[str, ...], tmp_path: pathlib.Path) -> None:
    _, pack = _pack(_csv(tmp_path, *texts), tmp_path)
    assert pack.classes == sorted(texts)


@pytest.mark.parametrize("labels", [([0, 3], [1, 0]), ([0, 0], [1, 0]), ([0, -1], [1, 2])])
def test_lists_that_are_no_positions_of_named_classes_are_refused(
    labels: Any, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(SourceError, match=r"different positions of classes, 0\.\.2"):
        _pack(_jsonl(tmp_path, *labels), tmp_path, classes_from=["a", "b", "c"])


@pytest.mark.parametrize("make", [_flat, _zipped])
def test_with_a_regex_nobody_says_that_there_are_no_labels(
    make: Any, tmp_path: pathlib.Path
) -> None:
    report, _ = _pack(make(tmp_path), tmp_path, label_regex=_REGEX)
    assert not report.warnings


def test_with_a_regex_an_archive_of_one_folder_is_not_called_unlabelled(
    tmp_path: pathlib.Path,
) -> None:
    members = {f"dogs/{name}": made.png() for name in _DOGS}
    path = made.zipped(tmp_path / "dogs.zip", members)
    report, pack = _pack(path, tmp_path, label_regex=_REGEX)
    assert (report.warnings, pack.classes) == ((), ["beagle", "boxer"])
