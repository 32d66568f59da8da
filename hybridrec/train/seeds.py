"""Random numbers: seeds, what a checkpoint keeps of them, and how far a run repeats itself.

On the CPU a run repeats bit for bit on the same machine with the same versions, files, batch size and number of
threads, also when it is killed and resumed. The rows of tables do not even depend on the number of threads. With
`deterministic=True`, torch refuses the operations (most of them on GPUs) that would not repeat.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor


def seed_everything(seed: int) -> None:
    """Seed torch, Python's random and NumPy. Call it before making the model, whose layers are drawn then.

    >>> seed_everything(0); first = torch.rand(1)
    >>> seed_everything(0); bool(torch.rand(1) == first)
    True
    """
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"seed is {seed!r}; it must be a whole number from 0 on")
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (what users' code draws from)


def rng_state() -> dict[str, Any]:
    """The state of all generators, as tensors and numbers."""
    version, words, gauss = random.getstate()
    kind, keys, place, has_gauss, cached = np.random.get_state()  # noqa: NPY002 (as above)
    made: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {
            "kind": kind,
            "keys": torch.tensor(keys.astype(np.int64)),  # pyright: ignore (legacy=False would give a dict)
            "place": int(place),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        },
    }
    if torch.cuda.is_available():
        made["cuda"] = list(torch.cuda.get_rng_state_all())
    return made


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Go on drawing where `rng_state()` was taken."""
    torch.set_rng_state(state["torch"])
    python, numpy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    keys = numpy["keys"].numpy().astype(np.uint32)
    np.random.set_state((numpy["kind"], keys, numpy["place"], numpy["has_gauss"], numpy["cached"]))  # noqa: NPY002
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def rng_line() -> Tensor:
    """The same as one line of int64 [n], which ranks can tell each other.

    >>> seed_everything(0); kept, first = rng_line(), torch.rand(1)
    >>> set_rng_line(kept) and bool(torch.rand(1) == first)
    True
    """
    return torch.cat([_numbers(leaf) for _, leaf in _leaves(rng_state())])


def set_rng_line(line: Tensor) -> bool:
    """Go on drawing where `rng_line()` was taken; False, and nothing changes, where generators are of another kind."""
    state = rng_state()
    found = list(_leaves(state))
    sizes = [len(_numbers(leaf)) for _, leaf in found]
    if sum(sizes) != len(line):
        return False
    for ((within, name), leaf), numbers in zip(found, line.split(sizes), strict=True):
        within[name] = _leaf(leaf, numbers)
    set_rng_state(state)
    return True


def _leaves(tree: Any) -> Iterator[tuple[tuple[Any, Any], Any]]:
    """What the dicts and lists of a state end in, and the place of each, in an order of its own; names are left out."""
    for name, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, dict | list):
            yield from _leaves(value)
        elif not isinstance(value, str):
            yield (tree, name), value


def _numbers(leaf: Any) -> Tensor:
    """A leaf as int64: of a float its bits, and whether it is there."""
    if isinstance(leaf, Tensor):
        return leaf.long()
    if isinstance(leaf, float) or leaf is None:
        bits = struct.unpack("<q", struct.pack("<d", leaf or 0.0))[0]
        return torch.tensor([int(leaf is not None), bits])
    return torch.tensor([leaf])


def _leaf(like: Any, numbers: Tensor) -> Any:
    if isinstance(like, Tensor):
        return numbers.to(like.dtype)
    if isinstance(like, float) or like is None:
        there, bits = numbers.tolist()
        return struct.unpack("<d", struct.pack("<q", bits))[0] if there else None
    return int(numbers)


@contextmanager
def tf32_matmul(wanted: bool) -> Iterator[None]:
    """Within it, GPUs multiply float32 matrices in TF32 (10 bits of mantissa), if that is wanted."""
    before = torch.get_float32_matmul_precision()
    if wanted:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def determinism(wanted: bool) -> Iterator[None]:
    """Within it, torch refuses operations that do not repeat themselves, if that is wanted."""
    before, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if wanted:
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
