"""What holds for every source: the same listing twice, rows that can be taken, true samples.

Each maker below writes a small source and describes its samples in plain Python, by what the
source's format says and not by what packio reads.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import pickle
import zipfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import made
import numpy as np
import pytest
from cli_runs import run
from named import npy
from PIL import Image, features

import packio
from packio import registry
from packio.errors import BadImagesError, OptionError, SourceError
from packio.inspecting.extracting import extract
from packio.sample.record import Field
from packio.sources import Context, Listing, Source, list_samples

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

_COUNT = 6


@dataclasses.dataclass
class Expected:
    """One sample, as the maker of a source describes it."""

    key: str
    image: bytes
    label: Any = None
    mask: bytes | None = None
    meta: dict[str, Any] | None = None
    boxes: list[list[float]] | None = None
    columns: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    fields: dict[str, Field] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Case:
    """A source, what packing is told about it, and its samples in order."""

    what: Any
    samples: list[Expected]
    fields: dict[str, tuple[str, str | None]] = dataclasses.field(default_factory=dict)
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


# Each image is of another size; sample 3 has the bytes of sample 1.
_IMAGES = [made.png(4 + (i if i != 3 else 1), 3) for i in range(_COUNT)]
_MASKS = [made.png(4 + (i if i != 3 else 1), 3) for i in range(_COUNT)]


def _npy(number: int) -> bytes:
    return npy(np.full((2, 3), number, np.float32))


def _text(number: int) -> Field:
    return Field("text", f"caption {number}".encode())


def _classed() -> dict[str, bytes]:
    return {f"{'ab'[i // 3]}/{i}.png": data for i, data in enumerate(_IMAGES)}


def _image_folder(root: pathlib.Path) -> Case:
    files = _classed()
    made.tree(root / "s", files)
    return Case(root / "s", [Expected(k, d, i // 3) for i, (k, d) in enumerate(files.items())])


def _flat_folder(root: pathlib.Path) -> Case:
    made.tree(root / "s", {f"{i}.png": data for i, data in enumerate(_IMAGES)})
    (root / "labels.txt").write_text("".join(f"{i}.png {i * 2}\n" for i in range(_COUNT)))
    return Case(
        root / "s",
        [Expected(f"{i}.png", data, i * 2) for i, data in enumerate(_IMAGES)],
        options={"labels": str(root / "labels.txt")},
    )


def _members() -> tuple[dict[str, bytes], list[Expected]]:
    """Members of an archive with companions, and the samples that they are."""
    files, samples = {}, []
    for i, (name, data) in enumerate(_classed().items()):
        stem = name.removesuffix(".png")
        files[name] = data
        files[f"{stem}.txt"] = f"caption {i}".encode()
        files[f"{stem}.latent.npy"] = _npy(i)
        files[f"{stem}.depth.png"] = _MASKS[i]
        fields = {"caption": _text(i), "latent": Field("array", _npy(i)),
                  "depth": Field("image", _MASKS[i])}  # fmt: skip
        samples.append(Expected(name, data, i // 3, fields=fields))
    return files, samples


def _zip(root: pathlib.Path) -> Case:
    files, samples = _members()
    members = {f"top/{name}": data for name, data in files.items()}
    path = made.zipped(root / "s.zip", members, zipfile.ZIP_DEFLATED)
    return Case(path, samples, {"caption": ("txt", "text")})


def _tgz(root: pathlib.Path) -> Case:
    files, samples = _members()
    return Case(made.tar(root / "s.tgz", files, "w:gz"), samples, {"caption": (".txt", None)})


def _csv(root: pathlib.Path) -> Case:
    made.tree(root / "s", {f"{i}.png": d for i, d in enumerate(_IMAGES)})
    made.tree(root / "s", {f"d/{i}.npy": _npy(i) for i in range(_COUNT)})
    with open(root / "s" / "list.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "latent_path", "caption", "weight"])
        for i in range(_COUNT):
            writer.writerow([f"{i}.png", "xyz"[i % 3], f"d/{i}.npy", f"caption {i}", i / 2])
    samples = [
        Expected(f"{i}.png", data, i % 3, meta={"weight": i / 2},
                 fields={"caption": _text(i), "latent": Field("array", _npy(i))})
        for i, data in enumerate(_IMAGES)
    ]  # fmt: skip
    wanted = {"latent": ("latent_path", None), "caption": ("caption", "text")}
    return Case(root / "s" / "list.csv", samples, wanted)


def _jsonl(root: pathlib.Path) -> Case:
    made.tree(root / "s", {f"i/{i}.png": d for i, d in enumerate(_IMAGES)})
    made.tree(root / "s", {f"m/{i}.png": d for i, d in enumerate(_MASKS)})
    lines = [
        {"path": f"i/{i}.png", "label": [i, 1], "seg": f"m/{i}.png", "vector": [i, 2], "n": i}
        for i in range(_COUNT)
    ]
    (root / "s" / "list.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    samples = [
        Expected(f"i/{i}.png", data, [i, 1], _MASKS[i], {"n": i},
                 fields={"vector": Field("array", npy(np.array([i, 2])))})
        for i, data in enumerate(_IMAGES)
    ]  # fmt: skip
    wanted: dict[str, tuple[str, str | None]] = {
        "mask": ("seg", "mask"), "vector": ("vector", None),
    }  # fmt: skip
    return Case(root / "s" / "list.jsonl", samples, wanted)


def _pairs(root: pathlib.Path) -> Case:
    for i in range(_COUNT):
        made.tree(root / "s", {
            f"images/{i}.png": _IMAGES[i], f"masks/{i}.png": _MASKS[i], f"latent/{i}.npy": _npy(i),
            f"images/{i}_depth.png": _MASKS[i],
        })  # fmt: skip
    samples = [
        Expected(f"images/{i}.png", data, mask=_MASKS[i], fields={
            "latent": Field("array", _npy(i)), "depth": Field("image", _MASKS[i]),
        })
        for i, data in enumerate(_IMAGES)
    ]  # fmt: skip
    return Case(root / "s", samples, {"latent": ("latent", None), "depth": ("_depth.png", "image")})


def _coco(root: pathlib.Path) -> Case:
    made.tree(root / "images", {f"{i}.png": d for i, d in enumerate(_IMAGES)})
    images = [{"id": i, "file_name": f"{i}.png", "note": f"caption {i}"} for i in range(_COUNT)]
    annotations = [
        {"id": i, "image_id": str(i), "category_id": 7.0, "bbox": [0, 0, 1, i + 1],
         "iscrowd": i % 2, "area": i + 1}
        for i in range(_COUNT)
    ]  # fmt: skip
    whole = {"images": images, "annotations": annotations, "categories": [{"id": 7, "name": "x"}]}
    (root / "s.json").write_text(json.dumps(whole))
    samples = [
        Expected(
            f"{i}.png", data, boxes=[[0, 0, 1, i + 1]], fields={"caption": _text(i)},
            columns={"labels": [0], "category_id": [7], "crowd": [i % 2], "area": [i + 1]},
            meta={"image_id": i, "file_name": f"{i}.png", "annotation_id": [i], "iscrowd": [i % 2],
                  "category_id": [7.0], "bbox": [[0, 0, 1, i + 1]], "area": [i + 1]},
        )
        for i, data in enumerate(_IMAGES)
    ]  # fmt: skip
    return Case(root / "s.json", samples, {"caption": ("note", None)})


def _parquet(root: pathlib.Path) -> Case:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    columns = {
        "image": [{"bytes": d, "path": f"{i}.png"} for i, d in enumerate(_IMAGES)],
        "label": [i % 2 for i in range(_COUNT)],
        "blob": [b"\0%d" % i for i in range(_COUNT)],
        "caption": [f"caption {i}" for i in range(_COUNT)],
        "n": list(range(_COUNT)),
    }
    pq.write_table(pa.table(columns), root / "s.parquet", row_group_size=4)
    samples = [
        Expected(f"{i}.png", data, i % 2, meta={"n": i},
                 fields={"blob": Field("bytes", b"\0%d" % i), "caption": _text(i)})
        for i, data in enumerate(_IMAGES)
    ]  # fmt: skip
    return Case(root / "s.parquet", samples, {"caption": ("caption", None)})


def _dataset(_: pathlib.Path) -> Case:
    items = [
        {"image": data, "label": i, "key": f"k{i}", "mask": _MASKS[i], "boxes": [[0, 0, 1, 2]],
         "box_labels": [i], "area": [2.0], "latent": np.full((2, 3), i, np.float32),
         "caption": f"caption {i}", "n": i}
        for i, data in enumerate(_IMAGES)
    ]  # fmt: skip
    samples = [
        Expected(f"k{i}", data, i, _MASKS[i], {"n": i}, [[0, 0, 1, 2]],
                 {"labels": [i], "area": [2.0]},
                 {"latent": Field("array", _npy(i)), "caption": _text(i)})
        for i, data in enumerate(_IMAGES)
    ]  # fmt: skip
    return Case(items, samples, {"caption": ("caption", None)})


def _samples(_: pathlib.Path) -> Case:
    items = [
        packio.Sample(
            i, f"k{i}", data, "png", i, 3, 4, mask=_MASKS[i], meta={"n": i},
            boxes=np.array([[0, 0, 1, 2]], np.float32), box_labels=np.array([i]),
            box_columns={"area": np.array([2], np.float32)}, fields={"caption": _text(i)},
        )
        for i, data in enumerate(_IMAGES)
    ]  # fmt: skip
    samples = [
        Expected(f"k{i}", data, i, _MASKS[i], {"n": i}, [[0, 0, 1, 2]],
                 {"labels": [i], "area": [2]}, {"caption": _text(i)})
        for i, data in enumerate(_IMAGES)
    ]  # fmt: skip
    return Case(items, samples)


def _pack(root: pathlib.Path) -> Case:
    case = _samples(root)
    plain = [dataclasses.replace(item, fields={}) for item in case.what]
    packio.pack(plain, root / "s.lmdb")
    for sample in case.samples:
        sample.fields = {}
    return Case(root / "s.lmdb", case.samples)


def _extracted(root: pathlib.Path) -> Case:
    case = _samples(root)
    packio.pack(case.what, root / "s.lmdb")
    extract(root / "s.lmdb", root / "extracted", fields=["image", "label", "meta", "boxes", "mask"])
    for sample in case.samples:
        sample.fields = {}
    return Case(root / "extracted", case.samples)


def _remote(_: pathlib.Path) -> Case:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for name, data in _classed().items():
        memory.pipe(f"/contract/{name}", data)
    samples = [Expected(k, d, i // 3) for i, (k, d) in enumerate(_classed().items())]
    return Case("memory://contract", samples)


def _yolo(root: pathlib.Path) -> Case:
    made.tree(root / "s", {f"images/{i}.png": d for i, d in enumerate(_IMAGES)})
    made.tree(root / "s", {f"labels/{i}.txt": b"%d .5 .5 .5 .25" % (i % 2) for i in range(_COUNT)})
    (root / "s" / "classes.txt").write_text("x\ny\n")
    samples = [
        Expected(f"images/{i}.png", data, boxes=[[0.25, 0.375, 0.75, 0.625]],
                 columns={"labels": [i % 2]})
        for i, data in enumerate(_IMAGES)
    ]  # fmt: skip
    return Case(root / "s", samples)


def _voc(root: pathlib.Path) -> Case:
    made.tree(root / "s", {f"JPEGImages/{i}.png": d for i, d in enumerate(_IMAGES)})
    samples = []
    for i, data in enumerate(_IMAGES):
        box = f"<xmin>1</xmin><ymin>2</ymin><xmax>{i + 2}</xmax><ymax>3</ymax>"
        xml = (
            f"<annotation><object><name>{'xy'[i % 2]}</name><pose>Left</pose><difficult>1"
            f"</difficult><bndbox>{box}</bndbox></object></annotation>"
        )
        made.tree(root / "s", {f"Annotations/{i}.xml": xml.encode()})
        columns: dict[str, list[float]] = {"labels": [i % 2], "difficult": [1]}
        meta = {"object": [{"pose": "Left"}]}
        samples.append(Expected(
            f"JPEGImages/{i}.png", data, boxes=[[0, 1, i + 2, 3]], columns=columns, meta=meta,
        ))  # fmt: skip
    return Case(root / "s", samples)


_MAKERS: dict[str, list[Callable[[pathlib.Path], Case]]] = {
    "archive": [_zip, _tgz],
    "coco": [_coco],
    "extracted": [_extracted],
    "flat_folder": [_flat_folder],
    "image_folder": [_image_folder],
    "manifest": [_csv, _jsonl],
    "pack": [_pack, _samples],
    "pairs": [_pairs],
    "parquet": [_parquet],
    "remote_folder": [_remote],
    "torch_dataset": [_dataset],
    "voc": [_voc],
    "yolo": [_yolo],
}
_CASES = [(name, make) for name, makers in _MAKERS.items() for make in makers]
_each = pytest.mark.parametrize(("name", "make"), _CASES, ids=lambda x: getattr(x, "__name__", x))


def _listed(name: str, case: Case) -> Listing:
    source: Source = registry.load("sources", name)
    return list_samples(source, case.what, Context(fields=case.fields, options=case.options))


def test_every_source_has_a_maker() -> None:
    assert sorted(_MAKERS) == sorted(registry.list_built_in("sources"))


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _check(listing: Listing, positions: list[int], case: Case) -> None:
    """Compare what is read with the description of some samples."""
    assert [os.fsdecode(key) for key in listing.keys] == [case.samples[p].key for p in positions]
    with listing.open_records() as read:
        for i, position in enumerate(positions):
            expected, record = case.samples[position], listing.describe(read(i), i)
            assert os.fsdecode(record.key) == expected.key
            assert record.image.data == expected.image
            assert _plain(record.label) == expected.label
            assert (record.mask.data if record.mask else None) == expected.mask
            assert (record.meta and json.loads(record.meta)) == expected.meta
            assert _plain(record.boxes) == expected.boxes
            assert {n: c.tolist() for n, c in record.box_columns.items()} == expected.columns
            named = {n: f for n, f in record.fields.items() if n not in ("image", "mask")}
            assert named == expected.fields


@_each
def test_samples_are_read_as_described(
    name: str, make: Callable[[pathlib.Path], Case], tmp_path: pathlib.Path
) -> None:
    case = make(tmp_path)
    _check(_listed(name, case), list(range(_COUNT)), case)


@_each
def test_a_source_is_listed_alike_twice(
    name: str, make: Callable[[pathlib.Path], Case], tmp_path: pathlib.Path
) -> None:
    case = make(tmp_path)
    one, two = _listed(name, case), _listed(name, case)
    assert (one.keys, one.sizes, one.classes) == (two.keys, two.sizes, two.classes)
    assert _plain(one.labels) == _plain(two.labels)
    assert one.version == two.version


@_each
def test_parts_takes_and_digests_agree(
    name: str, make: Callable[[pathlib.Path], Case], tmp_path: pathlib.Path
) -> None:
    case = make(tmp_path)
    listing = _listed(name, case)
    _check(listing.part(range(2, 5)), [2, 3, 4], case)
    _check(listing.take([4, 0]).take([1, 0]), [0, 4], case)
    assert listing.take(range(_COUNT)).version == listing.version
    if listing.rows is not None:
        assert len(listing.rows) == len(listing.rows.take([1, 2, 1])) * 2 == _COUNT
        assert listing.rows[1:3].digest() == listing.rows.take([1, 2]).digest()
        assert listing.rows[1:3].digest() != listing.rows[2:4].digest()


@_each
def test_rows_and_what_opens_them_pickle(
    name: str, make: Callable[[pathlib.Path], Case], tmp_path: pathlib.Path
) -> None:
    case = make(tmp_path)
    part = _listed(name, case).part(range(1, 4))
    rows, opened = pickle.loads(pickle.dumps((part.rows, part.open)))
    again = dataclasses.replace(part, rows=rows, open=opened)
    _check(again, [1, 2, 3], case)
    with again.open_records() as read, ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: read(i).image.data, [*range(3)] * 20))
    assert found == [case.samples[i].image for i in (1, 2, 3)] * 20


def _without_fields(case: Case) -> Case:
    """The case without named fields, and without what gives them by default."""
    if isinstance(case.what, list) and isinstance(case.what[0], dict):
        case.what = [{n: v for n, v in d.items() if n != "latent"} for d in case.what]
    elif isinstance(case.what, list):
        case.what = [dataclasses.replace(sample, fields={}) for sample in case.what]
    return dataclasses.replace(case, fields={})


@pytest.mark.parametrize(
    ("name", "make"),
    [case for case in _CASES if case[1] not in (_zip, _tgz, _parquet, _pairs)],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_choices_and_appending_work_for_every_source(
    name: str, make: Callable[[pathlib.Path], Case], tmp_path: pathlib.Path
) -> None:
    case = _without_fields(make(tmp_path))
    keys = [sample.key for sample in case.samples]
    images = {sample.key: sample.image for sample in case.samples}

    def packed(number: int, **choice: Any) -> list[str]:
        out = tmp_path / f"{number}.lmdb"
        packio.pack(case.what, out, source_kind=name, **choice, **case.options)
        with packio.open(out) as pack:
            for sample in pack:
                assert sample.data == images[sample.key]
            return [sample.key for sample in pack]

    assert packed(0, limit=3, shard_size=1 << 20) == keys[:3]
    assert packed(1, include=["*2*"]) == [key for key in keys if "2" in key]
    assert sorted(packed(2, shuffle=7)) == sorted(keys)
    assert packed(3, dedupe="drop") == [key for i, key in enumerate(keys) if i != 3]
    report = packio.append(tmp_path / "0.lmdb", case.what, source_kind=name, **case.options)
    assert (report.added, report.known) == (0, 3)  # the recipe's limit holds
    assert len(packed(4, include=["*2*"], shard_size=1 << 20)) < len(keys)
    packed(5, shard_size=1 << 20)
    checked = packio.append(
        tmp_path / "5.lmdb", case.what, source_kind=name, compare=True, **case.options
    )
    assert checked.changed == ()
    report = packio.append(tmp_path / "5.lmdb", case.what, source_kind=name, **case.options)
    assert (report.added, report.known) == (0, len(keys))


def test_an_archive_can_be_packed(tmp_path: pathlib.Path) -> None:
    made.zipped(tmp_path / "s.zip", _classed())
    packio.pack(tmp_path / "s.zip", tmp_path / "o.lmdb", shuffle=1, limit=5)
    with packio.open(tmp_path / "o.lmdb") as pack:
        assert all(sample.data == _classed()[sample.key] for sample in pack)
        assert (len(pack), pack.classes) == (5, ["a", "b"])


def test_a_source_without_named_fields_refuses_them(tmp_path: pathlib.Path) -> None:
    case = _extracted(tmp_path)
    with pytest.raises(OptionError, match="extracted gives no named fields"):
        packio.pack(case.what, tmp_path / "o.lmdb", fields={"depth": "depth"})


@pytest.mark.parametrize(("name", "make"), [("manifest", _csv), ("pairs", _pairs)])
def test_the_files_of_fields_are_known(
    name: str, make: Callable[[pathlib.Path], Case], tmp_path: pathlib.Path
) -> None:
    listing = _listed(name, make(tmp_path))
    assert listing.files is not None
    assert listing.root is not None
    for paths in listing.files:
        found = [os.path.join(os.fsencode(listing.root), path) for path in paths]
        assert len([path for path in found if path.endswith(b".npy")]) == 1
        assert all(map(os.path.isfile, found))


def test_the_command_line_takes_fields(tmp_path: pathlib.Path) -> None:
    case = _csv(tmp_path)
    for given, told in (
        ("latent=nowhere:array", "no column 'nowhere'"),
        ("latent=latent_path:sound", "'sound' is no kind of field"),
        ("latent", "expected NAME=COLUMN:KIND"),
    ):
        done = run("pack", case.what, tmp_path / "o.lmdb", "--field", given)
        assert done.returncode == 2
        assert told in done.stderr


@pytest.mark.parametrize(
    ("name", "make"),
    [case for case in _CASES if registry.load("sources", case[0]).takes_fields],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_a_field_from_nowhere_is_refused(
    name: str, make: Callable[[pathlib.Path], Case], tmp_path: pathlib.Path
) -> None:
    case = make(tmp_path)
    with pytest.raises(OptionError, match="field 'depth'"):
        list_samples(
            registry.load("sources", name), case.what, Context(fields={"depth": ("no", None)})
        )


def test_boxes_beyond_a_thousand_numbers_are_in_the_digest() -> None:
    boxes = np.zeros((500, 4), np.float32)
    sample = packio.Sample(0, "k", _IMAGES[0], "png", None, 3, 4, boxes=boxes)
    other = boxes.copy()
    other[250, 1] = 1
    source: Source = registry.load("sources", "pack")
    versions = {
        list_samples(source, [dataclasses.replace(sample, boxes=b)], Context()).version
        for b in (boxes, other)
    }
    assert len(versions) == 2


def test_parquet_files_in_several_folders_are_refused(tmp_path: pathlib.Path) -> None:
    file = _parquet(tmp_path).what
    made.tree(
        tmp_path / "hub", {"a.parquet": file.read_bytes(), "data/b.parquet": file.read_bytes()}
    )
    source: Source = registry.load("sources", "parquet")
    assert source.recognise(tmp_path / "hub")
    with pytest.raises(SourceError, match="Parquet or Arrow files in 2 folders"):
        list_samples(source, tmp_path / "hub", Context())
    assert (
        len(list_samples(source, tmp_path / "hub", Context(options={"files": "b*"})).keys) == _COUNT
    )


def test_an_archive_drops_nothing_without_a_word(tmp_path: pathlib.Path) -> None:
    made.zipped(tmp_path / "w.zip", {f"{folder}\\1.png": _IMAGES[0] for folder in "ab"})
    made.tar(tmp_path / "x.tar", {**_classed(), "a/0.xml": b"<x/>"})
    made.zipped(tmp_path / "one.zip", {"cats/1.png": _IMAGES[0]})
    source: Source = registry.load("sources", "archive")
    slashes = list_samples(source, tmp_path / "w.zip", Context())
    assert (slashes.classes, slashes.keys) == (["a", "b"], [b"a/1.png", b"b/1.png"])
    assert source.recognise(tmp_path / "x.tar")
    assert list_samples(source, tmp_path / "x.tar", Context()).classes == ["a", "b"]
    one = list_samples(source, tmp_path / "one.zip", Context())
    assert "packed without labels" in one.warnings[0]


def _of_many_endings() -> dict[str, bytes]:
    gif, avif = io.BytesIO(), io.BytesIO()
    picture = Image.new("RGB", (4, 3))
    picture.save(gif, "GIF")
    picture.save(avif, "AVIF")
    return {
        "a/1.gif": gif.getvalue(), "a/2.png": _IMAGES[0], "b/3.avif": avif.getvalue(),
        "b/bare": _IMAGES[1], "b/4.png": _IMAGES[2], "b/5.jxl": b"\xff\x0a",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["image_folder", "flat_folder", "archive", "remote_folder"])
def test_further_endings_count_as_images_if_the_user_says_so(
    kind: str, tmp_path: pathlib.Path
) -> None:
    if not features.check("avif"):
        pytest.skip("Pillow without AVIF")
    files = _of_many_endings()
    source: Any = made.tree(tmp_path / "s", files)
    if kind == "archive":
        source = made.zipped(tmp_path / "s.zip", files)
    elif kind == "remote_folder":
        memory = pytest.importorskip("fsspec").filesystem("memory")
        for name, data in files.items():
            memory.pipe(f"/endings/{name}", data)
        source = "memory://endings"
    report = packio.pack(source, tmp_path / "few.lmdb", source_kind=kind)
    assert report.packed == 2
    assert "to take them, say --endings .avif,.gif,none" in report.warnings[0]
    assert "Pillow cannot read .jxl here" in report.warnings[0]
    packio.pack(source, tmp_path / "all.lmdb", source_kind=kind, endings="gif, .AVIF,none")
    with packio.open(tmp_path / "all.lmdb") as pack:
        assert {s.key: s.data for s in pack} == {k: d for k, d in files.items() if "jxl" not in k}
        assert pack.by_key("a/1.gif").encoding == "gif"
    with pytest.raises(OptionError, match="expected endings as"):
        packio.pack(source, tmp_path / "no.lmdb", source_kind=kind, endings=".gif,,.png")


def test_what_cannot_be_listed_is_chosen_by_its_key_too(tmp_path: pathlib.Path) -> None:
    items: list[dict[str, Any]] = [
        {"image": data, "key": f"k{i}"} for i, data in enumerate(_IMAGES)
    ]
    items[4] = {"image": 7, "key": "k4"}
    report = packio.pack(items, tmp_path / "a.lmdb", exclude=["00000004"])
    assert (report.packed, report.skipped) == (5, ())
    report = packio.pack(items, tmp_path / "b.lmdb", limit=2)
    assert (report.packed, report.skipped) == (2, ())
    assert "cannot be listed, and not missed, as limit=2 is reached: 1" in report.warnings[0]
    with pytest.raises(BadImagesError, match="00000004"):
        packio.pack(items, tmp_path / "c.lmdb", exclude=["k1"])


def test_one_text_among_numbers_does_not_make_names_of_them(tmp_path: pathlib.Path) -> None:
    what, flat_folder = _flat_folder(tmp_path).what, made.Asked("flat_folder")
    (tmp_path / "labels.txt").write_text("1\n10\n2\nx\n10\n1")
    with pytest.raises(SourceError, match=r"'x'.*3 of 4 .* are numbers.*--classes-from"):
        flat_folder.listing(what, labels=str(tmp_path / "labels.txt"))
    names = flat_folder.listing(
        what, classes=["x", "1", "2", "10"], labels=str(tmp_path / "labels.txt")
    )
    assert names.labels == [1, 3, 2, 0, 3, 1]


@pytest.mark.parametrize("name", ["torch_dataset", "parquet", "coco"])
def test_an_empty_caption_is_a_text_and_none_is_missing(name: str, tmp_path: pathlib.Path) -> None:
    captions = ["", "  ", None, "x"]
    items = [{"image": d, "caption": c} for d, c in zip(_IMAGES, captions, strict=False)]
    what: Any = items
    if name == "parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        what = tmp_path / "s.parquet"
        pq.write_table(pa.Table.from_pylist(items), what)
    elif name == "coco":
        made.tree(tmp_path / "images", {f"{i}.png": d for i, d in enumerate(_IMAGES)})
        what = tmp_path / "s.json"
        images = [{"id": i, "file_name": f"{i}.png", "caption": c} for i, c in enumerate(captions)]
        what.write_text(json.dumps({"images": images, "annotations": []}))
    source: Source = registry.load("sources", name)
    for kind in (None, "text"):
        listing = list_samples(source, what, Context(fields={"caption": ("caption", kind)}))
        with listing.open_records() as read:
            found = [read(i).fields.get("caption") for i in range(4)]
        assert [field and field.data for field in found] == [b"", b"  ", None, b"x"]


def _arrow(path: pathlib.Path, images: list[bytes], labels: list[int]) -> None:
    """A folder as Hugging Face's ``Dataset.save_to_disk`` writes it."""
    pa = pytest.importorskip("pyarrow")
    path.mkdir(parents=True)
    features = {
        "image": {"_type": "Image"},
        "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
    }
    schema = pa.schema(
        [
            ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
            ("label", pa.int64()),
        ],
        metadata={"huggingface": json.dumps({"info": {"features": features}})},
    )
    names = []
    for i in range(2):
        names.append(f"data-{i:05d}-of-00002.arrow")
        with pa.ipc.new_stream(str(path / names[-1]), schema) as writer:
            for row in range(i * 3, min(i * 3 + 3, len(images))):
                image = {"bytes": images[row], "path": None}
                writer.write(pa.RecordBatch.from_pylist(
                    [{"image": image, "label": labels[row]}], schema=schema))  # fmt: skip
    (path / "cache-1.arrow").write_bytes(b"of a map, no data")
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": n} for n in names]}))
    (path / "dataset_info.json").write_text("{}")


def test_a_dataset_that_hugging_face_saved_is_packed(tmp_path: pathlib.Path) -> None:
    labels = [i % 2 for i in range(_COUNT)]
    _arrow(tmp_path / "saved", _IMAGES, labels)
    packio.pack(tmp_path / "saved", tmp_path / "o.lmdb")
    with packio.open(tmp_path / "o.lmdb") as pack:
        assert [sample.data for sample in pack] == _IMAGES
        assert pack.classes == ["cat", "dog"]
        assert [sample.label for sample in pack] == labels
    for name in ("train", "test"):
        _arrow(tmp_path / "two" / name, _IMAGES, labels)
    (tmp_path / "two" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(SourceError, match=r"Arrow files in 2 folders: .*; pack each"):
        packio.pack(tmp_path / "two", tmp_path / "p.lmdb")
    cut = tmp_path / "saved" / "data-00001-of-00002.arrow"
    cut.write_bytes(cut.read_bytes()[:-700])
    with pytest.raises(SourceError, match="pyarrow can read"):
        packio.pack(tmp_path / "saved", tmp_path / "q.lmdb")
