"""Peer: FBGEMM's fused embedding operator (table-batched, optimizer in the backward) on the CPU.

Its bounds check stays at the default (WARNING), since ours checks ids too.
"""

from __future__ import annotations

import fbgemm_gpu
from embedding_step import EPS, LR, Bags, Contender, Task, serve
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor

OPTIMIZERS = {"rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "adagrad": EmbOptimType.EXACT_ADAGRAD}


def build(task: Task) -> Contender:
    spec = (task.shape.rows, task.setting.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        embedding_specs=[spec] * task.shape.tables,
        optimizer=OPTIMIZERS[task.variant],
        learning_rate=LR,
        eps=EPS,
        pooling_mode=PoolingMode.SUM,
    )
    tables.init_embedding_weights_uniform(-0.01, 0.01)

    def forward(batch: Bags) -> Tensor:
        return tables(indices=batch.values, offsets=batch.flat_offsets)

    return Contender(tables, forward)


if __name__ == "__main__":
    serve(build, {"fbgemm_gpu": f"{fbgemm_gpu.__version__} ({fbgemm_gpu.__variant__})"})
