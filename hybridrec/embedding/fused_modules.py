"""What `fuse` makes of nn.Embedding and nn.EmbeddingBag: the same calls, over the rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from hybridrec.embedding.owner import RowOwner
from hybridrec.embedding.queue import FeatureSpec
from hybridrec.types import Ragged

RAGGED = -1  # hotness of bags that have offsets


class FusedModule(RowOwner, nn.Module):
    """A module whose weight is a table of a group that it shares with others; made by `fuse`, in place."""

    group: Any  # a TableGroup, or a DeviceGroup where the rows are on a GPU
    num_embeddings: int
    embedding_dim: int
    padding_idx: int | None
    _store: Any
    _device: torch.device
    _lookup: Any

    @classmethod
    def adopt(cls, module: Any, path: str, group: Any, table: str) -> Self:
        """Turn the module itself into one of these, so that whoever refers to it goes on doing so."""
        del module._parameters["weight"]
        module.__class__ = cls
        module.group = group
        module._store = group.stores[table]
        module.num_embeddings, module.embedding_dim = module.weight.shape
        module._device = module.weight.device
        remedy = "correct the ids, or give the module more rows before it is fused"
        module._lookup = group.lookup_fn((module._feature(path, table),), remedy)
        return module

    def _feature(self, path: str, table: str) -> FeatureSpec:
        raise NotImplementedError

    @property
    def weight(self) -> Tensor:
        """The rows [num_embeddings, embedding_dim] as they lie in memory, to read and write; they take no gradient."""
        return self._store.weight.detach()

    def _ids(self, input: Tensor) -> Tensor:
        """The ids int64 [N], in the order of memory."""
        if input.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"{self._who} takes ids of int64 or int32, got {input.dtype}; convert them with .long()")
        if input.device != self._device:
            raise ValueError(
                f"{self._who}: ids are on {input.device}, but the rows on {self._device}; move them with "
                f".to({str(self._device)!r})"
            )
        return input.reshape(-1).to(torch.int64).contiguous()

    @property
    def _who(self) -> str:
        return f"{type(self).__name__} {self._lookup.features[0].name!r}"

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = self.weight

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        strange: list[str] = []
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, strange, error_msgs)
        key = prefix + "weight"
        unexpected_keys.extend(name for name in strange if name != key)
        if key not in state_dict:
            missing_keys.append(key)
        elif state_dict[key].shape != self.weight.shape:
            found, wanted = list(state_dict[key].shape), list(self.weight.shape)
            error_msgs.append(f"size mismatch for {key}: found {found}, wanted {wanted}")
        else:
            self.weight.copy_(state_dict[key].detach())

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


class FusedEmbedding(FusedModule):
    """An nn.Embedding whose rows are a table."""

    def _feature(self, path: str, table: str) -> FeatureSpec:
        return FeatureSpec(path, table, "none", padding=self.padding_idx)

    def forward(self, input: Tensor) -> Tensor:
        ids = self._ids(input)
        _, (rows,) = self._lookup.one(ids, ids.new_empty(0), None, 1, ids.shape[0], self.training)
        return rows.view(*input.shape, self.embedding_dim).to(self._store.dtype)


class FusedEmbeddingBag(FusedModule):
    """An nn.EmbeddingBag whose rows are a table."""

    mode: str
    include_last_offset: bool

    def _feature(self, path: str, table: str) -> FeatureSpec:
        return FeatureSpec(path, table, self.mode)

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        ids, weights = self._ids(input), self._weights(input, per_sample_weights)
        if input.dim() == 2 and offsets is None:
            batch, hotness = input.shape
            ends = ids.new_empty(0)
        else:
            ends = self._ends(input, offsets)
            batch, hotness = ends.shape[0] - 1, RAGGED
        if self.padding_idx is not None:
            ends = ends if hotness == RAGGED else torch.arange(batch + 1, device=ids.device) * hotness
            ids, ends, weights = _without(self.padding_idx, ids, ends, weights)
            hotness = RAGGED
        flat, _ = self._lookup.one(ids, ends, weights, hotness, batch, self.training)
        return flat.to(self._store.dtype)

    def _ends(self, input: Tensor, offsets: Tensor | None) -> Tensor:
        """Where every bag begins, and the last one ends, int64 [bags + 1]."""
        if input.dim() != 1 or offsets is None or offsets.dim() != 1:
            given = "none" if offsets is None else list(offsets.shape)
            raise ValueError(
                f"{self._who} takes ids [N] with offsets [bags], or ids [bags, n] without; got ids "
                f"{list(input.shape)} and offsets {given}"
            )
        if offsets.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"{self._who} takes offsets of int64 or int32, got {offsets.dtype}")
        starts = offsets.to(torch.int64)
        if self.include_last_offset:
            if not starts.shape[0]:
                raise ValueError(f"{self._who}: offsets are empty, but include_last_offset wants the last end at least")
            return starts.contiguous()
        return torch.cat([starts, starts.new_full((1,), input.shape[0])])

    def _weights(self, input: Tensor, weights: Tensor | None) -> Tensor | None:
        if weights is None:
            return None
        if self.mode != "sum":
            raise ValueError(f"{self._who}: per_sample_weights go with mode 'sum', as in torch, not with {self.mode!r}")
        if weights.shape != input.shape:
            raise ValueError(
                f"{self._who}: per_sample_weights must have the shape of the ids, {list(input.shape)}, got "
                f"{list(weights.shape)}"
            )
        return weights.reshape(-1).float().contiguous()

    def extra_repr(self) -> str:
        last = ", include_last_offset=True" if self.include_last_offset else ""
        return f"{super().extra_repr()}, mode={self.mode!r}{last}"


def _without(
    padding: int, ids: Tensor, offsets: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Bags that lack an id, so that it neither adds nor counts."""
    Ragged(ids, offsets)  # offsets are checked, since wrong ones could become right here
    keep = ids != padding
    before = nn.functional.pad(keep.cumsum(0), (1, 0))  # ids that stay, in front of each
    return ids[keep], before[offsets], None if weights is None else weights[keep]
