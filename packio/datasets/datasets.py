"""Datasets: packs as map-style PyTorch datasets, for any DataLoader and any sampler."""

from __future__ import annotations

import copy
import dataclasses
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from packio.batches import annotated, batches, draws, plans
from packio.batches.annotated import Columns, Samples
from packio.batches.batches import Batch
from packio.batches.draws import Drawn
from packio.batches.plans import Draw, Recipe
from packio.datasets import fields as sample_fields
from packio.datasets import options, outputs, selection
from packio.datasets.fields import Spec
from packio.datasets.outputs import Outputs
from packio.datasets.positions import Positions, checked
from packio.datasets.transforms import Apply
from packio.errors import KeyNotFoundError, OptionError
from packio.images.decoders import MAX_PIXELS, Decoder
from packio.images.decoders._cuda import side_stream
from packio.images.geometry import Geometry
from packio.packs import local_copy as copies
from packio.packs import packs
from packio.packs.packs import Row
from packio.storage.ram import RamCache
from packio.system import workers
from packio.system.threads import Threads, automatic_threads

_WORKERS = 256  # DataLoader workers with a counter of their own
_EPOCH, _REPLACED, _FALLBACKS = range(3)  # rows of the shared counters

Self = TypeVar("Self", bound="PackDataset")


class PackDataset(torch.utils.data.Dataset[Any]):
    """Samples of a pack, decoded, cropped and flipped.

    ``ds[i]`` is one sample. A DataLoader asks for whole batches (``__getitems__``), which are read
    in file order and decoded into one tensor; with ``collate_fn=packio.collate`` that tensor is the
    batch. Works under fork, spawn and forkserver, whatever the parent has read before.

    Args:
        path: A pack: its path or URL, or as `packio.open` gave it.
        crop: What to take of each image and how large: `RandomResizedCrop`, `CenterCrop`,
            `Resize`, `ResizeCenterCrop`, `RandomCrop`; None: the whole image.
        hflip, vflip: Probabilities of mirroring left-right and top-bottom.
        views: Several crops of the same read; the image is then a tuple. Instead of `crop`.
        fidelity: "exact": pixels as Pillow decodes them, resized with antialiasing. "fast": crops
            much larger than their output are decoded small, chroma is upsampled by repeating it,
            and OpenCV resizes, where it is there: above 35 dB to "exact".
        decoder: "auto" (per encoding the fastest that equals Pillow bit for bit), or a name.
            "nvjpeg" is for `Loader` with ``device="cuda"``, which then decodes there.
        mode: "RGB", "GRAY", "RGB_ALPHA" or "UNCHANGED", as torchvision's ImageReadMode.
        fields: "image", "mask", "label", "boxes", "box_labels", "key", "index", or a key of the
            samples' metadata: one name, a tuple, or {name: field}. Default: image, mask and label,
            as far as the pack has them; the bare image where it has neither. See below.
        output: "tensor": (C, H, W), contiguous; "numpy": (H, W, C), contiguous; "pil". Boxes
            are arrays under "pil", too.
        dtype: Of tensors: torch.uint8 (as decoded), or a float type, scaled to 0..1.
        transform: Called with each image; albumentations' too.
        target_transform: Called with each label.
        transforms: Called with image, mask, boxes, box_labels and label, as far as they are among
            the fields, in this order; returns as many. Tensors come to it as torchvision's
            tv_tensors where torchvision is installed, and are handed out as plain ones. Instead of
            `transform`, `target_transform` and `views`.
        ignore_index: Class id in masks where a geometry reaches beyond the image, and all over the
            mask of a sample that has none; one that is not 0..255 makes all masks int32.
        exif_orientation: Turn images upright, with their masks and boxes.
        on_error: "raise", or "skip": a bad sample of a batch is replaced by another of the batch.
        threads: That decode a batch; "auto": the processors that this process may use (by affinity,
            control group and SLURM), divided by LOCAL_WORLD_SIZE and by the DataLoader's workers;
            one where images are smaller than 100 x 100, of which threads make no more together.
        split: Name of a split, in a pack that has splits: the dataset is its samples.
        seed: Of the random numbers; None takes one from torch's generator.
        access: "range", or the container's library, as "lmdb"; None: as the pack recommends, or was
            opened.
        max_pixels: Refuse larger images.
        cache: "ram": keep the bytes of samples, once read, in memory that workers share, with a
            checksum on each use. For packs at URLs and on slow disks; files that are read again and
            again are in the page cache anyway, and raw pixels are mapped: nothing is kept of those.
        cache_bytes: That may be kept so; None: half of the memory available, shared evenly among
            torchrun's processes of this machine. Nothing is thrown out for what comes later.
        local_copy: Folder on a disk of this machine, as "$TMPDIR": the pack is copied there, once
            for all processes, checked, and read from there. Where there is no room, it is read
            where it is, with a warning.

    Every geometry takes the same box of image, mask and boxes, and mirrors them alike; with `views`
    each of them is a tuple, too. A mask has to have the size of its image, as both are stored:

    * mask: (H, W) class ids, to the nearest pixel; palettes are not expanded. uint8, of more than 8
      bits int32, as is a batch with one of these. ``packio.collate`` makes (N, H, W).
    * boxes: (k, 4) float32, XYXY in pixels, clipped to what is seen of the image; box_labels: (k,)
      int64. A box of which nothing is left is dropped, with its label; so is one without width or
      height, or that is not finite.
      ``packio.collate`` makes lists of them.
    * metadata: as packed, also where boxes are dropped; None where a sample has no such key.

    Images and masks that differ in size, as without a crop, `packio.collate` gives as lists.

    Attributes:
        pack: The `packio.Pack`.
        seed, seeded: Of the random numbers, and whether it was given.
        transform, target_transform, transforms: As given; may be set later.

    Raises:
        NotAPackError, UnfinishedPackError, IntegrityError: see `packio.open`.
        OptionError: an argument that cannot be meant.
        MissingPackageError: the decoder's package is not installed.
        CannotCreateError, LockedError: the local copy cannot be made.
    """

    format: str | None = None  # the only container format accepted

    def __init__(
        self,
        path: str | os.PathLike[str] | packs.Pack,
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
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        transforms: Callable[..., Any] | None = None,
        ignore_index: int = 255,
        exif_orientation: bool = True,
        on_error: str = "raise",
        threads: int | str = "auto",
        split: str | None = None,
        seed: int | None = None,
        access: str | None = None,
        max_pixels: int = MAX_PIXELS,
        cache: str | None = None,
        cache_bytes: int | None = None,
        local_copy: str | os.PathLike[str] | None = None,
    ) -> None:
        self._options = {k: v for k, v in locals().items() if k not in ("self", "__class__")}
        options.check(self._options)
        if not isinstance(path, packs.Pack):
            self.pack = self._opened(path, access)
        else:
            self.pack = path if access in (None, path.access) else path.reopened(str(access))
        self._check_format()
        if local_copy is not None:
            self.pack = copies.opened(self.pack, local_copy)
        if cache is not None:
            self.pack.keep_in_ram(cache_bytes)
        self._chosen = None if split is None else Positions(self.pack.split(split))
        self._is_part = False  # whether of what was chosen only some are left
        # mapped here, so that forked workers share the map, and what has been checked in it
        _ = self.pack.raw_rows
        self.transform, self.target_transform = transform, target_transform
        self.transforms = transforms
        self._fields = sample_fields.of_pack(fields, self.pack)
        self._recipe = Recipe(
            tuple(views) if views is not None else (crop,), hflip, vflip,
            Decoder(decoder, mode, max_pixels=max_pixels), exif_orientation, fidelity == "fast",
            frozenset(annotated.FIELDS).intersection(self._fields.names), ignore_index,
        )  # fmt: skip
        self._several = views is not None
        self._outputs = Outputs(self.pack, self._fields, output, several=self._several)
        self._is_little = batches.are_little(self.pack)
        self._output, self._dtype, self._skip = output, dtype, on_error == "skip"
        self._threads: Threads | None = None
        self.seed = seed if seed is not None else int(torch.randint(1 << 62, ()).item())
        self.seeded = seed is not None
        self._counters = _new_counters()
        self._apply = Apply()

    def _opened(self, path: str | os.PathLike[str], access: str | None) -> packs.Pack:
        return packs.open(path, access=access)

    def _check_format(self) -> None:
        found = self.pack.metadata["format"]
        if self.format is not None and found != self.format:
            raise OptionError(
                f"{self.pack.path}: a {found} pack; {type(self).__name__} reads {self.format}, "
                "packio.PackDataset any"
            )

    def __len__(self) -> int:
        return len(self.pack) if self._chosen is None else len(self._chosen.array)

    def __repr__(self) -> str:
        shown = {k: v for k, v in self._options.items() if k != "path" and v is not None}
        options = "".join(f", {k}={v!r}" for k, v in shown.items() if v != _DEFAULTS.get(k))
        part = f"[{len(self)} of {len(self.pack)} samples]" if self._is_part else ""
        return f"{type(self).__name__}({os.fspath(self.pack.path)!r}{options}){part}"

    @property
    def options(self) -> dict[str, Any]:
        """All arguments, by name, as given."""
        return dict(self._options)

    @property
    def classes(self) -> list[str]:
        """Class names; a label is a position in this list."""
        return self.pack.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Label of each class name."""
        return self.pack.class_to_idx

    @property
    def targets(self) -> np.ndarray | None:
        """All labels: (N,) int64 or (N, k) float32, read-only; None if there are none."""
        labels = self.pack.labels
        return labels if labels is None or self._chosen is None else labels[self._chosen.array]

    @property
    def epoch(self) -> int:
        """The epoch whose random numbers are drawn, in all workers."""
        return int(self._counters[_EPOCH, 0])

    def set_epoch(self, epoch: int) -> None:
        """Draw the random numbers of another epoch, also in workers that are running.

        A sampler that shuffles makes other batches in each epoch, and with them other draws. Call
        this before each epoch where batches repeat: without shuffling, or in batches of one.
        """
        self._counters[_EPOCH, 0] = epoch

    @property
    def replaced(self) -> int:
        """Bad samples replaced so far under on_error="skip", in all workers."""
        return int(self._counters[_REPLACED].sum())

    @property
    def fallbacks(self) -> int:
        """Images that Pillow decoded because the chosen decoder could not, in all workers."""
        return int(self._counters[_FALLBACKS].sum())

    @property
    def ram(self) -> RamCache | None:
        """What cache="ram" keeps: its samples, bytes, room, hits and misses, of all processes."""
        return self.pack.ram

    def by_key(self, key: str | bytes) -> Any:
        """The sample with this key, as ``ds[i]``.

        Raises:
            KeyNotFoundError: there is none, or it is not in this part of the pack.
        """
        position = self.pack.find(key)
        if self._chosen is not None and position not in self._chosen.array:
            raise KeyNotFoundError(
                f"{self.pack.path}: {os.fsdecode(key)!r} is in the pack, but not in this part of "
                f"it ({len(self)} of {len(self.pack)} samples); ask a dataset of the whole pack"
            )
        return self._one(self.pack.row(position), None)

    def with_options(self: Self, **options: Any) -> Self:
        """The same samples with some options changed, as crop=… for evaluation.

        Raises:
            OptionError: there is no such option; or split= is to change of some samples of one.
        """
        unknown = sorted(set(options) - (set(self._options) - {"path"}))
        if unknown:
            raise OptionError(f"no such option: {', '.join(unknown)}")
        names = ("transform", "target_transform", "transforms")
        current = {name: getattr(self, name) for name in names}
        split = self._options["split"]
        if self._is_part and options.get("split", split) != split:
            raise OptionError("split=: this is a part of a dataset; take the split first")
        same = {"path": self.pack, "seed": self.seed, **current}
        made = type(self)(**{**self._options, **same, **options})
        made.seeded = made.seeded and (self.seeded or "seed" in options)
        if self._is_part:
            vars(made).update(_chosen=self._chosen, _is_part=True)
        return made

    def where(
        self: Self,
        /,
        *,
        label: selection.Labels | None = None,
        key: selection.Keys | None = None,
        **meta: Any,
    ) -> Self:
        """Those of the samples that match all that is asked for, in their order; nothing is copied.

        Args:
            label: Name or index of a class, or several; label vectors are of each class whose entry
                is above 0.
            key: A key, or a glob as "n01440764/*" (`fnmatch.fnmatchcase`: * matches / as well), or
                several; as bytes, too.
            meta: Name of the samples' metadata → a value, or a function that is called with it; it
                is None where a sample has no such name.

        Returns:
            A dataset with the same options and an epoch of its own.

        Raises:
            OptionError: there is no such class or name in the metadata, or no sample matches.
            KeyNotFoundError: the pack has no such key.
        """
        among = self._positions(np.arange(len(self)))
        (found,) = selection.matching([selection.Part(self.pack, among, label)], key, meta)
        if not found.any():
            raise selection.none_has(len(self), label, key, meta, self.pack.path)
        return self.subset(found)

    def subset(self: Self, indices: Sequence[int] | np.ndarray | torch.Tensor) -> Self:
        """The samples at some indices, in the order given; nothing is copied.

        Args:
            indices: Positions in this dataset, one perhaps several times; or a bool for each.

        Returns:
            A dataset with the same options and an epoch of its own.

        Raises:
            OptionError: no integers, or not as many bools as there are samples.
            IndexError: an index is out of range.
        """
        made = copy.copy(self)
        chosen = Positions(self._positions(checked(len(self), indices)))
        recipe = dataclasses.replace(self._recipe, decoder=copy.copy(self._recipe.decoder))
        own = {"_recipe": recipe, "_counters": _new_counters()}  # each counts for itself
        vars(made).update(_chosen=chosen, _is_part=True, **own)
        made.set_epoch(self.epoch)
        return made

    def __getitem__(self, index: int) -> Any:
        position = index
        if self._chosen is not None:
            if not -len(self) <= index < len(self):
                raise IndexError(f"index {index} is out of range: {len(self)} samples")
            position = self._chosen.array.item(index)
        return self._one(self.pack.row(position), index)

    def _one(self, row: Row, index: int | None) -> Any:
        made = self._made_one(row, index) if self._recipe.fields else {}
        meta = (self._fields.meta and self.pack.meta(row.position)) or {}
        values: dict[str, Any] = {}
        for name in self._fields.names:
            if name in self._recipe.fields:
                values[name] = tuple(made[name]) if self._several else made[name][0]
            elif name == "label":
                label = self.pack.label(row.position)
                values[name] = label if isinstance(label, int) else torch.as_tensor(label)
            elif name in ("key", "index"):
                values[name] = row.position if name == "index" else self.pack.key(row.position)
            else:
                values[name] = meta.get(name)
        return self._fields.assemble(self._transformed(values))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Samples of a batch; the images are views of one tensor where they are all alike.

        Args:
            indices: Positions in the dataset, in the batch's order; one may be there twice.

        Returns:
            A list of samples, as ``ds[i]`` gives them; `packio.collate` makes a batch of it.

        Raises:
            DecodeError, IntegrityError: a sample is bad, and on_error is "raise", or all are.
        """
        return self._samples(*self._made(indices, None))

    @property
    def decodes_batches(self) -> bool:
        """Whether the decoder decodes many images at once on a device: for `gather`, `Loader`."""
        return self._recipe.decoder.decodes_batches

    def gather(
        self, indices: Sequence[int] | np.ndarray, *, out: torch.Tensor | None = None,
        device: torch.device | str | None = None,
    ) -> Any:  # fmt: skip
        """Make what `packio.collate` makes of ``__getitems__(indices)``, without the samples.

        Args:
            indices: As of `__getitems__`.
            out: Where the images go, again and again: (N, C, H, W), contiguous, of the dtype asked
                for.
            device: Where images are decoded and stay, with a decoder that `decodes_batches`;
                transforms get them there. All else stays in memory.

        Raises:
            DecodeError, IntegrityError: see `__getitems__`.
            OptionError: ``out`` or ``device`` does not fit, or the images are no one tensor.
        """
        if out is not None and (self._several or not self._is_plain or self._output != "tensor"):
            raise OptionError("out=: expected a dataset of tensors without views or transforms")
        if device is None:
            return self._gathered(indices, out)
        if out is not None or self._output != "tensor" or not self.decodes_batches:
            raise OptionError(
                f"device=: decoder={self._options['decoder']!r}, output={self._output!r}; expected "
                "a decoder of batches, as 'nvjpeg', output='tensor', and no out="
            )
        with side_stream(torch.device(device)) as numbered:
            return self._gathered(indices, None, numbered)

    def _gathered(
        self, indices: Sequence[int] | np.ndarray, out: torch.Tensor | None,
        device: torch.device | None = None,
    ) -> Any:  # fmt: skip
        made, positions = self._made(indices, out, device)
        if not self._is_plain:
            return self._samples(made, positions).columns()
        return self._outputs.batch(made, positions)

    @property
    def _is_plain(self) -> bool:
        return self.transform is None and self.target_transform is None and self.transforms is None

    def _samples(self, made: Columns, positions: np.ndarray) -> Batch:
        columns = self._outputs.columns(made, positions)
        samples = self._fields.samples(columns)
        if self._is_plain:
            return Batch(samples, lambda: self._outputs.batch(made, positions, columns))
        each = [self._transformed(self._fields.take_apart(sample)) for sample in samples]
        samples = [self._fields.assemble(values) for values in each]
        return Batch(samples, lambda: self._outputs.batch_of(each))

    def _made(
        self, indices: Sequence[int] | np.ndarray, out: torch.Tensor | None,
        device: torch.device | None = None,
    ) -> tuple[Columns, np.ndarray]:  # fmt: skip
        """What is decoded or moved, a column a view, and the positions of the samples it is of."""
        workers.settle()
        positions = self._positions(indices)
        if not self._recipe.fields:
            return {}, positions
        made = self._make(positions, self._draw(indices), self._decoding_threads(), out, device)
        if made.errors:
            positions = self._replace(made, positions)
        return made.columns, positions

    def _positions(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        if self._chosen is None:
            return self.pack.positions(indices)
        chosen: np.ndarray = self._chosen.array[np.asarray(indices, np.int64)]
        return chosen

    def _make(
        self, positions: np.ndarray, draw: Draw, threads: Threads | None, out: torch.Tensor | None,
        device: torch.device | None = None,
    ) -> Samples:  # fmt: skip
        """What is decoded or moved of some samples, bad ones among them."""
        given = None if self._dtype in options.FLOATS else out
        before = self._recipe.decoder.fallbacks
        try:
            made = annotated.make(self.pack, self._recipe, positions, draw, threads, given, device)
        finally:
            self._count_fallbacks(before)
        columns = made.columns
        if "image" in columns:
            images = columns["image"]
            columns["image"] = [outputs.scaled(view, self._dtype, out) for view in images]
        return made

    def _draw(self, indices: Sequence[int] | np.ndarray) -> Draw:
        if not self._is_random():
            return Draw(0, np.zeros(len(indices), np.int64))
        return drawn(indices, self.seed, self.epoch)

    def _made_one(self, row: Row, index: int | None) -> dict[str, list[Any]]:
        """What is decoded or moved of one sample, a value a view, in the form asked for."""
        workers.settle()
        if isinstance(index, Drawn) or not self._is_random():
            draw = self._draw([index if index is not None else 0])
        else:
            key = int(torch.empty((), dtype=torch.int64).random_())
            draw = Draw(key, np.zeros(1, np.int64))
        before = self._recipe.decoder.fallbacks
        try:
            made = annotated.make_one(self.pack, self._recipe, row, draw)
        finally:
            self._count_fallbacks(before)
        if "image" in made:
            made["image"] = [outputs.scaled(view, self._dtype) for view in made["image"]]
        if self._output == "tensor":
            return made
        return {n: [outputs.values(n, [v], self._output)[0] for v in made[n]] for n in made}

    def _is_random(self) -> bool:
        recipe = self._recipe
        return bool(recipe.hflip or recipe.vflip or any(v and v.draws for v in recipe.views))

    def _decoding_threads(self) -> Threads | None:
        wanted = self._options["threads"]
        if wanted == "auto" and self._is_little:
            return None
        count = automatic_threads() if wanted == "auto" else int(wanted)
        if count < 2:
            return None
        if self._threads is None or self._threads.count != count:
            self._threads = Threads(count)
        return self._threads

    def _count_fallbacks(self, before: int) -> None:
        if self._recipe.decoder.fallbacks != before:
            self._count(_FALLBACKS, self._recipe.decoder.fallbacks - before)

    def _replace(self, made: Samples, positions: np.ndarray) -> np.ndarray:
        """Put a good sample of the batch in the place of each bad one; count and report it."""
        errors = made.errors
        if not self._skip or len(errors) == len(positions):
            raise errors[min(errors)]
        source = annotated.replace(made)
        self._report([error for _, error in sorted(errors.items())])
        return positions[source]

    def _report(self, errors: Sequence[Exception]) -> None:
        """Samples of a batch have been replaced: say so, and count them."""
        for error in errors:
            warnings.warn(f"replaced by another sample of its batch: {error}", stacklevel=5)
        self._count(_REPLACED, len(errors))

    def _count(self, counter: int, number: int) -> None:
        info = torch.utils.data.get_worker_info()
        slot = 0 if info is None else 1 + info.id % _WORKERS  # one writer each: nothing is lost
        self._counters[counter, slot] += number

    def _transformed(self, values: dict[str, Any]) -> dict[str, Any]:
        if self.transforms is not None:
            values |= self._apply.joint(self.transforms, values)
        if self.transform is not None and "image" in values:
            image = values["image"]
            views = image if self._several else (image,)
            done = tuple([self._apply(self.transform, view) for view in views])
            values["image"] = done if self._several else done[0]
        if self.target_transform is not None and "label" in values:
            values["label"] = self.target_transform(values["label"])
        return values


def drawn(indices: Sequence[int] | np.ndarray, seed: int, epoch: int) -> Draw:
    """What a batch draws: by position in the epoch where its indices say it, else by slot.

    Args:
        indices: Of its samples.
        seed: Of the dataset.
        epoch: Of the dataset, for indices that do not say theirs.
    """
    known = [i for i in indices if isinstance(i, Drawn)]
    if len(known) == len(indices) and len({i.epoch for i in known}) == 1:
        return plans.by_position(seed, known[0].epoch, [i.position for i in known])
    return Draw(draws.mix(seed, epoch, draws.digest(indices)), np.arange(len(indices)))


class FolderDataset(PackDataset):
    """Images of a folder that is not packed; see `PackDataset` for the arguments.

    The folder is laid out as torchvision's ImageFolder wants it. When first opened, every file is
    read once, in threads, for its header and checksum; what is found is kept in the user's cache
    (``$PACKIO_CACHE_DIR``, or ``~/.cache/packio``), nothing beside the images. Opening it later
    looks at the size and modification time of each file and reads those that have changed.

    Gives the same tensors and draws as a pack of the same folder. Each read opens and closes a
    file: little beside decoding where the files are in memory; from disks and network storage,
    what a file's opening costs there. Opening the dataset looks at every file.

    Raises:
        SourceError: no folder of class folders of images.
        BadImagesError: images that cannot be read; with on_error="skip" they are left out, with a
            warning.
        CannotCreateError: the cache cannot be written.
    """

    format = "folder"

    def _opened(self, path: str | os.PathLike[str], access: str | None) -> packs.Pack:
        from packio.datasets import folders

        found = folders.located(path, skip=self._options["on_error"] == "skip")
        return packs.Pack(path, access=access, located=found)


class Hdf5Dataset(PackDataset):
    """Samples of an HDF5 pack; see `PackDataset` for the arguments."""

    format = "hdf5"


class LmdbDataset(PackDataset):
    """Samples of an LMDB pack; see `PackDataset` for the arguments."""

    format = "lmdb"


class N5Dataset(PackDataset):
    """Samples of an N5 pack; see `PackDataset` for the arguments."""

    format = "n5"


class PthDataset(PackDataset):
    """Samples of a pack of .pth shards; see `PackDataset` for the arguments."""

    format = "pth"


class RecordIODataset(PackDataset):
    """Samples of a RecordIO pack; see `PackDataset` for the arguments."""

    format = "recordio"


class TFRecordDataset(PackDataset):
    """Samples of a TFRecord pack; see `PackDataset` for the arguments."""

    format = "tfrecord"


class TarDataset(PackDataset):
    """Samples of a pack of WebDataset tars; see `PackDataset` for the arguments."""

    format = "tar"


class ZarrDataset(PackDataset):
    """Samples of a Zarr pack; see `PackDataset` for the arguments."""

    format = "zarr"


def _new_counters() -> torch.Tensor:
    counters = torch.zeros(3, _WORKERS + 1, dtype=torch.int64)
    counters.share_memory_()  # type: ignore[no-untyped-call]  # torch's own
    return counters


_DEFAULTS: dict[str, Any] = PackDataset.__init__.__kwdefaults__ or {}
