"""How fast packio and its peers read a bucket that is a few milliseconds away.

    python benchmarks/remote.py [--peers PYTHON] [--wait SECONDS …] [--images N] [--resume] [--save]

PYTHON is the Python of an environment with litdata, mosaicml-streaming, webdataset, simplejpeg and
OpenCV; without it only packio reads. A server of this repository (_bucket.py) speaks S3's protocol
and waits before each answer. Photographs of about 100 KB are written as each reader wants them:
packio's shards of a tar, chunks and shards of 16 MB. Each reader goes through two epochs of
RandomResizedCrop(224) with two workers, in turns; the first epoch finds an empty cache, and its
time includes making the loader and its workers. A reader that fails is left out of its round.
With --resume a process saves its loader's state in the middle of the first epoch and dies; new
processes go on from there, one with that process's cache, one with an empty one. WebDataset has no
state to save, and is left out.
Memory is the largest sum of the unique bytes (USS) of all of a reader's processes.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import _results
import numpy as np
from PIL import Image

import packio

HERE = Path(__file__).parent
READERS = (
    "packio", "packio, torch's loader", "packio, half on disk", "packio, all on disk", "litdata",
    "streaming", "webdataset",
)  # fmt: skip
RESUMED = ("packio", "packio, all on disk", "litdata", "streaming")
WORKERS, BATCH, SHARD = 2, 32, 16 << 20


def make_images(folder: Path, count: int) -> None:
    """Write photographs of about 100 KB, 500 x 375 pixels, in ten classes."""
    from skimage import data

    photos = [data.astronaut(), data.chelsea(), data.coffee(), data.rocket()]
    draw = np.random.default_rng(5)
    for number in range(count):
        photo = photos[number % len(photos)]
        size = min(photo.shape[0], int(photo.shape[1] * 0.75))
        part = int(size * draw.uniform(0.6, 0.99))
        top, left = (int(draw.integers(0, photo.shape[k] - part + 1)) for k in (0, 1))
        image = Image.fromarray(photo[top : top + part, left : left + part]).resize((500, 375))
        noise = draw.normal(0, 12, (375, 500, 3))  # so that all differ, and are of that length
        noisy = np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8)
        path = folder / f"class{number % 10}" / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noisy).save(path, quality=88)


def write(images: Path, bucket: Path, python: str) -> int:
    """Write the images for every reader; return the number of WebDataset's shards."""
    size = sum(path.stat().st_size for path in images.rglob("*.jpg"))
    shards = max(2, round(size / SHARD))
    packio.pack(images, bucket / "packio.tar", shards=shards, shuffle=1)
    if not python:
        return shards
    code = f"""
import glob, sys, random
names = sorted(glob.glob({str(images)!r} + "/*/*.jpg")); random.Random(1).shuffle(names)
def sample(name):
    return {{"image": open(name, "rb").read(), "label": int(name.split("/class")[1][0])}}
if __name__ == "__main__":
    import litdata, webdataset
    from streaming import MDSWriter
    litdata.optimize(fn=sample, inputs=names, output_dir={str(bucket / "litdata")!r},
                     chunk_bytes="16MB", num_workers=1, start_method="fork", verbose=False)
    with MDSWriter(out={str(bucket / "streaming")!r}, columns={{"image": "bytes", "label": "int"}},
                   size_limit={SHARD}) as out:
        for name in names:
            out.write(sample(name))
    import os; os.mkdir({str(bucket / "webdataset")!r})
    for shard in range({shards}):
        with webdataset.TarWriter({str(bucket / "webdataset")!r} + f"/{{shard:06d}}.tar") as out:
            for number, name in enumerate(names[shard::{shards}]):
                out.write({{"__key__": f"{{shard}}-{{number:06d}}", "jpg": sample(name)["image"],
                            "cls": str(sample(name)["label"])}})
"""
    script = bucket.parent / "write.py"
    script.write_text(_stubbed(code))
    subprocess.run([python, script], check=True, stdout=subprocess.DEVNULL)
    return shards


def _stubbed(code: str) -> str:
    """A program that can import torchvision, as Streaming does, beside torch of another build."""
    return (
        "from importlib.metadata import PackageNotFoundError, version\n"
        "import torch\n"
        "try: builds = {version(each).partition('+')[2] for each in ('torch', 'torchvision')}\n"
        "except PackageNotFoundError: builds = set()\n"
        "if len(builds) > 1:\n"
        "    stub = torch.library.Library('torchvision', 'FRAGMENT')\n"
        "    for name in ('nms', 'qnms'):\n"
        "        try: stub.define(f'{name}(Tensor a, Tensor b, float c) -> Tensor')\n"
        "        except RuntimeError: pass\n" + code
    )


class Reader:
    """A process that reads; see _remote_child.py."""

    def __init__(
        self, name: str, port: int, folder: Path, python: str, given: dict[str, str],
        half: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        env = {
            **os.environ, **given, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "S3_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "PACKIO_CACHE_DIR": str(folder / "packio"), "PYTHONPATH": str(HERE.parent),
            "FSSPEC_S3": json.dumps({"endpoint_url": f"http://127.0.0.1:{port}"}),
        }  # fmt: skip
        code = _stubbed(f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
                        "sys.argv[0] = '_remote_child.py'\n"
                        "import _remote_child as child\n"
                        "if __name__ == '__main__':\n"
                        "    child.begin(*sys.argv[1:])\n")  # fmt: skip
        script = folder / "child.py"
        script.write_text(code)
        self._child = subprocess.Popen(
            [sys.executable if name.startswith("packio") else python, script, name, "s3://bucket",
             folder / "cache", "2", str(WORKERS), str(BATCH), *half],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
        )  # fmt: skip
        self.most = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def epoch(self) -> dict[str, Any]:
        """Wait for an epoch."""
        for line in self._child.stdout or ():
            if line.startswith("{"):
                told: dict[str, Any] = json.loads(line)
                return told
        raise RuntimeError("the reader has ended")

    def go_on(self) -> None:
        """Let the next epoch begin."""
        print(file=self._child.stdin, flush=True)

    def _watch(self) -> None:
        while self._child.poll() is None:
            self.most = max(self.most, sum(map(_unique, _below(self._child.pid))))
            time.sleep(0.5)

    def close(self) -> None:
        """Wait for its end."""
        self._child.communicate("\n", timeout=120)


def _below(pid: int) -> list[int]:
    found = [pid]
    for process in found:
        for path in Path(f"/proc/{process}/task").glob("*/children"):
            try:
                found += map(int, path.read_text().split())
            except OSError:
                continue
    return found


def _unique(pid: int) -> int:
    try:
        found = _results.memory(pid)
    except OSError:
        return 0
    return found.get("Private_Clean", 0) + found.get("Private_Dirty", 0)


def _counts(port: int) -> dict[str, int]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/counts") as answer:
        found: dict[str, int] = json.load(answer)
    return found


def measure(
    name: str, port: int, python: str, given: dict[str, str], images: int
) -> list[dict[str, Any]]:
    """Two epochs of one reader."""
    folder = Path(tempfile.mkdtemp())
    _counts(port)
    reader, found = Reader(name, port, folder, python, given), []
    try:
        for epoch in range(2):
            told, counts = reader.epoch(), _counts(port)
            found.append({
                "images_per_second": told["images"] / told["seconds"],
                "seconds_to_first_batch": told["first"],
                "requests_per_image": counts["requests"] / images,
                "bytes_per_image": counts["bytes"] / images, "images": told["images"],
            })  # fmt: skip
            if epoch == 0:
                reader.go_on()
        reader.close()
        found[-1]["memory"] = found[0]["memory"] = reader.most
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def measure_resume(
    name: str, port: int, python: str, given: dict[str, str], images: int
) -> list[dict[str, Any]]:
    """A reader that goes on from the middle of an epoch: with its cache, and without one."""
    folder = Path(tempfile.mkdtemp())  # LitData goes on only where its cache has the same path
    half, found = (str(folder / "state"), str(images // BATCH // 2)), []
    try:
        for clear in (False, False, True):
            if clear:
                shutil.rmtree(folder / "cache", ignore_errors=True)
            _counts(port)
            reader = Reader(name, port, folder, python, given, half)
            told, counts = reader.epoch(), _counts(port)
            reader.close()
            if "same" in told:
                found.append({
                    "images_per_second": told["images"] / told["seconds"],
                    "seconds_to_first_batch": told["first"], "same_samples": told["same"],
                    "requests_per_image": counts["requests"] / told["images"],
                    "bytes_per_image": counts["bytes"] / told["images"],
                    "images": told["images"], "memory": reader.most,
                })  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def main() -> None:
    """Measure all readers."""
    parser = _results.parser(__doc__, rounds=3)
    parser.add_argument("--peers", default="", help="Python of the peers' environment")
    parser.add_argument("--wait", type=float, nargs="+", default=[0.01, 0.05])
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--readers", nargs="+", default=READERS)
    parser.add_argument("--resume", action="store_true", help="time going on in the middle instead")
    given = parser.parse_args()
    if given.resume:
        given.readers = [name for name in given.readers if name in RESUMED]
    if not given.peers:
        given.readers = [name for name in given.readers if name.startswith("packio")]
    with tempfile.TemporaryDirectory() as temporary:
        top = Path(temporary)
        bucket = top / "far" / "bucket"
        bucket.mkdir(parents=True)
        make_images(top / "images", given.images)
        size = sum(path.stat().st_size for path in (top / "images").rglob("*.jpg"))
        shards = write(top / "images", bucket, given.peers)
        env = {"HALF": str(size // 2), "SHARDS": str(shards)}
        results = {}
        for wait in given.wait:
            results[f"{wait * 1000:.0f} ms"] = _turns(given, top / "far", wait, env)
    packages = ("torch", "s3fs", "urllib3", "simplejpeg", "litdata", "mosaicml-streaming")
    _results.finish("remote_resume" if given.resume else "remote", {
        "machine": _results.machine(*packages), "images": given.images,
        "bytes_of_an_image": size // given.images, "workers": WORKERS, "batch": BATCH,
        "shards": shards, "rounds": given.rounds, "waits": results,
    }, keep=given.save)  # fmt: skip


def _turns(given: Any, far: Path, wait: float, env: dict[str, str]) -> dict[str, Any]:
    """All readers in turns, at one distance."""
    server = subprocess.Popen(
        [sys.executable, HERE / "_bucket.py", far, str(wait)], stdout=subprocess.PIPE, text=True
    )
    try:
        port, rounds = int(next(iter(server.stdout or ()))), []
        for number in range(given.rounds):
            order = [*given.readers[number % len(given.readers) :], *given.readers]
            turn = {}
            for name in order[: len(given.readers)]:
                try:
                    work = measure_resume if given.resume else measure
                    turn[name] = work(name, port, given.peers, env, given.images)
                except RuntimeError as error:
                    print(f"{wait * 1000:.0f} ms, round {number + 1}: {name}: {error}", flush=True)
                    continue
                shown = [round(epoch["images_per_second"]) for epoch in turn[name]]
                if given.resume:
                    shown = [(round(e["seconds_to_first_batch"], 2), e["same_samples"])
                             for e in turn[name]]  # fmt: skip
                print(f"{wait * 1000:.0f} ms, round {number + 1}: {name} {shown}", flush=True)
            rounds.append(turn)
    finally:
        server.terminate()
        server.wait()
    found = {
        name: [_epoch([turn[name][epoch] for turn in rounds if name in turn]) for epoch in range(2)]
        for name in given.readers
        if any(name in turn for turn in rounds)
    }
    if given.resume:
        return found
    return found | {
        "packio to the best of others, each round": [_ratio(t) for t in rounds if "packio" in t]
    }


def _epoch(found: list[dict[str, Any]]) -> dict[str, Any]:
    """One epoch of one reader, over the rounds."""
    digits = {"images_per_second": 1, "seconds_to_first_batch": 3, "requests_per_image": 4,
              "bytes_per_image": 0, "memory": 0}  # fmt: skip
    told = {name: _results.summary([f[name] for f in found], digits[name]) for name in digits}
    if "same_samples" in found[0]:
        told["went_on_with_the_same_samples"] = sum(f["same_samples"] for f in found)
    return {
        **told, "rounds": len(found), "images": statistics.median(f["images"] for f in found),
    }  # fmt: skip


def _ratio(turn: dict[str, list[dict[str, Any]]]) -> list[float]:
    """The images a second of packio, over those of the fastest other, in each epoch."""
    others = [name for name in turn if not name.startswith("packio")]
    return [
        round(
            turn["packio"][epoch]["images_per_second"]
            / max((turn[n][epoch]["images_per_second"] for n in others), default=float("nan")), 2,
        )
        for epoch in range(2)
    ]  # fmt: skip


if __name__ == "__main__":
    main()
