"""Training on a GPU: the same numbers as on the CPU, in bfloat16, as CUDA graphs, from checkpoints of either."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import hybridrec as hr
from hybridrec.models import build
from hybridrec.train import Trainer, TrainOptions
from hybridrec.train.graphs import SEEN
from tests.models.clicks import CONFIGS, dataset

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROWS = {"*": {"rows": 64, "out_of_range": "zero"}}  # dynamic ones have tests of their own
OPTIONS = TrainOptions(progress="none", log_every=5)
EAGER = replace(OPTIONS, graphs=False)


def model_of(name: str, ds: hr.data.Dataset, device: str, tables: dict[str, Any] = ROWS) -> torch.nn.Module:
    torch.manual_seed(0)
    return build(name, ds.schema, device=device, tables=tables, **CONFIGS[name])


def trained(
    name: str,
    device: str,
    options: TrainOptions,
    epochs: int = 3,
    tables: dict[str, Any] = ROWS,
    batch_size: int = 100,
    **more: Any,
) -> tuple[Trainer, hr.data.Dataset]:
    labels = ("click", "like") if name == "mmoe" else ("click",)
    ds = dataset(rows=650, labels=labels, batch_size=batch_size)  # a short last batch
    loss = "in_batch_softmax" if name == "twotower" else "bce"
    trainer = Trainer(model_of(name, ds, device, tables), options=options, loss=loss, **more)
    trainer.fit(ds, epochs=epochs)
    return trainer, ds


def agree(name: str, options: TrainOptions, **tables: Any) -> None:
    """A model learns the same on a GPU as on the CPU, by steps that are replayed where the options leave it to us."""
    (here, ds), (there, _) = (trained(name, device, options, **tables) for device in ("cpu", "cuda"))
    if options.graphs is None:
        graphs = there.learner.graphs
        assert graphs is not None
        assert graphs.refused is None
        assert graphs.replays >= 10, "most steps are replayed"
    np.testing.assert_allclose(there.predict(ds), here.predict(ds), rtol=2e-3, atol=2e-4)
    losses = [[record["loss"] for record in each.history.train] for each in (here, there)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-3)


@pytest.mark.parametrize("options", [EAGER, OPTIONS], ids=["launched", "graphs"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_learns_the_same_on_a_gpu_as_on_the_cpu(name, options):
    agree(name, options)


@pytest.mark.parametrize("options", [EAGER, OPTIONS], ids=["launched", "graphs"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_with_dynamic_tables_learns_the_same_on_a_gpu_as_on_the_cpu(name, options):
    agree(name, options, tables={})


@pytest.mark.parametrize("options", [EAGER, OPTIONS], ids=["launched", "graphs"])
def test_rows_of_a_full_table_go_on_a_gpu_as_on_the_cpu(options):
    agree("dlrm", options, tables={"user": {"capacity": 24}}, batch_size=20)


@pytest.mark.parametrize("options", [EAGER, OPTIONS], ids=["launched", "graphs"])
def test_layers_compute_in_bfloat16_and_their_weights_stay_float32(options):
    ds = dataset(rows=650)
    model = model_of("deepfm", ds, "cuda")
    kinds = set()
    linear = next(part for part in model.modules() if isinstance(part, torch.nn.Linear))
    model.net.deep[2].register_forward_hook(lambda module, given, out: kinds.add(out.dtype))
    trainer = Trainer(model, options=replace(options, bf16=True))
    trainer.fit(ds, epochs=6)
    assert kinds == {torch.bfloat16}
    assert {part.dtype for part in model.parameters()} == {torch.float32}
    assert linear.weight.grad is None
    exact, _ = trained("deepfm", "cuda", options, epochs=6)
    assert trainer.evaluate(ds)["auc"] == pytest.approx(exact.evaluate(ds)["auc"], abs=0.01)
    assert trainer.evaluate(ds)["auc"] > 0.8
    assert not np.array_equal(trainer.predict(ds), exact.predict(ds))


@pytest.mark.parametrize("kind", ["adam", "adagrad", "rowwise_adagrad", "ftrl"])
def test_row_optimizers_see_their_step_and_rate_in_replays(kind):
    made = {"adam": hr.optim.Adam, "adagrad": hr.optim.Adagrad, "ftrl": hr.optim.FTRL}.get(
        kind, hr.optim.RowWiseAdagrad
    )
    schedule = replace(OPTIONS, row_schedule=hr.train.Schedule("cosine"), clip_norm=None)
    both = [trained("dlrm", d, schedule, row_optimizer=lambda m: made(m, lr=0.05)) for d in ("cpu", "cuda")]
    (here, ds), (there, _) = both
    np.testing.assert_allclose(there.predict(ds), here.predict(ds), rtol=5e-3, atol=5e-4)


def test_clipped_gradients_are_those_of_the_cpu():
    options = replace(OPTIONS, clip_norm=0.05)
    (here, ds), (there, _) = (trained("dlrm", device, options) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(there.predict(ds), here.predict(ds), rtol=2e-3, atol=2e-4)


def test_accumulated_batches_are_one_step(tmp_path):
    options = replace(OPTIONS, accumulate=2)
    (here, ds), (there, _) = (trained("dlrm", device, options) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(there.predict(ds), here.predict(ds), rtol=2e-3, atol=2e-4)


def test_a_run_goes_on_after_a_checkpoint_and_loads_on_either_device(tmp_path):
    ds = dataset(rows=650)
    whole = Trainer(model_of("dlrm", ds, "cuda"), options=OPTIONS)
    whole.fit(ds, epochs=2)
    cut = Trainer(model_of("dlrm", ds, "cuda"), options=OPTIONS, out=tmp_path)
    cut.fit(ds, steps=9)  # in the middle of an epoch, while later batches are on their way
    rest = Trainer(model_of("dlrm", ds, "cuda"), options=OPTIONS, out=tmp_path)
    rest.fit(ds, epochs=2, resume="auto")
    assert rest.step == whole.step
    np.testing.assert_allclose(rest.predict(ds), whole.predict(ds), rtol=2e-3, atol=2e-4)
    for device in ("cpu", "cuda"):
        run = hr.load(tmp_path, "latest", device=device)
        np.testing.assert_allclose(run.predict(ds), rest.predict(ds), rtol=1e-4, atol=1e-5)


def test_deterministic_runs_repeat_bit_for_bit(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    options = replace(OPTIONS, deterministic=True)
    (one, ds), (two, _) = (trained("deepfm", "cuda", options) for _ in range(2))
    assert np.array_equal(one.predict(ds), two.predict(ds))


def test_a_loss_that_is_not_finite_is_told_by_the_next_step_and_spoils_no_layer():
    trainer, ds = trained("dlrm", "cuda", OPTIONS)
    graphs = trainer.learner.graphs
    assert graphs is not None
    before, replays = trainer.predict(ds), graphs.replays
    batch = next(iter(ds))
    broken = replace(batch, dense=torch.full_like(batch.dense, torch.nan), arena=None)
    trainer.model.train()
    assert np.isnan(hr.train.train_step(trainer.learner, [broken]).loss)
    assert graphs.replays == replays + 1
    with pytest.raises(FloatingPointError, match=r"dense columns .* the layers kept still"):
        hr.train.train_step(trainer.learner, [batch])
    assert graphs.replays == replays + 1, "no step was done after it"
    np.testing.assert_allclose(trainer.predict(ds), before, atol=0.05)
    hr.train.train_step(trainer.learner, [batch])
    trainer.learner.settle()


def test_a_batch_with_longer_lists_than_any_before_is_captured_anew():
    import pyarrow as pa

    def frame(longest: int) -> pa.Table:
        lists = [list(range(longest))] * 100
        return pa.table({"user": np.arange(100) % 7, "seen": lists, "click": np.arange(100) % 2})

    tables = {"*": {"rows": 2000}}
    lengths, results = [3, 3, 3, 3, 3, 40, 40, 700, 3, 3], {}
    for device in ("cpu", "cuda"):
        first = hr.data.table(frame(3), label="click", batch_size=100)
        torch.manual_seed(0)
        model = build("deepfm", first.schema, dim=8, tables=tables, device=device)
        trainer = Trainer(model, options=OPTIONS)
        model.train()
        for length in lengths:
            batch = next(iter(hr.data.table(frame(length), schema=first.schema, batch_size=100)))
            hr.train.train_step(trainer.learner, [batch])
        results[device] = trainer.predict(first)
    np.testing.assert_allclose(results["cuda"], results["cpu"], rtol=2e-3, atol=2e-4)


def test_a_bad_label_is_named_with_its_row_although_a_thread_reads_ahead():
    ds = hr.data.table({"user": [1, 2] * 50, "click": [0] * 77 + [3] + [0] * 22}, label="click", batch_size=10)
    model = build("deepfm", ds.schema, tables=ROWS, device="cuda")
    with pytest.raises(ValueError, match="label 'click' is 3 in row 77"):
        Trainer(model, options=OPTIONS).fit(ds)


def test_an_id_outside_its_table_is_reported_by_a_later_step():
    ds = hr.data.table({"user": [1, 200] * 500, "click": [0, 1] * 500}, label="click", batch_size=10)
    model = build("deepfm", ds.schema, tables={"*": {"rows": 64}}, device="cuda")
    with pytest.raises(ValueError, match="id 200 of feature 'user' is outside table"):
        Trainer(model, options=OPTIONS).fit(ds)


def pools() -> set[Any]:
    """The private pools of memory that graphs have."""
    return {segment["segment_pool_id"] for segment in torch.cuda.memory_snapshot()}


def test_a_capture_that_fails_gives_its_memory_back_and_training_goes_on(monkeypatch):
    trained("dlrm", "cuda", OPTIONS)  # from here on libraries have the workspaces that they keep for captures
    ds = dataset(rows=640)
    eager, trainer = (Trainer(model_of("dlrm", ds, "cuda"), options=each) for each in (EAGER, OPTIONS))
    batches = [trainer.learner.place(batch.clone()) for batch in ds]
    wanted = [hr.train.train_step(eager.learner, [batch]).loss for batch in batches]
    graphs, usual, reduced = trainer.learner.graphs, torch.cuda.current_stream(), trainer.learner.reduced
    assert graphs is not None

    def without_room(*given: Any) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            raise torch.cuda.OutOfMemoryError("no room for this tensor")
        return reduced(*given)

    monkeypatch.setattr(trainer.learner, "reduced", without_room)
    losses = [hr.train.train_step(trainer.learner, [batch]).loss for batch in batches[:SEEN]]
    torch.cuda.synchronize()
    held, before = torch.cuda.memory_allocated(), pools()
    losses += [hr.train.train_step(trainer.learner, [batch]).loss for batch in batches[SEEN:]]
    torch.cuda.synchronize()
    assert graphs.refused is not None
    assert "no room" in graphs.refused
    assert torch.cuda.current_stream() == usual
    assert torch.cuda.memory_allocated() <= held + 2**16
    assert pools() <= before, "nor is any held for the graph that is none"
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
