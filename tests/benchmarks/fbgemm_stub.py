"""Stands for FBGEMM in tests of its peers: the same names, a sum of rows, no update. Every module of it is this."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

__version__, __variant__ = "0", "stub"
EmbeddingLocation = SimpleNamespace(DEVICE=0, MANAGED_CACHING=3)
ComputeDevice = SimpleNamespace(CUDA=0)
PoolingMode = SimpleNamespace(SUM=0)
EmbOptimType = SimpleNamespace(EXACT_ADAGRAD=0, EXACT_ROWWISE_ADAGRAD=1)
SparseType = SimpleNamespace(FP16=torch.float16, FP32=torch.float32)


class CacheState(NamedTuple):
    cache_hash_size_cumsum: list[int]
    cache_index_table_map: Any
    total_cache_hash_size: int


class SplitTableBatchedEmbeddingBagsCodegen(torch.nn.Module):
    def __init__(self, embedding_specs: Any, feature_table_map: list[int], device: Any, **_: Any) -> None:
        super().__init__()
        self.map, self.looked, self.fetched = feature_table_map, [], []
        self.rows = torch.nn.ParameterList(torch.zeros(spec[:2], device=device) for spec in embedding_specs)

    def split_embedding_weights(self) -> list[Tensor]:
        return list(self.rows)

    def prefetch(self, ids: Tensor, offsets: Tensor, forward_stream: Any) -> None:
        self.fetched.append(ids)

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        self.looked.append(ids)
        bags = offsets[:-1].view(len(self.map), -1)
        ends = [*bags[1:, 0].tolist(), len(ids)]
        parts = [
            torch.nn.functional.embedding_bag(ids[line[0] : end], self.rows[table], line - line[0], mode="sum")
            for table, line, end in zip(self.map, bags, ends, strict=True)
        ]
        return torch.cat(parts, 1)
