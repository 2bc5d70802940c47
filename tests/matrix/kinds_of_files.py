"""Sources that are folders of files, or archives of them."""

from __future__ import annotations

import copy
import io
import json
import zipfile
from typing import TYPE_CHECKING

import made
from described import upright
from source_kinds import (
    ENDINGS,
    Written,
    by_folders,
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


@kind("label=!class", class_folders=True)
def image_folder(samples: list[Sample], folder: pathlib.Path) -> Written:
    """Class folders."""
    put_images(samples, folder / "tree")
    return Written([str(folder / "tree")], by_folders(samples))


@kind()
def flat_folder(samples: list[Sample], folder: pathlib.Path) -> Written:
    """A folder of images, without labels."""
    put_images(samples, folder / "flat")
    return Written([str(folder / "flat")], samples)


@kind("label=!class,number")
def label_list(samples: list[Sample], folder: pathlib.Path) -> Written:
    """A folder of images, and a text file with a path and a label a line."""
    put_images(samples, folder / "flat")
    lines = [f"{s['key']}\t{s['label']}\n" for s in reversed(samples)]
    labels = put(folder / "labels.txt", "".join(lines).encode())
    return Written([str(folder / "flat"), "--labels", labels], samples)


@kind("boxes=!all,some")
def yolo(samples: list[Sample], folder: pathlib.Path) -> Written:
    """Images, and a text file of boxes for each, as fractions of the upright image."""
    top, expected = folder / "yolo", copy.deepcopy(samples)
    names = class_names(samples)
    put(top / "classes.txt", "\n".join(names).encode())
    for sample, wanted in zip(samples, expected, strict=True):
        wanted["key"] = f"images/{sample['key']}"
        height, width = sample["size"][:: -1 if sample["orientation"] == 6 else 1]
        lines = []
        for box in sample.get("boxes", []):
            x0, y0, x1, y1 = upright(sample, box)
            numbers = (x0 + x1) / 2 / width, (y0 + y1) / 2 / height, x1 - x0, y1 - y0
            size = f"{numbers[2] / width} {numbers[3] / height}"
            lines.append(f"{names.index(box['class'])} {numbers[0]} {numbers[1]} {size}\n")
        lines = list(dict.fromkeys(lines))
        unique = {(tuple(b["box"]), b["class"]): b for b in reversed(sample.get("boxes", []))}
        wanted["boxes"] = [
            {"box": list(box), "class": name} for box, name in reversed([*unique])
        ]  # fmt: skip
        put(top / "images" / sample["key"], sample["image"])
        put(top / "labels" / f"{stem_of(sample)}.txt", "".join(lines).encode())
    return Written([str(top)], by_folders(expected))


@kind("boxes=!all,some")
def voc(samples: list[Sample], folder: pathlib.Path) -> Written:
    """Images, and an XML file of boxes for each, of the stored or of the upright image."""
    top, expected = folder / "VOC", copy.deepcopy(samples)
    for i, (sample, wanted) in enumerate(zip(samples, expected, strict=True)):
        height, width = sample["size"]
        is_upright = sample["orientation"] == 6 and (i % 4 == 1 or width == height)
        width, height = (height, width) if is_upright else (width, height)
        size = {"width": str(width), "height": str(height)}
        text = f"<size><width>{width}</width><height>{height}</height></size>"
        wanted["boxes"] = []
        for box in sample.get("boxes", []):
            x0, y0, x1, y1 = upright(sample, box) if is_upright else box["box"]
            text += (
                f"<object><name>{box['class']}</name><pose>Left</pose><difficult>{box['crowd']}"
                f"</difficult><bndbox><xmin>{x0 + 1}</xmin><ymin>{y0 + 1}</ymin><xmax>{x1}</xmax>"
                f"<ymax>{y1}</ymax></bndbox></object>"
            )
            one = {"box": box["box"], "class": box["class"], "difficult": box["crowd"]}
            wanted["boxes"].append(one)
        wanted["meta"] = {"size": size, "object": [{"pose": "Left"}] * len(wanted["boxes"])}
        wanted["key"] = f"JPEGImages/{sample['key']}"
        put(top / "JPEGImages" / sample["key"], sample["image"])
        put(
            top / "Annotations" / f"{stem_of(sample)}.xml",
            f"<annotation>{text}</annotation>".encode(),
        )
    return Written([str(top)], by_folders(expected))


@kind("mask=!all", "fields=all,some")
def voc_masks(samples: list[Sample], folder: pathlib.Path) -> Written:
    """Images and masks in two folders, as Pascal VOC has them; fields in further folders."""
    top = folder / "VOC"
    arguments, expected = [str(top)], copy.deepcopy(samples)
    for sample, wanted in zip(samples, expected, strict=True):
        stem = stem_of(sample)
        put(top / "JPEGImages" / sample["key"], sample["image"])
        put(top / "SegmentationClass" / f"{stem}.png", sample["mask"])
        for name, (_, data) in sample.get("fields", {}).items():
            put(top / name / f"{stem}{ENDINGS[name]}", data)
        wanted["key"] = f"JPEGImages/{sample['key']}"
    for name in field_names(samples):
        arguments += ["--field", f"{name}={name}"]
    return Written(arguments, by_folders(expected))


@kind("mask=!all")
def suffixes(samples: list[Sample], folder: pathlib.Path) -> Written:
    """JPEGs and masks in one folder, told apart by the ends of their names."""
    expected = [copy.deepcopy(s) for s in samples if s["key"].endswith("jpg")]
    for sample in expected:
        stem = stem_of(sample)
        sample["key"] = f"{stem}_img.jpg"
        put(folder / "pairs" / sample["key"], sample["image"])
        put(folder / "pairs" / f"{stem}_seg.png", sample["mask"])
    told = ["--image-suffix", "_img.jpg", "--mask-suffix", "_seg.png"]
    return Written([str(folder / "pairs"), "--source", "pairs", *told], expected)


def _archive_members(samples: list[Sample]) -> list[tuple[str, bytes]]:
    found = []
    for sample in samples:
        found.append((sample["key"], sample["image"]))
        if "mask" in sample:
            found.append((f"{stem_of(sample)}.mask.png", sample["mask"]))
        for name, (_, data) in sample.get("fields", {}).items():
            found.append((f"{stem_of(sample)}.{name}{ENDINGS[name]}", data))
    return found


def _tar(members: list[tuple[str, bytes]], path: pathlib.Path, mode: str) -> str:
    return put(path, made.tar_bytes(members, mode))


@kind("label=!class", "mask=all,some", "fields=all,some", class_folders=True)
def zip_archive(samples: list[Sample], folder: pathlib.Path) -> Written:
    """A zip archive of class folders; every other member is deflated."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for i, (name, data) in enumerate(_archive_members(samples)):
            info = zipfile.ZipInfo(name, (2020, 2, 2, 2, 2, 2))
            archive.writestr(info, data, (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)[i % 2])
    return Written([put(folder / "data.zip", buffer.getvalue())], by_folders(samples))


@kind("label=!class", class_folders=True)
def tar_archive(samples: list[Sample], folder: pathlib.Path) -> Written:
    """A tar archive of class folders, all of them in one folder more."""
    members = [(f"data/{name}", content) for name, content in _archive_members(samples)]
    return Written([_tar(members, folder / "data.tar", "w")], by_folders(samples))


@kind("label=!class", class_folders=True)
def compressed_tar(samples: list[Sample], folder: pathlib.Path) -> Written:
    """A tar archive behind gzip."""
    members = _archive_members(samples)
    return Written([_tar(members, folder / "data.tgz", "w:gz")], by_folders(samples))


@kind("label=number", "mask=all,some", "meta=all,some", "fields=all,some")
def webdataset(samples: list[Sample], folder: pathlib.Path) -> Written:
    """A tar in which the members of a sample have its name: what `webdataset` itself writes."""
    members: list[tuple[str, bytes]] = []
    expected = copy.deepcopy(samples)
    for sample, wanted in zip(samples, expected, strict=True):
        stem, before = stem_of(sample), len(members)
        members.append((sample["key"], sample["image"]))
        if "label" in sample:
            members.append((f"{stem}.cls", str(sample["label"]).encode()))
        if "mask" in sample:
            members.append((f"{stem}.mask.png", sample["mask"]))
        if "meta" in sample:
            members.append((f"{stem}.json", json.dumps(sample["meta"]).encode()))
        for name, (_, data) in sample.get("fields", {}).items():
            members.append((f"{stem}.{name}{ENDINGS[name]}", data))
        if len(members) > before + 1:  # an image that is alone keeps its whole name
            wanted["key"] = stem
    return Written([_tar(members, folder / "foreign.tar", "w")], expected)
