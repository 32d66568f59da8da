"""The best plan of all that there are: the oracle of the planner, for few tables and devices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridrec.parallel import cost
from hybridrec.parallel.choices import choices_of
from hybridrec.parallel.cluster import Cluster
from hybridrec.parallel.constraints import Constraints
from hybridrec.parallel.search import UNFIT, Option, Search
from hybridrec.parallel.workload import Workload

MOST = 20_000_000  # plans, begun or whole


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
    room, host_room = (1 - limits.margin) * cluster.memory, (1 - limits.margin) * cluster.host_memory / cluster.devices
    search = Search([], step, room, host_room)
    loads = [np.stack([search.load(each) for each in of_table]) for of_table in options]
    loads.sort(key=lambda each: -float(search.score(each)[0].min()))  # what cannot be good is seen early
    trial = _Trial(search)
    trial.go_on(np.zeros(loads[0].shape[1:]), loads)
    return trial.least if trial.least < UNFIT else np.inf


class _Trial:
    """All plans, table by table. A table only adds to what devices have to do, so a beginning that is no better than
    the best plan so far, or does not fit, is not gone on with."""

    def __init__(self, search: Search) -> None:
        self.search, self.least, self.tried = search, UNFIT, 0

    def go_on(self, begun: np.ndarray, options: Sequence[np.ndarray]) -> None:
        """Try all plans that begin so, with these options of the tables that are left."""
        totals = begun + options[0]
        scores = self.search.score(totals)[0]
        self.tried += len(scores)
        if self.tried > MOST:
            raise ValueError(f"there are more than {MOST:,} plans to try: fewer tables or devices, please")
        if len(options) == 1:
            self.least = min(self.least, float(scores.min()))
            return
        for at in np.argsort(scores, kind="stable"):
            if scores[at] < self.least:
                self.go_on(totals[at], options[1:])
