from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.optim.rule import RowRule, RowStep
from hybridrec.types import IdBlock
from tests.embedding.gpu.on_device import QUICK, SIZES, OnDevice, ids, lists, weighted
from tests.gpu import DEVICE, INTERPRETED, needs_gpu

pytestmark = needs_gpu

TABLES = [
    hr.Table("a", dim=8, rows=9, features=["a", "a_list"], combiner={"a": "sum", "a_list": "mean"}),
    hr.Table("b", dim=8, rows=40, combiner="sqrtn"),
    hr.Table("c", dim=5, rows=12, features=["c", "c_seq"], combiner={"c": "sum", "c_seq": "none"}),
]
OPTIMIZERS = {
    "sgd": lambda m: hr.optim.SGD(m, lr=0.1, weight_decay=0.01),
    "momentum": lambda m: hr.optim.SGD(m, lr=0.1, momentum=0.9),
    "nesterov": lambda m: hr.optim.SGD(m, lr=0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda m: hr.optim.Adagrad(m, lr=0.1, clip_row_norm=0.5),
    "rowwise_adagrad": lambda m: hr.optim.RowWiseAdagrad(m, lr=0.1, weight_bound=0.2),
    "adam": lambda m: hr.optim.Adam(m, lr=0.1),
    "ftrl": lambda m: hr.optim.FTRL(m, lr=0.1, l1=0.01),
}


def features(batch: int) -> dict:
    return {
        "a": ids(9, batch),
        "a_list": ids(9, batch, 3),
        "b": lists(40, 4, batch),
        "c": ids(12, batch, 2),
        "c_seq": lists(12, 3, batch),
    }


def both(sizes, make):
    """A collection on the CPU and one on the device, each with its optimizer."""
    cpu = hr.EmbeddingCollection(TABLES, seed=3)
    gpu = OnDevice(cpu, sizes)
    return cpu, gpu, make(cpu), make(gpu)


def backward(cpu, gpu, block: IdBlock, part: str = "both") -> None:
    """The same gradients for both; outputs must agree."""
    expected, (flat, sequences) = cpu(block), gpu(block)
    of_sequence = expected["c_seq"].values
    torch.testing.assert_close(flat.cpu(), expected.flat, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sequences[0].cpu(), of_sequence, atol=1e-5, rtol=1e-5)
    first, second = torch.randn_like(expected.flat), torch.randn_like(of_sequence)
    for pooled, sequence, home in ((expected.flat, of_sequence, "cpu"), (flat, sequences[0], DEVICE)):
        loss = (pooled * first.to(home)).sum() if part != "sequence" else 0
        loss = loss + (sequence * second.to(home)).sum() if part != "pooled" else loss
        loss.backward()


def agree(cpu, gpu, atol: float = 1e-5) -> None:
    for name, store in gpu.stores.items():
        torch.testing.assert_close(store.weight.cpu(), cpu[name].weight, atol=atol, rtol=1e-4)
        for column, values in store.states.items():
            torch.testing.assert_close(values.cpu(), cpu[name].state(column), atol=atol, rtol=1e-4)
    assert not gpu.group.ground.places.any()


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_steps_are_those_of_the_cpu(kind, sizes):
    torch.manual_seed(0)
    cpu, gpu, of_cpu, of_gpu = both(sizes, OPTIMIZERS[kind])
    agree(cpu, gpu, atol=0.0)
    for batch in (11, 7):
        backward(cpu, gpu, IdBlock.from_ragged(features(batch)))
        of_cpu.step(), of_gpu.step()
        agree(cpu, gpu)


def test_batches_may_be_larger_than_any_before_and_then_empty():
    torch.manual_seed(9)
    cpu, gpu, of_cpu, of_gpu = both(SIZES[0], OPTIMIZERS["adagrad"])
    for batch in (1, 5, 60, 0, 3):
        backward(cpu, gpu, IdBlock.from_ragged(features(batch)))
        of_cpu.step(), of_gpu.step()
        agree(cpu, gpu)


def test_sums_of_rows_with_many_occurrences_stay_in_the_room_of_their_class():
    torch.manual_seed(7)
    cpu, gpu, of_cpu, of_gpu = both(SIZES[0], OPTIMIZERS["sgd"])
    block = IdBlock.from_ragged(features(11) | {"c_seq": lists(12, 40, 11)})  # the chunks of "c" come first
    room = gpu.group._sums(gpu._look_up.layout(gpu._inner(block.to(DEVICE)))).numel()
    around = torch.full((3 * room,), torch.nan, device=DEVICE)
    gpu.group._partial = around[room : 2 * room].zero_()
    backward(cpu, gpu, block)
    of_cpu.step(), of_gpu.step()
    agree(cpu, gpu)
    assert not gpu.group._partial.any()
    assert around[:room].isnan().all()
    assert around[2 * room :].isnan().all()


def test_weights_of_ids_count_in_outputs_and_gradients():
    torch.manual_seed(1)
    cpu, gpu, of_cpu, of_gpu = both(SIZES[0], OPTIMIZERS["adagrad"])
    backward(cpu, gpu, weighted(features(11)))
    of_cpu.step(), of_gpu.step()
    agree(cpu, gpu)


@pytest.mark.parametrize("part", ["pooled", "sequence"])
def test_an_output_without_a_gradient_touches_no_row(part):
    torch.manual_seed(2)
    cpu, gpu, of_cpu, of_gpu = both(SIZES[0], OPTIMIZERS["momentum"])
    backward(cpu, gpu, IdBlock.from_ragged(features(7)), part)
    of_cpu.step(), of_gpu.step()
    agree(cpu, gpu)


def test_two_calls_before_a_step_make_one_update():
    torch.manual_seed(3)
    cpu, gpu, of_cpu, of_gpu = both(SIZES[0], OPTIMIZERS["adam"])
    for batch in (5, 6):
        backward(cpu, gpu, weighted(features(batch)))
    assert of_gpu.grad_norm() == pytest.approx(of_cpu.grad_norm(), rel=1e-5)
    of_cpu.step(), of_gpu.step()
    agree(cpu, gpu)


def test_the_norm_of_all_gradients_is_that_of_the_cpu_and_clips():
    torch.manual_seed(4)
    cpu, gpu, of_cpu, of_gpu = both(SIZES[0], OPTIMIZERS["sgd"])
    backward(cpu, gpu, IdBlock.from_ragged(features(9)))
    for emb in (cpu, gpu):
        emb.group.handles["b"].multiply(0.25)  # each table's gradients count by their own scale
    norms = [hr.optim.clip_grad_norm_([], rows, 0.5) for rows in (of_cpu, of_gpu)]
    assert norms[0] == pytest.approx(float(norms[1]), rel=1e-5)
    of_cpu.step(), of_gpu.step()
    agree(cpu, gpu)


def test_the_deterministic_mode_gives_the_same_rows():
    torch.manual_seed(5)
    cpu, gpu, of_cpu, of_gpu = both(SIZES[0], OPTIMIZERS["adagrad"])
    backward(cpu, gpu, IdBlock.from_ragged(features(9)))
    torch.use_deterministic_algorithms(True)
    try:
        of_cpu.step(), of_gpu.step()
    finally:
        torch.use_deterministic_algorithms(False)
    agree(cpu, gpu)


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def clipped(seed: int) -> tuple[float, bytes]:
    """A norm, and the rows after a step with gradients that were clipped by it; programs run in an order drawn."""
    torch.manual_seed(6)
    tables = [hr.Table("item", dim=64, rows=400), hr.Table("user", dim=4, rows=9)]
    gpu = OnDevice(hr.EmbeddingCollection(tables, seed=3), QUICK)
    of_gpu = hr.optim.SGD(gpu, lr=0.1)
    flat, _ = gpu(IdBlock.from_ragged({"item": ids(400, 300), "user": ids(9, 300)}))
    (flat * torch.randn(flat.shape).to(flat)).sum().backward()
    gpu.group.handles["user"].multiply(0.25)
    with pytest.MonkeyPatch.context() as patch:
        if INTERPRETED:
            from tests.interleaved import interleave

            interleave(patch, seed)
        norm = float(hr.optim.clip_grad_norm_([], of_gpu, 1.0))
        of_gpu.step()
    return norm, gpu.stores["item"].weight.cpu().numpy().tobytes()


def test_the_deterministic_mode_clips_by_one_norm_in_whatever_order_programs_run(deterministic):
    assert len({clipped(seed) for seed in range(4)}) == 1


def test_the_deterministic_mode_counts_rows_that_are_not_finite_beside_the_norm(deterministic):
    _, gpu, _, of_gpu = both(SIZES[0], OPTIMIZERS["sgd"])
    block = IdBlock.from_ragged({**features(3), "a": torch.tensor([1, 2, 3]), "b": torch.tensor([4, 5, 6])})
    flat, sequences = gpu(block)
    factor = torch.ones(flat.shape)
    factor[0, :8] = torch.inf
    ((flat * factor.to(flat)).sum() + sequences[0].sum()).backward()
    assert gpu.group.norm({"a"}) == torch.inf
    assert gpu.group.norm({"b"}) == pytest.approx((3 * 8) ** 0.5)
    assert gpu.group._measured({"a": RowStep(rule=RowRule("sgd"), lr=0.1, step=1)})[0] == {"a": 1}
    assert of_gpu.grad_norm() == torch.inf


def test_a_row_whose_gradient_is_not_finite_is_left_out_and_counted():
    cpu, gpu, _, of_gpu = both(SIZES[0], OPTIMIZERS["adagrad"])
    block = IdBlock.from_ragged({**features(2), "a": torch.tensor([1, 2]), "a_list": torch.zeros(2, 0).long()})
    flat, _ = gpu(block)
    weight = torch.ones_like(flat)
    weight[0, 0] = torch.nan  # of the row of id 1 in table a
    (flat * weight).sum().backward()
    of_gpu.step()
    rows = gpu.stores["a"].weight.cpu()
    assert torch.equal(rows[1], cpu["a"].weight[1])
    assert not torch.equal(rows[2], cpu["a"].weight[2])
    assert gpu.stores["a"].counters() == {"nan_rows": 1}


def test_nan_can_be_an_error_before_anything_changes():
    cpu, gpu, _, of_gpu = both(SIZES[0], lambda m: hr.optim.SGD(m, lr=0.1, nan="raise"))
    flat, _ = gpu(IdBlock.from_ragged(features(3)))
    (flat * torch.nan).sum().backward()
    with pytest.raises(FloatingPointError, match=r"not finite.*nothing was changed"):
        of_gpu.step()
    agree(cpu, gpu, atol=0.0)


def test_features_that_feed_no_table_are_ignored():
    torch.manual_seed(8)
    cpu, gpu, of_cpu, of_gpu = both(SIZES[0], OPTIMIZERS["sgd"])
    for others in (ids(9, 5, 300), lists(9, 300, 5)):
        backward(cpu, gpu, weighted({"first": others, **features(5), "last": others}))
        of_cpu.step(), of_gpu.step()
        agree(cpu, gpu)
    empty = {name: torch.zeros(5, 0).long() for name in features(5)}
    backward(cpu, gpu, IdBlock.from_ragged({"first": others, **empty}))
    of_cpu.step(), of_gpu.step()
    agree(cpu, gpu)


def test_a_batch_without_rows_does_nothing():
    cpu, gpu, _, of_gpu = both(SIZES[0], OPTIMIZERS["adam"])
    flat, sequences = gpu(IdBlock.from_ragged(features(0)))
    assert flat.shape == (0, 29)
    (flat.sum() + sequences[0].sum()).backward()
    of_gpu.step()
    agree(cpu, gpu, atol=0.0)


def test_an_id_outside_its_table_is_zeros_and_then_an_error():
    _, gpu, _, _ = both(SIZES[0], OPTIMIZERS["sgd"])
    block = IdBlock.from_ragged({**features(2), "a": torch.tensor([1, 99])})
    flat, _ = gpu.eval()(block)
    assert not flat[1, :8].any()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
        gpu(IdBlock.from_ragged(features(2)))  # looks whether the note has arrived, and sends for it
        torch.cuda.synchronize()
    with pytest.raises(ValueError, match="id 99 of feature 'a' is outside table 'a', 0 … 8"):
        gpu(IdBlock.from_ragged(features(2)))
    gpu(IdBlock.from_ragged(features(2)))  # it is told once


def test_an_id_outside_its_table_that_stands_for_a_null_is_told_as_on_the_cpu():
    _, gpu, _, _ = both(SIZES[0], OPTIMIZERS["sgd"])
    gpu.eval()(IdBlock.from_ragged({**features(2), "b": torch.tensor([hr.data.NULL_ID, 1])}))
    told = "id -9223372036854775808 of feature 'b' is outside table 'b', 0 … 39; .* stands for a null: choose another"
    with pytest.raises(ValueError, match=told):
        gpu.group.check()


def test_the_fault_of_a_ragged_block_names_its_own_feature():
    _, gpu, _, _ = both(SIZES[0], OPTIMIZERS["sgd"])
    for block in (features(2), {**features(2), "a_list": lists(9, 2, 2), "c": torch.tensor([[1, 2], [3, 77]])}):
        gpu.eval()(IdBlock.from_ragged(block))
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
        gpu(IdBlock.from_ragged(features(2)))
        torch.cuda.synchronize()
    with pytest.raises(ValueError, match="id 77 of feature 'c' is outside table 'c'"):
        gpu(IdBlock.from_ragged(features(2)))


def test_a_second_backward_of_the_same_lookup_adds_its_gradients():
    torch.manual_seed(6)
    cpu, gpu, of_cpu, of_gpu = both(SIZES[0], OPTIMIZERS["sgd"])
    block = IdBlock.from_ragged(features(4))
    expected, (flat, _) = cpu(block).flat, gpu(block)
    weight = torch.randn_like(expected)
    for out, home in ((expected, "cpu"), (flat, DEVICE)):
        (out * weight.to(home)).sum().backward(retain_graph=True)
        out.square().sum().backward()
    of_cpu.step(), of_gpu.step()
    agree(cpu, gpu)


def test_rows_restored_with_their_state_go_on_from_it():
    torch.manual_seed(7)
    cpu, gpu, of_cpu, of_gpu = both(SIZES[0], OPTIMIZERS["adagrad"])
    block = IdBlock.from_ragged(features(5))
    backward(cpu, gpu, block)
    of_cpu.step(), of_gpu.step()
    for name, store in gpu.stores.items():
        store.detach()
        store.restore(cpu[name].snapshot())
    backward(cpu, gpu, block)
    of_cpu.step(), of_gpu.step()
    agree(cpu, gpu)
