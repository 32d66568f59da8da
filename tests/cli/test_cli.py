"""The command line: its flags, its output, its exit codes."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from rich.text import Text
from typer.testing import CliRunner

from hybridrec.cli.commands import app
from tests.patience import PATIENCE, wait_for

FLAGS = {
    "inspect": ["FILES", "--help", "--json", "--sample", "--schema", "-h"],
    "convert": [
        "--columns",
        "--compression",
        "--force",
        "--format",
        "--help",
        "--json",
        "--list-separator",
        "--on-error",
        "--row-group-rows",
        "--types",
        "-f",
        "-h",
        "IN... OUT",
    ],
    "synth": [
        "--auc",
        "--click-rate",
        "--compression",
        "--dense",
        "--files",
        "--force",
        "--help",
        "--histories",
        "--history-length",
        "--ids",
        "--json",
        "--probability",
        "--row-group-rows",
        "--rows",
        "--seed",
        "--vocabulary",
        "-h",
        "OUT",
    ],
    "plan": [
        "--batch-size",
        "--cluster",
        "--data",
        "--figure",
        "--forbid",
        "--force",
        "--gradient-wire",
        "--help",
        "--json",
        "--label",
        "--margin",
        "--model",
        "--optimizer",
        "--picture",
        "--pin",
        "--sample",
        "--save",
        "--servers",
        "--wire",
        "-f",
        "-h",
        "[SECTION.NAME=VALUE]...",
    ],
}


def invoke(*words: str | Path):
    return CliRunner().invoke(app, [str(word) for word in words])


def spawn(*words: str | Path, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "hybridrec", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, **options)


@pytest.fixture
def clicks(tmp_path) -> Path:
    assert invoke("synth", tmp_path / "clicks.parquet", "--rows", "2k").exit_code == 0
    return tmp_path / "clicks.parquet"


def test_the_flags_are_frozen():
    """Scripts rely on them: add here what you add, and think twice before you remove."""
    group = typer.main.get_command(app)
    found = {}
    for name in FLAGS:
        command = group.get_command(group.make_context("hybridrec", [name]), name)  # type: ignore[attr-defined]
        names: list[str] = ["--help", "-h"]
        for parameter in command.params:
            names += [parameter.metavar] if parameter.param_type_name == "argument" else parameter.opts
        found[name] = sorted(set(names))
    assert found == {name: sorted(flags) for name, flags in FLAGS.items()}


@pytest.mark.parametrize("command", ["inspect", "convert", "synth"])
def test_every_help_has_examples_that_name_the_command(command):
    result = invoke(command, "--help")
    assert result.exit_code == 0
    examples = result.output.split("Examples", 1)[1]
    assert examples.count(f"hybridrec {command} ") >= 3


def test_the_text_of_every_help_fits_a_terminal_of_eighty_columns():
    group = typer.main.get_command(app)
    for name in group.commands:  # type: ignore[attr-defined]
        text = (group.commands[name].help or "").split("Examples")[0]  # type: ignore[attr-defined]
        paragraphs = Text.from_markup(text).plain.split("\n\n")[1:]  # the first becomes one line that is broken by need
        assert [line for each in paragraphs for line in each.splitlines() if len(line) > 78] == [], name


def test_the_sections_of_a_launch_are_named_in_its_help():
    shown = invoke("launch", "--help").output
    assert "[servers] count, staleness" in shown
    assert "[trainers] count, threads" in shown


def test_help_lists_the_commands_and_imports_neither_torch_nor_pyarrow():
    code = "import sys\nfrom hybridrec.cli import main\ntry: main()\nexcept SystemExit: pass\n"
    code += "print([m for m in ('torch', 'pyarrow', 'numpy') if m in sys.modules])"
    command = [sys.executable, "-c", code, "--help"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
    trained = ("train", "evaluate", "predict", "export", "checkpoint", "doctor")
    assert all(f" {name} " in result.stdout for name in (*FLAGS, *trained))


def test_no_command_imports_torch(tmp_path):
    for words in (
        ["synth", "a.parquet", "--rows", "10"],
        ["inspect", "a.parquet"],
        ["convert", "a.csv", "b.parquet"],
    ):
        (tmp_path / "a.csv").write_text("a\n1\n")
        code = "import sys\nfrom hybridrec.cli import main\n"
        code += "try: main()\nexcept SystemExit as end: assert not end.code\n"
        code += "assert 'torch' not in sys.modules"
        subprocess.run([sys.executable, "-c", code, *words], cwd=tmp_path, timeout=PATIENCE, check=True)


@pytest.mark.skipif(os.name != "posix", reason="signals are of POSIX")
def test_ctrl_c_while_libraries_load_is_one_quiet_line():
    code = "import builtins, signal\nfrom hybridrec.cli import main\nload = builtins.__import__\n"
    code += "def press(name, *rest):\n  if name == 'typer': signal.raise_signal(signal.SIGINT)\n"
    code += "  return load(name, *rest)\nbuiltins.__import__ = press\nmain()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (result.returncode, result.stderr) == (130, "interrupted\n")


@pytest.mark.skipif(os.name != "posix", reason="signals are of POSIX")
def test_ctrl_c_that_an_import_would_swallow_comes_at_its_end():
    code = "import builtins, signal\nfrom hybridrec.cli import main\nload = builtins.__import__\n"
    code += "left = ['typer']\n"
    code += "def press(name, *rest):\n  try: name in left and (left.clear() or signal.raise_signal(signal.SIGINT))\n"
    code += "  except BaseException: print('swallowed')\n  return load(name, *rest)\n"
    code += "builtins.__import__ = press\nmain()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "interrupted\n")


@pytest.mark.skipif(os.name != "posix", reason="signals are of POSIX")
def test_a_second_ctrl_c_does_not_wait_for_the_end_of_an_import(tmp_path):
    (tmp_path / "stuck.py").write_text("import signal\nfor _ in range(2): signal.raise_signal(signal.SIGINT)\n1 / 0\n")
    code = "import signal, sys\nfrom hybridrec.cli import _ctrl_c\nsignal.signal(signal.SIGINT, _ctrl_c)\n"
    code += "try: import stuck\nexcept KeyboardInterrupt: print('at once')"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=tmp_path)
    assert (result.stdout, result.stderr) == ("at once\n", "")


def test_the_version_is_printed():
    import hybridrec

    assert spawn("--version").stdout.strip() == hybridrec.__version__


def test_synth_prints_the_auc_that_it_stores(tmp_path):
    result = invoke("synth", tmp_path / "a.parquet", "--rows", "20_000", "--seed", 4, "--compression", "snappy")
    assert result.exit_code == 0
    footer = pq.read_metadata(tmp_path / "a.parquet")
    about = json.loads(footer.metadata[b"hybridrec.synthetic"])
    assert f"best possible AUC: {about['best_auc']:.4f}" in result.output
    assert (footer.num_rows, about["seed"]) == (20_000, 4)
    assert footer.row_group(0).column(0).compression == "SNAPPY"


def test_synth_can_be_shaped_and_summarised_as_json(tmp_path):
    shape = [
        "--ids",
        3,
        "--dense",
        1,
        "--histories",
        1,
        "--vocabulary",
        100,
        "--history-length",
        2,
        "--probability",
    ]
    result = invoke("synth", tmp_path / "out", "--rows", "1k", "--files", 2, "--json", *shape)
    summary = json.loads(result.stdout)
    assert summary["rows"] == 1000
    assert len(summary["files"]) == 2
    names = pq.read_schema(summary["files"][0]).names
    assert names == ["click", "id_1", "id_2", "id_3", "dense_1", "history_1", "probability"]


@pytest.mark.parametrize(("text", "rows"), [("12", 12), ("1_000", 1000), ("1,5", 15), ("0.5k", 500), ("1K", 1000)])
def test_rows_can_be_written_short(tmp_path, text, rows):
    assert invoke("synth", tmp_path / "a.parquet", "--rows", text, "--histories", 0).exit_code == 0
    assert pq.read_metadata(tmp_path / "a.parquet").num_rows == rows


def test_convert_does_not_write_over_what_it_reads(tmp_path):
    source = tmp_path / "a.csv"
    source.write_text("user\n1\n")
    (tmp_path / "link.csv").symlink_to(source)
    for out in (source, tmp_path / "link.csv"):
        refused = invoke("convert", source, out, "--force")
        assert refused.exit_code == 1
        assert f"{out} is one of the files to read; name another file to write" in refused.stderr
    assert source.read_text() == "user\n1\n"


def test_convert_reads_options_and_reports_what_it_skipped(tmp_path):
    (tmp_path / "a.txt").write_text("1,5|6\n2\n3,7\n")
    words = ["--format", "csv", "--columns", "user,tags", "--types", "user=int32,tags=list<int64>"]
    out = tmp_path / "a.parquet"
    result = invoke("convert", tmp_path / "a.txt", out, *words, "--on-error", "skip")
    assert result.exit_code == 0
    assert "2 rows, 2 columns" in result.stdout
    assert "skipped 1 malformed lines" in result.stderr
    assert "line 2: 1 fields where 2 are due: '2'" in result.stderr
    assert pq.read_table(out).to_pydict() == {"user": [1, 3], "tags": [[5, 6], [7]]}
    summary = json.loads(
        invoke("convert", tmp_path / "a.txt", out, *words, "--on-error=skip", "--force", "--json").stdout
    )
    assert (summary["rows"], summary["skipped"]) == (2, 1)
    assert summary["schema"] == {"user": "int32", "tags": "list<item: int64>"}


def test_inspect_shows_schema_nulls_distinct_values_and_a_plot(tmp_path):
    table = pa.table({"user": [7, 7, None, 9], "tags": [[1], [1, 2, 3], [], None], "name": ["ann", "bo", "cy", "di"]})
    pq.write_table(table, tmp_path / "a.parquet")
    output = invoke("inspect", tmp_path / "a.parquet").stdout
    assert "4 rows, 3 columns, 1 row group (4 rows each)" in output
    lines = {line.split()[0]: line for line in output.splitlines() if line}
    assert lines["user"].split()[1:5] == ["int64", "25.00", "%", "2"]
    assert "list<int64>" in lines["tags"]
    assert "ann  bo  cy" in lines["name"]
    assert "tags: list lengths, mean 1.3, p50 1, p99 3, max 3" in output
    assert "█" in output
    assert "33.3 %" in output


def test_inspect_json_is_one_object(clicks):
    report = json.loads(invoke("inspect", clicks, "--json").stdout)
    assert (report["rows"], len(report["columns"])) == (2000, 42)
    assert json.loads(report["metadata"]["hybridrec.synthetic"])["rows"] == 2000


def test_inspect_fits_a_narrow_terminal(clicks):
    main, side = pty.openpty()
    os.set_blocking(main, True)
    environment = {**os.environ, "COLUMNS": "60"}
    command = [sys.executable, "-m", "hybridrec", "inspect", str(clicks)]
    with subprocess.Popen(command, stdout=side, env=environment) as process:
        os.close(side)
        output = b""
        try:
            while data := os.read(main, 65536):
                output += data
        except OSError:  # how Linux says that the other end is closed
            pass
    os.close(main)
    assert process.returncode == 0
    table = output.decode().splitlines()[5:48]
    assert max(len(line.replace("\x1b[1m", "").replace("\x1b[0m", "")) for line in table) == 60


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["inspect", "none.parquet"], "none.parquet does not exist"),
        (["inspect", "bad.parquet"], "bad.parquet is no readable Parquet file"),
        (["inspect", "*.nothing"], "matches no file"),
        (["convert", "none.csv", "a.parquet"], "none.csv does not exist"),
        (
            ["convert", "bad.parquet", "a.parquet"],
            "pass --format (format=) with one of csv, tsv, criteo, libsvm",
        ),
        (["convert", "bad.parquet", "a.parquet", "--format", "xml"], "format 'xml' is not one of csv"),
        (["convert", "a.csv", "b.parquet", "--types", "a=int3"], "'int3' is no type; there are int8"),
        (["convert", "a.csv", "b.parquet", "--compression", "rar"], "compression 'rar' is not one of zstd"),
        (["convert", "a.csv", "bad.parquet"], "bad.parquet exists; pass --force"),
        (["convert", "a.csv", "no/where.parquet"], "folder no does not exist"),
        (["convert", "a.csv", "."], "name a file in it"),
        (["synth", "bad.parquet", "--rows", "1"], "bad.parquet exists; pass --force"),
        (["synth", "b.parquet", "--auc", "2"], "auc=2.0 must lie between"),
        (["synth", "b.parquet", "--histories", "30"], "histories=30 must be a whole number from 0 to 26"),
        (["synth", "b.parquet", "--compression", "rar"], "compression 'rar' is not one of zstd"),
        (["synth", "b.parquet", "--files", "2"], "name a file; drop the suffix"),
    ],
)
def test_errors_are_one_line_on_stderr_and_exit_code_1(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    Path("bad.parquet").write_text("not parquet")
    Path("a.csv").write_text("a\n1\n")
    result = invoke(*words)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("error: ")
    assert message.replace("name a file; drop", "names a file; drop") in result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "bad.parquet"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["inspect"], "Missing argument"),
        (["convert", "only.csv"], "name at least one input and the output"),
        (["convert", "a.csv", "b.parquet", "--types", "a"], "is not NAME=TYPE"),
        (["synth", "a.parquet", "--rows", "many"], "'many' is no number of rows"),
        (["synth", "a.parquet", "--rows", "-5"], "is no number of rows"),
        (["synth", "a.parquet", "--files", "0"], "--files"),
        (["synth", "a.parquet", "--colour", "red"], "No such option"),
        (["train", "a.parquet", "--epochs", "0"], "--epochs"),
        (["evaluate", "runs/a"], "Missing argument 'DATA...'"),
        (["predict", "runs/a", "a.parquet"], "Missing option '--out'"),
        (["export", "runs/a"], "Missing option '--out'"),
        (["checkpoint", "polish"], "No such command"),
        (["paint"], "No such command"),
    ],
)
def test_wrong_arguments_exit_with_code_2_and_say_what_is_wrong(words, message):
    result = invoke(*words)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_a_bad_file_gives_no_traceback_in_a_real_process(tmp_path):
    (tmp_path / "bad.parquet").write_text("not parquet")
    result = spawn("inspect", tmp_path / "bad.parquet")
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "Traceback" not in result.stderr


def test_a_reader_that_goes_away_is_no_error(clicks):
    command = f"{sys.executable} -m hybridrec inspect {clicks} | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert result.stdout.strip() == str(clicks)
    assert result.stderr == ""


@pytest.mark.parametrize(("how", "code", "message"), [(signal.SIGINT, 130, "interrupted\n"), (signal.SIGTERM, 143, "")])
@pytest.mark.parametrize("files", [1, 2])
def test_an_interrupted_synth_leaves_nothing(tmp_path, how, code, message, files):
    command = [sys.executable, "-m", "hybridrec", "synth", str(tmp_path / "out"), "--rows", "1B"]
    command += ["--row-group-rows", "1000", "--files", str(files)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: process.poll() is not None or any(tmp_path.glob(".out*")))
        time.sleep(0.3)
        assert process.poll() is None, "it ended by itself"
        process.send_signal(how)
        errors = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == code
    assert errors == message
    assert list(tmp_path.iterdir()) == []


def test_progress_is_a_bar_on_a_terminal_and_absent_from_stdout(tmp_path):
    main, side = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "hybridrec",
        "synth",
        str(tmp_path / "a.parquet"),
        "--rows",
        "200k",
        "--ids",
        "2",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=side, text=True) as process:
        os.close(side)
        shown = b""
        try:
            while data := os.read(main, 65536):
                shown += data
        except OSError:  # how Linux says that the other end is closed
            pass
        output = process.communicate(timeout=PATIENCE)[0]
    os.close(main)
    assert "writing a.parquet" in shown.decode()
    assert "%" in shown.decode()
    assert output.splitlines()[0].startswith("wrote ")
