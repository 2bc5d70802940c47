"""An index that somebody forged, or a program got wrong, is an error of packio's, or is read.

Every mutant has right checksums: it is written as packio writes an index, only with other content.
"""

from __future__ import annotations

import copy
import os
import random
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fielded
import numpy as np
import pytest
from typer.testing import CliRunner

import packio
from packio import cli
from packio.errors import IntegrityError, NotAPackError, PackioError
from packio.index import indexfile
from packio.index.indexfile import Index
from packio.inspecting.info import describe, list_samples

if TYPE_CHECKING:
    from collections.abc import Callable

MUTANTS = 400
WHOLE: dict[str, Any] = {
    "access": "range", "source": {"kind": "image_folder"}, "versions": {"packio": "0.1.0"},
    "recipe": {"source": "image_folder", "encoding": {"encode": "jpeg", "resize": "short=9"},
               "choice": {"exclude": ["a"]}, "stats": 0},
    "statistics": {"images": 6, "bad": 0, "seed": 0, "mean": [0.1, 0.2, 0.3], "std": [0.1] * 3},
    "plan": "00", "merged": ["00"], "options": {"image": "x"}, "labels": {"min": 0, "offset": 0},
}  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1 << 70, 1.5, float("nan"), "", "\udcff", "x" * 300, [], [0], [[]], {},
    {"a": 1}, {"kind": 7}, [{"name": "data.tar"}],
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fielded.write(tmp_path_factory.mktemp("whole") / "p", **WHOLE)


def content(pack: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    index = Index(pack / "index.packio")
    columns = {name: index.column(name).array().copy() for name in index.column_names}
    return columns, copy.deepcopy(index.metadata)


def used(pack: Path) -> None:
    """Everything that looks at a pack."""
    with packio.open(pack) as opened:
        repr(opened)
        describe(opened)
        list(list_samples(opened, None))
        for name in (*opened.fields, "nothing"):
            tried(opened.split, name)
            tried(opened.find, name)
            tried(opened.row, 0, name)
            tried(opened.rows, [0, -1], name)
        tried(lambda: (list(opened.keys()), opened.by_key(opened.key(0))))
        tried(lambda: (opened.labels, opened.classes, opened.raw_rows))
        tried(opened.read_many, np.arange(len(opened)))
        for i in range(len(opened)):
            for call in (opened.__getitem__, opened.record, opened.boxes, opened.meta):
                tried(call, i)
    for fields in (("image",), (*opened.fields, "label", "boxes", "box_labels", "split")):
        tried(_batch, pack, fields)


def _batch(pack: Path, fields: tuple[str, ...]) -> None:
    ds = packio.PackDataset(pack, fields=fields, crop=packio.RandomResizedCrop(4), seed=0)
    tried(ds.__getitem__, 0)
    tried(ds.__getitems__, list(range(len(ds))))


def tried(call: Callable[..., object], *arguments: object) -> None:
    """Call; only packio's errors are allowed, and those of positions in an empty pack."""
    try:
        call(*arguments)
    except PackioError:
        pass
    except IndexError as error:
        if "is out of range" not in str(error):
            raise


def forged(value: Any, draw: random.Random) -> Any:
    """A JSON value with one of the values in it replaced."""
    if isinstance(value, (dict, list)) and value and draw.random() < 0.8:
        key = draw.choice(list(value) if isinstance(value, dict) else range(len(value)))
        if isinstance(value, dict) and draw.random() < 0.2:
            del value[key]
        else:
            value[key] = forged(value[key], draw)
        return value
    return draw.choice(VALUES)


def mutated(columns: dict[str, np.ndarray], metadata: dict[str, Any], draw: random.Random) -> None:
    """Change a value of the metadata, or a column."""
    if draw.random() < 0.5:
        forged(metadata, draw)
        return
    name = draw.choice(sorted(columns))
    column = columns[name]
    kind = draw.choice(("gone", "short", "long", "type", "axes", "number", "number", "number"))
    if kind == "gone":
        del columns[name]
    elif kind == "short":
        columns[name] = column[: draw.randrange(len(column) + 1)]
    elif kind == "long":
        columns[name] = np.concatenate((column, column[:1]))
    elif kind == "type":
        codes = [np.uint8, np.uint16, np.uint32, np.int64, np.float32]
        columns[name] = column.astype(draw.choice(codes))
    elif kind == "axes":
        columns[name] = draw.choice((column[..., None], column[None], column.reshape(-1)[0]))
    else:
        flat = column.reshape(-1)
        if len(flat):
            most = np.iinfo(column.dtype).max if column.dtype.kind in "iu" else 1e30
            wrong = draw.choice((0, 1, 255, most, most // 2, 1 << 31, 7))
            flat[draw.randrange(len(flat))] = np.array([min(wrong, most)]).astype(column.dtype)[0]


def test_the_index_that_is_mutated_is_right(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = ("split", "find", "row", "rows")  # by names that are not there, too

    def strict(call: Callable[..., object], *arguments: object) -> None:
        if getattr(call, "__name__", "") not in looked_up:
            call(*arguments)

    monkeypatch.setitem(globals(), "tried", strict)
    used(whole)


def test_huge_labels_take_no_memory(tmp_path: Path) -> None:
    pack = fielded.write(tmp_path / "p")
    columns, metadata = content(pack)
    columns["label"][0] = (1 << 63) - 1
    indexfile.write(pack / "index.packio", columns, {**metadata, "classes": []})
    with packio.open(pack) as opened:
        assert describe(opened)["labels"]["outside_classes"] == 1


def test_an_index_that_shrinks_while_it_is_open_is_read_on(tmp_path: Path) -> None:
    pack = fielded.write(tmp_path / "p")
    with packio.open(pack) as opened:
        (pack / "index.packio").write_bytes(b"")  # of a mapped file: a bus error
        assert [s.label for s in opened] == [0, 1, 0, 1, 0, 1]


def test_metadata_of_a_sample_that_is_no_json_is_an_error_that_names_it(tmp_path: Path) -> None:
    pack = fielded.write(tmp_path / "p")
    columns, metadata = content(pack)
    columns["meta_data"][:2] = 255
    indexfile.write(pack / "index.packio", columns, metadata)
    with packio.open(pack) as opened, pytest.raises(IntegrityError, match="metadata of sample 0"):
        opened[0]


@pytest.mark.parametrize("name", ["format", "classes", "splits", "counts", "recipe", "shards"])
def test_forged_metadata_is_refused_by_name(name: str, tmp_path: Path) -> None:
    pack = fielded.write(tmp_path / "p")
    columns, metadata = content(pack)
    indexfile.write(pack / "index.packio", columns, {**metadata, name: 7})
    with pytest.raises(NotAPackError, match=rf"index\.packio: metadata '{name}' is 7, expected"):
        packio.open(pack)


def test_missing_counts_and_files_are_told_by_packios_errors(tmp_path: Path) -> None:
    pack = fielded.write(tmp_path / "p")
    columns, metadata = content(pack)
    del metadata["counts"]
    indexfile.write(pack / "index.packio", columns, metadata)
    with packio.open(pack) as opened:
        assert opened.metadata["counts"] == {"found": 6, "packed": 6, "skipped": 0}
    columns["image/file"][2] = 7
    indexfile.write(pack / "index.packio", columns, metadata)
    with pytest.raises(IntegrityError, match="no file 7, there are 1"):
        packio.warm(pack)


@pytest.mark.parametrize("seed", range(8))
def test_a_mutated_index_is_an_error_of_packios_or_is_read(
    whole: Path, tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    pack = tmp_path / "p"
    pack.mkdir()
    (pack / "data.tar").symlink_to(whole / "data.tar")
    for number in range(MUTANTS // 8):
        columns, metadata = content(whole)
        for _ in range(draw.choice((1, 1, 1, 3))):
            mutated(columns, metadata, draw)
        try:
            indexfile.write(pack / "index.packio", columns, metadata)
        except (ValueError, KeyError):  # no JSON, or nothing an index can hold
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                used(pack)
            except PackioError:
                continue
            except BaseException as error:
                raise AssertionError(f"mutant {number} of seed {seed}") from error


@pytest.mark.parametrize("form", ["--json", "--tsv"])
def test_listing_a_sample_in_a_file_that_is_none_is_an_error(tmp_path: Path, form: str) -> None:
    pack = fielded.write(tmp_path / "p")
    columns, metadata = content(pack)
    columns["image/file"][3] = 9
    indexfile.write(pack / "index.packio", columns, metadata)
    done = CliRunner().invoke(cli.build(), ["ls", str(pack), form])
    assert isinstance(done.exception, IntegrityError)
    assert "sample 3 lies in file 9" in str(done.exception)


def test_verify_tells_of_an_access_that_the_format_does_not_have(tmp_path: Path) -> None:
    pack = fielded.write(tmp_path / "p")
    columns, metadata = content(pack)
    indexfile.write(pack / "index.packio", columns, {**metadata, "access": "tar"})
    report = packio.verify(pack, decode=True)
    assert "says access='tar'" in report.damages[0].problem


def test_a_length_that_no_value_has_is_a_bad_sample(tmp_path: Path) -> None:
    """The file is sparse, so that its size agrees."""
    pack = fielded.write(tmp_path / "p")
    columns, metadata = content(pack)
    columns["image/length"][0], columns["file_bytes"][0] = 1 << 39, 1 << 40
    indexfile.write(pack / "index.packio", columns, metadata)
    os.truncate(pack / "data.tar", 1 << 40)
    with packio.open(pack) as opened, pytest.raises(IntegrityError, match="a value has"):
        opened[0]
    ds = packio.PackDataset(pack, crop=packio.CenterCrop(4), on_error="skip", fields=("image",))
    with pytest.warns(UserWarning, match="replaced by another sample"):
        assert len(ds.__getitems__([0, 1])) == 2
