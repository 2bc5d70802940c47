"""What a sample's bytes cost, from every format: µs a sample, by packio and by the libraries.

The same JPEGs of about 110 KB lie in a pack of each format. In turns, in one run, all of them are
read in random order, from the page cache, by

* packio: ``pack.read(pack.row(i))``, ``pack.read_many`` of 50 at a time, and ``pack[i]``, which
  makes a whole `Sample`;
* plain system calls: pread of the same bytes at the same places, and CRC32C, with nothing around;
* the format's own library, of the same pack, or of the layout that is usual with it. No library
  checks the bytes here. tfrecord and webdataset only iterate: theirs is the time of a sample in
  file order. lmdb's buffer is a view that nobody has read yet.

An odd round runs them in the opposite order of an even one. A library that is not installed is
left out, with a line that says so.

    python benchmarks/formats.py [--rounds 31] [--samples 500] [--work FOLDER] [--save]
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import _results
import google_crc32c
import numpy as np
import simplejpeg

import packio

SUFFIXES = (".h5", ".lmdb", ".n5", ".pth", ".rec", ".tar", ".tfrecord", ".zarr")
MANY = 50  # samples that are asked for at once
FEW = 5  # samples of a library that reads a block of 55 MB for each
PACKAGES = ("numpy", "google-crc32c", "torch", "h5py", "lmdb", "tensorstore", "tfrecord",
            "webdataset", "z5py", "zarr")  # fmt: skip


class Run(NamedTuple):
    """Something that is timed."""

    name: str
    samples: int
    run: Callable[[], object]


class Given(NamedTuple):
    """What a library is given."""

    pack: Path
    images: list[bytes]
    offsets: list[int]  # of the samples in the blob, where there is one
    order: list[int]
    spare: Path  # a path where it can make a container of its own

    def each(self, name: str, get: Callable[[int], Any], *, few: bool = False) -> Run:
        """Time one call a sample; check first that it gives the sample."""
        order, lengths = self.order[: FEW if few else None], list(map(len, self.images))
        for i in order[:5]:
            if bytes(get(i))[: lengths[i]] != self.images[i]:
                sys.exit(f"{name}: other bytes than were packed")

        def run() -> None:
            for i in order:
                get(i)

        return Run(name, len(order), run)

    def all(self, name: str, iterate: Callable[[], Iterable[Any]]) -> Run:
        """Time an iteration; check first that it gives all samples."""
        if [bytes(data) for data in iterate()] != self.images:
            sys.exit(f"{name}: other bytes than were packed")

        def run() -> None:
            for _ in iterate():
                pass

        return Run(name, len(self.images), run)

    def span(self, i: int) -> slice:
        """Where a sample lies in the blob."""
        return slice(self.offsets[i], self.offsets[i] + len(self.images[i]))

    def padded(self) -> np.ndarray:
        """All samples as rows of equal length."""
        rows = np.zeros((len(self.images), max(map(len, self.images))), np.uint8)
        for row, image in zip(rows, self.images, strict=True):
            row[: len(image)] = np.frombuffer(image, np.uint8)
        return rows


def packio_runs(given: Given) -> list[Run]:
    """Packio and plain system calls, one sample at a time and many."""
    pack = packio.open(given.pack)
    index, root = pack.index_file, given.pack if given.pack.is_dir() else given.pack.parent
    handles = [os.open(root / name, os.O_RDONLY) for name, _, _ in index.files()]
    file, offsets, lengths = (
        index.column(f"image/{n}").array().tolist() for n in ("file", "offset", "length")
    )
    batches = [given.order[i : i + MANY] for i in range(0, len(given.order), MANY)]

    def plain(i: int) -> bytes:
        data = os.pread(handles[file[i]], lengths[i], offsets[i])
        google_crc32c.value(data)
        return data

    def plain_many() -> None:
        for batch in batches:
            [plain(i) for i in batch]

    def many() -> None:
        for batch in batches:
            pack.read_many(batch)

    return [
        given.each("plain", plain),
        given.each("packio", lambda i: pack.read(pack.row(i))),
        given.each("packio, sample", lambda i: pack[i].data),
        Run("plain, many", len(given.order), plain_many),
        Run("packio, many", len(given.order), many),
    ]


def h5py_runs(given: Given) -> Iterator[Run]:
    """Slices of packio's blob; a dataset of variable length, as is usual."""
    import h5py

    blob = h5py.File(given.pack)["data"]
    yield given.each("h5py", lambda i: blob[given.span(i)])
    with h5py.File(given.spare, "w") as file:
        vlen = file.create_dataset("data", len(given.images), h5py.vlen_dtype(np.uint8))
        for i, image in enumerate(given.images):
            vlen[i] = np.frombuffer(image, np.uint8)
    images = h5py.File(given.spare)["data"]
    yield given.each("h5py, vlen", lambda i: images[i])


def lmdb_runs(given: Given) -> Iterator[Run]:
    """A get within one long transaction."""
    import lmdb

    env = lmdb.open(str(given.pack), readonly=True, lock=False, readahead=False)
    views, copies = env.begin(buffers=True), env.begin()
    yield given.each("lmdb, view", lambda i: views.get(b"%08d" % i))
    yield given.each("lmdb, copy", lambda i: copies.get(b"%08d" % i))


def torch_runs(given: Given) -> Iterator[Run]:
    """A slice of the mapped tensor, copied by one thread, as in a worker of DataLoader."""
    import torch

    torch.set_num_threads(1)
    data = torch.load(given.pack, weights_only=True, mmap=True)["data"]
    yield given.each("torch", lambda i: data[given.span(i)].clone().numpy())


def tfrecord_runs(given: Given) -> Iterator[Run]:
    """Iteration with the package of vahidk, by the index that packio wrote."""
    from tfrecord.reader import tfrecord_loader

    path, index, wanted = str(given.pack), f"{given.pack}.idx", "image/encoded"

    def images() -> Iterator[bytes]:
        examples = tfrecord_loader(path, index, {wanted: "byte"}, shard=(0, 1))  # else it rotates
        return (example[wanted] for example in examples)

    yield given.all("tfrecord, in order", images)


def webdataset_runs(given: Given) -> Iterator[Run]:
    """Iteration, without decoding."""
    import webdataset

    def images() -> Iterator[Any]:
        return (s["jpg"] for s in webdataset.WebDataset(str(given.pack), shardshuffle=False))

    yield given.all("webdataset, in order", images)


def zarr_runs(given: Given) -> Iterator[Run]:
    """A row of an array with a chunk an image, as is usual; a slice of packio's blob."""
    import zarr

    rows = given.padded()
    images = zarr.create_array(
        given.spare, data=rows, chunks=(1, rows.shape[1]), compressors=None, zarr_format=3
    )
    yield given.each("zarr, a chunk an image", lambda i: images[i])
    blob = zarr.open_array(given.pack / "data", mode="r")
    yield given.each("zarr", lambda i: blob[given.span(i)], few=True)


def tensorstore_runs(given: Given) -> Iterator[Run]:
    """The same two with tensorstore, of Zarr or N5."""
    import tensorstore

    driver = {".zarr": "zarr3", ".n5": "n5"}[given.pack.suffix]

    def opened(path: Path, **options: Any) -> Any:
        store = {"driver": "file", "path": str(path)}
        return tensorstore.open({"driver": driver, "kvstore": store}, **options).result()

    rows, path = given.padded(), given.spare.with_name(given.spare.name + "-tensorstore")
    layout = tensorstore.ChunkLayout(chunk_shape=[1, rows.shape[1]])
    raw = {"n5": tensorstore.CodecSpec({"driver": "n5", "compression": {"type": "raw"}})}
    opened(
        path, create=True, dtype=tensorstore.uint8, shape=rows.shape, chunk_layout=layout,
        codec=raw.get(driver),
    ).write(rows).result()  # fmt: skip
    images, blob = opened(path), opened(given.pack / "data")
    yield given.each("tensorstore, a chunk an image", lambda i: images[i].read().result())
    yield given.each("tensorstore", lambda i: blob[given.span(i)].read().result(), few=True)


def z5py_runs(given: Given) -> Iterator[Run]:
    """The same two with z5py."""
    import z5py

    rows = given.padded()
    images = z5py.File(str(given.spare), mode="w").create_dataset(
        "data", data=rows, chunks=(1, rows.shape[1]), compression="raw"
    )
    yield given.each("z5py, a chunk an image", lambda i: images[i])
    blob = z5py.File(str(given.pack), mode="r")["data"]
    yield given.each("z5py", lambda i: blob[given.span(i)], few=True)


LIBRARIES: dict[str, list[Callable[[Given], Iterator[Run]]]] = {
    ".h5": [h5py_runs],
    ".lmdb": [lmdb_runs],
    ".n5": [z5py_runs, tensorstore_runs],
    ".pth": [torch_runs],
    ".tar": [webdataset_runs],
    ".tfrecord": [tfrecord_runs],
    ".zarr": [zarr_runs, tensorstore_runs],
}


def make_images(folder: Path, count: int) -> list[bytes]:
    """JPEGs of noise, 97 to 124 KB, in two class folders; in the order they will be packed."""
    random, images = np.random.default_rng(0), []
    for i in range(count):
        side = int(random.integers(225, 256))
        image = simplejpeg.encode_jpeg(random.integers(0, 256, (side, side, 3), np.uint8), 90)
        path = folder / f"class{2 * i // count}" / f"{i:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)
        images.append(image)
    return images


def settle(folder: Path) -> None:
    """Sync all files and read them anew, so that all are in the page cache as in training.

    How a file was written matters else: hdf5 and n5 took 17 µs a sample when just packed, then 13.
    """
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                while file.read(1 << 20):
                    pass


def groups(work: Path, count: int) -> dict[str, list[Run]]:
    """All that is timed, format by format; what is timed first there is plain pread."""
    images = make_images(work / "images", count)
    order = np.random.default_rng(1).permutation(count).tolist()
    found: dict[str, list[Run]] = {}
    for suffix in SUFFIXES:
        path = work / f"pack{suffix}"
        packio.pack(work / "images", path)
        with packio.open(path) as pack:
            start = pack.index_file.column("image/offset").array()
        blob = (start - start[0]).tolist()  # one block holds all, below 64 MiB
        given = Given(path, images, blob, order, work / f"own{suffix}")
        found[suffix] = packio_runs(given)
        for library in LIBRARIES.get(suffix, []):
            try:
                found[suffix] += list(library(given))
            except ModuleNotFoundError as error:
                print(f"{suffix}: left out: {error}", file=sys.stderr)
    settle(work)
    return found


def measure(found: dict[str, list[Run]], rounds: int) -> dict[str, Any]:
    """µs a sample of each, and ratios round by round."""
    micros: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds + 1):
        for suffix, runs in found.items():
            runs[0].run()  # whoever comes first finds the caches as the others do
            for name, samples, run in runs[:: 1 if number % 2 else -1]:
                began = time.perf_counter()
                run()
                seconds = time.perf_counter() - began
                if number:
                    micros.setdefault((suffix, name), []).append(1e6 * seconds / samples)
    result: dict[str, Any] = {}
    summary = functools.partial(_results.summary, digits=2, quartiles=True)
    for (suffix, name), values in micros.items():
        base = "plain, many" if name.endswith("many") else "plain"
        ours = base.replace("plain", "packio")
        result.setdefault(suffix, {})[name] = {
            "us": summary(values),
            "over_plain": summary(_results.ratios(values, micros[suffix, base])),
            "over_packio": summary(_results.ratios(values, micros[suffix, ours])),
        }
    return result


def table(result: dict[str, Any]) -> str:
    """What was found, a line each."""
    lines = [f"{'':10} {'':30} {'µs':>9} {'/ plain':>8} {'(quartiles)':>14} {'/ packio':>9}"]
    for suffix, runs in result.items():
        for name, run in runs.items():
            plain, quartiles = run["over_plain"], "({q1:.2f}, {q3:.2f})".format(**run["over_plain"])
            lines.append(
                f"{suffix:10} {name:30} {run['us']['median']:9.1f} {plain['median']:8.2f} "
                f"{quartiles:>14} {run['over_packio']['median']:9.2f}"
            )
    return "\n".join(lines)


def main() -> None:
    """Measure and print; with --save into benchmarks/results/formats.json."""
    parser = _results.parser(__doc__, rounds=31)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--work", type=Path, help="folder to write in; default: the temporary one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.work) as name:
        found = groups(Path(name), given.samples)
        result = measure(found, given.rounds)
    print(table(result))
    if given.save:
        about = {
            "machine": _results.machine(*PACKAGES),
            "samples": given.samples,
            "rounds": given.rounds,
        }
        _results.save("formats", {**about, "formats": result})


if __name__ == "__main__":
    main()
