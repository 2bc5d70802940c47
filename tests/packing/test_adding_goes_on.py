"""Adding a field to samples that came later, in batches, with bad values, and after a cut."""

from __future__ import annotations

import io
import pathlib
import shutil
from typing import TYPE_CHECKING, Any

import killing
import latents
import long
import numpy as np
import pytest
import torch
from cli_runs import run

import packio
from packio.errors import BadImagesError, OptionError, OutputExistsError, SourceError
from packio.packing.fields import parts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@pytest.fixture
def more(image_folder: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """The images, and a second copy of some under other keys."""
    top = tmp_path / "more"
    shutil.copytree(image_folder, top)
    for path in sorted(p for p in image_folder.rglob("*") if p.is_file())[:7]:
        shutil.copy(path, top / path.relative_to(image_folder).with_name(f"new-{path.name}"))
    return top


@pytest.fixture
def pack(image_folder: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A pack of two shards without fields."""
    out = tmp_path / "out" / "x.tar"
    out.parent.mkdir()
    packio.pack(image_folder, out, shards=2)
    return out


# Samples that came later


@pytest.mark.parametrize("name", latents.FORMATS)
def test_only_appended_samples_get_values(
    name: str, image_folder: pathlib.Path, more: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / f"x{latents.suffix(name)}"
    packio.pack(image_folder, out, shards=2)
    old = latents.keys(out)
    packio.add_field(out, "latent", latents.latent_of)
    warned = packio.append(out, more).warnings
    assert any("--field latent=FROM --only-new" in line for line in warned)
    new = [key for key in latents.keys(out) if key not in old]
    assert len(new) == 7
    latents.check(out, new)
    before, called = latents.files(out, times=True), []

    def value(sample: packio.Sample) -> np.ndarray:
        called.append(sample.key)
        return latents.latent_of(sample)

    report = packio.add_field(out, "latent", value, only_new=True)
    assert called == new
    assert (report.samples, report.missing, report.kept, report.unfilled) == (7, 0, len(old), 0)
    after = latents.files(out, times=True)
    assert before.items() <= after.items()
    assert len(after) > len(before)
    latents.check(out)
    again = packio.add_field(out, "latent", value, only_new=True)
    assert (again.samples, again.kept, again.digest) == (0, 32, report.digest)
    assert len(called) == 7
    packio.convert(out, tmp_path / "other.zarr")
    latents.check(tmp_path / "other.zarr")
    packio.reindex(out)
    latents.check(out)
    packio.drop_field(out, "latent")
    kept = {n: data for n, data in before.items() if "latent" not in n}
    assert latents.files(out, times=True) == kept


def test_a_folder_of_all_values_gives_those_of_new_samples(
    pack: pathlib.Path, more: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    packio.add_field(pack, "latent", latents.latent_of)
    packio.append(pack, more)
    latents.save(tmp_path / "latents", latents.keys(pack))
    gone = next(path for path in (tmp_path / "latents").rglob("new-*"))
    gone.rename(tmp_path / "gone.npy")
    with pytest.raises(SourceError, match="1 of 7 samples have no value"):
        packio.add_field(pack, "latent", tmp_path / "latents", only_new=True)
    (tmp_path / "gone.npy").rename(gone)
    report = packio.add_field(pack, "latent", tmp_path / "latents", only_new=True)
    assert (report.samples, report.unused) == (7, ())
    latents.check(pack)


def test_samples_without_a_value_among_others_stay_so_and_are_counted(
    pack: pathlib.Path, more: pathlib.Path
) -> None:
    lacking = latents.keys(pack)[3:5]
    packio.add_field(
        pack, "latent", lambda s: None if s.key in lacking else latents.latent_of(s), missing=True
    )
    assert packio.add_field(pack, "latent", latents.latent_of, only_new=True).unfilled == 2
    packio.append(pack, more)
    report = packio.add_field(pack, "latent", latents.latent_of, only_new=True)
    assert (report.samples, report.kept, report.unfilled) == (7, 23, 2)
    latents.check(pack, lacking)
    packio.add_field(pack, "latent", latents.latent_of, overwrite=True)
    latents.check(pack)


def test_a_pack_without_the_field_gets_it_for_all(pack: pathlib.Path) -> None:
    assert packio.add_field(pack, "latent", latents.latent_of, only_new=True).samples == 25
    latents.check(pack)


def test_new_values_are_of_the_kind_of_the_old(pack: pathlib.Path, more: pathlib.Path) -> None:
    packio.add_field(pack, "latent", latents.latent_of)
    packio.append(pack, more)
    with pytest.raises(BadImagesError, match="in a field of kind array"):
        packio.add_field(pack, "latent", lambda _: "text", only_new=True)
    with pytest.raises(OptionError, match="of kind array there, not text"):
        packio.add_field(pack, "latent", lambda _: "text", only_new=True, kind="text")
    with pytest.raises(OptionError, match="say one"):
        packio.add_field(pack, "latent", latents.latent_of, only_new=True, overwrite=True)


def test_fields_packed_with_their_images_go_on_too(
    image_folder: pathlib.Path, more: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The old values lie in the shards themselves."""
    out = tmp_path / "x.tar"
    packio.pack(image_folder, tmp_path / "first.tar", shards=2)
    packio.add_field(tmp_path / "first.tar", "latent", latents.latent_of)
    packio.convert(tmp_path / "first.tar", out, shards=2)
    packio.append(out, more)
    assert packio.add_field(out, "latent", latents.latent_of, only_new=True).samples == 7
    latents.check(out)
    assert packio.drop_field(out, "latent").remaining > 0
    assert packio.verify(out).ok


@pytest.mark.parametrize("suffix", [".tar", ".lmdb"])
@pytest.mark.parametrize("stride", long.after(1, (4, 1)))
def test_a_kill_at_any_step_loses_no_value_of_before(
    suffix: str, stride: int, image_folder: pathlib.Path, more: pathlib.Path,
    tmp_path: pathlib.Path,
) -> None:  # fmt: skip
    fresh = tmp_path / "fresh" / f"x{suffix}"
    fresh.parent.mkdir()
    packio.pack(image_folder, fresh, shards=2, include=["*/*00*"])
    packio.add_field(fresh, "latent", latents.latent_of)
    packio.append(fresh, more)
    old = [*latents.arrays(fresh)]

    def run(place: pathlib.Path) -> None:
        packio.add_field(place / fresh.name, "latent", latents.latent_of, only_new=True)

    def check(place: pathlib.Path, _: bool) -> None:
        found = latents.arrays(place / fresh.name)
        assert all(np.array_equal(found[key], latents.latent(key)) for key in old)
        run(place)
        latents.check(place / fresh.name)
        assert not list(place.glob("*.packio-add"))

    assert killing.kill_at_each_step(fresh.parent, run, check, stride) > 10


def test_the_command_line_says_what_only_new_did(
    pack: pathlib.Path, more: pathlib.Path, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "my_latents.py").write_text(
        "def each(samples):\n    return [sample.width for sample in samples]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ("add", pack, "--field", "width=my_latents:each", "--batch-size", 4)
    assert run(*words).returncode == 0
    assert "--field width=FROM --only-new" in run("append", pack, more).stderr
    assert "7 samples; 25 had one before" in run(*words, "--only-new").stdout
    assert "no shard lacks width; nothing to add" in run(*words, "--only-new").stdout
    with packio.open(pack) as opened:
        widths = [np.load(io.BytesIO(s.fields["width"].data)) for s in opened]
        assert widths == [s.width for s in opened]


# Batches

BATCHES: dict[str, Callable[[Sequence[packio.Sample]], Any]] = {
    "array": latents.latents_of,
    "tensor": lambda samples: torch.from_numpy(latents.latents_of(samples)),
    "list": lambda samples: [latents.latent_of(sample) for sample in samples],
    "generator": lambda samples: (latents.latent_of(sample) for sample in samples),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_function_takes_batches(name: str, pack: pathlib.Path) -> None:
    sizes = []

    def values(samples: Sequence[packio.Sample]) -> Any:
        sizes.append(len(samples))
        return BATCHES[name](samples)

    report = packio.add_field(pack, "latent", values, batch_size=8)
    assert sizes == [8, 8, 8, 1]
    assert report.shapes == {"(2, 3) float16": 25}
    latents.check(pack)


@pytest.mark.parametrize("name", long.after(1, sorted(latents.FORMATS, key="tar".__ne__)))
def test_batches_and_workers_make_the_files_that_one_sample_at_a_time_makes(
    name: str, image_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "ROWS", 4)
    found = []
    ways: list[tuple[str, Any, dict[str, Any]]] = [
        ("one", latents.latent_of, {}),
        ("batches", latents.latents_of, {"batch_size": 7}),
        ("workers", latents.latent_of, {"workers": 2}),
        ("batches of workers", latents.latents_of, {"batch_size": 3, "workers": 2}),
    ]
    for place, function, options in ways:
        (tmp_path / place).mkdir()
        out = tmp_path / place / f"x{latents.suffix(name)}"
        packio.pack(image_folder, out, shards=2)
        packio.add_field(out, "latent", function, **options)
        latents.check(out)
        found.append(latents.files(out.parent))
    assert found[1:] == found[:1] * 3


@pytest.mark.parametrize(
    "returned", [[1, 2], [], None, "text of eight", {"a": 1}, 3.0], ids=str
)  # fmt: skip
def test_a_batch_has_a_value_each(pack: pathlib.Path, returned: Any) -> None:
    with pytest.raises(BadImagesError, match=r"takes 8 samples and returns (one|[02] values)"):
        packio.add_field(pack, "latent", lambda _: returned, batch_size=8)


def test_a_bad_sample_costs_only_its_own_value(pack: pathlib.Path) -> None:
    bad = {latents.keys(pack)[i]: f"no {i}" for i in (3, 4, 20)}

    def values(samples: Sequence[packio.Sample]) -> Any:
        for sample in samples:
            if sample.key in bad:
                raise ValueError(bad[sample.key])
        return latents.latents_of(samples)

    report = packio.add_field(pack, "latent", values, batch_size=8, on_error="skip")
    assert [key for key, _ in report.skipped] == [*bad]
    for (_, why), expected in zip(report.skipped, bad.values(), strict=True):
        assert f"ValueError: {expected}" in why
    assert (report.samples, report.missing) == (22, 3)
    latents.check(pack, [*bad])


def test_values_of_a_batch_may_be_none_or_bad_each(pack: pathlib.Path) -> None:
    none, bad = latents.keys(pack)[1], latents.keys(pack)[2]

    def values(samples: Sequence[packio.Sample]) -> list[Any]:
        odd = {none: None, bad: np.array([object()])}
        return [odd.get(s.key, latents.latent_of(s)) for s in samples]

    report = packio.add_field(
        pack, "latent", values, batch_size=5, on_error="skip", missing=True
    )  # fmt: skip
    assert [key for key, _ in report.skipped] == [bad]
    assert (report.samples, report.missing) == (23, 2)
    latents.check(pack, [none, bad])


def test_a_batch_that_is_too_large_is_told(pack: pathlib.Path) -> None:
    def values(samples: Sequence[packio.Sample]) -> Any:
        if len(samples) > 4:
            raise RuntimeError("out of memory")
        return latents.latents_of(samples)

    with pytest.raises(BadImagesError, match=r"8 samples at once.*out of memory.*smaller batch"):
        packio.add_field(pack, "latent", values, batch_size=8, on_error="skip")
    packio.add_field(pack, "latent", values, batch_size=4)
    latents.check(pack)


def test_files_come_in_no_batches(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "latents").mkdir()
    with pytest.raises(OptionError, match="latents is no function"):
        packio.add_field(pack, "latent", tmp_path / "latents", batch_size=8)
    with pytest.raises(OptionError, match="batch_size"):
        packio.add_field(pack, "latent", latents.latents_of, batch_size=0)


# Bad values


def test_all_bad_values_are_listed_and_the_good_ones_stay(pack: pathlib.Path) -> None:
    keys, calls, mended = latents.keys(pack), list[str](), list[bool]()
    bad = [keys[i] for i in (0, 7, 8, 24)]

    def value(sample: packio.Sample) -> np.ndarray:
        calls.append(sample.key)
        if sample.key in bad and not mended:
            raise ValueError(f"nothing of {sample.key}")
        return latents.latent_of(sample)

    with pytest.raises(BadImagesError) as raised:
        packio.add_field(pack, "latent", value)
    assert [key for key, _ in raised.value.skipped] == bad
    for key, why in raised.value.skipped:
        assert f"ValueError: nothing of {key}" in why
        assert key in str(raised.value)
    with packio.open(pack) as opened:
        assert list(opened.fields) == ["image"]
    calls.clear()
    with pytest.raises(BadImagesError, match="bad values: 4;"):
        packio.add_field(pack, "latent", value)
    assert calls == bad
    mended.append(True)
    report = packio.add_field(pack, "latent", value)
    assert (report.samples, report.resumed) == (25, 21)
    assert calls == [*bad, *bad]
    latents.check(pack)


def test_a_run_that_skips_goes_on_from_one_that_did_not(pack: pathlib.Path) -> None:
    bad, calls = latents.keys(pack)[5], list[str]()

    def value(sample: packio.Sample) -> Any:
        calls.append(sample.key)
        return np.array([object()]) if sample.key == bad else latents.latent_of(sample)

    with pytest.raises(BadImagesError, match="expected numbers"):
        packio.add_field(pack, "latent", value)
    report = packio.add_field(pack, "latent", value, on_error="skip")
    assert [key for key, _ in report.skipped] == [bad]
    assert calls[25:] == [bad]
    assert (report.samples, report.missing, report.resumed) == (24, 1, 24)
    latents.check(pack, [bad])


def test_a_run_stops_after_too_many_bad_values(pack: pathlib.Path) -> None:
    calls = list[str]()

    def value(sample: packio.Sample) -> Any:
        calls.append(sample.key)
        raise ValueError("broken")

    with pytest.raises(BadImagesError, match="stopped, as more than 3 are bad") as raised:
        packio.add_field(pack, "latent", value, max_errors=3)
    assert len(calls) == len(raised.value.skipped) == 4
    with pytest.raises(BadImagesError, match="stopped, as more than 0"):
        packio.add_field(pack, "latent", value, max_errors=0, on_error="skip")
    with pytest.raises(SourceError, match="no sample has a value"):
        packio.add_field(pack, "latent", value, on_error="skip")


@pytest.mark.parametrize("name", latents.FORMATS)
def test_the_command_lists_bad_files_and_ends_with_65_or_leaves_them_out(
    name: str, image_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / f"x{latents.suffix(name)}"
    packio.pack(image_folder, out, shards=2)
    latents.save(tmp_path / "latents", latents.keys(out))
    bad = [latents.keys(out)[i] for i in (2, 11, 12)]
    for key in bad:
        (tmp_path / "latents" / f"{key}.npy").write_bytes(b"\x93NUMPY cut")
    words = ("add", out, "--field", f"latent={tmp_path / 'latents'}")
    done = run(*words)
    assert done.returncode == 65
    assert "bad values: 3;" in done.stderr
    assert all(f"{key}: " in done.stderr for key in bad)
    done = run(*words, "--on-error", "skip")
    assert done.returncode == 0
    assert "3 bad values are left out" in done.stdout
    assert all(f"{key}: " in done.stdout for key in bad)
    latents.check(out, bad)


# What was cut short


def _cut_short(pack: pathlib.Path) -> Callable[[packio.Sample], np.ndarray]:
    """Let a run end after 10 samples; return a function of the same name that does well."""
    limit = [10]

    def encode(sample: packio.Sample) -> np.ndarray:
        limit[0] -= 1
        if limit[0] < 0:
            raise KeyboardInterrupt
        return latents.latent_of(sample)

    with pytest.raises(KeyboardInterrupt):
        packio.add_field(pack, "latent", encode)
    limit[0] = 1000
    return encode


def test_another_command_does_not_discard_what_a_function_made(
    pack: pathlib.Path, more: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    packio.add_field(pack, "other", lambda sample: sample.key)
    encode = _cut_short(pack)
    texts = dict.fromkeys(latents.keys(pack), "words")
    told = r"packio add of 'latent' from .*encode was cut short, with 10 values made"
    for refused in (
        lambda: packio.add_field(pack, "caption", texts),
        lambda: packio.add_field(pack, "latent", latents.latent_of),
        lambda: packio.add_field(pack, "latent", encode, kind="bytes"),
        lambda: packio.append(pack, more),
        lambda: packio.drop_field(pack, "other"),
    ):
        with pytest.raises(OutputExistsError, match=told):
            refused()
    (tmp_path / "c.csv").write_text("key,caption\n")
    assert run("append", pack, more).returncode == 73
    assert packio.add_field(pack, "latent", encode).resumed == 10
    latents.check(pack)
    assert packio.append(pack, more).added == 7


def test_what_a_function_made_is_discarded_if_that_is_said(pack: pathlib.Path) -> None:
    for name in ("caption", "latent"):
        encode = _cut_short(pack)
        report = packio.add_field(pack, name, encode, resume=False)
        assert (report.samples, report.resumed) == (25, 0)
        packio.drop_field(pack, name)


def test_files_that_were_mended_are_read_anew(pack: pathlib.Path, tmp_path: pathlib.Path) -> None:
    path = latents.save(tmp_path / "latents", latents.keys(pack))
    path.write_bytes(b"cut")
    with pytest.raises(BadImagesError):
        packio.add_field(pack, "latent", tmp_path / "latents")
    with pytest.raises(OutputExistsError, match=r"from .*latents was cut short, with 24 values"):
        packio.add_field(pack, "caption", dict.fromkeys(latents.keys(pack), "words"))
    latents.save(tmp_path / "latents", latents.keys(pack)[-1:])
    packio.add_field(pack, "latent", tmp_path / "latents")
    latents.check(pack)


def test_nothing_new_leaves_what_was_cut_short(pack: pathlib.Path) -> None:
    packio.add_field(pack, "caption", lambda sample: sample.key)
    encode = _cut_short(pack)
    packio.add_field(pack, "caption", lambda sample: sample.key, only_new=True)
    assert packio.add_field(pack, "latent", encode).resumed == 10
