"""Whatever a decoder or a conversion raises is a DecodeError that names the sample."""

from __future__ import annotations

import errno
import itertools
import struct
import traceback
from typing import TYPE_CHECKING, Any

import made
import numpy as np
import pytest
import torch
from PIL import Image, ImageFile
from torch.utils.data import DataLoader

import packio
from packio import registry
from packio.errors import DecodeError, MissingPackageError, TransformError
from packio.images.decoders import MODES, Decoder, pillow
from packio.images.encodings import read_facts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

_KINDS: list[Callable[[], BaseException]] = [
    lambda: ValueError("bad value"), lambda: TypeError("bad type"), MemoryError,
    lambda: RuntimeError("bad run"), lambda: OSError("broken data stream"),
    lambda: SystemError("error return without exception set"), lambda: struct.error("unpack"),
    lambda: AssertionError("not so"), lambda: KeyError("mode"), lambda: IndexError("beyond"),
    lambda: AttributeError("no such"), lambda: OverflowError("too large"),
    lambda: ZeroDivisionError("by 0"), lambda: RecursionError("too deep"),
    lambda: EOFError("at the end"), lambda: StopIteration("stop"), lambda: SyntaxError("no JPEG"),
    lambda: UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), lambda: NotImplementedError("later"),
    lambda: Exception("an odd one"),
]  # fmt: skip
_KIND = pytest.mark.parametrize("make", _KINDS, ids=lambda make: type(make()).__name__)

_KIND_AND_MODE = pytest.mark.parametrize(
    ("make", "mode"), [*zip(_KINDS, itertools.cycle(MODES), strict=False)]
)


def _plugins() -> list[ModuleType]:
    found = [registry.load("decoders", name) for name in registry.names("decoders")]
    return [plugin for plugin in found if _is_installed(plugin)]


def _is_installed(plugin: Any) -> bool:
    try:
        plugin.version()
    except MissingPackageError:
        return False
    return True


def _name(plugin: ModuleType) -> str:
    return plugin.__name__.rpartition(".")[2]


_PLUGINS = pytest.mark.parametrize("plugin", _plugins(), ids=_name)


def _image(seed: int, mode: str = "RGB") -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), np.uint8)
    return Image.fromarray(noise).convert(mode)


def _raise(make: Callable[[], BaseException]) -> Callable[..., Any]:
    def raises(*_: object, **__: object) -> Any:
        raise make()

    return raises


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """Four samples; Pillow cannot read the third, "c.webp", whose pixels are damaged."""
    (tmp_path / "in").mkdir()
    for seed, name in enumerate(["a.jpg", "b.png", "c.webp", "d.jpg"]):
        kind = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}[name.partition(".")[2]]
        (tmp_path / "in" / name).write_bytes(made.saved(_image(seed), kind))
    packio.pack(tmp_path / "in", tmp_path / "out.tar")
    return tmp_path / "out.tar"


@_PLUGINS
@_KIND_AND_MODE
def test_where_a_library_raises_anything_pillow_decodes(
    plugin: Any, mode: str, make: Callable[[], BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    if plugin is pillow:
        pytest.skip("it is Pillow")
    for name in ("decode", "decode_fast", "decode_batch", "size"):
        if getattr(plugin, name, None) is not None:
            monkeypatch.setattr(plugin, name, _raise(make))
    decoder = Decoder(_name(plugin), mode)
    stored = _image(1, "L" if mode == "GRAY" else "RGB")
    for kind in ("JPEG", "PNG", "WEBP"):
        data = made.saved(stored, kind)
        expected = pillow.decode(data, mode)
        assert np.array_equal(decoder(data, read_facts(data)), expected)
    data = made.saved(stored, "JPEG")
    assert np.array_equal(decoder.fast(data, read_facts(data), 1)[0], pillow.decode(data, mode))
    assert decoder.size(data) is None
    assert decoder.decode_batch([bytearray(data)] * 2, torch.device("cpu")) == [None, None]
    assert decoder.fallbacks >= 4


@_PLUGINS
@_KIND_AND_MODE
def test_where_pillow_raises_anything_it_is_a_decode_error(
    plugin: ModuleType, mode: str, make: Callable[[], BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    data, raised = made.saved(_image(1), "GIF"), make()
    facts, decoder = read_facts(data), Decoder(_name(plugin), mode)
    monkeypatch.setattr(ImageFile.ImageFile, "load", _raise(lambda: raised))
    with pytest.raises(DecodeError, match=type(raised).__name__) as caught:
        decoder(data, facts)
    assert caught.value.__cause__ is raised


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_within_a_decoder_passes(
    kind: type[BaseException], pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = packio.PackDataset(pack, fields=("image", "key"), on_error="skip")
    monkeypatch.setattr(ImageFile.ImageFile, "load", _raise(kind))
    with pytest.raises(kind):
        dataset[2]
    with pytest.raises(kind):
        dataset.__getitems__([1, 2])


def test_errors_of_the_system_are_no_damaged_image(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = packio.PackDataset(pack, fields=("image", "key"), on_error="skip")
    monkeypatch.setattr(
        ImageFile.ImageFile, "load", _raise(lambda: OSError(errno.EMFILE, "Too many open files"))
    )
    with pytest.raises(OSError, match="Too many open files"):
        dataset.__getitems__([0, 1, 2])


def _one(dataset: Any) -> list[str]:
    return [dataset[i][1] for i in range(4)]


def _batch(dataset: Any) -> list[str]:
    return [key for _, key in dataset.__getitems__(range(4))]


def _gathered(dataset: Any) -> list[str]:
    return list(dataset.gather(range(4))[1])


def _collated(rows: list[Any]) -> list[str]:
    return [key for _, key in rows]


def _by_workers(dataset: Any) -> list[str]:
    (keys,) = DataLoader(dataset, 4, num_workers=1, collate_fn=_collated)
    return list(keys)


def _by_loader(dataset: Any) -> list[str]:
    ((_, keys),) = packio.Loader(dataset, batch_size=4, num_workers=0)
    return list(keys)


_BATCHES = pytest.mark.parametrize("read", [_batch, _gathered, _by_workers, _by_loader])


def _break(monkeypatch: pytest.MonkeyPatch, make: Callable[[], BaseException]) -> None:
    """Have Pillow raise something for WebP."""
    from PIL import WebPImagePlugin

    monkeypatch.setattr(WebPImagePlugin.WebPImageFile, "load", _raise(make))


@_KIND
def test_a_sample_whose_decoder_raises_anything_is_named(
    make: Callable[[], BaseException], pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _break(monkeypatch, make)
    dataset = packio.PackDataset(pack, fields=("image", "key"))
    for read in (_one, _batch, _gathered, _by_loader):
        with pytest.raises(DecodeError, match=r"sample 2 \('c\.webp'\)"):
            read(dataset)


@_KIND
def test_a_sample_whose_decoder_raises_anything_is_replaced_under_skip(
    make: Callable[[], BaseException], pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _break(monkeypatch, make)
    dataset = packio.PackDataset(pack, fields=("image", "key"), on_error="skip")
    for read in (_batch, _gathered, _by_loader):
        with pytest.warns(UserWarning, match=r"c\.webp"):
            assert read(dataset) == ["a.jpg", "b.png", "d.jpg", "d.jpg"]
    assert dataset.replaced == 3


@_BATCHES
@pytest.mark.filterwarnings("ignore:replaced by another sample")
def test_all_ways_of_reading_a_batch_replace_a_bad_sample(
    read: Callable[[Any], list[str]], pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _break(monkeypatch, lambda: TypeError("odd"))
    dataset = packio.PackDataset(pack, fields=("image", "key"), on_error="skip")
    assert read(dataset) == ["a.jpg", "b.png", "d.jpg", "d.jpg"]
    assert dataset.replaced == 1


@_KIND
def test_packing_that_decodes_and_verifying_find_whatever_is_raised(
    make: Callable[[], BaseException], pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _break(monkeypatch, make)
    with pytest.raises(packio.errors.BadImagesError, match=r"c\.webp: Pillow: "):
        packio.pack(tmp_path / "in", tmp_path / "new.tar", check="decode")
    assert [damage.key for damage in packio.verify(pack, decode=True).damages] == ["c.webp"]


def test_a_sample_that_is_decoded_by_itself_is_named(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _break(monkeypatch, lambda: TypeError("odd"))
    with pytest.raises(DecodeError, match=r"sample 2 \('c\.webp'\): .*TypeError: odd"):
        packio.open(pack)[2].decode()


def test_pixels_that_pillow_cannot_hold_are_a_decode_error_of_that_sample(tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    import cv2

    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.png").write_bytes(made.saved(_image(0), "PNG"))
    deep = np.arange(12 * 16 * 3, dtype=np.uint16).reshape(12, 16, 3)
    (tmp_path / "in/b.png").write_bytes(cv2.imencode(".png", deep)[1].tobytes())
    packio.pack(tmp_path / "in", tmp_path / "out.tar")
    options: dict[str, Any] = {
        "decoder": "opencv",
        "mode": "UNCHANGED",
        "output": "pil",
        "fields": ("image", "key"),
    }
    dataset = packio.PackDataset(tmp_path / "out.tar", **options)
    with pytest.raises(DecodeError, match=r"'b\.png'"):
        dataset[1]
    with pytest.raises(DecodeError, match=r"'b\.png'"):
        dataset.__getitems__([0, 1])
    skipping = dataset.with_options(on_error="skip")
    with pytest.warns(UserWarning, match=r"b\.png"):
        assert [key for _, key in skipping.__getitems__([0, 1])] == ["a.png", "a.png"]


@pytest.mark.parametrize("odd", [
    np.zeros((9, 9, 3), ">u2"), np.zeros((9, 9, 3), "m8[s]"), np.zeros((9, 9), np.uint8), None,
])  # fmt: skip
def test_what_is_no_pixels_is_left_to_pillow(odd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    simplejpeg = registry.load("decoders", "simplejpeg")
    monkeypatch.setattr(simplejpeg, "decode", lambda *_: odd)
    data = made.saved(_image(1), "JPEG")
    found = Decoder("simplejpeg")(data, read_facts(data))
    assert np.array_equal(found, pillow.decode(data, "RGB"))


def _fail(_: object) -> object:
    raise ZeroDivisionError("mine")


@pytest.mark.parametrize("name", ["transform", "target_transform", "transforms"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_an_error_in_a_users_transform_is_told_with_the_sample_and_is_never_skipped(
    name: str, on_error: str, tmp_path: Path
) -> None:
    for kind in ("x", "y"):
        (tmp_path / "in" / kind).mkdir(parents=True)
        (tmp_path / "in" / kind / "a.png").write_bytes(made.saved(_image(0), "PNG"))
    packio.pack(tmp_path / "in", tmp_path / "out.tar")
    fail: Any = (lambda image, _: _fail(image)) if name == "transforms" else _fail
    options: dict[str, Any] = {name: fail}
    dataset = packio.PackDataset(tmp_path / "out.tar", on_error=on_error, **options)
    for read in (
        lambda: dataset[1],
        lambda: dataset.__getitems__([1]),
        lambda: dataset.gather([1]),
    ):
        with pytest.raises(TransformError, match=r"'y/a\.png'.*ZeroDivisionError: mine") as caught:
            read()
        cause = caught.value.__cause__
        assert isinstance(cause, ZeroDivisionError)
        assert "in _fail" in "".join(traceback.format_exception(cause))
