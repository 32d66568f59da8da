"""Steps of tables that lie in several stores: together they are those of one store with the whole table."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding import Uniform
from hybridrec.embedding.gpu.group import DeviceGroup
from hybridrec.embedding.gpu.store import DeviceStore
from hybridrec.embedding.owner import RowOwner
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.embedding.share import Share
from hybridrec.types import IdBlock, Ragged
from tests.embedding.gpu.on_device import QUICK, ids
from tests.gpu import DEVICE, needs_gpu

pytestmark = needs_gpu

ROWS, DIM = 9, 10
BY_ROW = [Share(0, 2), Share(1, 2)]
BY_COLUMN = [Share(column=0, width=8), Share(column=8)]
BY_BOTH = [Share(row, 2, column, width) for row in range(2) for column, width in ((0, 3), (3, 7))]
OPTIMIZERS = {
    "sgd": lambda m: hr.optim.SGD(m, lr=2.0**-12, weight_decay=0.25),
    "momentum": lambda m: hr.optim.SGD(m, lr=0.1, momentum=0.9),
    "nesterov": lambda m: hr.optim.SGD(m, lr=0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda m: hr.optim.Adagrad(m, lr=0.1, weight_bound=0.5),
    "rowwise_adagrad": lambda m: hr.optim.RowWiseAdagrad(m, lr=0.1, clip_row_norm=0.5),
    "adam": lambda m: hr.optim.Adam(m, lr=0.1),
    "ftrl": lambda m: hr.optim.FTRL(m, lr=0.1, l1=0.01),
}


class Divided(RowOwner, nn.Module):
    """A whole table and its shares, all of which one group updates."""

    def __init__(self, dtype: torch.dtype, shares: Sequence[Share], kind: str) -> None:
        super().__init__()
        table = hr.Table("item", DIM, rows=ROWS, dtype=dtype, init=Uniform(1.0))
        stores = {str(number): DeviceStore(table, 3, DEVICE, share) for number, share in enumerate([Share(), *shares])}
        self.whole, *self.parts = stores.values()
        self.group = DeviceGroup(stores, set(stores), QUICK)  # pyright: ignore
        self._look_up = self.group.lookup_fn(tuple(FeatureSpec(name, name, "none") for name in stores))
        self.optimizer = OPTIMIZERS[kind](self)

    def backward(self, rows: Tensor) -> None:
        """Look up ids of the table in all stores that have them, and give them the same gradients there."""
        grads = torch.randint(-8, 9, (len(rows), DIM)) / 8  # their sums are exact
        features, wanted = {}, []
        for name, store in self.group.stores.items():  # pyright: ignore
            here, first = store.share.owns(store.table, rows), store.share.column
            slots = (rows[here] - store.share.index) // store.share.count
            features[name] = Ragged(slots, torch.tensor([0, len(slots)]))
            wanted.append(grads[here][:, first : first + store.dim].to(DEVICE))
        found = self._look_up(IdBlock.from_ragged(features).to(DEVICE), True)[1]
        sum((part * grad).sum() for part, grad in zip(found, wanted, strict=True)).backward()  # pyright: ignore

    def step(self, *calls_of_steps: int) -> None:
        """Steps with the gradients of so many calls each."""
        for calls in calls_of_steps:
            for _ in range(calls):
                self.backward(ids(ROWS, 14))
            self.optimizer.step()

    def joined(self, name: str | None = None) -> Tensor:
        """The rows of all shares, or their state of this name, where they are in the whole table."""
        made = torch.full_like((self.whole.weight if name is None else self.whole.state(name)).cpu(), torch.nan)
        for part in self.parts:
            data, columns = part.export(), slice(part.share.column, part.share.column + part.dim)
            to = made if made.dim() == 1 else made[:, columns]
            to[data.ids] = data.rows if name is None else data.state[name]
        return made


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_two_shares_by_row_are_one_table_bit_for_bit(kind):
    torch.manual_seed(0)
    model = Divided(torch.bfloat16, BY_ROW, kind)
    before = model.joined()
    model.step(1)
    assert torch.equal(model.joined(), model.whole.weight.cpu())
    assert not torch.equal(model.joined(), before)
    for name in model.whole.states:
        assert torch.equal(model.joined(name), model.whole.state(name).cpu())


@pytest.mark.parametrize("shares", [BY_COLUMN, BY_BOTH])
def test_shares_of_columns_are_rounded_with_the_draws_of_the_whole_row(shares):
    torch.manual_seed(1)
    model = Divided(torch.float16, shares, "sgd")
    model.step(1, 2)
    assert torch.equal(model.joined(), model.whole.weight.cpu())


def test_shares_of_columns_of_float32_are_one_table():
    torch.manual_seed(2)
    model = Divided(torch.float32, BY_BOTH, "adam")
    model.step(1)
    torch.testing.assert_close(model.joined(), model.whole.weight.cpu(), atol=1e-6, rtol=1e-6)
    for name in model.whole.states:
        torch.testing.assert_close(model.joined(name), model.whole.state(name).cpu(), atol=1e-6, rtol=1e-6)


def test_a_share_without_rows_is_looked_up_and_updated_as_nothing():
    torch.manual_seed(3)
    model = Divided(torch.float16, [Share(), Share(empty=True), Share(ROWS, ROWS + 1)], "adam")
    model.step(1, 2)
    assert torch.equal(model.joined(), model.whole.weight.cpu())
    assert [len(part) for part in model.parts] == [ROWS, 0, 0]


def test_an_id_outside_is_told_as_that_of_the_whole_table():
    model = Divided(torch.float32, [Share(1, 3)], "sgd")
    store, whole = model.parts[0], torch.tensor([3])
    outside = torch.tensor([len(store)])  # the row after the last
    block = IdBlock.from_ragged({"0": Ragged(whole, torch.tensor([0, 1])), "1": Ragged(outside, torch.tensor([0, 1]))})
    found = model._look_up(block.to(DEVICE), False)[1]
    assert not found[1].any()
    if DEVICE.type == "cuda":
        model._look_up.watch()  # sends for the note
        torch.cuda.synchronize()
    with pytest.raises(ValueError, match=r"id 10 of feature '1' is outside table 'item', 0 … 8"):
        model._look_up.watch()
