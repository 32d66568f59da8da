"""The whole page: well-formed, self-contained, escaped, and tolerant of what a killed run leaves behind."""

from __future__ import annotations

import json
import re
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.train.report import write
from tests.train.report.colour_vision import contrast, nearest
from tests.train.report.fake_run import write_run

VOID = {"meta", "br", "link", "img", "input", "hr"}
COORDINATES = {"x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "height", "d"}
STYLE = Path(write.__code__.co_filename).with_name("style.css").read_text()


class Checker(HTMLParser):
    """Elements open and close in order; collects texts, names and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.texts.append(data)


def checked(page: Path) -> Checker:
    checker = Checker()
    checker.feed(page.read_text())
    checker.close()
    assert checker.open == []
    places = [value or "" for name, value in checker.attributes if name in COORDINATES]
    assert not [value for value in places if "nan" in value or "inf" in value]
    return checker


def text_of(page: Path) -> str:
    return " ".join(" ".join(checked(page).texts).split())


def records_to(folder: Path, *records: dict) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


@pytest.mark.parametrize("labels", [("click",), ("click", "long_view", "like"), tuple(f"label {i}" for i in range(11))])
def test_the_page_is_well_formed_and_shows_every_part(tmp_path, labels):
    text = text_of(write(write_run(tmp_path / "run", labels, records=100)))
    for part in ("Result", "Curves", "Calibration", "Tables", "Speed", "Environment", "Configuration", "Schema"):
        assert part in text
    assert all(label in text for label in labels)
    assert "Notes" not in text


def test_final_and_best_values_are_those_of_the_records(tmp_path):
    run = records_to(
        tmp_path / "run",
        {"kind": "train", "step": 1200, "loss": 0.61234, "auc": 0.81111},
        {"kind": "valid", "step": 1200, "loss": 0.59, "auc": 0.74321},
        {"kind": "valid", "step": 2400, "loss": 0.60, "auc": 0.73999},
        {"kind": "final", "step": 2400, "loss": 0.58765, "auc": 0.72222},
    )
    text = text_of(write(run))
    assert "AUC 0.7222 best 0.7432, step 1,200" in text
    assert "Loss 0.5877 best 0.5900, step 1,200" in text


def test_tables_stages_and_settings_appear_with_their_numbers(tmp_path):
    tables = {"user": {"rows": 1234567, "hit_rate": 0.875, "norm": 0.4321, "bytes": 98_700_000}}
    run = records_to(
        tmp_path / "run",
        {"kind": "train", "step": 10, "samples_per_s": 7000.0, "tables": tables, "stages": {"data": 3.0, "step": 1.0}},
        {"kind": "train", "step": 20, "samples_per_s": 9000.0, "tables": tables, "stages": {"data": 3.0, "step": 1.0}},
    )
    (run / "config.json").write_text('{"model": {"name": "dlrm", "hidden": [512, 256]}}')
    text = text_of(write(run))
    for wanted in ("1,234,567", "87.5 %", "0.4321", "98.7 MB", "8,000", "75.0 %", "input-bound", "[512, 256]"):
        assert wanted in text


def test_hit_rates_are_those_of_training_and_norms_those_of_validation(tmp_path):
    run = records_to(
        tmp_path / "run",
        {"kind": "train", "step": 10, "tables": {"user": {"rows": 5, "hit_rate": 0.625}}},
        {"kind": "valid", "step": 10, "tables": {"user": {"rows": 5, "hit_rate": 1.0, "norm": 0.4321}}},
    )
    text = text_of(write(run))
    assert "62.5 %" in text
    assert "0.4321" in text
    assert "100.0 %" not in text


def test_a_table_that_was_not_looked_up_has_no_hit_rate(tmp_path):
    tables = {"user": {"rows": 5, "hit_rate": 0.625}, "item": {"rows": 5, "hit_rate": None}}
    valid = {name: {"hit_rate": 0.99} for name in tables}
    run = records_to(
        tmp_path / "run",
        {"kind": "train", "step": 10, "tables": tables},
        {"kind": "valid", "step": 10, "tables": valid},
    )
    text = text_of(write(run))
    assert "62.5 %" in text
    assert "\N{EN DASH}" in text
    assert "99.0 %" not in text


def test_what_all_tables_share_is_said_once(tmp_path):
    plan = {
        name: {"store": "HashStore", "capacity": 10**10, "dim": 4 * i, "features": [name]}
        for i, name in enumerate("ab", 1)
    }
    run = records_to(tmp_path / "run", {"kind": "train", "step": 10, "tables": {"a": {"rows": 5}, "b": {"rows": 7}}})
    (run / "plan.json").write_text(json.dumps({"tables": plan}))
    text = text_of(write(run))
    assert "All have store HashStore, capacity 10G." in text
    assert "table dim rows growth a 4 5 b 8 7" in text


def test_nothing_a_run_holds_can_become_a_tag(tmp_path):
    evil = '</style><script>alert("1")</script><img src=x onerror=alert(2)>'
    run = write_run(tmp_path / evil.replace("/", "&"), (evil, "other"), records=12)
    (run / "config.json").write_text(json.dumps({evil: evil, "model": evil}))
    (run / "environment.json").write_text(json.dumps({"cpu": evil}))
    (run / "plan.json").write_text(json.dumps({"tables": {evil: {"store": evil, "rows": 5}}}))
    checker = checked(write(run))
    assert "img" not in checker.names
    assert checker.names.count("script") == 1
    assert not [name for name, _ in checker.attributes if name.startswith("on")]
    assert sum(evil in text for text in checker.texts) > 5


def test_control_characters_and_lone_surrogates_do_not_stop_the_page(tmp_path):
    run = records_to(tmp_path / "run", {"kind": "valid", "step": 1, "auc": 0.7})
    (run / "environment.json").write_text('{"cpu": "a\\u0000b\\ud800c"}')
    assert "a\ufffdb\ufffdc" in text_of(write(run))


def test_the_page_needs_no_network(tmp_path):
    checker = checked(write(write_run(tmp_path / "run", records=20)))
    assert not {"link", "img", "iframe", "object"} & set(checker.names)
    links = [value or "" for name, value in checker.attributes if name in ("src", "href")]
    assert all(link.startswith("#") for link in links)
    assert "url(" not in STYLE
    assert "@import" not in STYLE


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.json", "schema.json", "plan.json", "environment.json"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "other", "binary"])
def test_a_missing_or_broken_file_is_a_note(tmp_path, name, damage):
    file = write_run(tmp_path / "run", records=12) / name
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        made = {"empty": b"", "cut": content[: len(content) // 2 - 1], "other": b"[1, 2]", "binary": b"\xff\x00\xfe"}
        file.write_bytes(made[damage])
    text = text_of(write(tmp_path / "run"))
    if (damage, name) == ("empty", "metrics.jsonl"):  # a run that has just begun
        assert "no records yet" in text
    else:
        assert "Notes" in text
        assert name in text


def test_a_last_line_that_was_cut_leaves_the_others(tmp_path):
    run = write_run(tmp_path / "run", records=12)
    whole = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join(whole[:5]) + "\n" + whole[5][:40])
    text = text_of(write(run))
    assert "line 6 is cut off" in text
    assert "not finished, last record at step 250" in text


def test_values_of_the_wrong_type_are_left_out(tmp_path):
    run = records_to(
        tmp_path / "run",
        {"kind": "train", "step": 1, "loss": "low", "stages": [1], "tables": {"a": 5}, "epoch": "x", "time": None},
        {"kind": "valid", "step": 1, "auc": 0.625, "calibration_curve": {"click": {"predicted": 3}}, "tables": 7},
        {"kind": 5, "step": 2},
        {"kind": "train", "step": -1},
        {"kind": "train"},
    )
    text = text_of(write(run))
    assert "AUC 0.6250" in text
    assert "line 3, 4, 5" in text


NAMES = st.sampled_from(
    [
        "loss",
        "auc",
        "click/auc",
        "loss/x",
        "my",
        "stages",
        "tables",
        "calibration_curve",
        "epoch",
        "time",
        "samples_per_s",
        "lr",
        "row_lr",
        "lr/a",
        "wait_share",
        "predicted",
        "observed",
        "count",
        "edges",
        "rows",
        "bytes",
        "hit_rate",
        "norm",
        "data",
        "click",
        "reason",
        "features",
        "name",
        "model",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.sampled_from(["", "<b>", "x"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=25,
)
RECORDS = st.fixed_dictionaries(
    {"kind": st.sampled_from(["train", "valid", "final", "other"]), "step": st.integers(0, 2**60) | st.floats(0, 1e9)},
    optional={},
).flatmap(lambda head: st.dictionaries(NAMES, VALUES, max_size=8).map(lambda rest: rest | head))


@given(st.lists(RECORDS, max_size=8), st.dictionaries(NAMES, VALUES, max_size=4))
def test_whatever_the_files_hold_the_page_is_well_formed(records, document):
    with tempfile.TemporaryDirectory() as folder:
        run = records_to(Path(folder) / "run", *records)
        for name in ("config", "schema", "plan", "environment"):
            (run / f"{name}.json").write_text(json.dumps(document))
        assert "Result" in text_of(write(run))


def test_steps_run_again_after_a_resume_count_once(tmp_path):
    steps = [100, 200, 300, 200, 300, 400]
    records = [{"kind": "train", "step": step, "loss": 1 / (i + 1)} for i, step in enumerate(steps)]
    text = text_of(write(records_to(tmp_path / "run", *records)))
    assert "2 records of steps that were run again" in text


def test_an_empty_folder_gives_a_page_that_says_so(tmp_path):
    text = text_of(write(tmp_path))
    assert "No metrics yet." in text
    assert "no records yet" in text
    assert "metrics.jsonl is missing" in text


def test_a_folder_that_is_not_there_is_an_error_with_a_remedy(tmp_path):
    with pytest.raises(ValueError, match=r"no run directory at .*--out of `hybridrec train`"):
        write(tmp_path / "nowhere")


def test_a_page_is_replaced_whole(tmp_path):
    run = write_run(tmp_path / "run", records=3)
    (run / "report.html").write_text("an older page")
    assert write(run).read_text().startswith("<!DOCTYPE html>")
    assert [path.name for path in run.iterdir() if "part" in path.name] == []


def test_many_records_make_a_small_page(tmp_path):
    records = [{"kind": "train", "step": i, "loss": 1 / (i + 1), "auc": i / 20_000} for i in range(20_000)]
    page = write(records_to(tmp_path / "run", *records))
    assert page.stat().st_size < 100_000


def colours(css: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z0-9]+): (#[0-9a-f]{6})", css))


def test_the_colours_can_be_told_apart_by_the_colour_blind_on_both_grounds():
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)")
    for css in (light, dark.split("* {")[0]):
        found = colours(css)
        lines = [found[f"c{i}"] for i in range(8)]
        assert nearest(lines[:2])[0] > 60
        assert nearest(lines[:4])[0] > 25
        assert nearest(lines)[0] > 10
        assert min(contrast(line, found["card"]) for line in lines) >= 3
        assert min(contrast(found[ink], found[ground]) for ink in ("ink", "soft") for ground in ("card", "paper")) > 4.5
