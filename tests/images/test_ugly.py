"""Odd, damaged and hostile images: packio's outcome is Pillow's, within 1 GiB of memory.

Run as a script, this file prints outcomes: it decodes each file named on its command line in a
child process of its own, so that a crash, a hang or a bomb costs one file.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import pathlib
import resource
import signal
import struct
import subprocess
import sys
import warnings
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image, ImageOps, PngImagePlugin

if TYPE_CHECKING:
    from collections.abc import Callable

_FOLDER = pathlib.Path(__file__).parents[3] / "shared" / "data" / "ugly"
_MEMORY = 1 << 30  # bytes, of a process that decodes one image
_SECONDS = 30  # for one image

# Where packio does otherwise than Pillow, on purpose: why, and what it raises.
_SIXTEEN_BITS = ("16 bits do not fit RGB; Pillow clips or narrows them", "ModeError")
_EXCEPTIONS = {
    "png_16bit/grayscale_16bit.png": _SIXTEEN_BITS,
    "png_16bit/i_trns.png": _SIXTEEN_BITS,
    "made/gray16.png": _SIXTEEN_BITS,
    "made/colour16.png": _SIXTEEN_BITS,
    "made/deep.pgm": _SIXTEEN_BITS,
    "made/float.tif": ("floating-point pixels do not fit RGB; Pillow clips them", "ModeError"),
}


def _packio(data: bytes) -> np.ndarray:
    from packio.images import encodings
    from packio.images.decoders import Decoder
    from packio.images.frames import orient

    facts = encodings.read_facts(data)
    return orient(Decoder("auto")(data, facts), facts.orientation)


def _pillow(data: bytes) -> np.ndarray:
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    return np.asarray(image.convert("RGB"))


def _outcome(decode: Callable[[bytes], np.ndarray], data: bytes) -> dict[str, Any]:
    try:
        pixels = decode(data)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is the outcome)
        expected = "packio" in type(error).__module__
        return {"error": type(error).__name__, "message": str(error), "packios": expected}
    digest = hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).hexdigest()
    return {"shape": pixels.shape, "dtype": str(pixels.dtype), "digest": digest}


def _in_child(decode: Callable[[bytes], np.ndarray], path: str) -> dict[str, Any]:
    """Decode a file in a forked process; its outcome, its peak memory and its end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.alarm(_SECONDS)
        outcome = _outcome(decode, pathlib.Path(path).read_bytes())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        os.write(writing, json.dumps({**outcome, "peak": peak}).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return {**json.loads(text or b"{}"), "status": status}


def _print_outcomes(paths: list[str]) -> None:
    warnings.simplefilter("ignore")
    _packio(_saved(_photo(), "JPEG"))  # load what is needed before forking
    outcomes = {p: [_in_child(_packio, p), _in_child(_pillow, p)] for p in paths}
    print(json.dumps(outcomes))


def _outcomes(folder: pathlib.Path) -> dict[str, list[dict[str, Any]]]:
    files = sorted(str(p) for p in folder.rglob("*") if p.is_file())
    command = [sys.executable, __file__, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {str(pathlib.Path(k).relative_to(folder)): v for k, v in json.loads(done.stdout).items()}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Outcomes of packio and of Pillow for each file, by its name."""
    made = tmp_path_factory.mktemp("ugly") / "made"
    made.mkdir()
    for name, data in _made().items():
        (made / name).write_bytes(data)
    found = _outcomes(made.parent)
    return {**found, **_outcomes(_FOLDER)} if _FOLDER.is_dir() else found


def _differences(outcomes: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    """What each file gave that differs from Pillow's outcome, in words."""
    found = {}
    for name, (ours, pillows) in outcomes.items():
        if "error" in ours or "error" in pillows:
            if ("error" in ours) != ("error" in pillows):
                found[name] = f"{ours.get('error', 'pixels')} {ours.get('message', '')}"
        elif (ours["shape"], ours["digest"]) != (pillows["shape"], pillows["digest"]):
            found[name] = f"other pixels: {ours['shape']}, Pillow {pillows['shape']}"
    return found


def test_no_image_ends_a_process(outcomes: dict[str, list[dict[str, Any]]]) -> None:
    assert {n: o["status"] for n, (o, _) in outcomes.items() if o["status"]} == {}


def test_outcomes_are_pillows_but_for_known_exceptions(
    outcomes: dict[str, list[dict[str, Any]]],
) -> None:
    found = _differences(outcomes)
    surprises = {n: w for n, w in found.items() if w.split()[0] != _EXCEPTIONS.get(n, ("", ""))[1]}
    assert surprises == {}
    assert [n for n in _EXCEPTIONS if n in outcomes and n not in found] == []


def test_every_error_is_packios(outcomes: dict[str, list[dict[str, Any]]]) -> None:
    foreign = {n: o for n, (o, _) in outcomes.items() if "error" in o and not o["packios"]}
    assert foreign == {}


def test_no_image_takes_more_memory_than_allowed(
    outcomes: dict[str, list[dict[str, Any]]],
) -> None:
    assert {n: o["peak"] for n, (o, _) in outcomes.items() if o["peak"] > _MEMORY} == {}


def _made() -> dict[str, bytes]:
    """Make ugly images, as files by name."""
    return {**_made_kinds(), **_made_orientations(), **_made_damages(), **_made_bombs()}


@functools.cache
def _photo() -> Image.Image:
    """Make something like a photograph, 45 by 61 pixels: sizes that no block divides."""
    y, x, c = np.ogrid[:45, :61, :3]
    waves = 128 + 70 * np.sin(x / (5 + c)) + 50 * np.cos(y / (7 - c))
    return Image.fromarray((waves + np.random.default_rng(0).normal(0, 9, waves.shape)).clip(0, 255)
                           .astype(np.uint8))  # fmt: skip


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _made_kinds() -> dict[str, bytes]:
    """Kinds that `test_decoders` has not."""
    photo = _photo()
    palette = photo.quantize(16)
    gray16 = Image.fromarray(np.arange(64 * 48, dtype=np.uint16).reshape(48, 64) * 21)
    colour16 = np.arange(8 * 6 * 3, dtype=">u2") * 400
    small = [photo.resize((20, 15)), photo.resize((20, 15)).rotate(90)]
    return {
        "gray16.png": _saved(gray16, "PNG"),
        "colour16.png": _png(8, 6, 16, 2, _rows(colour16.tobytes(), 48)),
        "frames.gif": _saved(small[0], "GIF", save_all=True, append_images=small[1:]),
        "palette.bmp": _saved(palette, "BMP"),
        "upside_down.bmp": _upside_down(_saved(photo, "BMP")),
        "plain.pgm": b"P2 3 2 255 1 2 3 4 5 6\n",
        "deep.pgm": b"P5 2 1 1023\n\0\1\3\xff",
        "float.tif": _saved(photo.convert("F"), "TIFF"),
        "cmyk.tif": _saved(photo.convert("CMYK"), "TIFF"),
        "jpeg_in.tif": _saved(photo, "TIFF", compression="jpeg"),
    }


def _made_orientations() -> dict[str, bytes]:
    """Exif that says little, or nothing, of how an image is turned."""
    made = {}
    jpeg = _saved(_photo(), "JPEG")
    for name, body in {
        "no_directory": b"II*\0\xff\xff\0\0",
        "cut": b"MM\0*\0\0\0\x08\0\x05\x01\x12",
        "garbage": bytes(range(60)),
        "long": b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x04\0\0\0\x01\0\0\0\x06\0\0\0\0",
        "two": b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x02\0\0\0\x06\0\x03\0\0\0\0\0",
    }.items():
        made[f"exif_{name}.jpg"] = _with_app1(jpeg, b"Exif\0\0" + body)
    xmp = b'http://ns.adobe.com/xap/1.0/\0<x:xmpmeta tiff:Orientation="6"/>'
    return {**made, "xmp.jpg": _with_app1(jpeg, xmp)}


def _made_damages() -> dict[str, bytes]:
    jpeg, png = _saved(_photo(), "JPEG", quality=90), _saved(_photo(), "PNG")
    return {
        "empty.jpg": b"",
        "text.jpg": b"<html>404 not found</html>",
        "soi.jpg": b"\xff\xd8",
        "no_end.jpg": jpeg[:-2],
        "half.jpg": jpeg[: len(jpeg) // 2],
        "half_ended.jpg": jpeg[: len(jpeg) // 2] + b"\xff\xd9",
        "half.png": png[: len(png) // 2],
        "no_end.png": png[:-12],
        "bad_checksum.png": png[:-14] + bytes(2) + png[-12:],
        "half.webp": _saved(_photo(), "WEBP")[:400],
        "half.bmp": _saved(_photo(), "BMP")[:3000],
        "half.gif": _saved(_photo(), "GIF")[:900],
        "half.tif": _saved(_photo(), "TIFF")[:3000],
    }


def _made_bombs() -> dict[str, bytes]:
    jpeg = _saved(_photo(), "JPEG")
    frame = jpeg.index(b"\xff\xc0") + 5
    text = PngImagePlugin.PngInfo()
    text.add_text("comment", "a" * (PngImagePlugin.MAX_TEXT_CHUNK + 1), zip=True)
    return {
        "huge.jpg": jpeg[:frame] + struct.pack(">HH", 30000, 30000) + jpeg[frame + 4 :],
        "huge.png": _png(20_000, 20_000, 1, 0, bytes(1000)),
        "text.png": _saved(_photo(), "PNG", pnginfo=text),
    }


def _png(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    """Write a PNG of unfiltered rows. Source: PNG specification, third edition, section 5."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


def _rows(pixels: bytes, row: int) -> bytes:
    return b"".join(b"\0" + pixels[i : i + row] for i in range(0, len(pixels), row))


def _upside_down(bmp: bytes) -> bytes:
    (height,) = struct.unpack_from("<i", bmp, 22)
    return bmp[:22] + struct.pack("<i", -height) + bmp[26:]


def _with_app1(jpeg: bytes, body: bytes) -> bytes:
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + jpeg[2:]


if __name__ == "__main__":
    _print_outcomes(sys.argv[1:])
