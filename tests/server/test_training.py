"""A Trainer with servers: the same run as without, its checkpoints, and what it says when something is wrong."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import hybridrec as hr
from hybridrec.server.client import Servers
from hybridrec.server.config import ServersConfig
from hybridrec.server.errors import Fenced, ServerLost
from hybridrec.train import Callback, TrainOptions
from hybridrec.train.checkpoint import Checkpoints, read_manifest
from hybridrec.train.table_figures import stores
from hybridrec.train.together import inside
from tests.parallel.pool import pool
from tests.server import training_job
from tests.server.direct import direct
from tests.server.processes import ServerProcess
from tests.server.served_model import assert_same
from tests.train.clicks import dataset, model_of, trainer_of

STEPS, HALF = 20, 13
SAVING = TrainOptions(progress="none", log_every=5, save_every=5)


def rows_of(trainer: hr.Trainer) -> dict[str, Any]:
    return {name: tuple(store.export()) for name, store in stores(inside(trainer.model)).items()}


def fit(out: Path, servers: Servers | None, steps: int = STEPS, resume: str | None = None, **more: Any) -> hr.Trainer:
    ds = dataset(1000, 50).shuffle(seed=1)
    given = {} if servers is None else {"servers": servers, "staleness": 0}
    trainer = trainer_of(ds, out=out, options=SAVING, **{**given, **more})
    trainer.fit(ds, steps=steps, resume=resume)
    return trainer


@pytest.fixture(scope="module")
def wanted(tmp_path_factory) -> dict[str, Any]:
    """What a run without servers ends with."""
    return rows_of(fit(tmp_path_factory.mktemp("here"), None))


@pytest.fixture(scope="module")
def halves(tmp_path_factory) -> dict[int, Path]:
    """Runs that stopped half-way: here, and on three servers."""
    made = {count: tmp_path_factory.mktemp(f"on-{count}") for count in (0, 3)}
    for count, folder in made.items():
        fit(folder, direct(count) if count else None, HALF)
    return made


def test_a_fit_with_servers_ends_with_the_bits_of_one_without(tmp_path, wanted):
    assert_same(rows_of(fit(tmp_path, direct(2))), wanted)


WAYS = [(3, 3), *(pytest.param(*way, marks=pytest.mark.slow) for way in [(3, 1), (3, 5), (3, 0)]), (0, 4)]


@pytest.mark.parametrize(("before", "after"), WAYS)
def test_a_run_goes_on_with_any_number_of_servers_in_every_bit(before, after, halves, tmp_path, wanted):
    shutil.copytree(halves[before], tmp_path / "run")
    resumed = fit(tmp_path / "run", direct(after) if after else None, resume="auto")
    assert_same(rows_of(resumed), wanted)


FIXED = {
    "*": {"where": "server"},
    "user": {"rows": 60},
    "item": {"hashes": hr.embedding.MultiHash(2, 20)},
    "tags": {"rows": 3, "out_of_range": "hash"},
}


def fixed_rows(out: Path, servers: int, steps: int, resume: str | None = None) -> dict[str, Any]:
    ds = dataset(300, 50).shuffle(seed=1)
    model = model_of(ds, tables=FIXED if servers else {**FIXED, "*": {}})
    trainer = trainer_of(ds, model, out=out, options=SAVING, **({"servers": direct(servers)} if servers else {}))
    trainer.fit(ds, steps=steps, resume=resume)
    assert resume is None or trainer.step == steps
    return rows_of(trainer)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (0, 2), (2, 0)])
def test_fixed_and_hashed_tables_go_on_from_one_place_to_another_in_every_bit(before, after, tmp_path):
    fixed_rows(tmp_path / "run", before, 3)
    found = fixed_rows(tmp_path / "run", after, 6, resume="auto")
    assert_same(found, fixed_rows(tmp_path / "here", 0, 6))
    assert len(found["user"][0]) == 60
    assert hr.load(tmp_path / "run").evaluate(dataset(300, 50))


@pytest.mark.slow
def test_a_new_session_begins_from_its_checkpoint_whatever_servers_hold(halves, tmp_path, wanted):
    servers = direct(3)
    fit(tmp_path / "other", servers, 3)  # leaves rows of its own
    shutil.copytree(halves[3], tmp_path / "run")
    assert_same(rows_of(fit(tmp_path / "run", servers, resume="auto")), wanted)


def test_an_older_trainer_is_fenced_off(tmp_path):
    servers = direct(2)
    first = fit(tmp_path / "first", servers, 3)
    fit(tmp_path / "second", servers, 3)
    with pytest.raises(Fenced, match="another start of the job is using the servers"):
        first.fit(dataset(200, 50), steps=6, resume="auto")


def test_a_checkpoint_has_no_rows_of_lookups_that_were_ahead_of_it(tmp_path):
    ds = dataset(80, 4)  # twenty steps
    fit_all = trainer_of(ds, out=tmp_path, options=SAVING, servers=direct(2), staleness=4)
    fit_all.fit(ds, steps=15)
    seen = [batch.ids["user"].values for _, batch in zip(range(15), ds, strict=False)]
    saved = {read_manifest(folder).step: folder for folder in (tmp_path / "checkpoints").glob("step-*")}
    assert {10, 15} <= saved.keys()
    for step, folder in saved.items():
        table = read_manifest(folder).tables["embeddings.user"]
        found = hr.train.checkpoint.open_table(folder / table.parts[0].file)
        assert sorted(found["id"].to_pylist()) == torch.cat(seen[:step]).unique().tolist()
        assert table.clock == step
        assert max(found["touched"].to_pylist()) == step - 1


def test_records_report_and_plan_tell_of_servers(tmp_path):
    run = fit(tmp_path, direct(2), staleness=3)
    told = [record["servers"] for record in run.history.train]
    assert [each["allowed"] for each in told] == [3] * 4
    assert all(0 <= each["staleness"] <= each["staleness_max"] <= 3 for each in told)
    plan = json.loads((tmp_path / "plan.json").read_text())["tables"]
    assert {name: each["where"] for name, each in plan.items()} == dict.fromkeys(plan, "server")
    report = (tmp_path / "report.html").read_text()
    assert "Steps behind, rows on servers" in report
    assert "allowed 3" in report


def test_without_servers_records_say_nothing_of_them(tmp_path):
    assert not any("servers" in record for record in fit(tmp_path, None, 5).history)


def test_a_run_is_used_without_its_servers(tmp_path):
    run, ds = fit(tmp_path, direct(2)), dataset(300, 50)
    assert hr.load(tmp_path, "latest").evaluate(ds) == run.evaluate(ds)


def test_more_rows_than_a_server_has_room_for_are_given_up_by_their_scores(tmp_path):
    old = hr.EmbeddingCollection([hr.Table("n", dim=2, capacity=60)])
    rows = hr.optim.SGD(old, lr=0.1)
    for step in range(60):
        old(hr.IdBlock.from_lists({"n": [step]})).flat.sum().backward()
        rows.step()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(hr.train.checkpoint.Contents(old), 1)
    new = hr.shard(hr.EmbeddingCollection([hr.Table("n", dim=2, capacity=60)]), servers=direct(6))
    report = hr.train.checkpoint.load(checkpoints.latest(), hr.train.checkpoint.Contents(new))
    left = new.module["n"].ids()
    assert len(left) < 60
    assert f"{60 - len(left)} rows had no room" in str(report.notes)
    assert max(len(part) for part in held_by_server(left, 6)) <= 10


def held_by_server(ids: torch.Tensor, count: int) -> list:
    from hybridrec.server.placement import by_server

    return by_server(ids.numpy(), count)


def test_several_trainers_end_and_resume_where_one_process_does(tmp_path):
    job = "tests.server.training_job:fit"
    with ServerProcess("--of", "2") as first, ServerProcess("--number", "1", "--of", "2") as second:
        addresses = [first.address, second.address]
        halfway = pool(2).run(job, addresses=addresses, out=str(tmp_path / "a"), steps=6)
        found = pool(2).run(job, addresses=addresses, out=str(tmp_path / "a"), steps=11, resume="auto")
    alone = training_job.fit([], str(tmp_path / "b"), steps=11)
    assert [each["step"] for each in (*halfway, *found)] == [6, 6, 11, 11]
    for each in found:
        assert_same(each["layers"], alone["layers"], close=1e-5)
        assert_same(each["rows"], alone["rows"], close=1e-5)
        assert {name: each["told"][name] for name in each["bytes"]} == each["bytes"], "servers are counted once"


class Kill(Callback):
    """Kills a server after some steps."""

    def __init__(self, server: ServerProcess, step: int) -> None:
        self.server, self.step = server, step

    def on_step(self, trainer: hr.Trainer, result: Any) -> None:
        if trainer.step == self.step:
            self.server.end(signal.SIGKILL)


def test_a_server_that_is_lost_ends_the_run_and_says_what_to_resume_from(tmp_path):
    ds = dataset(1000, 50)
    with ServerProcess() as server:
        config = ServersConfig([server.address], deadline=2.0)
        trainer = trainer_of(ds, out=tmp_path, options=SAVING, servers=config, callbacks=[Kill(server, 12)])
        with pytest.raises(ServerLost, match=rf"server 0 \({server.address}\): the .* of step .*") as lost:
            trainer.fit(ds, steps=STEPS)
    latest = Checkpoints(tmp_path / "checkpoints").latest()
    assert latest is not None, "the first of two was complete"
    behind = 12 - read_manifest(latest).step
    assert f"then resume from {latest} ({behind} steps since then are lost)" in str(lost.value)


# -- what is refused ------------------------------------------------------------------------------------------------


def marked() -> hr.EmbeddingCollection:
    return hr.EmbeddingCollection([hr.Table("user", dim=4, capacity=100, where="server")])


def test_a_marked_table_wants_servers():
    with pytest.raises(ValueError, match=r"table 'user' says where='server', and there are no servers; give the Train"):
        hr.Trainer(marked())


def test_servers_want_a_table():
    fixed = hr.EmbeddingCollection([hr.Table("day", dim=4, rows=7), hr.Table("shop", 2, capacity=9, where="host")])
    with pytest.raises(ValueError, match="there are servers, but no table for them"):
        hr.shard(fixed, servers=direct(1))


def test_staleness_is_that_of_servers():
    with pytest.raises(ValueError, match="staleness is 3, but there are no servers"):
        hr.shard(marked(), staleness=3)
    with pytest.raises(ValueError, match="staleness is -1; it must be a whole number from 0"):
        hr.shard(marked(), servers=direct(1), staleness=-1)


def test_a_model_is_sharded_once_and_before_its_optimizers():
    with pytest.raises(ValueError, match="the model is sharded already"):
        hr.Trainer(hr.shard(marked(), servers=direct(1)), servers=direct(1))
    model = marked()
    with pytest.raises(ValueError, match="row_optimizer was made before the model was sharded over servers"):
        hr.Trainer(model, row_optimizer=hr.optim.SGD(model, lr=0.1), servers=direct(1))


def test_another_declaration_than_that_of_the_servers_is_refused_with_both_values():
    servers = direct(2)
    hr.shard(marked(), servers=servers)
    other = hr.EmbeddingCollection([hr.Table("user", dim=8, capacity=100)])
    with pytest.raises(ValueError, match="server 0 of 2 has dim 4, the trainer declares 8"):
        hr.shard(other, servers=servers)


def test_two_tables_of_one_name_cannot_both_go_there():
    both = torch.nn.ModuleDict({"a": marked(), "b": marked()})
    with pytest.raises(ValueError, match="two collections have a table 'user'"):
        hr.shard(both, servers=direct(1))


def test_a_state_dict_has_no_place_for_them():
    model = hr.shard(marked(), servers=direct(1))
    with pytest.raises(RuntimeError, match="table 'user' lies on servers"):
        model.module.state_dict()


def test_a_plan_does_not_invent_servers():
    plan = hr.parallel.Plan(1, (hr.parallel.Placement("user", "row", (0, 1), where="server"),))
    with pytest.raises(ValueError, match="the plan has table 'user' on servers"):
        hr.shard(
            hr.EmbeddingCollection([hr.Table("user", 2, capacity=9, where="host"), hr.Table("item", 2, capacity=9)]),
            plan,
            servers=direct(1),
        )


def test_models_of_hybridrec_may_mark_their_tables(tmp_path):
    ds = dataset(200, 50)
    model = model_of(ds, tables={"user": {"where": "server"}})
    trainer = trainer_of(ds, model, out=tmp_path, servers=direct(2))
    trainer.fit(ds, steps=2)
    plan = json.loads((tmp_path / "plan.json").read_text())["tables"]
    assert {name for name, each in plan.items() if each["where"] == "server"} == {"user", "wide.user"}
    assert len(hr.load(tmp_path).predict(ds)) == 200


@pytest.mark.parametrize(("before", "after"), [(3, 3), (3, 2), (0, 2), (3, 0)])
def test_counts_for_admission_come_back_as_they_were_or_higher(before, after, tmp_path):
    def counting(servers: int) -> Any:
        emb = hr.EmbeddingCollection([hr.Table("n", dim=2, capacity=600, admission=hr.embedding.MinCount(3))])
        return hr.shard(emb, servers=direct(servers)) if servers else emb

    def seen(emb: Any, *ids: int) -> None:
        with torch.no_grad():
            emb(hr.IdBlock.from_lists({"n": list(ids)}))

    old, new = counting(before), counting(after)
    seen(old, *range(100), *range(50))
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(hr.train.checkpoint.Contents(old), 1)
    report = hr.train.checkpoint.load(checkpoints.latest(), hr.train.checkpoint.Contents(new))
    assert ("some may be too high" in str(report.notes)) == (before != after)
    seen(new, *range(50))
    store = getattr(new, "module", new)["n"]
    assert set(range(50)) <= set(store.ids().tolist()), "they had been seen twice"
    if before == after:
        assert len(store) == 50
