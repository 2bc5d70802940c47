"""torchvision for tests, also where its compiled part does not load."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pathlib
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType

_stub: list[Any] = []  # a torch.library.Library undoes its definitions when it is collected


@functools.cache
def import_torchvision() -> ModuleType:
    """Import torchvision, also where its compiled operators do not go with the torch installed.

    A torchvision built for CUDA does not load beside a CPU build of torch. Its transforms, datasets
    and tv_tensors are plain Python and need of the compiled part only that two operators have a
    schema; these are given here. Only for this process and those forked from it.
    """
    torch = pytest.importorskip("torch")
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        pytest.skip("torchvision is not installed")
    compiled = pathlib.Path(spec.origin).with_name("_C.so")
    try:
        torch.ops.load_library(str(compiled))
    except OSError:
        stub = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            stub.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _stub.append(stub)
    try:
        module = importlib.import_module("torchvision")
        for part in ("datasets", "transforms.v2", "tv_tensors"):
            importlib.import_module(f"torchvision.{part}")
    except (ImportError, OSError, RuntimeError) as error:
        pytest.skip(f"torchvision does not load beside torch {torch.__version__}: {error}")
    return module
