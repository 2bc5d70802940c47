"""`packio.watch`: which batches it tells of, where, how often, and what models it looks at."""

from __future__ import annotations

import contextlib
import copy
import inspect
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import packio

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

LAST = torch.channels_last
IMAGES = torch.zeros(2, 3, 8, 10)


def _model() -> Any:  # torch's types do not know to(memory_format=)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(2))


def _line(function: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


@contextlib.contextmanager
def _recorded() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught
    caught[:] = [w for w in caught if w.category is packio.MemoryFormatWarning]


def _told(model: nn.Module, *batches: Any, deep: bool = False) -> list[str]:
    """The warnings of a model watched meanwhile, as texts."""
    with packio.watch(model, deep=deep), _recorded() as caught:
        for batch in batches:
            model(batch)
    return [str(w.message) for w in caught]


@pytest.mark.parametrize(
    "batch",
    [
        IMAGES.transpose(2, 3).contiguous().transpose(2, 3),
        torch.zeros(2, 3, 9, 11)[:, :, 1:, 1:],
        torch.zeros(2, 1, 8, 10).expand(-1, 3, -1, -1),
    ],
    ids=["transposed", "cropped view", "expanded"],
)
def test_a_view_in_no_format_is_told_of_once_a_line(batch: torch.Tensor) -> None:
    model = _model()
    with packio.watch(model), _recorded() as caught:
        for _ in range(3):
            model(batch)  # first
        model(batch)  # second
    me = test_a_view_in_no_format_is_told_of_once_a_line
    assert [w.lineno for w in caught] == [_line(me, "# first"), _line(me, "# second")]
    assert {w.filename for w in caught} == {__file__}
    message = str(caught[0].message)
    assert f"Sequential: a (2, 3, 8, 10) input of strides {batch.stride()}" in message
    assert "neither contiguous nor channels_last" in message
    assert "packio.ensure_contiguous(batch)" in message


def test_what_the_message_says_to_write_ends_the_warnings() -> None:
    transposed = IMAGES.transpose(2, 3)
    assert _told(_model(), packio.ensure_contiguous(transposed), transposed.contiguous()) == []
    assert _told(_model().to(memory_format=LAST), IMAGES.to(memory_format=LAST)) == []


def test_an_nhwc_batch_that_was_only_permuted_is_channels_last_for_contiguous_weights() -> None:
    (told,) = _told(_model(), torch.zeros(2, 8, 10, 3).permute(0, 3, 1, 2))
    assert "strides (240, 1, 30, 3) is channels_last for weights that are contiguous" in told
    assert "model.to(memory_format=torch.channels_last)" in told


def test_contiguous_images_for_channels_last_weights_are_told_of() -> None:
    (told,) = _told(_model().to(memory_format=LAST), IMAGES)
    assert "contiguous for weights that are channels_last" in told
    assert "batch.to(memory_format=torch.channels_last)" in told


def test_a_model_moved_while_it_is_watched_is_seen_as_it_is() -> None:
    model = _model()
    with packio.watch(model), _recorded() as caught:
        model(IMAGES)
        model.to(memory_format=LAST)
        model(IMAGES.to(memory_format=LAST))
        model(IMAGES)
    assert len(caught) == 1


def test_without_telling_weights_the_batches_before_are_the_measure() -> None:
    last = IMAGES.to(memory_format=LAST)
    assert _told(nn.Flatten(2), last, last) == []
    (told,) = _told(nn.Conv2d(3, 3, 3, groups=3), IMAGES, last, last)  # depthwise: both formats
    assert "channels_last, and others before it contiguous" in told


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(2, 1, 8, 10).to(memory_format=LAST),  # of one channel: both
        torch.zeros(2, 3, 1, 1).to(memory_format=LAST),
        torch.zeros(6, 4).t(),  # a matrix product takes it as it is
        torch.zeros(0, 3, 8, 10).transpose(2, 3),
        torch.zeros(2, 3, 4).to_sparse(),
    ],
    ids=["gray", "a pixel", "matrix", "empty", "sparse"],
)
def test_what_costs_nothing_is_not_told_of(batch: torch.Tensor) -> None:
    assert _told(nn.Identity(), batch) == []


def test_volumes_have_formats_of_their_own() -> None:
    volumes, model = torch.zeros(2, 3, 4, 5, 6), nn.Conv3d(3, 4, 3)
    assert _told(model, volumes) == []
    last = volumes.to(memory_format=torch.channels_last_3d)
    (told,) = _told(model, last)
    assert "channels_last for weights that are contiguous" in told
    assert _told(nn.Conv3d(3, 4, 3), torch.zeros(3, 4, 5, 6)) == []  # one volume


def test_tensors_are_found_in_nested_and_named_arguments() -> None:
    class Model(nn.Module):
        def forward(self, batch: Any, *, extra: Any) -> None:
            pass

    model, view = Model(), IMAGES.transpose(2, 3)
    with packio.watch(model), _recorded() as caught:
        model({"images": [IMAGES, ("a.jpg", view)]}, extra=None)
        model(None, extra=view)
    assert len(caught) == 2


class _Transposing(nn.Module):
    """Transposes in its midst."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
        self.last = nn.Linear(6, 2)

    def forward(self, images: torch.Tensor) -> Any:
        found = self.first(images)
        found = self.second(found.transpose(2, 3))  # here
        return self.last(found.contiguous())


def test_deep_names_the_layer_and_the_line_in_the_model() -> None:
    model = _Transposing()
    assert _told(model, torch.zeros(2, 3, 10, 10)) == []
    with packio.watch(model, deep=True), _recorded() as caught:
        for _ in range(2):
            model(torch.zeros(2, 3, 10, 10))
    (told,) = caught
    assert str(told.message).startswith("second (Conv2d): a (2, 4, 8, 8) input")
    assert (told.filename, told.lineno) == (__file__, _line(_Transposing, "# here"))


def test_removed_hooks_tell_of_nothing() -> None:
    model, view = _model(), IMAGES.transpose(2, 3)
    handle = packio.watch(model, deep=True)
    handle.remove()
    handle.remove()  # again does no harm
    model(view)  # warnings are errors in these tests
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_two_watches_do_not_know_of_each_other() -> None:
    model, view = _model(), IMAGES.transpose(2, 3)
    with packio.watch(model), packio.watch(model), _recorded() as caught:
        model(view)
    assert len(caught) == 2


def test_the_warning_can_be_an_error() -> None:
    model = _model()
    with packio.watch(model), warnings.catch_warnings():
        warnings.simplefilter("error", packio.MemoryFormatWarning)
        with pytest.raises(packio.MemoryFormatWarning):
            model(IMAGES.transpose(2, 3))


def test_a_copied_model_is_watched_too() -> None:
    model = _model()
    with packio.watch(model):
        again = copy.deepcopy(model)
    with pytest.warns(packio.MemoryFormatWarning):
        again(IMAGES.transpose(2, 3))
    model(IMAGES.transpose(2, 3))


def test_a_lazy_model_is_watched() -> None:
    assert _told(nn.LazyConv2d(4, 3), IMAGES) == []


def test_a_replica_of_dataparallel_tells_in_its_thread() -> None:
    model = _model()
    with packio.watch(model), _recorded() as caught:
        replica: Any = model._replicate_for_data_parallel()
        replica._modules = dict(model._modules)
        thread = threading.Thread(target=replica, args=(IMAGES.transpose(2, 3),))
        thread.start()
        thread.join()
        nn.DataParallel(model)(IMAGES.transpose(2, 3))
    assert [w.filename for w in caught] == ["torch", __file__]


@pytest.fixture
def one_process(tmp_path: pathlib.Path) -> Iterator[None]:
    """A process group of this process alone."""
    store = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("outside", [True, False])
def test_a_distributed_model_is_watched_within_or_without(outside: bool) -> None:
    model = _model()
    wrapped = nn.parallel.DistributedDataParallel(model)
    with packio.watch(wrapped if outside else model), _recorded() as caught:
        wrapped(IMAGES.transpose(2, 3))
        wrapped(IMAGES)
    (told,) = caught
    assert "DistributedDataParallel" if outside else "Sequential" in str(told.message)
    assert told.filename == __file__


@pytest.fixture
def compiled() -> Iterator[None]:
    """Nothing is left of what is compiled in between."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("compiled")
def test_what_compile_returned_is_watched_from_outside() -> None:
    model: Any = torch.compile(_Transposing(), backend="eager", fullgraph=True)
    square = torch.zeros(2, 3, 10, 10)
    with packio.watch(model, deep=True), _recorded() as caught:
        for _ in range(3):
            model(square)
            model(square.transpose(2, 3))
    (told,) = caught
    assert "OptimizedModule" in str(told.message)
    assert told.filename == __file__


@pytest.mark.usefixtures("compiled")
def test_a_model_compiled_while_watched_is_one_graph_and_tells_where_it_is_not() -> None:
    model = _model()
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    with packio.watch(model, deep=True):
        whole: Any = torch.compile(model, backend=backend, fullgraph=True)
        for _ in range(3):
            whole(IMAGES)
        assert len(graphs) == 1
        broken: Any = torch.compile(model, backend=backend)
        with _recorded() as caught:
            for _ in range(3):
                broken(IMAGES.transpose(2, 3))
    assert [w.filename for w in caught] == [__file__]
