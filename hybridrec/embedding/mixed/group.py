"""MixedGroup: tables on a card and tables on the host, updated together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from hybridrec.embedding.mixed.lookup import MixedLookup
from hybridrec.embedding.mixed.parts import PartedGroup
from hybridrec.embedding.queue import FeatureSpec


class MixedGroup(PartedGroup):
    """A group on a card, if there is one, and a group whose vectors come to the host; vectors are wanted on `device`.

    The card is to begin its step before the host.
    """

    def __init__(self, names: Iterable[str], there: Any, here: Any, device: torch.device) -> None:
        super().__init__(names, [here] if there is None else [there, here])
        self.there, self.here, self.device = there, here, device

    def lookup_fn(self, features: tuple[FeatureSpec, ...], remedy: str | None = None) -> MixedLookup:
        """What looks up these features, and queues their gradients in the groups of their tables."""
        return MixedLookup(self, features)

    def reader(self, name: str) -> Callable[[Tensor], Tensor]:
        """Rows by id, without a gradient: on the card, wherever they live."""
        read = reader_of(self.there if self.there is not None and name in self.there.stores else self.here, name)
        device = self.device
        if name in self.here.stores:
            return lambda ids: read(ids.cpu()).to(device)
        return read


def reader_of(group: Any, name: str) -> Callable[[Tensor], Tensor]:
    """Rows by id: those of the store, or as a group has it whose tables are not all here."""
    together = getattr(group, "reader", None)
    return group.stores[name].lookup if together is None else together(name)
