"""Errors of the disk are not errors of images: they end a run, and the next run goes on."""

from __future__ import annotations

import errno
import io
import os
import pathlib
import shutil
import sys
from typing import TYPE_CHECKING, Any

import made
import pytest
import syscalls
import torch
from PIL import Image

import packio
from packio.cli import main
from packio.errors import BadImagesError, PackioError, ReadError
from packio.system.files import OF_ONE_FILE, check_of_file

if TYPE_CHECKING:
    from collections.abc import Callable

OF_DISKS = (
    errno.EIO, errno.ESTALE, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETIMEDOUT,
    errno.EREMOTEIO, errno.ENODATA, errno.ENOTCONN, errno.EUCLEAN, errno.EAGAIN, errno.ENOBUFS,
)  # fmt: skip
_TRACED = pytest.mark.skipif(not syscalls.available(), reason="processes cannot be traced here")
_PREAD, _OPENAT = 17, 257


def _jpeg() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (40, 30), (9, 99, 199)).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    """A dozen images in two classes."""
    for i in range(12):
        path = tmp_path / "source" / "ab"[i % 2] / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_jpeg())
    return tmp_path / "source"


@pytest.mark.parametrize("number", OF_DISKS, ids=errno.errorcode.get)
def test_an_error_of_a_disk_or_of_the_system_is_told_apart(number: int) -> None:
    with pytest.raises(ReadError, match=r"a\.jpg: .*no sample is left out"):
        check_of_file(OSError(number, os.strerror(number)), "a.jpg")


def test_an_error_of_one_file_or_of_its_bytes_is_none_of_the_disk() -> None:
    for number in OF_ONE_FILE:
        check_of_file(OSError(number, os.strerror(number)), "a.jpg")
    check_of_file(OSError("image file is truncated"), "a.jpg")  # as Pillow raises it
    check_of_file(ValueError("no image"), "a.jpg")


class _Broken(torch.utils.data.Dataset[Any]):
    """A dataset whose fourth item fails, as long as something is broken."""

    def __init__(self, error: Exception) -> None:
        self.error: Exception | None = error

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        if index == 3 and self.error is not None:
            raise self.error
        return made.png(4 + index), index % 2


@pytest.mark.parametrize("number", OF_DISKS[:3], ids=errno.errorcode.get)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_dataset_on_a_failing_disk_ends_the_run(
    on_error: str, number: int, tmp_path: pathlib.Path
) -> None:
    data = _Broken(OSError(number, os.strerror(number)))
    with pytest.raises(PackioError) as caught:
        packio.pack(data, tmp_path / "x.tar", on_error=on_error)
    assert caught.value.exit_code == 74
    data.error = None
    assert packio.pack(data, tmp_path / "x.tar", on_error=on_error).packed == 8


def test_a_dataset_whose_image_is_damaged_leaves_it_out(tmp_path: pathlib.Path) -> None:
    data = _Broken(OSError("image file is truncated (3 bytes not processed)"))
    assert packio.pack(data, tmp_path / "x.tar", on_error="skip").packed == 7


def _coded(*words: object) -> int:
    sys.argv = ["packio", *map(str, words)]
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)
        os.dup2(nothing.fileno(), 1)
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def _failing(action: Callable[[], int], folder: pathlib.Path, number: int, error: int) -> list[int]:
    """Exit codes of an action, of whose calls of one kind each in turn fails."""
    calls = syscalls.run(action, str(folder)).calls
    found = []
    for when, call in enumerate(calls):
        if call.number == number and call.path.endswith((".jpg", ".png", ".txt")):
            status = syscalls.run(action, str(folder), when, error).status
            found.append(os.waitstatus_to_exitcode(status))
            if len(found) == 2:
                break
    return found


@_TRACED
@pytest.mark.parametrize(
    ("call", "error", "options"),
    [
        (_PREAD, errno.EIO, ()),
        (_OPENAT, errno.ESTALE, ("--on-error", "skip")),
        (_PREAD, errno.EIO, ("--dedupe", "drop")),
    ],
)
def test_packing_from_a_failing_disk_ends_with_74_and_goes_on(
    call: int, error: int, options: tuple[str, ...], source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "x.tar"

    def pack() -> int:
        return _coded("pack", source, out, "--threads", "1", "--workers", "1", *options)

    def anew() -> int:
        out.unlink(missing_ok=True)
        return pack()

    assert _failing(anew, source, call, error) == [74] * 2
    assert syscalls.run(pack, str(source)).status == 0
    with packio.open(out) as packed:
        assert len(packed) == (1 if "--dedupe" in options else 12)


@_TRACED
def test_a_folder_that_a_failing_disk_does_not_list_ends_the_run(
    source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    def pack() -> int:
        return _coded("pack", source, tmp_path / "x.tar", "--on-error", "skip")

    calls = syscalls.run(pack, str(source)).calls
    (tmp_path / "x.tar").unlink()
    when = next(i for i, call in enumerate(calls) if call.path == f"{source}/b")
    assert os.waitstatus_to_exitcode(syscalls.run(pack, str(source), when, errno.EIO).status) == 74
    assert not (tmp_path / "x.tar").exists()


@_TRACED
def test_a_folder_dataset_on_a_failing_disk_leaves_no_image_out(
    source: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKIO_CACHE_DIR", str(tmp_path / "cache"))

    def opened() -> int:
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        try:
            ds = packio.FolderDataset(source, on_error="skip", threads=1)
        except ReadError:
            return 74
        return 100 + len(ds)

    assert _failing(opened, source, _PREAD, errno.EIO) == [74] * 2


@_TRACED
def test_reading_from_a_failing_disk_replaces_no_sample(
    source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "packs").mkdir()
    packio.pack(source, tmp_path / "packs" / "x.tar")

    def read() -> int:
        # what the core cannot read, as with other decoders, is read again by Python
        ds = packio.PackDataset(
            tmp_path / "packs" / "x.tar", decoder="pillow", on_error="skip", threads=1
        )
        try:
            ds.__getitems__([0, 1, 2, 3])
        except ReadError:
            return 74
        return 0

    calls = syscalls.run(read, str(tmp_path / "packs")).calls
    when = max(i for i, c in enumerate(calls) if c.number == _PREAD and c.path.endswith(".tar"))
    status = syscalls.run(read, str(tmp_path / "packs"), when, errno.EIO).status
    assert os.waitstatus_to_exitcode(status) == 74


@_TRACED
def test_adding_files_from_a_failing_disk_ends_with_74(
    source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    texts = tmp_path / "texts"
    for path in source.rglob("*.jpg"):
        text = texts / path.relative_to(source).with_suffix(".txt")
        text.parent.mkdir(parents=True, exist_ok=True)
        text.write_text(path.stem)

    def add() -> int:
        packio.pack(source, tmp_path / "x.tar", resume=False, overwrite=True)
        return _coded(
            "add", tmp_path / "x.tar", "--field", f"caption={texts}", "--on-error", "skip"
        )

    assert _failing(add, texts, _OPENAT, errno.EIO) == [74] * 2
    assert syscalls.run(add, str(texts)).status == 0


def test_a_missing_file_is_still_a_bad_image(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (source / "a" / "gone.jpg").symlink_to("nowhere.jpg")
    with pytest.raises(BadImagesError, match="No such file"):
        packio.pack(source, tmp_path / "x.tar")
    assert packio.pack(source, tmp_path / "x.tar", on_error="skip").packed == 12
