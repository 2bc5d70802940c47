"""The dataset of a pack: map-style, for any DataLoader and any sampler."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import operator
import os
import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from packio.batches import images, samples
from packio.batches.framing import Draw, Settings
from packio.batches.samples import FieldColumns, MadeSamples
from packio.datasets import options, selection
from packio.datasets.dataset import Dataset
from packio.datasets.explaining import explain
from packio.datasets.fields import READS, Outputs, Spec, convert, fields_of_pack
from packio.datasets.lookahead import Guesses
from packio.datasets.shared_state import Positions, Seed, Tally, Targets
from packio.datasets.transforms import normalizes, warn_of_moves
from packio.errors import DecodeError, KeyNotFoundError, OptionError, TransformError
from packio.images.decoders import MAX_PIXELS, Decoder
from packio.images.floats import Normalize, to_floats
from packio.images.geometry import Geometry, is_whole
from packio.ops.following import follow
from packio.ops.pipeline import Pipeline
from packio.ops.pipeline import split as split_transform
from packio.ops.reading import crops_first
from packio.packs import caches, opening
from packio.packs.table import Row
from packio.sample.record import IMAGE
from packio.storage.sample_cache import RamCache
from packio.system import signatures, workers
from packio.system.locks import cached_property
from packio.system.threads import Threads, automatic_threads

Self = TypeVar("Self", bound="PackDataset")


class PackDataset(Dataset):
    """Samples of a pack, decoded, cropped and flipped.

    ``ds[i]`` is one sample. A DataLoader asks for whole batches (``__getitems__``). They are read
    in file order and decoded into one tensor. With ``collate_fn=packio.collate`` that tensor is the
    batch. Works under fork, spawn and forkserver, whatever the parent has read before.

    Args:
        path: A pack: its path or URL, or what `packio.open` returned.
        crop: What to take of each image and how large: `RandomResizedCrop`, `CenterCrop`,
            `Resize`, `ResizeCenterCrop`, `RandomCrop`, `BucketCrop`, or torchvision's crop of the
            same name. None: the whole image.
        hflip, vflip: Probabilities of mirroring left-right and top-bottom.
        views: Several crops of the same read; the image is then a tuple. Instead of `crop`.
        fidelity: "exact": pixels as Pillow decodes them, resized with antialiasing. "fast": crops
            much larger than their output are decoded small, or from a level (`packio.pack`): above
            35 dB to "exact" for photographs. Without the native core, chroma is repeated, and
            OpenCV may resize.
        decoder: "auto": packio's native core as far as it goes, else for each encoding the fastest
            that equals Pillow bit for bit. "native": the same, and an error without the core. Or a
            library's name; "nvjpeg" is for `Loader` with ``device="cuda"``: the GPU decodes.
        mode: "RGB", "GRAY", "RGB_ALPHA" or "UNCHANGED", as torchvision's ImageReadMode.
        fields: What a sample consists of: one name, a tuple of names, or {name: field}, as
            ``("image", "depth", "caption")``. A name is "image", "mask", "label", "boxes",
            "box_labels", "key", "index", "split", any other named field of the pack
            (`Pack.fields`), a column of the boxes (as "crowd"), or a key of the samples' metadata.
            The first of these that the pack has is taken. Default: image, mask and label, as far
            as the pack has them, a tuple: ``(image,)`` if the pack has neither. See below.
        output: "tensor": (C, H, W), contiguous; "numpy": (H, W, C), contiguous; "pil". Under
            "pil", boxes and arrays are NumPy arrays.
        dtype: Of tensors: torch.uint8 (as decoded), or a float type, scaled to 0..1.
        transform: Of each image of the field "image": a Compose of torchvision or timm, of which
            packio makes what it can itself (`explain` tells); a transform of packio, as
            `packio.RandAugment`, or a list; or a function, as of albumentations. With `views`
            also a list of them, one for each view. `packio.Normalize` makes normalised floats, of
            ``dtype`` or float32, of all images.
        target_transform: Called with each label.
        transforms: Called with image, mask, further images and masks (in the order of `fields`),
            boxes, box_labels, further columns of the boxes, and label, as far as they are among the
            fields; returns as many values. Where torchvision is installed, it gets tv_tensors;
            samples have plain tensors. Instead of `transform`, `target_transform` and `views`.
        ignore_index: Class id in masks where a crop reaches beyond the image, and in the whole
            mask of a sample that has none. An id outside 0..255 makes all masks int32.
        exif_orientation: Turn images upright, with their masks and boxes.
        on_error: "raise", or "skip": a bad sample of a batch is replaced by another of the batch.
        threads: Number of threads that decode a batch. "auto": the processors that this process may
            use, divided by LOCAL_WORLD_SIZE and by the DataLoader's workers; 1 for images smaller
            than 100 x 100, which threads do not speed up.
        split: Name of a split, in a pack that has splits: the dataset is the split's samples.
        seed: Of crops and flips, not of the order. None: they differ in each epoch, in any
            DataLoader. `packio.ShuffleSampler` and `packio.Loader` number the samples of an epoch;
            then seed, epoch and number decide a draw, for any number of workers. With another
            sampler, draws come from torch's generator (``torch.manual_seed``), or under a seed from
            the seed, the epoch and the batch's indices: call `set_epoch` before each epoch.
            ``ds[i]`` draws from torch's generator. Making a dataset draws nothing.
        access: "range", or the container's library, as "lmdb"; None: as the pack recommends, or was
            opened.
        index: Path or URL of the index, if it is not beside the container; see `packio.reindex`.
        trust_plain_pickle, database: Of an LMDB that others wrote; see `packio.reindex`.
        max_pixels: Refuse larger images.
        cache: "ram": keep the bytes of samples, once read, in memory that workers share. For packs
            at URLs and on slow disks. Raw pixels are mapped, and not kept.
        cache_bytes: Bytes to keep so; None: half of the memory available, shared evenly among
            torchrun's processes of this machine. Neither cache drops anything for later samples.
        local_copy: Folder on a disk of this machine, as "$TMPDIR", to which the pack is copied once
            for all processes. Without room there, the pack is read where it is, with a warning.
        local_bytes: Keep samples there, once read, up to so many bytes, instead of a copy.

    A crop takes the same box of all images, masks and boxes of a sample, and flips mirror all of
    them. With `views` each of them is a tuple. What a field gives depends on its kind:

    * image: (C, H, W) pixels. The crop is drawn for the field "image". A further image shows the
      same scene: one of the same size is cut at the same pixels; the box of one of another size is
      scaled in proportion, and resized with the crop's interpolation to the same output. Without a
      crop it keeps its own size. A further image is turned by its own Exif orientation; one that
      has none is turned as the image of its sample. 8-bit images have the dataset's `mode`;
      further images of more bits are "UNCHANGED": a 16-bit depth image is (1, H, W) uint16, or a
      float of 0..1 under a float `dtype`. `decoder="nvjpeg"` decodes the field "image" only.
    * mask: (H, W) class ids, resized to the nearest pixel; palettes are not expanded. uint8, or
      int32 if ids have more than 8 bits; a batch with one such mask is int32. A mask has the size
      of the image of its sample, as both are stored, and is turned with the image.
    * array: a tensor of the shape and type that were packed. An array of a type that torch does
      not have, as of text, stays a NumPy array.
    * text: str. bytes: bytes.
    * boxes: (k, 4) float32, XYXY in pixels, clipped to what is seen of the image; box_labels: (k,)
      int64; any other column of the boxes: (k,) int64 or float32. A box is dropped, with its value
      in every column, if nothing of it is left, if it has no width or height, or if it is not
      finite.
    * split: the name of the sample's split.
    * metadata: as packed, also where boxes are dropped; None where a sample has no such key.

    A sample that lacks a further field has None there; a mask that a sample lacks is
    `ignore_index` everywhere. A field that cannot be read makes its sample bad.

    `packio.collate` makes (N, C, H, W) of images, (N, H, W) of masks, and (N, …) of arrays, where
    all have one shape and no sample lacks the field. All else becomes lists: boxes, text, bytes,
    and images and masks that differ in size, as without a crop.

    Attributes:
        pack: The `packio.Pack`.
        seeded: Whether a seed was given.
        transform, target_transform, transforms: As given; may be set later. All other options are
            changed by `with_options`.

    Raises:
        NotAPackError, UnfinishedPackError, IntegrityError: see `packio.open`.
        OptionError: an argument has a value that is not allowed.
        MissingPackageError: the decoder's package is not installed.
        CannotCreateError, LockedError: the local copy cannot be made.
    """

    format: str | None = None  # the only container format accepted
    seeded: bool

    def __init_subclass__(
        cls, *, format: str | None = None, **others: Any,  # noqa: A002 (as the attribute)
    ) -> None:  # fmt: skip
        """Take the format of a class of packio's; describe the arguments after its docstring."""
        super().__init_subclass__(**others)
        if format is not None:
            cls.format = format
            if cls.__doc__ and PackDataset.__doc__:  # python -OO has no docstrings
                _, _, arguments = PackDataset.__doc__.partition("\n")
                cls.__doc__ = f"{cls.__doc__.rstrip()}\n{arguments}"

    @signatures.refuse_others(options.HINTS)
    def __init__(
        self,
        path: str | os.PathLike[str] | opening.Pack,
        *,
        crop: Geometry | None = None,
        hflip: float = 0.0,
        vflip: float = 0.0,
        views: Sequence[Geometry | None] | None = None,
        fidelity: str = "exact",
        decoder: str = "auto",
        mode: str = "RGB",
        fields: Spec | None = None,
        output: str = "tensor",
        dtype: torch.dtype = torch.uint8,
        transform: Callable[[Any], Any] | Sequence[Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        transforms: Callable[..., Any] | None = None,
        ignore_index: int = 255,
        exif_orientation: bool = True,
        on_error: str = "raise",
        threads: int | str = "auto",
        split: str | None = None,
        seed: int | None = None,
        access: str | None = None,
        index: str | os.PathLike[str] | None = None,
        trust_plain_pickle: bool = False,
        database: str | None = None,
        max_pixels: int = MAX_PIXELS,
        cache: str | None = None,
        cache_bytes: int | None = None,
        local_copy: str | os.PathLike[str] | None = None,
        local_bytes: int | None = None,
    ) -> None:
        given = {k: v for k, v in locals().items() if k not in ("self", "__class__")}
        is_new = "_options" not in vars(self)  # and no copy that `with_options` makes
        self._options = options.check(given)
        taken = {n for n in ("crop", "hflip", "vflip") if self._options[n] and not given[n]}
        # a Compose that was read: what it was, its steps, and the options that it gave
        self._compose = transform, self._options["transform"], taken
        if is_new:
            self._check_class()
        if isinstance(path, opening.Pack):
            path = path if access in (None, path.access) else path.reopen(str(access))
        self.pack = path if isinstance(path, opening.Pack) else self._open(path, access)
        form = self.pack.metadata["format"]
        if self.format is not None and form != self.format:
            raise OptionError(
                f"{self.pack.path}: a {form} pack; {type(self).__name__} reads {self.format}, "
                "packio.PackDataset reads any format"
            )
        if local_copy is not None:
            self.pack = caches.open_copy(self.pack, local_copy, local_bytes)
        if cache is not None:
            self.pack.keep_in_ram(cache_bytes)
        self._chosen = Positions(None if split is None else self.pack.split(split))
        self._is_part = False  # whether of what was chosen only some are left
        # mapped here, so that forked workers share the map, and what has been checked in it
        _ = self.pack.raw_rows
        self.transform = self._options["transform"]
        self.target_transform: Callable[[Any], Any] | None = target_transform
        self.transforms: Callable[[Any, Any], Any] | None = transforms
        self._fields = fields_of_pack(fields, self.pack)
        self._settings = Settings(
            self._options["views"] or (self._options["crop"],),
            self._options["hflip"], self._options["vflip"],
            Decoder(decoder, mode, max_pixels=max_pixels), exif_orientation, fidelity == "fast",
            self._fields.kinds, ignore_index,
        )  # fmt: skip
        self._images = [name for name, kind in self._fields.kinds.items() if kind == "image"]
        self._are_little = images.are_little(self.pack)
        self._decoding: Threads | None = None  # made when first needed
        self._tally = Tally()
        self._split: tuple[Any, Any, Sequence[Pipeline]] | None = None
        self._outputs = Outputs([self.pack], self._fields, self._options)
        self._seed = Seed(seed)
        self.seeded = seed is not None
        self._guesses = Guesses()
        _ = self._pipelines  # which may warn

    def _open(self, path: str | os.PathLike[str], access: str | None) -> opening.Pack:
        names = ("index", "trust_plain_pickle", "database")
        return opening.open(path, access=access, **{n: self._options[n] for n in names})

    def __len__(self) -> int:
        return len(self.pack) if self._chosen.array is None else len(self._chosen.array)

    def __repr__(self) -> str:
        shown = {k: v for k, v in self._options.items() if k != "path" and v is not None}
        options = "".join(f", {k}={v!r}" for k, v in shown.items() if v != _DEFAULTS.get(k))
        part = f"[{len(self)} of {len(self.pack)} samples]" if self._is_part else ""
        return f"{type(self).__name__}({str(self.pack.path)!r}{options}){part}"

    def __getstate__(self) -> dict[str, Any]:
        return {n: value for n, value in vars(self).items() if n not in ("targets", "samples")}

    @property
    def options(self) -> dict[str, Any]:
        """All arguments, by name, as given."""
        return dict(self._options)

    @cached_property
    def targets(self) -> Any:  # Targets, or None: scripts know whether their data have labels
        """All labels: (N,) int64 or (N, k) float32, a copy; None if there are none.

        An array that also does what scripts do with the list of torchvision's ImageFolder.
        """
        labels = self.pack.labels
        return None if labels is None else labels[self._chosen_positions()].view(Targets)

    @cached_property
    def samples(self) -> tuple[tuple[str, Any], ...]:
        """(key, label) of each sample, as ImageFolder has (path, label); None for no label."""
        names = self.pack.keys()
        keys = [names[i] for i in self._chosen_positions().tolist()]
        labels = [None] * len(keys) if self.targets is None else self.targets
        return tuple(zip(keys, labels, strict=True))

    @property
    def imgs(self) -> tuple[tuple[str, Any], ...]:
        """The `samples`, by ImageFolder's other name."""
        return self.samples

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:
        """The key of each sample, as timm's datasets have them: a path in the folder or the pack.

        Args:
            basename: The last part of it alone.
            absolute: With the path of the folder, or of the pack, in front; within a pack it is no
                file. ``basename`` comes first.
        """
        keys = [key for key, _ in self.samples]
        if basename:
            return [key.rpartition("/")[2] for key in keys]
        return [f"{self.pack.path}/{key}" for key in keys] if absolute else keys

    @property
    def ram(self) -> RamCache | None:
        """What cache="ram" or local_bytes= keeps: samples, bytes, room, hits and misses of all."""
        return self.pack.ram

    def by_key(self, key: str | bytes) -> Any:
        """The sample with this key, as ``ds[i]``.

        Raises:
            KeyNotFoundError: there is none, or it is not in this part of the pack.
        """
        position = self.pack.find(key)
        if self._chosen.array is not None and position not in self._chosen.array:
            raise KeyNotFoundError(
                f"{self.pack.path}: {os.fsdecode(key)!r} is in the pack, but not in this part "
                f"({len(self)} of {len(self.pack)} samples); ask a dataset of the whole pack"
            )
        return self._one(self.pack.row(position), None)

    def with_options(self: Self, **options: Any) -> Self:
        """The same samples with some options changed, as crop=… for evaluation, in the same epoch.

        The new dataset has an epoch and counts of its own. If only threads= changes, both
        datasets share them.

        Raises:
            OptionError: there is no such option; or split= is to change in a part of a dataset.
        """
        if unknown := sorted(set(options) - (set(self._options) - {"path"})):
            raise OptionError(f"no such option: {', '.join(unknown)}")
        names = ("transform", "target_transform", "transforms")
        current = {name: getattr(self, name) for name in names}
        compose, steps, taken = self._compose
        is_read_again = self.transform is steps and not taken & options.keys()
        if is_read_again or "transform" in options:  # which comes with crop and flips of its own
            current |= {name: _DEFAULTS[name] for name in taken}
        if is_read_again:
            current["transform"] = compose
        split = self._options["split"]
        if self._is_part and options.get("split", split) != split:
            raise OptionError("split=: this is a part of a dataset; take the split first")
        other = copy.copy(self)  # a derived class may have attributes, and an __init__ of its own
        PackDataset.__init__(other, **{**self._options, "path": self.pack, **current, **options})
        own = vars(other)
        if not is_read_again and "transform" not in options:
            own.update(_compose=(compose, steps, taken - options.keys()))
        if "seed" not in options:
            own.update(_seed=self._seed, seeded=self.seeded)
        own["_tally"] = self._tally if set(options) <= {"threads"} else Tally(self.epoch)
        if self._is_part:
            own.update(_chosen=self._chosen, _is_part=True)
        return other

    def save_selection(
        self, out: str | os.PathLike[str], *, overwrite: bool = False
    ) -> selection.SelectionReport:
        """Save which samples these are: a small file that opens as a pack of them.

        The samples are then in the order of the pack; see `packio.select`.

        Args:
            out: The selection to write, as ``cats.selection``.
            overwrite: Replace a selection.

        Raises:
            OptionError: a sample is in the dataset twice, or the dataset is empty or a folder.
            OutputExistsError: ``out`` exists.
            CannotCreateError: it cannot be written.
        """
        return selection.save(self.pack, self._chosen_positions(), out, overwrite=overwrite)

    def explain(self, samples: int = 32) -> str:
        """Say what each step of making an image costs, and who does it.

        Measures the first samples, each step by itself, in one thread. ``transforms=`` and
        ``target_transform=`` are named, not measured.

        Args:
            samples: How many.

        Returns:
            A table as text: µs an image; "packio" or "called by image", which is Python and slow;
            and the step.

        Raises:
            OptionError: ``samples`` is no number of 1 or more, or the dataset has no samples.
        """
        if not is_whole(samples) or samples < 1:
            raise OptionError(f"explain: samples={samples!r}; expected a number of 1 or more")
        plain = self.with_options(
            transform=None,
            transforms=None,
            dtype=torch.uint8,
            output="tensor",
            threads=1,
            fields="image",
            **{n: self._options[n] for n in ("hflip", "vflip")},
        )
        if not len(self):
            raise OptionError("explain: the dataset has no samples")
        shown = plain.subset(range(min(samples, len(self))))
        flips = [f"{n}={self._options[n]}, " for n in ("hflip", "vflip") if self._options[n]]
        types = [self._dtype(IMAGE, view) for view in range(len(self._settings.views))]
        crops = self._settings.views
        each = [shown.with_options(views=None, crop=crop) for crop in crops]
        names = [f"{''.join(flips)}{'whole images' if crop is None else crop}" for crop in crops]
        views = list(zip(names, each, self._pipelines, types, strict=True))
        state = random.getstate()  # functions draw from it, or from torch's
        with torch.random.fork_rng(devices=[]):
            told = explain(views, self._options["output"])
        random.setstate(state)
        left = [n for n in ("transforms", "target_transform") if getattr(self, n) is not None]
        return "\n".join([told, *(f"not measured: {name}=, called by sample" for name in left)])

    # ---- as a part of a dataset: of itself, or of a `ConcatPacks` ----

    @property
    def _is_plain(self) -> bool:
        is_own = self.transform is None or not any(one.rest for one in self._pipelines)
        return is_own and self.target_transform is None and self.transforms is None

    @property
    def _pipelines(self) -> Sequence[Pipeline]:
        """The transform of each view, split; the transform may be set at any time."""
        kept = self._split
        if kept is None or kept[0] is not self.transform or kept[1] is not self.transforms:
            views, own, output = self._settings.views, self.transform, self._options["output"]
            is_each = self._options["views"] is not None and isinstance(own, (list, tuple))
            each = own if is_each else [own] * len(views)
            if len(each) != len(views):
                raise TransformError(f"{len(each)} transforms for {len(views)} views of an image")
            last = self.transforms is None
            split = [split_transform(one, output=output, is_last=last) for one in each]
            if any(one.normalize for one in split) and any(
                one.normalize is None and not one.rest for one in split
            ):
                raise TransformError(
                    "transform= makes floats of some views only; with views= a list has an item a "
                    f"view, the same for each is transform=[[…]] * {len(views)}"
                )
            dtype = self._options["dtype"]
            if dtype != torch.uint8 and any(one.takes_pillow for one in split):
                raise OptionError(
                    f"dtype={dtype}: a step of transform= gets Pillow's image, which has bytes; "
                    "leave dtype= out, or write a transform of packio in the place of that step"
                )
            if any(views) and any(map(crops_first, each)):
                warnings.warn(
                    "transform= begins with a crop, and the dataset crops already: images are "
                    "cropped twice; leave one of both out",
                    stacklevel=2,
                )
            kept = self._split = own, self.transforms, split
            native, rest = ([one for p in split for one in part(p)] for part in _PARTS)
            warn_of_moves(native, rest, self._fields.kinds)
        return kept[2]

    @property
    def _is_normalized(self) -> bool:
        each = [pipeline.normalize for pipeline in self._pipelines]
        if any(one is not None and not one.only_scales for one in each):
            return True
        return any(normalizes(pipeline.rest) for pipeline in self._pipelines)

    def _dtype(self, name: str = IMAGE, view: int | None = None) -> torch.dtype:
        """The type of the images of a field as they are made, of a view or of any."""
        dtype: torch.dtype = self._options["dtype"]
        pipelines = self._pipelines if view is None else self._pipelines[view : view + 1]
        is_normal = name == IMAGE and any(one.normalize is not None for one in pipelines)
        return torch.float32 if is_normal and dtype == torch.uint8 else dtype

    @property
    def _is_random(self) -> bool:
        if self._settings.is_random:
            return True
        return self.transform is not None and any(one.is_random for one in self._pipelines)

    def _part(self: Self, indices: np.ndarray) -> Self:
        part, chosen = copy.copy(self), Positions(self._positions(indices))
        decoder = copy.copy(self._settings.decoder)  # it counts
        vars(part).update(
            _chosen=chosen, _is_part=True, _guesses=Guesses(), _tally=Tally(self.epoch),
            _settings=dataclasses.replace(self._settings, decoder=decoder),
        )  # fmt: skip
        return part

    def _chosen_positions(self) -> np.ndarray:
        return np.arange(len(self.pack)) if self._chosen.array is None else self._chosen.array

    def _positions(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        if self._chosen.array is None:
            return self.pack.positions(indices)
        positions: np.ndarray = self._chosen.array[selection.check_indices(len(self), indices)]
        return positions

    def _threads(self) -> Threads | None:
        """Threads that decode a batch; None: the calling one."""
        wanted = self._options["threads"]
        if wanted == "auto" and self._are_little:
            return None
        count = automatic_threads() if wanted == "auto" else wanted
        if count < 2:
            return None
        if self._decoding is None or self._decoding.count != count:
            self._decoding = Threads(count)
        return self._decoding

    def _make_fields(
        self, positions: np.ndarray, draw: Draw, threads: Threads | None,
        out: torch.Tensor | None = None, device: torch.device | None = None,
    ) -> MadeSamples:  # fmt: skip
        """Make samples at (N,) positions of the pack; images go to ``out``; bad ones are there."""
        if not self._fields.kinds:
            return MadeSamples({}, {})
        is_changed = self.transform is not None or self._options["dtype"] != torch.uint8
        is_float = is_changed and self._dtype().is_floating_point
        settings = self._settings.for_floats if is_float else self._settings
        given, before = None if is_float else out, settings.counts
        try:
            made = samples.make(self.pack, settings, positions, draw, threads, given, device)
        finally:
            self._count(before)
        if self._options["output"] == "pil" and settings.decoder.mode == "UNCHANGED":
            self._check_pillow_holds(made, positions)
        for number in range(len(settings.views)) if is_changed else ():
            self._change(made.columns, number, draw, positions, threads, out)
        return made

    def _change(
        self, columns: FieldColumns, number: int, draw: Draw, positions: Sequence[int] | np.ndarray,
        threads: Threads | None = None, out: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """Run the pipeline of a view on its images; masks and boxes follow."""
        pipeline = self._pipelines[number]
        if IMAGE in columns:
            done = pipeline.operate(
                columns[IMAGE][number], draw, number, threads,
                lambda slot: self._where(int(positions[slot])),
            )  # fmt: skip
            if done and len(self._fields.kinds) > 1:
                kinds = self._fields.kinds
                follow(columns, kinds, number, done, self._settings.ignore_index)
        for name in self._images:
            own = pipeline.normalize if name == IMAGE else None
            into = out if name == IMAGE else None
            images = columns[name][number]
            columns[name][number] = self._floats(name, number, images, own, threads, into)
        if IMAGE in columns:
            pipeline.erase(columns[IMAGE][number], draw, number)

    def _floats(
        self, name: str, number: int, view: Any, normalize: Normalize | None,
        threads: Threads | None, out: torch.Tensor | None = None,
    ) -> Any:  # fmt: skip
        dtype = self._dtype(name, number)
        if not dtype.is_floating_point:  # beside an image that is normalised
            return view
        if isinstance(view, list):
            return [None if v is None else to_floats(v, dtype, normalize) for v in view]
        if out is not None or view.device.type == "cpu":
            out = images.ensure_out(tuple(view.shape), dtype, out)
        return to_floats(view, dtype, normalize, out, threads)

    def _where(self, position: int) -> str:
        """The name of a sample, for errors."""
        return f"{self.pack.path}, sample {position} ({self.pack.key(position)!r})"

    def _check_pillow_holds(self, made: MadeSamples, positions: np.ndarray) -> None:
        """Count samples as bad whose pixels Pillow has no mode for, as RGB of 16 bits."""
        views = [(name, view) for name in self._images for view in made.columns[name]]
        for name, view in views:
            for slot, image in enumerate(view):
                if slot in made.errors or image is None or image.dtype == torch.uint8:
                    continue
                try:
                    with self.pack.naming(self.pack.row(positions.item(slot), name), name):
                        convert("image", image, "pil")
                except DecodeError as error:
                    made.errors[slot] = error

    def _count(self, before: tuple[int, ...]) -> None:
        """Add to the tally what has come since the settings had such counts."""
        now = self._settings.counts
        if now != before:
            self._tally.count(0, *(n - b for n, b in zip(now, before, strict=True)))

    # A batch of one would take twice as many calls of Python.

    def _sample(self, index: int) -> Any:
        position, chosen = index, self._chosen.array
        if chosen is not None:
            if not 0 <= index < len(chosen):
                (position,) = selection.check_indices(len(chosen), [index]).tolist()
            position = chosen.item(position)
        return self._one(self.pack.row(position), index)

    def _one(self, row: Row, index: int | None) -> Any:
        workers.settle()
        made = self._make_one(row, index) if self._fields.kinds else {}
        meta = (self._fields.meta and self.pack.meta(row.position)) or {}
        values: dict[str, Any] = {}
        for name in self._fields.names:
            if name in made:
                views = made[name]
                values[name] = tuple(views) if self._outputs.has_views(name) else views[0]
            elif name in self._fields.meta:
                values[name] = meta.get(name)
            elif name == "index":
                values[name] = row.position
            else:
                value = getattr(self.pack, READS[name])(row.position)
                is_array = isinstance(value, np.ndarray)
                values[name] = torch.as_tensor(value, device="cpu") if is_array else value
        if not self._is_plain:
            values = self._transformed(values, row.position, 0)
        return self._fields.assemble(values)

    def _make_one(self, row: Row, index: int | None) -> dict[str, list[Any]]:
        """Make the decoded fields of one sample: a value a view, in the form asked for."""
        before, output = self._settings.counts, self._options["output"]
        key, lane, size = self._draw_one(index)
        try:
            made = samples.make_one(self.pack, self._settings, row, key, lane, size)
        finally:
            self._count(before)
        if self.transform is not None or self._options["dtype"] != torch.uint8:
            columns: FieldColumns = {n: [[view] for view in views] for n, views in made.items()}
            for number in range(len(self._settings.views)):
                self._change(columns, number, Draw(key, np.array([lane])), [row.position])
            made = {name: [view[0] for view in views] for name, views in columns.items()}
        if output == "tensor":
            return made
        kinds = self._fields.kinds
        with self.pack.naming(row):
            return {name: [convert(kinds[name], v, output) for v in made[name]] for name in made}


_PARTS = operator.attrgetter("transforms"), operator.attrgetter("rest")  # of a pipeline
_DEFAULTS = {p.name: p.default for p in inspect.signature(PackDataset).parameters.values()}


# A class statement each, and no factory: users' annotations name these classes.


class Hdf5Dataset(PackDataset, format="hdf5"):
    """Samples of an HDF5 pack."""


class LmdbDataset(PackDataset, format="lmdb"):
    """Samples of an LMDB pack."""


class N5Dataset(PackDataset, format="n5"):
    """Samples of an N5 pack."""


class PthDataset(PackDataset, format="pth"):
    """Samples of a pack of .pth shards."""


class RecordIODataset(PackDataset, format="recordio"):
    """Samples of a RecordIO pack."""


class TFRecordDataset(PackDataset, format="tfrecord"):
    """Samples of a TFRecord pack."""


class TarDataset(PackDataset, format="tar"):
    """Samples of a pack of WebDataset tars."""


class ZarrDataset(PackDataset, format="zarr"):
    """Samples of a Zarr pack."""
