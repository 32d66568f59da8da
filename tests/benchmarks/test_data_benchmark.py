"""The data benchmark answers its question on a few rows; no time is asserted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest

MODULES = ("data",)
SMALL = ["--rows", "3000", "--peer-rows", "3000", "--batch", "700", "--passes", "1", "--rss-gb", "0.001"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("benchmark")


@pytest.fixture(scope="module")
def answer(ask: Callable[..., dict[str, Any]], cache: Path) -> dict[str, Any]:
    return ask("data", *SMALL, "--cache", cache, "--no-install", "--scaling", "1,2")


def test_the_last_line_has_every_figure_of_this_machine(answer: dict[str, Any]) -> None:
    measured = [
        "scalar_vs_arrow",
        "ragged_vs_arrow",
        "string_vs_arrow",
        "shuffle_vs_arrow",
        "vs_torch_dataloader",
    ]
    assert all(answer[key] > 0 for key in [*measured, "vs_torch_dataloader_batched", "peak_rss_mb"])
    assert {"cpu", "cores", "threads", "date", "versions", "passes"} <= answer.keys()


def test_a_peer_that_is_not_installed_is_absent_with_a_reason(answer: dict[str, Any]) -> None:
    for key in ("vs_hf_datasets", "vs_tfrecord"):
        assert answer[key] is None
        assert "--no-install" in answer["absent"][key]


def test_every_side_reads_every_row(answer: dict[str, Any]) -> None:
    parts = answer["parts"]
    assert {parts[name]["rows"] for name in ("scalar", "ragged", "string", "torch")} == {3000}
    assert parts["rss"]["rows"] >= 131_072


def test_each_thread_count_of_the_scaling_is_measured(answer: dict[str, Any]) -> None:
    assert list(answer["parts"]["scaling"]) == ["1", "2"]


def test_files_are_as_the_question_states(answer: dict[str, Any], cache: Path) -> None:
    file = pq.ParquetFile(next(cache.glob("ragged-3000-*.parquet")))
    kinds = [str(field.type) for field in file.schema_arrow]
    assert (kinds.count("int64"), kinds.count("float"), kinds.count("int8"), len(kinds)) == (26, 13, 1, 48)
    lengths = file.read(["list0"])["list0"].combine_chunks().value_lengths().to_numpy()
    assert (lengths.min(), lengths.max()) == (0, 40)
    column = file.metadata.row_group(0).column(1)
    assert column.compression == "SNAPPY"
    assert "RLE_DICTIONARY" in column.encodings


def test_an_unknown_part_is_refused_with_the_valid_names(
    modules: dict[str, ModuleType], refusal: Callable[..., str]
) -> None:
    assert "unknown part scaler: choose from scalar," in refusal(modules["data"], "--only", "scaler")


def test_the_chart_is_drawn_from_the_answer(answer: dict[str, Any], drawn: Callable[..., str]) -> None:
    assert "<svg" in drawn("plot", answer)
