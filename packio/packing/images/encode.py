"""Encoding images anew while they are packed: smaller, upright, in another encoding, or raw.

Pillow does all of it: it converts CMYK and palettes, resizes as torchvision's ``Resize`` does on
Pillow images, and encodes. So the bytes depend on the options and the version of Pillow, never on
threads, processors or optional packages.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from packio.errors import DecodeError, Decoding, ModeError, OptionError
from packio.images import encodings
from packio.images.dct import as_jpeg
from packio.images.encodings import RAW, raw_facts, read_facts
from packio.packing.images import encoders, resizing
from packio.packing.images.encoders import Metadata
from packio.sample.fields import PIXELS
from packio.sample.recipe import Recipe
from packio.sample.record import IMAGE, Facts, Field, Record

if TYPE_CHECKING:
    from PIL import Image

CHOICES = {
    "encode": ("keep", "file", "dct", "jpeg", "png", "webp", "bmp", "raw"),
    "subsampling": encoders.SUBSAMPLINGS,
    "interpolation": resizing.INTERPOLATIONS,
    "orientation": ("keep", "bake"),
    "icc": ("keep", "srgb"),
    "alpha": ("keep", "white", "black", "drop"),
    "wide": ("keep", "scale"),
    "mode": tuple(encoders.RAW_HOLDS),
}
_POLICIES = ("orientation", "icc", "alpha", "wide")
_KEEPS = ("keep", "file", "dct")  # values of `encode` with which images other than JPEGs stay
_ONLY_WITH = {  # option → values of `encode` that the option applies to
    "quality": ("keep", "file", "dct", "jpeg", "webp"),
    "subsampling": ("keep", "file", "dct", "jpeg"),
    "lossless": ("webp",),
    "smart": ("jpeg", "png", "webp", "bmp"),
    "mode": ("raw",),
}
# Pillow's modes that PNG holds as they are, with a transparent colour, unless pixels are resized
_PNG_AS_IS = ("1", "L", "P", "RGB")
_LINKED = ("libjpeg_turbo", "webp", "zlib", "zlib_ng")  # libraries that Pillow encodes with


@dataclasses.dataclass(frozen=True)
class Encoding:
    """How images are encoded in a pack. Pickles; several threads may call it.

    Args:
        encode: "keep" keeps the bytes of an image that is not resized, turned or converted. Of
            other images, JPEG, PNG, WebP, BMP and raw pixels keep their encoding, and the rest
            become PNG. "dct" does the same, and stores the coefficients of JPEGs open, which
            packio alone reads, in two thirds of the time, and gives back as the same JPEG; see
            ``docs/dct.md``. "file" does the same as "keep", and makes such images their JPEGs
            again. "jpeg" (baseline), "png", "webp", "bmp"; "raw": pixels, (C, H, W).
        quality: Quality of JPEG and WebP, 1 to 100.
        subsampling: Chroma subsampling of JPEG: "4:2:0", "4:2:2" or "4:4:4".
        lossless: Encode WebP without loss.
        resize: "short=256" sets the short side, "long=512" the long side, "max-pixels=250000" the
            product of both; these keep the aspect ratio and enlarge no image. "exact=320x240" sets
            width and height of the upright image.
        enlarge: Also enlarge smaller images.
        interpolation: "bilinear", "bicubic", "lanczos", "hamming", "box", all antialiased, or
            "nearest". For JPEG and lossy WebP, large JPEGs are resized from a scaled decode, which
            loses far less than the encoding (`resizing.decode_scaled`); else from all pixels.
        smart: Keep the bytes of an image that need not be resized, turned or converted, if encoding
            does not make it smaller.
        orientation: "keep" keeps pixels as stored; their Exif orientation is in the index, even if
            the encoding cannot carry it. "bake" turns the pixels upright; images that are turned
            are encoded anew, JPEGs with a loss (`quality`).
        icc: "keep" carries a colour profile if the encoding can and the profile fits the pixels.
            "srgb" converts the pixels to sRGB and drops the profile.
        alpha: "keep" keeps transparency, and refuses an image if the encoding has none. "white" or
            "black" puts a colour behind it. "drop" shows the colours that it hides.
        wide: For more than 8 bits a channel. "keep" keeps them, and refuses an image if the
            encoding cannot (gray PNG and raw can). "scale" takes the higher 8 of 16 bits.
        mode: Colours of raw pixels: "RGB", "GRAY", "RGB_ALPHA" or "UNCHANGED".
    """

    encode: str = "keep"
    quality: int = 90
    subsampling: str = "4:2:0"
    lossless: bool = False
    resize: str | None = None
    enlarge: bool = False
    interpolation: str = "bilinear"
    smart: bool = False
    orientation: str = "keep"
    icc: str = "keep"
    alpha: str = "keep"
    wide: str = "keep"
    mode: str = "RGB"

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise OptionError(
                    f"{name}={getattr(self, name)!r}: expected one of {', '.join(choices)}"
                )
        given = self.as_options()
        kept = all(getattr(self, n) == "keep" for n in _POLICIES) and not self.resize
        kept = kept and self.encode in _KEEPS
        for name in ("quality", "subsampling"):
            if kept and name in given:
                raise OptionError(
                    f"{name}={given[name]!r} means nothing where images are kept as they are; say "
                    "encode='jpeg' or resize= as well"
                )
        if type(self.quality) is not int or not 1 <= self.quality <= 100:
            raise OptionError(f"quality={self.quality!r}: expected an int from 1 to 100")
        for name, encodes in _ONLY_WITH.items():
            if name in given and self.encode not in encodes:
                raise OptionError(
                    f"{name}={given[name]!r} means nothing with encode={self.encode!r}; "
                    f"it goes with {', '.join(encodes)}"
                )
        if self.resize is not None:
            resizing.parse(self.resize)
        elif "enlarge" in given or "interpolation" in given:
            raise OptionError("enlarge and interpolation mean nothing without resize")

    def as_options(self) -> dict[str, Any]:
        """Options as JSON can hold them: ``encode``, and each value that is not the default."""
        values = {f.name: (getattr(self, f.name), f.default) for f in dataclasses.fields(self)}
        return {k: v for k, (v, default) in values.items() if k == "encode" or v != default}

    def __call__(self, record: Record[Field]) -> Record[Field]:
        """Encode one sample; the argument itself is returned if nothing has to be done.

        Masks follow the size and orientation of the image, and become PNGs. Boxes, their areas, and
        COCO annotations in the metadata follow a size, too.
        """
        facts = record.facts
        to = size = facts.width, facts.height
        if self.resize is not None:
            to = resizing.target(self.resize, size, facts.orientation, enlarge=self.enlarge)
        turn = facts.orientation if self.orientation == "bake" else 1
        moves = to != size or turn != 1
        stays = not moves and set(self._policies.values()) == {"keep"}
        if stays and self.encode in ("keep", "dct"):
            return record
        if facts.encoding == "dct":
            facts = facts._replace(encoding="jpeg")
            record = record.with_fields(image=Field("image", as_jpeg(record.image.data), facts))
        if stays and self.encode == "file":
            return record
        made = self._made(record.image.data, facts, to, turn)
        if made is None:
            return record
        record = record.with_fields(image=Field("image", *made))
        return self._moved(record, facts, to, turn) if moves else record

    def _moved(
        self, record: Record[Field], facts: Facts, to: resizing.Size, turn: int
    ) -> Record[Field]:
        """The record after everything has followed its image, which had these facts."""
        size = facts.width, facts.height
        fields = {
            name: self._moved_field(name, field, size, to, turn)
            for name, field in record.fields.items()
            if name != IMAGE and field.kind in PIXELS
        }
        boxes, columns = record.boxes, dict(record.box_columns)
        if boxes is not None:
            boxes = resizing.move_boxes(boxes, size, to, turn).astype(np.float32)
        if "area" in columns:
            columns["area"] = columns["area"] * np.float32(to[0] * to[1] / (size[0] * size[1]))
        sizes = {size: to, size[::-1]: to[::-1]} if facts.orientation >= 5 else {size: to}
        meta = resizing.scale_meta(record.meta, sizes)
        return dataclasses.replace(
            record, fields={**record.fields, **fields}, boxes=boxes, box_columns=columns, meta=meta
        )

    def _moved_field(
        self, name: str, field: Field, size: resizing.Size, to: resizing.Size, turn: int
    ) -> Field:
        """Resize and turn a further image or mask of a sample as the sample's image.

        A mask takes the nearest pixels. An image keeps its encoding and its bits a channel. If it
        has another size than the sample's image, it is resized by the same factors.
        """
        if field.kind == "mask":
            return Field("mask", resizing.move_mask(field.data, size, to, turn))
        own = field.facts or read_facts(field.data)
        moved = (
            max(1, round(own.width * to[0] / size[0])), max(1, round(own.height * to[1] / size[1])),
        )  # fmt: skip
        keep = dataclasses.replace(
            self, encode="keep", lossless=False, smart=False, icc="keep", alpha="keep", wide="keep",
            mode="RGB",
        )  # fmt: skip
        try:
            made = keep._made(field.data, own, moved, turn)  # noqa: SLF001 (its own class)
        except DecodeError as error:
            raise type(error)(f"{name}: {error}") from error
        return field if made is None else Field("image", *made)

    @property
    def _policies(self) -> dict[str, str]:
        return {"icc": self.icc, "alpha": self.alpha, "wide": self.wide}

    def _made(
        self, data: bytes, facts: Facts, to: resizing.Size, turn: int
    ) -> tuple[bytes, Facts] | None:
        """Encode an image; return its bytes and facts, or None if the old bytes stay."""
        with Decoding("cannot be encoded: "), _opened(data, facts) as image:
            resizes = to != (facts.width, facts.height)
            converts = encoders.asks_for_change(image, **self._policies)
            may_stay = not (resizes or converts or turn != 1)
            if may_stay and self.encode in _KEEPS:
                return None
            encoding, lossless, holds = self._output(data, facts)
            metadata = encoders.metadata_of(image)
            box = resizing.decode_scaled(image, data, to) if resizes and not lossless else None
            pixels: Image.Image = image
            as_is = encoding == "png" and image.mode in _PNG_AS_IS
            if not as_is or resizes or converts or encoders.is_wide(image):
                pixels = encoders.prepare(image, holds, **self._policies)
            pixels = resizing.upright(
                resizing.resize_image(pixels, to, self.interpolation, box), turn
            )
            made = self._written(pixels, encoding, metadata, facts.orientation, lossless=lossless)
        return None if may_stay and self.smart and len(made[0]) >= len(data) else made

    def _output(self, data: bytes, facts: Facts) -> tuple[str, bool, frozenset[str]]:
        """Name of the encoding, whether it is lossless, and Pillow's modes that it holds."""
        encoding, lossless, mode = self.encode, self.lossless, self.mode
        if encoding in _KEEPS:
            encoding = "raw" if facts.encoding in RAW else facts.encoding
            encoding = encoding if encoding in CHOICES["encode"][3:] else "png"
            lossless, mode = encoding == "webp" and _is_lossless_webp(data), "UNCHANGED"
        if encoding == "raw":
            return encoding, True, encoders.RAW_HOLDS[mode]
        return encoding, lossless or encoding in ("png", "bmp"), encoders.HOLDS[encoding]

    def _written(
        self, image: Image.Image, encoding: str, metadata: Metadata, orientation: int, *,
        lossless: bool,
    ) -> tuple[bytes, Facts]:  # fmt: skip
        """Encode pixels that have their final size, with metadata; return bytes and facts."""
        exif, icc = metadata
        if self.orientation == "bake":
            exif, orientation = encoders.upright_exif(exif), 1
        if encoding == "raw":
            planes = encoders.raw(image)
            channels, height, width = planes.shape
            new = raw_facts(height, width, channels, planes.dtype.name)
            return planes.tobytes(), new._replace(orientation=orientation)
        icc = encoders.fitting_profile(icc, image) if self.icc == "keep" else b""
        encode = functools.partial(
            encoders.encode, image, encoding, quality=self.quality, subsampling=self.subsampling,
            lossless=lossless,
        )  # fmt: skip
        data = encode(Metadata(exif, icc))
        if (exif or orientation != 1) and not _tells(data, orientation):  # but XMP did, say
            data = encode(Metadata(encoders.exif_of(orientation), icc))
        return data, read_facts(data)._replace(orientation=orientation)


def versions(recipe: Recipe) -> dict[str, str]:
    """Versions of the libraries that encoded images or levels; none if all images were kept."""
    is_kept = Encoding(**recipe.encoding) in (Encoding(), Encoding(encode="dct"))
    if is_kept and not (recipe.levels or {}).get("count"):
        return {}
    import PIL
    from PIL import features

    linked = {name: features.version(name) for name in _LINKED}
    return {"pillow": PIL.__version__, **{n: v for n, v in linked.items() if v is not None}}


def _opened(data: bytes, facts: Facts) -> Image.Image:
    """Open an image. Pixels are not loaded yet, unless they are raw."""
    from PIL import Image

    if facts.encoding not in RAW:
        return encodings.open_image(data)
    from packio.images.decoders import Decoder

    pixels = Decoder(mode="UNCHANGED")(data, facts)
    channels = pixels.shape[2]
    if channels > (4 if facts.dtype == "uint8" else 1):
        raise ModeError(f"raw {facts.dtype} pixels of {channels} channels cannot be encoded anew")
    return Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)


def _tells(data: bytes, orientation: int) -> bool:
    """Tell whether an encoded image says that it has this orientation."""
    try:
        return read_facts(data).orientation == orientation
    except DecodeError:  # by Exif that is broken
        return False


def _is_lossless_webp(data: bytes) -> bool:
    """Tell whether the first image chunk is VP8L. Source: RFC 9649, section 2."""
    position = 12
    while position + 8 <= len(data):
        name = data[position : position + 4]
        if name in (b"VP8 ", b"VP8L"):
            return name == b"VP8L"
        size = int.from_bytes(data[position + 4 : position + 8], "little")
        position += 8 + size + size % 2
    return False
