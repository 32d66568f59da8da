"""Row optimizers: they update the embedding rows that have a gradient, and no others."""

from __future__ import annotations

from hybridrec.optim.adagrad import Adagrad
from hybridrec.optim.adam import Adam
from hybridrec.optim.clip import clip_grad_norm_
from hybridrec.optim.ftrl import FTRL
from hybridrec.optim.optimizer import RowOptimizer
from hybridrec.optim.rowwise_adagrad import RowWiseAdagrad
from hybridrec.optim.sgd import SGD

__all__ = ["SGD", "Adagrad", "RowWiseAdagrad", "Adam", "FTRL", "RowOptimizer", "clip_grad_norm_"]
