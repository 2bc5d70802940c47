"""Watch a model for batches whose memory layout slows it down: torch does not warn of them."""

from __future__ import annotations

import contextlib
import inspect
import os
import threading
import warnings
from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch
from torch import nn

_CONVOLUTIONS = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
)  # fmt: skip
_LEAVES = (*_CONVOLUTIONS, nn.Linear)
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_NOT_THE_USERS = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(__file__) + os.sep,
    threading.__file__,  # torch.nn.DataParallel runs replicas in threads
    "<eval_with_key>",  # code that torch.compile and torch.fx make
)
_CONTIGUOUS = "write batch = packio.ensure_contiguous(batch), or .contiguous(), where it is made"
_FIXES = {  # by the memory format of the weights
    "contiguous":
        "write model = model.to(memory_format=torch.channels_last) once, or batch.contiguous()",
    "channels_last":
        "write batch = batch.to(memory_format=torch.channels_last) on the device, or model = "
        "model.to(memory_format=torch.contiguous_format) once",
}  # fmt: skip
_SAME = "write batch = packio.ensure_contiguous(batch) for all batches"


class MemoryFormatWarning(UserWarning):
    """A model was given a batch in a memory layout that costs time."""


class Watch(contextlib.ExitStack):
    """The hooks of `watch`; a context manager that removes them."""

    remove = contextlib.ExitStack.close


def watch(model: nn.Module, *, deep: bool = False) -> Watch:
    """Warn, once a line of code, when a model is given a batch in a layout that slows it down.

    Such a batch is a tensor of three or more dimensions that is neither contiguous nor
    channels_last; or images in another memory format than the weights of the model. If the weights
    have no format, the images are compared with those before. The `MemoryFormatWarning` names the
    module, the shape, the strides and the remedy. It points to the line of your code that gave the
    batch to the model: the innermost one outside torch and packio. Batches are not changed. A call
    takes some microseconds longer.

    DataParallel and DistributedDataParallel may wrap the model before or after. Watch the model
    that torch.compile returns. A model that was watched before it was compiled is checked while it
    is traced: later calls cost nothing, but a warning breaks the graph, and with
    ``fullgraph=True`` it is an error.

    Args:
        model: Any module.
        deep: Watch each convolution and linear layer, too, to find a transpose within the model.
            Compiled layers are left out: a compiler chooses layouts by itself.

    Returns:
        The watch. Call ``remove()`` to end it, or use it as a context manager.
    """
    watched = [("", model)]
    if deep:
        watched += [(n, m) for n, m in model.named_modules() if n and isinstance(m, _LEAVES)]
    hooks = Watch()
    for name, module in watched:
        hook = module.register_forward_pre_hook(_Hook(name, module), with_kwargs=True)
        hooks.callback(hook.remove)
    return hooks


class _Hook:
    def __init__(self, name: str, module: nn.Module) -> None:
        kind = type(module).__name__
        self._where, self._is_part = f"{name} ({kind})" if name else kind, bool(name)
        self._convolution = next((m for m in module.modules() if _has_format(m)), None)
        self._earlier = ""  # memory format of the first batch
        self._told: dict[tuple[str, str, int], object] = {}

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._is_part and torch.compiler.is_compiling():
            return
        for tensor in _find_tensors([args, kwargs]):
            found = self._look(tensor)
            if found:
                self._tell(tensor, *found)

    def _look(self, tensor: torch.Tensor) -> tuple[str, str] | None:
        """Say what is wrong with a tensor, and what to do; None if nothing is wrong."""
        if tensor.ndim < 3 or tensor.layout != torch.strided:
            return None
        given = _find_formats(tensor)
        if not given:
            return "neither contiguous nor channels_last", _CONTIGUOUS
        if len(given) > 1 or tensor.ndim not in _CHANNELS_LAST:
            return None
        if self._convolution is not None:
            weight: Any = self._convolution.weight
            wanted = _find_formats(weight) if weight.ndim == tensor.ndim else given
            if len(wanted) != 1 or wanted == given:
                return None
            return f"{given[0]} for weights that are {wanted[0]}", _FIXES[wanted[0]]
        if torch.compiler.is_compiling():  # a state that changes would cause a new trace
            return None
        self._earlier = earlier = self._earlier or given[0]
        return (
            None if earlier == given[0] else (f"{given[0]}, and others before it {earlier}", _SAME)
        )

    def _tell(self, tensor: torch.Tensor, found: str, fix: str) -> None:
        file, line = _find_caller(inspect.currentframe())
        this = object()
        if self._told.setdefault((found, file, line), this) is not this:
            return
        shape, strides = tuple(tensor.shape), tensor.stride()
        message = f"{self._where}: a {shape} input of strides {strides} is {found}; {fix}"
        warnings.warn_explicit(message, MemoryFormatWarning, file, line)


def _find_tensors(values: Any) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    for value in values.values() if isinstance(values, Mapping) else values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (tuple, list, Mapping)):
            tensors += _find_tensors(value)
    return tensors


def _find_formats(tensor: torch.Tensor) -> list[str]:
    """List the memory formats of a tensor: none, one, or both (with few channels or pixels)."""
    formats = ["contiguous"] if tensor.is_contiguous() else []
    last = _CHANNELS_LAST.get(tensor.ndim)
    if last is not None and tensor.is_contiguous(memory_format=last):
        formats.append("channels_last")
    return formats


def _has_format(module: nn.Module) -> bool:
    """Whether a module is a convolution whose weights have exactly one memory format."""
    if not isinstance(module, _CONVOLUTIONS):
        return False
    weight = module.weight
    return not isinstance(weight, nn.UninitializedParameter) and len(_find_formats(weight)) == 1


def _find_caller(frame: FrameType | None) -> tuple[str, int]:
    """Find file and line of the innermost caller that is neither of torch nor of packio."""
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_NOT_THE_USERS):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return "torch", 0  # a thread that torch started
