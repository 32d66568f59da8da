"""The best plan by trying every one of them: the oracle of the planner, for few tables and devices."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np

from hybridrec.parallel import cost
from hybridrec.parallel.choices import choices_of
from hybridrec.parallel.cluster import Cluster
from hybridrec.parallel.constraints import Constraints
from hybridrec.parallel.search import UNFIT, Option, Search
from hybridrec.parallel.workload import Workload

MOST = 2_000_000


def least_seconds(
    workload: Workload, cluster: Cluster, constraints: Constraints | None = None, wire: cost.Wire | None = None
) -> float:
    """Seconds of a step of the best plan there is; inf where none fits.

    >>> from hybridrec.parallel import TableLoad
    >>> work = Workload((TableLoad("item", rows=1000, dim=8),), batch_size=64)
    >>> round(1e6 * least_seconds(work, Cluster.parse("1x2xcpu")), 1)
    3606.7
    """
    limits, step = constraints or Constraints(), cost.Step(cluster, workload.batch_size, wire or cost.Wire())
    choices = [choices_of(table, step, limits, tiers=True) for table in workload.tables]
    options = [[Option(each, on) for each in table for on in each.all_devices(cluster.world)] for table in choices]
    if (size := prod(map(len, options))) > MOST:
        raise ValueError(f"there are {size:,} plans to try; the most is {MOST:,}: fewer tables or devices, please")
    room = (1 - limits.margin) * cluster.memory
    search = Search([], step, room, (1 - limits.margin) * cluster.host_memory / cluster.devices)
    *first, last = [np.stack([search.load(each) for each in of_table]) for of_table in options]
    best = np.inf
    for parts in product(*first):
        best = min(best, float(search.score(sum(parts, np.zeros(last.shape[1:])) + last)[0].min()))
    return best if best < UNFIT else np.inf
