"""Sources that are a table beside files: CSV, JSON, COCO, Parquet, what `packio extract` writes."""

from __future__ import annotations

import copy
import csv as csv_files
import io
import json
from typing import TYPE_CHECKING

from described import upright
from source_kinds import (
    ALL,
    ENDINGS,
    ORDER,
    Written,
    class_names,
    field_names,
    kind,
    put,
    put_images,
    stem_of,
)

if TYPE_CHECKING:
    import pathlib

    from described import Sample


def _table(
    samples: list[Sample], folder: pathlib.Path
) -> tuple[list[dict[str, object]], list[str]]:
    """Rows with the path of each sample's files, and the options that name the fields."""
    put_images(samples, folder)
    rows: list[dict[str, object]] = []
    for sample in samples:
        row: dict[str, object] = {"path": sample["key"], **sample.get("meta", {})}
        for name, (_, data) in sample.get("fields", {}).items():
            row[name] = f"fields/{stem_of(sample)}{ENDINGS[name]}"
            if name == "caption":
                row[name] = data.decode()
            else:
                put(folder / str(row[name]), data)
        if "mask" in sample:
            row["seg"] = f"masks/{stem_of(sample)}.png"
            put(folder / str(row["seg"]), sample["mask"])
        rows.append(row)
    options = []
    for name, what in (("caption", "text"), ("depth", "image"), ("latent", "array")):
        if name in field_names(samples):
            options += ["--field", f"{name}={name}:{what}"]
    if any("mask" in sample for sample in samples):
        options += ["--field", "mask=seg:mask"]
    return rows, options


@kind("label=class,many,number,vector", "mask=all,some", "meta=all", "fields=all,some")
def csv(samples: list[Sample], folder: pathlib.Path) -> Written:
    """Lines of text, with further columns."""
    rows, options = _table(samples, folder)
    expected = copy.deepcopy(samples)
    for sample, row, wanted in zip(samples, rows, expected, strict=True):
        if "caption" in field_names(samples):  # a cell that is empty is an empty text
            wanted["fields"] = {"caption": ("text", b"")} | wanted.get("fields", {})
        label = sample.get("label")
        if isinstance(label, tuple):
            row |= {f"v{i}": value for i, value in enumerate(label)}
            wanted["label"] = {f"v{i}": value for i, value in enumerate(label)}
        elif label is not None:
            row["label"] = "|".join(label) if isinstance(label, list) else label
    options += ["--path-col", "path", "--label-col"]
    options += ["v0,v1,v2" if "v0" in rows[0] else "label" if "label" in rows[0] else ""]
    if isinstance(samples[0].get("label"), list):
        options += ["--label-sep", "|"]
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv_files.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return Written([put(folder / "list.csv", text.getvalue().encode()), *options], expected)


@kind("label=class,many,number,vector", "mask=all,some", "meta=all", "fields=all,some")
def jsonl(samples: list[Sample], folder: pathlib.Path) -> Written:
    """Lines of JSON."""
    rows, options = _table(samples, folder)
    for sample, row in zip(samples, rows, strict=True):
        if "label" in sample:
            row["label"] = sample["label"]
    has_labels = ["--label-col", "label"] if "label" in rows[0] else []
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    return Written(
        [put(folder / "list.jsonl", lines.encode()), "--path-col", "path", *has_labels, *options],
        samples,
    )


_ID = {name: 5 + 2 * i for i, name in enumerate(ORDER)}


@kind("boxes=!all,some", "fields=all,some")
def coco(samples: list[Sample], folder: pathlib.Path) -> Written:
    """A COCO annotation file: boxes are x, y, width, height; all else becomes metadata."""
    put_images(samples, folder / "images")
    names = class_names(samples)
    images, annotations, expected = [], [], copy.deepcopy(samples)
    for sample, wanted in zip(samples, expected, strict=True):
        number = int(stem_of(sample)[-2:])
        image: dict[str, object] = {"id": number, "file_name": sample["key"]}
        wanted["boxes"] = [{**b, "category_id": _ID[b["class"]]} for b in sample.get("boxes", [])]
        entries: list[dict[str, object]] = []
        for box in wanted["boxes"]:
            x0, y0, x1, y1 = upright(sample, box)
            entries.append({
                "id": 10 * number + len(entries), "image_id": number, "iscrowd": box["crowd"],
                "category_id": _ID[box["class"]], "area": box["area"],
                "bbox": [x0, y0, x1 - x0, y1 - y0],
            })  # fmt: skip
        annotations += entries
        wanted["meta"] = {"image_id": number, "file_name": sample["key"]}
        for name in ("id", "iscrowd", "category_id", "area", "bbox"):
            values = [entry[name] for entry in entries]
            wanted["meta"]["annotation_id" if name == "id" else name] = values
        for name, (_, data) in sample.get("fields", {}).items():
            path = f"fields/{stem_of(sample)}{ENDINGS[name]}"
            image[name] = data.decode() if name == "caption" else path
            put(folder / "images" / path, data)
        images.append(image)
    categories = [{"id": _ID[name], "name": name} for name in names]
    whole = {"images": images[::-1], "annotations": annotations[::-1], "categories": categories}
    for wanted in expected:  # the order of the file
        wanted["boxes"] = wanted["boxes"][::-1]
        for name in ("annotation_id", "iscrowd", "category_id", "area", "bbox"):
            wanted["meta"][name] = wanted["meta"][name][::-1]
    options = ["--root", str(folder / "images")]
    for name in field_names(samples):
        kind = {"caption": "text", "depth": "image", "latent": "array"}[name]
        options += ["--field", f"{name}={name}:{kind}"]
    return Written([put(folder / "data.json", json.dumps(whole).encode()), *options], expected)


@kind("label=class,many,number,vector", "mask=all,some", "meta=all", "fields=all,some")
def parquet(samples: list[Sample], folder: pathlib.Path) -> Written:
    """A Parquet file, as Hugging Face's hub has them: images as structs, names of classes."""
    import pyarrow as pa
    from pyarrow import parquet as files

    names = class_names(samples)
    columns: dict[str, list[object]] = {
        "image": [{"bytes": s["image"], "path": s["key"]} for s in samples]
    }
    features, options = {}, []
    if "label" in samples[0]:
        is_named = isinstance(samples[0]["label"], (str, list))
        number = names.index
        columns["label"] = [
            number(x) if isinstance(x, str) else [number(n) if is_named else n for n in x]
            if isinstance(x, (list, tuple)) else x for x in (s["label"] for s in samples)
        ]  # fmt: skip
        named: object = {"names": names, "_type": "ClassLabel"}
        if isinstance(samples[0]["label"], list):
            named = {"feature": named, "_type": "Sequence"}
        features = {"label": named} if is_named else {}
    if any("mask" in s for s in samples):
        masks = [s.get("mask") for s in samples]
        columns["mask"] = [None if m is None else {"bytes": m, "path": None} for m in masks]
    if any("meta" in s for s in samples):
        columns |= {n: [s["meta"][n] for s in samples] for n in ("place", "n")}
    expected = copy.deepcopy(samples)
    for name in set(field_names(samples)) & {"caption", "depth"}:
        values = [s.get("fields", {}).get(name, (None, None))[1] for s in samples]
        if name == "caption":
            columns[name] = [None if v is None else v.decode() for v in values]
            options += ["--field", "caption=caption:text"]
        else:
            columns[name] = [None if v is None else {"bytes": v, "path": None} for v in values]
    for sample in expected:
        sample.get("fields", {}).pop("latent", None)  # it would be a list of numbers
    table = pa.table(columns)
    if features:
        info = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": info})
    folder.mkdir(parents=True, exist_ok=True)
    files.write_table(table, folder / "data.parquet", row_group_size=5)
    put(folder / "data.parquet", (folder / "data.parquet").read_bytes())
    return Written([str(folder / "data.parquet"), *options], expected)


@kind("boxes=!all,some")
def objects(samples: list[Sample], folder: pathlib.Path) -> Written:
    """A Parquet file with a column of objects, as Hugging Face's hub has them."""
    import pyarrow as pa
    from pyarrow import parquet as files

    names = class_names(samples)
    rows = []
    for sample in samples:
        boxes = sample.get("boxes", [])
        corners = [upright(sample, box) for box in boxes]
        rows.append({
            "bbox": [[x0, y0, x1 - x0, y1 - y0] for x0, y0, x1, y1 in corners],
            "category": [names.index(box["class"]) for box in boxes],
            "area": [box["area"] for box in boxes], "iscrowd": [box["crowd"] for box in boxes],
        })  # fmt: skip
    label = {"category": {"feature": {"names": names, "_type": "ClassLabel"}, "_type": "List"}}
    images = [{"bytes": s["image"], "path": s["key"]} for s in samples]
    info = json.dumps({"info": {"features": {"objects": label}}})
    table = pa.table({"image": images, "objects": rows})
    folder.mkdir(parents=True, exist_ok=True)
    files.write_table(
        table.replace_schema_metadata({"huggingface": info}), folder / "data.parquet",
        row_group_size=5,
    )  # fmt: skip
    put(folder / "data.parquet", (folder / "data.parquet").read_bytes())
    return Written([str(folder / "data.parquet"), "--box-format", "xywh"], samples)


@kind("label=class,many,number,vector", *ALL, "split=all")
def extracted(samples: list[Sample], folder: pathlib.Path) -> Written:
    """A folder as `packio extract` writes it: images, fields, and a line of JSON for the rest."""
    top, lines = folder / "extracted", []
    names = class_names(samples)
    kinds = {"image": "image"}
    for sample in samples:
        put(top / sample["key"], sample["image"])
        line: dict[str, object] = {"key": sample["key"]}
        label = sample.get("label")
        if isinstance(label, list):
            label = [float(name in label) for name in names]
        line |= {} if label is None else {"label": label}
        line |= {n: sample[n] for n in ("split", "meta") if n in sample}
        if "boxes" in sample:
            boxes = sample["boxes"]
            line["boxes"] = [b["box"] for b in boxes]
            line["boxes/labels"] = [b["class"] for b in boxes]
            line |= {f"boxes/{n}": [b[n] for b in boxes] for n in ("crowd", "area")}
        others = dict(sample.get("fields", {}))
        if "mask" in sample:
            others["mask"] = ("mask", sample["mask"])
        for name, (what, data) in others.items():
            kinds[name] = what
            line[name] = data.decode() if what == "text" else f"{stem_of(sample)}.{name}.x"
            if what != "text":
                put(top / str(line[name]), data)
        lines.append(json.dumps(line) + "\n")
    put(top / "packio.jsonl", "".join(lines).encode())
    splits = sorted({s["split"] for s in samples if "split" in s})
    head = {"classes": names, "fields": kinds, "splits": splits}
    put(top / "packio.json", json.dumps(head).encode())
    return Written([str(top)], samples)
