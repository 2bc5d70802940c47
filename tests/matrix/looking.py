"""What a pack holds, as plain values; and the first difference from what it must hold."""

from __future__ import annotations

import hashlib
import io
import itertools
import tarfile
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

import packio
from packio.images.dct import MAGIC, as_jpeg

if TYPE_CHECKING:
    import pathlib

    from described import Sample

Plain = dict[str, Any]  # of one sample; names of what it lacks are not there


def expected(sample: Sample) -> Plain:
    """A described sample as `seen` gives it."""
    found: Plain = {n: sample[n] for n in ("key", "meta", "split", "orientation") if n in sample}
    if "image" in sample:
        found["image"] = _digest(sample["image"])
    if "pixels" in sample:
        found["pixels"] = sample["pixels"]
    if "size" in sample:
        found["size"] = tuple(sample["size"])
    label = sample.get("label")
    if isinstance(label, list):
        label = dict.fromkeys(label, 1.0)
    if label is not None:
        found["label"] = {n: v for n, v in label.items() if v} if isinstance(label, dict) else label
    if sample.get("boxes"):  # no boxes and an empty list of boxes are one
        found["boxes"] = [{**box, "box": tuple(box["box"])} for box in sample["boxes"]]
    if "mask" in sample:
        found["mask"] = _digest(sample["mask"])
    for name, (kind, data) in sample.get("fields", {}).items():
        found[f"field {name}"] = (kind, _digest(data))
    return found


def seen(path: pathlib.Path) -> list[Plain]:
    """All samples of a pack, by packio's public reader."""
    with packio.open(path) as pack:
        return [_plain(pack, pack[i]) for i in range(len(pack))]


def classes(path: pathlib.Path) -> list[str]:
    """Names of the classes of a pack."""
    with packio.open(path) as pack:
        return list(pack.classes)


def _plain(pack: packio.Pack, sample: packio.Sample) -> Plain:
    names = pack.classes
    found: Plain = {
        "key": sample.key, "image": _digest(sample.as_file()),
        "orientation": sample.orientation, "size": (sample.height, sample.width),
    }  # fmt: skip
    label = sample.label
    if isinstance(label, np.ndarray):
        values = [float(value) for value in label]
        named = {n: v for n, v in zip(names, values, strict=False) if v}
        found["label"] = named if names else tuple(values)
    elif label is not None and label != -1:
        found["label"] = _named(label, names)
    if sample.boxes is not None and len(sample.boxes):
        found["boxes"] = _boxes(sample, names)
    for name, value in (("meta", sample.meta), ("split", sample.split)):
        if value:  # no metadata and an empty object are one
            found[name] = value
    if sample.mask is not None:
        found["mask"] = _digest(sample.mask)
    for name, field in sample.fields.items():
        found[f"field {name}"] = (field.kind, _digest(field.data))
    if sample.encoding == "raw":
        found["pixels"] = _digest(sample.data)
    elif sample.encoding in ("png", "bmp"):
        with Image.open(io.BytesIO(sample.data)) as image:
            found["pixels"] = pixels_of(image)
    return found


def pixels_of(image: Image.Image) -> str:
    """Digest of the pixels, channels first, not turned."""
    return _digest(np.array(image.convert("RGB")).transpose(2, 0, 1).tobytes())


def _named(label: int, names: list[str]) -> str | int:
    if not names:
        return label
    return names[label] if 0 <= label < len(names) else f"no class {label}"


def _boxes(sample: packio.Sample, names: list[str]) -> list[Plain]:
    assert sample.boxes is not None
    found: list[Plain] = [{"box": tuple(box)} for box in sample.boxes.tolist()]
    columns = dict(sample.box_columns)
    for i, box in enumerate(found):
        if sample.box_labels is not None:
            box["class"] = _named(int(sample.box_labels[i]), names)
        box |= {name: values[i].item() for name, values in columns.items()}
    return found


def difference(wanted: list[Sample], path: pathlib.Path, *, ordered: bool) -> str:
    """The first difference between what a pack must hold and what it holds; "" if there is none.

    Args:
        wanted: Samples; what a sample lacks, such as ``image``, may be anything only if it is
            listed under ``"unknown"``.
        path: Of the pack.
        ordered: Whether the order matters.
    """
    found = seen(path)
    keys = [s["key"] for s in wanted], [s["key"] for s in found]
    if lost := Counter(keys[0]) - Counter(keys[1]):
        return f"{len(lost)} of {len(wanted)} samples are lost, as {next(iter(lost))!r}"
    if more := Counter(keys[1]) - Counter(keys[0]):
        return f"{len(more)} samples too many, as {next(iter(more))!r}"
    if ordered and keys[0] != keys[1]:
        i = next(i for i, (a, b) in enumerate(zip(*keys, strict=True)) if a != b)
        return f"sample {i} is {keys[1][i]!r}, expected {keys[0][i]!r}"
    by_key = {s["key"]: s for s in found}
    for sample in wanted:
        want, have = expected(sample), dict(by_key[sample["key"]])
        unknown = {*sample.get("unknown", ()), *({"pixels"} - set(want))}
        for name in sorted({*want, *have} - unknown):
            if want.get(name) != have.get(name):
                return (
                    f"{sample['key']}: {name} is {have.get(name, 'not there')!r}, "
                    f"expected {want.get(name, 'nothing')!r}"
                )
    return _difference_elsewhere(wanted, path)


def _difference_elsewhere(wanted: list[Sample], path: pathlib.Path) -> str:
    """The same for the bytes of images, read by the format's own library."""
    read = _READERS.get(path.suffix)
    if read is None or not all(
        "image" in s and "image" not in s.get("unknown", ()) for s in wanted
    ):
        return ""
    shards = [path]
    if path.is_dir() and path.suffix != ".lmdb":
        shards = sorted(p for p in path.iterdir() if p.suffix == path.suffix)
    elif path.is_dir() and not (path / "data.mdb").exists():
        shards = sorted(p for p in path.iterdir() if p.is_dir() and p.suffix == ".lmdb")
    read_all = (data for shard in shards for data in read(shard))
    files = (as_jpeg(d) if d.startswith(MAGIC) else d for d in read_all)
    found = Counter(map(_digest, files))
    if missing := Counter(_digest(s["image"]) for s in wanted) - found:
        return f"{sum(missing.values())} images are missing for the library of {path.suffix}"
    return ""


def _lmdb(path: pathlib.Path) -> list[bytes]:
    import lmdb

    with lmdb.open(str(path), readonly=True, lock=False) as env, env.begin() as txn:
        return [value for _, value in txn.cursor()]


def _hdf5(path: pathlib.Path) -> list[bytes]:
    import h5py

    with h5py.File(path) as file:
        if "data" not in file:  # it holds a field that was added to another file later
            return []
        return _cut(file["data"][()], file["offsets"][()])


def _pth(path: pathlib.Path) -> list[bytes]:
    import torch

    tensors = torch.load(path, weights_only=True)
    if "data" not in tensors:  # it holds a field that was added to another file later
        return []
    return _cut(tensors["data"].numpy(), tensors["offsets"].numpy())


def _cut(data: np.ndarray, offsets: np.ndarray) -> list[bytes]:
    return [data[a:b].tobytes() for a, b in itertools.pairwise(offsets.tolist())]


def _tar(path: pathlib.Path) -> list[bytes]:
    with tarfile.open(path) as archive:
        files = [archive.extractfile(member) for member in archive]
        return [file.read() for file in files if file is not None]


_READERS = {".lmdb": _lmdb, ".h5": _hdf5, ".pth": _pth, ".tar": _tar}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
