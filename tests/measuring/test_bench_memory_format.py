"""`packio bench-memory-format` and the library function behind it, on tiny batches."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import readme_tables
import torch
from cli_runs import Done, run

from packio.errors import OptionError
from packio.measuring.bench import memory_format

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packio.system.progress import Progress

CPU = torch.device("cpu")
TINY: dict[str, Any] = {"device": "cpu", "batch_size": 2, "size": 16, "dtypes": ["float32"]}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other are slow where others compute as well."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def result() -> memory_format.MemoryFormatResult:
    seen: list[Progress] = []
    found = memory_format.measure(**TINY, rounds=2, progress=seen.append)
    assert seen[-1].done == seen[-1].total
    return found


def _cli(*arguments: str) -> Done:
    tiny = ["--device", "cpu", "--dtype", "float32", "--batch-size", "2", "--size", "16"]
    return run("bench-memory-format", *tiny, "--rounds", "1", *arguments)


def _batch() -> torch.Tensor:
    return torch.randint(0, 256, (2, 3, 16, 24), dtype=torch.uint8)


def test_views_show_the_same_images_in_the_layouts_they_are_named_after() -> None:
    batch = _batch()
    views = memory_format.make_views(batch)
    assert all(torch.equal(view, batch) for view in views.values())
    contiguous = {name for name, v in views.items() if v.is_contiguous()}
    last = {n for n, v in views.items() if v.is_contiguous(memory_format=torch.channels_last)}
    assert (contiguous, last) == ({"contiguous"}, {"channels_last"})
    nhwc = batch.permute(0, 2, 3, 1).contiguous()
    assert nhwc.permute(0, 3, 1, 2).stride() == views["channels_last"].stride()


def test_every_layout_does_the_same_work() -> None:
    cases = memory_format.network_cases(_batch(), CPU, torch.float32)
    assert len(cases) == 2 * 2 * 6
    for part in ("plain", "depthwise"):
        forward = [work() for key, work in cases.items() if key[:2] == (part, "forward")]
        assert len(forward) == 6
        for other in forward[1:]:
            torch.testing.assert_close(other, forward[0], rtol=1e-3, atol=1e-4)
    works = memory_format.data_cases(_batch().fill_(7), CPU)
    for stage in ("collate", "copy", "to float"):
        done = [work() for key, work in works.items() if key[1] == stage]
        assert len(done) == 4
        assert all(torch.equal(other, done[0]) for other in done[1:])


def test_a_step_leaves_gradients_and_only_the_depthwise_net_has_groups() -> None:
    plain, depthwise = (memory_format.make_network(part) for part in ("plain", "depthwise"))
    groups = [
        {m.groups for m in net.modules() if isinstance(m, torch.nn.Conv2d)}
        for net in (plain, depthwise)
    ]
    assert groups == [{1}, {1, 32, 64, 128}]
    memory_format.run_step(plain, torch.rand(2, 3, 16, 16), torch.tensor([0, 1]))
    assert all(p.grad is not None for p in plain.parameters())


def test_rows_are_medians_with_the_spread_of_the_rounds(
    result: memory_format.MemoryFormatResult,
) -> None:
    assert (result.rounds, result.batch_size, result.size) == (2, 2, 16)
    assert {r.part for r in result.rows} == {"plain", "depthwise", "data"}
    for row in result.rows:
        assert 0 < row.fastest <= row.milliseconds <= row.slowest
        assert 0 < row.lowest <= row.ratio <= row.highest
    own = [r for r in result.rows if r.images == "contiguous" and r.model != "channels_last"]
    assert {(r.ratio, r.lowest, r.highest) for r in own} == {(1.0, 1.0, 1.0)}


def test_the_ratio_is_to_contiguous_images_of_the_same_round() -> None:
    names = [("contiguous", "contiguous"), ("channels_last", "contiguous")]
    times = [[1.0, 2.0, 10.0], [3.0, 4.0, 10.0]]
    keys = [("plain", "step", "float32", *name) for name in names]
    _, row = memory_format.sum_up(dict(zip(keys, times, strict=True)))
    assert (row.milliseconds, row.fastest, row.slowest) == (4000, 3000, 10000)
    assert (row.ratio, row.lowest, row.highest) == (2, 1, 3)


def test_the_machine_is_in_the_json(result: memory_format.MemoryFormatResult) -> None:
    found = json.loads(json.dumps(result.as_dict()))
    assert found["machine"]["device"] == "cpu"
    assert found["machine"]["torch"] == torch.__version__
    assert found["machine"]["threads"] == torch.get_num_threads()
    assert found["rows"][0]["part"] == "plain"


@pytest.mark.parametrize(
    "options",
    [
        {"rounds": 0}, {"batch_size": 1}, {"size": 8}, {"dtypes": ["int8"]}, {"device": "meta"},
        {"device": "cuda:99"},
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        memory_format.measure(**TINY | options)


def test_networks_run_in_bfloat16() -> None:
    for key, work in memory_format.network_cases(_batch(), CPU, torch.bfloat16).items():
        work()
        assert key[2] == "bfloat16"


def test_the_command_prints_a_table_or_json_that_the_readmes_is_made_of() -> None:
    done = _cli()
    assert done.returncode == 0, done.stderr
    first, header, *lines, networks, views = done.stdout.splitlines()
    assert first.startswith("batches of 2 images of 16x16; ")
    assert header.split()[:7] == ["part", "stage", "dtype", "images", "model", "ms", "spread"]
    assert len(lines) == 2 * 2 * 6 + 3 * 4
    assert networks.startswith("float32: channels_last, for images and model, makes ")
    assert views.startswith("views that are not contiguous: ")
    table = readme_tables.memory_format(json.loads(_cli("--json").stdout))
    assert "| contiguous, contiguous |" in table


def test_what_is_wrong_is_one_line_and_an_exit_code() -> None:
    done = _cli("--dtype", "float64", "--quiet")
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("packio: ")


def test_the_conclusions_say_only_what_is_clear() -> None:
    def row(part: str, stage: str, images: str, *ratio: float) -> memory_format.MemoryFormatRow:
        model = "" if part == "data" else "channels_last"
        return memory_format.MemoryFormatRow(part, stage, "float32", images, model, 1, 1, 1, *ratio)

    rows = [
        row("plain", "step", "channels_last", 0.8, 0.7, 0.9),
        row("depthwise", "step", "channels_last", 0.8, 0.7, 1.1),
        row("data", "collate", "cropped view", 3.4, 2.0, 4.0),
        row("data", "copy", "cropped view", 1.2, 0.9, 1.3),
    ]
    assert memory_format.MemoryFormatResult({}, 8, 112, 7, rows).conclusions() == [
        "float32: channels_last, for images and model, makes training 1.25 times as fast (plain)",
        "views that are not contiguous: collate takes 3.4 times as long (cropped view)",
    ]
