"""The doctor: numbers to findings exactly, real short runs, what is told, and what fails soon."""

from __future__ import annotations

import dataclasses
import html.parser
import json
import multiprocessing
import os
import pathlib
import re
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from cli_runs import run, run_process
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset

import packio
from packio.cli.measuring import find_object
from packio.errors import DiagnosisError, OptionError
from packio.measuring.doctor import (
    Cause,
    Diagnosis,
    Measurements,
    Trial,
    findings,
    samples,
)
from packio.measuring.doctor.findings import Spread, Stages
from packio.measuring.doctor.loops import Loop, LoopRun
from packio.measuring.doctor.setups import Setup, size_of
from packio.measuring.turns import IndexFeed, IndexOrder

if TYPE_CHECKING:
    from collections.abc import Callable

QUICK = 1.0  # seconds for a diagnosis: enough for what is gross


def exactly(value: float) -> Spread:
    return Spread(value, value, value)


def measured(**changes: Any) -> Measurements:
    """A loop of 100 ms a batch of 10, half of it waiting, whose samples take 1, 2 and 5 ms."""
    plain = Measurements(
        loader="DataLoader", batch_size=10, workers=2, cpus=2, device="cpu", has_step=True,
        epoch_batches=100, rate=exactly(100), waiting=exactly(0.5), step=0.05, contiguous=True,
        step_contiguous=None,
        stages=Stages(0.001, 0.002, 0.005, collate=0.01, hand_over=0.01, batch_bytes=1000),
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)


def test_the_page_says_command_machine_and_date() -> None:
    page = Diagnosis(measured(machine="a CPU, torch 2.9, 2026-01-02")).html("packio doctor <x>")
    assert "<dt>command</dt><dd>packio doctor &lt;x&gt;</dd>" in page
    assert "<dt>machine</dt><dd>a CPU, torch 2.9; 2 CPUs, no GPU</dd>" in page
    assert "<dt>date</dt><dd>2026-01-02</dd>" in page


def trial(kind: Cause, *factors: float, chance: float = 0.01) -> Trial:
    return Trial(kind, "a change", "code", Spread.summarize(factors), 8, chance=chance)


def first_reads(taken: float) -> dict[str, Any]:
    """10 samples of 15 ms at first, none again, and 1 ms of a transform: what the loop takes."""
    slow = Stages(0.015, 0.0, 0.001, storage_again=0.0, collate=0.0)
    return {"workers": 0, "has_step": False, "step": None, "rate": exactly(10 / taken),
            "stages": slow}  # fmt: skip


NO_TIME = Stages(0.0, 0.0, 0.0, collate=0.0, hand_over=0.0)
# Workers: 160 ms a batch, divided by 16; this process unpickles for 50 ms, and waits for 5 ms.
ONE_FOR_SIXTEEN = {
    "workers": 16, "cpus": 16, "rate": exactly(10 / 0.06), "waiting": exactly(55 / 60),
    "receiving": 50 / 60, "stages": dataclasses.replace(NO_TIME, transform=0.016),
}  # fmt: skip
CONTIGUOUS_SAVES = {"waiting": exactly(0.1), "step": 0.09, "step_contiguous": 0.03}
START_UP = {"waiting": exactly(0), "epoch_batches": 10, "stages": Stages(0, 0, 0.01, start_up=1.0)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rate": exactly(200)}, {
            Cause.STORAGE: 0.05, Cause.DECODE: 0.1, Cause.TRANSFORM: 0.25, Cause.COLLATE: 0.05,
            Cause.HAND_OVER: 0.05, Cause.MEMORY_FORMAT: 0, Cause.COPY: 0, Cause.STEP: 0.5,
            Cause.START_UP: 0, Cause.UNEXPLAINED: 0,
        }),
        # two workers make a batch in 50 ms; the loop takes 100 ms, half of it waiting
        ({}, {Cause.UNEXPLAINED: 0.25, Cause.TRANSFORM: 0.125}),
        (first_reads(0.16), {Cause.STORAGE: 0.15 / 0.16, Cause.TRANSFORM: 0.01 / 0.16}),
        (first_reads(0.085), {Cause.STORAGE: 0.075 / 0.085, Cause.TRANSFORM: 0.01 / 0.085}),
        (first_reads(0.01), {Cause.STORAGE: 0, Cause.TRANSFORM: 1}),
        (ONE_FOR_SIXTEEN, {Cause.HAND_OVER: 50 / 60}),
        # of a batch of 10: 80 ms of storage in 8 workers, 80 ms of computing on 2 processors
        ({"workers": 8, "rate": exactly(200), "waiting": exactly(1.0),
          "stages": dataclasses.replace(NO_TIME, storage=0.008, transform=0.008)},
         {Cause.STORAGE: 0.2, Cause.TRANSFORM: 0.8}),
        ({"workers": 0}, {Cause.HAND_OVER: None}),
        ({"has_step": False, "step": None, "waiting": exactly(1), "rate": exactly(200)},
         {Cause.TRANSFORM: 0.5, Cause.STEP: 0}),
        (CONTIGUOUS_SAVES, {Cause.MEMORY_FORMAT: 0}),
        ({**CONTIGUOUS_SAVES, "contiguous": False}, {Cause.MEMORY_FORMAT: 0.6}),
        (START_UP, {Cause.START_UP: 0.5}),
        ({**START_UP, "epoch_batches": 990}, {Cause.START_UP: 0.01}),
        ({"stages": dataclasses.replace(measured().stages, copy=0.025)}, {Cause.COPY: 0.25}),
    ],
    ids=["by cost", "unexplained", "all first reads", "some first reads", "no first reads",
         "one process for sixteen", "sleeping workers", "no workers", "no step", "contiguous",
         "not contiguous", "start-up", "start-up of a long epoch", "copying"],
)  # fmt: skip
def test_the_loops_time_is_shared_out_by_what_each_part_costs(
    changes: dict[str, Any], expected: dict[Cause, float | None]
) -> None:
    shares = findings.shares(measured(**changes))
    assert {cause: shares.get(cause) for cause in expected} == pytest.approx(expected)
    assert sum(shares.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("changes", "expected", "verdict"),
    [
        ({"stages": Stages(), "workers": None}, {Cause.LOADER: 0.5}, ""),
        ({"waiting": exactly(0.9), "rate": exactly(200),
          "stages": Stages(0.005, 0.0, 0.004, collate=0.01, hand_over=0.0)},
         {Cause.STORAGE: 0.45, Cause.TRANSFORM: 0.36}, ""),
        ({"waiting": exactly(1.0)},
         {Cause.TRANSFORM: 0.25, Cause.DECODE: 0.1, Cause.UNEXPLAINED: 0.5},
         "50% of the loop's time is in no stage"),
        (ONE_FOR_SIXTEEN, {Cause.HAND_OVER: 50 / 60}, ""),
        ({"waiting": exactly(0.03), "step": 0.097}, {Cause.STEP: 0.97},
         "a faster loader changes nothing"),
        ({"waiting": exactly(0.4), "rate": exactly(400),
          "stages": Stages(0.001, 0.001, 0.001, collate=0.01, hand_over=0.01)},
         {Cause.NONE: 0}, ""),
        (CONTIGUOUS_SAVES, {Cause.STEP: 0.9}, ""),
        ({**CONTIGUOUS_SAVES, "contiguous": False}, {Cause.MEMORY_FORMAT: 0.6}, ""),
        (START_UP, {Cause.START_UP: 0.5}, ""),
    ],
    ids=["not looked into", "two stages", "no stage", "one process for sixteen", "step", "even",
         "contiguous", "not contiguous", "start-up"],
)  # fmt: skip
def test_what_takes_a_fifth_of_the_time_is_named_the_heaviest_first(
    changes: dict[str, Any], expected: dict[Cause, float], verdict: str
) -> None:
    found = Diagnosis(measured(**changes))
    assert found.kinds == list(expected)
    assert {f.kind: f.share for f in found.findings} == pytest.approx(expected)
    assert verdict in found.verdict


def test_only_clear_gains_are_findings_and_remedies() -> None:
    trials = (
        trial(Cause.WORKERS_TOO_FEW, 2.0, 1.8, 2.2),
        trial(Cause.WORKERS_TOO_FEW, 2.5, 1.0, 3.0, chance=0.06),  # perhaps by chance
        trial(Cause.DECODE, 1.05, 1.04, 1.06),  # too little
        Trial(Cause.COLLATE, "a change", "code", exactly(3.0), 0),  # a first look only
        trial(Cause.HAND_OVER, 1.3, 1.3, 1.3),
    )
    slow = measured(trials=trials, rate=exactly(200))
    assert findings.remedies(slow) == [trials[0], trials[4]]
    shares = {f.kind: f.share for f in findings.find(slow)}
    assert shares == pytest.approx({Cause.WORKERS_TOO_FEW: 0.5, Cause.TRANSFORM: 0.25})
    for factor, expected in ((1.2, False), (1.5, True)):  # of the batch size: more than a little
        kinds = Diagnosis(measured(trials=(trial(Cause.BATCH_SIZE, *[factor] * 3),))).kinds
        assert (Cause.BATCH_SIZE in kinds) is expected


def test_the_ceiling_is_what_the_step_alone_would_reach() -> None:
    assert findings.ceiling(measured()) == pytest.approx(2.0)
    assert findings.ceiling(measured(step=None)) is None


@pytest.mark.parametrize(("workers", "waited"), [(2, 3.0), (0, 4.0)])
def test_loader_and_step_by_themselves_make_a_loop(
    workers: int, waited: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop([torch.zeros(1)], None, None, workers, seconds=1.0, alone=0.05)
    laps = iter([LoopRun(1, 0.1, 0.0)] * 2 + [LoopRun(20, 4.0, 0.0)])  # the last one is timed
    monkeypatch.setattr(loop, "_time_batches", lambda *_: next(laps))
    assert loop.run() == LoopRun(20, waited, 1.0)


def test_a_diagnosis_is_the_same_after_json() -> None:
    trials = (trial(Cause.WORKERS_TOO_FEW, 2.0, 1.8, 2.2),)
    diagnosis = Diagnosis(measured(trials=trials, stages=Stages()))
    text = json.dumps(diagnosis.as_dict())
    assert Diagnosis.from_dict(json.loads(text)) == diagnosis
    assert json.loads(text)["findings"][0] == {
        "kind": "loader", "share": 0.5, "evidence": {"waiting": 0.5}
    }  # fmt: skip


class _Page(html.parser.HTMLParser):
    """Tags and what they refer to; fails where they are not nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.links, self._open = list[str](), list[str](), list[str]()
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [f"{n}={v}" for n, v in attrs if n in ("href", "src", "xlink:href", "data")]
        if tag not in ("meta", "link"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


def test_the_page_stands_alone_and_runs_nothing() -> None:
    hostile = dataclasses.replace(
        trial(Cause.DECODE, 2.0, 2.0, 2.0), change="<script>alert(1)</script>"
    )
    text = Diagnosis(measured(trials=(hostile,), loader="<img src=x>%%STYLE%%")).html()
    page = _Page(text)
    (icon,) = page.links
    assert icon.startswith("href=data:image/svg+xml;base64,")
    assert {"svg", "dl", "rect"} <= set(page.tags)
    assert not {"script", "img", "iframe"} & set(page.tags)
    assert "http" not in text.replace('http-equiv="Content-Security-Policy"', "")
    assert "&lt;script&gt;" in text


def test_the_code_that_decodes_is_known_by_files_that_are_there() -> None:
    root = pathlib.Path(packio.__file__).parent.parent
    places = [*samples._DECODING_FILES, *samples._DECODING_FOLDERS]
    own = [place.strip("/") for place in places if place.strip("/").startswith("packio/")]
    assert len(own) == 5
    assert [place for place in own if not (root / place).exists()] == []


# Real runs


class Numbers(Dataset[Any]):
    """Small tensors, with a transform."""

    def __init__(self, transform: Any = None, count: int = 64) -> None:
        self.transform, self._count = transform, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        value = torch.full((3, 4, 4), float(index))
        return value if self.transform is None else self.transform(value)


class Clock:
    """The module time of `samples`: of sleeping it knows what `sleep` is told, and no delay else.

    Computing takes what the thread computes, however many others want the processors.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._slept = 0.0
        monkeypatch.setattr(samples, "time", self)
        monkeypatch.setattr(samples, "run_delay", float)

    def sleep(self, seconds: float) -> None:
        """Let time pass at once."""
        self._slept += seconds

    def thread_time(self) -> float:
        """What the thread has computed."""
        return time.thread_time()

    def perf_counter(self) -> float:
        """What the thread has computed and slept."""
        return time.thread_time() + self._slept


@pytest.fixture
def drowsy(monkeypatch: pytest.MonkeyPatch) -> Callable[[torch.Tensor], torch.Tensor]:
    """A transform that sleeps for 50 ms, also by the clock that times stages."""
    clock = Clock(monkeypatch)

    def sleep(value: torch.Tensor) -> torch.Tensor:
        time.sleep(0.05)
        clock.sleep(0.05)
        return value

    return sleep


def has_slept(found: Diagnosis) -> bool:
    """Whether the transform is seen to take as long as `drowsy` sleeps.

    Its share of the loop says less: on a machine that many use, all other parts grow.
    """
    return (found.measured.stages.transform or 0) > 0.045


def deadly(value: torch.Tensor) -> torch.Tensor:
    if torch.utils.data.get_worker_info() is not None:
        os._exit(3)
    return value


def broken(value: torch.Tensor) -> torch.Tensor:
    raise ValueError(f"no such colour: {value.shape}")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_transform_that_sleeps_is_named(
    pack: pathlib.Path, workers: int, drowsy: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    children = set(multiprocessing.active_children())
    dataset = packio.PackDataset(pack, crop=packio.RandomResizedCrop(16), transform=drowsy)
    loader = DataLoader(dataset, 2, shuffle=True, num_workers=workers, collate_fn=packio.collate)
    said: list[str] = []
    found = packio.doctor(loader, lambda _: None, seconds=QUICK, say=said.append)
    assert has_slept(found)
    assert found.measured.waiting.median > 0.5  # of a step that does nothing
    assert "the loop" in said
    assert set(multiprocessing.active_children()) <= children


def test_a_step_that_sleeps_is_the_limit() -> None:
    def step(batch: torch.Tensor) -> None:
        time.sleep(0.02 * len(batch))

    found = packio.doctor(DataLoader(Numbers(), 4), step, seconds=QUICK)
    assert (found.measured.step or 0) > 0.07  # it cannot take less
    assert found.measured.has_step


def test_a_loader_of_packios_is_looked_into(
    pack: pathlib.Path, drowsy: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    dataset = packio.PackDataset(pack, crop=packio.RandomResizedCrop(16), transform=drowsy)
    loader = packio.Loader(dataset, 2, shuffle=True, device="cpu", dtype=torch.float32)
    found = packio.doctor(packio.DevicePrefetcher(loader, "cpu"), lambda _: None, seconds=QUICK)
    assert has_slept(found)
    assert loader.epoch == 0  # it was not iterated over


def test_any_iterable_gives_waiting_and_the_memory_format() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            for i in range(40):
                time.sleep(0.005)
                yield torch.tensor([i])

    found = packio.doctor(DataLoader(Stream(), 4), lambda _: None, seconds=QUICK)
    assert found.kinds[0] is Cause.LOADER

    class Batches:
        def __iter__(self) -> Any:
            for _ in range(3):
                time.sleep(0.02)
                yield torch.zeros(4, 8, 8, 3).permute(0, 3, 1, 2)

    found = packio.doctor(Batches(), lambda _: None, seconds=QUICK)
    assert found.kinds[0] is Cause.LOADER
    assert not found.measured.contiguous
    assert found.measured.step_contiguous is not None


def test_a_dataset_that_gives_whole_batches_is_taken_too() -> None:
    seen: list[int] = []

    def note(value: torch.Tensor) -> torch.Tensor:
        seen.append(int(value[0, 0, 0]))
        return value

    found = packio.doctor(DataLoader(Numbers(note), batch_size=None), seconds=QUICK)
    assert found.kinds[0] is Cause.LOADER
    assert found.measured.batch_size == 3  # the first side of the tensor
    assert seen[:4] == [0, 0, 1, 2]  # one batch to look at, then the loop, in the loader's order


def test_reading_decoding_and_transforms_are_told_apart(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.effect_noise((900, 900), 80).convert("RGB").save(tmp_path / "x.png")
    clock = Clock(monkeypatch)

    class Photos(Dataset[Any]):
        def __init__(self, transform: Any = None, wait: float = 0.0) -> None:
            self.transform, self._wait = transform, wait

        def __getitem__(self, index: int) -> Any:
            clock.sleep(self._wait)
            image = Image.open(tmp_path / "x.png").convert("RGB")
            return self.transform(image) if self.transform else image

    def drowsy_image(image: Any) -> Any:
        clock.sleep(4)
        return image

    for dataset, part in ((Photos(), "decode"), (Photos(drowsy_image), "transform"),
                          (Photos(wait=4), "storage")):  # fmt: skip
        share = samples.SampleTimer(dataset).run(range(4), 100)
        assert max(share._fields, key=lambda name: getattr(share, name)) == part


class Dim:
    """A transform of the user's own; `Turn` is another one."""

    def __init__(self, sleep: Callable[[float], None], seconds: float) -> None:
        self._sleep, self._seconds = sleep, seconds

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        self._sleep(self._seconds)
        return value


class Turn(torch.nn.Module):
    def __init__(self, sleep: Callable[[float], None], seconds: float) -> None:
        super().__init__()
        self._sleep, self._seconds = sleep, seconds

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self._sleep(self._seconds)
        return value


class Compose(torch.nn.Module):
    """As torchvision's v2: a module of modules, all called through the same code of torch."""

    def __init__(self, *parts: Any) -> None:
        super().__init__()
        self.transforms = list(parts)

    def transform(self, value: torch.Tensor) -> torch.Tensor:
        """A method, no transform that it was given."""
        return value

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for part in self.transforms:
            value = part(self.transform(value))
        return value


def test_each_transform_is_named_with_its_share_of_a_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sleep = Clock(monkeypatch).sleep

    def brighten(value: torch.Tensor) -> torch.Tensor:
        sleep(10)
        return value

    inner = torch.nn.Sequential(Turn(sleep, 20), torch.nn.Identity())
    parts = Compose(Dim(sleep, 60), Compose(inner, Turn(sleep, 10)), brighten, torch.abs)
    timer = samples.SampleTimer(Numbers(transform=parts))
    timer.run(range(4), 1000)
    shares = timer.shares()
    here = test_each_transform_is_named_with_its_share_of_a_sample.__qualname__
    names = ["Dim", "Turn", f"{here}.<locals>.brighten"]
    assert list(shares) == [f"{__name__}.{name}" for name in names]
    assert list(shares.values()) == pytest.approx([0.6, 0.3, 0.1], abs=0.01)
    assert samples._name(torch.nn.Conv2d) == "torch.nn.Conv2d"  # of torch.nn.modules.conv


def test_a_slow_transform_is_the_cause_and_workers_a_remedy() -> None:
    slow = Stages(0.0, 0.0, 0.1, steps={"RandAugment": 0.63, "GaussianBlur": 0.3, "Flip": 0.02})
    gain = Trial(Cause.WORKERS_TOO_FEW, "8 workers", "num_workers=8", exactly(4), 3, chance=0.0)
    found = Diagnosis(measured(waiting=exactly(0.6), stages=slow, trials=(gain,)))
    assert found.kinds[:2] == [Cause.TRANSFORM, Cause.WORKERS_TOO_FEW]
    assert found.findings[0].evidence == {
        "waiting": 0.6, "seconds_a_sample": 0.1, "RandAugment": 0.63, "GaussianBlur": 0.3
    }  # fmt: skip
    assert found.verdict == (
        "The dataset's transforms take 60% of the loop's time: RandAugment is 63% of what a sample "
        "costs, GaussianBlur 30%; too few workers: 75% of the time could be saved."
    )
    assert "RandAugment 63% of a sample" in str(found)
    assert "Flip 2% of a sample" in str(found)


def test_the_hook_slows_computing_not_storage() -> None:
    first, again = samples.SampleTime(15, 2, 9), samples.SampleTime(0, 3, 3)
    assert samples.take_out_hook(first, again, 6.0) == ((15, 2, 3), 0)  # of computing the lesser
    first, again = samples.SampleTime(15, 2, 6), samples.SampleTime(1, 2, 6)
    assert samples.take_out_hook(first, again, 5.0) == ((15, 1, 3), 1)
    quick, later = samples.take_out_hook(first, again, 0.9)  # the samples of a batch side by side
    assert quick == pytest.approx((1.5, 0.2, 0.6))
    assert later == pytest.approx(0.1)


class Once(Numbers):
    """Storage whose first read of a sample is slow; the second finds the bytes in a cache."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        super().__init__(count=10_000)
        self.seen: set[int] = set()
        self._sleep = sleep

    def __getitem__(self, index: int) -> torch.Tensor:
        if index not in self.seen:
            self._sleep(0.02)
        self.seen.add(index)
        return super().__getitem__(index)


def test_a_first_read_is_timed_apart_from_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Once(Clock(monkeypatch).sleep)
    stages, _, indices = samples.time_samples(Setup(DataLoader(dataset, 4)), range(64), 0.4)
    assert stages.storage is not None
    assert stages.storage > 0.018
    assert stages.storage_again is not None
    assert stages.storage_again < 0.01  # of the thread's own computing
    assert 0 not in indices  # the first sample opens files: it does not count


@pytest.mark.parametrize("shuffle", [False, True])
def test_slow_first_reads_are_named(shuffle: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        clock.sleep(seconds)

    loader = DataLoader(Once(sleep), 4, shuffle=shuffle)
    found = packio.doctor(loader, lambda _: None, seconds=QUICK)
    assert (found.measured.stages.storage or 0) > 0.018


def test_the_flow_goes_on_over_the_epochs_and_regroups() -> None:
    flow = IndexFeed(IndexOrder(lambda: [[1, 2], [3]]), size=2)
    taken = []
    for batch in flow:
        taken.append(batch)
        flow.is_open = len(taken) < 3
    assert taken == [[1, 2], [3, 1], [2, 3]]
    assert list(IndexFeed(IndexOrder(list))) == []


def test_a_loop_over_buckets_is_diagnosed(tmp_path: pathlib.Path) -> None:
    r = np.random.default_rng(0)
    sides = [(20, 30), (30, 20)] * 20
    noise = [{"image": r.integers(0, 256, (*s, 3), np.uint8), "label": 0} for s in sides]
    packio.pack(noise, tmp_path / "a.tar")
    ds = packio.TarDataset(tmp_path / "a.tar", crop=packio.BucketCrop(), seed=3)
    sampler = packio.BucketSampler(ds, [(8, 12), (12, 8)], batch_size=4)
    order = IndexOrder(lambda: sampler)
    for _ in range(8):  # across batches: the indices get one size
        assert ds.gather(order.take(7))[0].shape[0] == 7
    shapes = []
    said = packio.doctor(
        packio.Loader(ds, batch_sampler=sampler), lambda batch: shapes.append(batch[0].shape[2:]),
        seconds=QUICK,
    )  # fmt: skip
    assert (said.measured.stages.decode or 0) > 0
    assert shapes
    assert set(shapes) <= {(8, 12), (12, 8)}


def test_no_loop_takes_what_another_loop_has_read() -> None:
    order = IndexOrder(lambda: [[i, i + 1] for i in range(0, 100, 2)])
    flows = [IndexFeed(order), IndexFeed(order, size=3), IndexFeed(order)]
    taken = [index for _ in range(4) for flow in flows for index in next(iter(flow))]
    assert taken == list(range(len(taken)))


@pytest.mark.parametrize(
    ("batch", "size"),
    [(torch.zeros(5, 2), 5), ([torch.zeros(3), 1], 3), ({"a": "x", "b": torch.zeros(2)}, 2),
     (["a", "b"], 2), (7, 1)],
)  # fmt: skip
def test_the_size_of_a_batch_is_that_of_its_first_tensor(batch: Any, size: int) -> None:
    assert size_of(batch) == size


# What fails


@pytest.mark.parametrize(
    ("loader", "step", "words"),
    [
        (lambda: DataLoader(Numbers(broken), 4), None, "no such colour"),
        (lambda: DataLoader(Numbers(deadly), 4, num_workers=1), None, "exited unexpectedly"),
        (lambda: DataLoader(Numbers(), 4), broken, "the step failed: ValueError"),
        (lambda: DataLoader(Numbers(count=0), 4), None, "yields no batch"),
        (lambda: iter([]), None, "yields no batch"),
    ],
)  # fmt: skip
def test_what_fails_is_told_and_leaves_no_process(loader: Any, step: Any, words: str) -> None:
    children = set(multiprocessing.active_children())
    with pytest.raises(DiagnosisError, match=words):
        packio.doctor(loader(), step, seconds=QUICK)
    assert set(multiprocessing.active_children()) <= children


@pytest.mark.parametrize(
    "options", [{"loader": 7}, {"seconds": 0}, {"step": 7}], ids=["loader", "seconds", "step"]
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        packio.doctor(**{"loader": [torch.zeros(1)], **options})


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("no_such_module:x", OptionError, "No module named 'no_such_module'"),
        ("json:no_such_thing", OptionError, "no attribute 'no_such_thing'"),
        ("module.with.dots:x", OptionError, "No module named 'module'"),
        ("json.nowhere.dots:x", OptionError, "No module named 'json.nowhere'"),
        ("json.decoder:nope.x", OptionError, "no attribute 'nope'"),
        *((name, OptionError, "expected module:object, as train:loader")
          for name in ("no name", ":x", "x:", "a:1b", "a:b:c", "folder/a:b", "a\nb:c", "a..b:x")),
        ("os:abort.x", OptionError, "no attribute 'x'"),
        (f"{__name__}:failing_factory", DiagnosisError, "out of GPUs"),
    ],
)  # fmt: skip
def test_names_that_lead_nowhere_are_explained(name: str, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        find_object(name)


def failing_factory() -> None:
    raise ValueError("out of GPUs")


_TRAINING = """
import time
import torch
from torch.utils.data import DataLoader

def drowsy(samples):
    time.sleep(0.1)
    return torch.stack(samples)

def make():
    return DataLoader([torch.zeros(4)] * 8, 2, num_workers=1, collate_fn=drowsy)

def step(batch):
    assert batch.shape == (2, 4)
"""


def test_the_command_prints_draws_and_profiles(tmp_path: pathlib.Path) -> None:
    (tmp_path / "training.py").write_text(_TRAINING)
    done = run_process(
        "doctor", "training:make", "--seconds", QUICK, "--step", "training:step",
        "--html", "x.html", "--profile", "x.prof", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "of the loop's time" in done.stdout.splitlines()[0]  # a busy machine changes the rest
    took = re.search(r"^collate +([0-9.]+) ms a batch$", done.stdout, re.MULTILINE)
    assert took is not None, done.stdout
    assert float(took[1]) > 10  # it sleeps for 100, less what a busy machine keeps it waiting
    assert "the loop" in done.stderr
    _Page((tmp_path / "x.html").read_text())
    import pstats

    assert pstats.Stats(str(tmp_path / "x.prof")).total_tt > 0  # type: ignore[attr-defined]  # not in typeshed


def test_the_command_looks_at_a_pack(pack: pathlib.Path) -> None:
    done = run("doctor", pack, "--seconds", QUICK, "--size", 16, "--batch-size", 4, "--workers", 0,
               "--json", "-q")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["measured"]["batch_size"] == 4
    assert found["measured"]["stages"]["decode"] > 0
    assert Diagnosis.from_dict(found).verdict == found["verdict"]


@pytest.mark.parametrize(
    "text", ["import sys; sys.exit(3)", "def __getattr__(n): raise ValueError"]
)
def test_a_module_that_fails_is_told(
    text: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fails_at_once.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fails_at_once", raising=False)
    with pytest.raises(DiagnosisError, match="fails_at_once"):
        find_object("fails_at_once:x")


def test_a_python_file_is_no_pack(tmp_path: pathlib.Path) -> None:
    (tmp_path / "my scripts").mkdir()
    (tmp_path / "my scripts/train.py").write_text(_TRAINING)
    done = run("doctor", "my scripts/train.py", cwd=tmp_path)
    assert done.returncode == OptionError.exit_code
    assert "cd 'my scripts' && packio doctor train:LOADER" in done.stderr
    done = run("doctor", "no/such.py", cwd=tmp_path)
    assert done.returncode not in (0, 1)
    assert "a Python file" not in done.stderr
    done = run("doctor", "nowhere:make", cwd=tmp_path)
    assert done.returncode == OptionError.exit_code
    assert "No module named 'nowhere'" in done.stderr
