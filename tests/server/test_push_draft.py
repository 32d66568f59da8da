"""A push says the same whether its gradients are of one backward call, or come table by table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

import hybridrec as hr
from hybridrec.embedding.queue import QueuedCall
from hybridrec.optim.rule import RowRule, RowStep
from hybridrec.server.client import Servers
from hybridrec.server.link import DirectLink
from hybridrec.server.protocol import Kind, Message
from hybridrec.server.push_draft import PushDraft
from hybridrec.server.remote_store import RemoteStore
from tests.server.direct import shards
from tests.server.served_model import assert_same

TABLES = ("item", "tag", "shop")


class Net(nn.Module):
    """Tables of two widths that count nothing."""

    def __init__(self, where: str | None = "server") -> None:
        super().__init__()
        tables = [
            hr.Table("item", dim=8, capacity=1000, features=["item", "history"], where=where),
            hr.Table("tag", dim=4, capacity=1000, where=where),
            hr.Table("shop", dim=4, capacity=1000, where=where),
        ]
        self.emb = hr.EmbeddingCollection(tables, seed=3)

    def forward(self, step: int) -> Tensor:
        drawn = torch.Generator().manual_seed(step)

        def lists(longest: int) -> list[list[int]]:
            lengths = torch.randint(0, longest, (6,), generator=drawn).tolist()
            return [torch.randint(-9, 9, (length,), generator=drawn).tolist() for length in lengths]

        block = hr.IdBlock.from_lists({"item": lists(2), "history": lists(5), "tag": lists(3), "shop": lists(4)})
        flat = self.emb(block).flat
        return (flat * torch.linspace(-1, 1, flat.shape[1])).square().sum()


class Recording(DirectLink):
    """Keeps the pushes that it brings."""

    def __init__(self, shard, kept: list[Message]) -> None:
        super().__init__(shard)
        self._kept = kept

    def ask(self, request, deadline, what):
        if request.kind == Kind.PUSH:
            self._kept.append(request)
        return super().ask(request, deadline, what)


def train(model: nn.Module, parts: Sequence[Sequence[str]]) -> None:
    """A few steps of a model, with an optimizer for each of these lists of tables."""
    optimizers = [hr.optim.Adagrad(model, lr=0.1, tables=list(tables)) for tables in parts]
    for step in range(4):
        model(step).backward()
        for each in optimizers:
            each.step()


def pushes(parts: Sequence[Sequence[str]]) -> list[list[bytes]]:
    kept: list[Message] = []
    train(hr.shard(Net(), servers=Servers([Recording(each, kept) for each in shards(2)])), parts)
    return [[np.ascontiguousarray(buffer).tobytes() for buffer in message.buffers] for message in kept]


def test_a_push_is_the_same_in_every_bit_whether_tables_are_given_at_once_or_one_by_one():
    wanted = pushes([["shop"], ["item"], ["tag"]])
    assert len(wanted) == 8
    assert pushes([TABLES]) == wanted


def test_rows_end_where_those_of_tables_here_do_in_every_bit():
    ends = []
    here, served = Net(None), Net()
    for net, model in ((here, here), (served, hr.shard(served, servers=Servers.direct(shards(3))))):
        train(model, [TABLES])
        ends.append({name: tuple(net.emb[name].export()) for name in TABLES})
    assert_same(ends[1], ends[0])


def queued(table: str) -> QueuedCall:
    """The gradients of a table that is alone in its group, of one backward call."""
    emb = hr.EmbeddingCollection([hr.Table(table, dim=4, capacity=100, where="server")])
    model = hr.shard(emb, servers=Servers.direct(shards(2)))
    updating = hr.optim.SGD(model, lr=0.1)
    model(hr.IdBlock.from_lists({table: [[id] for id in range(9)]})).flat.sum().backward()
    assert updating.tables == (table,)
    store = emb[table]
    assert isinstance(store, RemoteStore)
    assert store.group is not None
    return store.group._queue[0]


def steps(*tables: str) -> dict[str, RowStep]:
    return dict.fromkeys(tables, RowStep(rule=RowRule("sgd"), lr=0.5, step=1))


def test_the_gradients_of_one_call_are_sent_from_where_they_lie():
    call, draft = queued("user"), PushDraft({"user": 0}, set(), 2)
    draft.add([call], steps("user"))
    for gradients in draft.take():
        assert len(gradients.vectors)
        assert np.shares_memory(gradients.vectors, call.tensors[0][0].numpy())
    assert draft.tables == [], "the next push begins"


def test_tables_of_another_call_join_those_of_one_in_the_order_of_their_numbers():
    calls, numbers = {name: queued(name) for name in ("user", "item")}, {"item": 0, "user": 1}
    both, alone = PushDraft(numbers, set(), 2), PushDraft(numbers, set(), 2)
    for name, call in calls.items():
        both.add([call], steps(name))
    alone.add([calls["user"]], steps("user"))
    for joined, user in zip(both.take(), alone.take(), strict=True):
        assert joined.asked.tables.tolist() == [0, 1]
        own = len(user.asked.ids)
        assert joined.asked.counts.tolist()[1] == own
        assert joined.asked.ids[-own:].tolist() == user.asked.ids.tolist()
        assert joined.vectors[-4 * own :].tolist() == user.vectors.tolist()
        assert len(joined.numbers) == 2
