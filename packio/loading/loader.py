"""`Loader`: batches made by threads of this process, or by DataLoader's workers, on any device."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Integral
from typing import Any, cast

import torch

from packio.batches.collating import collate as packio_collate
from packio.datasets.dataset import Dataset
from packio.datasets.lookahead import add_lookahead, unwrap_subset, wrap_subset
from packio.errors import OptionError
from packio.images import floats, tensors
from packio.images.devices import resolve_device
from packio.loading.cursor import Epoch, EpochBatches, ResumableLoader, make_cursor
from packio.loading.devices import DevicePrefetcher, find_images
from packio.loading.prefetching import prefetch
from packio.loading.samplers import DefaultSampler, check_length
from packio.packs.opening import Pack
from packio.system import signatures, workers

_AHEAD = 2  # batches, as of DataLoader
_OF_THE_DATASET = "it is an argument of the dataset: packio.PackDataset(path, …)"
_HINTS = {  # arguments of other loaders → what to write instead
    signatures.BY_POSITION: "{kind}(dataset, batch_size, shuffle=…): all but two by name",
    "workers": "num_workers= are worker processes",
    "seed": "order_seed= is that of the order; crops and flips have the dataset's: "
    "packio.LmdbDataset(…, seed=…)",
    "in_order": "batches always come in order; leave it out",
    "pin_memory_device": "device= is where batches go, through pinned memory",
    **dict.fromkeys(
        ("crop", "hflip", "vflip", "views", "transform", "target_transform", "transforms",
         "decoder", "fidelity", "fields", "mode", "output", "on_error", "split"), _OF_THE_DATASET,
    ),
}  # fmt: skip


class Loader(ResumableLoader):
    """Load batches of a dataset, with the arguments of torch's DataLoader.

    With ``num_workers=0``, nothing passes between processes. A thread makes batches ahead, and a
    dataset of packio decodes each batch in ``threads`` threads. Functions of yours (transforms,
    ``collate_fn``, a dataset that is not packio's) run in the calling thread instead, so that their
    random numbers are the same in each run; workers, or a ``prefetch_factor``, make batches ahead
    for them too. With workers, torch's DataLoader runs.

    Without a sampler, a `ShuffleSampler` gives the order. All ranks share one order; rank and world
    size are those of torch.distributed when an epoch begins. Each iteration is another epoch of
    sampler and dataset. `state_dict` tells the position of the iteration that handed out a batch
    last.

    A step is a batch of each rank. Steps are counted from 0 in each epoch, also in an epoch that
    was resumed. A step of ``skip`` keeps its number and its samples, and is not handed out, on no
    rank; all other batches are what they would be. A state says what is left out. A loader leaves
    out what its ``skip`` says and what a state says that it has loaded. It refuses a state whose
    run has trained on steps of ``skip``.

    Args:
        dataset: A map-style dataset; datasets of packio make whole batches at once.
        batch_size: Samples in a batch.
        shuffle: Whether the order is random. Excludes ``sampler``.
        window: Shards that are read at a time, in random order; None: samples of all shards. For
            packs whose shards are far away; see `ShuffleSampler`. Only with ``shuffle``.
        sampler: Yields the indices of one epoch at each iteration.
        batch_sampler: Yields lists of indices, as `BucketSampler`. Excludes batch_size, shuffle,
            sampler and drop_last.
        num_workers: Worker processes; 0 makes batches in threads of this process.
        threads: Threads that decode a batch of a packio dataset; None leaves it to the dataset.
        drop_last: Leave out a last batch that is smaller than the others.
        even: Of several ranks. True: all take as many steps, as training needs it; some samples
            come twice for that. False: every sample comes once, as evaluation needs it; ranks may
            get a sample, or a batch, less than others. None: True, with a warning where samples
            come twice without ``shuffle``.
        collate_fn: Makes a batch of a list of samples; None: `packio.collate`.
        prefetch_factor: Batches made ahead, by each worker if there are any. None: 2, or 0 where
            functions of yours run in the calling thread.
        pin_memory: Put batches into pinned memory; "auto": if ``device`` is a GPU.
        order_seed: Seed of the order; the same on all ranks. None: the seed of the dataset if there
            is one process, and 0 if there are several. Crops and flips have the dataset's seed.
        generator: Gives the seed of the order if there is one process, and the workers' seeds.
        persistent_workers, timeout, worker_init_fn, multiprocessing_context: As in torch's
            DataLoader; only with workers.
        skip: Steps to leave out: (epoch, first, last) each, batches first to last of that epoch, as
            ``packio replay`` shows them; see below.
        device: Device that batches are copied to before they are used; None leaves them in memory.
            A dataset with ``decoder="nvjpeg"`` decodes the JPEGs of a batch there at once, if there
            is no ``collate_fn``.
        dtype, memory_format, normalize, batch_transform: Work on the device; see
            `DevicePrefetcher`. Without a device it is done here; ``transform=packio.Normalize(mean,
            std)`` of the dataset has it done by the threads or workers that decode.

    Attributes:
        dataset, sampler, batch_sampler, batch_size, drop_last: As given, or as made.
        num_workers, prefetch_factor, pin_memory, collate_fn, generator: As given, or as made.
        persistent_workers, timeout, worker_init_fn, multiprocessing_context: As given.
        device: The torch.device that batches go to; None: they stay in memory.
        options: All arguments by name, as given.

    Raises:
        OptionError: arguments exclude each other, a value makes no sense, or the sampler was made
            for a dataset of another length.
    """

    @signatures.refuse_others(_HINTS)
    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        *,
        shuffle: bool = False,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        num_workers: int = 0,
        threads: int | str | None = None,
        drop_last: bool = False,
        even: bool | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        prefetch_factor: int | None = None,
        pin_memory: bool | str = "auto",
        order_seed: int | None = None,
        window: int | None = None,
        skip: Sequence[tuple[int, int, int]] | None = None,
        generator: torch.Generator | None = None,
        persistent_workers: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
        normalize: floats.Means | None = None,
        batch_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.options: dict[str, Any] = {k: v for k, v in locals().items() if k != "self"}
        decodes = getattr(dataset, "decodes_batches", False)
        _check_options(self.options, decodes=decodes)
        if threads is not None:
            dataset = dataset.with_options(threads=threads)
        check_length(dataset, sampler if batch_sampler is None else batch_sampler)
        dataset = wrap_subset(dataset)
        self.dataset: Any = dataset
        self.batch_size: int = batch_size
        self.num_workers: int = num_workers
        if sampler is None and batch_sampler is None:
            alone = functools.partial(_seed, dataset, generator)
            sampler = DefaultSampler(
                dataset, order_seed, alone, shuffle=shuffle, even=even, window=window
            )
        if batch_sampler is None:
            batch_sampler = EpochBatches(cast("Any", sampler), batch_size, drop_last)
        self.sampler: Iterable[int] | None = sampler
        self.batch_sampler: Iterable[Sequence[int]] = batch_sampler
        self._collate = collate_fn
        # accelerate's skip_first_batches makes a DataLoader of these, to resume
        self.drop_last: bool = drop_last
        self.collate_fn: Callable[[list[Any]], Any] = collate_fn or packio_collate
        self.generator: torch.Generator | None = generator
        self.timeout: float = timeout
        self.persistent_workers: bool = persistent_workers
        self.worker_init_fn: Callable[[int], None] | None = worker_init_fn
        self.multiprocessing_context: Any = multiprocessing_context
        self._cursor = make_cursor(dataset, sampler, batch_sampler, skip or ())
        self.device: torch.device | None = None if device is None else torch.device(device)
        self._send: Callable[[Iterable[Any]], Iterable[Any]] = iter
        changes = dtype, memory_format, normalize, batch_transform
        if self.device is not None or any(change is not None for change in changes):
            self._send = functools.partial(
                DevicePrefetcher, device=self.device or "cpu", dtype=dtype,
                memory_format=memory_format, normalize=normalize, batch_transform=batch_transform,
                images_at=find_images(dataset, collate_fn),
            )  # fmt: skip
            self._send([])  # checks the arguments now
        on_gpu = self.device is not None and self.device.type == "cuda"
        self.pin_memory: bool = on_gpu if pin_memory == "auto" else bool(pin_memory)
        self._decoding = self.device if decodes else None
        self._ahead = prefetch_factor
        if prefetch_factor is None and (num_workers or _runs_only_packio(dataset, collate_fn)):
            self._ahead = _AHEAD
        self.prefetch_factor: int | None = self._ahead if num_workers else None
        self._idle: _Workers | None = None  # persistent workers between two epochs
        self._new_workers = functools.partial(
            _Workers, dataset, num_workers=num_workers, pin_memory=self.pin_memory,
            collate_fn=self.collate_fn, prefetch_factor=self._ahead,
            persistent_workers=persistent_workers, timeout=timeout,
            multiprocessing_context=multiprocessing_context,
        )  # fmt: skip
        self._is_made = True

    def __setattr__(self, name: str, value: Any) -> None:
        is_made = "_is_made" in vars(self) and name != "worker_init_fn"  # Lightning sets that one
        if is_made and (name in self.options or name == "options"):
            raise OptionError(
                f"Loader.{name} cannot be set, it would do nothing; make another loader: "
                f"packio.Loader(…, {name}=…)"
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        said = {
            n: v for n, v in self.options.items() if n != "dataset" and v != defaults[n].default
        }
        return (
            f"Loader({', '.join([repr(self.dataset), *(f'{n}={v!r}' for n, v in said.items())])})"
        )

    def __iter__(self) -> Iterator[Any]:
        epoch = self._cursor.begin()
        with contextlib.ExitStack() as stack:
            batches = self._send(stack.enter_context(self._source(epoch)))
            yield from self._cursor.deliver(epoch, batches)

    @contextlib.contextmanager
    def _source(self, epoch: Epoch) -> Iterator[Iterable[Any]]:
        """Make the batches of an epoch: in workers, in a thread, or when they are asked for."""
        indices = epoch.batches
        if getattr(unwrap_subset(self.dataset), "looks_ahead", False):
            indices = add_lookahead(indices, self.num_workers)
        if self.num_workers:
            with self._lend_workers(resumed=epoch.resumed) as lent:
                yield lent.start(indices)
            return
        device = resolve_device(self._decoding) if self._decoding is not None else None
        made = _made(self.dataset, self._collate, indices, device, pin=self.pin_memory)
        if self._ahead is None:
            yield made
            return
        # Settles torch's number of threads for this thread. Decoding threads change the default for
        # moments, and a thread whose first use of torch falls into one would keep to one thread.
        torch.get_num_threads()
        with prefetch(made, self._ahead) as ahead:
            yield ahead

    @contextlib.contextmanager
    def _lend_workers(self, *, resumed: bool) -> Iterator[_Workers]:
        """Lend the persistent workers to an epoch, or make others."""
        # The draw of a resumed epoch is one that the checkpoint's random numbers have behind them.
        with torch.random.fork_rng(devices=[], enabled=resumed):
            empty = torch.empty((), dtype=torch.int64, device="cpu")
            base = int(empty.random_(generator=self.generator))
        lent, self._idle = self._idle, None  # another iteration meanwhile starts others
        seed = getattr(unwrap_subset(self.dataset), "seed", None)
        if lent is None or lent.seed != seed:  # the workers' copies of the dataset have a seed, too
            begin = functools.partial(workers.begin, self.worker_init_fn)
            lent = self._new_workers(seed=seed, base=base, worker_init_fn=begin)
        try:
            yield lent
        finally:
            if lent.loader.persistent_workers:
                self._idle = lent


class _Indices:
    """Batches of indices of the running epoch, as torch's DataLoader asks for them."""

    running: Iterator[list[int]] = iter(())

    def __iter__(self) -> Iterator[list[int]]:
        return self.running


class _Workers:
    """Worker processes, which torch's DataLoader runs; one epoch at a time."""

    def __init__(self, dataset: Any, *, seed: int | None, base: int, **options: Any) -> None:
        self.seed, self._indices = seed, _Indices()
        self.loader: torch.utils.data.DataLoader[Any] = torch.utils.data.DataLoader(
            dataset, batch_sampler=cast("Any", self._indices),
            generator=torch.Generator().manual_seed(base), **options,
        )  # fmt: skip

    def start(self, batches: Iterator[list[int]]) -> Iterator[Any]:
        """Start the workers; persistent workers are asked for another epoch."""
        self._indices.running = batches
        try:
            return iter(self.loader)
        except Exception as error:
            if not any(sign in repr(error) for sign in ("ickl", "local object")):
                raise
            raise OptionError(
                f"{type(self.loader.dataset).__name__}: cannot be sent to workers that are not "
                f"forked: {error}; define its transforms and collate_fn at the top of a module, "
                "or take num_workers=0"
            ) from error


def _seed(dataset: Any, generator: torch.Generator | None) -> int:
    """Choose the seed of the order of a single process: given, drawn before, or drawn now."""
    source = unwrap_subset(dataset)
    if generator is None and isinstance(getattr(source, "seed", None), int):
        return int(source.seed)
    return int(torch.randint(1 << 62, (), generator=generator, device="cpu").item())


def _runs_only_packio(dataset: Any, collate: Callable[[list[Any]], Any] | None) -> bool:
    """Tell whether batches are made without functions of the user's, which may draw numbers."""
    source = unwrap_subset(dataset)
    if collate is not None or not isinstance(source, Dataset):
        return False
    own = source._overrides("__getitem__", "__getitems__")  # noqa: SLF001 (no business of a dataset's user)
    return source._is_plain and not own  # noqa: SLF001 (as above)


def _made(
    dataset: Any, collate: Callable[[list[Any]], Any] | None, indices: Iterable[list[int]],
    device: torch.device | None, *, pin: bool,
) -> Iterator[Any]:  # fmt: skip
    """Make batches, in pinned memory if asked for, or on the device that decodes."""
    gather = getattr(dataset, "gather", None) if collate is None else None
    if gather is not None and device is not None:
        gather = functools.partial(gather, device=device)
    for batch in indices:
        with tensors.pin_batches(on=pin):
            if gather is not None:
                made = gather(batch)
            else:
                made = (collate or packio_collate)(_samples(dataset, batch))
        yield tensors.map_tensors(made, tensors.pin) if pin else made


def _samples(dataset: Any, indices: list[int]) -> list[Any]:
    together = getattr(dataset, "__getitems__", None)
    if together is not None:
        return cast("list[Any]", together(indices))
    samples = []
    for index in indices:
        try:
            samples.append(dataset[index])
        except Exception as error:
            if hasattr(error, "add_note"):  # Python 3.11
                error.add_note(f"sample {index} of {type(dataset).__name__}")
            raise
    return samples


def _check_options(given: dict[str, Any], *, decodes: bool) -> None:
    dataset, iterable = given["dataset"], torch.utils.data.IterableDataset
    kinds = (str, bytes, os.PathLike, Pack, type, iterable)
    if isinstance(dataset, kinds) or not hasattr(dataset, "__getitem__"):
        raise OptionError(
            f"dataset={dataset!r}: expected a map-style dataset: "
            "packio.Loader(packio.PackDataset('train.lmdb', crop=…), …)"
        )
    for name, least in (("batch_size", 1), ("num_workers", 0), ("prefetch_factor", 1)):
        number = given[name]
        if number is None and name == "batch_size":
            raise OptionError(
                "batch_size=None: packio.Loader makes batches; a sampler that yields batches is "
                "batch_sampler="
            )
        if number is not None and (type(number) is bool or not isinstance(number, Integral)
                                   or number < least):  # fmt: skip
            raise OptionError(f"{name}={number!r}: expected an int of at least {least}")
    for name in ("shuffle", "drop_last", "persistent_workers"):
        if type(given[name]) is not bool:
            raise OptionError(f"{name}={given[name]!r}: expected True or False")
    problems = {
        "batch_sampler= excludes batch_size, shuffle, sampler and drop_last": (
            given["batch_sampler"] is not None
            and (given["sampler"] is not None or given["batch_size"] != 1
                 or given["shuffle"] or given["drop_last"])
        ),
        "sampler= yields batches: give it as batch_sampler=": (
            getattr(given["sampler"], "yields_batches", False)
        ),
        "sampler= and batch_sampler= exclude shuffle=, order_seed=, window= and even=": (
            (given["sampler"] is not None or given["batch_sampler"] is not None)
            and (given["shuffle"]
                 or any(given[n] is not None for n in ("order_seed", "window", "even")))
        ),
        "a decoder of batches, as 'nvjpeg', works in this process only; expected num_workers=0": (
            decodes and given["num_workers"]
        ),
        "threads= needs a dataset of packio": (
            given["threads"] is not None and not hasattr(given["dataset"], "with_options")
        ),
        "dtype= and normalize= need images that are tensors, as with output='tensor'": (
            (given["dtype"] is not None or given["normalize"] is not None)
            and not getattr(unwrap_subset(given["dataset"]), "gives_tensors", True)
        ),
        "images would be normalised twice: leave out normalize=, or Normalize in the dataset's "
        "transform=": (
            given["normalize"] is not None
            and getattr(unwrap_subset(given["dataset"]), "is_normalized", False)
        ),
        "normalize= of images that the dataset has rounded to 16 bits: give dtype= to Loader, and "
        "not to the dataset": (
            given["normalize"] is not None
            and getattr(unwrap_subset(given["dataset"]), "is_rounded", False)
        ),
        "persistent_workers, timeout, worker_init_fn, multiprocessing_context need num_workers=": (
            not given["num_workers"]
            and any(given[n] for n in ("persistent_workers", "timeout", "worker_init_fn",
                                       "multiprocessing_context"))
        ),
    }  # fmt: skip
    for problem, there in problems.items():
        if there:
            raise OptionError(problem)
