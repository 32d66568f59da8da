"""Each text format against rows written by hand, malformed input, outputs that appear whole or not at all."""

from __future__ import annotations

import bz2
import datetime
import gzip
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hybridrec.data.convert import Options, convert, delimited, libsvm, type_named
from tests.patience import PATIENCE, wait_for


def rows(path: Path, text: str | bytes, name: str = "in.csv", **arguments) -> list[dict]:
    """Convert this text and read the result back."""
    return table(path, text, name, **arguments).to_pylist()


def table(path: Path, text: str | bytes, name: str = "in.csv", **arguments) -> pa.Table:
    (path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    convert(path / name, path / "out.parquet", **arguments)
    return pq.read_table(path / "out.parquet")


def test_csv_types_are_inferred_and_empty_fields_are_null(tmp_path):
    got = table(
        tmp_path,
        "user,price,ok,day,at,name,zip\n"
        "1,2.5,true,2024-01-02,2024-01-02 03:04:05,ann,01234\n"
        ",,,,,,\n"
        '-9223372036854775808,1e3,false,2024-02-29,2024-02-29T00:00:00,"a ""quoted"", word",99999\n',
    )
    assert got.schema.types == [
        pa.int64(),
        pa.float64(),
        pa.bool_(),
        pa.date32(),
        pa.timestamp("us"),
        pa.string(),
        pa.string(),
    ]
    first, empty, last = got.to_pylist()
    assert first == {
        "user": 1,
        "price": 2.5,
        "ok": True,
        "day": datetime.date(2024, 1, 2),
        "at": datetime.datetime(2024, 1, 2, 3, 4, 5),
        "name": "ann",
        "zip": "01234",  # leading zeros are kept
    }
    assert set(empty.values()) == {None}
    assert last["user"] == -(2**63)
    assert last["name"] == 'a "quoted", word'


def test_a_quoted_empty_field_is_an_empty_string_and_null_words_are_null_in_numbers(tmp_path):
    got = rows(tmp_path, 'a,b\n1,""\nNULL,NULL\n 3 ,x\n')
    assert got == [{"a": 1, "b": ""}, {"a": None, "b": "NULL"}, {"a": 3, "b": "x"}]


def test_ids_beyond_int64_become_uint64(tmp_path):
    assert table(tmp_path, "a\n18446744073709551615\n").schema.field("a").type == pa.uint64()


def test_line_breaks_inside_quotes_blank_lines_a_byte_order_mark_and_crlf_are_understood(tmp_path):
    got = rows(tmp_path, b'\xef\xbb\xbfa,b\r\n1,"x\r\ny"\r\n\r\n2,z\r\n')
    assert got == [{"a": 1, "b": "x\r\ny"}, {"a": 2, "b": "z"}]


def test_tsv_takes_quotes_as_they_are(tmp_path):
    assert rows(tmp_path, 'a\tb\n1\t"x\n2\ty,z\n', "in.tsv") == [{"a": 1, "b": '"x'}, {"a": 2, "b": "y,z"}]


def test_columns_can_be_named_and_typed(tmp_path):
    options = Options(
        columns=("user", "tags"),
        types={"user": pa.int32(), "tags": type_named("list<int64>")},
        list_separator=";",
    )
    got = table(tmp_path, "1,5;6\n2,\n3,7\n", options=options)
    assert got.schema.types == [pa.int32(), pa.list_(pa.int64())]
    assert got.to_pylist() == [
        {"user": 1, "tags": [5, 6]},
        {"user": 2, "tags": None},
        {"user": 3, "tags": [7]},
    ]


def criteo_line(label: str = "1", dense: str = "5", ids: str = "0000000a") -> str:
    return "\t".join([label, *[dense] * 13, *[ids] * 26])


def test_criteo_lines_become_label_dense_values_and_ids(tmp_path):
    fields = ["0", "-1", "", *map(str, range(3, 14)), "ffffffff", "", *[f"{i:08x}" for i in range(3, 27)]]
    got = table(tmp_path, "\t".join(fields) + "\n" + criteo_line() + "\n", "day_0", format="criteo")
    assert got.column_names == ["label"] + [f"I{i}" for i in range(1, 14)] + [f"C{i}" for i in range(1, 27)]
    assert got.schema.field("label").type == pa.int8()
    assert {got.schema.field(f"I{i}").type for i in range(1, 14)} == {pa.float64()}
    assert {got.schema.field(f"C{i}").type for i in range(1, 27)} == {pa.int64()}
    first = got.to_pylist()[0]
    assert [first[k] for k in ("label", "I1", "I2", "I3", "I13")] == [0, -1.0, None, 3.0, 13.0]
    assert [first[k] for k in ("C1", "C2", "C3", "C26")] == [0xFFFFFFFF, None, 3, 26]


def test_criteo_ids_can_stay_text(tmp_path):
    options = Options(types={"C1": pa.string()})
    assert rows(tmp_path, criteo_line(), "day_0", format="criteo", options=options)[0]["C1"] == "0000000a"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (criteo_line(ids="xyz"), "'xyz' in column 'C1' is not a hexadecimal id"),
        (criteo_line(dense="1.5"), "'1.5' in column 'I1' is not a whole number"),
        (criteo_line(label="click"), "'click' in column 'label' is not int8"),
        ("1\t2", "2 fields where 40 are due"),
    ],
)
def test_malformed_criteo_lines_are_named(tmp_path, line, reason):
    text = criteo_line() + "\n" + criteo_line() + "\n" + line + "\n"
    with pytest.raises(ValueError, match=rf"day_0, line 3: {reason}"):
        rows(tmp_path, text, "day_0", format="criteo")


def test_libsvm_lines_become_ragged_indices_and_values(tmp_path):
    got = table(
        tmp_path,
        "1 3:0.5 7:2\n# a comment\n\n-1\n+0.5 1:-1e3 # tail\n",
        "a.libsvm",
        options=Options(on_error="skip"),
    )
    assert got.schema.types == [pa.float32(), pa.list_(pa.int64()), pa.list_(pa.float32())]
    assert got.to_pylist()[:2] == [
        {"label": 1.0, "indices": [3, 7], "values": [0.5, 2.0]},
        {"label": -1.0, "indices": [], "values": []},
    ]


def test_libsvm_plus_signs_are_numbers(tmp_path):
    assert rows(tmp_path, "+1 1:+2.5 2:3\n-1 1:1\n", "a.libsvm") == [
        {"label": 1.0, "indices": [1, 2], "values": [2.5, 3.0]},
        {"label": -1.0, "indices": [1], "values": [1.0]},
    ]


def test_libsvm_query_ids_are_kept_and_null_where_absent(tmp_path):
    got = rows(tmp_path, "2 qid:10 1:1\n1 1:1\n0 qid:11\n", "a.svm")
    assert [row["qid"] for row in got] == [10, None, 11]
    assert [row["indices"] for row in got] == [[1], [1], []]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("x 1:1", "label 'x' is not a number"),
        ("1 1:1 2", "'2' is not index:value"),
        ("1 a:1", "'a:1' is not index:value"),
        ("1 1:", "'1:' is not index:value"),
        ("1 1:2:3", "'1:2:3' is not index:value"),
        ("1 qid:4 1:1", "'qid:4' in a file whose first line has no qid"),
        ("1 1:1 qid:4", "'qid:4' is not index:value"),
    ],
)
def test_malformed_libsvm_lines_are_named(tmp_path, line, reason):
    with pytest.raises(ValueError, match=rf"a\.libsvm, line 4: {reason}"):
        rows(tmp_path, f"1 1:1\n# comment\n1 2:2\n{line}\n0 3:3\n", "a.libsvm")


def test_malformed_libsvm_lines_are_skipped_and_counted_when_asked(tmp_path):
    (tmp_path / "a.libsvm").write_text("1 1:1\nbad\n0 x\n0 2:2\n")
    summary = convert(tmp_path / "a.libsvm", tmp_path / "o.parquet", options=Options(on_error="skip"))
    assert (summary.rows, summary.skipped) == (2, 2)
    assert [example.split(", ")[1] for example in summary.examples] == [
        "line 2: label 'bad' is not a number",
        "line 3: 'x' is not index:value",
    ]
    assert pq.read_table(tmp_path / "o.parquet")["indices"].to_pylist() == [[1], [2]]


@pytest.mark.parametrize("block", [64, 1 << 20])
def test_malformed_csv_lines_are_named_by_their_line_in_the_file(tmp_path, monkeypatch, block):
    monkeypatch.setattr(delimited, "BLOCK", block)
    lines = ["a,b"] + [f"{i},{i}" for i in range(20)] + ["", '7,"1\n2"', "", "8,9,10", "x,1"]
    options = Options(types={"a": pa.int64(), "b": pa.string()})
    with pytest.raises(ValueError, match=r"in\.csv, line 26: 3 fields where 2 are due: '8,9,10'; correct it, or"):
        rows(tmp_path, "\n".join(lines), options=options)
    del lines[-2]
    with pytest.raises(ValueError, match=r"in\.csv, line 26: 'x' in column 'a' is not int64"):
        rows(tmp_path, "\n".join(lines), options=options)
    assert [p.name for p in tmp_path.iterdir()] == ["in.csv"]


@pytest.mark.parametrize("block", [32, 1 << 20])
def test_malformed_csv_lines_are_skipped_and_counted_when_asked(tmp_path, monkeypatch, block):
    monkeypatch.setattr(delimited, "BLOCK", block)
    text = "a,b\n1,2\n3\n4,five\n6,7\nx,y\n8,9,10\n11,12\n"
    (tmp_path / "in.csv").write_text(text)
    options = Options(on_error="skip", types={"a": pa.int64(), "b": pa.int64()})
    summary = convert(tmp_path / "in.csv", tmp_path / "o.parquet", options=options)
    assert pq.read_table(tmp_path / "o.parquet").to_pydict() == {"a": [1, 6, 11], "b": [2, 7, 12]}
    assert summary.skipped == 4
    assert [example.split(":")[0].split(", ")[1] for example in summary.examples] == [
        "line 3",
        "line 4",
        "line 6",
        "line 7",
    ]


def test_text_that_is_not_utf8_is_malformed(tmp_path):
    with pytest.raises(ValueError, match=r"line 3: '\\\\xff' in column 'a' is not UTF-8 text"):
        rows(tmp_path, b"a\nx\n\xff\n")


def test_a_quote_that_is_never_closed_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"in\.csv, line 3: a quote is opened and never closed"):
        rows(tmp_path, 'a,b\n1,2\n3,"4\n5,6\n')


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress)])
def test_compressed_inputs_are_unpacked(tmp_path, suffix, pack):
    assert rows(tmp_path, pack(b"a\n1\n") + pack(b"2\n"), "in.csv" + suffix) == [{"a": 1}, {"a": 2}]


def test_a_truncated_gzip_file_is_named_and_leaves_nothing(tmp_path):
    packed = gzip.compress(b"a,b\n" + os.urandom(3000).hex().encode() + b",1\n")
    with pytest.raises((OSError, ValueError), match=r"in\.csv\.gz"):
        rows(tmp_path, packed[:-200], "in.csv.gz")
    assert [p.name for p in tmp_path.iterdir()] == ["in.csv.gz"]


def test_several_files_are_one_table_in_the_order_given_and_must_agree(tmp_path):
    for name, text in (("b.csv", "a,b\n1,2\n"), ("a.csv", "a,b\n3,4\n"), ("c.csv", "a,c\n5,6\n")):
        (tmp_path / name).write_text(text)
    out = tmp_path / "o.parquet"
    convert([tmp_path / "b.csv", tmp_path / "a.csv"], out)
    assert pq.read_table(out)["a"].to_pylist() == [1, 3]
    convert(str(tmp_path / "[ab].csv"), out, force=True)
    assert pq.read_table(out)["a"].to_pylist() == [3, 1]
    with pytest.raises(ValueError, match=r"c\.csv has the columns a, c, the files before it a, b"):
        convert([tmp_path / "a.csv", tmp_path / "c.csv"], out, force=True)


def test_a_later_value_that_does_not_fit_the_inferred_type_is_an_error_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "BLOCK", 64)
    text = "a\n" + "1\n" * 100 + "2.5\n"
    with pytest.raises(ValueError, match=r"line 102: '2.5' in column 'a' is not int64 .*--types NAME=TYPE"):
        rows(tmp_path, text)
    assert rows(tmp_path, text, options=Options(types={"a": pa.float32()}))[-1] == {"a": 2.5}


@pytest.mark.parametrize(("name", "text"), [("in.csv", "a,b\n"), ("in.libsvm", "# nothing\n"), ("in.libsvm", "")])
def test_files_without_rows_make_files_without_rows(tmp_path, name, text):
    assert table(tmp_path, text, name).num_rows == 0


def test_row_groups_have_the_size_asked_for_whatever_the_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(libsvm, "CHUNK", 100)
    table(tmp_path, "1 1:1\n" * 2500, "a.libsvm", options=Options(row_group_rows=1000, compression="snappy"))
    footer = pq.read_metadata(tmp_path / "out.parquet")
    assert [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] == [1000, 1000, 500]
    assert footer.row_group(0).column(0).compression == "SNAPPY"


@pytest.mark.parametrize(
    ("text", "name", "arguments", "message"),
    [
        ("", "in.csv", {}, "is empty; its first line must name the columns"),
        ("a,a\n1,2\n", "in.csv", {}, "the header has 'a' twice"),
        ("a,\n1,2\n", "in.csv", {}, "a column without a name"),
        ("1\n", "in.txt", {}, "does not tell its format by its name; pass --format"),
        ("1\n", "in.csv", {"format": "xml"}, "format 'xml' is not one of csv, tsv, criteo, libsvm"),
        (
            "a\n1\n",
            "in.csv",
            {"options": Options(on_error="ignore")},
            "on_error='ignore' is not one of error, skip",
        ),
        (
            "a\n1\n",
            "in.csv",
            {"options": Options(types={"z": pa.int8()})},
            "'z', which is no column; there are a",
        ),
        ("a\n1\n", "in.csv", {"options": Options(row_group_rows=0)}, "row_group_rows=0 must be at least 1"),
        ("1\n", "in.svm", {"options": Options(columns=("a",))}, "columns of libsvm have fixed names"),
        ("1\n", "in.svm", {"options": Options(types={"a": pa.int8()})}, "columns of libsvm have fixed types"),
    ],
)
def test_wrong_arguments_name_the_value_and_the_rule(tmp_path, text, name, arguments, message):
    with pytest.raises(ValueError, match=message):
        rows(tmp_path, text, name, **arguments)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_an_unknown_type_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"'float16x' is no type; there are int8, .* and list<...> of these"):
        type_named("list<float16x>")


def test_an_existing_output_survives_a_refusal_and_a_failed_replacement(tmp_path):
    rows(tmp_path, "a\n1\n")
    with pytest.raises(FileExistsError, match=r"out\.parquet exists; pass --force"):
        rows(tmp_path, "a\n2\n")
    with pytest.raises(ValueError, match="never closed"):
        rows(tmp_path, 'a\n2\n"3\n4\n', force=True)
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == [{"a": 1}]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.csv", "out.parquet"]


def test_progress_ends_with_all_bytes_and_all_rows(tmp_path):
    seen: list[tuple[int, int, int]] = []
    text = "a\n" + "12345\n" * 1000
    rows(tmp_path, text, options=Options(row_group_rows=300), progress=lambda *s: seen.append(s))
    assert seen[-1] == (len(text), len(text), 1000)
    assert [s[2] for s in seen[:3]] == [300, 600, 900]


@pytest.mark.parametrize(
    ("how", "code", "debris"), [(signal.SIGINT, 130, 0), (signal.SIGTERM, 143, 0), (signal.SIGKILL, -9, 1)]
)
def test_a_killed_conversion_never_shows_a_partial_output(tmp_path, how, code, debris):
    """Row groups of a single row make the work long enough for the kill to come in the middle of it."""
    out = tmp_path / "out.parquet"
    (tmp_path / "in.libsvm").write_text("1 1:1\n" * 500_000)
    command = [sys.executable, "-m", "hybridrec", "convert", str(tmp_path / "in.libsvm"), str(out)]
    with subprocess.Popen([*command, "--row-group-rows", "1"], stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: process.poll() is not None or any(p.stat().st_size > 100 for p in tmp_path.glob(".out*")))
        assert process.poll() is None, "it ended by itself"
        process.send_signal(how)
        errors = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == code
    assert "Traceback" not in errors
    assert not out.exists()
    assert len([p for p in tmp_path.iterdir() if p.name.startswith(".")]) == debris


def test_a_header_that_is_not_text_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"in\.csv, line 1: the header is not UTF-8 text"):
        rows(tmp_path, "a,b\n1,2\n".encode("utf-16"))
