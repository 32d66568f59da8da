"""hr.fuse on a GPU: modules of torch become tables there, and learn what those of torch learn."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hybridrec as hr
from hybridrec.embedding import devices
from hybridrec.embedding.gpu.group import DeviceGroup
from hybridrec.embedding.gpu.lookup import sound
from tests.embedding.gpu.on_device import SIZES
from tests.gpu import DEVICE, needs_gpu

pytestmark = needs_gpu
ROWS, DIM = 12, 5


@pytest.fixture(autouse=True)
def kernels_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the interpreter the device is the CPU, where fuse would take native code, and large sizes take long."""
    monkeypatch.setattr(devices, "on_host", lambda device: False)
    monkeypatch.setattr(DeviceGroup.__init__, "__defaults__", (SIZES[-1],))


class Model(nn.Module):
    """Modules of both kinds; two of them share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(ROWS, DIM, padding_idx=3, sparse=True)
        self.item = nn.Embedding(ROWS, 4, sparse=True)
        self.seen = nn.EmbeddingBag(ROWS, 4, mode="sum", sparse=True)
        self.tags = nn.EmbeddingBag(9, DIM, mode="mean", padding_idx=0, sparse=True)
        self.seen.weight = self.item.weight

    def forward(self, user: Tensor, item: Tensor, seen: Tensor, tags: Tensor, offsets: Tensor) -> Tensor:
        return torch.cat([self.user(user), self.item(item), self.seen(seen), self.tags(tags, offsets)], 1)


def pair() -> tuple[Any, Any]:
    torch.manual_seed(0)
    plain = Model()
    return plain, hr.fuse(copy.deepcopy(plain).to(DEVICE))


def arguments(turn: int) -> tuple[Tensor, ...]:
    torch.manual_seed(turn)
    user, item, seen = (torch.randint(0, ROWS, shape) for shape in ((4,), (4,), (4, 3)))
    return user, item, seen, torch.randint(0, 9, (7,)), torch.tensor([0, 2, 2, 5])


def there(given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(part.to(DEVICE) for part in given)


OPTIMIZERS = [
    (hr.optim.SGD, torch.optim.SGD),
    (hr.optim.Adagrad, torch.optim.Adagrad),
    (hr.optim.Adam, torch.optim.SparseAdam),
]


@pytest.mark.parametrize(("ours", "theirs"), OPTIMIZERS)
def test_a_model_learns_what_torch_learns(ours, theirs):
    plain, fused = pair()
    assert isinstance(fused.user.group, DeviceGroup)
    assert fused.item.weight.data_ptr() == fused.seen.weight.data_ptr()
    rows, expected = ours(fused, lr=0.05), theirs(plain.parameters(), lr=0.05)
    for turn in range(3):
        given = arguments(turn)
        out, want = fused(*there(given)), plain(*given)
        torch.testing.assert_close(out.cpu(), want, atol=1e-5, rtol=1e-5)
        factors = torch.randn_like(want)
        expected.zero_grad()
        for each, factor in ((out, factors.to(DEVICE)), (want, factors)):
            (each * factor).sum().backward()
        rows.step()
        with torch.sparse.check_sparse_tensor_invariants():
            expected.step()
    for name, weight in plain.state_dict().items():
        torch.testing.assert_close(fused.state_dict()[name].cpu(), weight, atol=1e-5, rtol=1e-5)


def test_the_row_of_padding_is_read_but_not_touched():
    plain, fused = pair()
    rows = hr.optim.SGD(fused, lr=0.1, momentum=0.9, weight_decay=0.5)
    for _ in range(2):
        out = fused.user(torch.tensor([3, 4, 3], device=DEVICE))
        torch.testing.assert_close(out[0].cpu(), plain.user.weight[3].detach())
        out.sum().backward()
        rows.step()
    assert torch.equal(fused.user.weight[3].cpu(), plain.user.weight[3])
    assert not torch.equal(fused.user.weight[4].cpu(), plain.user.weight[4])


def test_weights_of_samples_take_a_gradient_and_half_rows_keep_their_type():
    torch.manual_seed(1)
    plain = nn.EmbeddingBag(ROWS, DIM, mode="sum", dtype=torch.float16)
    fused = hr.fuse(copy.deepcopy(plain).to(DEVICE))
    rows_of = hr.optim.SGD(fused, lr=0.1)  # held: tables let go of an optimizer that nobody has
    ids, weights = torch.tensor([[1, 2], [2, 2]]), torch.rand(2, 2)
    mine = weights.to(DEVICE).requires_grad_()
    out = fused(ids.to(DEVICE), per_sample_weights=mine)
    assert out.dtype == torch.float16
    rows = plain.weight.detach().float()[ids]
    torch.testing.assert_close(out.float().cpu(), (rows * weights[..., None]).sum(1), atol=2e-3, rtol=2e-3)
    out.sum().backward()
    torch.testing.assert_close(mine.grad.cpu(), rows.sum(2), atol=1e-5, rtol=1e-5)
    rows_of.step()
    assert not torch.equal(fused.weight[2].cpu(), plain.weight[2])


def test_rows_stay_in_the_memory_of_the_weight_so_that_no_table_is_there_twice():
    model = Model().to(DEVICE)
    before = [part.weight.data_ptr() for part in (model.user, model.item, model.tags)]
    fused = hr.fuse(model)
    assert [part.weight.data_ptr() for part in (fused.user, fused.item, fused.tags)] == before


@pytest.mark.parametrize("kind", ["columns first", "not aligned"])
def test_a_weight_that_kernels_cannot_read_where_it_lies_is_copied(kind):
    torch.manual_seed(2)
    numbers = torch.randn(ROWS * 4 + 1, device=DEVICE)
    weight = numbers[:-1].view(4, ROWS).t() if kind == "columns first" else numbers[1:].view(ROWS, 4)
    fused = hr.fuse(nn.Embedding.from_pretrained(weight, freeze=False))
    expected = weight.clone()
    rows = hr.optim.SGD(fused, lr=0.5)
    out = fused(torch.tensor([7, 2], device=DEVICE))
    assert torch.equal(out, expected[[7, 2]])
    out.sum().backward()
    rows.step()
    expected[[7, 2]] -= 0.5
    torch.testing.assert_close(fused.weight, expected)


def test_ids_and_offsets_may_have_32_bits():
    _, fused = pair()
    wide = there(arguments(0))
    assert torch.equal(fused(*(part.int() for part in wide)), fused(*wide))


def test_ids_outside_a_table_are_told_by_a_later_lookup_with_what_helps():
    _, fused = pair()
    fused.item(torch.tensor([ROWS], device=DEVICE))
    if DEVICE.type == "cuda":
        fused.item(torch.tensor([1], device=DEVICE))  # has the fault sent to the host
        torch.cuda.synchronize()
    with pytest.raises(ValueError, match=r"id 12 .*'item'.* more rows before it is fused"):
        fused.item(torch.tensor([1], device=DEVICE))


def test_ids_must_be_where_the_rows_are():
    if DEVICE.type == "cpu":
        pytest.skip("needs a second device")
    _, fused = pair()
    with pytest.raises(ValueError, match=r"ids are on cpu, but the rows on cuda:0"):
        fused.item(torch.tensor([1]))


def test_offsets_that_decrease_or_leave_the_ids_are_cut():
    assert sound(torch.tensor([2, 1, 30]), 5).tolist() == [0, 2, 5]
    assert sound(torch.tensor([0]), 0).tolist() == [0]
