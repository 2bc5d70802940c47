"""Packs that NVIDIA DALI reads: its bytes, labels and image sizes are those that were packed.

    python tools/interop_dali.py write FOLDER     with packio
    python tools/interop_dali.py read FOLDER      with DALI; no GPU is needed, nor packio

``tools/interop_dali.sh`` runs both.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

COUNT, BATCH = 50, 7
CLASSES = ("cat", "dog", "newt")


def write(folder: Path) -> None:
    """Write JPEGs of all sizes and a pack of each format, and list what was packed."""
    import numpy as np
    import simplejpeg

    import packio

    random = np.random.default_rng(0)
    samples = []
    for i in range(COUNT):
        label = i * len(CLASSES) // COUNT
        path = folder / "images" / CLASSES[label] / f"{i:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (8 + 5 * i, 100 - i, 3), np.uint8)
        path.write_bytes(simplejpeg.encode_jpeg(pixels))
        samples.append((str(path.relative_to(folder)), label, pixels.shape))
    for suffix in READERS:
        values = "datum" if suffix == ".lmdb" else None
        packio.pack(folder / "images", folder / f"pack{suffix}", values=values)
        packio.pack(folder / "images", folder / f"shards{suffix}", shards=3, values=values)
    (folder / "samples.json").write_text(json.dumps(samples))


def tfrecord(files: list[str]) -> Any:
    """Pipeline over our .tfrecord and .tfrecord.idx."""
    import nvidia.dali.tfrecord as feature
    from nvidia.dali import fn

    inputs = fn.readers.tfrecord(
        path=files,
        index_path=[f"{file}.idx" for file in files],
        features={
            "image/encoded": feature.FixedLenFeature((), feature.string, ""),
            "image/class/label": feature.FixedLenFeature([1], feature.int64, -1),
        },
        name="reader",
    )
    return inputs["image/encoded"], inputs["image/class/label"]


def recordio(files: list[str]) -> Any:
    """Pipeline over our .rec and its .idx; of several there is one .idx together."""
    from nvidia.dali import fn

    first = Path(files[0])
    index = first.with_name("shards.all.idx") if len(files) > 1 else first.with_suffix(".idx")
    return fn.readers.mxnet(path=files, index_path=[str(index)], name="reader")


def tar(files: list[str]) -> Any:
    """Pipeline over our .tar and its .idx; a label is text there."""
    from nvidia.dali import fn

    indexes = [f"{file}.idx" for file in files]
    return fn.readers.webdataset(
        paths=files, index_paths=indexes, ext=["jpg", "cls"], name="reader"
    )


def caffe(folders: list[str]) -> Any:
    """Pipeline over our .lmdb of Datums."""
    from nvidia.dali import fn

    return fn.readers.caffe(path=folders, name="reader")


READERS: dict[str, Callable[[list[str]], Any]] = {
    ".tfrecord": tfrecord,
    ".rec": recordio,
    ".tar": tar,
    ".lmdb": caffe,
}


def samples_of(
    reader: Callable[[list[str]], Any], files: list[str]
) -> Iterator[tuple[bytes, int, list[int]]]:
    """Encoded bytes, label and shape of each sample, as DALI gives them."""
    from nvidia.dali import Pipeline, fn

    pipeline = Pipeline(batch_size=BATCH, num_threads=2, device_id=None)
    with pipeline:
        encoded, label = reader(files)
        pipeline.set_outputs(encoded, label, fn.decoders.image(encoded))
    pipeline.build()
    left = sum(meta["epoch_size"] for meta in pipeline.reader_meta().values())
    while left > 0:
        images, labels, pixels = pipeline.run()
        for i in range(min(BATCH, left)):
            label = labels.at(i)
            is_text = label.dtype == "uint8"
            number = int(bytes(label) if is_text else label.item())
            yield bytes(images.at(i)), number, list(pixels.at(i).shape)
        left -= BATCH


def read(folder: Path) -> None:
    """Read all packs with DALI and compare."""
    import nvidia.dali

    listed = json.loads((folder / "samples.json").read_text())
    expected = [((folder / name).read_bytes(), label, shape) for name, label, shape in listed]
    failed = 0
    for suffix, reader in READERS.items():
        for name in ("pack", "shards"):
            path = folder / (name + suffix)
            files = sorted(map(str, path.glob(f"*{suffix}"))) or [str(path)]
            try:
                found = list(samples_of(reader, files))
                outcome = "equal" if found == expected else f"other samples ({len(found)})"
            except RuntimeError as error:  # what all of DALI's errors are
                outcome = f"refused: {error}"
            failed += outcome != "equal"
            print(f"{suffix}, {COUNT} samples in {len(files)} files: {outcome}")
    print(f"DALI {nvidia.dali.__version__}: {failed} of {2 * len(READERS)} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](Path(sys.argv[2]))
