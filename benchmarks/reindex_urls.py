"""Indexing tars at URLs, which are streamed; by size of sample.

A web server in another process answers each request after a round trip of 10 or 50 ms, over a line
of 125 MB/s that all connections share. Eight tars are indexed by eight workers, three times; the
table has the medians.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import re
import statistics
import tarfile
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import _results
import numpy as np
from PIL import Image

import packio

SIZES = (50_000, 150_000, 500_000, 1_500_000)  # bytes of an image, about
TRIPS = (0.01, 0.05)  # seconds
RATE = 125e6  # bytes a second, of all connections
TARS = 8
TOTAL = 8_000_000  # bytes of a tar, about


def tar(size: int) -> bytes:
    """Make a tar of images of noise, each with a label."""
    side = int((size / 0.95) ** 0.5)
    pixels = np.random.default_rng(size).integers(0, 256, (side, side, 3), np.uint8)
    image = io.BytesIO()
    Image.fromarray(pixels).save(image, "jpeg", quality=90)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for number in range(max(4, TOTAL // image.tell())):
            for ending, content in (("cls", b"1"), ("jpg", image.getvalue())):
                entry = tarfile.TarInfo(f"{number:06d}.{ending}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def serve(content: bytes, trip: float, port: Any, counts: Any) -> None:
    """Answer requests of ranges, each after a round trip and at the rate of the line."""
    line = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            time.sleep(trip)
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            first, last = (int(asked[1]), int(asked[2])) if asked else (0, len(content) - 1)
            body = content[first : last + 1]
            self.send_response(206 if asked else 200)
            self.send_header("ETag", '"1"')
            self.send_header("Content-Length", str(len(body)))
            if asked:
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
            self.end_headers()
            if self.command == "GET":
                with counts.get_lock():
                    counts[0] += 1
                    counts[1] += len(body)
                step = 1 << 18
                for start in range(0, len(body), step):
                    with line:
                        time.sleep(min(step, len(body) - start) / RATE)
                    self.wfile.write(body[start : start + step])

        do_HEAD = do_GET  # noqa: N815 (http.server's name)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    port.value = server.server_address[1]
    server.serve_forever()


def measured(content: bytes, trip: float, rounds: int) -> dict[str, Any]:
    """Seconds, requests and bytes a sample."""
    context = multiprocessing.get_context("fork")
    port, counts = context.Value("i", 0), context.Array("q", 2)
    server = context.Process(target=serve, args=(content, trip, port, counts), daemon=True)
    server.start()
    while not port.value:
        time.sleep(0.01)
    url = f"http://127.0.0.1:{port.value}/{{1..{TARS}}}.tar"
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PACKIO_CACHE_DIR"] = folder
        index = Path(folder, "x.packio")
        for _ in range(rounds):
            counts[:] = (0, 0)
            began = time.perf_counter()
            packio.reindex(url, index=index, num_workers=TARS)
            times.append(time.perf_counter() - began)
        samples = len(packio.open(url, index=index))
    server.terminate()
    server.join()
    return {
        "ms_a_sample": 1000 * statistics.median(times) / samples,
        "spread": [1000 * min(times) / samples, 1000 * max(times) / samples],
        "requests_a_sample": counts[0] / samples,
        "bytes_a_sample": counts[1] / samples,
    }


def main() -> None:
    """Measure all sizes and round trips, and print a table."""
    arguments = _results.parser(__doc__, rounds=3).parse_args()
    found = []
    for size in SIZES:
        content = tar(size)
        for trip in TRIPS:
            result = measured(content, trip, arguments.rounds)
            found.append({"bytes": size, "round_trip": trip, "streamed": result})
            print(
                f"{size:9,} B  {1000 * trip:3.0f} ms  {result['ms_a_sample']:6.1f} ms "
                f"{result['requests_a_sample']:5.2f} requests {result['bytes_a_sample']:10,.0f} B",
                flush=True,
            )
    if arguments.save:
        _results.save("reindex_urls", {"machine": _results.machine("fsspec"), "results": found})


if __name__ == "__main__":
    main()
