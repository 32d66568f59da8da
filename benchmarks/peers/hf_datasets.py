"""Peer: Hugging Face datasets, from its Parquet loader to torch tensors.

`load_dataset("parquet")` first copies the file into its memory-mapped Arrow cache; that is not timed.
Then `.with_format("torch")`, as its PyTorch page says, and `.iter(batch_size)`: that page's DataLoader
cannot collate ragged columns by default; one with our own `collate_fn` and two workers was slower when tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import datasets
import pyarrow as pa
import torch
from protocol import Request, serve


class Epochs:
    """`Dataset.iter` gives one epoch; this gives as many as are asked for."""

    def __init__(self, dataset: datasets.Dataset, batch: int) -> None:
        self.dataset, self.batch = dataset, batch

    def __iter__(self) -> Iterator[dict]:
        return self.dataset.iter(batch_size=self.batch)


def prepare(request: Request) -> Iterable[dict]:
    datasets.disable_progress_bars()
    torch.set_num_threads(request.threads)
    pa.set_cpu_count(request.threads)
    dataset = datasets.load_dataset(
        "parquet", data_files=str(request.path), split="train", cache_dir=str(request.cache / "hf")
    )
    return Epochs(dataset.with_format("torch"), request.batch)


if __name__ == "__main__":
    versions = {"datasets": datasets.__version__, "torch": torch.__version__, "pyarrow": pa.__version__}
    serve(prepare, lambda batch, label: len(batch[label]), versions)
