"""What travels from the loader to the model: ragged columns, packed ids, batches."""

from __future__ import annotations

from hybridrec.types.batch import Batch
from hybridrec.types.id_block import IdBlock, KeyedJagged
from hybridrec.types.ragged import Ragged

__all__ = ["Batch", "IdBlock", "KeyedJagged", "Ragged"]
