"""`packio bench-decode` and the library function behind it."""

from __future__ import annotations

import json
from dataclasses import astuple
from typing import TYPE_CHECKING

import numpy as np
import pytest
from cli_runs import run
from PIL import Image

from packio import registry
from packio.errors import MissingPackageError, OptionError, SourceError
from packio.measuring.bench import decode

if TYPE_CHECKING:
    import pathlib

    from packio.measuring.bench.fidelity import Distance
    from packio.system.progress import Progress


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Three JPEGs, one of them CMYK, a PNG, a 16-bit PNG, and a file that is no image."""
    made = tmp_path_factory.mktemp("images")
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8))
    for name in ("one", "two"):
        (made / name).mkdir()
    photo.save(made / "one" / "a.jpg")
    photo.save(made / "two" / "b.jpg", quality=50)
    photo.convert("CMYK").save(made / "one" / "c.jpg", subsampling="4:2:0")
    photo.save(made / "one" / "d.png")
    Image.fromarray(np.arange(60, dtype=np.uint16).reshape(6, 10)).save(made / "two" / "e.png")
    (made / "two" / "notes.txt").write_text("no image")
    return made


def is_identical(difference: Distance | None) -> bool:
    return difference is not None and astuple(difference)[:3] == (0, 0.0, 0.0)


def test_every_installed_decoder_is_measured_or_named_as_missing(folder: pathlib.Path) -> None:
    result = decode.measure(folder, rounds=1, threads=[1])
    assert {*result.versions, *result.missing} == set(registry.names("decoders"))
    measured = {(r.encoding, r.decoder) for r in result.rows if r.stage == "decode"}
    plugins = {name: registry.load("decoders", name) for name in result.versions}
    assert measured == {
        (encoding, name)
        for name, plugin in plugins.items()
        for encoding in plugin.ENCODINGS & {"jpeg", "png"}
    }


def test_images_are_counted_and_those_that_are_none_are_left_out(folder: pathlib.Path) -> None:
    result = decode.measure(folder, rounds=1, threads=[1], decoders=["pillow"])
    assert (result.images, result.unreadable) == (4, 2)
    assert result.pixels == 4 * 40 * 60
    assert {r.encoding: r.images for r in result.rows} == {"jpeg": 3, "png": 1}


def test_refusals_are_counted_and_exact_decoders_are_identical(folder: pathlib.Path) -> None:
    rows = decode.measure(folder, rounds=1, threads=[1]).rows
    for row in (r for r in rows if r.encoding == "jpeg" and r.stage == "decode"):
        assert row.refused == (row.decoder != "pillow")  # the CMYK one
        if registry.load("decoders", row.decoder).EXACT:
            assert is_identical(row.difference)


def test_figures_are_those_of_the_rounds(folder: pathlib.Path) -> None:
    seen: list[Progress] = []
    result = decode.measure(
        folder, rounds=3, threads=[1, 2], workers=[1], decoders=["pillow"], progress=seen.append
    )
    decoding = [r for r in result.rows if r.stage == "decode" and r.encoding == "jpeg"]
    assert [(r.threads, r.workers) for r in decoding] == [(1, 0), (2, 0), (0, 1)]
    for row in result.rows:
        assert 0 < row.slowest <= row.images_per_second <= row.fastest
        assert 0 < row.ms_p50 <= row.ms_p99
        assert row.megapixels_per_second == pytest.approx(row.images_per_second * 40 * 60 / 1e6)
    assert seen[-1].done == seen[-1].total


def test_pillows_lazy_open_is_a_row_of_its_own(folder: pathlib.Path) -> None:
    rows = decode.measure(folder, rounds=1, threads=[1], decoders=["pillow"]).rows
    opening = [r for r in rows if r.stage == "open"]
    assert [r.encoding for r in opening] == ["jpeg", "png"]
    assert {r.difference for r in opening} == {None}


def test_without_a_path_there_are_photographs() -> None:
    result = decode.measure(rounds=1, threads=[1], decoders=["simplejpeg"])
    assert result.images > 1
    assert is_identical(result.rows[0].difference)


def test_a_pack_is_measured_like_its_folder(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    import packio

    packio.pack(folder, tmp_path / "p.lmdb", on_error="skip")
    result = decode.measure(tmp_path / "p.lmdb", rounds=1, threads=[1], decoders=["pillow"])
    assert (result.images, result.unreadable) == (4, 1)  # the 16-bit one


def test_the_limit_spreads_over_the_files(folder: pathlib.Path) -> None:
    result = decode.measure(folder, rounds=1, threads=[1], decoders=["pillow"], limit=2)
    assert result.images + result.unreadable == 2


@pytest.mark.parametrize(
    "options", [{"rounds": 0}, {"threads": [0]}, {"workers": [-1]}, {"limit": 0}]
)
def test_numbers_are_counted_from_one(folder: pathlib.Path, options: dict[str, int]) -> None:
    with pytest.raises(OptionError):
        decode.measure(folder, **options)  # type: ignore[arg-type]  # one option or another


def test_a_folder_without_images_is_a_source_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SourceError, match="no image"):
        decode.measure(tmp_path)


def test_a_missing_package_asked_for_by_name_is_an_error(folder: pathlib.Path) -> None:
    missing = decode.measure(folder, rounds=1, threads=[1]).missing
    if not missing:
        pytest.skip("every decoder is installed")
    with pytest.raises(MissingPackageError, match="pip install"):
        decode.measure(folder, decoders=[next(iter(missing))])


def test_the_command_prints_a_plain_table(folder: pathlib.Path) -> None:
    done = run(
        "bench-decode", folder, "--rounds", "1", "--threads", "1", "--decoder", "pillow", "--quiet"
    )
    assert done.returncode == 0, done.stderr
    assert "4 images" in done.stdout
    assert "2 files left out" in done.stdout
    assert [line.split()[:2] for line in done.stdout.splitlines()[2:]] == [
        ["encoding", "decoder"],
        *([e, "pillow"] for e in ("jpeg", "jpeg", "jpeg", "png", "png", "png")),
    ]
    assert sum("worker" in line for line in done.stdout.splitlines()) == 2  # by default too


def test_json_on_standard_output_is_alone_there(folder: pathlib.Path) -> None:
    done = run("bench-decode", folder, "--rounds", "1", "-t", "1", "-d", "pillow", "--json")
    found = json.loads(done.stdout)
    assert (found["images"], found["rows"][0]["decoder"]) == (4, "pillow")


def test_what_is_wrong_is_one_line_and_an_exit_code(
    folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    for arguments, code in (
        ([folder, "-d", "simplejpg"], 2),
        ([tmp_path], 65),
        ([tmp_path / "none.lmdb"], 65),
    ):
        done = run("bench-decode", *arguments, "--quiet")
        assert done.returncode == code, done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stderr.startswith("packio: ")
