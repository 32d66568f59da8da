"""MMoE: experts shared by several labels, a gate and a tower for each label (Ma et al. 2018, KDD).

x = vectors and dense numbers
experts   E MLPs over x
label l   gate_l = softmax(G_l x), mixture_l = sum over e of gate_l[e] * expert_e(x), logit_l = tower_l(mixture_l)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from hybridrec.data.schema import Schema
from hybridrec.models.layers import MLP, RunningNorm
from hybridrec.models.layers.beside import beside
from hybridrec.models.layers.mlp import behind_zeros
from hybridrec.models.model import Inputs, Model, last_bias


class MMoENet(nn.Module):
    """The dense part: vectors [B, W], dense [B, n] to logits [B, k]."""

    def __init__(
        self, width: int, dense: int, labels: int, experts: Sequence[MLP], tower: Sequence[int], dropout: float
    ) -> None:
        super().__init__()
        self.norm = RunningNorm(dense)
        self.experts = nn.ModuleList(experts)
        self.gates = nn.ModuleList(nn.Linear(width + dense, len(experts)) for _ in range(labels))
        self.towers = nn.ModuleList(MLP(experts[0].out, tower, out=1, dropout=dropout) for _ in range(labels))

    def forward(self, vectors: Tensor, dense: Tensor) -> Tensor:
        x = beside(vectors, self.norm(dense))
        opinions = torch.stack([expert(x) for expert in self.experts], 1)  # [B, E, H]
        logits = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            share = behind_zeros(x, gate).softmax(1).unsqueeze(1)  # [B, 1, E]
            logits.append(tower((share @ opinions).squeeze(1)))
        return torch.cat(logits, 1)


class MMoE(Model):
    """A model for several labels of the same rows: each chooses among the experts by a gate of its own.

    >>> import pyarrow as pa
    >>> columns = pa.schema({"user": pa.int64(), "click": pa.int8(), "like": pa.int8()})
    >>> model = MMoE(Schema.infer(columns, label=["click", "like"]), dim=8, experts=3)
    >>> model.labels, len(model.net.experts), len(model.net.towers)
    (('click', 'like'), 3, 2)
    """

    def __init__(
        self,
        schema: Schema,
        dim: int = 16,
        *,
        experts: int = 4,
        expert: Sequence[int] = (64, 32),
        tower: Sequence[int] = (16,),
        dropout: float = 0.0,
        **inputs: Unpack[Inputs],
    ) -> None:
        super().__init__(schema, dim, **inputs)
        self.experts, self.expert, self.tower, self.dropout = experts, expert, tower, dropout
        if experts < 1:
            raise ValueError(f"experts is {experts}; it must be 1 or more")
        self.embeddings = self.collection(self.declared, room=len(self.dense_names))
        width, dense = sum(self.embeddings.dims), len(self.dense_names)
        made = [MLP(width + dense, expert, dropout=dropout) for _ in range(experts)]
        self.net: MMoENet = MMoENet(width, dense, self.outputs, made, tower, dropout).to(self.device)

    def output_biases(self) -> list[Tensor]:
        return [last_bias(tower) for tower in self.net.towers]
