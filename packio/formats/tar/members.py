"""The members of a tar archive, walked without a library; see `packio.formats.tar`."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import NamedTuple

from packio.errors import IntegrityError, NotAPackError
from packio.formats import damage_error
from packio.formats.blobs.ranges import Input, refuse_compressed

_BLOCK = 512
_ZEROS = bytes(_BLOCK)
_CHUNK = 1 << 20
_MOST_EXTRA = 1 << 20  # bytes of a long name, or of a pax header

_FILES, _DIRECTORY, _LABEL = b"0\0" + b"7", b"5", b"V"
_LONG_NAME, _LONG_LINK, _PAX_GLOBAL = b"L", b"K", b"g"
_REPLACING: tuple[bytes, ...] = (b"path", b"linkpath", b"size")  # pax fields that count here
_EXTRA = b"LKgxX"  # they hold fields of the next member; X is x of old
_HARD_LINK = b"1"
_OTHERS = {
    b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"6": "a FIFO",
    b"S": "a sparse file",
}  # fmt: skip


# Of the headers that packio writes: mode, user, group; behind the size, the time; behind the
# checksum, kind, link, magic, names, devices, prefix.
OWNER = b"0000444\0" + b"0000000\0" * 2
TIME = b"%011o\0" % 0
REST = b"0" + bytes(100) + b"ustar\0" + b"00" + bytes(64) + b"0000000\0" * 2 + bytes(167)


class TarMember(NamedTuple):
    name: bytes
    offset: int  # bytes, of the content
    size: int  # bytes
    is_ours: bool = False  # its header is as packio writes it: owner, time, mode and so on


def members(file: Input) -> Iterator[TarMember]:
    """Yield the ordinary files of an archive; a hard link has the content of an earlier member."""
    _check_is_tar(file)
    _check_end(file, (yield from _walked(file)))


def _walked(file: Input, stop: int | None = None) -> Generator[TarMember, None, int]:
    """Yield the members whose headers begin before a position; return where the last one ends."""
    position = 0
    given: dict[bytes, bytes] = {}  # fields of the next member that replace its header's
    earlier: dict[bytes, TarMember] | None = None  # by name; None before the first hard link
    while stop is None or position < stop:
        header = file.read(_BLOCK, position)
        if header == _ZEROS:
            break
        _check_header(file, header, position)
        kind, offset = header[156:157], position + _BLOCK
        size = _size(file, header, position, None if kind in _EXTRA else given.get(b"size"))
        if kind in (_HARD_LINK, _DIRECTORY) or kind in _OTHERS:
            size = 0  # whatever is claimed, no content follows
        position = offset + size + -size % _BLOCK
        if position > file.size:
            raise IntegrityError(
                f"{file.path}: cut off: the member at {offset - _BLOCK} ends at {position}, the "
                f"file has {file.size} bytes; restore the file or pack again"
            )
        if kind in _EXTRA:
            given |= _extra(file, kind, offset, size)
            continue
        name = given.get(b"path") or _name(header)
        target, given = given.get(b"linkpath") or header[157:257].partition(b"\0")[0], {}
        if _is_file(file, kind, name, offset):
            is_ours = header[100:124] == OWNER and header[136:148] == TIME and header[156:] == REST
            member = TarMember(name, offset, size, is_ours)
            if kind == _HARD_LINK:
                earlier = earlier or {m.name: m for m in _walked(file, offset - _BLOCK)}
                member = _linked(file, member, earlier.get(target), target)
            if earlier is not None:
                earlier[name] = member
            yield member
    if given and stop is None:
        raise IntegrityError(f"{file.path}: ends at {position} where a member was announced")
    return position


def _linked(file: Input, link: TarMember, member: TarMember | None, target: bytes) -> TarMember:
    """Return a hard link as a member of its own name with the content of the one it is of."""
    if member is None:
        raise NotAPackError(
            f"{file.path}: {link.name!r} at {link.offset - _BLOCK} is a hard link to {target!r}, "
            "which is not before it in the archive; tar it again with --hard-dereference"
        )
    return member._replace(name=link.name)


def _check_is_tar(file: Input) -> None:
    start = file.read(min(_BLOCK, file.size), 0)
    if start[257:262] == b"ustar" or start == _ZEROS or start[148:156] in _checksums(start):
        return
    refuse_compressed(file.path, start)
    if len(start) == _BLOCK:
        raise NotAPackError(f"{file.path}: not a tar archive: it begins {start[:16]!r}")


def _checksums(header: bytes) -> tuple[bytes, ...]:
    """The ways to write a header's checksum. Some old writers summed signed bytes."""
    rest = header[:148] + b" " * 8 + header[156:]
    unsigned = sum(rest)
    signed = unsigned - 256 * sum(byte > 127 for byte in rest)
    forms = (b"%06o\0 ", b"%06o \0", b"%07o\0", b"%7o\0", b"%07o ", b"%6o\0 ", b"%6o \0")
    return tuple(form % total for total in {unsigned, signed} if total >= 0 for form in forms)


def _check_header(file: Input, header: bytes, position: int) -> None:
    if header[148:156] == b"%06o\0 " % (sum(header) - sum(header[148:156]) + 256):
        return
    if header[148:156] not in _checksums(header):
        what = f"the header at {position} is damaged (its checksum differs)"
        raise damage_error(file.path, what, "restore the file or pack again")


def _size(file: Input, header: bytes, position: int, given: bytes | None) -> int:
    field = header[124:136]
    try:
        if given is not None:
            size = int(given) if given.isdigit() and len(given) <= 19 else -1
        elif field[0] == 0x80:  # GNU: base 256
            size = int.from_bytes(field[1:], "big")
        else:
            size = int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        size = -1
    if size < 0:
        raise IntegrityError(f"{file.path}: the member at {position} has the size {field!r}")
    return size


def _name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _extra(file: Input, kind: bytes, offset: int, size: int) -> dict[bytes, bytes]:
    """Read fields of the next member, from a member that holds only such fields."""
    if size > _MOST_EXTRA:
        raise IntegrityError(f"{file.path}: the header at {offset} has {size} bytes")
    content = file.read(size, offset)
    if kind == _LONG_NAME:
        return {b"path": content.partition(b"\0")[0]}
    if kind == _LONG_LINK:
        return {b"linkpath": content.partition(b"\0")[0]}
    fields = _pax(file, content, offset)
    if any(field.startswith(b"GNU.sparse") for field in fields):
        raise NotAPackError(f"{file.path}: the member after {offset} is sparse; tar it again")
    found: dict[bytes, bytes] = {n: fields[n] for n in _REPLACING if n in fields}
    if kind == _PAX_GLOBAL and found:
        raise IntegrityError(f"{file.path}: one name or size for all members, at {offset}")
    return found


def _pax(file: Input, content: bytes, offset: int) -> dict[bytes, bytes]:
    fields, position = {}, 0
    while position < len(content):
        digits, space, _ = content[position : position + 20].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        field, equals, value = content[position + len(digits) + 1 : position + length].partition(
            b"="
        )
        whole = position + length <= len(content) and value.endswith(b"\n")
        if not (space and equals and whole):
            raise IntegrityError(f"{file.path}: the pax header at {offset} is damaged")
        fields[field] = value[:-1]
        position += length
    return fields


def _is_file(file: Input, kind: bytes, name: bytes, offset: int) -> bool:
    if kind in (_DIRECTORY, _LABEL) or (kind in _FILES and name.endswith(b"/")):
        return False
    if kind in _OTHERS:
        raise NotAPackError(
            f"{file.path}: {name!r} at {offset - _BLOCK} is {_OTHERS[kind]}, which packio does not "
            "follow; tar it again with --dereference --hard-dereference"
        )
    if kind not in _FILES and kind != _HARD_LINK:
        raise NotAPackError(f"{file.path}: {name!r} is of the kind {kind!r}, which is no file")
    if not name or b"\0" in name:
        raise IntegrityError(f"{file.path}: the member at {offset - _BLOCK} has the name {name!r}")
    return True


def _check_end(file: Input, position: int) -> None:
    """Check that only zeros are left, two blocks at least."""
    file.read(2 * _BLOCK, position)
    while position < file.size:
        chunk = file.read(min(_CHUNK, file.size - position), position)
        if chunk.count(0) < len(chunk):
            raise IntegrityError(
                f"{file.path}: something follows the end mark, after {position}: a damaged header, "
                "or several archives in one; restore the file, or take them apart"
            )
        position += len(chunk)
