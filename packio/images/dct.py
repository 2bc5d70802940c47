"""JPEGs whose coefficients are stored open: encoding "dct". ``native/open.c`` has the layout.

Such an image is expanded by the native core in place of being decoded. Others get the JPEG, byte
for byte. Where there is no core, Python writes the JPEG, which takes it a second for a megapixel.

Source: ITU-T T.81 (1992), annexes B (markers), C (codes) and F.1.2 (symbols).
"""

from __future__ import annotations

import functools
import struct
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from packio.errors import DecodeError
from packio.images import native

MAGIC = b"PKIODCT\x01"
_HEAD = struct.Struct("<8sIII")  # magic; bytes of the JPEG's header, behind its EOI, of values
_MOST = 1 << 20  # blocks of a component that the core opens
_A_PLACE = 16  # blocks of a row from one place to the next
_BITS = (0, 2, 4, 8)  # of a value, by the kind of its group
_SOF, _DHT, _DRI, _SOS = 0xC0, 0xC4, 0xDD, 0xDA


def open_jpeg(jpeg: bytes) -> bytes | None:
    """A JPEG with its coefficients stored open; None if it would not come back byte for byte.

    None also for progressive JPEGs, for JPEGs that the native core does not decode, and for those
    of more than 2^20 blocks (45 megapixels at 4:2:0).
    """
    data = native.open_jpeg(jpeg)
    return data if data is not None and native.close_jpeg(data) == jpeg else None


def file_encoding(encoding: str) -> str:
    """The encoding of an image as other programs read it."""
    return "jpeg" if encoding == "dct" else encoding


def as_file(data: bytes, encoding: str) -> bytes:
    """The bytes of an image as other programs read them: of open coefficients, their JPEG.

    Raises:
        DecodeError: the coefficients are damaged.
    """
    return as_jpeg(data) if encoding == "dct" else data


def as_jpeg(data: bytes) -> bytes:
    """The JPEG of open coefficients.

    Raises:
        DecodeError: they are damaged.
    """
    if reason := native.why_not():
        _warn(reason)
    jpeg = _rebuild(data) if reason else native.close_jpeg(data)
    if jpeg is None:
        raise DecodeError("its open coefficients are damaged")
    return jpeg


@functools.cache  # once
def _warn(reason: str) -> None:
    warnings.warn(
        f"packio's native core is not here ({reason}): Python writes the JPEG of each image with "
        "open coefficients before a library decodes it, some hundred times more slowly; "
        "packio convert --encode file makes a pack of JPEGs",
        stacklevel=2,
    )


def header_of(data: bytes) -> bytes:
    """The JPEG's header, from SOI to SOS; empty if the bytes are too few."""
    if len(data) < _HEAD.size:
        return b""
    _, header, rest, _ = _HEAD.unpack_from(data)
    begin = len(data) - rest - header
    return data[begin : begin + header] if begin >= _HEAD.size else b""


class _Component(NamedTuple):
    high: int  # blocks in an MCU
    broad: int
    dc: dict[int, str]  # symbol → code, of "0" and "1"
    ac: dict[int, str]


class _Header(NamedTuple):
    rows: int  # of MCUs
    columns: int
    interval: int  # MCUs between restart markers; 0: there are none
    components: list[_Component]


def _rebuild(data: bytes) -> bytes | None:
    """Write the JPEG without the core; None if the coefficients are damaged."""
    try:
        return _written(data)
    except (LookupError, ValueError, ArithmeticError, RuntimeError, StopIteration, struct.error):
        return None


def _written(data: bytes) -> bytes:
    _, _, rest, size = _HEAD.unpack_from(data)
    top = header_of(data)
    header = _parse(top)
    values = iter(data[len(data) - rest - len(top) - size :])
    position, blocks = _HEAD.size, list[np.ndarray]()
    for high, broad, _, _ in header.components:
        rows, columns = header.rows * high, header.columns * broad
        if rows * columns > _MOST:
            raise ValueError(f"{rows * columns} blocks")
        position += 4 * rows * -(-columns // _A_PLACE)
        told = np.frombuffer(data, [("dc", "<i2"), ("kinds", "<u2")], rows * columns, position)
        position += told.nbytes
        each = [_expand(int(dc), int(kinds), values) for dc, kinds in told.tolist()]
        # to (row of MCUs, column of MCUs, block of the MCU, coefficient)
        split = np.array(each).reshape(header.rows, high, header.columns, broad, 64)
        blocks.append(split.transpose(0, 2, 1, 3, 4).reshape(-1, high * broad, 64))
    mcus = header.rows * header.columns
    interval = header.interval or mcus
    parts = [top]
    for number, start in enumerate(range(0, mcus, interval)):
        bits = "".join(_bits(header, blocks, start, min(start + interval, mcus)))
        bits += "1" * (-len(bits) % 8)
        scan = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
        marker = 0xD9 if start + interval >= mcus else 0xD0 + number % 8
        parts += [scan, bytes((0xFF, marker))]
    return b"".join([*parts, data[len(data) - rest :]])


def _parse(data: bytes) -> _Header:
    position, interval, codes = 2, 0, dict[int, dict[int, str]]()
    frame = b""
    while True:
        marker, length = struct.unpack_from(">xBH", data, position)
        body = data[position + 4 : position + 2 + length]
        position += 2 + length
        if marker in (_SOF, _SOF + 1):
            frame = body
        elif marker == _DRI:
            (interval,) = struct.unpack(">H", body)
        elif marker == _DHT:
            while body:
                count = sum(body[1:17])
                codes[body[0]] = _codes(body[1:17], body[17 : 17 + count])
                body = body[17 + count :]
        elif marker == _SOS:
            break
    height, width, count = struct.unpack_from(">HHB", frame, 1)
    components = []
    for number in range(count):
        factors, tables = frame[7 + 3 * number], body[2 + 2 * number]
        high, broad = (factors & 15, factors >> 4) if count > 1 else (1, 1)
        components.append(_Component(high, broad, codes[tables >> 4], codes[tables & 15 | 16]))
    first = components[0]
    rows, columns = -(-height // (8 * first.high)), -(-width // (8 * first.broad))
    return _Header(rows, columns, interval, components)


def _codes(counts: bytes, symbols: bytes) -> dict[int, str]:
    codes, code, left = dict[int, str](), 0, iter(symbols)
    for length, count in enumerate(counts, 1):
        for _ in range(count):
            codes[next(left)] = f"{code:0{length}b}"
            code += 1
        code <<= 1
    return codes


def _expand(dc: int, kinds: int, values: Iterator[int]) -> list[int]:
    """The 64 coefficients of a block, in code order."""
    groups = [kinds >> 2 * group & 3 for group in range(8)]
    masks = [next(values) if kind else 0 for kind in groups]
    wide = next(values) if masks[0] & 1 else 0
    masks[0] &= 0xFE
    block = list[int]()
    for group, (kind, mask) in enumerate(zip(groups, masks, strict=True)):
        bits = 16 if kind == 3 and wide >> group & 1 else _BITS[kind]
        size = (mask.bit_count() * bits + 7) // 8
        held = int.from_bytes(bytes(next(values) for _ in range(size)), "little")
        for place in range(8):
            value = 0
            if mask >> place & 1:
                value = held & ((1 << bits) - 1)
                value -= value >> (bits - 1) << bits
                held >>= bits
            block.append(value)
    return [dc, *block[1:]]


def _bits(header: _Header, blocks: list[np.ndarray], start: int, stop: int) -> Iterator[str]:
    """The codes of some MCUs, and the bits behind each."""
    before = [0] * len(blocks)
    for mcu in range(start, stop):
        for number, (_, _, dc, ac) in enumerate(header.components):
            for block in blocks[number][mcu].tolist():
                yield _code(dc, 0, block[0] - before[number])
                before[number], zeros = block[0], 0
                for value in block[1:]:
                    if not value:
                        zeros += 1
                        continue
                    if zeros > 15:
                        yield ac[0xF0] * (zeros >> 4)
                    yield _code(ac, zeros & 15, value)
                    zeros = 0
                if zeros:
                    yield ac[0]


def _code(codes: dict[int, str], zeros: int, value: int) -> str:
    size = abs(value).bit_length()
    low = value if value > 0 else value + (1 << size) - 1
    return codes[zeros << 4 | size] + (f"{low:0{size}b}" if size else "")
