"""`hybridrec plan`: what it prints, writes and refuses."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hybridrec.cli.commands import app
from hybridrec.data.synthetic import write
from hybridrec.parallel import Plan

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def clicks(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "clicks.parquet"
    write(path, rows=3000)
    return path


def invoke(clicks: Path, *words: str | Path, cluster: str = "1x4xcpu", label: str = "click"):
    fixed = ["plan", "--data", clicks, "--label", label, "--cluster", cluster]
    return CliRunner().invoke(app, [str(word) for word in [*fixed, *words]])


def test_it_prints_the_plan_the_memory_the_step_and_the_bottleneck(clicks):
    result = invoke(clicks, "--model", "dlrm", cluster="2x8xH100")
    assert result.exit_code == 0, result.output
    for word in (
        "2x8xH100, 8,192 rows a device",
        "id_26",
        "history_1",
        "repeated",
        "memory  ",
        "step  ",
        "bottleneck  device",
    ):
        assert word in result.stdout
    assert "wide.id_1" not in result.stdout


def test_it_saves_the_plan_and_draws_every_table(clicks, tmp_path):
    saved, drawn = tmp_path / "plan.json", tmp_path / "plan.svg"
    result = invoke(clicks, "--save", saved, "--picture", drawn, "--json")
    answer = json.loads(result.stdout)
    plan = Plan.from_json(saved.read_text())
    assert json.loads(plan.to_json()) == answer["plan"]
    assert answer["step_seconds"] == pytest.approx(max(answer["seconds"]))
    texts = [each.text or "" for each in ET.fromstring(drawn.read_text()).iter(f"{SVG}text")]
    for each in plan.placements:
        assert any(text.startswith(f"{each.table} ") for text in texts)
    again = invoke(clicks, "--save", saved)
    assert again.exit_code == 1
    assert f"{saved} exists; give --force to replace it" in again.stderr
    assert invoke(clicks, "--save", saved, "--force").exit_code == 0


def test_pins_forbidden_schemes_and_figures_are_used(clicks):
    words = ["--pin", "id_1=table@2", "--pin", "id_2=row", "--forbid", "column", "--forbid", "id_3=table"]
    result = invoke(clicks, *words, "--figure", "memory=1e9", "--optimizer", "adam", "model.dim=8", "--json")
    plan = Plan.from_json(json.dumps(json.loads(result.stdout)["plan"]))
    assert (plan["id_1"].scheme, plan["id_1"].devices) == ("table", (2,))
    assert plan["id_2"].scheme == "row"
    assert plan["id_3"].scheme == "row"


def test_tables_on_servers_are_shown_there_and_take_nothing_of_the_devices(clicks, tmp_path):
    words = ['model.tables={"id_1"={"where"="server", "capacity"=100000}}', "--json"]
    found, on_two, before = (
        json.loads(invoke(clicks, *more).stdout) for more in (words, [*words, "--servers", "2"], words[1:])
    )
    plan = Plan.from_json(json.dumps(on_two["plan"]))
    assert (plan["id_1"].where, plan["id_1"].devices) == ("server", (0, 1))
    assert plan["id_2"].where == "device"
    assert sum(on_two["memory"]) < sum(before["memory"])
    assert found["memory"] == on_two["memory"]
    assert len(on_two["server_memory"]) == 2
    assert sum(on_two["server_memory"]) == pytest.approx(found["server_memory"][0], rel=0.01)
    drawn = tmp_path / "plan.svg"
    shown = invoke(clicks, words[0], "--servers", "2", "--picture", drawn).stdout
    assert "0-1 (servers)" in shown
    assert "on each of 2" in shown
    assert "on 2 servers" in drawn.read_text()
    assert "--servers N says how much on each" in invoke(clicks, words[0]).stdout


def test_with_servers_alone_all_dynamic_tables_lie_there(clicks):
    shown = invoke(clicks, "--model", "dlrm", "--servers", "3", cluster="1x2xH100")
    assert shown.stdout.splitlines()[-1].split() == ["devices", "hold", "no", "rows"], shown.stderr
    plan = Plan.from_json(
        json.dumps(json.loads(invoke(clicks, "--model", "dlrm", "--servers", "3", "--json").stdout)["plan"])
    )
    assert {each.where for each in plan.placements} == {"server"}


def test_a_table_that_one_gpu_cannot_hold_is_shown_and_drawn_with_its_hot_rows(clicks, tmp_path):
    drawn = tmp_path / "plan.svg"
    words = ['model.tables={"id_26"={"rows"=40000000}}', "--model", "dlrm", "--figure", "memory=1e9", "--json"]
    found = json.loads(invoke(clicks, *words, cluster="1x1xH100").stdout)
    cache = Plan.from_json(json.dumps(found["plan"]))["id_26"].cache
    assert 0 < cache < 0.5
    assert found["phases"]["host link"][0] > 0
    shown = invoke(clicks, *words[:-1], "--picture", drawn, cluster="1x1xH100").stdout
    assert f"0 ({100 * cache:.3g} % hot)" in shown
    assert "on hosts  " in shown
    texts = [each.text or "" for each in ET.fromstring(drawn.read_text()).iter(f"{SVG}text")]
    assert f"{100 * cache:.3g} % hot" in texts
    assert "GB on its host" in drawn.read_text()


def test_cold_rows_of_a_smaller_type_take_less_of_the_host(clicks):
    found = {}
    for kind in ("float32", "int8"):
        table = f'model.tables={{"id_26"={{rows=1000000,cache=0.25,cold="{kind}"}}}}'
        words = [table, "model.dim=32", "--model", "dlrm", "--optimizer", "sgd", "--json"]
        result = invoke(clicks, *words, cluster="1x1xH100")
        assert result.exit_code == 0, result.output
        found[kind] = json.loads(result.stdout)["host_memory"]
    assert found == {"float32": [750_000 * 128], "int8": [750_000 * 36]}


def test_more_state_needs_more_memory(clicks):
    used = [json.loads(invoke(clicks, "--optimizer", kind, "--json").stdout)["memory"] for kind in ("sgd", "adam")]
    assert sum(used[0]) < sum(used[1])


def test_a_table_that_no_machine_holds_is_refused_with_the_shortfall(clicks):
    result = invoke(clicks, 'model.tables={"id_1"={"rows"=4000000000}}')
    assert result.exit_code == 1
    assert "GB are missing on each" in result.stderr
    assert "Take about" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--pin", "id_1"], "--pin 'id_1' is no TABLE=SCHEME"),
        (["--pin", "id_1=row@a"], "is no TABLE=SCHEME or TABLE=SCHEME@0,1"),
        (["--pin", "id_1=rows"], "scheme is 'rows'; valid are"),
        (["--pin", "nope=row"], "'nope', which is no table"),
        (["--forbid", "rows"], "names 'rows'; valid are"),
        (["--figure", "memory"], "is no NAME=NUMBER"),
        (["--figure", "memroy=1"], "no 'memroy' to override"),
        (["--margin", "1"], "margin is 1.0"),
        (
            ["--pin", "id_1=row", 'model.tables={"id_1"={"where"="server"}}'],
            "'id_1' is pinned, and says where='server'",
        ),
        (["--wire", "int8"], "forward is 'int8'"),
        (["--model", "gpt"], "no model 'gpt'"),
        (["--optimizer", "lion"], "row_optimizer.kind is 'lion'"),
        (["other.parquet"], "name files with --data other.parquet"),
        (["model.dims=3"], "'dims'"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(clicks, words, said):
    result = invoke(clicks, *words)
    assert result.exit_code == 1, result.output
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_wrong_cluster_and_a_wrong_label_are_told(clicks):
    assert "write NODESxDEVICESxKIND" in invoke(clicks, cluster="8xH100").stderr
    assert "no kind 'V100'" in invoke(clicks, cluster="1x8xV100").stderr
    assert "nope" in invoke(clicks, label="nope").stderr
