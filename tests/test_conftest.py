"""The shared fixtures hold what they promise: other tests count on it."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import make_sample_images
import numpy as np
import torch
from _pytest.reports import TestReport
from PIL import Image

if TYPE_CHECKING:
    from types import ModuleType

    import pytest


def test_photos_are_a_dozen_small_rgb_arrays(photos: list[np.ndarray]) -> None:
    assert len(photos) == 12
    for photo in photos:
        assert photo.dtype == np.uint8
        assert photo.shape[2] == 3
        assert max(photo.shape) <= 320


def test_image_folder_has_every_kind_of_file_it_names(image_folder: pathlib.Path) -> None:
    kinds = set()
    for path in sorted(image_folder.rglob("*.*")):
        with Image.open(path) as image:
            progressive = "progressive" in image.info
            kinds.add((image.format, image.mode, progressive, image.getexif().get(0x0112, 1)))
    assert kinds == {
        ("JPEG", "RGB", False, 1),
        ("JPEG", "RGB", True, 1),
        ("JPEG", "RGB", False, 2),
        ("JPEG", "RGB", False, 6),
        ("JPEG", "L", False, 1),
        ("JPEG", "CMYK", False, 1),
        ("PNG", "RGB", False, 1),
    }
    assert sorted(p.name for p in image_folder.iterdir()) == ["machines", "nature", "people"]
    assert len(list(image_folder.rglob("*.*"))) == 25


def test_sample_images_are_the_same_in_every_run(tmp_path: pathlib.Path) -> None:
    few, more = tmp_path / "few", tmp_path / "more"
    make_sample_images.write(few, n=8, classes=4, size=64)
    counts = make_sample_images.write(more, n=12, classes=4, size=64)
    assert counts == {"nature": 3, "machines": 3, "science": 3, "people": 3}
    for path in few.rglob("*.jpg"):
        assert path.read_bytes() == (more / path.relative_to(few)).read_bytes()


def test_torchvision_transforms_run(torchvision: ModuleType) -> None:
    image = torch.zeros((3, 40, 50), dtype=torch.uint8)
    v2 = torchvision.transforms.v2
    assert v2.RandomResizedCrop(32)(image).shape == (3, 32, 32)
    images, labels = v2.MixUp(num_classes=3)(torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 0]))
    assert images.shape == (4, 3, 8, 8)
    assert labels.shape == (4, 3)


def test_timm_models_run(timm: ModuleType) -> None:
    model = timm.create_model("test_resnet.r160_in1k", pretrained=False, num_classes=3)
    assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 3)


def test_an_interrupt_ends_children_of_tests_that_run_in_the_background() -> None:
    conftest = pathlib.Path(__file__).with_name("conftest.py")
    ended = []
    for first in ("", f"sys.path[:0] = {sys.path!r}; runpy.run_path({str(conftest)!r})"):
        child = "import signal; signal.raise_signal(signal.SIGINT)"
        code = f"""
import runpy, signal, subprocess, sys
{first}
sys.exit(subprocess.run([sys.executable, '-c', {child!r}], stderr=-3).returncode == -2)
"""
        done = subprocess.run(
            [sys.executable, "-c", code], check=False,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        )  # fmt: skip
        ended.append(done.returncode)
    assert ended == [0, 1]


def test_a_failure_with_a_key_that_is_not_utf_8_reaches_xdist(pytestconfig: pytest.Config) -> None:
    sections = [("stdout", "key \udcff")]
    report = TestReport(
        "test_a", ("test_a.py", 0, "a"), {}, "failed", "E  'ü\udcff'", "call", sections
    )
    hook = pytestconfig.hook.pytest_report_to_serializable
    sent = hook(config=pytestconfig, report=report)
    assert str(sent).encode()
    assert (sent["longrepr"], sent["sections"]) == ("E  'ü\\udcff'", [("stdout", "key \\udcff")])
    again = pytestconfig.hook.pytest_report_from_serializable(config=pytestconfig, data=sent)
    assert again.failed
