"""Many processes: where tables go (cluster, workload, cost, planner, plan), and lookups over all of them (shard).

Planning is made of pure functions, without torch; what needs torch is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hybridrec.parallel.cluster import Cluster
from hybridrec.parallel.constraints import Constraints, Pin
from hybridrec.parallel.cost import Wire
from hybridrec.parallel.plan import Placement, Plan
from hybridrec.parallel.planner import CannotFit, make_plan
from hybridrec.parallel.predict import Prediction, predict
from hybridrec.parallel.workload import FeatureLoad, TableLoad, Workload, measure

if TYPE_CHECKING:
    from hybridrec.parallel.ranks import Ranks as Ranks
    from hybridrec.parallel.ranks import init as init
    from hybridrec.parallel.ranks import leave as leave
    from hybridrec.parallel.ranks import ranks as ranks
    from hybridrec.parallel.shard import shard as shard
    from hybridrec.parallel.sharded_model import ShardedModel as ShardedModel

__all__ = [
    "Cluster",
    "Workload",
    "TableLoad",
    "FeatureLoad",
    "measure",
    "Constraints",
    "Pin",
    "Wire",
    "make_plan",
    "CannotFit",
    "Plan",
    "Placement",
    "Prediction",
    "predict",
    "init",
    "ranks",
    "leave",
    "Ranks",
    "shard",
    "ShardedModel",
]

_HOME = {"init": "ranks", "ranks": "ranks", "leave": "ranks", "Ranks": "ranks", "ShardedModel": "sharded_model"}
_HOME["shard"] = "shard"


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"hybridrec.parallel.{_HOME[name]}"), name)
    raise AttributeError(f"module 'hybridrec.parallel' has no attribute {name!r}; it has {', '.join(__all__)}")
