"""Batches on their way to a device: copied ahead on a stream of their own, then normalised."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, cast

import torch

from packio.batches.collating import collate
from packio.errors import OptionError
from packio.images import floats
from packio.images.tensors import map_tensors
from packio.system import buffers

DTYPES = (torch.uint8, *floats.DTYPES)
PIXELS = (torch.uint8, torch.uint16, torch.float64, *floats.DTYPES)  # types of images
FORMATS = (torch.contiguous_format, torch.channels_last)


@dataclasses.dataclass(frozen=True)
class Preparation:
    """Work on the images of a batch, (N, C, H, W), done on the device. None changes nothing."""

    dtype: torch.dtype | None = None  # a float type scales integers to 0..1
    memory_format: torch.memory_format | None = None
    normalize: floats.Means | None = None

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in DTYPES:
            raise OptionError(f"dtype={self.dtype!r}: expected one of {DTYPES}")
        if self.memory_format is not None and self.memory_format not in FORMATS:
            raise OptionError(f"memory_format={self.memory_format!r}: expected one of {FORMATS}")
        given = self.normalize
        if given is not None and self.dtype == torch.uint8:
            raise OptionError("normalize= needs a float type; dtype is torch.uint8")
        object.__setattr__(self, "normalize", floats.as_normalize(given))

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """Prepare one tensor on its device; a tensor of other dimensions stays as it is."""
        if image.ndim == 3:  # one of several sizes
            return self(image[None])[0]
        if image.ndim != 4:
            return image
        normalize = cast("floats.Normalize | None", self.normalize)
        dtype = self.dtype or (torch.float32 if normalize is not None else image.dtype)
        last = image.is_contiguous(memory_format=torch.channels_last)
        kept = torch.channels_last if last and not image.is_contiguous() else FORMATS[0]
        layout = self.memory_format or kept
        if not dtype.is_floating_point or (image.dtype == dtype and normalize is None):
            return image.to(dtype).contiguous(memory_format=layout)
        if image.device.type != "cpu":
            return floats.compute(image.contiguous(memory_format=layout), dtype, normalize)
        n, c, h, w = image.shape
        shape = (n, c, h, w) if layout == FORMATS[0] else (n, h, w, c)
        out = buffers.new_tensor(shape, dtype)
        out = out if layout == FORMATS[0] else out.permute(0, 3, 1, 2)
        return floats.to_floats(image, dtype, normalize, out)


def find_images(dataset: Any, collate_fn: Any) -> Sequence[Any] | None:
    """Where the images of a loader's batches are; None: nobody knows."""
    is_ours = collate_fn in (None, collate, torch.utils.data.default_collate)
    return getattr(dataset, "image_places", None) if is_ours else None


class DevicePrefetcher:
    """Put batches of any loader onto a device: the next one is copied while this one is used.

    On a GPU, copying and preparing run on a stream of this object. The current stream waits for the
    copy, and memory is not reused before the current stream has finished with it. Tensors should be
    in pinned memory (``pin_memory=True`` of a DataLoader); otherwise copying blocks. On the CPU the
    results are the same, without streams.

    Args:
        loader: Yields batches: tensors, or tuples, lists and mappings of tensors, nested.
        device: The device.
        dtype, memory_format, normalize: Preparation of images: their type, their layout, and (mean,
            std) of each channel, or a `packio.Normalize`; None leaves them as they are.
        images_at: Positions in a batch, or its keys, of the images to prepare; (...,): the batch is
            images. They are (N, C, H, W), or a list of (C, H, W). None: where the loader's dataset
            has its field "image"; in a loader of others, or with a ``collate_fn``, all tensors
            (N, C, H, W) of uint8, uint16 or floats.
        batch_transform: Called with each batch on the device and on that stream, for example mixup.

    Raises:
        OptionError: a value makes no sense, there is no such GPU, or a batch has no images.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        device: torch.device | str,
        *,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
        normalize: floats.Means | None = None,
        batch_transform: Callable[[Any], Any] | None = None,
        images_at: Sequence[Any] | None = None,
    ) -> None:
        self.loader: Iterable[Any] = loader
        self.device: torch.device = torch.device(device)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise OptionError(f"device={device}: PyTorch {torch.__version__} finds no GPU here")
        self._prepare = Preparation(dtype, memory_format, normalize)
        self._transform = batch_transform
        if images_at is None:  # a foreign loader may have no dataset, or a foreign one
            own = getattr(loader, "dataset", None)
            images_at = find_images(own, getattr(loader, "collate_fn", None))
        self._image_places = images_at
        self._stream: Any = None  # a torch.cuda.Stream, once there is one

    def __len__(self) -> int:
        return len(cast("Sized", self.loader))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)  # its dataset, sampler, state_dict, …

    def __iter__(self) -> Iterator[Any]:
        if self.device.type != "cuda":
            for batch in self.loader:
                yield self._sent(batch)
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch's own
        waiting: Any = None
        for batch in self.loader:
            ready = self._ahead(batch)
            if waiting is not None:
                yield self._arrived(*waiting)
            waiting = ready
        if waiting is not None:
            yield self._arrived(*waiting)

    def _sent(self, batch: Any) -> Any:
        def send(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.is_cuda and self._stream is not None:  # its memory is another stream's
                tensor.record_stream(self._stream)
            return tensor.to(self.device, non_blocking=True)

        found: list[torch.Tensor] = []

        def prepare(image: torch.Tensor) -> torch.Tensor:
            found.append(image)
            return self._prepare(image)

        def prepare_batch(tensor: torch.Tensor) -> torch.Tensor:
            return prepare(tensor) if tensor.ndim == 4 and tensor.dtype in PIXELS else tensor

        sent, at = map_tensors(batch, send), self._image_places
        if at == (...,):
            sent = map_tensors(sent, prepare)
        elif at is not None and isinstance(sent, dict):
            sent = {k: map_tensors(v, prepare) if k in at else v for k, v in sent.items()}
        elif at is not None and type(sent) in (tuple, list):
            parts = (map_tensors(v, prepare) if i in at else v for i, v in enumerate(sent))
            sent = type(sent)(parts)
        else:
            sent = map_tensors(sent, prepare_batch)
        if not found and self._prepare != Preparation():
            raise OptionError(
                "dtype=, normalize= or memory_format=: no images (N, C, H, W) in the batch; say "
                "where they are by packio.DevicePrefetcher(loader, device, images_at=…)"
            )
        return sent if self._transform is None else self._transform(sent)

    def _ahead(self, batch: Any) -> tuple[Any, torch.cuda.Event]:
        """Copy a batch on our stream, after all work that the current stream has so far."""
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            sent = self._sent(batch)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own
            arrived.record(self._stream)
        return sent, arrived

    def _arrived(self, batch: Any, arrived: torch.cuda.Event) -> Any:
        """Let the current stream wait for a batch, whose memory then stays until it is used."""
        current = torch.cuda.current_stream(self.device)
        current.wait_event(arrived)

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.is_cuda:
                tensor.record_stream(current)
            return tensor

        return map_tensors(batch, keep)
