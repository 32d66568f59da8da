"""The models that cases train: a small dense network over collections, or over torch's own embedding modules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import hybridrec as hr
from hybridrec.embedding import EmbeddingCollection, Embeddings, devices
from hybridrec.types import IdBlock, Ragged
from tests.gpu import DEVICE
from tests.parallel.training_case import DENSE, Case, features_of

KEYS = 5  # parameters that learned weights are taken from


def net_of(case: Case) -> nn.Module:
    """The model of a case, the same in every process."""
    torch.manual_seed(case.seed)
    return Net(case, _fused(case) if case.fused else Collections(case))


def _fused(case: Case) -> Modules:
    """Modules as tables; on the device under test also where the interpreter has it on the CPU."""
    modules = Modules(case)
    if not case.on_device:
        return hr.fuse(modules)
    kept, devices.on_host = devices.on_host, lambda device: False
    try:
        return hr.fuse(modules.to(DEVICE))
    finally:
        devices.on_host = kept


class Net(nn.Module):
    """Two layers over dense features and embeddings."""

    def __init__(self, case: Case, embedded: Collections | Modules) -> None:
        super().__init__()
        self.learned = case.learned
        self.embedded = embedded
        self.gain = nn.Parameter(torch.rand(KEYS) + 0.5)
        self.bottom = nn.Linear(DENSE + case.lookups * embedded.width, 5)
        self.top = nn.Linear(5, 1)

    def forward(self, blocks: list[IdBlock], dense: Tensor) -> tuple[Tensor, Tensor]:
        """The prediction [B] and all embeddings [B, width]."""
        found = [part for block in blocks for part in self.embedded(self._weighed(block))]
        every = torch.cat([dense, *found], dim=1)
        shift = 0.0 if self.learned else self.gain.sum()
        return self.top(torch.tanh(self.bottom(every)))[:, 0] + shift, every

    def _weighed(self, block: IdBlock) -> IdBlock:
        if not self.learned:
            return block
        assert block.weights is not None
        return replace(block, weights=block.weights * self.gain[block.values % KEYS])


class Collections(nn.Module):
    """The collections of a case."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        kind = _device_collection() if case.on_device else EmbeddingCollection
        self.parts = nn.ModuleList(kind(tables, seed=3) for tables in case.declared())
        self.width = sum(sum(each.dims) for each in self.parts)  # type: ignore[arg-type]

    def forward(self, block: IdBlock) -> list[Tensor]:
        """What is pooled, and the sums of sequences after a function that is not linear; each [B, some]."""
        return [vectors for part in self.parts for vectors in self._vectors(part(block))]

    def _vectors(self, out: Embeddings) -> list[Tensor]:
        return [out.flat.float(), *(_summed(part) for part in out.sequences.values())]


def _device_collection() -> Any:
    from tests.parallel.gpu.collection import DeviceCollection  # Triton comes with it

    return DeviceCollection


class Modules(nn.Module):
    """The tables of a case as modules of torch: nn.Embedding for combiner "none", nn.EmbeddingBag for others."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.features = [(name, spec["name"]) for spec in case.tables for name in features_of(spec)]
        self.tables = nn.ModuleDict({spec["name"]: self._module(spec) for spec in case.tables})
        self.width = sum(spec["dim"] * len(features_of(spec)) for spec in case.tables)

    def _module(self, spec: dict) -> nn.Module:
        if spec["combiner"] == "none":
            return nn.Embedding(spec["rows"], spec["dim"], padding_idx=spec.get("padding_idx"))
        return nn.EmbeddingBag(spec["rows"], spec["dim"], mode=spec["combiner"], padding_idx=spec.get("padding_idx"))

    def forward(self, block: IdBlock) -> list[Tensor]:
        """The vectors of every feature, [B, dim]."""
        return [self._feature(self.tables[table], block, name) for name, table in self.features]

    def _feature(self, module: nn.Module, block: IdBlock, name: str) -> Tensor:
        lists, weights = block[name], block.weights_of(name)
        if hasattr(module, "mode"):
            weights = weights if module.mode == "sum" else None
            return module(lists.flat, lists.offsets[:-1], per_sample_weights=weights)
        if block.hotness[block.names.index(name)] is not None:
            return torch.tanh(module(block.matrix(name))).sum(1)  # [B, hotness, dim]
        return _summed(Ragged.trusted(module(lists.flat), lists.offsets))


def _summed(sequence: Ragged) -> Tensor:
    lengths = sequence.offsets.diff()
    bags = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    rows = torch.tanh(sequence.flat.float())
    return rows.new_zeros(len(lengths), rows.shape[1]).index_add(0, bags, rows)
