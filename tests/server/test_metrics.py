"""What can be watched: Prometheus's metrics, and the lines of `hybridrec top`."""

from __future__ import annotations

import io
import json
from urllib.request import urlopen

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hybridrec.cli.commands import app
from hybridrec.cli.top import _table
from hybridrec.server.client import Servers
from hybridrec.server.listener import Listener
from hybridrec.server.metrics import serve_metrics
from hybridrec.server.shard import Shard
from hybridrec.server.watch import COLUMNS, lines, rates
from tests.server.counting import attached, look, push


def worked() -> tuple[Shard, list[dict]]:
    """A server that trained for five steps, and its figures before and after."""
    shard = Shard()
    session = attached(Servers.direct([shard]), staleness=2)
    before = shard.stats()
    for step in range(5):
        look(session, step, [1, 2, step + 10])
        push(session, step, [1, 2])
    return shard, [before, shard.stats()]


def test_prometheus_reads_the_figures_of_a_server():
    pytest.importorskip("prometheus_client")
    shard, _ = worked()
    port = serve_metrics(shard, "127.0.0.1", 0)
    with urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        text = page.read().decode()
    for line in (
        "hybridrec_server_lookups_total 5.0",
        "hybridrec_server_ids_pushed_total 10.0",
        'hybridrec_server_lookups_by_staleness_total{unseen="0"} 5.0',
        'hybridrec_table_rows{table="count"} 7.0',
        'hybridrec_table_hits_total{table="count"} 8.0',
    ):
        assert line in text.splitlines()


def test_rates_are_what_happened_between_two_looks():
    _, (before, after) = worked()
    after["uptime"] = before["uptime"] + 2.5
    found = rates(before, after)
    assert (found["lookups"], found["ids"], found["pushes"]) == (2.0, 6.0, 2.0)
    assert found["hit_rate"] == pytest.approx(8 / 15)
    assert len(lines([before], [after])[0]) == len(COLUMNS)


def test_top_fits_a_terminal_of_eighty_columns():
    counted = {"lookups": 9_000, "ids_looked_up": 9_000_000, "pushes": 9_000, "seconds": 1.0}
    rows = {"a": {"rows": 90_000_000, "hits": 9, "misses": 1}}
    about = {"number": 99, "session": 7, "waiting": 99, "memory": 90 << 30, "tables": rows}
    before = {**about, **dict.fromkeys(counted, 0), "uptime": 0.0, "staleness": [0, 0]}
    shown = io.StringIO()
    Console(width=80, file=shown).print(_table([before], [{**about, **counted, "uptime": 1.0, "staleness": [0, 9]}]))
    assert "…" not in shown.getvalue()
    assert all(name in shown.getvalue() for name in (*COLUMNS, "90,000,000", "90.0 GB"))
    assert len(shown.getvalue().strip().splitlines()) == 3, "a title, names, and one line for the server"


def test_a_server_that_started_anew_is_shown_from_its_start():
    _, (before, after) = worked()
    before["uptime"], after["uptime"] = 100.0, 5.0
    before["lookups"] = 1000
    assert rates(before, after)["lookups"] == 1.0


def test_top_looks_at_servers_on_the_command_line():
    with Listener(Shard(0, 2), "127.0.0.1", 0) as first, Listener(Shard(1, 2), "127.0.0.1", 0) as second:
        names = f"127.0.0.1:{first.port}, 127.0.0.1:{second.port}"
        done = CliRunner().invoke(app, ["top", "--servers", names, "--json"])
        assert [each["number"] for each in json.loads(done.stdout)["servers"]] == [0, 1]
    done = CliRunner().invoke(app, ["top", "--servers", "box", "--json"])
    assert done.exit_code == 1
    assert "'box' is no address of a server" in done.output
