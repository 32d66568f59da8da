"""Tables on servers train as tables here do: without staleness, one trainer ends with the same bits."""

from __future__ import annotations

import math

import pytest
import torch

import hybridrec as hr
from hybridrec.embedding.mixed.joined import JoinedGroup
from hybridrec.server.served_group import ServedGroup
from tests.server.direct import direct
from tests.server.served_model import Net, assert_same, batch, train


@pytest.mark.parametrize("servers", [1, 2, 5])
@pytest.mark.parametrize("optimizer", ["Adam", "RowWiseAdagrad"])
def test_without_staleness_one_trainer_ends_where_a_table_here_does_in_every_bit(servers, optimizer):
    wanted = train(None, optimizer=optimizer)
    assert_same(train(direct(servers), optimizer=optimizer), wanted)
    assert_same(train(direct(servers), optimizer=optimizer, ahead=True), wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_of_half_precision_are_rounded_alike(dtype):
    assert_same(train(direct(2), dtype=dtype), train(None, dtype=dtype))


def test_the_norm_of_gradients_is_that_of_rows_and_layers_together():
    assert_same(train(direct(2), clip=0.05), train(None, clip=0.05), close=1e-6)


def test_gradients_of_ids_that_were_not_let_in_are_no_part_of_the_norm():
    options = {"clip": 0.05, "admission": hr.embedding.MinCount(3)}
    assert_same(train(direct(2), **options), train(None, **options), close=1e-6)


def test_a_norm_between_two_row_optimizers_does_not_end_the_step():
    servers = direct(1)
    model = hr.shard(Net(admission=hr.embedding.Probability(0.5)), servers=servers)
    first = hr.optim.SGD(model, lr=0.1, tables=["user"])
    second = hr.optim.SGD(model, lr=0.1, tables=["item", "tag", "shop", "page", "word", "day"])
    model(batch(0)[0]).sum().backward()
    first.step()
    assert hr.optim.clip_grad_norm_([], second, 1.0) > 0
    second.step()
    assert [shard.stats()["pushes"] for shard in shards_of(servers)] == [1]


def test_steps_of_several_batches_are_one_push():
    servers = direct(2)
    assert_same(train(servers, accumulate=3), train(None, accumulate=3), close=1e-5)
    stats = [shard.stats() for shard in shards_of(servers)]
    assert [told["pushes"] for told in stats] == [8, 8]


def shards_of(servers):
    return [link._shard for link in servers.links]


def test_a_step_is_one_lookup_and_one_push_for_each_server():
    servers = direct(3)
    train(servers, steps=5, staleness=2, ahead=True)
    for shard in shards_of(servers):
        told = shard.stats()
        assert (told["pushes"], told["session"]) == (5, 0)
        assert sum(told["staleness"]) == 5  # training lookups


@pytest.mark.parametrize("staleness", [1, 3])
def test_with_staleness_training_goes_another_way_and_every_gradient_counts(staleness):
    found, wanted = train(direct(2), staleness, ahead=True, steps=12), train(None, steps=12)
    assert torch.equal(found["outputs"][0], wanted["outputs"][0])  # there was nothing to miss yet
    assert not torch.equal(found["outputs"][-1], wanted["outputs"][-1])
    assert found["rows"]["item"].ids.tolist() == wanted["rows"]["item"].ids.tolist()
    assert_same(found["outputs"][-1], wanted["outputs"][-1], close=0.2)


def test_eval_inserts_nothing():
    model = hr.shard(Net(), servers=direct(2))
    hr.optim.SGD(model, lr=0.1)
    model.eval()
    with torch.no_grad():
        model(batch(0)[0])
    assert len(model.emb["item"]) == 0


def test_rows_that_a_model_has_of_its_own_go_to_servers():
    here, there = Net(None), Net()
    for model in (here, there):
        model.emb["shop"].load(torch.tensor([3, 40]), torch.ones(2, 4))
    served = hr.shard(there, servers=direct(2))
    assert torch.equal(served.emb["shop"].export().rows, here.emb["shop"].export().rows)
    assert sum(len(shard.tables["shop"]) for shard in shards_of(served.served.servers)) == 2  # the rest can be drawn


def test_an_id_outside_of_a_fixed_table_is_an_error_that_names_its_feature():
    model = hr.shard(hr.EmbeddingCollection([hr.Table("day", dim=2, rows=7, where="server")]), servers=direct(2))
    with pytest.raises(ValueError, match=r"id 9 at position 1 of feature 'day' is outside table 'day', 0 … 6; give"):
        model(hr.IdBlock.from_lists({"day": [3, 9]}))


def test_a_collection_for_servers_takes_no_memory_before_it_is_placed():
    tables = [hr.Table("word", dim=4096, rows=2**32 - 2, out_of_range="hash", where="server")]  # 64 TiB
    emb = hr.shard(hr.EmbeddingCollection(tables), servers=direct(2))
    rows = hr.optim.Adagrad(emb, lr=0.1)
    emb(hr.IdBlock.from_lists({"word": [5, -1, 2**40]})).flat.sum().backward()
    rows.step()
    assert sum(len(shard.tables["word"]) for shard in shards_of(emb.served.servers)) == 3


def test_a_training_lookup_without_gradients_is_a_step_of_its_own():
    here, served = Net(None), hr.shard(Net(), servers=direct(2))
    for model in (here, served):
        hr.optim.SGD(model, lr=0.1)
        with torch.no_grad():
            for step in range(3):
                model(batch(step)[0])
    assert served.emb["item"].clock == here.emb["item"].clock == 3
    assert_same(tuple(served.emb["user"].export()), tuple(here.emb["user"].export()))


def test_two_row_optimizers_make_one_push():
    ends = []
    servers = direct(2)
    for model in (Net(None), hr.shard(Net(), servers=servers)):
        both = [
            hr.optim.Adagrad(model, lr=0.1, tables=["item"]),
            hr.optim.SGD(model, lr=0.1, tables=["user", "tag", "shop", "page", "word", "day"]),
        ]
        for step in range(4):
            block, label = batch(step)
            ((model(block) - label) ** 2).mean().backward()
            for each in both:
                each.step()
        ends.append({name: tuple(model.emb[name].export()) for name in ("item", "user", "tag", "shop", "word")})
    assert_same(ends[1], ends[0])
    assert [shard.stats()["pushes"] for shard in shards_of(servers)] == [4, 4]


def test_gradients_that_are_discarded_are_not_pushed_and_the_step_goes_on():
    model = hr.shard(Net(), servers=direct(1))
    rows = hr.optim.SGD(model, lr=0.1)
    model(batch(0)[0]).sum().backward()
    before = model.emb["item"].export()
    rows.zero_grad()
    rows.step()
    assert_same(tuple(model.emb["item"].export()[:2]), tuple(before[:2]))
    assert model.emb["item"].clock == 1


@pytest.mark.parametrize("policy", ["skip", "raise"])
def test_a_gradient_that_is_not_finite_is_left_out_or_refused(policy):
    model = hr.shard(Net(), servers=direct(2))
    rows = hr.optim.SGD(model, lr=0.1, nan=policy)
    (model(batch(0)[0]) * math.inf).sum().backward()
    assert rows.grad_norm() == math.inf
    if policy == "raise":
        with pytest.raises(FloatingPointError, match="nothing was changed"):
            rows.step()
        return
    before = model.emb["tag"].export().rows
    rows.step()
    assert_same(model.emb["tag"].export().rows, before)
    assert model.emb["tag"].nan_rows == model.emb["tag"].counters()["nan_rows"] > 0


def test_a_table_beside_them_stays_here_and_both_are_one_group():
    model = hr.shard(Net(), servers=direct(2))
    assert isinstance(model.emb.group, JoinedGroup)
    assert isinstance(model.emb.group.parts[0], ServedGroup)
    assert model.plan["day"].where == "device"
    assert str(model.plan["item"]) == "Placement(item: row on 0-1, server)"


def test_rows_that_a_model_has_go_to_the_servers():
    here = Net(None)
    rows = hr.optim.SGD(here, lr=0.1)
    here(batch(0)[0]).sum().backward()
    rows.step()
    wanted = {name: here.emb[name].export() for name in ("item", "user", "tag", "day")}
    served = hr.shard(here, servers=direct(3))
    for name, data in wanted.items():
        assert_same(tuple(served.emb[name].export()[:2]), tuple(data[:2]))


def test_what_servers_held_before_is_gone():
    servers = direct(2)
    train(servers)
    assert_same(train(servers), train(None))
