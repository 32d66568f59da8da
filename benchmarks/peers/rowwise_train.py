"""Peer: the same plain DeepFM behind the usual `Dataset` of rows and a `DataLoader` with workers.

The file is read once into arrays; `__getitem__` gives one row; the default collate function stacks rows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pyarrow.parquet as pq
import torch
from peers.plain_pytorch_train import Rows, epoch, prepare
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from train_workload import DENSE_NAMES, ID_NAMES, Task, say
from workloads import LABEL


class Clicks(Dataset):
    """One row at a time: ids [F], dense [n], label []."""

    def __init__(self, path: str) -> None:
        table = pq.read_table(path)
        self.ids = torch.stack([torch.tensor(table[name].to_numpy()) for name in ID_NAMES], 1)
        self.dense = torch.stack([torch.tensor(table[name].to_numpy()) for name in DENSE_NAMES], 1)
        self.label = torch.tensor(table[LABEL].to_numpy()).float()

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.ids[row], self.dense[row], self.label[row]


def batches(task: Task) -> Iterator[Rows]:
    """Batches by the default collate function; ids are turned to [F, B], as the model takes them."""
    for ids, dense, label in DataLoader(Clicks(task.path), task.batch, num_workers=task.threads):
        yield ids.T, dense, label


def main() -> None:
    task = Task.from_json(sys.argv[1])
    say(epoch(prepare(task, big=False), batches(task)))


if __name__ == "__main__":
    main()
