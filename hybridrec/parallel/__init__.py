"""Where tables go on many devices: cluster, workload, cost, planner, plan. Pure functions, without torch."""

from __future__ import annotations

from hybridrec.parallel.cluster import Cluster
from hybridrec.parallel.constraints import Constraints, Pin
from hybridrec.parallel.cost import Wire
from hybridrec.parallel.plan import Placement, Plan
from hybridrec.parallel.planner import CannotFit, make_plan
from hybridrec.parallel.predict import Prediction, predict
from hybridrec.parallel.workload import FeatureLoad, TableLoad, Workload, measure

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
]
