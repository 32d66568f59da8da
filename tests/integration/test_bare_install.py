"""What `pip install .` brings is enough to train, score and serve on a CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE

OPTIONAL = (  # what extras, a torch for CUDA or another package may have brought along
    "duckdb",
    "fsspec",
    "lightning",
    "matplotlib",
    "pandas",
    "polars",
    "prometheus_client",
    "sklearn",
    "tensorboard",
    "triton",
    "xxhash",
)
ABSENT = f"""
import sys
from importlib.machinery import PathFinder

class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {OPTIONAL} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Bare
"""
JOURNEY = (
    "synth clicks.parquet --rows 3k --ids 3 --dense 2 --histories 1 --vocabulary 100",
    "inspect clicks.parquet --schema schema.json",
    "train clicks.parquet --label click --valid 0.2 --out run --quiet",
    "train clicks.parquet --label click --model dcnv2 --out crossed --quiet",
    "evaluate run clicks.parquet",
    "predict run clicks.parquet --out scores.parquet",
    "export run --out served",
    "checkpoint verify run",
    "plan --data clicks.parquet --label click --cluster 1x4xcpu --picture plan.svg",
    "doctor",
)
PROGRAM = f"""{ABSENT}
from hybridrec.cli.commands import app
from hybridrec.serve import load

for words in {JOURNEY}:
    assert not app(words.split(), standalone_mode=False), words
row = {{"id_1": [1], "id_2": [2], "id_3": [3], "dense_1": [0.5], "dense_2": [0.1], "history_1": [[1, 2]]}}
print("served", load("served").predict(row).shape)
"""


def test_every_step_from_data_to_served_scores_works_without_optional_packages(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout.endswith("served (1,)\n"), f"{done.stdout}\n{done.stderr}"
