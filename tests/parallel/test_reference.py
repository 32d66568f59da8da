"""The oracle of the planner leaves nothing out."""

from itertools import product

import numpy as np
import pytest

from hybridrec.parallel import Cluster, Constraints, TableLoad, Workload, cost, reference
from hybridrec.parallel.choices import choices_of
from hybridrec.parallel.reference import least_seconds
from hybridrec.parallel.search import Option, Search

TABLES = (
    TableLoad("large", rows=40_000, dim=32),
    TableLoad("other", rows=9_000, dim=64),
    TableLoad("day", rows=7, dim=8),
)


@pytest.mark.parametrize(
    ("kind", "memory"), [("cpu", 80e9), ("H100", 80e9), ("H100", 4e6), ("H100", 3e6), ("H100", 1e5)]
)
def test_no_other_plan_is_better_than_the_best_of_all(kind: str, memory: float) -> None:
    work, cluster = Workload(TABLES, batch_size=512), Cluster.parse(f"1x2x{kind}", memory=memory)
    step = cost.Step(cluster, work.batch_size, cost.Wire())
    room = 0.9 * cluster.memory, 0.9 * cluster.host_memory / cluster.devices
    search = Search([], step, *room)
    options = [
        [Option(each, on) for each in choices_of(table, step, Constraints(), tiers=True) for on in each.all_devices(2)]
        for table in work.tables
    ]
    every = [search.total(plan) for plan in product(*options)]
    fitting = [float(search.score(total)[0]) for total in every if search.fits(total)]
    assert least_seconds(work, cluster) == pytest.approx(min(fitting, default=np.inf), rel=1e-12)


def test_too_many_plans_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "MOST", 20)
    with pytest.raises(ValueError, match="there are more than 20 plans to try: fewer tables or devices, please"):
        least_seconds(Workload(TABLES, batch_size=512), Cluster.parse("1x2xH100"))
