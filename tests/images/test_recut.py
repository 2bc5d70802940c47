"""The scan of a JPEG with other restart intervals, against one that plain Python writes."""

from __future__ import annotations

import ctypes
import random
import re
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import long
import made
import native_core
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from packio.images import native

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = native_core.needed

_RESTART = re.compile(rb"\xff[\xd0-\xd7]")


class _DamagedError(Exception):
    """The scan is no scan."""


class _Header(NamedTuple):
    scan: int  # the byte at which the data begin
    tables: dict[int, dict[str, int]]  # class << 4 | number → code → symbol; the last ones count
    specifications: dict[int, bytes]  # of the tables, as in DHT
    components: list[tuple[int, int, int]]  # blocks in an MCU, DC table, AC table
    mcus: int
    interval: int


def _header(data: bytes) -> _Header:
    at, interval, tables, specifications, frame = 2, 0, {}, {}, b""
    while True:
        marker, length = struct.unpack_from(">xBH", data, at)
        body = data[at + 4 : at + 2 + length]
        at += 2 + length
        if marker == 0xC4:
            while body:
                end = 17 + sum(body[1:17])
                specifications[body[0]] = body[1:end]
                tables[body[0]] = _table(body[1:end])
                body = body[end:]
        elif marker in (0xC0, 0xC1):
            frame = body
        elif marker == 0xDD:
            interval = int.from_bytes(body, "big")
        elif marker == 0xDA:
            break
    high, broad = int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big")
    factors = [(f >> 4, f & 15) for f in frame[7::3]] if frame[5] > 1 else [(1, 1)]
    chosen = [(t >> 4, 0x10 | t & 15) for t in body[2 : 1 + 2 * frame[5] : 2]]
    across, down = (8 * max(f) for f in zip(*factors, strict=True))
    mcus = -(-high // down) * -(-broad // across)
    components = [(x * y, *t) for (x, y), t in zip(factors, chosen, strict=True)]
    return _Header(at, tables, specifications, components, mcus, interval or mcus)


def _table(specification: bytes) -> dict[str, int]:
    table, code, rest = {}, 0, iter(specification[16:])
    for length, count in enumerate(specification[:16], 1):
        for _ in range(count):
            table[f"{code:0{length}b}"] = next(rest)
            code += 1
        code <<= 1
    return table


class _Block(NamedTuple):
    """A block as it was coded."""

    component: int
    value: int  # its DC coefficient
    base: int  # from which the difference was taken
    dc: str  # the code and the difference
    rest: str


def _read(bits: str, table: dict[str, int], at: int) -> tuple[int, int]:
    """A symbol, and where its code ends."""
    for length in range(1, 17):
        if (symbol := table.get(bits[at : at + length])) is not None and at + length <= len(bits):
            return symbol, at + length
    raise _DamagedError


def _block(bits: str, at: int, component: int, base: int, header: _Header) -> tuple[_Block, int]:
    _, dc, ac = header.components[component]
    size, end = _read(bits, header.tables[dc], at)
    if size > 11:
        raise _DamagedError
    raw = bits[end : end + size]
    value = int(raw or "0", 2) - ((1 << size) - 1 if raw.startswith("0") else 0)
    begin = end = end + size
    k = 1
    while k < 64:
        symbol, end = _read(bits, header.tables[ac], end)
        run, size = symbol >> 4, symbol & 15
        if symbol == 0:
            break
        k += run + 1
        end += size
        if size > 10 or (not size and run != 15) or k > 64:
            raise _DamagedError
    if end > len(bits) or not -2048 <= base + value < 2048:
        raise _DamagedError
    return _Block(component, base + value, base, bits[at:begin], bits[begin:end]), end


def _blocks(data: bytes, header: _Header) -> Iterator[_Block]:
    """The blocks of a scan, segment by segment."""
    stop = next(
        m.start()
        for m in re.finditer(rb"\xff[^\0]", data[header.scan :])
        if not _RESTART.match(m[0])
    )
    scan = data[header.scan : header.scan + stop]
    segments = _RESTART.split(scan)
    markers = [m[0][1] for m in _RESTART.finditer(scan)]
    wanted = -(-header.mcus // header.interval)
    if markers != [0xD0 + i % 8 for i in range(wanted - 1)]:
        raise _DamagedError
    for i, segment in enumerate(segments):
        bits = "".join(f"{byte:08b}" for byte in segment.replace(b"\xff\0", b"\xff"))
        bases, at = [0] * len(header.components), 0
        for _ in range(min(header.interval, header.mcus - i * header.interval)):
            for c, (count, _, _) in enumerate(header.components):
                for _ in range(count):
                    block, at = _block(bits, at, c, bases[c], header)
                    bases[c] = block.value
                    yield block
        if len(bits) - at >= 8:
            raise _DamagedError


def _difference(value: int, table: dict[str, int]) -> str:
    size = abs(value).bit_length()
    code = next(code for code, symbol in table.items() if symbol == size)
    return code + (f"{value + ((1 << size) - 1 if value < 0 else 0):0{size}b}" if size else "")


def _scan_of(data: bytes, made: _Header) -> bytes:
    """The scan of a JPEG as it must be with another restart interval."""
    header = _header(data)
    in_mcu = sum(count for count, _, _ in header.components)
    out, bits, bases = b"", "", [0] * len(header.components)
    blocks = list(_blocks(data, header))
    for i, block in enumerate(blocks):
        if i % (in_mcu * made.interval) == 0:
            bases = [0] * len(header.components)
        base, bases[block.component] = bases[block.component], block.value
        table = made.tables[made.components[block.component][1]]
        bits += block.dc if base == block.base else _difference(block.value - base, table)
        bits += block.rest
        done, rest = divmod(i + 1, in_mcu * made.interval)
        if rest and i + 1 < len(blocks):
            continue
        bits += "1" * (-len(bits) % 8)
        plain = int(bits, 2).to_bytes(len(bits) // 8, "big")
        marker = 0xD9 if i + 1 == len(blocks) else 0xD0 + (done - 1) % 8
        out += plain.replace(b"\xff", b"\xff\0") + bytes([0xFF, marker])
        bits = ""
    return out


def _completed(specification: bytes) -> bytes:
    """A DC table with codes of 16 bits for the sizes that have none; all that it had stay."""
    lacking = bytes(size for size in range(12) if size not in specification[16:])
    counts = list(specification[:16])
    free = (1 << 16) - sum(count << (15 - i) for i, count in enumerate(counts))
    if free <= len(lacking):
        return specification
    return bytes([*counts[:15], counts[15] + len(lacking)]) + specification[16:] + lacking


def _recut(data: bytes, header: _Header, made: _Header) -> bytes | None:
    """Write a scan anew by the core; None if the core says that it is damaged."""
    library = native._library()
    assert isinstance(library, ctypes.CDLL)
    library.packio_recut.restype = ctypes.c_int64
    library.packio_recut.argtypes = [
        ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p,
        ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p,
    ]  # fmt: skip
    blocks = bytes(c for c, (count, _, _) in enumerate(header.components) for _ in range(count))
    request = struct.pack("@6i12s", header.scan, header.mcus, header.interval, made.interval,
                          len(blocks), len(header.components), blocks)  # fmt: skip
    for _, dc, ac in header.components:
        codes = [0] * 12  # by size: the code << 5 | its length
        for code, size in made.tables[dc].items():
            if size < 12:
                codes[size] = int(code, 2) << 5 | len(code)
        both = header.specifications[dc], header.specifications[ac]
        request += struct.pack("@12i272s272s", *codes, *both)
    request += bytes((4 - len(header.components)) * struct.calcsize("@12i272s272s"))
    segments = [-(-header.mcus // interval) for interval in (header.interval, made.interval)]
    out = np.empty(2 * (len(data) - header.scan) + 48 * sum(segments), np.uint8)
    lengths, used = np.zeros(segments[1], np.int32), np.zeros(4, np.int32)
    size = library.packio_recut(
        native._memories().own.pointer, request, data, len(data), out.ctypes.data, len(out),
        lengths.ctypes.data, used.ctypes.data,
    )  # fmt: skip
    if size <= 0:
        return None
    ends = lengths.cumsum()
    assert ends[-1] == size
    assert all(out[ends - 2] == 0xFF)
    return out[:size].tobytes()


def _check(data: bytes, interval: int) -> bool:
    """A JPEG gets the scan that it must have, or is damaged; whether it is whole."""
    header = _header(data)
    specifications = header.specifications | {
        dc: _completed(header.specifications[dc]) for _, dc, _ in header.components
    }
    tables = {number: _table(specification) for number, specification in specifications.items()}
    made = header._replace(interval=interval, tables=tables)
    try:
        wanted = _scan_of(data, made)
    except (_DamagedError, StopIteration):
        wanted = None
    assert _recut(data, header, made) == wanted
    return wanted is not None


def _jpeg(pixels: np.ndarray, mode: str = "RGB", **options: Any) -> bytes:
    return made.saved(Image.fromarray(pixels).convert(mode), "JPEG", **options)


_OPTIONS = st.fixed_dictionaries(
    {
        "quality": st.integers(1, 100),
        "subsampling": st.integers(0, 2),
        "optimize": st.booleans(),
        "restart_marker_blocks": st.sampled_from([0, 0, 1, 2, 3, 7, 40]),
    }
)


_INTERVALS = (1, 2, 3, 7, 40)


@settings(deadline=None, max_examples=150)
@given(_OPTIONS, st.sampled_from(["RGB", "RGB", "L", "CMYK"]), st.randoms(use_true_random=False))
def test_the_scan_is_the_one_that_plain_python_writes(
    options: dict[str, Any], mode: str, rng: random.Random
) -> None:
    height, width, noise = rng.randint(1, 90), rng.randint(1, 90), rng.choice((0, 3, 30, 200))
    random_ = np.random.default_rng(rng.randrange(1 << 30))
    ramp = np.linspace(rng.randint(0, 255), rng.randint(0, 255), width)[None, :, None]
    pixels = (ramp + random_.normal(0, noise + 0.01, (height, width, 3))).clip(0, 255)
    assert _check(_jpeg(pixels.astype(np.uint8), mode, **options), rng.choice(_INTERVALS))


@pytest.mark.parametrize("options", [
    {"quality": 95, "subsampling": 2}, {"quality": 100, "subsampling": 0},
    {"quality": 90, "mode": "L"}, {"quality": 97, "subsampling": 1, "optimize": True},
    {"quality": 92, "mode": "CMYK"}, {"quality": 95, "subsampling": 2, "restart_marker_rows": 5},
])  # fmt: skip
def test_scans_that_are_walked_from_several_places_at_once(
    photos: list[np.ndarray], options: dict[str, Any]
) -> None:
    data = _jpeg(photos[0][:200, :260], **options)
    assert len(data) > 13_000
    assert _check(data, 5)


def test_blocks_that_differ_by_a_bit_in_all_coefficients() -> None:
    """Codes of noise seldom meet, and blocks end without an end-of-block."""
    pixels = np.random.default_rng(3).integers(0, 2, (160, 160)).astype(np.uint8) * 255
    assert _check(_jpeg(pixels, "L", quality=100), 4)
    assert _check(_jpeg(pixels, "RGB", quality=100, subsampling=0, optimize=True), 4)


def test_flat_images_have_blocks_of_a_few_bits() -> None:
    for value in (0, 127, 128, 255):
        assert _check(_jpeg(np.full((800, 900, 3), value, np.uint8), quality=50), 57)


@pytest.mark.parametrize("count", long.after(1, (300, 1500)))
def test_damage_is_seen_where_plain_python_sees_it(photos: list[np.ndarray], count: int) -> None:
    sources = [
        _jpeg(photos[0][:70, :90], subsampling=2),
        _jpeg(photos[1][:60, :60], quality=98, subsampling=0, optimize=True),
        _jpeg(photos[1][:60, :60], restart_marker_blocks=3),
        _jpeg(photos[2][:64, :200], "L", quality=95),
    ]
    seen = {True: 0, False: 0}
    for seed in range(count):
        rng = random.Random(seed)
        data = bytearray(sources[seed % len(sources)])
        scan = _header(bytes(data)).scan
        for _ in range(rng.choice((1, 1, 2))):
            at = rng.randrange(scan, len(data) - 2)
            data[at] = rng.choice((data[at] ^ 1 << rng.randrange(8), rng.randrange(256)))
        seen[_check(bytes(data), rng.choice(_INTERVALS))] += 1
    assert min(seen.values()) > count / 30
