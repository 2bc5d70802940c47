"""One reader of a bucket, in a process of its own: epochs, as `remote.py` asks for them.

    python _remote_child.py READER BUCKET_URL FOLDER EPOCHS WORKERS BATCH [STATE BATCHES]

READER's function makes a loader of what was written to the bucket; FOLDER is for its caches. Each
epoch prints a line of JSON: images, seconds, seconds to the first batch, and the sum of all pixels'
bytes that came. All but packio decode by simplejpeg and resize by OpenCV, the fastest pair there
is; packio as it does by itself. With STATE, a file that
is not there, the loader's state after so many batches is written to it, with the labels of the
batch that comes next; if it is there, the epoch goes on from it, and the line tells whether the
first labels are those.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

SIZE = 224


def crop(data: bytes) -> Any:
    """RandomResizedCrop(224) and a flip: (3, 224, 224) uint8, contiguous, as a tensor."""
    import cv2
    import numpy as np
    import simplejpeg
    import torch

    image = simplejpeg.decode_jpeg(data)
    height, width = image.shape[:2]
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if w <= width and h <= height:
            break
    else:
        w = h = min(width, height)
    top, left = random.randint(0, height - h), random.randint(0, width - w)
    small = cv2.resize(image[top : top + h, left : left + w], (SIZE, SIZE))
    if random.random() < 0.5:
        small = small[:, ::-1]
    return torch.from_numpy(np.ascontiguousarray(small.transpose(2, 0, 1)))


def _packed(url: str, **options: Any) -> Any:
    import packio

    return packio.PackDataset(
        f"{url}/packio.tar", crop=packio.RandomResizedCrop(SIZE), hflip=0.5, threads=1, **options
    )


def packio_torch(url: str, _: Path, workers: int, batch: int) -> Iterable[Any]:
    """Packio's dataset and sampler in torch's own DataLoader."""
    from torch.utils.data import DataLoader

    import packio

    ds = _packed(url)
    return DataLoader(
        ds, batch, sampler=packio.ShuffleSampler(ds), num_workers=workers, drop_last=True,
        persistent_workers=True, collate_fn=packio.collate,
    )  # fmt: skip


def packio(url: str, _: Path, workers: int, batch: int, **options: Any) -> Iterable[Any]:
    """Packio's Loader: every sample by itself, fully shuffled."""
    import packio

    ds = _packed(url, **options)
    return packio.Loader(
        ds, batch, shuffle=True, num_workers=workers, drop_last=True, persistent_workers=True
    )


def packio_disk(url: str, folder: Path, workers: int, batch: int) -> Iterable[Any]:
    """The same, with a cache on disk of half the data."""
    half = int(os.environ["HALF"])
    return packio(url, folder, workers, batch, local_copy=folder, local_bytes=half)


def packio_all(url: str, folder: Path, workers: int, batch: int) -> Iterable[Any]:
    """The same, with room for all the data on the disk, where LitData and Streaming keep it."""
    room = 4 * int(os.environ["HALF"])
    return packio(url, folder, workers, batch, local_copy=folder, local_bytes=room)


def litdata(url: str, folder: Path, workers: int, batch: int) -> Iterable[Any]:
    """LitData's StreamingDataset and StreamingDataLoader."""
    import litdata
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001 (it has no option)

    class Images(litdata.StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            found = super().__getitem__(index)
            return crop(found["image"]), found["label"]

    ends = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
    dataset = Images(
        f"{url}/litdata", cache_dir=str(folder), shuffle=True, drop_last=True,
        storage_options=ends,
    )  # fmt: skip
    return litdata.StreamingDataLoader(
        dataset, batch_size=batch, num_workers=workers, persistent_workers=True, drop_last=True
    )


def streaming(url: str, folder: Path, workers: int, batch: int) -> Iterable[Any]:
    """MosaicML Streaming's StreamingDataset and StreamingDataLoader, as its guide has it."""
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    class Images(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            found = super().__getitem__(index)
            return crop(found["image"]), found["label"]

    clean_stale_shared_memory()  # of an earlier process
    dataset = Images(
        remote=f"{url}/streaming", local=str(folder), shuffle=True, batch_size=batch,
        num_canonical_nodes=1,
    )  # fmt: skip
    return StreamingDataLoader(
        dataset, batch_size=batch, num_workers=workers, persistent_workers=True, drop_last=True
    )


def webdataset(url: str, _: Path, workers: int, batch: int) -> Iterable[Any]:
    """WebDataset over HTTP, with a shuffle buffer of 1,000 samples; it keeps nothing."""
    import webdataset as wds

    http = os.environ["AWS_ENDPOINT_URL"] + url.removeprefix("s3:/")
    count = int(os.environ["SHARDS"])
    shards = [f"pipe:curl -s {http}/webdataset/{number:06d}.tar" for number in range(count)]
    dataset = (
        wds.WebDataset(shards, shardshuffle=count)
        .shuffle(1000)
        .to_tuple("jpg", "cls")
        .map_tuple(crop, int)
        .batched(batch, partial=False)
    )
    return wds.WebLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=True)


READERS: dict[str, Callable[..., Iterable[Any]]] = {
    "packio": packio, "packio, torch's loader": packio_torch, "packio, half on disk": packio_disk,
    "packio, all on disk": packio_all, "litdata": litdata, "streaming": streaming,
    "webdataset": webdataset,
}  # fmt: skip


def half(
    reader: str, url: str, folder: str, workers: int, batch: int, state: Path, batches: int
) -> None:
    """Go to the middle of an epoch, or on from there; see above."""
    began = time.perf_counter()
    loader: Any = READERS[reader](url, Path(folder), workers, batch)
    if state.exists():
        before = json.loads(state.read_text())
        loader.load_state_dict(before["loader"])
        told = {"first": 0.0, "images": 0, "same": False}
        for number, (pixels, labels) in enumerate(loader):
            if not number:
                told["first"] = time.perf_counter() - began
                told["same"] = [int(label) for label in labels] == before["next"]
            told["images"] += len(pixels)
        print(json.dumps(told | {"seconds": time.perf_counter() - began}), flush=True)
        return
    after: Any = None
    for number, (_, labels) in enumerate(loader):
        if after is not None:
            state.write_text(json.dumps({"loader": after, "next": [int(n) for n in labels]}))
            break
        if number + 1 == batches:
            after = loader.state_dict()
    print(json.dumps({"images": batches * batch}), flush=True)
    os._exit(0)  # as a process that is killed


def main(reader: str, url: str, folder: str, epochs: int, workers: int, batch: int) -> None:
    """Go through epochs; see above."""
    began = time.perf_counter()
    loader = READERS[reader](url, Path(folder), workers, batch)
    for _ in range(epochs):
        images = total = 0
        first = None
        for batch_ in loader:
            pixels = batch_[0]
            first = first or time.perf_counter() - began
            images += len(pixels)
            total += int(pixels[:, :, ::16, ::16].sum())
        seconds = time.perf_counter() - began
        told = {"images": images, "seconds": seconds, "first": first, "sum": total}
        print(json.dumps(told), flush=True)
        sys.stdin.readline()  # the counts of the server are asked for meanwhile
        began = time.perf_counter()


def begin(reader: str, url: str, folder: str, *rest: str) -> None:
    """Take the arguments of the command line."""
    epochs, workers, batch = map(int, rest[:3])
    if len(rest) > 3:
        half(reader, url, folder, workers, batch, Path(rest[3]), int(rest[4]))
    else:
        main(reader, url, folder, epochs, workers, batch)


if __name__ == "__main__":
    begin(*sys.argv[1:])
