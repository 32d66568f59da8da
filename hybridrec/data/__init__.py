"""Files to batches: `hr.data.parquet(...)` and everything around it. Names load on first use."""

from __future__ import annotations

import importlib
import importlib.util
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

__all__ = [
    "parquet",
    "csv",
    "ipc",
    "table",
    "stream",
    "Dataset",
    "CsvOptions",
    "Schema",
    "Feature",
    "NULL_ID",
    "Hash",
    "Modulo",
    "Bucketize",
    "Log1p",
    "Standardize",
    "Clip",
    "Truncate",
    "Vocabulary",
    "IsIn",
    "Cross",
    "Restore",
    "xxh64",
]

_HOME = {
    **dict.fromkeys(("parquet", "csv", "ipc", "table", "stream"), "open"),
    **dict.fromkeys(("Schema", "Feature", "NULL_ID"), "schema"),
    "Dataset": "dataset",
    "CsvOptions": "formats",
    "Restore": "restore",
    "xxh64": "hashing",
}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(f"hybridrec.data.{_HOME.get(name, 'transforms')}"), name)
    if not name.startswith("_") and importlib.util.find_spec(f"hybridrec.data.{name}") is not None:
        return importlib.import_module(f"hybridrec.data.{name}")
    raise AttributeError(f"hybridrec.data has no {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
