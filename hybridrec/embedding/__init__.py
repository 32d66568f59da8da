"""Embedding tables: declared as values, held in stores, looked up together by a collection.

`Table` says what a table is, `EmbeddingCollection` owns tables and turns packed ids into `Embeddings`, and a `Store`
holds the rows of one table. `fuse` makes tables of the embedding modules in an existing model, and `IntegerLookup`
numbers ids as they come. Row optimizers are in `hybridrec.optim`.
"""

from __future__ import annotations

from hybridrec.embedding.collection import EmbeddingCollection
from hybridrec.embedding.embeddings import Embeddings
from hybridrec.embedding.fuse import fuse
from hybridrec.embedding.initial import Constant, Normal, Uniform
from hybridrec.embedding.integer_lookup import IntegerLookup
from hybridrec.embedding.policies import LFU, LRU, TTL, MinCount, MultiHash, Probability
from hybridrec.embedding.state import LoadReport
from hybridrec.embedding.store import RowData, Slots, Snapshot, Store
from hybridrec.embedding.table import Table

__all__ = [
    "Table",
    "EmbeddingCollection",
    "Embeddings",
    "fuse",
    "IntegerLookup",
    "Uniform",
    "Normal",
    "Constant",
    "LRU",
    "LFU",
    "TTL",
    "Probability",
    "MinCount",
    "MultiHash",
    "Store",
    "Slots",
    "RowData",
    "Snapshot",
    "LoadReport",
]
