"""The members of a tar archive, walked without a library; see `packio.formats.tar`."""

from __future__ import annotations

from collections.abc import Iterator
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
_HARD_LINK, _SPARSE = b"1", b"S"
_EMPTY = b"123456"
_OTHERS = {
    b"2": "a symbolic link; tar it again with --dereference", b"3": "a device", b"4": "a device",
    b"6": "a FIFO", _SPARSE: "a sparse file; tar it again without --sparse",
}  # fmt: skip


# Of the headers that packio writes: mode, user, group; behind the size, the time; behind the
# checksum, kind, link, magic, names, devices, prefix.
OWNER = b"0000444\0" + b"0000000\0" * 2
TIME = b"%011o\0" % 0
REST = b"0" + bytes(100) + b"ustar\0" + b"00" + bytes(64) + b"0000000\0" * 2 + bytes(167)


class TarMember(NamedTuple):
    """A member that is no folder."""

    name: bytes
    offset: int  # bytes, of the content
    size: int  # bytes
    header: bytes
    link: bytes | None = None  # of a hard link: the member whose content it has
    problem: str = ""  # why it is no ordinary file; "" if it is, or a hard link

    @property
    def is_ours(self) -> bool:
        """Whether its header is as packio writes it: owner, time, mode and so on."""
        h = self.header
        return h[100:124] == OWNER and h[136:148] == TIME and h[156:] == REST


def members(file: Input, stop: int | None = None) -> Iterator[TarMember]:
    """Yield the ordinary files of an archive; a hard link has the content of an earlier member."""
    earlier: dict[bytes, TarMember] | None = None  # by name; None before the first hard link
    for found in walk(file, stop):
        at = found.offset - _BLOCK
        if found.problem:
            raise NotAPackError(f"{file.path}: {found.name!r} at {at} is {found.problem}")
        if not found.name or b"\0" in found.name:
            raise IntegrityError(f"{file.path}: a member has the name {found.name!r}")
        member = found
        if found.link is not None:
            if earlier is None:
                earlier = {m.name: m._replace(header=b"") for m in members(file, at)}
            if found.link not in earlier:
                raise NotAPackError(
                    f"{file.path}: {found.name!r} at {at} is a hard link to {found.link!r}, which "
                    "is not before it in the archive; tar it again with --hard-dereference"
                )
            member = earlier[found.link]._replace(name=found.name)
        if earlier is not None:
            earlier[member.name] = member._replace(header=b"")
        yield member


def walk(file: Input, stop: int | None = None) -> Iterator[TarMember]:
    """Yield what is no folder, up to a header at ``stop``; None: all, and the end is checked."""
    if stop is None:
        _check_is_tar(file)
    position = 0
    given: dict[bytes, bytes] = {}  # fields of the next member that replace its header's
    while stop is None or position < stop:
        header = file.read(_BLOCK, position)
        if header == _ZEROS:
            break
        _check_header(file, header, position)
        kind = header[156:157]
        offset, size = _content(file, header, kind, position, given)
        position = offset + size + -size % _BLOCK
        if kind in _EXTRA:
            given |= _extra(file, kind, offset, size)
            continue
        if (member := _member(header, kind, offset, size, given)) is not None:
            yield member
        given = {}
    if stop is None:
        if given:
            raise IntegrityError(f"{file.path}: ends at {position} where a member was announced")
        _check_end(file, position)


def _content(
    file: Input, header: bytes, kind: bytes, position: int, given: dict[bytes, bytes]
) -> tuple[int, int]:
    """Position and size of the content that follows a header."""
    offset = position + _BLOCK
    size = _size(file, header, position, None if kind in _EXTRA else given.get(b"size"))
    if kind in _EMPTY:
        size = 0  # whatever is claimed, no content follows
    more = kind == _SPARSE and header[482]
    while more:  # the list of its parts goes on in blocks of its own
        more, offset = file.read(_BLOCK, offset)[504], offset + _BLOCK
    if (end := offset + size + -size % _BLOCK) > file.size:
        raise damage_error(file.path, f"cut off: a member ends at {end} of {file.size} bytes")
    return offset, size


def _member(
    header: bytes, kind: bytes, offset: int, size: int, given: dict[bytes, bytes]
) -> TarMember | None:
    name = given.get(b"path") or _name(header)
    if kind in (_DIRECTORY, _LABEL) or (kind in _FILES and name.endswith(b"/")):
        return None
    problem, link = _OTHERS.get(kind, ""), None
    if kind == _HARD_LINK:
        link = given.get(b"linkpath") or header[157:257].partition(b"\0")[0]
    elif b"sparse" in given:
        problem = _OTHERS[_SPARSE]
    elif kind not in _FILES and not problem:
        problem = f"of the kind {kind!r}, which is no file"
    return TarMember(name, offset, size, header, link, problem)


def _check_is_tar(file: Input) -> None:
    start = file.read(min(_BLOCK, file.size), 0)
    if start[257:262] == b"ustar" or start == _ZEROS or _has_checksum(start):
        return
    refuse_compressed(file.path, start)
    if len(start) == _BLOCK:
        raise NotAPackError(f"{file.path}: not a tar archive: it begins {start[:16]!r}")


def _has_checksum(header: bytes) -> bool:
    """Tell whether the checksum is right. Some old writers summed signed bytes."""
    rest = header[:148] + b" " * 8 + header[156:]
    unsigned = sum(rest)
    given = header[148:156].strip(b" \0")
    return given.isdigit() and given.lstrip(b"0") in (
        b"%o" % total for total in (unsigned, unsigned - 256 * sum(byte > 127 for byte in rest))
    )


def _check_header(file: Input, header: bytes, position: int) -> None:
    if header[148:156] == b"%06o\0 " % (sum(header) - sum(header[148:156]) + 256):
        return
    if not _has_checksum(header):
        raise damage_error(file.path, f"the header at {position} is damaged (its checksum)")


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
    found: dict[bytes, bytes] = {n: fields[n] for n in _REPLACING if n in fields}
    if kind == _PAX_GLOBAL and found:
        raise IntegrityError(f"{file.path}: one name or size for all members, at {offset}")
    if any(field.startswith(b"GNU.sparse") for field in fields):
        found |= {b"sparse": b"", b"path": fields.get(b"GNU.sparse.name", fields.get(b"path", b""))}
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


def _check_end(file: Input, position: int) -> None:
    """Check that only zeros are left, one block at least; writers should make two."""
    file.read(_BLOCK, position)
    while position < file.size:
        chunk = file.read(min(_CHUNK, file.size - position), position)
        if chunk.count(0) < len(chunk):
            raise IntegrityError(
                f"{file.path}: something follows the end mark, after {position}: a damaged header, "
                "or several archives in one; restore the file, or take them apart"
            )
        position += len(chunk)
