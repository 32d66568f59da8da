"""Case: one training run that N ranks and one process make alike: tables, batches, plan, optimizer, as JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hybridrec.embedding import Table, Uniform
from hybridrec.embedding.policies import TTL, MinCount, MultiHash, Probability
from hybridrec.parallel.plan import Placement, Plan
from hybridrec.types import IdBlock, Ragged

DENSE = 3  # dense features
STRANGE = (-1, 2**63 - 1, -(2**63), 10**12)  # ids that no fixed table has a row for

Spec = dict[str, Any]  # what `Table` takes, as JSON
Lists = dict[str, list[list[tuple[int, float]]]]  # the (id, weight) pairs of every row, by feature


class Rows(NamedTuple):
    """What one forward is given."""

    blocks: list[IdBlock]  # one for each lookup
    dense: Tensor  # [B, DENSE]
    label: Tensor  # [B]

    def to(self, device: torch.device) -> Rows:
        """The same on another device."""
        return Rows([block.to(device) for block in self.blocks], self.dense.to(device), self.label.to(device))


@dataclass(frozen=True)
class Case:
    """A training run. `sizes[step][micro][rank]` are the rows of each rank's batch; a step has one or more of them.

    `hot` is the number of ids per row of a feature, ragged where it is None or not given. `learned` weights depend on
    a parameter. `placements` are those of the plan; None leaves the plan to `hr.shard`.
    """

    tables: list[Spec]
    sizes: list[list[list[int]]]
    placements: list[Spec] | None = None
    optimizer: str = "SGD"
    options: Spec = field(default_factory=lambda: {"lr": 0.5})
    hot: dict[str, int | None] = field(default_factory=dict)
    collections: list[list[str]] | None = None  # names of tables; None is one collection of all
    weighted: bool = False
    learned: bool = False
    lookups: int = 1
    clip: float | None = None  # of the global norm
    seed: int = 0
    wire: Spec | None = None
    longest: int = 4  # ids in a ragged list
    threads: int = 1  # of a rank
    idless: list[int] = field(default_factory=list)  # ranks whose lists are all empty
    fused: bool = False  # tables are nn.Embedding and nn.EmbeddingBag, through hr.fuse
    weighs: bool = False  # ranks say how many rows they have
    ahead: bool = False  # ids of a batch are sent while the one before is computed
    on_device: bool = False  # rows are on the device under test, of all ranks the same one
    servers: list[str] = field(default_factory=list)  # addresses of those that have the tables with where="server"
    staleness: int | None = None
    habit: str = ""  # something else that programs do around a backward pass, by its name in `jobs/habits.py`

    @property
    def world(self) -> int:
        """How many ranks it is for."""
        return len(self.sizes[0][0])

    def to_json(self) -> Spec:
        """The case as a job takes it."""
        return asdict(self)

    def plan(self) -> Plan | None:
        """The plan that it gives."""
        if self.placements is None:
            return None
        made = [Placement(**{**each, **_tuples(each)}) for each in self.placements]
        return Plan(self.world, tuple(made))

    def declared(self) -> list[list[Table]]:
        """The tables of every collection."""
        made = {spec["name"]: table_of(spec) for spec in self.tables}
        return [[made[name] for name in names] for names in self.collections or [list(made)]]

    def rows_of(self, step: int, micro: int, ranks: Sequence[int]) -> Rows:
        """The batches of these ranks, one after the other."""
        parts = [self._lists(step, micro, rank) for rank in ranks]
        size = sum(self.sizes[step][micro][rank] for rank in ranks)
        blocks = [self._block([part[n] for part in parts], size) for n in range(self.lookups)]
        dense = [self._dense(step, micro, rank) for rank in ranks]
        return Rows(blocks, torch.cat([each for each, _ in dense]), torch.cat([each for _, each in dense]))

    def _dense(self, step: int, micro: int, rank: int) -> tuple[Tensor, Tensor]:
        size = self.sizes[step][micro][rank]
        generator = torch.Generator().manual_seed(hash((self.seed, step, micro, rank)) % 2**62)  # of ints alone
        made = torch.rand(size, DENSE + 1, generator=generator) * 2 - 1
        return made[:, :DENSE].contiguous(), made[:, DENSE].contiguous()

    def _lists(self, step: int, micro: int, rank: int) -> list[Lists]:
        """The lists of one rank's batch for every lookup."""
        size, found = self.sizes[step][micro][rank], []
        for lookup in range(self.lookups):
            random = Random(f"{self.seed} {step} {micro} {rank} {lookup}")
            lists: Lists = {}
            for spec in self.tables:
                for feature in features_of(spec):
                    hot = self.hot.get(feature)
                    lists[feature] = [self._bag(random, spec, hot, rank) for _ in range(size)]
            found.append(lists)
        return found

    def _bag(self, random: Random, spec: Spec, hot: int | None, rank: int) -> list[tuple[int, float]]:
        length = (0 if rank in self.idless else random.randint(0, self.longest)) if hot is None else hot
        return [(_id(random, spec), random.randint(1, 8) / 4.0) for _ in range(length)]

    def _block(self, parts: Sequence[Lists], size: int) -> IdBlock:
        columns: dict[str, Tensor | Ragged] = {}
        weights: dict[str, Tensor] = {}
        for feature in parts[0]:
            lists = [each for part in parts for each in part[feature]]
            ids, hot = [[one for one, _ in each] for each in lists], self.hot.get(feature)
            columns[feature] = (
                Ragged.from_lists(ids, dtype=torch.int64)
                if hot is None
                else torch.tensor(ids, dtype=torch.int64).view(size, hot)
            )
            weights[feature] = torch.tensor([weight for each in lists for _, weight in each])
        return IdBlock.from_ragged(columns, weights if self.weighted or self.learned else None, batch_size=size)


def features_of(spec: Spec) -> list[str]:
    """The features of a table."""
    return list(spec.get("features") or [spec["name"]])


def table_of(spec: Spec) -> Table:
    """The table that these JSON values declare."""
    given = {name: value for name, value in spec.items() if name not in ("name", "dim", "dtype", "hashes", "admission")}
    if spec.get("admission"):
        kind, value = spec["admission"]
        given["admission"] = {"probability": Probability, "min_count": MinCount}[kind](value)
    if isinstance(steps := spec.get("eviction"), int):  # to live
        given["eviction"] = TTL(steps)
    if spec.get("hashes"):
        given["hashes"] = MultiHash(*spec["hashes"])
    if spec.get("dtype"):
        given["dtype"] = getattr(torch, spec["dtype"])
    return Table(spec["name"], spec["dim"], init=Uniform(1.0), **given)


def _id(random: Random, spec: Spec) -> int:
    """An id that the table takes; low ones come more often."""
    if spec.get("capacity"):
        return (int(random.random() ** 2 * min(40, spec["capacity"] // 2)) * 0x9E3779B97F4A7C15) % 2**64 - 2**63
    if spec.get("hashes"):
        return int(random.random() ** 2 * 50) * 1_000_003 - 7
    if spec.get("out_of_range", "error") != "error" and random.random() < 0.15:
        return random.choice([*STRANGE, spec["rows"]])
    return int(random.random() ** 2 * spec["rows"])


def _tuples(spec: Mapping[str, Any]) -> Spec:
    return {name: tuple(spec[name]) for name in ("devices", "columns") if name in spec}
