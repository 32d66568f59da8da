"""IntegerLookup: arbitrary ids to small numbers, learned as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hybridrec import _native
from hybridrec.embedding.parameters import whole
from hybridrec.types import IdBlock, Ragged

Ids = TypeVar("Ids", Tensor, Ragged, IdBlock)


class IntegerLookup(nn.Module):
    """Numbers ids 1, 2, … in the order in which they first appear, up to `max_tokens`; 0 is every other id.

    Ids come as a tensor of any shape, a Ragged or an IdBlock, and go out as the same, in int64. Any int64 is an id like
    others. In training mode new ids are learned and every id is counted; `eval()` only looks up. Of a block, the
    features named by `features` share the vocabulary (by default all do) and the others pass as they are.

    >>> lookup = IntegerLookup(max_tokens=4)
    >>> lookup(torch.tensor([12, 36, 1138, 42]))
    tensor([1, 2, 3, 4])
    >>> lookup(torch.tensor([[12, 1138, 42], [42, 1000, 36]]))
    tensor([[1, 3, 4],
            [4, 0, 2]])
    >>> lookup.vocabulary(), lookup.counts()
    (tensor([  12,   36, 1138,   42]), tensor([1, 2, 2, 2, 3]))
    """

    def __init__(self, max_tokens: int, *, features: Sequence[str] | None = None) -> None:
        super().__init__()
        if isinstance(features, str):
            raise TypeError(f"features is {features!r}; it must be a list of names: features=[{features!r}]")
        self.max_tokens = whole("IntegerLookup", "max_tokens", max_tokens, least=1, most=2**32 - 2)
        self.features = None if features is None else tuple(features)
        self._learned = _native.Vocabulary(self.max_tokens)

    # -- lookups ------------------------------------------------------------------------------------------

    def forward(self, ids: Ids) -> Ids:
        """The numbers of the ids, in the form in which the ids came."""
        if isinstance(ids, IdBlock):
            return self._of_block(ids)
        if self.features is not None:
            raise TypeError(f"features={list(self.features)} is about an IdBlock, but a {type(ids).__name__} came")
        return self._of_ragged(ids) if isinstance(ids, Ragged) else self._numbers(ids)

    def _of_ragged(self, ids: Ragged) -> Ragged:
        if ids.text is not None:
            raise TypeError("ids are strings, but a vocabulary is of whole numbers; hash them first")
        inner = self._of_ragged(ids.values) if isinstance(ids.values, Ragged) else self._numbers(ids.values)
        return Ragged.trusted(inner, ids.offsets)

    def _of_block(self, block: IdBlock) -> IdBlock:
        if self.features is None:
            return replace(block, values=self._numbers(block.values))
        if absent := [name for name in self.features if name not in block]:
            raise KeyError(f"no feature {absent[0]!r} in this block; it has {', '.join(block.names) or 'none'}")
        values = block.values.clone()
        for name in self.features:
            at = block.names.index(name)
            mine = slice(block.starts[at], block.starts[at + 1])
            values[mine] = self._numbers(block.values[mine])
        return replace(block, values=values)

    def _numbers(self, ids: Tensor) -> Tensor:
        if not isinstance(ids, Tensor):
            raise TypeError(f"ids must be a Tensor, a Ragged or an IdBlock, got {type(ids).__name__}")
        if ids.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"ids must be int64 or int32, got {ids.dtype}; convert them with .long()")
        if ids.device.type != "cpu":
            raise ValueError(f"ids are on {ids.device}, but the vocabulary on cpu; move them with .cpu()")
        keys = ids.to(torch.int64).contiguous()
        out = torch.empty_like(keys)
        self._learned.lookup(keys.data_ptr(), keys.numel(), out.data_ptr(), self.training)
        return out

    # -- what it has learned ------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Ids that have a number of their own."""
        return len(self._learned)

    def __bool__(self) -> bool:
        return True  # an empty vocabulary is still a module

    def vocabulary(self) -> Tensor:
        """The ids that have a number, int64 [n]: entry i has number i + 1."""
        return torch.from_numpy(self._learned.keys())

    def counts(self) -> Tensor:
        """How often each number came in training, int64 [n + 1]; entry 0 is for ids without a number."""
        return torch.from_numpy(self._learned.counts())

    def extra_repr(self) -> str:
        features = "" if self.features is None else f", features={list(self.features)}"
        return f"max_tokens={self.max_tokens}{features}, {len(self)} learned"

    # -- state_dict and copies ----------------------------------------------------------------------------

    def _load(self, keys: Tensor, counts: Tensor) -> None:
        """Take the place of what was learned; an error changes nothing."""
        for name, part in (("vocabulary", keys), ("counts", counts)):
            if not isinstance(part, Tensor) or part.dtype != torch.int64 or part.dim() != 1:
                kind = f"{part.dtype} {list(part.shape)}" if isinstance(part, Tensor) else type(part).__name__
                raise ValueError(f"{name} must be int64 [n], got {kind}")
        if len(counts) != len(keys) + 1:
            raise ValueError(f"{len(keys)} ids need {len(keys) + 1} counts, got {len(counts)}")
        keys, counts = keys.cpu().contiguous(), counts.cpu().contiguous()
        self._learned.load(keys.data_ptr(), len(keys), counts.data_ptr())

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "vocabulary"] = self.vocabulary()
        destination[prefix + "counts"] = self.counts()

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
        mine = [prefix + "vocabulary", prefix + "counts"]
        unexpected_keys.extend(key for key in strange if key not in mine)
        if absent := [key for key in mine if key not in state_dict]:
            missing_keys.extend(absent)
            return
        try:
            self._load(*(state_dict[key] for key in mine))
        except ValueError as error:
            error_msgs.append(f"{prefix}vocabulary does not fit: {error}")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_learned": (self.vocabulary(), self.counts())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        parts = state["_learned"]
        super().__setstate__({**state, "_learned": _native.Vocabulary(state["max_tokens"])})
        self._load(*parts)
