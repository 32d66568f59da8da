"""How the processes of a run are started, and who can read their token."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from hybridrec.launch.config import LaunchConfig
from hybridrec.launch.roles import RunRoles, free_port


def roles(folder: Path, *flags: str, **values: Any) -> RunRoles:
    return RunRoles(LaunchConfig.of(values), Path("runs/a"), folder, "hybridrec launch run.toml --resume", flags)


def after(flag: str, words: Any) -> str:
    return words[list(words).index(flag) + 1]


def test_the_token_is_long_and_its_owner_alone_can_read_it(tmp_path: Path):
    before = os.umask(0)
    try:
        made = roles(tmp_path)
    finally:
        os.umask(before)
    file = Path(after("--token-file", made.server(0, 0).command))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(file.read_text()) >= 32


def test_the_token_is_in_no_argument_and_in_no_environment(tmp_path: Path):
    made = roles(tmp_path, servers={"count": 2}, trainers={"count": 2})
    token = (tmp_path / "token").read_text()
    for start in (made.server(1, 7), made.trainer(1, ["a:1", "b:2"], True, 5)):
        assert token not in " ".join(start.command)
        assert token not in str(start.environment)
    assert token not in (tmp_path / "run.json").read_text()


def test_trainers_read_where_servers_are_from_a_file_with_all_of_the_run(tmp_path: Path):
    made = roles(tmp_path, data={"label": "click"}, servers={"count": 2, "staleness": 3, "deadline": 7})
    command = made.trainer(0, ["a:1", "b:2"], False, 0).command
    told = json.loads(Path(after("--config", command)).read_text())
    assert told["data"] == {"label": "click"}
    assert "trainers" not in told
    assert told["servers"]["addresses"] == ["a:1", "b:2"]
    assert (told["servers"]["staleness"], told["servers"]["deadline"]) == (3, 7)
    assert after("--out", command) == "runs/a"
    assert "--resume" not in command


def test_trainers_know_the_command_that_goes_on_with_the_run(tmp_path: Path):
    command = roles(tmp_path).trainer(0, ["a:1"], False, 0).command
    assert after("--resume-with", command) == "hybridrec launch run.toml --resume"


def test_servers_are_watched_with_their_token(tmp_path: Path):
    made = roles(tmp_path)
    said = f"hybridrec top --servers a:1,b:2 --token-file {after('--token-file', made.server(0, 0).command)}"
    assert made.watched_by(["a:1", "b:2"]) == said


def test_trainers_that_start_again_resume(tmp_path: Path):
    assert roles(tmp_path, "--resume").trainer(0, ["a:1"], True, 0).command.count("--resume") == 1


def test_several_trainers_are_ranks_of_one_world(tmp_path: Path):
    found = roles(tmp_path, trainers={"count": 3, "threads": 2}).trainer(2, ["a:1"], False, 4321).environment
    wanted = {"RANK": "2", "LOCAL_RANK": "2", "WORLD_SIZE": "3", "MASTER_PORT": "4321", "OMP_NUM_THREADS": "2"}
    assert wanted.items() <= found.items()


def test_one_trainer_is_no_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert "WORLD_SIZE" not in roles(tmp_path).trainer(0, ["a:1"], False, 0).environment


@pytest.mark.parametrize(
    ("servers", "path"),
    [({}, "runs/a/servers/1-of-2"), ({"path": "/rows"}, "/rows/1-of-2"), ({"memory": True}, None)],
)
def test_rows_live_in_the_folder_of_the_run_unless_the_file_says_otherwise(tmp_path: Path, servers: dict, path: Any):
    command = roles(tmp_path, servers={"count": 2, **servers}).server(1, 0).command
    assert (after("--path", command) if "--path" in command else None) == path


@pytest.mark.parametrize(("servers", "ports"), [({"port": 7000}, ["7000", "7001"]), ({}, ["0", "0"])])
def test_servers_listen_at_the_port_of_the_run_and_those_after_it_or_at_any(tmp_path: Path, servers: dict, ports: Any):
    made = roles(tmp_path, servers={"count": 2, **servers})
    assert [after("--port", made.server(number, 0).command) for number in (0, 1)] == ports


def test_a_server_starts_again_at_the_port_where_trainers_look_for_it(tmp_path: Path):
    made = roles(tmp_path, servers={"count": 2, "port": 7000})
    assert after("--port", made.server(1, 45678).command) == "45678"


def test_a_free_port_is_one():
    assert 0 < free_port() < 65536
