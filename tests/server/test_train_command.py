"""`hybridrec train` with servers, and what comes of such a run without them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.test_train import invoke
from tests.server.processes import ServerProcess, certificate
from tests.train.clicks import clicks

SMALL = ("--label", "click", "--steps", "5", "--json", "model.dim=4", "model.hidden=[8]", "data.batch_size=50")


@pytest.fixture
def data(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table(clicks(600)), "clicks.parquet")
    return tmp_path / "clicks.parquet"


@pytest.fixture(scope="module")
def secured(tmp_path_factory) -> Iterator[tuple[ServerProcess, Path]]:
    """A server with a token and a certificate, and the folder of both."""
    folder = tmp_path_factory.mktemp("secrets")
    cert, key = certificate(folder)
    (folder / "token").write_text("a long and secret token")
    with ServerProcess("--token-file", str(folder / "token"), "--tls-cert", str(cert), "--tls-key", str(key)) as server:
        yield server, folder


def test_train_evaluate_and_predict(data, secured):
    server, folder = secured
    secrets = ("--server-token-file", folder / "token", "--server-ca", folder / "server.pem")
    address = f"localhost:{server.port}"
    told = invoke("train", data, *SMALL, "--servers", address, "--staleness", "2", *secrets, "--out", "runs/a")
    assert told.exit_code == 0, told.output
    config = json.loads(Path("runs/a/config.json").read_text())["run"]["servers"]
    assert (config["addresses"], config["staleness"]) == ([address], 2)
    again = invoke("train", "--out", "runs/a", "--resume", "--json", "train.steps=8")
    assert json.loads(again.stdout)["steps"] == 8, again.output
    assert invoke("evaluate", "runs/a", data, "--json").exit_code == 0
    assert invoke("predict", "runs/a", data, "--out", "scores.parquet").exit_code == 0
    refused = invoke("train", data, *SMALL, "--servers", address, "--server-ca", folder / "server.pem", "--out", "b")
    assert refused.exit_code == 1
    assert "token" in refused.stderr


def test_a_configuration_has_a_section_of_servers(data):
    with ServerProcess() as server:
        Path("run.toml").write_text(
            f'[data]\npath = "clicks.parquet"\nlabel = "click"\nbatch_size = 50\n[train]\nsteps = 3\n'
            f'[servers]\naddresses = ["{server.address}"]\nstaleness = 1\n'
        )
        told = invoke("train", "--config", "run.toml", "servers.staleness=2", "--out", "runs/a", "--json")
    assert told.exit_code == 0, told.output
    records = [json.loads(line) for line in Path("runs/a/metrics.jsonl").read_text().splitlines()]
    assert records[0]["servers"]["allowed"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--staleness", "2"], "servers.addresses is []; it must be a list"),
        (["--staleness", "2"], "on the command line, name all servers with --servers host:7000"),
        (["--servers", "box"], "'box' is no address of a server; write it as host:port"),
        (["--servers", "a:1,a:1"], "servers.addresses is ['a:1', 'a:1']; each server is named once"),
        (["--servers", "a:1", "servers.stale=2"], "servers has no option 'stale'; valid are addresses, staleness"),
        (["--servers", "a:1", "servers.deadline=0"], "servers.deadline is 0; it must be a number of seconds above 0"),
        (["--servers", "127.0.0.1:9", "servers.deadline=0.2"], "server 0 (127.0.0.1:9): the connection was not made"),
        (["--servers", "a:1", "--server-token-file", "none"], "none"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(data, words, message):
    result = invoke("train", data, *SMALL, *words, "--out", "runs/a")
    assert result.exit_code == 1, result.output
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
