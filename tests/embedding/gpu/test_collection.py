"""A whole collection on the device: what the pairs of other tests leave out is how it makes its block."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="GPU kernels need triton")

import hybridrec as hr
from hybridrec.embedding import MultiHash
from tests.embedding.gpu.on_device import ids, lists, weighted
from tests.gpu import DEVICE, needs_gpu

pytestmark = [
    *needs_gpu,
    pytest.mark.skipif(DEVICE.type != "cuda", reason="a collection on 'cpu' has its rows in native memory"),
]

TABLES = [
    hr.Table("a", dim=8, rows=9, out_of_range="hash", features=["a", "a_max"], combiner={"a": "sum", "a_max": "max"}),
    hr.Table("h", dim=16, rows=30, combiner="mean", dtype=torch.bfloat16),
    hr.Table("m", dim=8, hashes=MultiHash(2, 7), features=["m", "m_seq"], combiner={"m": "sqrtn", "m_seq": "none"}),
]


def test_all_kinds_of_fixed_tables_are_looked_up_and_updated_as_on_the_cpu():
    torch.manual_seed(0)
    cpu, gpu = (hr.EmbeddingCollection(TABLES, seed=3, device=device) for device in ("cpu", "cuda"))
    optimizers = [hr.optim.SGD(emb, lr=2.0**-6) for emb in (cpu, gpu)]
    given = {"a": ids(99, 6), "a_max": lists(99, 3, 6), "h": ids(30, 6, 2), "m": lists(99, 3, 6), "m_seq": ids(99, 6)}
    block = weighted(given)
    outputs = [emb(block.to(emb.device)) for emb in (cpu, gpu)]
    torch.testing.assert_close(outputs[1].flat.cpu(), outputs[0].flat, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(outputs[1]["m_seq"].values.cpu(), outputs[0]["m_seq"].values, atol=1e-5, rtol=1e-5)
    for out, rows in zip(outputs, optimizers, strict=True):
        (out.flat.sum() + out["m_seq"].values.square().sum()).backward()
        rows.step()
    for name, far in (("a", 10**12), ("m", -5), ("h", 7)):
        found = [emb.lookup(name, [3, far]) for emb in (cpu, gpu)]
        torch.testing.assert_close(found[1].cpu(), found[0], atol=1e-5, rtol=2.0**-7)


def test_weights_take_gradients_through_a_table_with_several_hashes():
    torch.manual_seed(1)
    given = {"a": ids(9, 4), "a_max": ids(9, 4, 2), "h": ids(30, 4), "m": lists(99, 3, 4), "m_seq": ids(99, 4)}
    block, found = weighted(given), []
    for device in ("cpu", "cuda"):
        emb, there = hr.EmbeddingCollection(TABLES, seed=3, device=device), block.to(device)
        rows = hr.optim.SGD(emb, lr=0.1)
        leaf = there.weights.detach().clone().requires_grad_()  # pyright: ignore
        emb(replace(there, weights=leaf)).flat.square().sum().backward()
        rows.step()
        found.append(leaf.grad.cpu())  # pyright: ignore
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-4)


def test_a_lookup_with_all_kinds_of_tables_can_be_captured():
    torch.manual_seed(2)
    emb = hr.EmbeddingCollection(TABLES, seed=3, device="cuda").eval()
    blocks = [
        weighted({"a": ids(99, 4), "a_max": ids(99, 4, 3), "h": ids(30, 4, 2), "m": ids(99, 4, 2), "m_seq": ids(99, 4)})
        for _ in range(2)
    ]
    static = blocks[0].to("cuda")
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            emb(static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            flat = emb(static).flat
        there = blocks[1].to("cuda")
        static.values.copy_(there.values)
        static.weights.copy_(there.weights)  # pyright: ignore
        graph.replay()
        torch.testing.assert_close(flat, emb(there).flat)
