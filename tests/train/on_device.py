"""Models whose tables are on the device under test; where that is the CPU, kernels are interpreted."""

from __future__ import annotations

from torch import nn

import hybridrec as hr
from hybridrec.embedding.gpu.group import DeviceGroup
from hybridrec.embedding.gpu.store import DeviceStore
from tests.embedding.gpu.on_device import QUICK
from tests.gpu import DEVICE


def put_tables(model: nn.Module) -> None:
    """Fixed tables of all collections inside begin anew on the device."""
    for part in (part for part in model.modules() if isinstance(part, hr.EmbeddingCollection)):
        part.device = DEVICE
        stores = {name: DeviceStore(table, part.seed, DEVICE) for name, table in part.tables.items()}
        part.adopt(DeviceGroup(stores, part.trainable, QUICK))
        part._lookup = part._look_up()
