"""Which ids a dynamic table lets in, which rows it gives up, and how an id can be spread over several rows.

All are plain values: what they mean is done by the store, and written down in `reference_store.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hybridrec.embedding.parameters import finite, keep, whole


@dataclass(frozen=True)
class LRU:
    """A full table gives up the rows whose last training lookup is longest ago."""


@dataclass(frozen=True)
class LFU:
    """A full table gives up the rows that training looked up least often."""


@dataclass(frozen=True)
class TTL:
    """A row that training has not looked up for more than `steps` steps is gone; its id starts anew.

    A table that is full before then gives up the oldest rows, as with `LRU`.
    """

    steps: int

    def __post_init__(self) -> None:
        keep(self, steps=whole("TTL", "steps", self.steps, least=1, most=2**32 - 1))


@dataclass(frozen=True)
class Probability:
    """An id is let in with probability `p`: always the same ids, by a hash of seed, table name and id.

    >>> Probability(0.1)
    Probability(p=0.1)
    """

    p: float

    def __post_init__(self) -> None:
        p = finite("Probability", "p", self.p)
        if not 0 < p <= 1:
            raise ValueError(f"Probability: p is {p}; it must be above 0 and at most 1")
        keep(self, p=p)


@dataclass(frozen=True)
class MinCount:
    """An id is let in when training has seen it `k` times, by the count of a sketch that never counts too few."""

    k: int

    def __post_init__(self) -> None:
        keep(self, k=whole("MinCount", "k", self.k, least=1, most=2**16 - 1))


@dataclass(frozen=True)
class MultiHash:
    """Each id is the sum of `rounds` rows, one from each block of `size` rows, found by repeated hashing.

    Ids that share all their rows cannot be told apart, which two rounds over n rows make as rare as one
    round over n * n. The table has rounds * size rows, and takes any id.

    >>> MultiHash(rounds=2, size=1000).rows
    2000
    """

    rounds: int
    size: int

    def __post_init__(self) -> None:
        keep(self, rounds=whole("MultiHash", "rounds", self.rounds, least=1, most=64))
        keep(self, size=whole("MultiHash", "size", self.size, least=1, most=2**32 - 2))

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return self.rounds * self.size


Eviction = LRU | LFU | TTL
Admission = Probability | MinCount

EVICTIONS = {"lru": LRU(), "lfu": LFU()}


def eviction_of(owner: str, given: Any) -> Eviction | None:
    """The policy that a declaration names, by value or by string.

    >>> eviction_of("table 'user'", "lfu")
    LFU()
    """
    if given is None or isinstance(given, Eviction):
        return given
    if isinstance(given, str) and given in EVICTIONS:
        return EVICTIONS[given]
    raise ValueError(f"{owner}: eviction is {given!r}; valid are 'lru', 'lfu', LRU(), LFU(), TTL(steps) and None")


def admission_of(owner: str, given: Any) -> Admission | None:
    """The policy that a declaration names."""
    if given is None or isinstance(given, Admission):
        return given
    raise ValueError(f"{owner}: admission is {given!r}; valid are Probability(p), MinCount(k) and None")
