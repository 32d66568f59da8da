"""What is exported predicts as what was trained: every model, and every oddity of ids, lists, weights and columns."""

from __future__ import annotations

import functools
import json
import subprocess
import sys

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from torch import nn

import hybridrec as hr
from hybridrec.models import build
from hybridrec.serve import dense_part, export, load
from tests.patience import PATIENCE
from tests.serve.trained import KINDS, dataset, fit, frame, scores, trained

EXACT = {"rtol": 0, "atol": 1e-6}


def without(data: dict, *names: str) -> dict:
    return {name: column for name, column in data.items() if name not in names}


def expected(model: nn.Module, ds: hr.data.Dataset, data: dict) -> np.ndarray:
    """The trained model's own scores of other rows, which carry labels here so that the training schema reads them."""
    whole = hr.data.table(
        without(data, *{"click", "like"} - set(ds.schema.arrow().names)), batch_size=7, schema=ds.schema
    )
    return scores(model, whole)


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A model of a kind, its data, and the folder that it was exported to: made once."""

    @functools.cache
    def made(kind):
        model, ds = trained(kind)
        return model, ds, export(model, tmp_path_factory.mktemp(kind) / "served")

    return made


@pytest.mark.parametrize("kind", KINDS)
def test_every_model_predicts_as_before(kind, shop):
    model, ds, folder = shop(kind)
    predictor = load(folder)
    other = frame(60, seed=1)  # known and unknown ids, nulls, empty lists, weights
    other["user"] = pa.array([None, 10**12, -(2**62), *range(57)], pa.int64())
    np.testing.assert_allclose(predictor.predict(without(other, "click", "like")), expected(model, ds, other), **EXACT)


@pytest.mark.parametrize("kind", ["deepfm", "din", "mmoe"])
@pytest.mark.parametrize("rows", [0, 1, 2, 3])
def test_any_number_of_rows_works(kind, rows, shop):
    model, ds, folder = shop(kind)
    predictor = load(folder)
    data = {name: column[:rows] for name, column in frame().items()}
    if rows == 0:
        data = pa.table(frame()).slice(0, 0)
        assert predictor.predict(data).shape == ((0, 2) if kind == "mmoe" else (0,))
    else:
        np.testing.assert_allclose(predictor.predict(data), expected(model, ds, data), **EXACT)


@pytest.mark.parametrize("softmax", [False, True])
def test_histories_that_are_all_empty_or_hold_one_item_work(softmax, tmp_path):
    model, ds = trained("din", softmax=softmax)
    predictor = load(export(model, tmp_path / "served"))
    for seen in ([[]] * 4, [[], [5], [], []], [[1, 2, 3], [], [], []]):
        data = {name: column[:4] for name, column in frame().items()} | {"seen": pa.array(seen, pa.list_(pa.int64()))}
        np.testing.assert_allclose(predictor.predict(data), expected(model, ds, data), **EXACT)


def test_small_batches_give_the_scores_of_large_ones(shop):
    predictor = load(shop("din")[2])
    np.testing.assert_allclose(predictor.predict(frame()), predictor.predict(frame(), batch_size=1), **EXACT)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rows_are_exact(dtype, tmp_path):
    model, ds = trained("deepfm", tables={"*": {"dtype": dtype}})
    predictor = load(export(model, tmp_path / "served"))
    np.testing.assert_allclose(predictor.predict(frame()), scores(model, ds), **EXACT)


@pytest.mark.parametrize("policy", ["hash", "zero"])
def test_fixed_tables_keep_their_policy_and_the_rows_that_training_never_saw(policy, tmp_path):
    model, ds = trained("dcnv2", tables={"item": {"rows": 50, "out_of_range": policy}})
    predictor = load(export(model, tmp_path / "served"))
    data = frame()
    data["item"] = np.arange(120) - 30
    np.testing.assert_allclose(predictor.predict(data), expected(model, ds, data), **EXACT)


def test_an_id_out_of_range_is_the_same_error_as_in_training(tmp_path):
    model, _ = trained("dcnv2", tables={"item": {"rows": 50}})
    predictor = load(export(model, tmp_path / "served"))
    with pytest.raises(ValueError, match=r"id 99 .* outside table 'item'"):
        predictor.predict(frame() | {"item": np.full(120, 99)})


def test_hashed_tables_and_tables_with_eviction_work(tmp_path):
    hashed = hr.embedding.MultiHash(2, 20)
    options = {"user": {"hashes": hashed}, "seen": {"capacity": 6, "eviction": hr.embedding.LFU()}}
    ds = dataset(seen={"transforms": [hr.data.Modulo(5)]})
    model = build("deepfm", ds.schema, dim=8, tables=options)
    fit(model, ds)
    predictor = load(export(model, tmp_path / "served"))
    data = frame(40, seed=3)
    np.testing.assert_allclose(predictor.predict(data), expected(model, ds, data), **EXACT)


def test_a_model_that_computes_in_bfloat16_is_served_so(tmp_path):
    model, ds = trained("deepfm")
    predictor = load(export(model, tmp_path / "served", bf16=True))
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        wanted = torch.cat([torch.sigmoid(model(batch).float()) for batch in ds]).numpy()
    np.testing.assert_allclose(predictor.predict(frame()), wanted, **EXACT)
    assert np.abs(wanted - scores(model, ds)).max() > 1e-5


def test_scores_may_be_any_function_of_the_outputs(tmp_path):
    model, ds = trained("deepfm")
    predictor = load(export(model, tmp_path / "served", scores=lambda outputs: 2 * outputs))
    model.eval()
    wanted = torch.cat([2 * model(batch).detach() for batch in ds])
    np.testing.assert_allclose(predictor.predict(frame()), wanted, rtol=1e-6)


class Own(nn.Module):
    """A model of somebody's own: two collections, one used by two modules, dense numbers, no `labels`."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = hr.EmbeddingCollection([hr.Table("user", dim=4, capacity=1000)])
        self.inner = nn.ModuleDict({"again": self.emb})
        self.seq = hr.EmbeddingCollection([hr.Table("words", dim=4, rows=10, features=["tags"], combiner="none")])
        self.top = nn.Linear(4 + 2, 1)

    def forward(self, batch: hr.Batch) -> torch.Tensor:
        words = self.seq(batch)["tags"]
        row = torch.repeat_interleave(words.offsets.diff(), output_size=words.values.shape[0])
        pooled = torch.zeros_like(self.emb(batch.ids).flat).index_add(0, row, words.values)
        return self.top(torch.cat([pooled + self.inner["again"](batch.ids)["user"], batch.dense], 1)).squeeze(1)


def test_a_model_of_ones_own_is_exported_with_the_schema(tmp_path):
    ds, model = dataset(), Own()
    fit(model, ds)
    with pytest.raises(ValueError, match="Own has no schema"):
        export(model, tmp_path / "served")
    predictor = load(export(model, tmp_path / "served", schema=ds.schema))
    np.testing.assert_allclose(predictor.predict(frame()), scores(model, ds), **EXACT)


def test_export_leaves_the_model_as_it_was(tmp_path):
    model, ds = trained("deepfm")
    before, modules = scores(model, ds), list(model.modules())
    model.net.train()
    model.embeddings.eval()
    modes = [module.training for module in model.modules()]
    export(model, tmp_path / "served")
    assert all(a is b for a, b in zip(modules, model.modules(), strict=True))
    assert [module.training for module in model.modules()] == modes
    np.testing.assert_array_equal(scores(model, ds), before)
    fit(model, ds)


def test_a_compiled_model_is_exported(tmp_path):
    model, ds = trained("deepfm")
    model.compile_dense(backend="eager")
    predictor = load(export(model, tmp_path / "served"))
    np.testing.assert_allclose(predictor.predict(frame()), scores(model, ds), **EXACT)


def test_serving_changes_no_table(shop):
    model, _, folder = shop("deepfm")
    predictor = load(folder)
    first = predictor.predict(frame())
    predictor.predict(frame(100, seed=9))
    assert [len(c["user"]) for c in predictor._collections if "user" in c] == [len(model.embeddings["user"])]
    np.testing.assert_array_equal(predictor.predict(frame()), first)


def test_serving_imports_neither_trainer_nor_models(shop):
    folder = shop("din")[2]
    code = (
        "import sys, hybridrec.serve as serve\n"
        f"print(serve.load({str(folder)!r}))\n"
        "print([name for name in sys.modules if name.startswith(('hybridrec.train', 'hybridrec.models'))])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    ).stdout
    assert out.splitlines() == [repr(load(folder)), "[]"]


def test_the_tables_open_in_polars(shop):
    model, _, folder = shop("dlrm")
    found = pl.read_ipc(folder / "tables" / "embeddings" / "user.arrow")
    ids = torch.tensor(found["id"].to_list())
    assert torch.equal(ids, model.embeddings["user"].ids())
    assert torch.equal(torch.tensor(found["row"].to_list()), model.embeddings.lookup("user", ids))


def test_the_manifest_tells_what_is_there(shop):
    folder = shop("mmoe")[2]
    made = json.loads((folder / "manifest.json").read_text())
    assert made["labels"] == ["click", "like"]
    assert {"dense.pt2", "schema.json", "tables/embeddings/user.arrow"} <= set(made["files"])
    assert made["versions"]["torch"] == torch.__version__


def test_a_folder_in_use_is_not_written_over_and_nothing_half_written_stays(tmp_path):
    model, _ = trained("dlrm")
    folder = export(model, tmp_path / "served")
    before = (folder / "manifest.json").read_bytes()
    with pytest.raises(ValueError, match="exists and is not an empty folder"):
        export(model, folder)
    assert (folder / "manifest.json").read_bytes() == before

    class Reads(nn.Module):
        schema = dataset().schema

        def forward(self, batch):
            return batch.extra["note"]

    with pytest.raises(ValueError, match=r"the model reads batch\.extra"):
        export(Reads(), tmp_path / "other")
    Reads.forward = lambda self, batch: batch.ids["user"].values
    with pytest.raises(ValueError, match=r"the model reads batch\.ids\['user'\]"):
        export(Reads(), tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["served"]


def test_rows_that_are_not_in_a_collection_are_refused(tmp_path):
    fused = hr.fuse(nn.Sequential(nn.EmbeddingBag(10, 4)))
    plain = nn.Sequential(hr.EmbeddingCollection([hr.Table("item", dim=4, rows=10)], fused=False))
    with pytest.raises(ValueError, match="a collection alone"):
        export(plain[0], tmp_path / "served", schema=dataset().schema)
    for model, kind in ((fused, "FusedEmbeddingBag"), (plain, "fused=False")):
        with pytest.raises(ValueError, match=f"'0' .{kind}. cannot be exported"):
            export(model, tmp_path / "served", schema=dataset().schema)


def test_a_model_that_is_elsewhere_is_traced_as_a_copy_on_the_cpu_without_its_tables(tmp_path, monkeypatch):
    model, ds = trained("din")
    traced = []
    real = dense_part.on_cpu
    monkeypatch.setattr(dense_part, "elsewhere", lambda program: True)  # there is no card here
    monkeypatch.setattr(dense_part, "on_cpu", lambda *given: traced.append(real(*given)) or traced[0])
    predictor = load(export(model, tmp_path / "served"))
    other = frame(20, seed=1)
    np.testing.assert_allclose(predictor.predict(without(other, "click", "like")), expected(model, ds, other), **EXACT)
    own = {id(parameter) for parameter in model.parameters()}
    assert own.isdisjoint(id(parameter) for parameter in traced[0].parameters())
    collections = {id(module) for module in model.modules() if isinstance(module, hr.EmbeddingCollection)}
    assert {id(stand.real[0]) for stand in traced[0]._stands} == collections
