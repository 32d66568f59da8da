"""Peer of `tiers_gpu.py`: FBGEMM's caching table: all rows on the host, mapped for the card, a fifth of them cached.

Its cache takes the place of the least recently used row, which is its default, and the only way that goes with its
pipeline. `step` is tried as `fbgemm_tbe_gpu.py` is fastest, without and with the pipeline: the rows of the next batch
come on a stream of their own, from the end of this one's lookup to the begin of its update, as TorchRec does it.
Row-wise state is on the card, all of it; state by element is on the host, without a cache.
"""

from __future__ import annotations

from typing import Any

import torch
from fbgemm_gpu import split_table_batched_embeddings_ops_training as operators
from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheState, EmbeddingLocation
from fbgemm_tbe_gpu import Peer, Step, tables_of
from gpu_models import LARGE, Sample, Shape
from gpu_process import Measured, Task, tidy
from tiers_gpu_models import CACHED, shape_of
from torch import Tensor


def cache_state(rows: list[int], locations: list[Any], features: list[int]) -> CacheState:
    """As FBGEMM's function of this purpose, which makes a Python list with a number for every row: half a minute."""
    cached = [n if place == EmbeddingLocation.MANAGED_CACHING else 0 for n, place in zip(rows, locations, strict=True)]
    begins = [sum(cached[:table]) for table in range(len(cached) + 1)]
    last = {table: feature for feature, table in enumerate(features)}
    of_rows = torch.tensor([last.get(table, -1) for table in range(len(cached))], dtype=torch.int32)
    return CacheState(
        cache_hash_size_cumsum=[*(begins[table] if cached[table] else -1 for table in features), begins[-1]],
        cache_index_table_map=of_rows.repeat_interleave(torch.tensor(cached)),  # pyright: ignore[reportArgumentType]
        total_cache_hash_size=begins[-1],
    )


class Cached(Peer):
    """Whole steps over tables with caches, `ahead` with the pipeline. Batches come in their turn, again and again."""

    def __init__(self, task: Task, shape: Shape, ahead: bool) -> None:
        operators.construct_cache_state = cache_state
        options = {"cache_load_factor": CACHED, "uvm_host_mapped": True, "prefetch_pipeline": ahead}
        super().__init__(task, shape, tables_of(shape, task.device, lambda rows: rows >= LARGE, **options))
        self.turn = 0
        self.stream = self._beside() if ahead else None

    def _beside(self) -> torch.cuda.Stream:
        """A stream for what begins when the tables are there."""
        made = torch.cuda.Stream()
        made.wait_stream(torch.cuda.current_stream())
        return made

    def in_turn(self, step: Step) -> Step:
        """The step on the batch that is next: what came for it is for no other."""

        def taken(_: Sample) -> None:
            given = self.samples[self.turn % self.count]
            self.turn += 1
            step(given)

        return taken

    def vectors(self, given: Sample) -> Tensor:
        found = super().vectors(given)
        if self.stream is not None:
            coming = self.samples[self.turn % self.count]
            forward = torch.cuda.current_stream()
            with torch.cuda.stream(self.stream):
                self.emb.prefetch(coming.ids, self.offsets, forward_stream=forward)
        return found


def main() -> None:
    task = Task.received()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    shape = shape_of(task.model, task.most_rows)
    measured = Measured(task, {})
    for ahead in (False, True):
        how = ", rows ahead" if ahead else ""
        try:
            peer = Cached(task, shape, ahead)
        except Exception as reason:
            measured.failures[f"tables{how}"] = f"{type(reason).__name__}: {reason}"[:400]
            measured.tell()
            continue
        measured.facts |= peer.facts
        measured.time("step", f"compiled{how}", lambda peer=peer: peer.in_turn(peer.compiled()), peer.samples)
        dense = f"compiled, graph of the dense part{how}"
        measured.time("step", dense, lambda peer=peer: peer.in_turn(peer.dense_graph()), peer.samples)
        del peer
        tidy(task)  # the host may not have the rows of both


if __name__ == "__main__":
    main()
