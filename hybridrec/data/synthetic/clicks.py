"""The planted click model: what the columns are, how a block of rows is drawn, what makes a click.

A block of rows is a function of (seed, block number) alone, so the data depend neither on chunk nor on row
group size, and the first n rows of a longer data set are the data set of n rows. Only additions,
multiplications, divisions and integer operations make the features, so that they are bit-equal everywhere.

logit = bias + scale * sum over four parts, each standardised and weighted by the root of its share:
  ids      sum over id columns of effect(column, id), a hash of (seed, column, id), smaller for rare ids
  pairs    three pairs of id columns, u + v + u * v with hashed effects u, v of the two ids
  dense    per column a * x + b * (x^2 - 1) / 2
  history  (mean of the hashed effects of the ids in the list) * (1 + another effect of the row's own id)
Interactions come with main effects, as in real logs: a purely multiplicative signal is a saddle that gradient
descent leaves slowly. On seed 0 a plain DeepFM (dim 8, Adagrad 0.02 for rows, Adam 1e-3, batches of 2,048)
reached 96 % of (best AUC - 0.5) in one pass over two million rows; less with larger batches, untuned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from hybridrec.data.synthetic.auc import expected_auc

BLOCK = 16_384
SHARES = {"ids": 0.50, "pairs": 0.10, "dense": 0.28, "history": 0.12}
RARE = 50.0  # an id of popularity rank RARE has half the effect of the most popular ones
PILOT = 1 << 63  # block numbers from here on calibrate the model and never reach a file
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Clicks:
    """What the click data look like; the defaults resemble Criteo's logs with two histories added.

    `vocabulary` is the size of the largest id column, the others go down geometrically to 10. The ids of
    history_1, history_2, ... are those of the last id column, the third to last, ...; a history's length has
    the mean `history_length` and is at most four times that.

    >>> Clicks(ids=3, dense=0, histories=1).names
    ['click', 'id_1', 'id_2', 'id_3', 'history_1']
    """

    ids: int = 26
    dense: int = 13
    histories: int = 2
    vocabulary: int = 200_000
    history_length: int = 10
    auc: float = 0.80
    click_rate: float = 0.25

    def __post_init__(self) -> None:
        for name, low, high in (
            ("ids", 1, 10_000),
            ("dense", 0, 10_000),
            ("histories", 0, self.ids),
            ("vocabulary", 10, 1 << 31),
            ("history_length", 1, 100_000),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or not low <= value <= high:
                raise ValueError(f"{name}={value!r} must be a whole number from {low:,} to {high:,}")
        if not 0.5 <= self.auc <= 0.99:
            raise ValueError(f"auc={self.auc!r} must lie between 0.5 (no signal) and 0.99")
        if not 0.01 <= self.click_rate <= 0.99:
            raise ValueError(f"click_rate={self.click_rate!r} must lie between 0.01 and 0.99")

    @property
    def id_names(self) -> list[str]:
        return [f"id_{i + 1}" for i in range(self.ids)]

    @property
    def dense_names(self) -> list[str]:
        return [f"dense_{i + 1}" for i in range(self.dense)]

    @property
    def history_names(self) -> list[str]:
        return [f"history_{i + 1}" for i in range(self.histories)]

    @property
    def names(self) -> list[str]:
        return ["click", *self.id_names, *self.dense_names, *self.history_names]

    @property
    def vocabularies(self) -> list[int]:
        """Distinct values each id column can take."""
        if self.ids == 1:
            return [self.vocabulary]
        ratio = self.vocabulary / 10
        return [round(10 * ratio ** (i / (self.ids - 1))) for i in range(self.ids)]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Id columns that interact, of moderate vocabularies."""
        pairs = {(self.ids * k // 26, self.ids * (k + 5) // 26) for k in (1, 3, 5)}
        return sorted(pair for pair in pairs if pair[0] != pair[1])

    @property
    def history_targets(self) -> list[int]:
        """For each history the id column whose ids it lists."""
        return [max(self.ids - 1 - 2 * h, 0) for h in range(self.histories)]


@dataclass(frozen=True)
class Block:
    """Rows as drawn: arrays by column, list columns as (values, offsets)."""

    click: np.ndarray  # int8 [B]
    ids: list[np.ndarray]  # int64 [B]
    dense: list[np.ndarray]  # float32 [B]
    histories: list[tuple[np.ndarray, np.ndarray]]  # int64 [n], int32 [B + 1]
    probability: np.ndarray  # float64 [B], the true chance of a click


@dataclass(frozen=True)
class PowerLaw:
    """Ids 0 .. size - 1 with P(rank k) ~ (k + 1)^-(1 + 1/m), ranks scattered over the ids by a bijection."""

    size: int
    m: int
    factor: int
    shift: int

    @classmethod
    def of_column(cls, seed: int, column: int, size: int) -> PowerLaw:
        key = _key(seed, column, 0)
        factor = 1 + key % size
        while math.gcd(factor, size) != 1:
            factor += 1
        return cls(size, (5, 6, 7, 8)[column % 4], factor, (key >> 32) % size)

    @cached_property
    def reach(self) -> float:
        # Rounded, so that a last bit of the platform's pow cannot change an id.
        return round(1.0 - (self.size + 1.0) ** (-1.0 / self.m), 12)

    def draw(self, bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Random words -> (ids int64, popularity ranks float64)."""
        y = 1.0 - _uniform(bits) * self.reach
        ranks = np.floor(1.0 / _whole_power(y, self.m)) - 1.0
        np.minimum(ranks, self.size - 1.0, out=ranks)
        ids = ranks.astype(np.int64)
        ids *= self.factor
        ids += self.shift
        ids %= self.size
        return ids, ranks


class Planted:
    """The click model of (spec, seed), calibrated so that its best AUC and click rate are those of the spec.

    >>> block = Planted(Clicks(), seed=0).block(0)
    >>> len(block.click), len(block.ids), len(block.histories)
    (16384, 26, 2)
    """

    def __init__(self, spec: Clicks, seed: int) -> None:
        if not isinstance(seed, int) or not 0 <= seed < 1 << 63:
            raise ValueError(f"seed={seed!r} must be a whole number from 0 to 2**63 - 1")
        self.spec, self.seed = spec, seed
        self.laws = [PowerLaw.of_column(seed, c, n) for c, n in enumerate(spec.vocabularies)]
        self.slopes = _normal(_mix(np.arange(2 * spec.dense, dtype=np.uint64), _key(seed, 0, 9))).reshape(-1, 2)
        self.standard: dict[str, tuple[np.float32, np.float32]] = {}
        self.scale, self.bias = 0.0, 0.0
        self._calibrate()

    def block(self, number: int) -> Block:
        """Draw block `number`: BLOCK rows, whatever was drawn before."""
        bits, ids, dense, histories, parts = self._draw(number)
        z = self.bias + self.scale * self._signal(parts).astype(np.float64)
        probability = 1.0 / (1.0 + np.exp(-z))
        click = (_uniform(bits.random_raw(BLOCK)) < probability).astype(np.int8)
        return Block(click, ids, dense, histories, probability)

    def _draw(self, number: int):
        spec = self.spec
        bits = np.random.Philox(key=np.array([self.seed, number], dtype=np.uint64))
        drawn = [law.draw(bits.random_raw(BLOCK)) for law in self.laws]
        dense = [_normal(bits.random_raw(BLOCK)) for _ in range(spec.dense)]
        parts = {name: np.zeros(BLOCK, dtype=np.float32) for name in SHARES}
        for column, (ids, ranks) in enumerate(drawn):
            parts["ids"] += self._effect(column, 1, ids, ranks)
        for pair in spec.pairs:
            left, right = (self._effect(column, 2, *drawn[column]) for column in pair)
            parts["pairs"] += left + right + left * right
        for (a, b), x in zip(self.slopes, dense, strict=True):
            parts["dense"] += x * (a + b * np.float32(0.5) * x)
        histories = []
        for target in spec.history_targets:
            values, ranks, offsets = self._history(bits, target)
            histories.append((values, offsets))
            taste = _segment_means(self._effect(target, 3, values, ranks), offsets)
            parts["history"] += taste * (np.float32(1) + self._effect(target, 4, *drawn[target]))
        return bits, [ids for ids, _ in drawn], dense, histories, parts

    def _history(self, bits: np.random.Philox, target: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(values, ranks, offsets); a length is 4 * mean times the product of two uniforms."""
        halves = bits.random_raw(BLOCK)
        product = (halves & 0xFFFFFFFF).astype(np.float64) * (halves >> 32).astype(np.float64)
        lengths = (product * (4.0 * self.spec.history_length * 2.0**-64) + 0.5).astype(np.int32)
        offsets = np.zeros(BLOCK + 1, dtype=np.int32)
        np.cumsum(lengths, out=offsets[1:])
        values, ranks = self.laws[target].draw(bits.random_raw(int(offsets[-1])))
        return values, ranks, offsets

    def _effect(self, column: int, kind: int, ids: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        hashed = _normal(_mix(ids.view(np.uint64), _key(self.seed, column, kind)))
        return hashed * (RARE / (RARE + ranks)).astype(np.float32)

    def _signal(self, parts: dict[str, np.ndarray]) -> np.ndarray:
        total = np.zeros(BLOCK, dtype=np.float32)
        for name, (mean, factor) in self.standard.items():
            total += (parts[name] - mean) * factor
        return total

    def _calibrate(self) -> None:
        """Standardise the parts on pilot rows, then find scale (by bisection on the AUC) and bias."""
        pilots = [self._draw(PILOT + i)[-1] for i in range(4)]
        for name, share in SHARES.items():
            values = np.concatenate([parts[name] for parts in pilots]).astype(np.float64)
            if values.std() > 1e-6:
                factor = round(math.sqrt(share) / values.std(), 5)
                self.standard[name] = (np.float32(round(values.mean(), 4)), np.float32(factor))
        signal = np.sort(np.concatenate([self._signal(parts) for parts in pilots]).astype(np.float64))
        low, high = 0.0, 32.0
        for _ in range(16):
            middle = (low + high) / 2
            logits = middle * signal
            reached = expected_auc(_sigmoid(logits + _bias(logits, self.spec.click_rate))) >= self.spec.auc
            low, high = (low, middle) if reached else (middle, high)
        self.scale = round(low, 3) if self.spec.auc > 0.5 else 0.0
        self.bias = round(_bias(self.scale * signal, self.spec.click_rate), 4)


def _bias(logits: np.ndarray, rate: float) -> float:
    """The shift that gives the logits this mean probability; every 16th will do."""
    some = logits[::16]
    low, high = -64.0, 64.0
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if _sigmoid(some + middle).mean() < rate else (low, middle)
    return low


def _sigmoid(z: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-np.clip(z, -500, 500)))


@cache
def _key(seed: int, column: int, kind: int) -> int:
    """A 64-bit key for one hash family of one column."""
    word = seed
    for part in (column, kind):
        word = int(_mix(np.array([part], dtype=np.uint64), word)[0])
    return word


def _mix(words: np.ndarray, key: int) -> np.ndarray:
    """splitmix64's finaliser over words * golden + key, in uint64."""
    z = words * np.uint64(_GOLDEN)
    z += np.uint64((key * 0xD1342543DE82EF95 + _GOLDEN) & _MASK)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def _normal(words: np.ndarray) -> np.ndarray:
    """Words -> float32, mean 0, variance 1, nearly normal: the sum of a word's four 16-bit parts."""
    low = np.uint64(0x0000FFFF0000FFFF)
    halves = (words & low) + ((words >> np.uint64(16)) & low)
    sums = (halves & np.uint64(0xFFFFFFFF)) + (halves >> np.uint64(32))
    values = sums.astype(np.float32)
    values -= np.float32(2 * 65535.0)
    values *= np.float32(math.sqrt(3.0) / 65536.0)
    return values


def _uniform(words: np.ndarray) -> np.ndarray:
    """Words -> float64 in [0, 1) of 53 bits."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _whole_power(base: np.ndarray, exponent: int) -> np.ndarray:
    """base ** exponent by squaring: only multiplications, hence the same bits on every machine."""
    result: np.ndarray | None = None
    while exponent:
        if exponent & 1:
            result = base if result is None else result * base
        exponent >>= 1
        if exponent:
            base = base * base
    assert result is not None
    return result


def _segment_means(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Mean of each list, 0 for an empty one; a running sum adds in a fixed order."""
    sums = np.zeros(len(values) + 1)
    np.cumsum(values, out=sums[1:], dtype=np.float64)
    lengths = np.maximum(np.diff(offsets), 1)
    return ((sums[offsets[1:]] - sums[offsets[:-1]]) / lengths).astype(np.float32)
