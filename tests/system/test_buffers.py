"""Memory of batches is used again, and never while anybody holds a tensor, view or array on it."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from packio.errors import OptionError
from packio.images import tensors
from packio.system import buffers
from packio.system.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SHAPE = (8, 3, 256, 256)  # 1.5 MB: what is below 1 MB is malloc's
POISON = 0xEE

# What people keep of a batch → how a value of it is read later.
KEPT: dict[str, Callable[[Any], Any]] = {
    "itself": lambda batch: batch,
    "a view": lambda batch: batch[3],
    "a slice": lambda batch: batch[2:5, :, 7:9],
    "unbound": lambda batch: batch.unbind(0)[5],
    "another type": lambda batch: batch.view(torch.int8),
    "detached": lambda batch: batch.detach(),
    "an array": lambda batch: batch.numpy(),
    "a part of an array": lambda batch: batch.numpy()[1:2, ::2],
    "a memoryview": lambda batch: memoryview(batch.numpy().reshape(-1)),
    "by DLPack": torch.utils.dlpack.from_dlpack,
    "an array by DLPack": np.from_dlpack,
    "its storage": lambda batch: batch.untyped_storage(),
    "a parameter": lambda batch: torch.nn.Parameter(batch, requires_grad=False),
    "a transposed view": lambda batch: batch.permute(0, 2, 3, 1),
    "from an array": lambda batch: torch.from_numpy(batch.numpy()[4]),
    "a buffer": lambda batch: torch.frombuffer(batch.numpy().reshape(-1), dtype=torch.uint8),
}


def _values(kept: Any) -> set[int]:
    if isinstance(kept, torch.UntypedStorage):
        kept = torch.empty(0, dtype=torch.uint8).set_(kept)
    array = np.asarray(kept).view(np.uint8)
    return {int(array.min()), int(array.max())}


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fill each buffer that is taken with a pattern: forked workers do so, too."""
    ours = buffers._lend

    def lend(count: int, *, is_shared: bool) -> Any:
        lent = ours(count, is_shared=is_shared)
        if lent is not None:
            torch.empty(0, dtype=torch.uint8).set_(lent).numpy().fill(POISON)
        return lent

    monkeypatch.setattr(buffers, "_lend", lend)
    buffers._buffers.clear()
    yield
    gc.collect()


def _filled(value: int) -> torch.Tensor:
    batch = tensors.new_batch(SHAPE, torch.uint8)
    batch.numpy().fill(value)  # torch's own threads do not live on in a fork
    return batch


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_of_a_batch_keeps_its_values(name: str) -> None:
    kept = [KEPT[name](_filled(value)) for value in range(6)]
    assert [_values(each) for each in kept] == [{value} for value in range(6)]
    kept.clear()
    again = _filled(9)
    assert _values(again) == {9}


def test_memory_is_used_again_once_the_last_view_is_gone() -> None:
    first = _filled(1)
    place, view = first.data_ptr(), first[2:]
    del first
    assert _filled(2).data_ptr() != place
    array = view.numpy()
    del view
    other = _filled(3)
    assert other.data_ptr() != place
    assert set(np.unique(array)) == {1}
    del array
    places = [batch.data_ptr() for batch in (_filled(4), _filled(5))]
    assert place in places or _filled(6).data_ptr() == place


def test_a_smaller_batch_takes_the_memory_of_a_larger_one_and_says_its_own_size() -> None:
    place = _filled(1).data_ptr()
    last = tensors.new_batch((6, *SHAPE[1:]), torch.uint8)
    assert last.data_ptr() == place
    assert last.untyped_storage().nbytes() == last.nbytes  # what torch.save writes


def test_values_of_several_bytes_have_memory_for_all_of_them() -> None:
    for dtype in (torch.int16, torch.float32, torch.float64):
        batches = [buffers.new_tensor(SHAPE, dtype) for _ in range(2)]
        for number, batch in enumerate(batches):
            batch.numpy().fill(number)
        assert [(batch.dtype, int(batch.min()), int(batch.max())) for batch in batches] == [
            (dtype, 0, 0), (dtype, 1, 1)
        ]  # fmt: skip


def test_a_lone_batch_beyond_the_limit_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_limit", lambda: 4 << 20)
    monkeypatch.setattr(buffers, "_large", [])
    buffers.new_tensor((8 << 20,), torch.uint8)
    assert not buffers._buffers
    for _ in range(2):  # as an epoch has
        buffers.new_tensor((8 << 20,), torch.uint8)
    assert [buffer.size for buffer in buffers._buffers] == [8 << 20]
    buffers.new_tensor((30 << 20,), torch.uint8)
    assert [buffer.size for buffer in buffers._buffers] == [8 << 20]


def test_little_and_empty_tensors_are_plain() -> None:
    assert tensors.new_batch((0, 3, 4, 4), torch.float32).shape == (0, 3, 4, 4)
    assert tensors.new_batch((2, 3), torch.float16).dtype == torch.float16
    assert not buffers._buffers


def test_buffers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_limit", lambda: 1)
    many = [_filled(value) for value in range(20)]
    assert len(buffers._buffers) == 6  # batches, however large they are
    assert [_values(batch) for batch in many] == [{value} for value in range(20)]
    many.clear()
    small = tensors.new_batch((1 << 20,), torch.uint8)
    assert len(buffers._buffers) <= 4
    del small
    monkeypatch.setattr(buffers, "_limit", lambda: 0)
    buffers._buffers.clear()
    assert _values(_filled(1)) == {1}
    assert not buffers._buffers


@pytest.mark.parametrize("given", ["256MB", "1e6", "-5", ""])
def test_a_limit_that_is_no_number_is_said(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKIO_BUFFER_BYTES", given)
    buffers._limit.cache_clear()
    try:
        with pytest.raises(OptionError, match=f"PACKIO_BUFFER_BYTES='{given}'"):
            _filled(1)
    finally:
        buffers._limit.cache_clear()


def test_a_batch_is_a_tensor_of_its_own_and_no_view() -> None:
    for batch in (_filled(1), next(iter(_loader(Numbered(2))))[0]):
        assert not batch._is_view()
        assert batch.detach_() is batch
        weight = torch.ones(1, requires_grad=True)
        made = batch.float().mul_(weight)
        assert made.requires_grad


def test_a_forked_child_and_its_parent_have_memory_of_their_own() -> None:
    kept, held, gone = _filled(1), [_filled(5)], _filled(2)
    del gone
    context = multiprocessing.get_context("fork")
    go, answers = context.Event(), context.Queue()

    def work() -> None:
        mine = _filled(7)
        kept.numpy().fill(8)
        go.wait(60)
        answers.put((_values(kept), _values(held[0]), _values(mine)))

    child = context.Process(target=work)
    child.start()
    held.clear()
    others = [_filled(value) for value in range(3)]
    go.set()
    assert answers.get(timeout=60) == ({8}, {5}, {7})
    child.join()
    assert _values(kept) == {1}
    assert [_values(batch) for batch in others] == [{0}, {1}, {2}]


class Numbered(Dataset[Any]):
    """Batches of which each says, in all of its bytes, which one it is."""

    def __init__(self, count: int, form: str = "tensor") -> None:
        self._count, self._form = count, form

    def __len__(self) -> int:
        return self._count * 4

    def __getitems__(self, indices: list[int]) -> Any:
        value = indices[0] // 4 % 200
        batch = _filled(value)
        if self._form == "views":
            return [*batch.unbind(0), batch[1:3].view(torch.int8), value]
        if self._form == "dropped":
            del batch
            batch = _filled(value)
        if self._form == "twice":
            return batch, {"again": batch[:2]}, value
        return batch, value


def _same(batch: Any) -> Any:
    return batch


def _loader(dataset: Any, **options: Any) -> Any:
    return DataLoader(dataset, 4, collate_fn=_same, **{"num_workers": 2, **options})


def _tensors(batch: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    tensors.map_tensors(batch, found.append)
    return found


@pytest.mark.parametrize(
    ("form", "method"),
    [*((form, "fork") for form in ("tensor", "views", "dropped", "twice")),
     ("twice", "spawn"), ("views", "forkserver")],
)  # fmt: skip
def test_batches_of_workers_are_as_made_and_stay_so(form: str, method: str) -> None:
    loader = _loader(Numbered(20, form), multiprocessing_context=method, persistent_workers=True)
    kept: list[Any] = []
    for epoch in range(2 if method == "spawn" else 4):
        for number, batch in enumerate(loader):
            assert all(_values(tensor) == {batch[-1]} for tensor in _tensors(batch)), (
                epoch,
                number,
            )
            if number % 10 == 3:
                kept.append(batch)
    for batch in kept:
        assert all(_values(tensor) == {batch[-1]} for tensor in _tensors(batch))


def test_a_worker_uses_its_memory_again() -> None:
    loader = _loader(_Counting(), num_workers=1)
    assert max(int(count) for _, count in loader) <= 6  # two ahead, one made, one here, one going


class _Counting(Dataset[Any]):
    def __len__(self) -> int:
        return 400

    def __getitems__(self, indices: list[int]) -> Any:
        batch = _filled(1)
        names = []
        for link in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # another thread has closed it
                names.append(os.readlink(f"/proc/self/fd/{link}"))
        return batch, sum("packio-batch" in name for name in names)


def test_a_worker_has_little_however_much_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_limit", lambda: 1)
    held = list(_loader(_Counting(), num_workers=1))
    assert max(int(count) for _, count in held) <= 6
    assert all(_values(batch) == {1} for batch, _ in held)


class _Forking(_Counting):
    def __getitems__(self, indices: list[int]) -> Any:
        batch, count = super().__getitems__(indices)
        if child := os.fork():
            os.waitpid(child, 0)
            return batch, count
        os._exit(0)


def test_a_worker_that_forks_drops_the_memory_of_that_batch() -> None:
    assert max(int(count) for _, count in _loader(_Forking(), num_workers=1)) <= 8


@pytest.mark.skipif(os.getuid() != 0, reason="unshare needs root")
def test_workers_whose_numbers_their_parent_does_not_know_share_torchs_way() -> None:
    """In a namespace of process numbers, below a /proc of another one."""
    code = (
        "from tests.system.test_buffers import Numbered, _loader, _values; "
        "print([b.is_shared() and _values(b) == {value} for b, value in _loader(Numbered(4))])"
    )
    root = os.fspath(buffers.__file__).rsplit("/packio/", 1)[0]
    done = subprocess.run(
        ["unshare", "--pid", "--fork", sys.executable, "-c", code], capture_output=True, text=True,
        timeout=300, check=False, cwd=root,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["[True, True, True, True]"], done


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_of_a_workers_batch_keeps_its_values(name: str) -> None:
    kept = []
    for number, (batch, value) in enumerate(_loader(Numbered(40))):
        if number % 5 == 0:
            kept.append((KEPT[name](batch), value))
    assert [_values(each) for each, _ in kept] == [{value} for _, value in kept]


def test_an_array_of_a_batch_stays_when_a_forked_child_sends_it_on() -> None:
    batch, value = next(iter(_loader(Numbered(3))))
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def send() -> None:
        torch.set_num_threads(1)  # its others do not live on in a fork
        array = batch.numpy()
        multiprocessing.reduction.ForkingPickler.dumps(batch)
        array[:] = 77
        theirs.send(_values(batch))

    child = context.Process(target=send)
    child.start()
    assert ours.poll(60)
    assert (ours.recv(), value) == ({77}, 0)
    child.join()


def test_a_child_forked_from_the_receiver_keeps_what_it_has() -> None:
    context = multiprocessing.get_context("fork")
    go, answers = context.Event(), context.Queue()
    loader = _loader(Numbered(60), num_workers=1)
    batches = iter(loader)
    held = [next(batches)]

    def work() -> None:
        ((batch, value),) = held
        go.wait(60)
        answers.put((_values(batch), value))

    child = context.Process(target=work)
    child.start()
    held.clear()  # the worker may use it again, but for the child
    for other, number in batches:
        assert _values(other) == {number}
    go.set()
    seen, expected = answers.get(timeout=60)
    child.join()
    assert seen == {expected}


@pytest.mark.parametrize("form", ["sent", "held"])
def test_an_array_of_a_batch_stays_when_the_batch_is_sent_on(form: str) -> None:
    answers = torch.multiprocessing.get_context("fork").Queue()
    for number, (batch, value) in enumerate(_loader(Numbered(30))):
        array = batch.numpy()
        answers.put(batch)
        sent = answers.get(timeout=60)
        if form == "sent" and number % 5 == 0:
            del batch
        assert _values(sent) == {value}
        assert set(np.unique(array)) == {value}


def test_batches_are_held_by_the_hundred() -> None:
    kept = list(_loader(Numbered(600), num_workers=1))
    assert all(_values(batch[0, 0, 0]) == {value} for batch, value in kept)


def test_a_batch_goes_on_to_other_processes_and_into_files() -> None:
    context = torch.multiprocessing.get_context("fork")
    forth, back = context.Queue(), context.Queue()
    child = context.Process(target=_echo, args=(forth, back))
    child.start()
    try:
        for number, (batch, value) in enumerate(_loader(Numbered(12))):
            assert _values(pickle.loads(pickle.dumps(batch))) == {value}
            if number % 4 == 0:
                forth.put((batch, value))
                del batch
    finally:
        forth.put(None)
    answers = []
    while (answer := back.get(timeout=60)) is not None:
        answers.append(answer)
    child.join()
    assert len(answers) == 3
    assert all(seen == {value} for seen, value in answers)


def _echo(forth: Any, back: Any) -> None:
    kept = []
    while (item := forth.get(timeout=60)) is not None:
        kept.append(item)
    for batch, value in kept:
        back.put((_values(batch), value))
    back.put(None)


def test_batches_outlive_their_workers() -> None:
    kept = list(_loader(Numbered(10)))
    gc.collect()
    assert all(_values(batch) == {value} for batch, value in kept)


def test_an_epoch_that_is_left_early_leaves_nothing_behind() -> None:
    loader = _loader(Numbered(50), persistent_workers=True)
    for _ in range(3):
        batches = iter(loader)
        kept = [next(batches) for _ in range(3)]
        del batches
        assert all(_values(batch) == {value} for batch, value in kept)
    assert [value for _, value in loader] == list(range(50))


def test_a_tensor_that_was_sent_often_is_copied_in_the_end() -> None:
    """4,096 tensors of one buffer can be on their way; others go torch's way."""
    (batch,) = _loader(_Often(), num_workers=1)
    assert len(batch) == 4196
    assert {int(tensor[0]) for tensor in batch} == {3}


class _Often(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitems__(self, indices: list[int]) -> Any:
        flat = _filled(3).view(-1)
        return [flat[i : i + 1] for i in range(4196)]


_LEFT = """
import os, signal, sys, torch
sys.path.insert(0, {tests!r})
from tests.system.test_buffers import Numbered, _loader, _values
kept = []
try:
    for number, (batch, value) in enumerate(_loader(Numbered(400), num_workers=1)):
        kept.append((batch, value))
        if number == 5:
            worker = torch.multiprocessing.active_children()[0]
            os.kill(worker.pid, signal.SIGKILL)
            worker.join()
except RuntimeError as error:
    print("told:", str(error).splitlines()[0])
print(all(_values(batch) == {{value}} for batch, value in kept), len(kept) >= 6)
print(sorted(n for n in os.listdir("/dev/shm") if n.startswith(("torch_%d" % os.getpid(), "psm_"))))
"""


def test_a_killed_worker_takes_no_batch_with_it() -> None:
    root = os.fspath(buffers.__file__).rsplit("/packio/", 1)[0]
    done = subprocess.run(
        [sys.executable, "-c", _LEFT.format(tests=root)], capture_output=True, text=True,
        timeout=300, check=False, cwd=root,
    )  # fmt: skip
    assert done.stdout.splitlines()[1:] == ["True True", "[]"], done


def test_without_anonymous_files_torch_shares_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    buffers._can_share.cache_clear()
    batches = list(_loader(Numbered(6)))
    assert [value for batch, value in batches if _values(batch) == {value}] == [*range(6)]
    assert all(batch.is_shared() for batch, _ in batches)  # in torch's memory


def test_no_memory_is_said() -> None:
    with pytest.raises(MemoryError):
        buffers.new_tensor((1 << 60,), torch.uint8)


def test_no_batch_is_lent_while_the_process_forks() -> None:
    lent, batches = threading.Event(), list[torch.Tensor]()

    def lend() -> None:
        batches.append(_filled(3))
        lent.set()

    thread = threading.Thread(target=lend)
    buffers._begin_fork()  # another hook may now let other threads run
    try:
        thread.start()
        assert not lent.wait(0.3)
    finally:
        buffers._FORK.release()
    thread.join()
    assert _values(batches[0]) == {3}


def test_threads_may_take_and_give_back_at_once() -> None:
    wrong: list[int] = []

    def work(numbers: Iterable[int]) -> None:
        held: list[tuple[int, torch.Tensor]] = []
        for number in numbers:
            own = number % 200
            held = [*held[-2:], (own, _filled(own))]
            wrong.extend(number for value, batch in held if _values(batch[0, 0]) != {value})

    Threads(4).run(work, range(400))
    assert not wrong
