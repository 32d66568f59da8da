"""Which group the tables of a collection are in: one of the host, one of a card, or both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hybridrec.embedding.group import TableGroup
from hybridrec.embedding.mixed.group import MixedGroup
from hybridrec.embedding.mixed.host import HostGroup
from hybridrec.embedding.native_store import NativeStore


def make_group(stores: Mapping[str, Any], trainable: set[str], device: torch.device) -> Any:
    """The group of these stores, for lookups whose vectors are wanted on a device."""
    here = {name: store for name, store in stores.items() if isinstance(store, NativeStore)}
    there = {name: store for name, store in stores.items() if name not in here}
    if device.type == "cpu" and not there:
        return TableGroup(stores, trainable)
    of_card = None
    if there:
        from hybridrec.embedding.gpu.group import DeviceGroup  # Triton comes with it

        of_card = DeviceGroup(there, trainable)
    return MixedGroup(stores, of_card, HostGroup(here, trainable, device), device) if here else of_card
