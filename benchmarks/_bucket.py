"""A bucket on this machine: as much of S3's protocol as readers need, and a wait before answers.

    python benchmarks/_bucket.py FOLDER SECONDS

serves FOLDER/BUCKET/KEY, prints its port, and waits SECONDS before each answer, as a far store
would. GET and HEAD of objects, with ranges, If-Match and ETag; lists of objects (version 2).
``GET /-/counts`` tells the requests and bytes since it was asked last.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import hashlib
import json
import os
import re
import sys
import urllib.parse
from pathlib import Path
from xml.sax.saxutils import escape

RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class Bucket:
    """Answers of the server."""

    def __init__(self, folder: Path, wait: float) -> None:
        self._folder, self._wait, self._tags = folder, wait, {}
        self.requests = self.bytes = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                line, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
                method, target, _ = line.split(" ")
                headers = dict(re.split(r":\s*", text, maxsplit=1) for text in lines)
                await self._one(writer, method, target, {k.lower(): headers[k] for k in headers})
        writer.close()

    async def _one(
        self, writer: asyncio.StreamWriter, method: str, target: str, headers: dict[str, str]
    ) -> None:
        path, _, query = target.partition("?")
        if path == "/-/counts":
            told = json.dumps({"requests": self.requests, "bytes": self.bytes}).encode()
            self.requests = self.bytes = 0
            await _answer(writer, 200, {}, told)
            return
        self.requests += 1
        await asyncio.sleep(self._wait)
        asked = urllib.parse.parse_qs(query, keep_blank_values=True)
        if "list-type" in asked or "location" in asked:
            await _answer(writer, 200, {"Content-Type": "application/xml"}, self._list(path, asked))
            return
        file = self._folder / urllib.parse.unquote(path).lstrip("/")
        if not file.is_file():
            await _answer(writer, 404, {}, b"" if method == "HEAD" else b"<Error/>")
            return
        await self._object(writer, method, file, headers)

    async def _object(
        self, writer: asyncio.StreamWriter, method: str, file: Path, headers: dict[str, str]
    ) -> None:
        status = os.stat(file)
        size = status.st_size
        told = {
            "ETag": self._tag(file), "Accept-Ranges": "bytes",
            "Last-Modified": email.utils.formatdate(status.st_mtime, usegmt=True),
        }  # fmt: skip
        if headers.get("if-match", told["ETag"]) != told["ETag"]:
            await _answer(writer, 412, {}, b"")
            return
        code, start, stop = 200, 0, size
        if found := RANGE.match(headers.get("range", "")):
            first, last = found.groups()
            start = int(first) if first else max(size - int(last), 0)
            stop = min(int(last) + 1, size) if first and last else size
            code = 206
            told["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        if method == "HEAD":
            await _answer(writer, code, told, b"", length=stop - start)
            return
        with file.open("rb") as opened:
            data = os.pread(opened.fileno(), stop - start, start)
        self.bytes += len(data)
        await _answer(writer, code, told, data)

    def _tag(self, file: Path) -> str:
        if file not in self._tags:
            self._tags[file] = f'"{hashlib.md5(str(file).encode()).hexdigest()}"'  # noqa: S324 (a name, no secret)
        return self._tags[file]

    def _list(self, path: str, asked: dict[str, list[str]]) -> bytes:
        bucket = path.strip("/")
        prefix, delimiter = asked.get("prefix", [""])[0], asked.get("delimiter", [""])[0]
        keys, folders = [], set()
        for file in sorted((self._folder / bucket).rglob("*")):
            key = file.relative_to(self._folder / bucket).as_posix()
            if not file.is_file() or not key.startswith(prefix):
                continue
            if delimiter and delimiter in key[len(prefix) :]:
                folders.add(prefix + key[len(prefix) :].split(delimiter)[0] + delimiter)
            else:
                keys.append(
                    f"<Contents><Key>{escape(key)}</Key><Size>{file.stat().st_size}</Size>"
                    f"<ETag>{escape(self._tag(file))}</ETag>"
                    "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                )
        common = [f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in folders]
        return (
            f"<ListBucketResult><Name>{bucket}</Name><KeyCount>{len(keys)}</KeyCount>"
            f"<IsTruncated>false</IsTruncated>{''.join(keys + common)}</ListBucketResult>"
        ).encode()


async def _answer(
    writer: asyncio.StreamWriter, status: int, headers: dict[str, str], body: bytes,
    length: int | None = None,
) -> None:  # fmt: skip
    size = len(body) if length is None else length
    lines = [f"HTTP/1.1 {status} -", *(f"{name}: {value}" for name, value in headers.items())]
    writer.write("\r\n".join([*lines, f"Content-Length: {size}", "", ""]).encode() + body)
    await writer.drain()


async def main(folder: Path, wait: float) -> None:
    """Serve until the process is ended."""
    bucket = Bucket(folder, wait)
    server = await asyncio.start_server(bucket.serve, "127.0.0.1", 0, limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2])))
