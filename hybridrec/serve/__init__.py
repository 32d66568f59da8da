"""A trained model without its trainer: `export(model, folder)`, then `load(folder).predict(frame)` where it is to run.

Nothing here imports `hybridrec.train` or `hybridrec.models`.
"""

from __future__ import annotations

from hybridrec.serve.export import export
from hybridrec.serve.predictor import Predictor, load

__all__ = ["export", "load", "Predictor"]
