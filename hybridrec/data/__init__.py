"""Files to batches: `hr.data.parquet(...)` and everything around it. Names load on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridrec.data.dataset import Dataset as Dataset
    from hybridrec.data.formats import CsvOptions as CsvOptions
    from hybridrec.data.hashing import xxh64 as xxh64
    from hybridrec.data.open import csv as csv
    from hybridrec.data.open import ipc as ipc
    from hybridrec.data.open import parquet as parquet
    from hybridrec.data.open import stream as stream
    from hybridrec.data.open import table as table
    from hybridrec.data.restore import Restore as Restore
    from hybridrec.data.schema import NULL_ID as NULL_ID
    from hybridrec.data.schema import Feature as Feature
    from hybridrec.data.schema import Schema as Schema
    from hybridrec.data.transforms import Bucketize as Bucketize
    from hybridrec.data.transforms import Clip as Clip
    from hybridrec.data.transforms import Cross as Cross
    from hybridrec.data.transforms import Hash as Hash
    from hybridrec.data.transforms import IsIn as IsIn
    from hybridrec.data.transforms import Log1p as Log1p
    from hybridrec.data.transforms import Modulo as Modulo
    from hybridrec.data.transforms import Standardize as Standardize
    from hybridrec.data.transforms import Truncate as Truncate
    from hybridrec.data.transforms import Vocabulary as Vocabulary

_HOME = {
    "open": ("parquet", "csv", "ipc", "table", "stream"),
    "dataset": ("Dataset",),
    "formats": ("CsvOptions",),
    "schema": ("Schema", "Feature", "NULL_ID"),
    "transforms": (
        "Hash", "Modulo", "Bucketize", "Log1p", "Standardize", "Clip", "Truncate", "Vocabulary", "IsIn", "Cross",
    ),
    "restore": ("Restore",),
    "hashing": ("xxh64",),
}  # fmt: skip
_MODULE = {name: module for module, names in _HOME.items() for name in names}
__all__ = list(_MODULE)


def __getattr__(name: str) -> Any:
    if name in _MODULE:
        return getattr(importlib.import_module(f"hybridrec.data.{_MODULE[name]}"), name)
    try:
        return importlib.import_module(f"hybridrec.data.{name}")
    except ModuleNotFoundError:
        raise AttributeError(f"hybridrec.data has no {name!r}; it has {', '.join(__all__)}") from None


def __dir__() -> list[str]:
    return __all__
