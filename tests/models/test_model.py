"""What holds for every model: it trains, saves and restores, takes any batch, and rebuilds from its config."""

from __future__ import annotations

import copy
import json

import numpy as np
import pyarrow as pa
import pytest
import torch

import hybridrec as hr
from hybridrec.models import NAMES, DeepFM, Model, build
from tests.models.clicks import CONFIGS, dataset, losses, made

BATCHES = list(dataset())
SCHEMA = dataset().schema


@pytest.fixture(params=NAMES)
def model(request) -> Model:
    return made(request.param, SCHEMA)


def rows_of(model: Model) -> int:
    parts = [part for part in model.modules() if isinstance(part, hr.EmbeddingCollection)]
    return sum(len(part[name]) for part in parts for name in part.tables)


def test_the_loss_falls_with_ragged_weighted_and_missing_features(model):
    found = losses(model, BATCHES, epochs=6)
    assert found[-1] < 0.9 * found[0]
    assert np.isfinite(found).all()


def test_a_restored_model_gives_the_same_logits(model):
    losses(model, BATCHES)
    again = made(CONFIGS_NAME[type(model).__name__], SCHEMA, seed=5)
    assert not torch.equal(model.eval()(BATCHES[0]), again.eval()(BATCHES[0]))
    again.load_state_dict(model.state_dict())
    assert torch.equal(model(BATCHES[0]), again(BATCHES[0]))


def test_evaluation_changes_nothing(model):
    losses(model, BATCHES[:1])
    before = {name: part.clone() for name, part in model.state_dict().items()}
    held = rows_of(model)
    model.eval()(BATCHES[1])
    assert rows_of(model) == held
    assert all(torch.equal(part, before[name]) for name, part in model.state_dict().items())


def test_logits_have_one_number_per_row(model):
    assert model.eval()(BATCHES[0]).shape == (100,)


def test_an_empty_batch_gives_no_logits_and_no_gradient(model):
    empty = _empty()
    model.eval()
    assert model(empty).shape == (0,)
    model.train()
    before = {name: part.clone() for name, part in model.state_dict().items() if "clock" not in name}
    rows = hr.optim.Adagrad(model, lr=0.1)
    out = model(empty)
    out.sum().backward()
    rows.step()
    after = model.state_dict()
    assert len(out) == 0
    assert all(torch.equal(part, after[name]) for name, part in before.items())
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def _empty() -> hr.Batch:
    """The batch of a rank that has run out of rows."""
    ranks = dataset(rows=1, batch_size=1).shard(0, 2)
    (batch,) = list(ranks)
    assert len(batch) == 0
    return batch


def test_a_batch_of_one_row_trains(model):
    (batch,) = list(dataset(rows=1))
    assert np.isfinite(losses(model, [batch])).all()


def test_a_row_does_not_depend_on_its_neighbours_in_evaluation(model):
    losses(model, BATCHES)
    (whole,) = list(dataset(rows=50, batch_size=50))
    parts = list(dataset(rows=50, batch_size=7))
    got = torch.cat([model.eval()(part) for part in parts])
    assert torch.allclose(model(whole), got, atol=1e-5)


def test_the_config_goes_through_json_and_builds_the_same_module(model):
    name = CONFIGS_NAME[type(model).__name__]
    config = json.loads(json.dumps(model.config()))
    torch.manual_seed(0)
    again = build(name, hr.data.Schema.from_json(SCHEMA.to_json()), **config)
    assert type(again) is type(model)
    assert again.config() == model.config()
    assert [(n, tuple(p.shape)) for n, p in again.named_parameters()] == [
        (n, tuple(p.shape)) for n, p in model.named_parameters()
    ]
    assert torch.equal(model.eval()(BATCHES[0]), again.eval()(BATCHES[0]))
    losses(model, BATCHES[:1])
    losses(again, BATCHES[:1])
    assert torch.equal(model.eval()(BATCHES[0]), again.eval()(BATCHES[0]))


def test_a_copy_is_independent(model):
    twin = copy.deepcopy(model)
    before = twin.eval()(BATCHES[0])
    losses(model, BATCHES[:2])
    assert torch.equal(twin(BATCHES[0]), before)


def test_the_parameters_are_those_of_the_dense_part(model):
    assert [name for name, _ in model.named_parameters()] == [f"net.{name}" for name, _ in model.net.named_parameters()]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "twotower"])
def test_several_labels_give_a_logit_each(name):
    ds = dataset(labels=("click", "like"))
    model = made(name, ds.schema)
    assert model.labels == ("click", "like")
    found = losses(model, list(ds), epochs=4)
    assert model.eval()(next(iter(ds))).shape == (100, 2)
    assert found[-1] < found[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_of_ids_alone_will_do(name):
    ds = dataset()
    schema = ds.schema.select(["user", "item", "seen", "size"])
    (*_, batch) = ds.with_schema(schema)
    assert batch.dense.shape == (100, 0)
    assert made(name, schema).eval()(batch).shape == (100,)


@pytest.mark.parametrize("name", NAMES)
def test_dense_numbers_of_any_scale_train_alike(name):
    model, scaled = (made(name, SCHEMA) for _ in range(2))
    for batch in BATCHES[:3]:
        model(batch)
        scaled(_with_dense(batch, batch.dense * 1000 + 7))
    batch = BATCHES[3]
    got = scaled.eval()(_with_dense(batch, batch.dense * 1000 + 7))
    assert torch.allclose(model.eval()(batch), got, atol=1e-3)


def _with_dense(batch: hr.Batch, dense: torch.Tensor) -> hr.Batch:
    return hr.Batch(batch.ids, dense, batch.label, dense_names=batch.dense_names)


def test_other_dense_columns_are_refused_with_both_lists():
    model = made("deepfm", SCHEMA)
    batch = BATCHES[0]
    for names, dense in ((("height",), batch.dense), ((), batch.dense[:, :0])):
        with pytest.raises(ValueError, match="made for age"):
            model(hr.Batch(batch.ids, dense, dense_names=names))


def test_an_absent_id_feature_is_named():
    batch = BATCHES[0]
    with pytest.raises(KeyError, match="no feature 'user'"):
        made("deepfm", SCHEMA)(hr.Batch(batch.ids.select(["item", "seen", "size"]), batch.dense))


def test_a_schema_without_ids_is_refused_with_a_remedy():
    schema = hr.data.Schema.infer(pa.schema({"age": pa.float32(), "click": pa.int8()}), label="click")
    with pytest.raises(ValueError, match="bucketize a dense one"):
        DeepFM(schema)


@pytest.mark.parametrize("name", NAMES)
def test_a_dataset_in_place_of_its_schema_is_told(name):
    with pytest.raises(TypeError, match=r"schema is a Dataset; give the Schema of the data, as dataset\.schema is"):
        made(name, dataset())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"tables": 3}, r"tables is 3; it must be a dict, such as \{\"user\""),
        ({"tables": {"user": 3}}, r"tables has 3 for 'user'; it must be a dict, such as \{'rows': 1000\}"),
        ({"share": "item"}, r"share is 'item'; it must be a dict, such as \{\"history\""),
        ({"hidden": 5}, r"hidden layers are 5; they must be a list of widths from 1 on, such as \[64, 32\]"),
        ({"hidden": [0]}, r"hidden layers are \[0\]; "),
        ({"hidden": ["a"]}, r"hidden layers are \['a'\]; "),
    ],
)
def test_arguments_of_another_kind_are_refused_with_an_example(given, told):
    with pytest.raises(ValueError, match=told):
        DeepFM(SCHEMA, dim=4, **given)


def test_an_unknown_argument_lists_those_that_exist():
    with pytest.raises(TypeError, match="no option 'depth'; it takes dim, hidden, dropout, tables, share, seed"):
        DeepFM(SCHEMA, depth=3)  # pyright: ignore[reportCallIssue] (the point of the test)


@pytest.mark.parametrize("name", ["deepfm", "dlrm"])
def test_models_that_multiply_vectors_refuse_another_dim(name):
    with pytest.raises(ValueError, match="table 'user' has dim 8"):
        made(name, SCHEMA, tables={"user": {"dim": 8}})


def test_tables_may_have_dims_of_their_own_elsewhere():
    model = made("dcnv2", SCHEMA, tables={"user": {"dim": 8}})
    assert dict(zip(model.embeddings.features, model.embeddings.dims, strict=True))["user"] == 8
    assert model.eval()(BATCHES[0]).shape == (100,)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "twotower"])
def test_base_rates_are_what_a_fresh_model_predicts_on_average(name):
    ds = dataset(labels=("click", "like"))
    plain, model = made(name, ds.schema), made(name, ds.schema)
    model.set_base_rates([0.5, 0.02])
    batch = next(iter(ds))
    moved = model.eval()(batch) - plain.eval()(batch)
    before = torch.cat(plain.output_biases()).detach()
    assert torch.allclose(moved, torch.tensor([0.5, 0.02]).logit() - before, atol=1e-5)


@pytest.mark.parametrize("rates", [[0.5, 0.5], [0.0], [1.0], []])
def test_base_rates_are_one_per_label_and_neither_none_nor_all(rates):
    with pytest.raises(ValueError, match="1 between 0 and 1 are needed"):
        made("deepfm", SCHEMA).set_base_rates(rates)


def test_two_towers_have_no_bias_to_set():
    with pytest.raises(TypeError, match="TwoTower have no bias"):
        made("twotower", SCHEMA).set_base_rates([0.5])


def test_the_seed_changes_the_rows():
    one, two = (made("deepfm", SCHEMA, seed=seed) for seed in (1, 2))
    assert not torch.equal(one.train()(BATCHES[0]), two.train()(BATCHES[0]))


# Dynamo looks at .grad of the vectors, which are no leaves, and hides the warning that the filter makes an error.
ignore_grad = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


@ignore_grad
@pytest.mark.parametrize("name", ["deepfm", "din"])
def test_the_compiled_dense_part_gives_the_same(name):
    plain, compiled = made(name, SCHEMA), made(name, SCHEMA)
    compiled.compile_dense(backend="aot_eager", fullgraph=True)
    one, two = (losses(model, BATCHES[:3]) for model in (plain, compiled))
    assert one == pytest.approx(two, abs=1e-5)
    for batch in (BATCHES[4], next(iter(dataset(batch_size=37)))):
        assert plain.eval()(batch).allclose(compiled.eval()(batch), atol=1e-5)
    assert list(plain.state_dict()) == list(compiled.state_dict())


@ignore_grad
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own code, in the inductor
@pytest.mark.slow
def test_the_dense_part_compiles_with_the_default_backend():
    plain, compiled = made("deepfm", SCHEMA), made("deepfm", SCHEMA)
    compiled.compile_dense(fullgraph=True)
    one, two = (losses(model, BATCHES[:3]) for model in (plain, compiled))
    assert one == pytest.approx(two, abs=1e-4)


CONFIGS_NAME = {type(made(name, SCHEMA)).__name__: name for name in CONFIGS}


def test_a_model_predicts_frames_and_stays_in_its_mode():
    columns = pa.schema({"user": pa.int64(), "click": pa.int8()})
    model = DeepFM(hr.data.Schema.infer(columns, label="click"), dim=4)
    found = model.predict({"user": [1, 2, 1]})
    assert model.training
    assert found.shape == (3,)
    assert found[0] == found[2]
    assert ((found > 0) & (found < 1)).all()
    assert len(model.embeddings["user"]) == 0
    assert model.predict({"user": pa.array([], pa.int64())}).shape == (0,)
