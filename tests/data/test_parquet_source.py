"""Parquet files as a source: chunks, union, filters, bad files, retries, threads."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from hybridrec.data import parquet_source
from hybridrec.data.files import NoFiles, Retry
from hybridrec.data.parquet_source import ParquetSource
from hybridrec.data.source import BadFile


def write(path: Path, columns: dict[str, Any] | pa.Table, **options: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), path, **options)
    return str(path)


def rows(source: ParquetSource, columns: list[str], chunk_rows: int = 1000) -> list[dict]:
    groups = range(len(source.groups))
    return [row for g in groups for chunk in source.open(g, columns, chunk_rows) for row in chunk.to_pylist()]


@pytest.fixture
def clicks(tmp_path: Path) -> str:
    """1,000 rows in row groups of 300, 300, 300, 100."""
    n = 1000
    columns = {
        "id": np.arange(n),
        "city": [None if i % 7 == 0 else f"city{i % 13}" for i in range(n)],
        "tags": [[f"t{j}" for j in range(i % 4)] for i in range(n)],
        "user": [None if i % 11 == 0 else {"age": i % 90, "geo": {"zip": f"z{i % 5}"}} for i in range(n)],
        "deep": [[[i], []] for i in range(n)],
    }
    return write(tmp_path / "clicks.parquet", columns, row_group_size=300)


@pytest.mark.parametrize("chunk_rows", [1, 7, 100, 299, 300, 301])
def test_chunks_are_exact_and_give_the_rows_in_order(clicks: str, chunk_rows: int):
    source = ParquetSource(clicks)
    sizes = [chunk.num_rows for chunk in source.open(1, ["id"], chunk_rows)]
    assert all(size == chunk_rows for size in sizes[:-1])
    assert sum(sizes) == 300
    assert [group.rows for group in source.groups] == [300, 300, 300, 100]
    assert [row["id"] for row in rows(source, ["id"], chunk_rows)] == list(range(1000))


def test_columns_come_in_the_order_asked_with_structs_flattened(clicks: str):
    source = ParquetSource(clicks)
    assert source.schema.names == ["id", "city", "tags", "user.age", "user.geo.zip", "deep"]
    table = pq.read_table(clicks).to_pylist()
    asked = ["user.geo.zip", "deep", "tags", "city", "user.age", "id"]
    read = rows(source, asked, 128)
    assert list(read[0]) == asked
    for got, want in zip(read, table, strict=True):
        user = want["user"] or {"age": None, "geo": {"zip": None}}
        assert got == {
            "id": want["id"], "city": want["city"], "tags": want["tags"], "deep": want["deep"],
            "user.age": user["age"], "user.geo.zip": user["geo"]["zip"],
        }  # fmt: skip


def test_no_columns_still_give_chunks_of_the_right_size(clicks: str):
    assert [chunk.num_rows for chunk in ParquetSource(clicks).open(0, [], 128)] == [128, 128, 44]


def test_a_column_whose_writer_gave_up_on_the_dictionary_is_read_plain(tmp_path: Path):
    words = [f"a-rather-long-identifier-number-{i:032d}" for i in range(60_000)]
    path = write(tmp_path / "a.parquet", {"high": words, "low": ["x", "y"] * 30_000}, row_group_size=60_000)
    chunk = next(ParquetSource(path).open(0, ["high", "low"], 1000))
    assert chunk.schema.field("high").type == pa.string()
    assert pa.types.is_dictionary(chunk.schema.field("low").type)
    assert chunk.column(0).to_pylist() == words[:1000]


def test_a_column_written_without_dictionary_is_read_plain(tmp_path: Path):
    path = write(tmp_path / "a.parquet", {"s": ["x", "y"]}, use_dictionary=False)
    assert next(ParquetSource(path).open(0, ["s"], 10)).schema.field("s").type == pa.string()


@pytest.mark.skipif(
    int(pa.__version__.split(".")[0]) < 26, reason="pyarrow before 26 cannot read null fixed-size lists from Parquet"
)
def test_a_null_fixed_size_list_comes_through(tmp_path: Path):
    column = pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2))
    source = ParquetSource(write(tmp_path / "a.parquet", {"fsl": column}))
    assert next(source.open(0, ["fsl"], 10)).column(0).to_pylist() == [[1.0, 2.0], None]


def test_all_scalar_types_come_through(tmp_path: Path):
    table = pa.table(
        {
            **{f"i{w}": pa.array([1, None], f"int{w}") for w in (8, 16, 32, 64)},
            **{f"u{w}": pa.array([1, None], f"uint{w}") for w in (8, 16, 32, 64)},
            **{f"f{w}": pa.array([np.float16(1.5), None], f"float{w}") for w in (16, 32, 64)},
            "b": [True, None],
            "dec": pa.array([1, None], pa.decimal128(9, 2)),
            "date": pa.array([1, None], pa.date32()),
            "time": pa.array([1, None], pa.time64("us")),
            "ts": pa.array([1, None], pa.timestamp("ns", "UTC")),
            "ls": pa.array(["x", None], pa.large_string()),
            "bin": pa.array([b"x", None]),
            "fsl": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
            "fsb": pa.array([b"abc", None], pa.binary(3)),
            "ll": pa.array([[1], None], pa.large_list(pa.int32())),
            "dict": pa.array(["x", None]).dictionary_encode(),
        }
    )
    source = ParquetSource(write(tmp_path / "a.parquet", table))
    chunk = next(source.open(0, source.schema.names, 10))
    assert chunk.to_pydict() == table.to_pydict()
    assert source.schema.field("dict").type == pa.string()
    assert source.schema.field("ll").type == pa.list_(pa.int32())


def test_a_column_absent_from_a_file_comes_as_typed_nulls(tmp_path: Path):
    write(tmp_path / "a.parquet", {"x": [1, 2, 3]})
    write(tmp_path / "b.parquet", {"x": [4], "tags": [["p"]], "late": pa.array([1], pa.int8())})
    write(tmp_path / "c.parquet", {"x": [5], "late": pa.nulls(1)})
    source = ParquetSource(tmp_path)
    assert [source.absent(file) for file in range(3)] == [{"tags", "late"}, set(), {"tags", "late"}]
    chunks = list(source.open(0, ["tags", "late", "x"], 2))
    assert [chunk.num_rows for chunk in chunks] == [2, 1]
    assert chunks[1].schema.types == [pa.list_(pa.string()), pa.int8(), pa.int64()]
    assert [row["late"] for row in rows(source, ["late"])] == [None, None, None, 1, None]
    assert next(source.open(2, ["late"], 2)).schema.types == [pa.int8()]


def test_only_absent_columns_still_give_all_rows(tmp_path: Path):
    write(tmp_path / "a.parquet", {"x": [1, 2, 3]})
    write(tmp_path / "b.parquet", {"y": [1]})
    assert [chunk.to_pydict() for chunk in ParquetSource(tmp_path).open(0, ["y"], 2)] == [
        {"y": [None, None]},
        {"y": [None]},
    ]


def test_files_that_disagree_on_a_type_are_refused_also_when_bad_files_are_skipped(tmp_path: Path):
    write(tmp_path / "a.parquet", {"x": [1]})
    write(tmp_path / "b.parquet", {"x": ["1"]})
    with pytest.raises(ValueError, match=r"b\.parquet: column 'x' is string, but .*a\.parquet has it as int64"):
        ParquetSource(tmp_path, on_bad_file="skip")


def test_folder_values_become_typed_columns(tmp_path: Path):
    write(tmp_path / "day=1" / "city=a" / "x.parquet", {"x": [1, 2]})
    write(tmp_path / "day=02" / "city=7" / "x.parquet", {"x": [3]})
    write(tmp_path / "day=__HIVE_DEFAULT_PARTITION__" / "city=b" / "x.parquet", {"x": [4]})
    source = ParquetSource(tmp_path)
    assert source.schema == pa.schema({"x": pa.int64(), "day": pa.int64(), "city": pa.string()})
    assert sorted(rows(source, ["city", "x", "day"]), key=lambda row: row["x"]) == [
        {"city": "a", "x": 1, "day": 1},
        {"city": "a", "x": 2, "day": 1},
        {"city": "7", "x": 3, "day": 2},
        {"city": "b", "x": 4, "day": None},
    ]
    assert source.absent(0) == set()


def test_a_folder_value_that_is_also_a_column_needs_a_choice(tmp_path: Path):
    write(tmp_path / "day=1" / "x.parquet", {"day": [5]})
    with pytest.raises(ValueError, match="pass hive=False"):
        ParquetSource(tmp_path)
    assert rows(ParquetSource(tmp_path, hive=False), ["day"]) == [{"day": 5}]


@pytest.mark.parametrize(
    "where",
    [
        pc.field("id") >= 650,
        (pc.field("city") == "city3") & (pc.field("user.age") < 40),
        pc.field("city").isin(["city3", "city4"]),
        pc.field("city").is_null(),
        ~(pc.field("user.geo.zip") == "z1"),
    ],
)
def test_a_mask_marks_the_rows_that_arrow_itself_would_keep(clicks: str, where: pc.Expression):
    source = ParquetSource(clicks)
    mask = np.concatenate([source.mask(group, where) for group in range(4)])
    table = pa.Table.from_pylist(rows(source, ["id", "city", "user.age", "user.geo.zip"]))
    assert mask.dtype == bool
    assert table["id"].filter(pa.array(mask)).to_pylist() == table.filter(where)["id"].to_pylist()
    assert 0 < mask.sum() < 1000
    kept = source.prune(where)
    assert all(group in kept for group in range(4) if source.mask(group, where).any())


def test_pruning_uses_statistics_folder_values_and_keeps_files_without_the_column(tmp_path: Path):
    write(tmp_path / "day=1" / "a.parquet", {"x": range(100)}, row_group_size=25)
    write(tmp_path / "day=2" / "b.parquet", {"x": range(100, 150)}, row_group_size=25)
    write(tmp_path / "day=3" / "c.parquet", {"y": [1]})
    source = ParquetSource(tmp_path)
    assert source.prune(pc.field("x") >= 80) == {3, 4, 5, 6}
    assert source.prune(pc.field("day") == 2) == {4, 5}
    assert source.prune((pc.field("day") == 1) & (pc.field("x") < 30)) == {0, 1}
    assert source.mask(4, pc.field("day") == 2).all()
    assert not source.mask(6, pc.field("x") >= 80).any()
    assert source.mask(6, pc.field("x").is_null()).all()


def test_a_filter_on_an_unknown_column_is_an_error_everywhere(clicks: str):
    source = ParquetSource(clicks)
    for call in (lambda w: source.mask(0, w), source.prune):
        with pytest.raises(ValueError, match="unknown column 'idd'; the columns are id, city"):
            call(pc.field("idd") > 1)


def test_an_unknown_column_and_a_chunk_of_no_rows_are_refused_at_once(clicks: str):
    source = ParquetSource(clicks)
    with pytest.raises(ValueError, match="unknown column 'idd'; the columns are id, city"):
        source.open(0, ["idd"], 10)
    with pytest.raises(ValueError, match="chunk_rows=0"):
        source.open(0, ["id"], 0)


def test_files_without_rows_have_no_groups(tmp_path: Path):
    write(tmp_path / "a.parquet", {"x": pa.array([], pa.int64())})
    write(tmp_path / "b.parquet", {"x": [1, 2]})
    source = ParquetSource(tmp_path)
    assert [(group.file, group.rows) for group in source.groups] == [(1, 2)]
    assert ParquetSource(tmp_path / "a.parquet").groups == []


def break_file(path: Path, how: str) -> None:
    if how == "text":
        path.write_text("user,item\n1,2\n")
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "truncated":
        write(path, {"x": range(1000)})
        os.truncate(path, path.stat().st_size // 2)
    elif how == "no columns":
        write(path, pa.table({}))
    elif how == "duplicate":
        write(path, pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"]))


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("text", "not a parquet file"),
        ("empty", "0 bytes"),
        ("truncated", "not found in footer"),
        ("no columns", "no columns"),
        ("duplicate", "column 'x' appears twice"),
        ("missing", "does not exist"),
    ],
)
def test_a_bad_file_is_named_or_skipped_and_counted(tmp_path: Path, how: str, reason: str):
    good = write(tmp_path / "a.parquet", {"x": [1]})
    bad = tmp_path / "b.parquet"
    break_file(bad, how)
    with pytest.raises(BadFile, match=reason) as raised:
        ParquetSource([good, bad])
    assert str(bad) in str(raised.value)
    assert 'on_bad_file="skip"' in str(raised.value)
    source = ParquetSource([good, bad], on_bad_file="skip")
    assert source.files == [good]
    assert [name for name, _ in source.bad] == [str(bad)]
    assert reason in source.bad[0][1]
    with pytest.raises(ValueError, match="none of 1 files can be read"):
        ParquetSource(bad, on_bad_file="skip")


def test_an_empty_folder_and_an_unknown_policy_are_errors(tmp_path: Path, clicks: str):
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoFiles, match="matches no file"):
        ParquetSource(tmp_path / "empty")
    with pytest.raises(ValueError, match='the choices are "error" and "skip"'):
        ParquetSource(clicks, on_bad_file="ignore")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (os.remove, "does not exist"),
        (lambda path: os.truncate(path, 500), "bytes when indexed, now it has 500"),
        (lambda path: write(Path(path), {"id": [1]}), "bytes when indexed"),
    ],
)
def test_a_file_that_changes_after_indexing_names_file_and_row_group(clicks: str, change, reason: str):
    source = ParquetSource(clicks)
    change(clicks)
    with pytest.raises(BadFile, match=reason) as raised:
        list(source.open(2, ["id"], 100))
    assert str(raised.value).startswith(source.describe(2))
    assert source.describe(2) == f"{clicks}, row group 2"


def test_corrupt_pages_name_file_and_row_group_and_are_not_retried(clicks: str):
    source = ParquetSource(clicks, retry=Retry(sleep=lambda _: pytest.fail("a corrupt local file was retried")))
    with open(clicks, "r+b") as handle:
        column = pq.read_metadata(clicks).row_group(1).column(0)
        handle.seek(column.dictionary_page_offset)
        handle.write(b"\xff" * column.total_compressed_size)
    with pytest.raises(BadFile, match=r"clicks\.parquet, row group 1: "):
        list(source.open(1, ["id"], 100))
    assert sum(chunk.num_rows for chunk in source.open(0, ["id"], 100)) == 300


class FlakyFile:
    """A file whose reads fail while the file system has failures left, after some reads went well."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, *args: Any) -> bytes:
        Flaky.reads += 1
        if Flaky.reads in Flaky.fail_at:
            raise OSError("connection reset by peer")
        return self._inner.read(*args)


class Flaky(fsspec.get_filesystem_class("file")):
    protocol = "flaky"
    cachable = False
    reads: ClassVar[int] = 0
    fail_at: ClassVar[set[int]] = set()
    fail_open: ClassVar[int] = 0

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if Flaky.fail_open:
            Flaky.fail_open -= 1
            raise TimeoutError("connect timed out")
        return FlakyFile(super().open(path, mode, **kwargs))


@pytest.fixture
def flaky():
    Flaky.reads, Flaky.fail_at, Flaky.fail_open = 0, set(), 0
    return Flaky()


class Breaking(ParquetSource):
    """A source whose reads break before the batches with these numbers, counted over all attempts."""

    breaks: ClassVar[list[int]] = []

    def _batches(self, *args: Any) -> Iterator[pa.RecordBatch]:
        for position, batch in enumerate(super()._batches(*args)):
            if self.breaks and position == self.breaks[0]:
                self.breaks.pop(0)
                raise OSError(errno.EIO, "input/output error")
            yield batch


def test_a_read_that_breaks_goes_on_with_the_chunk_where_it_broke(clicks: str):
    waits: list[float] = []
    source = Breaking(clicks, retry=Retry(attempts=3, wait=1.0, sleep=waits.append))
    Breaking.breaks = [2, 1, 5, 0]
    assert [row["id"] for row in rows(source, ["id"], 50)] == list(range(1000))
    assert Breaking.breaks == []
    assert waits == [1.0, 2.0, 1.0, 2.0]  # a chunk that arrives starts the count again


def test_a_file_system_that_breaks_while_reading_is_opened_again(clicks: str, flaky: Flaky):
    waits: list[float] = []
    source = ParquetSource(clicks, filesystem=flaky, retry=Retry(wait=1.0, sleep=waits.append))
    Flaky.reads, Flaky.fail_at = 0, {1, 2, 5}
    assert [row["id"] for row in rows(source, ["id", "tags"], 50)] == list(range(1000))
    assert len(waits) >= 2
    assert Flaky.reads > 5


def test_reads_that_keep_breaking_end_in_an_error_after_the_attempts(clicks: str, flaky: Flaky):
    waits: list[float] = []
    source = ParquetSource(clicks, filesystem=flaky, retry=Retry(attempts=3, wait=0.5, sleep=waits.append))
    Flaky.fail_open = 99
    with pytest.raises(BadFile, match=r"row group 0: connect timed out") as raised:
        list(source.open(0, ["id"], 100))
    assert isinstance(raised.value.__cause__, TimeoutError)
    assert waits == [0.5, 1.0]


def test_footers_are_read_again_after_a_transient_error(clicks: str, flaky: Flaky):
    waits: list[float] = []
    Flaky.fail_open = 2
    assert len(ParquetSource(clicks, filesystem=flaky, retry=Retry(sleep=waits.append)).groups) == 4
    assert len(waits) == 2


def test_an_fsspec_url_is_read_like_a_local_file(clicks: str):
    memory = fsspec.filesystem("memory")
    memory.pipe("/parquet-test/clicks.parquet", Path(clicks).read_bytes())
    try:
        remote, local = ParquetSource("memory://parquet-test/*.parquet"), ParquetSource(clicks)
        assert rows(remote, local.schema.names, 77) == rows(local, local.schema.names, 77)
        assert remote.fingerprint == local.fingerprint
    finally:
        memory.rm("/parquet-test", recursive=True)


def test_a_pickled_source_reads_the_same(clicks: str):
    source = ParquetSource(clicks)
    copy = pickle.loads(pickle.dumps(source))
    assert copy.fingerprint == source.fingerprint
    assert rows(copy, ["id", "tags"]) == rows(source, ["id", "tags"])


def test_footers_beyond_the_budget_are_read_again_with_their_groups(clicks: str, monkeypatch):
    monkeypatch.setattr(parquet_source, "FOOTER_BUDGET", 0)
    source = ParquetSource(clicks)
    assert all(contents.footer is None for contents in source._contents)
    assert [row["id"] for row in rows(source, ["id", "city"])] == list(range(1000))


def test_several_threads_read_groups_at_once(clicks: str):
    source = ParquetSource(clicks)
    want = [[chunk.to_pydict() for chunk in source.open(g, ["id", "tags"], 50)] for g in range(4)]
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(lambda g=g: [c.to_pydict() for c in source.open(g, ["id", "tags"], 50)]) for g in range(4)]
        jobs += [
            pool.submit(lambda g=g: [c.to_pydict() for c in source.open(g, ["id", "tags"], 50, True)]) for g in range(4)
        ]
        assert [job.result() for job in jobs] == want + want


def test_leaving_a_group_early_closes_its_file(clicks: str):
    before = len(os.listdir("/proc/self/fd"))
    chunks = ParquetSource(clicks).open(0, ["id"], 10)
    next(chunks)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    chunks.close()  # type: ignore[attr-defined]
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_large_row_group_is_streamed_and_not_held(tmp_path: Path):
    n = 1_000_000
    columns = {f"c{i}": np.random.default_rng(i).integers(0, 1 << 40, n) for i in range(4)}
    path = write(tmp_path / "a.parquet", columns, row_group_size=n, use_dictionary=False)
    source, before = ParquetSource(path), pa.total_allocated_bytes()
    peak = max(pa.total_allocated_bytes() - before for _ in source.open(0, list(columns), 8192))
    assert source.groups[0].bytes > 30e6
    assert peak < 12e6


def test_a_fingerprint_follows_the_data_and_not_the_folder(tmp_path: Path, clicks: str):
    moved = write(tmp_path / "elsewhere" / "clicks.parquet", pq.read_table(clicks), row_group_size=300)
    other = write(tmp_path / "other" / "clicks.parquet", pq.read_table(clicks), row_group_size=200)
    marks = [ParquetSource(path).fingerprint for path in (clicks, moved, other)]
    assert marks[0] == marks[1] != marks[2]


def test_a_repr_gives_files_groups_and_rows(clicks: str):
    assert repr(ParquetSource(clicks)) == "ParquetSource(files=1, groups=4, rows=1,000)"
